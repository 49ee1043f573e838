"""Pass of packing over a table: its log, with a trace of the pass, and its remembered commits."""

from __future__ import annotations

import math

from epochlog.store.env.clock import monotonic_s
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.session.handle import Handle

from .chapters import write_chapters
from .packing import pack_log
from .trace import trace_packing


def pack_table(handle: Handle, table: TableDef, *, by: str = "command", limit_s: float = math.inf) -> bool:
    """Pack a table's log, put its remembered commits into chapters, and record a trace of the packs. Return True if
    there were any to make. Raises TableDropped, Corrupt and WriteFailed.

    by: who asks, for the trace. limit_s: the time after which no further pack, and then no further chapter, begins.
    """
    began_s = monotonic_s()
    packs = pack_log(handle, table, limit_s)
    if packs:
        took_ms = round((monotonic_s() - began_s) * 1000)
        handle.catalog.transact(lambda tx: trace_packing(tx, table, by, handle.catalog.now_ms(), took_ms))
    return write_chapters(handle, table, limit_s) + packs > 0
