"""Receipts in any key-value service that has only ``set(nx=, ex=)``, ``get`` and ``delete``."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Awaitable
from typing import Any, Protocol

from receiver.errors import GateError
from receiver.receipt import (
    CLAIMED,
    DONE,
    PARKED,
    Claimed,
    ClaimResult,
    DeadLetter,
    InProgress,
    Receipt,
    verdict,
)
from receiver.store import Steps, Store


class SetNxClient(Protocol):
    """A client as of a REST key-value service; its methods may be asynchronous."""

    def set(
        self, key: str, value: str, *, nx: bool = False, ex: int | None = None
    ) -> object | Awaitable[object]:
        """Set the value; with `nx` only if the key is absent, and then return something false."""
        ...

    def get(self, key: str) -> object | Awaitable[object]:
        """The value, as text or bytes, or None."""
        ...

    def delete(self, key: str) -> object | Awaitable[object]:
        """Delete the key."""
        ...


class SetNxStore:
    """Receipts over ``SET key value NX EX``: the claim is atomic, what follows is not.

    What it promises: of any number of simultaneous claims one wins; a claim whose holder died can
    be claimed again when its lease is over; a finished message is answered as done for the ttl;
    a worker that lost its lease to another is refused.

    What it can't promise, for want of compare-and-set:

    - The token is compared by ``get`` and the change made by a second command. A worker that
      loses its lease between the two (one round trip) still overwrites: the effect may then be
      remembered with the wrong answer, or the key freed while another handles it.
    - The receipt of a claim vanishes with its lease. The number of attempts is not known after a
      crash or a release (`Claimed` says 1), so ``max_failures`` counts nothing but reported
      errors, under a second key and without an atomic increment.
    - Times are whole seconds (rounded up) by the service's clock and cannot be injected.
    - Dead letters can be revived by key, but not listed: `dead_letters` raises `GateError`.

    `blocking` says whether the client waits for its answer in the calling thread.
    """

    def __init__(
        self, client: SetNxClient, *, prefix: str = "surehook:", blocking: bool = True
    ) -> None:
        self._client = client
        self._prefix = prefix
        self.blocking = blocking

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
        """See `receiver.gate.Store`. A second command only for what is not a first delivery."""
        del ttl, max_failures
        at = _now(now)
        name = self._prefix + key
        value = _encode(Receipt(CLAIMED, token, fingerprint, 1, at + lease, at + lease))
        won = yield self._client.set(name, value, nx=True, ex=_seconds(lease))
        if won:
            return Claimed(token, 1)
        stored = yield self._client.get(name)
        if stored is None:
            # It lapsed between the two commands; the next attempt will find it free.
            return InProgress(1.0)
        receipt = _decode(stored)
        # The service's own expiry decides, not this host's clock.
        receipt.expires_at = max(receipt.expires_at, at + 1)
        result = verdict(receipt, fingerprint, token, max_failures=None, now=at)
        return result if result is not None else InProgress(1.0)

    def complete(
        self, key: str, token: str, response: bytes | None, *, ttl: int, now: int | None
    ) -> Steps[bool]:
        """See `receiver.gate.Store`."""
        receipt = yield from self._held(key, token, {CLAIMED, DONE})
        if receipt is None:
            return False
        receipt.state, receipt.response = DONE, response
        receipt.expires_at = _now(now) + ttl
        yield self._client.set(self._prefix + key, _encode(receipt), ex=_seconds(ttl))
        yield self._client.delete(self._failures(key))
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
        receipt = yield from self._held(key, token, {CLAIMED})
        if receipt is None:
            return False
        if error is not None and max_failures is not None:
            counted = yield self._client.get(self._failures(key))
            failures = (int(_text(counted)) if counted is not None else 0) + 1
            if failures >= max_failures:
                receipt.state, receipt.attempts, receipt.error = PARKED, failures, error
                receipt.leased_until = _now(now)
                yield self._client.set(self._prefix + key, _encode(receipt))
                return True
            yield self._client.set(self._failures(key), str(failures), ex=_seconds(ttl))
        yield self._client.delete(self._prefix + key)
        return True

    def extend(self, key: str, token: str, *, lease: int, ttl: int, now: int | None) -> Steps[bool]:
        """See `receiver.gate.Store`."""
        del ttl
        receipt = yield from self._held(key, token, {CLAIMED})
        if receipt is None:
            return False
        receipt.leased_until = receipt.expires_at = _now(now) + lease
        yield self._client.set(self._prefix + key, _encode(receipt), ex=_seconds(lease))
        return True

    def dead_letters(self, limit: int) -> Steps[list[DeadLetter]]:
        """Not possible with such a client: raises `GateError`."""
        yield None
        raise GateError(f"a SetNxStore can't list its {limit} oldest dead letters: no such command")

    def revive(self, key: str) -> Steps[bool]:
        """See `receiver.gate.Store`."""
        stored = yield self._client.get(self._prefix + key)
        if stored is None or _decode(stored).state != PARKED:
            return False
        yield self._client.delete(self._failures(key))
        yield self._client.delete(self._prefix + key)
        return True

    def purge(self, limit: int, now: int | None) -> Steps[int]:
        """Nothing to do: the service deletes expired keys by itself."""
        del limit, now
        yield None
        return 0

    def within(self, transaction: object) -> Store:
        """Not possible: raises `GateError`."""
        raise GateError(f"within() needs a SqlStore: no part in the transaction of {transaction!r}")

    def _held(self, key: str, token: str, states: set[str]) -> Steps[Receipt | None]:
        stored = yield self._client.get(self._prefix + key)
        if stored is None:
            return None
        receipt = _decode(stored)
        return receipt if receipt.token == token and receipt.state in states else None

    def _failures(self, key: str) -> str:
        return f"{self._prefix}failures:{key}"


def _encode(receipt: Receipt) -> str:
    # Text only: REST services carry values in JSON.
    answer = "" if receipt.response is None else "=" + base64.b64encode(receipt.response).decode()
    fields: list[Any] = [
        receipt.state,
        receipt.token,
        receipt.attempts,
        receipt.leased_until,
        receipt.expires_at,
        receipt.fingerprint,
        answer,
        receipt.error or "",
    ]
    return "|".join(map(str, fields))


def _decode(stored: object) -> Receipt:
    parts = _text(stored).split("|", 7)
    if len(parts) != 8:
        raise GateError("the stored value is not a receipt: give the store a prefix of its own")
    state, token, attempts, leased_until, expires_at, fingerprint, answer, error = parts
    response = base64.b64decode(answer[1:]) if answer else None
    return Receipt(
        state,
        token,
        fingerprint,
        int(attempts),
        int(leased_until),
        int(expires_at),
        response,
        error or None,
    )


def _text(stored: object) -> str:
    return stored.decode() if isinstance(stored, bytes) else str(stored)


def _now(now: int | None) -> int:
    return int(time.time() * 1000) if now is None else now


def _seconds(milliseconds: int) -> int:
    return math.ceil(milliseconds / 1000)
