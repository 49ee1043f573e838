"""Lua scripts of the Redis catalog. Redis runs each one atomically, with its checks and its writes.

Keys of a store (one hash slot), in the order of every script's arguments:

    meta      hash    generation, version, the last op and its time, the number of entries of each other key
    records   hash    record key -> packed record (with its CRC)
    index     zset    all record keys with score 0, for ranges in byte order
    stamps    zset    record key -> the version that wrote it last
    gone      zset    deleted record key -> the version that deleted it, until shipped; older than `floor` are forgotten
    ops       hash    op id -> the version at which it landed, or "no": it never lands
    times     zset    op id -> the time of its entry in ops

A key that is missing, or has lost entries, means that the catalog is lost, never that it is empty: `meta` has counts.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

KEY_NAMES = ("meta", "records", "index", "stamps", "gone", "ops", "times")

OK, MOVED, CONFLICT = 0, 1, 2
LOST, OTHER, BEHIND, MISSING, EXPIRED, ABORTED, FORGOTTEN, TOO_BIG, INCOMPLETE, TAKEN, DAMAGED = range(-1, -12, -1)

DEADLINE_MS = 60_000
"""Largest age of a write at its arrival; an older one is refused. Op ids are kept for twice this time."""
MAX_RECORD = 64 << 20
MAX_REPLY = 16 << 20  # bytes after which a page of a range ends, in the first attempt
MAX_DELETIONS = 100_000
"""Number of deletions that are remembered. Beyond it the oldest are forgotten, and the next backup is a full one."""
MAX_CHANGED = 256
"""Number of changed records that a commit compares with its read set. After more changes the body runs again."""


@dataclass(frozen=True, slots=True)
class Script:
    """Lua text with the SHA-1 by which Redis knows it."""

    name: str
    text: bytes
    sha: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode())


# Beginning of every script: the server's time, the catalog's head, and the check that it is the caller's catalog.
_HEAD = """
local META, RECORDS, INDEX, STAMPS, GONE, OPS, TIMES = unpack(KEYS)
local at = 0
local function arg() at = at + 1; return ARGV[at] end
local function num() return tonumber(arg()) end
local function text(number) return string.format('%.0f', number) end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local meta = redis.call('HMGET', META,
  'generation', 'version', 'op', 'op_ms', 'clock', 'records', 'gone', 'ops', 'floor')
if not meta[1] then return {LOST} end
if meta[1] ~= arg() then return {OTHER} end
for i = 2, 9 do
  if not meta[i] then return {MISSING} end
  local number = i == 3 and 0 or tonumber(meta[i])
  if not number or not (number >= 0 and number < 9007199254740992) then return {DAMAGED} end
end
local version, op, op_ms, clock = tonumber(meta[2]), meta[3], tonumber(meta[4]), math.max(now, tonumber(meta[5]))
local records, gone, ops, floor = tonumber(meta[6]), tonumber(meta[7]), tonumber(meta[8]), tonumber(meta[9])
if redis.call('HLEN', RECORDS) ~= records or redis.call('ZCARD', INDEX) ~= records
  or redis.call('ZCARD', STAMPS) ~= records or redis.call('ZCARD', GONE) ~= gone
  or redis.call('HLEN', OPS) ~= ops or redis.call('ZCARD', TIMES) ~= ops then return {MISSING} end
local seen, seen_op, seen_ms = num(), arg(), num()
if version < seen then return {BEHIND, version} end
if version == seen and seen_op ~= '' and seen_op ~= op then return {BEHIND, version} end
if version > seen and seen_op ~= '' and seen_ms >= clock - KEEP and redis.call('HGET', OPS, seen_op) ~= text(seen) then
  return {BEHIND, version}
end
local function reply(status, a, b) return {status, version, op, op_ms, now, clock, a, b} end
"""

# Functions that read keys and ranges, and that compare a read set with later changes. Lua compares strings by the
# server's locale, so `before` compares bytes.
_READ = """
local too_big, budget = false, 0
local function strings() local list = {}; for i = 1, num() do list[i] = arg() end; return list end
local function spans() local list = {}; for i = 1, num() do list[i] = {arg(), arg(), arg(), num()} end; return list end
local function values(keys, first, last)
  local list = redis.call('HMGET', RECORDS, unpack(keys, first, last))
  for _, value in ipairs(list) do
    if value then
      if #value > MAX_RECORD then too_big = true end
      budget = budget - #value
    end
  end
  return list
end
local function fetch_keys(keys)
  local out = {}
  for first = 1, #keys, 500 do
    local page = values(keys, first, math.min(first + 499, #keys))
    for i = 1, #page do out[first + i - 1] = page[i] end
  end
  return out
end
local function fetch_span(span)
  local lo, hi, backward, limit = unpack(span)
  local keys
  if backward == '1' then
    keys = redis.call('ZREVRANGEBYLEX', INDEX, '(' .. hi, '[' .. lo, 'LIMIT', 0, limit)
  else
    keys = redis.call('ZRANGEBYLEX', INDEX, '[' .. lo, '(' .. hi, 'LIMIT', 0, limit)
  end
  local out = {#keys == limit and 1 or 0}
  for first = 1, #keys, 100 do
    if budget < 0 then out[1] = 1; break end
    local page = values(keys, first, math.min(first + 99, #keys))
    for i = 1, #page do out[#out + 1] = keys[first + i - 1]; out[#out + 1] = page[i] end
  end
  return out
end
local function fetch(status, keys, ranges)
  local records, rows = fetch_keys(keys), {}
  for i, span in ipairs(ranges) do rows[i] = fetch_span(span) end
  if too_big then return {TOO_BIG} end
  return reply(status, records, rows)
end
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end
local function untouched(base, keys, ranges)
  if version == tonumber(base) then return true end
  if tonumber(base) < floor then return false end
  local known = {}
  for _, key in ipairs(keys) do known[key] = true end
  local left = MAX_CHANGED
  for _, list in ipairs({STAMPS, GONE}) do
    local changed = redis.call('ZRANGEBYSCORE', list, '(' .. base, '+inf', 'LIMIT', 0, left + 1)
    left = left - #changed
    if left < 0 then return false end
    for _, key in ipairs(changed) do
      if known[key] then return false end
      for _, span in ipairs(ranges) do
        if not before(key, span[1]) and before(key, span[2]) then return false end
      end
    end
  end
  return true
end
local function both(a, b)
  local list = {}
  for _, x in ipairs(a) do list[#list + 1] = x end
  for _, x in ipairs(b) do list[#list + 1] = x end
  return list
end
"""

# Arguments: base ('' for the first fetch), '1' to compare the read set, budget, the read set, keys and ranges to fetch
_FETCH = """
local base, checked = arg(), arg()
budget = num()
local read_keys, read_spans, keys, ranges = strings(), spans(), strings(), spans()
if base == '' or version == tonumber(base) then return fetch(OK, keys, ranges) end
if checked == '0' then return reply(MOVED) end
if untouched(base, read_keys, read_spans) then return fetch(OK, keys, ranges) end
return fetch(CONFLICT, both(read_keys, keys), both(read_spans, ranges))
"""

# Arguments: op, deadline, base, budget, the read set, puts, deletes
_COMMIT = """
local new_op, deadline, base = arg(), num(), arg()
budget = num()
local landed = redis.call('HGET', OPS, new_op)
if landed == 'no' then return reply(ABORTED) end
if landed then return reply(OK, landed) end
if clock > deadline then return reply(EXPIRED) end
local read_keys, read_spans = strings(), spans()
if not untouched(base, read_keys, read_spans) then return fetch(CONFLICT, read_keys, read_spans) end
version = version + 1
local stamp = text(version)
for _ = 1, num() do
  local key, value = arg(), arg()
  redis.call('HSET', RECORDS, key, value)
  redis.call('ZADD', INDEX, 0, key)
  redis.call('ZADD', STAMPS, stamp, key)
  if gone > 0 then redis.call('ZREM', GONE, key) end
end
for _ = 1, num() do
  local key = arg()
  if redis.call('HDEL', RECORDS, key) == 1 then
    redis.call('ZREM', INDEX, key)
    redis.call('ZREM', STAMPS, key)
    redis.call('ZADD', GONE, stamp, key)
  end
end
gone = redis.call('ZCARD', GONE)
if gone > MAX_DELETIONS then
  local oldest = redis.call('ZRANGE', GONE, 0, math.floor(MAX_DELETIONS / 100), 'WITHSCORES')
  floor = tonumber(oldest[#oldest])
  redis.call('ZREMRANGEBYSCORE', GONE, '-inf', oldest[#oldest])
  gone = redis.call('ZCARD', GONE)
end
redis.call('HSET', OPS, new_op, stamp)
redis.call('ZADD', TIMES, clock, new_op)
local old = redis.call('ZRANGEBYSCORE', TIMES, '-inf', '(' .. text(clock - KEEP), 'LIMIT', 0, 100)
if #old > 0 then redis.call('HDEL', OPS, unpack(old)); redis.call('ZREM', TIMES, unpack(old)) end
op, op_ms = new_op, clock
redis.call('HSET', META, 'version', stamp, 'op', op, 'op_ms', text(op_ms), 'clock', text(clock),
  'records', redis.call('HLEN', RECORDS), 'gone', gone, 'ops', redis.call('HLEN', OPS), 'floor', text(floor))
return reply(OK, stamp)
"""

# Arguments: op, deadline. Returns the version at which the op landed; else decides that it never lands.
_DECIDE = """
local lost_op, deadline = arg(), num()
local landed = redis.call('HGET', OPS, lost_op)
if landed and landed ~= 'no' then return reply(OK, landed) end
if clock > deadline + KEEP / 2 then return reply(FORGOTTEN) end
redis.call('HSET', OPS, lost_op, 'no')
redis.call('ZADD', TIMES, clock, lost_op)
redis.call('HSET', META, 'clock', text(clock), 'ops', redis.call('HLEN', OPS))
return reply(ABORTED)
"""

# Arguments: since, limit, '1' without deletions. Returns the newer records and deletions by version, each list up to
# the limit.
_CHANGES = """
local since, limit, without_deletions = arg(), num(), arg()
if without_deletions == '0' and tonumber(since) < floor then return reply(INCOMPLETE) end
local live = redis.call('ZRANGEBYSCORE', STAMPS, '(' .. since, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
local keys, out = {}, {}
for i = 1, #live, 2 do keys[#keys + 1] = live[i] end
local packed = fetch_keys(keys)
for i, key in ipairs(keys) do
  if not packed[i] then return {MISSING} end
  out[#out + 1] = key; out[#out + 1] = live[2 * i]; out[#out + 1] = packed[i]
end
if too_big then return {TOO_BIG} end
local dead = {}
if without_deletions == '0' then
  dead = redis.call('ZRANGEBYSCORE', GONE, '(' .. since, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
end
return reply(OK, out, dead)
"""

# Argument: version. Forgets the deletions up to it, which have been shipped.
_FORGET = """
local until_version = num()
if until_version > version then return {BEHIND, version} end
if until_version <= floor then return reply(OK) end
redis.call('ZREMRANGEBYSCORE', GONE, '-inf', text(until_version))
redis.call('HSET', META, 'gone', redis.call('ZCARD', GONE), 'floor', text(until_version))
return reply(OK)
"""

# Argument: generation. Creates the head of a new store unless it exists; returns the generation of the store.
_CREATE = """
local present = redis.call('HGET', KEYS[1], 'generation')
if present then return {OK, present} end
for i = 2, #KEYS do if redis.call('EXISTS', KEYS[i]) == 1 then return {MISSING} end end
redis.call('HSET', KEYS[1], 'generation', ARGV[1], 'version', 0, 'op', '', 'op_ms', 0, 'clock', 0, 'records', 0,
  'gone', 0, 'ops', 0, 'floor', 0)
return {OK, ARGV[1]}
"""

# One key: the id of a root's store. Arguments: the new id ('' only reads the present one), and the id to replace.
_CLAIM = """
local present = redis.call('GET', KEYS[1])
if ARGV[1] == '' then return {OK, present or ''} end
if present and (ARGV[2] == '' or present ~= ARGV[2]) then return {OK, present} end
redis.call('SET', KEYS[1], ARGV[1])
return {OK, ARGV[1]}
"""

_PEEK = "return {OK, redis.call('HMGET', KEYS[1], 'generation', 'version')}"

# An eighth key has the token of the running restore. A second restore replaces the token, and the first one ends.
_REFILL_BEGIN = """
redis.call('UNLINK', unpack(KEYS))
redis.call('SET', KEYS[8], ARGV[1])
return {OK}
"""
_REFILL_PUT = """
if redis.call('GET', KEYS[8]) ~= ARGV[1] then return {TAKEN} end
for i = 3, #ARGV, 2 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  redis.call('ZADD', KEYS[3], 0, ARGV[i])
  redis.call('ZADD', KEYS[4], ARGV[2], ARGV[i])
end
return {OK}
"""
_REFILL_END = """
if redis.call('HGET', KEYS[1], 'generation') == ARGV[1] then return {OK} end
if redis.call('GET', KEYS[8]) ~= ARGV[1] then return {TAKEN} end
if redis.call('HLEN', KEYS[2]) ~= tonumber(ARGV[3]) then return {MISSING} end
redis.call('HSET', KEYS[1], 'generation', ARGV[1], 'version', ARGV[2], 'op', '', 'op_ms', 0, 'clock', 0,
  'records', ARGV[3], 'gone', 0, 'ops', 0, 'floor', ARGV[2])
redis.call('DEL', KEYS[8])
return {OK}
"""

_CONSTANTS = {
    "OK": OK, "MOVED": MOVED, "CONFLICT": CONFLICT, "LOST": LOST, "OTHER": OTHER, "BEHIND": BEHIND, "MISSING": MISSING,
    "EXPIRED": EXPIRED, "ABORTED": ABORTED, "FORGOTTEN": FORGOTTEN, "TOO_BIG": TOO_BIG, "INCOMPLETE": INCOMPLETE,
    "TAKEN": TAKEN, "DAMAGED": DAMAGED, "KEEP": 2 * DEADLINE_MS, "MAX_RECORD": MAX_RECORD,
    "MAX_DELETIONS": MAX_DELETIONS, "MAX_CHANGED": MAX_CHANGED,
}  # fmt: skip


def _script(name: str, *parts: str) -> Script:
    """Build a script that declares the constants of its text only: Lua allows 200 local variables."""
    body = "".join(parts)
    used = [f"local {constant} = {value}\n" for constant, value in _CONSTANTS.items() if constant in body]
    return Script(name, ("".join(used) + body).encode())


FETCH = _script("fetch", _HEAD, _READ, _FETCH)
COMMIT = _script("commit", _HEAD, _READ, _COMMIT)
DECIDE = _script("decide", _HEAD, _DECIDE)
CHANGES = _script("changes", _HEAD, _READ, _CHANGES)
FORGET = _script("forget", _HEAD, _FORGET)
CREATE = _script("create", _CREATE)
CLAIM = _script("claim", _CLAIM)
PEEK = _script("peek", _PEEK)
REFILL_BEGIN = _script("refill begin", _REFILL_BEGIN)
REFILL_PUT = _script("refill put", _REFILL_PUT)
REFILL_END = _script("refill end", _REFILL_END)
