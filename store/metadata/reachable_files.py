"""Files that catalog records refer to. Vacuum never deletes one of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from epochlog.store.catalog.keys import after_prefix, compact_key, runs_key
from epochlog.store.catalog.protocol import View
from epochlog.store.sst.sorted_run import RunFile

from .exchange_records import exchange_files
from .version import LogEntry, runs_from_record


def files_of(view: View, table_id: int) -> dict[str, int]:
    """Return the paths and bytes of all files of a table: of its log, its runs, the finished pieces of a compaction
    under way, and staged segments that no commit has taken yet.
    """
    suffix = b"%08x/" % table_id
    return dict(_found(view, b"log/" + suffix, runs_key(table_id), compact_key(table_id) + b"/", b"made/" + suffix))


def all_files(view: View) -> dict[str, int]:
    """Return the paths and bytes of all files of the store, of staged exchanges too. It goes by the records that name
    files: a table whose own record was lost keeps its files.
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


def _done(record: dict[str, Any]) -> Iterator[RunFile]:
    """Yield the run files of a finished piece of a compaction; the record of the compaction itself has none."""
    for kind in ("live", "history"):
        yield from map(RunFile.from_record, record.get(kind, ()))
