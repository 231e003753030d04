"""What a gate needs of a store."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol, TypeVar

from receiver.receipt import ClaimResult, DeadLetter

T = TypeVar("T")

Steps = Generator[Any, Any, T]
"""One operation of a store. It yields what its client returned, a value or an awaitable, and is
sent the value: ``reply = yield client.get(key)`` works with a client of either kind."""


class Store(Protocol):
    """What a gate needs of a store. `receiver.testing` has the conformance suite.

    Times are whole milliseconds since the epoch; ``now`` is None unless the gate has a clock of
    its own, and then the store's clock is to be used. `complete`, `release` and `extend` change
    nothing and return False when `token` no longer holds the claim.
    """

    blocking: bool
    """Whether the operations wait for I/O in the calling thread; an ``await`` then uses another."""

    def claim(
        self,
        key: str,
        fingerprint: str,
        token: str,
        *,
        lease: int,
        ttl: int,
        max_failures: int | None,
        now: int | None,
    ) -> Steps[ClaimResult]:
        """Claim `key` for `lease`; the receipt is remembered for `ttl` after the lease."""
        ...

    def complete(
        self, key: str, token: str, response: bytes | None, *, ttl: int, now: int | None
    ) -> Steps[bool]:
        """Mark as done for `ttl`. True again when repeated with the same token."""
        ...

    def release(
        self,
        key: str,
        token: str,
        error: str | None,
        *,
        ttl: int,
        max_failures: int | None,
        now: int | None,
    ) -> Steps[bool]:
        """Free the claim, or park it. Without an error the attempt is not counted."""
        ...

    def extend(self, key: str, token: str, *, lease: int, ttl: int, now: int | None) -> Steps[bool]:
        """Let the lease end `lease` from now."""
        ...

    def dead_letters(self, limit: int) -> Steps[list[DeadLetter]]:
        """The parked messages, oldest first."""
        ...

    def revive(self, key: str) -> Steps[bool]:
        """Forget the failures of a parked message, so that it can be claimed."""
        ...

    def purge(self, limit: int, now: int | None) -> Steps[int]:
        """Delete up to `limit` receipts that are over; return how many. Parked ones stay."""
        ...

    def within(self, transaction: object) -> Store:
        """This store inside the caller's transaction, or raise `GateError`."""
        ...
