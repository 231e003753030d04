"""The errors of everything that travels. All of Surehook's errors share one root.

::

    SurehookError
    └── WireError (also a ValueError)
        ├── IdError             an id is not ``prefix_`` + ULID
        ├── EnvelopeError       a payload can't be stored and sent unchanged
        │   └── EnvelopeTooLargeError   a body is over the size limit
        ├── HeaderError         a header name or value may not be sent
        ├── SecretError         a secret or key is not acceptable; says what is wrong with it
        ├── ScheduleError       a retry schedule can't be read
        ├── ProfileError        a header profile is incomplete or contradicts itself
        └── VerificationError   a message does not verify; ``reason`` is a stable code
"""

from __future__ import annotations


class SurehookError(Exception):
    """Root of every error that Surehook raises."""


class WireError(SurehookError, ValueError):
    """A value that travels, or governs what travels, is not acceptable."""


class IdError(WireError):
    """An id is not of the form ``prefix_`` + ULID."""


class EnvelopeError(WireError):
    """A payload can't be stored and sent unchanged."""


class EnvelopeTooLargeError(EnvelopeError):
    """A body is over the size limit; ``size`` and ``limit`` are in bytes."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"the body has {size} bytes; the limit is {limit} bytes")
        self.size = size
        self.limit = limit

    def __reduce__(self) -> tuple[type[EnvelopeTooLargeError], tuple[int, int]]:
        # An exception is pickled with its args, which here are not the constructor's.
        return type(self), (self.size, self.limit)


class HeaderError(WireError):
    """A header name or value may not be sent. The message names the header, never its value."""


class SecretError(WireError):
    """A secret or key is not acceptable. The message names what is wrong, never the secret."""


class ScheduleError(WireError):
    """A retry schedule can't be read."""


class ProfileError(WireError):
    """A header profile is incomplete or contradicts itself."""


class VerificationError(WireError):
    """A received message does not verify.

    ``reason`` is a stable code to branch on (see ``wire.signature.Reason``); the text is for
    people.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[type[VerificationError], tuple[str, str]]:
        return type(self), (self.reason, str(self))
