"""Which files the catalog reaches: what no vacuum may ever touch."""

from __future__ import annotations

from collections.abc import Iterator

from .catalog import View
from .definitions import get_runs
from .records import after_prefix, compact_key
from .run import Part
from .version import LogEntry


def files_of(view: View, table_id: int) -> dict[str, int]:
    """The paths and bytes of all files of a table: its log's, its runs', and those done of a compaction under way."""
    return dict(_files_of(view, table_id))


def _files_of(view: View, table_id: int) -> Iterator[tuple[str, int]]:
    prefix = b"log/%08x/" % table_id
    for _, record in view.scan(prefix, after_prefix(prefix)):
        for file in LogEntry.from_record(record).files:
            yield file.path, file.bytes
    for run in get_runs(view, table_id):
        for part in (*run.parts, *run.history):
            yield part.path, part.bytes
    prefix = compact_key(table_id) + b"/"
    for _, record in view.scan(prefix, after_prefix(prefix)):
        for done in (*record["live"], *record["history"]):
            part = Part.from_record(done)
            yield part.path, part.bytes
