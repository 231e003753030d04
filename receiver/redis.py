"""Receipts in Redis, through redis-py's synchronous or asynchronous client.

One receipt is one string under one key, so a cluster can hold them on any node. Every operation is
one Lua script, that is one round trip and atomic. Needs Redis 5 or later, Valkey, or what behaves
like them.

Eviction: Redis must not forget receipts before their time. Set ``maxmemory-policy noeviction``
for the database that holds them; a full Redis then refuses claims with an error (answer 503), which
loses nothing. Under any other policy it may evict the receipt of finished work, and the next
duplicate is handled again: the effect happens once *or more*, never zero times. The same holds for
receipts lost in a restart without ``appendonly yes`` or in a fail-over to a replica that lags.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from redis.exceptions import NoScriptError

from receiver.errors import GateError
from receiver.receipt import Claimed, ClaimResult, DeadLetter, Done, InProgress, Mismatch, Parked
from receiver.scripts import CLAIM, COMPLETE, EXTEND, RELEASE, REVIVE, Script
from receiver.store import Steps, Store


class RedisStore:
    """Receipts in Redis.

    `client` is a ``redis.Redis``, ``redis.asyncio.Redis`` or one of their cluster kin, with
    ``decode_responses`` off. `prefix` starts the name of every key; the dead-letter list is the
    sorted set ``{prefix}dead``. Time is the server's.

    Raises `GateError` when the client decodes responses: stored answers are bytes.
    """

    def __init__(self, client: Any, *, prefix: str = "surehook:") -> None:
        if client.get_encoder().decode_responses:
            raise GateError("set decode_responses=False on the Redis client: answers are bytes")
        self._execute = client.execute_command
        self._receipts = f"{prefix}receipt:"
        self._dead = f"{prefix}dead"
        self.blocking = not _is_asynchronous(client)

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
        """See `receiver.gate.Store`."""
        till, expires = (0, ttl) if now is None else (now + lease, now + lease + ttl)
        first = f"c{token}|1|{till}|{expires}|{fingerprint}|"
        name = self._receipts + key
        arguments: tuple[object, ...] = (1, name, first, lease + ttl)
        if max_failures is not None or now is not None:
            arguments = (*arguments, _given(max_failures), _given(now))
        try:
            reply = yield self._execute("EVALSHA", CLAIM.sha, *arguments)
        except NoScriptError:
            reply = yield self._execute("EVAL", CLAIM.text, *arguments)
        if isinstance(reply, int):
            return Claimed(token, reply)
        if reply[:1] != b"p":
            return _result(reply)
        attempts, parked_at, error = reply[1:].split(b"|", 2)
        # Every refusal repeats it, so that a crash between parking and listing mends itself.
        yield self._execute("ZADD", self._dead, "NX", int(parked_at), key)
        return Parked(int(attempts), error.decode() or None)

    def complete(
        self, key: str, token: str, response: bytes | None, *, ttl: int, now: int | None
    ) -> Steps[bool]:
        """See `receiver.gate.Store`."""
        state = "d" if response is None else "r"
        reply = yield from self._run(
            COMPLETE,
            key,
            token,
            ttl,
            0 if now is None else now + ttl,
            state,
            response or b"",
        )
        return bool(reply)

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
        failed = "0" if error is None else "1"
        reply = yield from self._run(
            RELEASE,
            key,
            token,
            ttl,
            _given(now),
            _given(max_failures),
            failed,
            error or "",
        )
        if reply > 1:
            yield self._execute("ZADD", self._dead, "NX", reply, key)
        return bool(reply)

    def extend(self, key: str, token: str, *, lease: int, ttl: int, now: int | None) -> Steps[bool]:
        """See `receiver.gate.Store`."""
        till, expires = (0, ttl) if now is None else (now + lease, now + lease + ttl)
        reply = yield from self._run(EXTEND, key, token, lease + ttl, till, expires)
        return bool(reply)

    def dead_letters(self, limit: int) -> Steps[list[DeadLetter]]:
        """See `receiver.gate.Store`. One round trip, and one for each message."""
        if limit < 1:
            return []
        listed = yield self._execute("ZRANGE", self._dead, 0, limit - 1)
        letters: list[DeadLetter] = []
        for name in listed:
            value: bytes | None = yield self._execute("GET", self._receipts + name.decode())
            if value is None or value[:1] != b"p":
                yield self._execute("ZREM", self._dead, name)
                continue
            _, attempts, parked_at, _, _, error = value.split(b"|", 5)
            at = datetime.fromtimestamp(int(parked_at) / 1000, UTC)
            letters.append(DeadLetter(name.decode(), int(attempts), error.decode() or None, at))
        return letters

    def revive(self, key: str) -> Steps[bool]:
        """See `receiver.gate.Store`."""
        reply = yield from self._run(REVIVE, key)
        yield self._execute("ZREM", self._dead, key)
        return bool(reply)

    def purge(self, limit: int, now: int | None) -> Steps[int]:
        """Nothing to do: Redis deletes expired keys by itself."""
        del limit, now
        yield None
        return 0

    def within(self, transaction: object) -> Store:
        """Not possible: raises `GateError`."""
        raise GateError(
            f"within() needs a SqlStore: Redis takes no part in the transaction of {transaction!r}"
        )

    def _run(self, script: Script, key: str, *arguments: object) -> Steps[Any]:
        name = self._receipts + key
        try:
            reply = yield self._execute("EVALSHA", script.sha, 1, name, *arguments)
        except NoScriptError:
            reply = yield self._execute("EVAL", script.text, 1, name, *arguments)
        return reply


def _result(reply: bytes) -> ClaimResult:
    kind, rest = reply[:1], reply[1:]
    if kind == b"r":
        return Done(rest)
    if kind == b"d":
        return Done(None)
    if kind == b"i":
        return InProgress(int(rest) / 1000)
    return Mismatch(rest[1:].decode(), done=rest[:1] in {b"d", b"r"})


def _given(value: int | None) -> int | str:
    return "" if value is None else value


def _is_asynchronous(client: Any) -> bool:
    return type(client).__module__.startswith("redis.asyncio")
