"""A store in the memory of one process: for one server process, for tests, for tools."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from datetime import UTC, datetime

from receiver.errors import GateError, StoreFullError
from receiver.receipt import (
    CLAIMED,
    DONE,
    FREE,
    PARKED,
    Claimed,
    ClaimResult,
    DeadLetter,
    Parked,
    Receipt,
    attempts_after,
    verdict,
)
from receiver.store import Steps, Store

_log = logging.getLogger("surehook.receiver")


class MemoryStore:
    """Receipts in a dictionary, bounded by `max_entries`, safe for threads and tasks.

    When it is full it forgets what is over, then the oldest *finished* receipts: their
    duplicates would be handled again, so each such loss is counted in ``evicted`` and logged.
    Live claims, failed and parked messages are never forgotten; if nothing else is left a claim
    raises `StoreFullError`. A restart of the process forgets everything, and a second process
    knows nothing of it: use Redis or SQL there.
    """

    blocking = False

    def __init__(self, *, max_entries: int = 100_000) -> None:
        if max_entries < 1:
            raise GateError("max_entries must be 1 or more")
        self._max_entries = max_entries
        self._receipts: dict[str, Receipt] = {}
        # In the order of completion, so that the oldest finished one is found at once.
        self._finished: OrderedDict[str, None] = OrderedDict()
        self._parked_at: dict[str, int] = {}
        self._lock = threading.Lock()
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._receipts)

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
        """See `receiver.gate.Store`. Raises `StoreFullError`."""
        result: ClaimResult = yield self._claim(
            key, fingerprint, token, lease, ttl, max_failures, _now(now)
        )
        return result

    def _claim(
        self,
        key: str,
        fingerprint: str,
        token: str,
        lease: int,
        ttl: int,
        max_failures: int | None,
        now: int,
    ) -> ClaimResult:
        with self._lock:
            self._forget_finished(now, 2)
            receipt = self._receipts.get(key)
            attempts = 1
            if receipt is None:
                if len(self._receipts) >= self._max_entries:
                    self._make_room(now)
            else:
                result = verdict(receipt, fingerprint, token, max_failures, now)
                if isinstance(result, Parked) and receipt.state != PARKED:
                    self._park(key, receipt, now)
                if result is not None:
                    return result
                attempts = attempts_after(receipt, now)
                self._finished.pop(key, None)
            until = now + lease
            self._receipts[key] = Receipt(
                CLAIMED,
                token,
                fingerprint,
                attempts,
                until,
                until + ttl,
                error=None if attempts == 1 or receipt is None else receipt.error,
            )
            return Claimed(token, attempts)

    def complete(
        self, key: str, token: str, response: bytes | None, *, ttl: int, now: int | None
    ) -> Steps[bool]:
        """See `receiver.gate.Store`."""
        result: bool = yield self._complete(key, token, response, ttl, _now(now))
        return result

    def _complete(self, key: str, token: str, response: bytes | None, ttl: int, now: int) -> bool:
        with self._lock:
            receipt = self._receipts.get(key)
            if receipt is None or receipt.token != token or receipt.state not in {CLAIMED, DONE}:
                return False
            receipt.state, receipt.response, receipt.error = DONE, response, None
            receipt.expires_at = now + ttl
            self._finished[key] = None
            self._finished.move_to_end(key)
            return True

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
        """See `receiver.gate.Store`."""
        result: bool = yield self._release(key, token, error, ttl, max_failures, _now(now))
        return result

    def _release(
        self,
        key: str,
        token: str,
        error: str | None,
        ttl: int,
        max_failures: int | None,
        now: int,
    ) -> bool:
        with self._lock:
            receipt = self._receipts.get(key)
            if receipt is None or receipt.token != token or receipt.state != CLAIMED:
                return False
            receipt.state, receipt.expires_at = FREE, now + ttl
            if error is None:
                receipt.attempts -= 1
            else:
                receipt.error = error
                if max_failures is not None and receipt.attempts >= max_failures:
                    self._park(key, receipt, now)
            return True

    def extend(self, key: str, token: str, *, lease: int, ttl: int, now: int | None) -> Steps[bool]:
        """See `receiver.gate.Store`."""
        result: bool = yield self._extend(key, token, lease, ttl, _now(now))
        return result

    def _extend(self, key: str, token: str, lease: int, ttl: int, now: int) -> bool:
        with self._lock:
            receipt = self._receipts.get(key)
            if receipt is None or receipt.token != token or receipt.state != CLAIMED:
                return False
            receipt.leased_until = now + lease
            receipt.expires_at = now + lease + ttl
            return True

    def dead_letters(self, limit: int) -> Steps[list[DeadLetter]]:
        """See `receiver.gate.Store`."""
        result: list[DeadLetter] = yield self._dead_letters(limit)
        return result

    def _dead_letters(self, limit: int) -> list[DeadLetter]:
        with self._lock:
            found = [(key, at, self._receipts[key]) for key, at in self._parked_at.items()]
        return [
            DeadLetter(key, receipt.attempts, receipt.error, datetime.fromtimestamp(at / 1000, UTC))
            for key, at, receipt in found[:limit]
        ]

    def revive(self, key: str) -> Steps[bool]:
        """See `receiver.gate.Store`."""
        result: bool = yield self._revive(key)
        return result

    def _revive(self, key: str) -> bool:
        with self._lock:
            if self._parked_at.pop(key, None) is None:
                return False
            del self._receipts[key]
            return True

    def purge(self, limit: int, now: int | None) -> Steps[int]:
        """See `receiver.gate.Store`."""
        result: int = yield self._purge(limit, _now(now))
        return result

    def _purge(self, limit: int, now: int) -> int:
        with self._lock:
            over = [
                key
                for key, receipt in self._receipts.items()
                if receipt.state != PARKED and now >= receipt.expires_at
            ][:limit]
            for key in over:
                self._forget(key)
            return len(over)

    def within(self, transaction: object) -> Store:
        """Not possible: raises `GateError`."""
        raise GateError(
            f"within() needs a SqlStore: memory takes no part in the transaction of {transaction!r}"
        )

    def _park(self, key: str, receipt: Receipt, now: int) -> None:
        receipt.state = PARKED
        self._parked_at[key] = now

    def _forget(self, key: str) -> None:
        del self._receipts[key]
        self._finished.pop(key, None)

    def _forget_finished(self, now: int, limit: int) -> None:
        for key in list(zip(self._finished, range(limit), strict=False)):
            if now < self._receipts[key[0]].expires_at:
                return
            self._forget(key[0])

    def _make_room(self, now: int) -> None:
        over = [
            key
            for key, receipt in self._receipts.items()
            if receipt.state != PARKED and now >= receipt.expires_at
        ]
        for key in over:
            self._forget(key)
        if over:
            return
        oldest = next(iter(self._finished), None)
        if oldest is None:
            raise StoreFullError(
                f"all {self._max_entries} receipts are claimed, failed or parked: raise max_entries"
            )
        self._forget(oldest)
        self.evicted += 1
        _log.warning("MemoryStore is full: a finished receipt was forgotten; raise max_entries")


def _now(now: int | None) -> int:
    return int(time.time() * 1000) if now is None else now
