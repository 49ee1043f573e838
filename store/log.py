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

from ..errors import EpochExpired, InvalidInput, LogTruncated
from .catalog import View
from .definitions import TableDef, get_version
from .distinct import same_rows
from .epoch import SEQUENCE_BITS, as_epoch, to_unix_ms
from .files import Files
from .keys import KeyCodec
from .merge import Rows, fold, lookup, merge, newest_wins
from .prune import key_prunes
from .records import after_prefix, log_key
from .scan import EVERYTHING, KeyRange, ScanPlan, plan_scan
from .schema import TableSchema
from .segment import SegmentReader
from .version import LabelGroup, LogEntry

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = "_change_type", "_commit_version", "_commit_timestamp"
INSERT, UPDATE_PRE, UPDATE_POST, UPSERT, DELETE = "insert", "update_preimage", "update_postimage", "upsert", "delete"
CHANGE_FIELDS = (
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
)
IMAGE_ROWS = 1 << 20
"""Changed rows whose old images are looked up together."""


@dataclass(frozen=True, slots=True)
class LogPlan:
    """The log epochs of one range, oldest first, and the state before them (`before`), which pre-images are looked up
    in
    (None: history does not reach back so far).

    `backfill` marks the first look of a job at its upstream: the rows of `before` are given as inserts, and no log is
    read.
    """

    table: TableSchema
    before: ScanPlan | None
    groups: tuple[LabelGroup, ...] = ()
    backfill: bool = False

    def schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """The table's columns (or those asked for), all nullable, then the three change columns."""
        fields = [field.with_nullable(True) for field in ScanPlan(self.table, 0).schema(columns)]
        return pa.schema([*fields, *CHANGE_FIELDS])

    @property
    def rows(self) -> int:
        """Rows in the log of this range, before any netting."""
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
    ) -> Iterator[pa.RecordBatch]:
        """The changes in order: by epoch and key ("epochs"), or by key, one change for each ("net").

        `filter` may name key columns only: it must judge all images of a row alike. What is wrong with the arguments is
        raised at once, what is wrong with files by the iterator.
        """
        schema = self.schema(columns)
        self._check(mode, pre_images, filter)
        return self._batches(files, schema, mode, pre_images, columns, filter, key_range)

    def _batches(
        self,
        files: Files,
        schema: pa.Schema,
        mode: str,
        pre_images: bool,
        columns: Sequence[str] | None,
        filter: pc.Expression | None,
        key_range: KeyRange,
    ) -> Iterator[pa.RecordBatch]:
        if self.backfill:
            tables = self._snapshot(files, columns, filter, key_range)
        else:
            tables = self._changes(files, mode, pre_images, schema.names[: -len(CHANGE_FIELDS)], filter, key_range)
        for table in tables:
            passed = table if filter is None else table.filter(filter)
            yield from passed.select(schema.names).cast(schema).to_batches()

    def _check(self, mode: str, pre_images: bool, filter: pc.Expression | None) -> None:
        if mode not in ("epochs", "net"):
            raise InvalidInput(f"mode must be 'epochs' or 'net', not {mode!r}")
        if pre_images and self.before is None:
            raise EpochExpired(
                f"table {self.table.name!r}: the states before these changes have been let go, so there are no "
                "pre-images; ask with pre_images=False"
            )
        if filter is not None and not isinstance(filter, pc.Expression):
            raise InvalidInput(
                f"filter must be a pyarrow.compute.Expression, such as pc.field('x') > 1, not {filter!r}"
            )
        if filter is not None:
            keys = pa.schema([self.table.schema.field(name) for name in self.table.primary_key])
            try:
                keys.empty_table().filter(filter)
            except (pa.ArrowException, TypeError, KeyError) as error:
                raise InvalidInput(
                    f"a filter of changes may name key columns of {self.table.name!r} only "
                    f"({list(self.table.primary_key)}): {error}"
                ) from error

    def _snapshot(
        self, files: Files, columns: Sequence[str] | None, filter: pc.Expression | None, key_range: KeyRange
    ) -> Iterator[pa.Table]:
        wanted = None if columns is None else [*columns, *(key for key in self.table.primary_key if key not in columns)]
        assert self.before is not None
        for batch in self.before.batches(files, wanted, filter, key_range):
            yield _with_change_columns(pa.Table.from_batches([batch]), INSERT, self.before.epoch)

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
        if pre_images:  # a change that leaves the whole row as it was is none, whatever columns are asked for
            columns = [*columns, *(name for name in self.table.schema.names if name not in columns)]
        read = _GroupReader(files, self.table, columns, filter, key_range)
        before = self.before if pre_images else None
        if mode == "net":
            yield from self._net(read, before)
        elif before is not None:
            yield from self._epochs_with_images(read, before)
        else:
            for group in self.groups:
                rows = read.changes(group)
                if rows is not None:
                    yield _cheap(rows, pa.array([group.label]).take(pa.array(np.zeros(len(rows.keys), np.int64))))

    def _net(self, read: _GroupReader, before: ScanPlan | None) -> Iterator[pa.Table]:
        groups = [read.changes(group, with_label=True) for group in self.groups]
        found = [rows for rows in groups if rows is not None]
        if not found:
            return
        rows = found[0] if len(found) == 1 else fold(found, keep_tombstones=True)
        labels, data = rows.data.column(COMMIT_VERSION).combine_chunks(), rows.data.drop_columns([COMMIT_VERSION])
        rows = Rows(rows.keys, data, rows.deleted)
        yield _cheap(rows, labels) if before is None else _images(read.state(before, rows.keys), rows, labels)

    def _epochs_with_images(self, read: _GroupReader, before: ScanPlan) -> Iterator[pa.Table]:
        """Old images for a number of epochs are looked up at once, then rolled forward from epoch to epoch."""
        at = 0
        while at < len(self.groups):
            chunk: list[tuple[int, Rows]] = []
            start, rows_seen = at, 0
            while at < len(self.groups) and (at == start or rows_seen < IMAGE_ROWS):
                rows = read.changes(self.groups[at])
                if rows is not None:
                    chunk.append((self.groups[at].label, rows))
                    rows_seen += len(rows.keys)
                at += 1
            if chunk:
                yield from _roll(read.state(before, _all_keys([rows for _, rows in chunk])), chunk)
            before = before.extended([segment for group in self.groups[start:at] for segment in group.segments])


@dataclass(frozen=True, slots=True)
class _GroupReader:
    """Reads log epochs, and the state before them, for one choice of columns and keys."""

    files: Files
    table: TableSchema
    columns: Sequence[str]
    filter: pc.Expression | None
    key_range: KeyRange

    def changes(self, group: LabelGroup, *, with_label: bool = False) -> Rows | None:
        """The newest change of each key in one log epoch; None if there is none."""
        skip, codec = key_prunes(self.table, self.filter), KeyCodec(self.table.schema, self.table.primary_key)
        found = [
            SegmentReader(self.files, segment, self.table, codec).read(self.columns, self.key_range)
            for segment in group.segments
            if not skip(segment.stats)
        ]
        found = [rows for rows in found if len(rows.keys)]
        if not found:
            return None
        rows = found[0] if len(found) == 1 else newest_wins(found)
        if not with_label:
            return rows
        labels = pa.array(np.full(len(rows.keys), group.label, np.int64))
        return Rows(rows.keys, rows.data.append_column(COMMIT_VERSION, labels), rows.deleted)

    def state(self, before: ScanPlan, keys: pa.Array) -> Rows:
        """The rows of these keys (sorted, unique) that were there before."""
        positions, rows = before.find(self.files, keys, self.columns)
        present = positions >= 0
        taken = pa.array(positions[present])
        return Rows(keys.filter(pa.array(present)), rows.data.take(taken), None)


def _all_keys(chunk: Sequence[Rows]) -> pa.Array:
    if len(chunk) == 1:
        return chunk[0].keys
    bare = [Rows(rows.keys, rows.data.select([]), None) for rows in chunk]
    return newest_wins(bare).keys


def _roll(state: Rows, chunk: Sequence[tuple[int, Rows]]) -> Iterator[pa.Table]:
    for label, rows in chunk:
        yield _images(state, rows, pa.array(np.full(len(rows.keys), label, np.int64)))
        state = merge(state, rows, keep_tombstones=False)


def _cheap(rows: Rows, labels: pa.Array) -> pa.Table:
    """Change rows without old images: upsert, or delete with its key columns alone."""
    if rows.deleted is None:
        return _with_change_columns(rows.data, UPSERT, labels)
    kinds = pc.if_else(pa.array(rows.deleted), DELETE, UPSERT)
    return _with_change_columns(rows.data, kinds, labels)


def _images(state: Rows, rows: Rows, labels: pa.Array) -> pa.Table:
    """Change rows with images against the state before: insert, both sides of an update, delete.

    Nothing where nothing changed.
    """
    at = lookup(state, rows.keys)
    known = at >= 0
    deleted = rows.deleted if rows.deleted is not None else np.zeros(len(at), np.bool_)
    old = state.data.select(rows.data.column_names).take(pa.array(np.where(known, at, 0), mask=~known))
    changed = known & ~deleted
    unchanged = np.zeros(len(at), np.bool_)
    if changed.any():
        where = pa.array(changed)
        unchanged[changed] = same_rows(_nullable(old.filter(where)), _nullable(rows.data.filter(where)))
    pre, post = known & ~unchanged, ~deleted & ~unchanged
    both = pre & post
    # each key gives its old row, then its new one; order interleaves the two tables by key
    row = np.arange(len(at))
    source = np.concatenate([row[pre], row[post] + len(at)])
    order = np.argsort(np.concatenate([2 * row[pre], 2 * row[post] + 1]), kind="stable")
    kinds = np.concatenate([np.where(both[pre], UPDATE_PRE, DELETE), np.where(both[post], UPDATE_POST, INSERT)])
    data = pa.concat_tables([_nullable(old), _nullable(rows.data)]).take(pa.array(source[order]))
    taken = labels.take(pa.array((source % max(1, len(at)))[order]))
    return _with_change_columns(data, pa.array(kinds[order], pa.string()), taken)


def _nullable(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([field.with_nullable(True) for field in table.schema]))


def _with_change_columns(data: pa.Table, kinds: pa.Array | str, labels: pa.Array | int) -> pa.Table:
    rows = data.num_rows
    if isinstance(kinds, str):
        kinds = pa.array(np.full(rows, kinds), pa.string()) if rows else pa.array([], pa.string())
    epochs = np.full(rows, labels, np.int64) if isinstance(labels, int) else labels.to_numpy()
    times = pa.array(to_unix_ms_array(epochs) * 1000).cast(pa.timestamp("us", tz="UTC"))
    for field, column in zip(CHANGE_FIELDS, (kinds, pa.array(epochs), times), strict=True):
        data = data.append_column(field, column)
    return data


def to_unix_ms_array(epochs: np.ndarray) -> np.ndarray:
    """Unix ms for each epoch; int64 in and out."""
    return (epochs >> SEQUENCE_BITS) + to_unix_ms(0)


# ---- planning ----------------------------------------------------------------------------------------------------


def plan_changes(
    view: View, table: TableDef, after: int, until: int | None = None, *, by_commit: bool = False
) -> LogPlan:
    """The log of (after, until]; until=None is the newest commit, or `after` when that is newer.

    Bounds are log epochs: within one commit, non-checkpoint epochs on either side of a bound are told apart. With
    `by_commit` they are moments of visibility: a commit is in the range with all its log epochs, or not at all.
    Raises LogTruncated below the truncation mark and InvalidInput for an inverted range.
    """
    version = get_version(view, table.id, table.name)
    after = as_epoch("after", after)
    end = max(version.max_committed_epoch, after) if until is None else as_epoch("until", until)
    if end < after:
        raise InvalidInput(
            f"changes of {table.name!r}: the range ({after}, {end}] is inverted; until must not lie below after"
        )
    if after < version.log_start:
        raise LogTruncated(
            f"the log of {table.name!r} begins after epoch {version.log_start}; {after} was truncated. Read a "
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
    if after == 0:  # before its first entry a table is empty, however much of its history has been let go
        before = ScanPlan(table.schema, 0)
    else:
        before = plan_scan(view, table, after).extended(earlier) if after >= version.safe_epoch else None
    return LogPlan(table.schema, before, tuple(groups))


def plan_backfill(view: View, table: TableDef, epoch: int) -> LogPlan:
    """The rows of a table at an epoch, as the first look of a job at its upstream."""
    return LogPlan(table.schema, plan_scan(view, table, epoch), (), backfill=True)


def next_epoch(view: View, table: TableDef, after: int) -> int | None:
    """The next log epoch past `after`, non-checkpoint ones and empty entries too; None while there is none."""
    version = get_version(view, table.id, table.name)
    after = as_epoch("after", after)
    if after < version.log_start:
        raise LogTruncated(f"the log of {table.name!r} begins after epoch {version.log_start}; {after} was truncated")
    for _, record in view.scan(log_key(table.id, after + 1), log_key(table.id, version.max_committed_epoch + 1)):
        entry = LogEntry.from_record(record)
        return min([group.label for group in entry.groups if group.label > after] + [entry.epoch])
    return None


def _entries(view: View, table: TableDef, after: int, until: int) -> list[LogEntry]:
    """Entries visible in (after, until], and the one past `until` that may hold log epochs within."""
    found: list[LogEntry] = []
    prefix = b"log/%08x/" % table.id
    for _, record in view.scan(log_key(table.id, after + 1), after_prefix(prefix)):
        entry = LogEntry.from_record(record)
        if entry.epoch > until and (not entry.groups or entry.groups[0].label > until):
            break
        found.append(entry)
    return found
