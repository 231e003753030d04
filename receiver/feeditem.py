"""One missed message, and its way through the gate."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from receiver.call import Call
from receiver.drive import AnyContext, Enter, Handle, Leave, is_async
from receiver.errors import GateError
from receiver.gate import Claimed, ClaimResult, Done, Gate, Mismatch, fingerprint
from receiver.store import Steps


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

    def json(self) -> Any:
        """The body, parsed. Raises ValueError when it is not JSON."""
        return json.loads(self.body)


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


Handler = Callable[..., Awaitable[object] | object]


@dataclass(slots=True)
class Passage:
    """The way of a feed's items through a gate. See `receiver.feed.MissedEvents.drain`."""

    gate: Gate
    handle: Handler
    lease: float | None
    transaction: Callable[[], AnyContext] | None
    drained: Drained = field(default_factory=Drained)

    def take(self, item: FeedItem) -> Steps[bool]:
        """Take one item through the gate; True when it is finished and may be acknowledged."""
        if self.transaction is not None:
            return (yield from self._together(item, self.transaction()))
        claim = yield self._claim(self.gate, item)
        if isinstance(claim, Claimed):
            return (yield from self._guarded(item, claim.token))
        return self._unclaimed(claim)

    def _claim(self, gate: Gate, item: FeedItem) -> Call[ClaimResult]:
        # Other providers' items change while they wait (counts of attempts): only the key counts.
        return gate.claim(item.key, fingerprint(item.body) if item.event_id else "", self.lease)

    def _unclaimed(self, claim: ClaimResult) -> bool:
        if isinstance(claim, Done):
            self.drained.duplicates += 1
            return True
        self.drained.mismatched += isinstance(claim, Mismatch)
        self.drained.blocked += 1
        return False

    def _guarded(self, item: FeedItem, token: str) -> Steps[bool]:
        try:
            yield Handle(partial(self.handle, item), not is_async(self.handle))
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its failure
            yield self.gate.release(item.key, token, error)
            return self._failed(error)
        # A False means that the lease lapsed and another worker has it now: it will finish it.
        if not (yield self.gate.complete(item.key, token)):
            self.drained.blocked += 1
            return False
        self.drained.handled += 1
        return True

    def _together(self, item: FeedItem, context: AnyContext) -> Steps[bool]:
        """Claim and effect in the caller's transaction: one commit for both."""
        session = yield Enter(context)
        inside = self.gate.within(session)
        claim: ClaimResult | None = None
        failed: BaseException | None = None
        try:
            claim = yield self._claim(inside, item)
            if isinstance(claim, Claimed):
                yield Handle(partial(self.handle, item, session))
        except BaseException as error:  # noqa: BLE001 - handled below, after the roll-back
            failed = error
        try:
            yield Leave(context, failed)
        except Exception as error:  # noqa: BLE001 - handled below, like a failure of the handler
            failed = failed or error
        if failed is not None:
            if not isinstance(claim, Claimed) or not isinstance(failed, Exception):
                raise failed
            yield inside.release(item.key, claim.token, failed)
            return self._failed(failed)
        if not isinstance(claim, Claimed):
            return claim is not None and self._unclaimed(claim)
        self.drained.handled += 1
        return True

    def _failed(self, error: Exception) -> bool:
        if isinstance(error, GateError):
            # Set up wrongly, such as an asynchronous handler in a synchronous call.
            raise error
        self.drained.failed += 1
        return False
