"""Plan of a read of the log: the changes after one epoch up to another, per epoch or net, with or without pre-images.

`plan_changes` reads the catalog once; its LogPlan is picklable and needs no catalog, so Spark tasks can read by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import EpochExpired, InvalidInput, LogTruncated, SchemaChanged
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.env.files import Files
from epochlog.store.epochs.epoch_errors import KEEP_EPOCHS
from epochlog.store.metadata.commit_log import entries_of_log_epochs
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_version
from epochlog.store.metadata.schema_change import extended, first_unreadable
from epochlog.store.metadata.version import LabelGroup, LogEntry
from epochlog.store.scan.key_ranges import key_splits, own_bytes
from epochlog.store.scan.pruning import UNFIT, bind, check_filter, passed
from epochlog.store.scan.scan_plan import READ_BYTES, ScanFiles, ScanPlan, plan_scan, read_files
from epochlog.store.types.epoch import MAX_EPOCH, as_epoch, show_epoch
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from epochlog.store.types.read_options import ALL_ROWS, ReadOptions
from epochlog.store.types.retyping import as_schema
from epochlog.store.types.schema import TableSchema

from .change_reader import ChangeReader
from .change_rows import CHANGE_FIELDS, INSERT, change_columns

T = TypeVar("T")

BATCH_ROWS = 1 << 19


@dataclass(frozen=True, slots=True)
class LogPlan:
    """Plan of a read of one range of log epochs, oldest first."""

    table: TableSchema
    before: ScanPlan | None
    """State before the range, in which pre-images are looked up unless they are `stored` with the log; None if history
    does not reach back so far, or the caller reads no pre-images.
    """
    groups: tuple[LabelGroup, ...] = ()
    backfill: bool = False
    """True for the first read of an upstream by a job: it returns the rows of `before` as inserts and reads no log."""
    stored: bool = False
    altered: int | None = None
    """Alter at which the plan ends before its range does, because the table's columns cannot be continued past it;
    None: it has the whole range.
    """

    def schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema: the table's columns (or `columns`), all nullable, then the three change columns."""
        fields = [field.with_nullable(True) for field in ScanPlan(self.table, 0).schema(columns)]
        return pa.schema([*fields, *CHANGE_FIELDS])

    @property
    def rows(self) -> int:
        """Return the number of rows in the log of this range, before any netting."""
        return sum(segment.rows for group in self.groups for segment in group.segments)

    @property
    def bytes(self) -> int:
        return sum(own_bytes(segment) for group in self.groups for segment in group.segments)

    def batches(
        self,
        files: Files,
        mode: str = "epochs",
        *,
        pre_images: bool = False,
        options: ReadOptions = ALL_ROWS,
        split_bytes: int = READ_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes in order: by epoch and key ("epochs"), or by key, one change for each ("net").

        The filter may name key columns only, so that both images of a row pass it or none does. split_bytes: of a
        backfill, about the largest number of bytes to read at a time, as in ScanPlan.batches. Wrong arguments raise at
        once, damaged files raise in the iterator.
        """
        schema = self.schema(options.columns)
        self._check(mode, pre_images, options.filter)
        if self.backfill:
            tables = self._snapshot(files, options, split_bytes)
        else:
            changes = self._changes(files, pre_images, schema.names[: -len(CHANGE_FIELDS)], options)
            tables = changes.net() if mode == "net" else changes.epochs()
        return self._batches(tables, schema, options.filter)

    def _batches(
        self, tables: Iterator[pa.Table], schema: pa.Schema, filter: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each table that pass the filter, in record batches; keep no reference to yielded rows."""
        for table in tables:
            rows = passed(self.table.name, table, filter).select(schema.names)
            del table
            batches = as_schema(rows, schema).to_batches(max_chunksize=BATCH_ROWS)[::-1]
            del rows
            while batches:
                yield batches.pop()

    def _check(self, mode: str, pre_images: bool, filter: pc.Expression | None) -> None:
        if mode not in ("epochs", "net"):
            raise InvalidInput(f"mode must be 'epochs' or 'net', not {mode!r}")
        if pre_images and self.before is None and not self.stored:
            raise EpochExpired(
                f"table {self.table.name!r}: retention has removed the rows before these changes, so their "
                f"pre-images cannot be read. Use pre_images=False; to read them after old epochs, {KEEP_EPOCHS}"
            )
        if filter is not None:
            check_filter(filter)
            keys = pa.schema([self.table.schema.field(name) for name in self.table.primary_key])
            try:
                bind(keys, filter)
            except UNFIT as error:
                raise InvalidInput(
                    f"table {self.table.name!r}: a filter of changes can name key columns only "
                    f"({list(self.table.primary_key)}): {error}"
                ) from error

    def _snapshot(self, files: Files, options: ReadOptions, split_bytes: int) -> Iterator[pa.Table]:
        assert self.before is not None
        epoch = self.before.epoch
        if options.columns is not None:
            options = replace(options, columns=self._with_key(options.columns))

        def inserts(batch: pa.RecordBatch) -> pa.Table:
            data, labels = pa.Table.from_batches([batch]), np.full(batch.num_rows, epoch)
            for field, column in zip(CHANGE_FIELDS, change_columns(INSERT, labels), strict=True):
                data = data.append_column(field, column)
            return data

        return map(inserts, self.before.batches(files, options, split_bytes=split_bytes))

    def _changes(self, files: Files, pre_images: bool, columns: Sequence[str], options: ReadOptions) -> ChangeReader:
        columns = columns if options.filter is None else self._with_key(columns)
        options = replace(options, columns=columns)
        return ChangeReader(
            files, self.table, self.groups, options, images=pre_images, stored=self.stored, before=self.before
        )

    def _with_key(self, columns: Sequence[str]) -> list[str]:
        return [*columns, *(key for key in self.table.primary_key if key not in columns)]

    def splits(self, files: Files, count: int, within: KeyRange = ALL_KEYS) -> list[KeyRange]:
        """Return at most `count` key ranges that tile `within`, with similar numbers of rows in the result."""
        if self.backfill and self.before is not None:
            return self.before.splits(count, within)
        segments = [segment for group in self.groups for segment in group.segments]
        return key_splits(files, self.table, segments, count, within)


# ---- planning ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of a read of the log of a table that was altered.

    A read ends where an alter drops, renames or widens one of its columns.
    """

    schema: TableSchema | None = None
    """Columns of a reader that keeps them, found by field id and null where a change lacks them; None: those of the
    range.
    """
    whole: bool = False
    """True reads the whole range, in these columns or those of its end."""
    cut: bool = False
    """True returns the part of the range before such an alter; else the range is refused."""


def plan_changes(
    view: ReadTxn,
    table: TableDef,
    after: int,
    until: int | None = None,
    *,
    by_commit: bool = False,
    columns: Columns = Columns(),
    files: ScanFiles | None = None,
    pre_images: bool = True,
) -> LogPlan:
    """Plan a read of the log of (after, until]; until=None is the newest commit, or `after` when that is newer.

    Bounds are log epochs: a bound can separate the non-checkpoint epochs of one commit. With `by_commit` they are
    epochs of visibility: a commit is in the range with all its log epochs, or not at all.
    Raises LogTruncated below the truncation mark, InvalidInput for an inverted range, and SchemaChanged for one that an
    alter divides (see Columns). files: those of the table in this view through `until`, if the caller has read them.
    pre_images: False plans none, so `before` is None.
    """
    version = files.version if files else get_version(view, table.id, table.name)
    after = as_epoch("after", after)
    end = max(version.max_committed_epoch, after) if until is None else as_epoch("until", until)
    if end < after:
        raise InvalidInput(
            f"changes of {table.name!r}: the range ({show_epoch(after)}, {show_epoch(end)}] is inverted; until must "
            "not be below after"
        )
    if after < version.log_start:
        raise LogTruncated(
            f"the log of {table.name!r} begins after epoch {show_epoch(version.log_start)}; epoch {show_epoch(after)} "
            "was truncated. Read a snapshot and continue from its epoch"
        )
    entries = list(entries_of_log_epochs(view, table.id, after, end))
    schema, altered = _columns_of(table.schema, entries, end, columns)
    if altered is not None:
        if not columns.cut:
            raise schema_changed(table.name, altered)
        entries = [cut for entry in entries if (cut := entry.cut(-1, altered - 1)) is not None]
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
    stored = _are_images_stored(table, groups)
    if stored or not pre_images:
        before = None
    elif after == 0:  # before its first entry a table is empty, also when retention has removed history
        before = ScanPlan(schema, 0)
    else:
        read = files or read_files(view, table, after)
        before = read.plan(table, after, schema).extended(earlier) if version.keeps(after) else None
    return LogPlan(schema, before, tuple(groups), stored=stored, altered=altered)


def _are_images_stored(table: TableDef, groups: Sequence[LabelGroup]) -> bool:
    """Return True if all groups with rows store pre-images. Commits without rows lie in packs of both kinds."""
    changing = [group for group in groups if group.segments]
    return all(stores_images(table, group) for group in changing) if changing else table.changelog == "full"


def _columns_of(
    current: TableSchema, entries: Sequence[LogEntry], end: int, columns: Columns
) -> tuple[TableSchema, int | None]:
    """Return the columns of a read, and the epoch of the alter at which it must end; None if it has the whole range."""
    schema = columns.schema and columns.schema.with_lineage(current.lineage)
    if columns.whole or not current.lineage:
        return schema or current.at(end), None
    # the files of a pack have one version of the columns
    changed = [first for entry in entries if (first := entry.first_change) is not None]
    if schema is None:
        schema = current if not changed else extended(current, changed[0], max(end, changed[-1]))
    return schema, first_unreadable(schema, changed)


def columns_after(view: ReadTxn, table: TableDef, after: int) -> TableSchema:
    """Return the columns for a reader of the log after an epoch that keeps them: those of the first change that it
    reads, and what later alters add until one drops, renames or widens a column.
    """
    current = table.schema
    if not any(version.version > after for version in current.lineage):
        return current
    for entry in entries_of_log_epochs(view, table.id, after):
        if entry.first_change is not None:
            return extended(current, entry.first_change, MAX_EPOCH)
    return current


def ended_by_alter(plan: LogPlan, items: Iterator[T]) -> Iterator[T]:
    """Yield the items that were read by the plan; then raise SchemaChanged if it ends at an alter."""
    yield from items
    if plan.altered is not None:
        raise schema_changed(plan.table.name, plan.altered)


def schema_changed(table: str, epoch: int) -> SchemaChanged:
    """Return the error of a reader that an alter at this epoch ends."""
    return SchemaChanged(
        f"table {table!r} was altered at epoch {epoch}: a column was dropped, renamed or widened, so its changes from "
        f"then on have other columns. Read those before it up to epoch {epoch - 1} (until=, TO VERSION), unless this "
        f"read has returned them, and begin again after epoch {epoch - 1}"
    )


def stores_images(table: TableDef, group: LabelGroup) -> bool:
    """Return True if the group stores pre-images."""
    if group.stores_images is None:  # an entry of version 0.1
        return table.first_changelog == "full"
    return group.stores_images


def plan_backfill(view: ReadTxn, table: TableDef, epoch: int, schema: TableSchema | None = None) -> LogPlan:
    """Plan a read of a table's rows at an epoch, for a reader that begins with them. schema: as in `plan_scan`."""
    rows = plan_scan(view, table, epoch, schema and schema.with_lineage(table.schema.lineage))
    return LogPlan(rows.table, rows, (), backfill=True)


def next_epoch(view: ReadTxn, table: TableDef, after: int) -> int | None:
    """Return the next log epoch past `after`, also of a non-checkpoint or empty entry; None if there is none yet."""
    version = get_version(view, table.id, table.name)
    after = as_epoch("after", after)
    if after < version.log_start:
        raise LogTruncated(
            f"the log of {table.name!r} begins after epoch {show_epoch(version.log_start)}; epoch {show_epoch(after)} "
            "was truncated. Read a snapshot and continue from its epoch"
        )
    for entry in entries_of_log_epochs(view, table.id, after, version.max_committed_epoch):
        return min([group.first for group in entry.groups if group.first > after] + [entry.epoch])
    return None
