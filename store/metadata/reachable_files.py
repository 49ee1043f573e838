"""Reachable files: those that catalog records refer to. Vacuum never deletes one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from epochlog.store.catalog.keys import (
    COMPACT_PREFIX,
    KEPT_PREFIX,
    RUNS_PREFIX,
    STAGED_PREFIX,
    STATE_PREFIX,
    runs_key,
    table_prefix,
)
from epochlog.store.catalog.protocol import ReadTxn, scan_prefix
from epochlog.store.sst.sorted_run import RunFile

from .commit_log import scan_entries
from .exchange_records import exchange_files
from .version import LogEntry, runs_from_record


def files_of(view: ReadTxn, table_id: int) -> dict[str, int]:
    """Return the paths and bytes of all files of a table: its log, its runs, the finished subcompactions of a running
    compaction, staged segments, kept deletes and state tables.
    """
    prefixes = (COMPACT_PREFIX, KEPT_PREFIX, STAGED_PREFIX, STATE_PREFIX)
    compact, kept, *segments = (table_prefix(prefix, table_id) for prefix in prefixes)
    return dict(_scan_files(view, scan_entries(view, table_id), runs_key(table_id), compact, kept, segments))


def all_files(view: ReadTxn) -> dict[str, int]:
    """Return the paths and bytes of all files of the store, including those of staged exchanges. It reads the records
    that name files, so a table whose definition was lost keeps its files.
    """
    segments = (STAGED_PREFIX, STATE_PREFIX)
    files = dict(_scan_files(view, scan_entries(view), RUNS_PREFIX, COMPACT_PREFIX, KEPT_PREFIX, segments))
    files.update(exchange_files(view))
    return files


def _scan_files(
    view: ReadTxn, entries: Iterable[LogEntry], runs: bytes, compact: bytes, kept: bytes, segments: Iterable[bytes]
) -> Iterator[tuple[str, int]]:
    for entry in entries:
        yield from ((file.path, file.bytes) for file in entry.files)
    for _, record in scan_prefix(view, runs):
        for run in runs_from_record(record):
            yield from ((part.path, part.bytes) for part in (*run.parts, *run.history))
    for _, record in scan_prefix(view, compact):
        yield from ((part.path, part.bytes) for part in _run_files_of_subcompaction(record))
    for prefix in segments:
        for _, record in scan_prefix(view, prefix):  # that of a view's state has none, those of its tables have
            yield from ((segment["path"], segment["bytes"]) for segment in record.get("segments", ()))
    for _, record in scan_prefix(view, kept):
        yield from ((file["file"]["path"], file["file"]["bytes"]) for file in record["files"])


def _run_files_of_subcompaction(record: dict[str, Any]) -> Iterator[RunFile]:
    """Yield the run files of a finished subcompaction of a compaction. The record of the compaction itself has none."""
    for kind in ("live", "history"):
        yield from map(RunFile.from_record, record.get(kind, ()))
