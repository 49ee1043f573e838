"""Which files the catalog reaches: what no vacuum may ever touch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .catalog import View
from .exchanges import exchange_files
from .records import after_prefix, compact_key, runs_key
from .run import Part
from .version import LogEntry, runs_from_record


def files_of(view: View, table_id: int) -> dict[str, int]:
    """The paths and bytes of all files of a table: its log's, its runs', those done of a compaction under way, and
    those made in pieces that no commit has taken yet.
    """
    suffix = b"%08x/" % table_id
    return dict(_found(view, b"log/" + suffix, runs_key(table_id), compact_key(table_id) + b"/", b"made/" + suffix))


def all_files(view: View) -> dict[str, int]:
    """The same of the whole store, staged exchanges too, by the records that name files alone: a table whose own record
    was lost keeps its files.
    """
    found = dict(_found(view, b"log/", b"runs/", b"compact/", b"made/"))
    found.update(exchange_files(view))
    return found


def _found(view: View, log: bytes, runs: bytes, compact: bytes, made: bytes) -> Iterator[tuple[str, int]]:
    for _, record in view.scan(log, after_prefix(log)):
        yield from ((file.path, file.bytes) for file in LogEntry.from_record(record).files)
    for _, record in view.scan(runs, after_prefix(runs)):
        for run in runs_from_record(record):
            yield from ((part.path, part.bytes) for part in (*run.parts, *run.history))
    for _, record in view.scan(compact, after_prefix(compact)):
        yield from ((part.path, part.bytes) for part in _done(record))
    for _, record in view.scan(made, after_prefix(made)):
        yield from ((segment["path"], segment["bytes"]) for segment in record["segments"])


def _done(record: dict[str, Any]) -> Iterator[Part]:
    """The parts of a piece that is done; the record of the compaction itself has none."""
    for kind in ("live", "history"):
        yield from map(Part.from_record, record.get(kind, ()))
