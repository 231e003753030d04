"""What can go wrong while publishing. Everything else is a `wire.errors.WireError`.

::

    SurehookError
    └── PublishError
        └── IdempotencyConflict   the key was used for other content
"""

from __future__ import annotations

from wire.errors import SurehookError


class PublishError(SurehookError):
    """An event can't be published as given; nothing was stored."""


class IdempotencyConflict(PublishError):
    """An idempotency key was used before, for other content.

    ``event_id`` is the event that holds the key.
    """

    def __init__(self, key: str, event_id: str) -> None:
        super().__init__(
            f"idempotency_key {key!r} belongs to {event_id}, which has another type, content type"
            " or data; use a new key for a new event"
        )
        self.key = key
        self.event_id = event_id

    def __reduce__(self) -> tuple[type[IdempotencyConflict], tuple[str, str]]:
        # An exception is pickled with its args, which here are not the constructor's.
        return type(self), (self.key, self.event_id)
