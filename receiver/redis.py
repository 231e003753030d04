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

import hashlib
from datetime import UTC, datetime
from typing import Any

from redis.exceptions import NoScriptError

from receiver.receipt import Claimed, ClaimResult, DeadLetter, Done, InProgress, Mismatch, Parked
from receiver.store import GateError, Steps, Store

# A receipt: state and token | attempts | leased until | expires at | fingerprint | answer or error.
# The states are c(laimed), d(one without an answer), r (done with an answer), f(ree), p(arked).
#
# By Redis's own clock the key's time to live is the whole truth: the two times are 0 and the ttl
# (kept with a claim, whose key lives for lease + ttl, so what is over the ttl is the lease). With
# an injected clock they are points in time. That keeps the first claim to one SET of a finished
# string, inside a script that costs next to nothing when it succeeds.
_COMMON = """
local function split(v)
  return string.match(v, '^(%a)(%x*)|(%d+)|(%d+)|(%d+)|([^|]*)|(.*)$')
end
local function receipt(state, token, attempts, till, expires, mark, rest)
  return table.concat({state .. token, attempts, till, expires, mark, rest}, '|')
end
local function clock(given)
  if given ~= '' then return given end
  local t = redis.call('TIME')
  return string.format('%d', t[1] * 1000 + math.floor(t[2] / 1000))
end
"""

# ARGV: the receipt of a first claim, its time to live, max failures or '', now or '' (the last two
# may be left out). Returns the number of the attempt, or one string: a letter and what belongs to
# it, which a client reads much faster than a list.
_CLAIM = (
    """
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
"""
    + _COMMON
    + """
local limit, now = ARGV[3] or '', ARGV[4] or ''
local state, owner, attempts, till, expires, known, rest = split(redis.call('GET', KEYS[1]))
if not state then return redis.error_reply('SUREHOOK not a receipt: ' .. KEYS[1]) end
local token, mine_till, mine_expires, mark =
  string.match(ARGV[1], '^c(%x*)|1|(%d+)|(%d+)|([^|]*)|')
if now ~= '' and state ~= 'p' and tonumber(now) >= tonumber(expires) then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
if mark ~= '' and known ~= '' and mark ~= known then return 'm' .. state .. known end
if state == 'd' then return 'd' end
if state == 'r' then return 'r' .. rest end
if state == 'p' then return 'p' .. attempts .. '|' .. till .. '|' .. rest end
attempts = tonumber(attempts)
if state == 'c' then
  if owner == token then return attempts end
  local left
  if now ~= '' then left = tonumber(till) - tonumber(now)
  else left = redis.call('PTTL', KEYS[1]) - tonumber(expires) end
  if left > 0 then return string.format('i%d', left) end
end
if limit ~= '' and attempts >= tonumber(limit) then
  local at = clock(now)
  redis.call('SET', KEYS[1], receipt('p', owner, attempts, at, 0, known, rest))
  return 'p' .. attempts .. '|' .. at .. '|' .. rest
end
if mark == '' then mark = known end
redis.call('SET', KEYS[1],
  receipt('c', token, attempts + 1, mine_till, mine_expires, mark, rest), 'PX', ARGV[2])
return attempts + 1
"""
)

# ARGV: token, ttl, time of expiry or 0, 'r' or 'd', answer.
_COMPLETE = """
local v = redis.call('GET', KEYS[1])
if not v then return 0 end
local state, owner, attempts, mark = string.match(v, '^([cdr])(%x*)|(%d+)|%d+|%d+|([^|]*)|')
if owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[4] .. owner .. '|' .. attempts .. '|0|' .. ARGV[3] .. '|' .. mark
  .. '|' .. ARGV[5], 'PX', ARGV[2])
return 1
"""

# ARGV: token, ttl, now or '', max failures or '', '1' for a failure, error.
# Returns the time of parking when it parks.
_RELEASE = (
    _COMMON
    + """
local v = redis.call('GET', KEYS[1])
if not v then return 0 end
local state, owner, attempts, till, expires, known, rest = split(v)
if owner ~= ARGV[1] or state ~= 'c' then return 0 end
attempts = tonumber(attempts)
if ARGV[5] == '1' then rest = ARGV[6] else attempts = attempts - 1 end
if ARGV[5] == '1' and ARGV[4] ~= '' and attempts >= tonumber(ARGV[4]) then
  local now = clock(ARGV[3])
  redis.call('SET', KEYS[1], receipt('p', owner, attempts, now, 0, known, rest))
  return tonumber(now)
end
local over = 0
if ARGV[3] ~= '' then over = string.format('%d', ARGV[3] + ARGV[2]) end
redis.call('SET', KEYS[1], receipt('f', owner, attempts, 0, over, known, rest), 'PX', ARGV[2])
return 1
"""
)

# ARGV: token, time to live, leased until or 0, expires at or ttl.
_EXTEND = (
    _COMMON
    + """
local v = redis.call('GET', KEYS[1])
if not v then return 0 end
local state, owner, attempts, till, expires, known, rest = split(v)
if owner ~= ARGV[1] or state ~= 'c' then return 0 end
redis.call('SET', KEYS[1], receipt('c', owner, attempts, ARGV[3], ARGV[4], known, rest),
  'PX', ARGV[2])
return 1
"""
)

_REVIVE = (
    _COMMON
    + """
local v = redis.call('GET', KEYS[1])
if v and split(v) == 'p' then return redis.call('DEL', KEYS[1]) end
return 0
"""
)


class _Script:
    """A Lua script, called by its hash and sent again when the server does not know it."""

    __slots__ = ("sha", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


_CLAIM_SCRIPT = _Script(_CLAIM)
_COMPLETE_SCRIPT = _Script(_COMPLETE)
_RELEASE_SCRIPT = _Script(_RELEASE)
_EXTEND_SCRIPT = _Script(_EXTEND)
_REVIVE_SCRIPT = _Script(_REVIVE)


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
            reply = yield self._execute("EVALSHA", _CLAIM_SCRIPT.sha, *arguments)
        except NoScriptError:
            reply = yield self._execute("EVAL", _CLAIM_SCRIPT.text, *arguments)
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
            _COMPLETE_SCRIPT,
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
            _RELEASE_SCRIPT,
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
        reply = yield from self._run(_EXTEND_SCRIPT, key, token, lease + ttl, till, expires)
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
        reply = yield from self._run(_REVIVE_SCRIPT, key)
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

    def _run(self, script: _Script, key: str, *arguments: object) -> Steps[Any]:
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
