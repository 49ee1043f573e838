"""Redis script that stores the end marks of a staged query and computes its stage counter.

One hash per store, `epochlog:{<store id>}:marks`:

    incarnation    number of the epochlog server that writes the marks; the newest server replaces earlier ones
    generation     number of times that this server has rewritten all marks after a loss
    m:<query>      the query's marks: msgpack of [stage, ended 0 | 1, attempt, last sequence, rows or -1, channel] per
                   channel
    t:<query>      number of the server's write; the script refuses an earlier write that arrives late
    s:<query>      the stage counter: the lowest stage that lacks an end mark; the highest plus one when none does

The hash is a copy; the catalog's marks are authoritative. So every answer reports a hash that differs from the last
write, and a hash that has lost marks is deleted as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from epochlog.store.catalog.redis.client import RedisServer
from epochlog.store.catalog.redis.scripts import Script

KEPT, LOST, EARLIER, NEWER, CHANGED, MISCOUNTED, LATE = range(7)
"""Outcomes, by the state of the hash before the write: KEPT: as of the last write. LOST: empty. EARLIER: of an earlier
server or generation. NEWER: of a newer server. CHANGED: marks are missing or differ. MISCOUNTED: the counter differs
from the marks. LATE: of a later write than this one."""

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
  local stored = redis.call('HMGET', KEYS[1], 'm:' .. query, 't:' .. query, 's:' .. query)
  if stored[2] and (tonumber(stored[2]) or 0) > turn then return {LATE} end
  local digest = stored[1] and redis.sha1hex(stored[1]) or ''
  if not string.find(before, ',' .. digest .. ',', 1, true) then return {CHANGED} end
  if stored[1] and stored[3] ~= string.format('%.0f', count(stored[1])) then return {MISCOUNTED} end
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
class MarksWrite:
    """Write of one query's marks by one server."""

    incarnation: int
    generation: int
    turn: int
    """Number of the write."""
    query: str
    marks: bytes
    before: tuple[str, ...] = ("",)
    """SHA-1 of each of the marks that the hash may hold ("" for none): several after a lost answer."""
    clear_first: bool = False
    """Delete the marks of earlier servers and generations first."""
    force: bool = False
    """True to replace marks of newer servers too."""


def marks_key(store_id: str) -> bytes:
    return f"epochlog:{{{store_id}}}:marks".encode()


def write_marks(server: RedisServer, store_id: str, write: MarksWrite) -> tuple[int, int]:
    """Run the script once and return its outcome, and the stage counter if the outcome is KEPT. Raises NotSent or Cut
    when the call fails.
    """
    mode = "force" if write.force else "anew" if write.clear_first else ""
    arguments: list[Any] = [write.incarnation, write.generation, write.turn, mode, write.query.encode(),
                            ",".join(write.before), write.marks]  # fmt: skip
    reply = server.run_once(KEEP, [marks_key(store_id)], arguments)
    if not all(isinstance(part, int) for part in reply) or not KEPT <= reply[0] <= LATE:
        raise server.damaged("the answer to a write of end marks has an unknown form")
    if reply[0] == KEPT and len(reply) != 2:
        raise server.damaged("the answer to a write of end marks lacks the stage counter")
    return reply[0], reply[1] if len(reply) > 1 else 0
