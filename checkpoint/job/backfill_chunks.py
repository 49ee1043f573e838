"""Cutting a job's snapshot into pieces: which rows of which upstream the next one takes in.

A piece is a key range of one upstream at the barrier, with at most so many rows; an upstream without rows is one piece
too, so that a refresh is called at least once for each. The cursor that goes on after a piece is recorded with what it
has made, so whoever runs the job next repeats at most one piece.
"""

from __future__ import annotations

from dataclasses import replace

from epochlog.store.changelog.log_plan import LogPlan
from epochlog.store.env.files import Files
from epochlog.store.metadata.definitions import Cursor, JobRecord
from epochlog.store.scan.scan_plan import EVERYTHING, KeyRange, ScanPlan
from epochlog.store.types.key_codec import Key

READ_AT_ONCE = 1 << 16
"""Rows whose keys are looked at together to find the end of a piece."""


def fully_loaded(job: JobRecord) -> bool:
    """Return True if pieces have taken in all rows of all upstreams, so that only the commit is left."""
    return job.cursor is not None and job.cursor.place >= len(job.upstreams)


def nothing_of(plan: LogPlan) -> LogPlan:
    """Make a plan without changes, for an upstream that the piece is not of."""
    return LogPlan(plan.table, ScanPlan(plan.table, 0), (), backfill=True)


def cut_piece(job: JobRecord, files: Files, plan: ScanPlan) -> tuple[KeyRange, Cursor]:
    """Return the keys of the next piece, which is of the upstream that `plan` reads, and the cursor after it."""
    assert job.snapshot_rows is not None
    began = job.cursor or Cursor()
    high, rows = _end(files, plan, began.low, job.snapshot_rows)
    ended = replace(began, pieces=began.pieces + 1, rows=began.rows + rows, low=high)
    if high is None:
        ended = replace(ended, place=began.place + 1)
    return (began.low, high), ended


def _end(files: Files, plan: ScanPlan, low: Key | None, most: int) -> tuple[Key | None, int]:
    """Return the key before which a piece of at most so many rows ends (None: it is the last), and its rows."""
    parts = plan.splits(max(1, plan.rows_at_most // max(most, READ_AT_ONCE)), (low, EVERYTHING[1]))
    rows = 0
    for part in parts:
        keys = plan.rows(files, (), key_range=part).keys
        if rows + len(keys) > most:
            return keys[most - rows].as_py(), most
        rows += len(keys)
    return None, rows
