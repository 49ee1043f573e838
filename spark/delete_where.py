"""Delete of the rows of a table that pass a condition of Spark, in one commit.

Spark itself evaluates the condition, so nulls, NaN and casts count as in a SELECT. The rows are those of the table's
newest commit. If other commits land meanwhile, only the keys that they changed are chosen anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import DeleteConflict, EpochExpired, LogTruncated, SnapshotExpired
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.log_plan import Columns, LogPlan, plan_changes, schema_changed
from epochlog.store.commit.change import CommitConflict, TableChange
from epochlog.store.commit.failures import DEFINITE_FAILURES
from epochlog.store.commit.root_commit import RootCommit, refuse_unwritable
from epochlog.store.commit.transaction import commit_changes
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.metadata.schema_change import is_extension
from epochlog.store.metadata.version import TableVersion
from epochlog.store.retention.stale_reads import stale_reads_translated
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle
from epochlog.store.session.write_intents import require_intents
from epochlog.store.sst.segment import Segment, SegmentReader
from epochlog.store.sst.segment_writer import SegmentWriter, WriteTarget, remove_segments
from epochlog.store.types.key_range import ALL_KEYS
from epochlog.store.types.read_options import ReadOptions

from .batch_source import Load, plan_with_lease
from .column_names import columns_named
from .frames import FrameWriter, read_frame
from .options import StoreLocation, Tasks
from .overwrite import mask_of_keys_in
from .partitions import ReadPartition
from .types import arrow_schema, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

MOST_ATTEMPTS = 50
"""Attempts of one delete. All but the first look only at the changes since the attempt before."""


@dataclass(frozen=True, slots=True)
class RowCondition:
    """Condition of a DELETE."""

    column: Column
    columns: tuple[str, ...]
    """Columns that the condition reads."""
    filter: pc.Expression | None
    """Arrow filter that all its rows pass, which prunes the read; None without one."""


@dataclass(frozen=True, slots=True)
class _Selection:
    """Tombstones of the rows that pass the condition at the commit `epoch` of the table."""

    epoch: int
    segments: tuple[Segment, ...]


def commit_delete(handle: Handle, session: SparkSession, table: TableDef, condition: RowCondition) -> int | None:
    """Delete the rows that pass the condition, in one commit; return its epoch, or None if no row passes it.

    Raises NotWritable and TableFinished; DeleteConflict if other commits landed during each of MOST_ATTEMPTS attempts.
    """
    handle.catalog.read(lambda view: refuse_unwritable(view, table))
    delete = _Delete(handle, session, table, condition)
    try:
        return delete.run()
    except DEFINITE_FAILURES:
        delete.remove_segments(())
        raise


class _Delete:
    """One delete with the segments that it has written."""

    def __init__(self, handle: Handle, session: SparkSession, table: TableDef, condition: RowCondition) -> None:
        self._handle, self._session, self._table, self._condition = handle, session, table, condition
        self._target = handle.write_target(table)
        self._written: list[Segment] = []

    def run(self) -> int | None:
        selection: _Selection | None = None
        for _ in range(MOST_ATTEMPTS):
            try:
                with stale_reads_translated(self._handle):
                    selection = self._select(selection)
                epoch = self._commit(selection)
            except CommitConflict:
                continue
            except (EpochExpired, LogTruncated, SnapshotExpired):  # Retention has passed the base: read all rows anew.
                selection = None
                continue
            self.remove_segments(selection.segments)
            return epoch
        self.remove_segments(())
        raise DeleteConflict(
            f"table {self._table.name!r}: other commits landed during each of {MOST_ATTEMPTS} attempts to delete, so "
            "nothing was deleted; pause its writers and repeat the statement"
        )

    def remove_segments(self, keep: Sequence[Segment]) -> None:
        """Remove the written segments that no commit has, all but `keep`."""
        kept = {segment.path for segment in keep}
        remove_segments(self._handle.files, [segment for segment in self._written if segment.path not in kept])

    def _commit(self, selection: _Selection) -> int | None:
        if not selection.segments:
            return None
        change = TableChange(self._table, selection.segments, "delete", base=selection.epoch)
        return commit_changes(self._handle, [change], RootCommit()).epoch

    def _select(self, before: _Selection | None) -> _Selection:
        """Select rows at the table's newest commit. before: the selection at an earlier commit; None without one."""
        if before is None:
            plan = self._plan_all()
            return _Selection(plan.epoch, self._write(plan))
        changes = self._handle.catalog.read(lambda view: self._plan_changes(view, before))
        kept = tuple(self._unchanged(before.segments, changes.segments))
        if not self._may_hold_rows(changes):
            return _Selection(changes.epoch, kept)
        return _Selection(changes.epoch, (*kept, *self._write(changes)))

    def _plan_all(self) -> ScanPlan:
        handle, table = self._handle, self._table
        newest = handle.catalog.read(lambda view: self._require_same_columns(view).max_committed_epoch)
        load = Load(
            location=StoreLocation(handle.root, handle.catalog_url, table.name),
            table_id=table.id,
            table=table.schema,
            columns=tuple(self._columns),
            epoch=newest,
            feed=False,
            start=None,
            mode="epochs",
            pre_images=False,
            filter=None,
            tasks=Tasks(self._session.sparkContext.defaultParallelism),
        )
        plan = plan_with_lease(handle, load)
        assert not isinstance(plan, LogPlan)
        return plan

    def _plan_changes(self, view: ReadTxn, before: _Selection) -> ScanPlan:
        """Plan a scan of the rows that were committed after a selection. Raises LogTruncated."""
        # Without their intent, vacuum may have deleted the selection's files too.
        require_intents(view, self._table.name, (segment.path for segment in before.segments))
        newest = self._require_same_columns(view).max_committed_epoch
        current = get_table(view, self._table.id, self._table.name)
        schema = self._table.schema.with_lineage(current.schema.lineage)
        columns = Columns(schema, whole=True)
        groups = plan_changes(view, current, before.epoch, by_commit=True, columns=columns).groups
        segments = tuple(segment for group in groups for segment in group.segments)
        self._target = replace(self._target, schema=schema)
        return ScanPlan(schema, newest, (), segments)

    def _require_same_columns(self, view: ReadTxn) -> TableVersion:
        """Return the table's version. Raises SchemaChanged if a column was dropped, renamed or widened since Spark has
        resolved the condition.
        """
        current = get_table(view, self._table.id, self._table.name)
        if not is_extension(self._table.schema, current.schema):
            raise schema_changed(current.name, current.schema.version)
        return get_version(view, current.id, current.name)

    @property
    def _columns(self) -> list[str]:
        return list(dict.fromkeys((*self._table.schema.delete_columns, *self._condition.columns)))

    def _may_hold_rows(self, plan: ScanPlan) -> bool:
        """Return False if the filter shows that no row passes the condition, which saves a job of Spark."""
        options = ReadOptions(self._columns, self._condition.filter)
        return any(batch.num_rows for batch in plan.batches(self._handle.files, options))

    def _write(self, plan: ScanPlan) -> tuple[Segment, ...]:
        """Write tombstones for the plan's rows that pass the condition."""
        table, columns = self._table.schema, self._columns
        schema = spark_schema(table.name, plan.schema(columns), table.primary_key)
        options = ReadOptions(columns, self._condition.filter)
        partition = ReadPartition(self._handle.files, plan, arrow_schema(schema), options)
        rows = read_frame(self._session, partition, schema).filter(self._condition.column)
        with FrameWriter(self._target) as writer:
            writer.write(rows.select(*columns_named(table.delete_columns)), deletes=True)
            segments = writer.finish()
        self._written += segments
        return tuple(segments)

    def _unchanged(self, selected: Sequence[Segment], changed: Sequence[Segment]) -> Iterator[Segment]:
        """Yield tombstones of the selected keys that no segment of `changed` has."""
        for segment in selected:
            remaining = _keys_without(self._target, segment, changed)
            if remaining is None:
                yield segment
                continue
            writer = SegmentWriter(self._target)
            writer.delete(remaining)
            segments = writer.finish()
            self._written += segments
            yield from segments


def _keys_without(target: WriteTarget, segment: Segment, changed: Sequence[Segment]) -> pa.Table | None:
    """Return the keys of the segment that no segment of `changed` has; None if those are all its keys."""
    names, codec = target.schema.delete_columns, ScanPlan(target.schema, 0).codec
    rows = SegmentReader(target.files, segment, target.schema, codec).read(names)
    mask = mask_of_keys_in(target, changed, rows.keys, ALL_KEYS)
    return rows.data.filter(pa.array(~mask)) if mask.any() else None
