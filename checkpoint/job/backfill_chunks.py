"""Backfill chunks: the key range of one upstream that the next step of a backfill takes in.

A chunk has at most `snapshot_rows` rows of one upstream at the barrier. An upstream without rows is one chunk, so a
refresh runs at least once for each upstream. The cursor after a chunk is recorded with the chunk's segments, so the
next runner repeats at most one chunk.
"""

from __future__ import annotations

from dataclasses import replace

from epochlog.errors import (
    CatalogUnavailable,
    InvalidInput,
    LimitExceeded,
    ReadFailed,
    SparkLost,
    StoreClosed,
    WriteFailed,
)
from epochlog.store.changelog.log_plan import LogPlan
from epochlog.store.env.files import Files
from epochlog.store.metadata.definitions import Cursor, JobRecord
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.types.key_codec import Key
from epochlog.store.types.key_range import KeyRange
from epochlog.store.types.read_options import ReadOptions

VIEW_SNAPSHOT_ROWS = 2_000_000
"""Most rows of a chunk of a view that is created without snapshot_rows."""
READ_AT_ONCE = 1 << 16
"""Rows whose keys are read in one go to find the end of a chunk."""

KEEPS_CHUNKS = (
    CatalogUnavailable,
    LimitExceeded,
    ReadFailed,
    SparkLost,
    StoreClosed,
    WriteFailed,
    KeyboardInterrupt,
    OSError,
    SystemExit,
)
"""Errors of a refresh that are not of its rows: the backfill of a view goes on with the chunk that they have ended."""


def check_rows(name: str, snapshot_rows: int | None) -> None:
    """Raise InvalidInput for a number of rows of a chunk that is none. name: of the job."""
    if snapshot_rows is not None and (type(snapshot_rows) is not int or snapshot_rows < 1):
        raise InvalidInput(f"job {name!r}: snapshot_rows is a number of rows >= 1 or None, not {snapshot_rows!r}")


def fully_loaded(job: JobRecord) -> bool:
    """Return True if the chunks have taken in all rows of all upstreams, so that only the commit is left."""
    return job.cursor is not None and job.cursor.place >= len(job.upstreams)


def empty_plan(plan: LogPlan) -> LogPlan:
    """Return a plan without changes, for an upstream that is not part of the chunk."""
    return LogPlan(plan.table, ScanPlan(plan.table, 0), (), backfill=True)


def cut_chunk(job: JobRecord, cursor: Cursor, files: Files, plan: ScanPlan) -> tuple[KeyRange, Cursor]:
    """Return the key range of the next chunk, of the upstream that `plan` reads, and the cursor after it.

    A view takes in one upstream by chunks, a job with a refresh in Python one after another.
    """
    assert job.snapshot_rows is not None
    high, rows = _find_end(files, plan, cursor.low, job.snapshot_rows)
    next_cursor = replace(cursor, pieces=cursor.pieces + 1, rows=cursor.rows + rows, low=high)
    if high is None:
        next_cursor = replace(next_cursor, place=len(job.upstreams) if cursor.of_view else cursor.place + 1)
    return KeyRange(cursor.low, high), next_cursor


def _find_end(files: Files, plan: ScanPlan, low: Key | None, max_rows: int) -> tuple[Key | None, int]:
    """Return the exclusive upper key of a chunk of at most `max_rows` rows (None: the last chunk), and its rows."""
    parts = plan.splits(max(1, plan.rows_at_most // max(max_rows, READ_AT_ONCE)), KeyRange(low))
    rows = 0
    for part in parts:
        keys = plan.rows(files, ReadOptions((), None, part)).keys
        if rows + len(keys) > max_rows:
            return keys[max_rows - rows].as_py(), max_rows
        rows += len(keys)
    return None, rows
