"""Redis scripts of the end marks of staged queries: one script keeps a query's marks and computes its stage counter.

One hash per store, `epochlog:{<store id>}:marks`:

    incarnation    the epochlog server whose marks these are: of two, the later one
    generation     counts the times that server had to begin again, because what it had written was lost
    m:<query>      its marks: msgpack of [stage, ended 0 | 1, attempt, last sequence, rows or -1, channel] per channel
    t:<query>      which of that server's writings these are; a late, earlier one is refused
    s:<query>      the stage counter: the lowest stage that lacks an end; one past the highest when none does

It is a copy: the marks that count are in the catalog. So every answer says whether the hash still held what was written
last, and a hash that has lost something is thrown away whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from epochlog.store.catalog.redis.client import RedisServer
from epochlog.store.catalog.redis.scripts import Script

KEPT, LOST, EARLIER, NEWER, CHANGED, MISCOUNTED, LATE = range(7)
"""Held as it was written last; nothing is there; what is there was written before, or by a newer server; marks are
other ones, or missing; the counter is not what the marks give; this writing is older than what is there."""

_KEEP = """
local KEPT, LOST, EARLIER, NEWER, CHANGED, MISCOUNTED, LATE = 0, 1, 2, 3, 4, 5, 6
local incarnation, generation, turn = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local anew, query, before, marks = ARGV[4], ARGV[5], ',' .. ARGV[6] .. ',', ARGV[7]
local function count(text)
  local lowest, highest
  for _, mark in ipairs(cmsgpack.unpack(text)) do
    if mark[2] ~= 1 and (not lowest or mark[1] < lowest) then lowest = mark[1] end
    if not highest or mark[1] > highest then highest = mark[1] end
  end
  return lowest or highest + 1
end
local head = redis.call('HMGET', KEYS[1], 'incarnation', 'generation')
local theirs, made = tonumber(head[1] or ''), tonumber(head[2] or '')
if anew ~= 'force' and theirs and made then
  if theirs > incarnation then return {NEWER, theirs} end
  if theirs == incarnation and made > generation then return {LATE} end
end
if anew ~= '' then
  redis.call('UNLINK', KEYS[1])
  redis.call('HSET', KEYS[1], 'incarnation', ARGV[1], 'generation', ARGV[2])
else
  if not theirs or not made then return {LOST} end
  if theirs ~= incarnation or made ~= generation then return {EARLIER} end
  local found = redis.call('HMGET', KEYS[1], 'm:' .. query, 't:' .. query, 's:' .. query)
  if found[2] and (tonumber(found[2]) or 0) > turn then return {LATE} end
  local digest = found[1] and redis.sha1hex(found[1]) or ''
  if not string.find(before, ',' .. digest .. ',', 1, true) then return {CHANGED} end
  if found[1] and found[3] ~= string.format('%.0f', count(found[1])) then return {MISCOUNTED} end
end
if marks == '' then
  redis.call('HDEL', KEYS[1], 'm:' .. query, 't:' .. query, 's:' .. query)
  return {KEPT, 0}
end
local stage = count(marks)
redis.call('HSET', KEYS[1], 'm:' .. query, marks, 't:' .. query, ARGV[3], 's:' .. query, string.format('%.0f', stage))
return {KEPT, stage}
"""
KEEP = Script("keep marks", _KEEP.encode())


@dataclass(frozen=True, slots=True)
class Writing:
    """Write of one query's marks by one server.

    before: SHA-1 of each of the marks that may be there now ("" for none): more than one after a cut.
    anew: throw away all that an earlier server or generation wrote. force: what a newer server wrote, too.
    """

    incarnation: int
    generation: int
    turn: int
    query: str
    marks: bytes
    before: tuple[str, ...] = ("",)
    anew: bool = False
    force: bool = False


def marks_key(store_id: str) -> bytes:
    return f"epochlog:{{{store_id}}}:marks".encode()


def keep(server: RedisServer, store_id: str, writing: Writing) -> tuple[int, int]:
    """Run the script once and return (KEPT or how the hash deviates, the counter computed there, if KEPT). Raises
    NotSent or Cut when the call fails.
    """
    anew = "force" if writing.force else "anew" if writing.anew else ""
    arguments: list[Any] = [writing.incarnation, writing.generation, writing.turn, anew, writing.query.encode(),
                            ",".join(writing.before), writing.marks]  # fmt: skip
    reply = server.run_once(KEEP, [marks_key(store_id)], arguments)
    if not all(isinstance(part, int) for part in reply) or not KEPT <= reply[0] <= LATE:
        raise server.damaged("marks were answered with something else")
    if reply[0] == KEPT and len(reply) != 2:
        raise server.damaged("marks were answered with no counter")
    return reply[0], reply[1] if len(reply) > 1 else 0
