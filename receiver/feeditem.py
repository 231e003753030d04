"""One missed message, and its way through the gate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from receiver.gate import Claimed, Done, Gate, InProgress, Mismatch, fingerprint
from receiver.store import GateError, Steps


@dataclass(frozen=True, slots=True)
class FeedItem:
    """One missed message. ``key`` is what the gate claims; ``body`` are the raw bytes.

    From a Surehook feed, ``id`` is the delivery id; from others, ``data`` is the element of the
    page and ``body`` that element as JSON.
    """

    key: str
    id: str
    type: str
    body: bytes
    event_id: str = ""
    attempt: int = 0
    data: Any = None


@dataclass(slots=True)
class Drained:
    """How many items of a feed were handled now, were done before, failed, or must wait.

    ``blocked`` are in progress elsewhere, parked, or known with another body (``mismatched``,
    which are counted there as well). Nothing but ``handled`` and ``duplicates`` was acknowledged.
    """

    handled: int = 0
    duplicates: int = 0
    failed: int = 0
    blocked: int = 0
    mismatched: int = 0

    @property
    def complete(self) -> bool:
        """Whether everything in the feed is finished."""
        return not (self.failed or self.blocked)


Handle = Callable[[FeedItem], Awaitable[object] | object]


def pass_through(
    gate: Gate, handle: Handle, item: FeedItem, lease: float | None, drained: Drained
) -> Steps[bool]:
    """Take one item through the gate; True when it is finished and may be acknowledged."""
    # Other providers' items change while they wait (counts of attempts): only the key counts.
    mark = fingerprint(item.body) if item.event_id else ""
    claim = yield gate.claim(item.key, mark, lease)
    match claim:
        case Claimed(token=token):
            return (yield from _handle(gate, handle, item, token, drained))
        case Done():
            drained.duplicates += 1
            return True
        case Mismatch():
            drained.mismatched += 1
            drained.blocked += 1
        case InProgress() | _:
            drained.blocked += 1
    return False


def _handle(
    gate: Gate, handle: Handle, item: FeedItem, token: str, drained: Drained
) -> Steps[bool]:
    try:
        yield handle(item)
    except GateError as error:
        # Set up wrongly, such as an asynchronous handler in a synchronous call.
        yield gate.release(item.key, token, error)
        raise
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is its failure
        yield gate.release(item.key, token, error)
        drained.failed += 1
        return False
    # A False means that the lease lapsed and another worker has it now: it will finish it.
    if not (yield gate.complete(item.key, token)):
        drained.blocked += 1
        return False
    drained.handled += 1
    return True
