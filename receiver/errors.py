"""What the receiver kit raises. Hostile input raises one family only: `VerificationError`.

::

    SurehookError
    ├── wire.errors.VerificationError
    │   └── VerificationError            a request is refused; ``status`` and ``reason`` say how
    │       ├── SignatureError     401   it can't be shown to come from the provider
    │       ├── RequestError       400   it is genuine, or not even a delivery, but not acceptable
    │       │   └── NotBytesError  400   it was parsed before it was verified (also a TypeError)
    │       └── TooLargeError      413   its body is over the limit
    ├── ConfigurationError (also a ValueError)
    │   │                                the kit was set up in a way that can't work
    │   └── GateError                    a gate, store, inbox or feed, or a call of one
    ├── StoreFullError                   the memory store has no room now; answer 503
    └── receiver.pull.FeedError          a feed of missed events can't be read

The rule for the status: whatever keeps the kit from knowing that the provider sent these bytes
(a header of the signature missing, a timestamp out of tolerance, a wrong signature) is 401;
whatever is wrong with bytes that the provider did send (no key, not JSON, an event type,
application or tenant that is not expected here) is 400.
"""

from __future__ import annotations

from typing import ClassVar

import wire.errors

__all__ = [
    "ConfigurationError",
    "GateError",
    "NotBytesError",
    "RequestError",
    "SignatureError",
    "StoreFullError",
    "TooLargeError",
    "VerificationError",
]


class VerificationError(wire.errors.VerificationError):
    """A request is refused before anything was claimed.

    ``status`` is the HTTP status to answer (400, 401 or 413), ``reason`` a stable code, and the
    text is for people; none of them repeats a secret or the body.
    """

    status: ClassVar[int] = 400


class SignatureError(VerificationError):
    """Nothing shows that the provider sent this request."""

    status = 401


class RequestError(VerificationError):
    """The request is not one that this endpoint takes."""

    status = 400


class TooLargeError(VerificationError):
    """The body is larger than the verifier's ``max_body``."""

    status = 413

    def __init__(self, limit: int) -> None:
        super().__init__("too_large", f"the body is larger than max_body, {limit} bytes")


class NotBytesError(RequestError, TypeError):
    """The body given to the verifier is not the raw bytes of the request."""

    def __init__(self, given: str) -> None:
        super().__init__(
            "body_not_bytes",
            f"body must be the raw bytes of the request, not {given}: "
            "a body that was parsed and written again is not what was signed",
        )


class ConfigurationError(wire.errors.SurehookError, ValueError):
    """The kit was set up in a way that can't work; the text names what to change."""


class GateError(ConfigurationError):
    """The gate, its store, an inbox or a feed was set up or called in a way that can't work."""


class StoreFullError(wire.errors.SurehookError):
    """The memory store holds ``max_entries`` receipts and none of them may be forgotten.

    Answer 503: the delivery can be tried again.
    """
