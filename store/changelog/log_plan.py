"""Reading the log.

What changed after one epoch and up to another, per epoch or net, with or without the rows' old images.

`plan_changes` looks into the catalog once; the LogPlan it makes is picklable and knows no catalog, so Spark tasks
read by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import EpochExpired, InvalidInput, LogTruncated
from epochlog.store.catalog.keys import after_prefix, log_key
from epochlog.store.catalog.protocol import View
from epochlog.store.env.files import Files
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_version
from epochlog.store.metadata.version import LabelGroup, LogEntry
from epochlog.store.scan.key_ranges import key_pieces
from epochlog.store.scan.pruning import check_filter, passed
from epochlog.store.scan.scan_plan import EVERYTHING, READ_BYTES, KeyRange, ScanPlan, plan_scan
from epochlog.store.types.epoch import as_epoch, show_epoch
from epochlog.store.types.schema import TableSchema

from .change_reader import Feed
from .change_rows import CHANGE_FIELDS, INSERT, change_columns

BATCH_ROWS = 1 << 19


@dataclass(frozen=True, slots=True)
class LogPlan:
    """The log epochs of one range, oldest first, and the state before them (`before`), which pre-images are looked up
    in (None: history does not reach back so far), unless they are `stored` with the log.

    `backfill` marks the first look of a job at its upstream: the rows of `before` are given as inserts, and no log is
    read.
    """

    table: TableSchema
    before: ScanPlan | None
    groups: tuple[LabelGroup, ...] = ()
    backfill: bool = False
    stored: bool = False

    def schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema: the table's columns (or those asked for), all nullable, then the three change columns."""
        fields = [field.with_nullable(True) for field in ScanPlan(self.table, 0).schema(columns)]
        return pa.schema([*fields, *CHANGE_FIELDS])

    @property
    def rows(self) -> int:
        """Return the number of rows in the log of this range, before any netting."""
        return sum(segment.rows for group in self.groups for segment in group.segments)

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for group in self.groups for segment in group.segments)

    def batches(
        self,
        files: Files,
        mode: str = "epochs",
        *,
        pre_images: bool = False,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        key_range: KeyRange = EVERYTHING,
        piece_bytes: int = READ_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes in order: by epoch and key ("epochs"), or by key, one change for each ("net").

        piece_bytes: of a backfill what is read at a time, as in ScanPlan.batches. `filter` may name key columns only:
        it must judge all images of a row alike. What is wrong with the arguments is raised at once, what is wrong with
        files by the iterator.
        """
        schema = self.schema(columns)
        self._check(mode, pre_images, filter)
        if self.backfill:
            tables = self._snapshot(files, columns, filter, key_range, piece_bytes)
        else:
            tables = self._changes(files, mode, pre_images, schema.names[: -len(CHANGE_FIELDS)], filter, key_range)
        return self._batches(tables, schema, filter)

    def _batches(
        self, tables: Iterator[pa.Table], schema: pa.Schema, filter: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each table that pass the filter, in record batches; keep no reference to yielded rows."""
        for table in tables:
            rows = passed(self.table.name, table, filter).select(schema.names)
            del table
            batches = pa.Table.from_arrays(rows.columns, schema=schema).to_batches(max_chunksize=BATCH_ROWS)[::-1]
            del rows
            while batches:
                yield batches.pop()

    def _check(self, mode: str, pre_images: bool, filter: pc.Expression | None) -> None:
        if mode not in ("epochs", "net"):
            raise InvalidInput(f"mode must be 'epochs' or 'net', not {mode!r}")
        if pre_images and self.before is None and not self.stored:
            raise EpochExpired(
                f"table {self.table.name!r}: the states before these changes have been let go, so there are no "
                "pre-images; ask with pre_images=False"
            )
        if filter is not None:
            check_filter(filter)
            keys = pa.schema([self.table.schema.field(name) for name in self.table.primary_key])
            try:
                keys.empty_table().filter(filter)
            except (pa.ArrowException, TypeError, KeyError) as error:
                raise InvalidInput(
                    f"a filter of changes may name key columns of {self.table.name!r} only "
                    f"({list(self.table.primary_key)}): {error}"
                ) from error

    def _snapshot(
        self,
        files: Files,
        columns: Sequence[str] | None,
        filter: pc.Expression | None,
        key_range: KeyRange,
        piece_bytes: int,
    ) -> Iterator[pa.Table]:
        wanted = None if columns is None else [*columns, *(key for key in self.table.primary_key if key not in columns)]
        assert self.before is not None
        epoch = self.before.epoch

        def inserts(batch: pa.RecordBatch) -> pa.Table:
            data, labels = pa.Table.from_batches([batch]), np.full(batch.num_rows, epoch)
            for field, column in zip(CHANGE_FIELDS, change_columns(INSERT, labels), strict=True):
                data = data.append_column(field, column)
            return data

        return map(inserts, self.before.batches(files, wanted, filter, key_range, piece_bytes=piece_bytes))

    def _changes(
        self,
        files: Files,
        mode: str,
        pre_images: bool,
        columns: Sequence[str],
        filter: pc.Expression | None,
        key_range: KeyRange,
    ) -> Iterator[pa.Table]:
        if filter is not None:
            columns = [*columns, *(key for key in self.table.primary_key if key not in columns)]
        feed = Feed(
            files,
            self.table,
            self.groups,
            columns,
            key_range,
            filter,
            images=pre_images,
            stored=self.stored,
            before=self.before,
        )
        return feed.net() if mode == "net" else feed.epochs()

    def splits(self, files: Files, count: int, within: KeyRange = EVERYTHING) -> list[KeyRange]:
        """Return at most `count` key ranges that tile `within`, with similar numbers of rows to give out."""
        if self.backfill and self.before is not None:
            return self.before.splits(count, within)
        segments = [segment for group in self.groups for segment in group.segments]
        return key_pieces(files, self.table, segments, count, within)


# ---- planning ----------------------------------------------------------------------------------------------------


def plan_changes(
    view: View, table: TableDef, after: int, until: int | None = None, *, by_commit: bool = False
) -> LogPlan:
    """Plan a read of the log of (after, until]; until=None is the newest commit, or `after` when that is newer.

    Bounds are log epochs: within one commit, non-checkpoint epochs on either side of a bound are told apart. With
    `by_commit` they are moments of visibility: a commit is in the range with all its log epochs, or not at all.
    Raises LogTruncated below the truncation mark and InvalidInput for an inverted range.
    """
    version = get_version(view, table.id, table.name)
    after = as_epoch("after", after)
    end = max(version.max_committed_epoch, after) if until is None else as_epoch("until", until)
    if end < after:
        raise InvalidInput(
            f"changes of {table.name!r}: the range ({show_epoch(after)}, {show_epoch(end)}] is inverted; until must "
            "not lie below after"
        )
    if after < version.log_start:
        raise LogTruncated(
            f"the log of {table.name!r} begins after epoch {show_epoch(version.log_start)}; {show_epoch(after)} was "
            "truncated. Read a "
            "snapshot and go on from there"
        )
    entries = _entries(view, table, after, end)
    groups = [
        group
        for entry in entries
        for group in entry.groups
        if (entry.epoch <= end if by_commit else after < group.label <= end)
    ]
    earlier = [
        segment
        for entry in entries[:1]
        for group in entry.groups
        if not by_commit and group.label <= after
        for segment in group.segments
    ]
    stored = all(_stores_images(table, group) for group in groups) if groups else table.changelog == "full"
    if stored:
        before = None
    elif after == 0:  # before its first entry a table is empty, however much of its history has been let go
        before = ScanPlan(table.schema, 0)
    else:
        before = plan_scan(view, table, after).extended(earlier) if after >= version.safe_epoch else None
    return LogPlan(table.schema, before, tuple(groups), stored=stored)


def _stores_images(table: TableDef, group: LabelGroup) -> bool:
    if group.stores_images is None:  # an entry of version 0.1
        return table.first_changelog == "full"
    return group.stores_images


def plan_backfill(view: View, table: TableDef, epoch: int) -> LogPlan:
    """Plan a read of a table's rows at an epoch, for the backfill of a job."""
    return LogPlan(table.schema, plan_scan(view, table, epoch), (), backfill=True)


def next_epoch(view: View, table: TableDef, after: int) -> int | None:
    """Return the next log epoch past `after`, non-checkpoint ones and empty entries too; None while there is none."""
    version = get_version(view, table.id, table.name)
    after = as_epoch("after", after)
    if after < version.log_start:
        raise LogTruncated(
            f"the log of {table.name!r} begins after epoch {show_epoch(version.log_start)}; {show_epoch(after)} was "
            "truncated"
        )
    for _, record in view.scan(log_key(table.id, after + 1), log_key(table.id, version.max_committed_epoch + 1)):
        entry = LogEntry.from_record(record)
        return min([group.label for group in entry.groups if group.label > after] + [entry.epoch])
    return None


def _entries(view: View, table: TableDef, after: int, until: int) -> list[LogEntry]:
    """Yield the log entries visible in (after, until], and the one past `until` that may hold log epochs within."""
    found: list[LogEntry] = []
    prefix = b"log/%08x/" % table.id
    for _, record in view.scan(log_key(table.id, after + 1), after_prefix(prefix)):
        entry = LogEntry.from_record(record)
        if entry.epoch > until and (not entry.groups or entry.groups[0].label > until):
            break
        found.append(entry)
    return found
