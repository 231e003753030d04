"""The gate: of all deliveries of one message, exactly one at a time gets through to the handler.

::

    gate = Gate(RedisStore(client))
    match gate.claim(key, fingerprint(body)).run():        # or: await gate.claim(…)
        case Claimed(token):
            …                                              # the effect
            gate.complete(key, token, response).run()
        case Done(response): …                             # answer 2xx again
        case InProgress(retry_after): …                    # 409 or 503 with Retry-After
        case Mismatch(): …                                 # same id, other body: report it
        case Parked(): …                                   # failed max_failures times

Every method returns a `Call`: ``.run()`` it in synchronous code, ``await`` it in asynchronous
code. There is one gate for both; whether the store's client is synchronous or asynchronous
decides what may be done with its calls.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import TypeVar

from receiver.call import Call, Pause
from receiver.errors import GateError, StoreFullError
from receiver.receipt import (
    Claimed,
    ClaimResult,
    DeadLetter,
    Done,
    InProgress,
    Mismatch,
    Parked,
)
from receiver.store import Steps, Store

__all__ = [
    "DEFAULT_LEASE",
    "DEFAULT_TTL",
    "Call",
    "ClaimResult",
    "Claimed",
    "DeadLetter",
    "Done",
    "Gate",
    "GateError",
    "InProgress",
    "Mismatch",
    "Parked",
    "Steps",
    "Store",
    "StoreFullError",
    "fingerprint",
]

DEFAULT_LEASE = 60.0
"""Seconds. Longer than any provider waits for an answer (30 s at most), so a live handler that
answers in time never loses its claim."""

DEFAULT_TTL = 7 * 86_400.0
"""Seconds. Longer than the retries and replay windows of the providers that the kit knows."""

MAX_KEY_LENGTH = 255
MAX_TEXT_LENGTH = 1000

T = TypeVar("T")


class Gate:
    """Claims with a lease and a token over one store.

    `lease` and `ttl` are seconds; `ttl`, the memory of finished and failed messages, has to be
    longer than the provider's retries and replays. After `max_failures` failed attempts (handler
    errors and lapsed leases) a message is parked; None means never. `clock` returns unix seconds;
    without it the store's own clock counts, which several servers can agree on.

    Raises `GateError` for a lease, ttl or number of failures that is not above 0.
    """

    __slots__ = ("_clock", "_lease", "_max_failures", "_ttl", "store")

    def __init__(
        self,
        store: Store,
        *,
        lease: float = DEFAULT_LEASE,
        ttl: float = DEFAULT_TTL,
        max_failures: int | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if max_failures is not None and max_failures < 1:
            raise GateError("max_failures must be 1 or more, or None for never")
        self.store = store
        self._lease = _milliseconds("lease", lease)
        self._ttl = _milliseconds("ttl", ttl)
        self._max_failures = max_failures
        self._clock = clock

    @property
    def lease(self) -> float:
        """The default lease in seconds."""
        return self._lease / 1000

    @property
    def ttl(self) -> float:
        """The default memory in seconds."""
        return self._ttl / 1000

    @property
    def max_failures(self) -> int | None:
        """After how many failed attempts a message is parked."""
        return self._max_failures

    def within(self, transaction: object) -> Gate:
        """This gate inside the caller's transaction: receipt and effect commit together.

        `transaction` is a SQLAlchemy ``Connection``, ``Session``, ``AsyncConnection`` or
        ``AsyncSession``. A claim is one INSERT of a finished receipt; a roll-back takes it back.
        Afterwards `release` records the failure in a transaction of its own. Raises `GateError`
        for a store that is not SQL.
        """
        # For every delivery anew, so without the checks of __init__.
        bound = object.__new__(Gate)
        bound.store = self.store.within(transaction)
        bound._lease, bound._ttl = self._lease, self._ttl
        bound._max_failures, bound._clock = self._max_failures, self._clock
        return bound

    def claim(
        self, key: str, fingerprint: str = "", lease: float | None = None, *, wait: float = 0.0
    ) -> Call[ClaimResult]:
        """Ask for the message `key`: `Claimed`, `InProgress`, `Done`, `Mismatch` or `Parked`.

        `fingerprint` identifies the body (see `fingerprint`); empty means it is not compared.
        With `wait`, in seconds, a message in progress is asked for again until it is finished or
        its holder's lease has lapsed, and only then reported as in progress.
        """
        token = secrets.token_hex(16)
        lease_ms = self._lease if lease is None else _milliseconds("lease", lease)
        key = stored_key(key)
        if wait > 0:
            return self._call(self._claim_waiting(key, fingerprint, token, lease_ms, wait))
        return self._call(self._claim(key, fingerprint, token, lease_ms))

    def _claim(self, key: str, fingerprint: str, token: str, lease: int) -> Steps[ClaimResult]:
        return self.store.claim(
            key,
            fingerprint,
            token,
            lease=lease,
            ttl=self._ttl,
            max_failures=self._max_failures,
            now=self._now(),
        )

    def _claim_waiting(
        self, key: str, fingerprint: str, token: str, lease: int, wait: float
    ) -> Steps[ClaimResult]:
        pause = 0.02
        while True:
            result = yield from self._claim(key, fingerprint, token, lease)
            if not isinstance(result, InProgress) or wait <= 0:
                return result
            step = min(pause, result.retry_after + 0.001, wait)
            yield Pause(step)
            wait -= step
            pause = min(pause * 2, 0.5)

    def complete(
        self, key: str, token: str, response: bytes | None = None, ttl: float | None = None
    ) -> Call[bool]:
        """Mark the message as done and remember `response` for `ttl` seconds.

        True when this token held the claim; False, and nothing has changed, when the lease had
        lapsed and somebody else has claimed or finished the message since.
        """
        ttl_ms = self._ttl if ttl is None else _milliseconds("ttl", ttl)
        return self._call(
            self.store.complete(stored_key(key), token, response, ttl=ttl_ms, now=self._now())
        )

    def release(self, key: str, token: str, error: str | BaseException | None = None) -> Call[bool]:
        """Give the message back after a failure, so that the next delivery can claim it.

        `error` is kept for the dead-letter list; without one (a shutdown, say) the attempt is
        not counted. False, and nothing has changed, when the token no longer holds the claim.
        """
        text = None if error is None else error_text(error)
        return self._call(
            self.store.release(
                stored_key(key),
                token,
                text,
                ttl=self._ttl,
                max_failures=self._max_failures,
                now=self._now(),
            )
        )

    def extend(self, key: str, token: str, lease: float | None = None) -> Call[bool]:
        """Let the lease end `lease` seconds from now. False when the claim has been lost."""
        lease_ms = self._lease if lease is None else _milliseconds("lease", lease)
        return self._call(
            self.store.extend(
                stored_key(key), token, lease=lease_ms, ttl=self._ttl, now=self._now()
            )
        )

    def dead_letters(self, limit: int = 100) -> Call[list[DeadLetter]]:
        """The parked messages, oldest first, at most `limit`."""
        return self._call(self.store.dead_letters(limit))

    def revive(self, key: str) -> Call[bool]:
        """Release a parked message: its next delivery is claimed as a first one.

        False when it is not parked.
        """
        return self._call(self.store.revive(stored_key(key)))

    def purge(self, limit: int = 1000) -> Call[int]:
        """Delete up to `limit` receipts whose memory is over; return how many it were.

        Needed on SQL only, from time to time; the other stores forget by themselves.
        """
        return self._call(self.store.purge(limit, self._now()))

    def _call(self, steps: Steps[T]) -> Call[T]:
        return Call(steps, blocking=self.store.blocking)

    def _now(self) -> int | None:
        return None if self._clock is None else round(self._clock() * 1000)


def fingerprint(body: bytes) -> str:
    """The fingerprint of a body: its SHA-256 in hexadecimal."""
    return hashlib.sha256(body).hexdigest()


def stored_key(key: str) -> str:
    """`key` as stores see it: as it is, or its SHA-256 when it is long or not printable.

    So that no id, however odd, is cut, folded or refused by a store. Raises `GateError` for an
    empty key.
    """
    if not key:
        raise GateError("key is empty: a message without an id can't be told from another")
    if len(key) <= MAX_KEY_LENGTH and key.isascii() and key.isprintable():
        return key
    return "sha256:" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def error_text(error: str | BaseException) -> str:
    """An error as one short text that every store can keep."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return stored_text(text)


def stored_text(text: str) -> str:
    """`text` as every database can keep it: cut, without NUL, and without lone surrogates."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")[:MAX_TEXT_LENGTH]


def _milliseconds(name: str, seconds: float) -> int:
    value = round(seconds * 1000)
    if value < 1:
        raise GateError(f"{name} must be above 0 seconds, not {seconds!r}")
    return value
