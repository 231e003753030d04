"""What can go wrong while publishing, and in the client. All else is a `wire.errors.WireError`.

::

    SurehookError
    ├── PublishError
    │   └── IdempotencyConflict   the key was used for other content
    └── ClientError           the client can't be used as asked
        ├── ApiError          the service answered, but not with success
        └── ApiUnreachable    there was no answer within the time
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


class ClientError(SurehookError):
    """The client can't be used as asked; the message names the argument."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a request.

    ``where`` is ``body``, ``query``, ``path`` or ``header``; ``pointer`` a JSON pointer as a URI
    fragment, such as ``#/event_types/0``.
    """

    where: str
    pointer: str
    detail: str


class ApiError(ClientError):
    """The service answered, but not with success, or not with what the operation promises.

    ``status`` is the HTTP status. ``type``, ``title`` and ``detail`` are those of the problem
    document (RFC 9457), ``faults`` its list of faulty members, ``members`` all else in it, such
    as ``event`` of a reused idempotency key. ``request_id`` finds the request in the service's
    log. ``retry_after`` is what the answer asked to wait, in seconds, or None. ``tries`` is how
    often the request was sent.
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        type: str = "about:blank",  # noqa: A002 - the word of RFC 9457
        faults: tuple[Fault, ...] = (),
        members: Mapping[str, Any] | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
        tries: int = 1,
    ) -> None:
        super().__init__(status, title, detail)
        self.status = status
        self.title = title
        self.detail = detail
        self.type = type
        self.faults = faults
        self.members = dict(members or {})
        self.request_id = request_id
        self.retry_after = retry_after
        self.tries = tries

    @property
    def code(self) -> str:
        """The last part of ``type``, to branch on: ``not-found``, ``idempotency-key-reused``, …"""
        return self.type.rpartition(":")[2]

    def __str__(self) -> str:
        seen = [f"request {self.request_id}"] if self.request_id else []
        seen += [f"{self.tries} tries"] if self.tries > 1 else []
        return f"{self.status} {self.title}: {self.detail}" + (f" ({', '.join(seen)})" * bool(seen))


class ApiUnreachable(ClientError):
    """There was no answer within the time, or the connection failed.

    ``may_have_arrived`` tells whether the service may have acted on a try: False when none could
    be sent at all. ``tries`` is how often it was tried.
    """

    def __init__(self, message: str, *, may_have_arrived: bool = True, tries: int = 1) -> None:
        super().__init__(message)
        self.may_have_arrived = may_have_arrived
        self.tries = tries
