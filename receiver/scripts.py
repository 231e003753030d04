"""The Lua scripts of the Redis store: each is one operation, atomic, in one round trip."""

from __future__ import annotations

import hashlib

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
_CLAIM_TEXT = (
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
_COMPLETE_TEXT = """
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
_RELEASE_TEXT = (
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
_EXTEND_TEXT = (
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

_REVIVE_TEXT = (
    _COMMON
    + """
local v = redis.call('GET', KEYS[1])
if v and split(v) == 'p' then return redis.call('DEL', KEYS[1]) end
return 0
"""
)


class Script:
    """A Lua script, called by its hash and sent again when the server does not know it."""

    __slots__ = ("sha", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


CLAIM = Script(_CLAIM_TEXT)
COMPLETE = Script(_COMPLETE_TEXT)
RELEASE = Script(_RELEASE_TEXT)
EXTEND = Script(_EXTEND_TEXT)
REVIVE = Script(_REVIVE_TEXT)
