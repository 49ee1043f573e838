"""Staged segments: the result of a job's backfill chunks so far. Catalog records refer to them; no reader sees them.

Each chunk records its segments (store/commit/backfill.py). They become one log entry at the commit.
"""

from __future__ import annotations

from collections.abc import Iterable

from epochlog.store.catalog.keys import STAGED_PREFIX, staged_key, table_prefix
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.sst.segment import Segment

from .unreachable_files import mark_unreachable


def list_staged(view: ReadTxn, table_id: int) -> tuple[Segment, ...]:
    """List the staged segments of an output, oldest first: later segments win."""
    prefix = table_prefix(STAGED_PREFIX, table_id)
    records = scan_prefix(view, prefix)
    return tuple(Segment.from_record(segment) for _, record in records for segment in record["segments"])


def stage_segments(tx: Txn, table_id: int, number: int, segments: Iterable[Segment]) -> None:
    """Record the segments of an output from the backfill chunk of this number. Call inside a transaction."""
    tx.put(staged_key(table_id, number), {"segments": [segment.to_record() for segment in segments]})


def forget_staged(tx: Txn, table_id: int) -> None:
    """Delete the records of an output's committed or discarded staged segments. Call inside a transaction."""
    prefix = table_prefix(STAGED_PREFIX, table_id)
    for key, _ in list(scan_prefix(tx, prefix)):
        tx.delete(key)


def discard_staged(tx: Txn, tables: Iterable[int], now_ms: int) -> None:
    """Mark the staged segments of these outputs as unreachable. Call inside a transaction that moves the counters."""
    for table_id in tables:
        mark_unreachable(tx, table_id, ((segment.path, segment.bytes) for segment in list_staged(tx, table_id)), now_ms)
        forget_staged(tx, table_id)
