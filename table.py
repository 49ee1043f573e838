"""Table handle: writes, reads, the change log and history of one table; and its facts in `store.tables()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.batch.default_read import DefaultRead, plan_default_read
from epochlog.batch.epoch_as_of import epoch_as_of
from epochlog.batch.table_snapshot import TableSnapshot
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.log_plan import Columns, LogPlan, ended_by_alter, next_epoch, plan_changes
from epochlog.store.changelog.replanned import read_replanned
from epochlog.store.commit.change import TableChange
from epochlog.store.commit.idempotency import TxnPair
from epochlog.store.commit.root_commit import RootCommit, commit_rows, open_writer
from epochlog.store.commit.row_checks import alter_with_checks
from epochlog.store.commit.table_ddl import alter_schema, alter_table, table_bytes, truncate_log
from epochlog.store.commit.table_restore import restore_rows
from epochlog.store.commit.transaction import commit_changes
from epochlog.store.env.metrics import READS
from epochlog.store.env.process_local import OneProcess
from epochlog.store.epochs.epoch_errors import require_begun
from epochlog.store.epochs.view_reader import read_commits, read_epoch_view, table_state
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_job, get_table, get_version
from epochlog.store.metadata.schema_change import SchemaChange
from epochlog.store.metadata.table_options import TableOptions
from epochlog.store.metadata.table_settings import Settings
from epochlog.store.retention.stale_reads import stale_reads_translated
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan, require_complete
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import SegmentWriter
from epochlog.store.types.epoch import as_epoch, show_epoch
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.time_zones import reader_in_common_zones

from .errors import InvalidInput, StoreClosed

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from epochlog.batch.dataset import TableDataset

HISTORY_SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("txn", pa.struct([("application", pa.string()), ("id", pa.int64())])),
        ("job", pa.string()),
        ("operation", pa.string()),
        ("engine", pa.string()),
        ("rows_upserted", pa.int64()),
        ("rows_deleted", pa.int64()),
        ("segments", pa.int64()),
        ("bytes", pa.int64()),
    ]
)


@dataclass(frozen=True)
class TableInfo:
    """Table as of now. `rows` is exact; it is counted from the keys at its first use.

    The other fields cost nothing. drop_unchanged has a meaning for outputs of jobs only.
    """

    name: str
    schema: pa.Schema
    primary_key: list[str]
    state: str
    job: str | None
    max_committed_epoch: int
    safe_epoch: int
    log_start_epoch: int
    bytes: int
    log_segments: int
    runs: int
    changelog: str
    options: TableOptions
    drop_unchanged: bool
    sequence_by: str | None
    checks: dict[str, str]
    defaults: dict[str, Any]
    """Of added columns, the value in rows that were written without them."""
    _count: Callable[[], int] = field(repr=False, compare=False)

    @cached_property
    def rows(self) -> int:
        return self._count()


class Table(OneProcess):
    """Table, by its id: if it is dropped and created again under its name, this handle raises TableDropped."""

    _instead = "send store.root and the table's name: epochlog.open(root).table(name)"

    def __init__(self, handle: Handle, table: TableDef) -> None:
        self._handle = handle
        self._table = table
        self._newest: DefaultRead | None = None

    @property
    def name(self) -> str:
        return self._table.name

    @property
    def schema(self) -> pa.Schema:
        """Return the table's columns. They are read with the table, and again with each of its rows or changes."""
        return self._table.schema.schema

    @property
    def primary_key(self) -> list[str]:
        return list(self._table.schema.primary_key)

    @property
    def sequence_by(self) -> str | None:
        """Return the column that orders the changes of each key; None: the later commit wins."""
        return self._table.schema.sequence_by

    @property
    def info(self) -> TableInfo:
        return self._handle.catalog.read(lambda view: table_info(self._handle, view, self._current(view)))

    def __repr__(self) -> str:
        return f"<epochlog.Table {self.name} of {self._handle.files.place}>"

    def alter(
        self,
        *,
        options: TableOptions | None = None,
        changelog: str | None = None,
        drop_unchanged: bool | None = None,
        checks: Mapping[str, str] | None = None,
        add: Sequence[pa.Field] | None = None,
        drop: Sequence[str] | None = None,
        rename: Mapping[str, str] | None = None,
        widen: Mapping[str, pa.DataType] | None = None,
        defaults: Mapping[str, object] | None = None,
        txn: TxnPair | None = None,
    ) -> None:
        """Change the settings of a root table or an output, or the columns of a root table; arguments left out keep
        their values. The rows stay.

        options: a shorter retention takes effect when retention runs next; a longer one restores nothing. changelog:
        for commits from now on; stored pre-images stay. drop_unchanged: for outputs only, for commits from now on.
        checks: of a root table, in place of its present ones, after a test of all rows.

        The columns change at an epoch of their own; reads at earlier epochs have the earlier columns. All names are
        those before the change. add: nullable fields, null in the rows so far. defaults: {new column: value}, the value
        of added columns in rows that were written without them. drop: columns that are not part of the key. rename:
        {old: new}. widen: {column: type}, no key column: integers to wider ones, to floats that hold all of them, or to
        decimals with enough digits; floats to wider ones; decimals to more digits, also behind the point; dates to
        timestamps without a zone, at midnight; structs to structs with more nullable fields, also inside of lists and
        maps. The column of the sequence, and those that a check or the ttl of the table names, can only be renamed;
        check and ttl follow. A change that the table has already has no effect; but one that gives the name of one
        column to another (a swap) raises InvalidInput while the table has it, unless it has a txn.

        txn: a pair (application, id) for a change of columns, by which a retry is recognized, also after other alters:
        it has no effect. Under a new pair a swap takes effect also while the table has it.

        Raises CheckViolated, InvalidInput, InvalidSchema, LimitExceeded, NotWritable, SchemaInUse, TableDropped,
        TableFinished, TxnAborted, TxnMismatch, TxnOutcomeForgotten.
        """
        settings = Settings(options, changelog, drop_unchanged, checks)
        change = SchemaChange.of(self.name, add, drop, rename, widen, defaults)
        if change:
            self._table = alter_schema(self._handle, self._table, change, settings, txn)
        elif txn is not None:
            raise InvalidInput(
                f"table {self.name!r}: txn= goes with add=, drop=, rename= or widen=; leave it out for settings alone, "
                "because setting them again changes nothing"
            )
        elif checks is not None:
            alter_with_checks(self._handle, self._handle.catalog.read(self._current), settings)
        elif settings != Settings():
            alter_table(self._handle, self._table, lambda _: settings)
        else:
            raise InvalidInput(
                f"table {self.name!r}: alter takes options=, changelog=, drop_unchanged= or checks=, or add=, drop=, "
                "rename= or widen="
            )

    def schema_at(self, epoch: int) -> pa.Schema:
        """Return the columns that the table has at an epoch. They are kept longer than the rows.

        Raises EpochNotCommitted.
        """
        at_epoch = as_epoch("epoch", epoch)

        def body(view: ReadTxn, table: TableDef) -> pa.Schema:
            self._require_readable(view, table, at_epoch)
            return table.schema.at(at_epoch).schema

        return self._read(body)

    # ---- writing -------------------------------------------------------------------------------------------------

    def upsert(self, data: object, *, txn: TxnPair | None = None, epoch: int | None = None) -> int:
        """Insert rows or replace those with equal keys, in one commit; return its epoch.

        data: anything Arrow-shaped with all columns, or a list of dicts. Numbers and times are cast if the cast is
        lossless. Raises SchemaMismatch with the column and the first row that does not fit, NotWritable, TableFinished.
        """
        committed, self._table = commit_rows(
            self._handle, self._table, "upsert", lambda writer: writer.upsert(data), txn, epoch
        )
        return committed

    def update(
        self, data: object, *, ignore_nulls: bool = False, txn: TxnPair | None = None, epoch: int | None = None
    ) -> int:
        """Change some columns of rows, in one commit; return its epoch. A key without a row gets one, with null in the
        other columns.

        data: as for `upsert`, with the key columns and some others. The rows are merged with those of the newest
        commit, so two updates of different columns of a row both count. ignore_nulls: a null leaves the value as it is.
        Raises SchemaMismatch, also if a new row would have a null in a column that has none; NotWritable,
        TableFinished; and InvalidInput for a table with a sequence.
        """

        def fill(writer: SegmentWriter) -> None:
            writer.update(data, ignore_nulls=ignore_nulls)

        committed, self._table = commit_rows(self._handle, self._table, "update", fill, txn, epoch)
        return committed

    def delete(self, keys: object, *, txn: TxnPair | None = None, epoch: int | None = None) -> int:
        """Delete rows by primary key, in one commit; return its epoch. Unknown keys are ignored.

        keys: in the forms of `get`; in a table with a sequence, with its column behind those of the key.
        """
        committed, self._table = commit_rows(
            self._handle, self._table, "delete", lambda writer: writer.delete(keys), txn, epoch
        )
        return committed

    def restore(self, epoch: int | str | datetime, *, txn: TxnPair | None = None) -> int:
        """Give a root table the rows that it had at an epoch, in one commit of the difference; return its epoch.

        epoch: an epoch, a time (datetime), or the name of a tag of the table. What came in between stays in the log and
        in reads of those epochs; views follow as after any commit. Commits that land while the restore runs are undone
        too. Raises EpochExpired, EpochNotCommitted, TagNotFound, NotWritable, TableFinished.
        """
        with epoch_as_of(self._handle, self._table.name, epoch) as target:
            return restore_rows(self._handle, self._table, target, txn)

    def writer(self) -> TableWriter:
        """Open a writer that seals segments for `store.commit`; a root table can have any number of open writers."""
        return TableWriter(self._handle, self._table)

    def finish(self) -> int:
        """End the table's data at a new epoch; later writes raise TableFinished."""
        return commit_changes(
            self._handle, [TableChange(self._table, operation="finish", end=True)], RootCommit()
        ).epoch

    # ---- reading -------------------------------------------------------------------------------------------------

    def to_arrow(
        self, *, epoch: int | None = None, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> pa.Table:
        """Return the rows at an epoch that pass the filter (None: all), in key order.

        epoch: None, in all reads, for the newest valid epoch of the table, at which a view equals its query, or for the
        store's `default_consistency`. Raises NoConsistentEpoch, EpochExpired, and EpochNotCommitted above the complete
        epoch or before the table's first epoch.
        """
        return self._snapshot_at(epoch).to_arrow(columns=columns, filter=filter)

    def scan(
        self, *, epoch: int | None = None, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> pa.RecordBatchReader:
        """Return the rows at an epoch (None: the newest valid one) as a reader of batches, a bounded number of rows
        at a time.
        """
        return self._snapshot_at(epoch).scan(columns=columns, filter=filter)

    def to_pandas(self, *, epoch: int | None = None, **options: Any) -> pd.DataFrame:
        """Return the rows at an epoch (None: the newest valid one) as a pandas DataFrame, in key order. The options are
        those of a snapshot's `to_pandas`: columns, filter, dtype_backend, types_mapper.
        """
        return self._snapshot_at(epoch).to_pandas(**options)

    def to_polars(self, *, epoch: int | None = None, **options: Any) -> pl.DataFrame:
        return self._snapshot_at(epoch).to_polars(**options)

    def lazy(self, *, epoch: int | None = None) -> pl.LazyFrame:
        """Return a polars LazyFrame of the epoch, which is fixed now and read when the frame is collected.

        Columns and filters of the query prune the read. No hold keeps the epoch: SnapshotExpired when its files have
        been vacuumed. The `lazy()` of a snapshot is held.
        """
        return self._snapshot_at(epoch).lazy()

    def dataset(self, *, epoch: int | None = None) -> TableDataset:
        """Return a `pyarrow.dataset.Dataset` of the epoch, which is fixed now; no hold keeps it."""
        return self._snapshot_at(epoch).dataset()

    def count(self, epoch: int | None = None) -> int:
        return self._snapshot_at(epoch).count()

    def get(self, keys: object, *, epoch: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Return one row for each key found, in the order of the keys.

        keys: anything Arrow-shaped with exactly the primary-key columns, or a list of dicts; of one column also a
        scalar, an array or a list of scalars, of several columns a tuple or a list of tuples.
        """
        return self._snapshot_at(epoch).get(keys, columns=columns)

    def __arrow_c_schema__(self) -> object:
        return self._snapshot_at(None).__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the rows as of the newest valid epoch as an Arrow stream."""
        return self._snapshot_at(None).__arrow_c_stream__(requested_schema)

    def changes(
        self,
        after: int,
        until: int | None = None,
        *,
        mode: str = "epochs",
        pre_images: bool = False,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
    ) -> pa.RecordBatchReader:
        """Return the changes in (after, until] (None: up to the newest commit) as a reader of record batches.

        mode "epochs": each epoch's net changes in key order; "net": one change per key over the range. Columns: the
        table's, then `_change_type`, `_commit_version` (epoch), `_commit_timestamp`. Without pre_images the types are
        upsert and delete; with them insert, update_preimage, update_postimage and delete. `filter` may name key columns
        only. Raises LogTruncated, EpochExpired (pre-images of released history, unless changelog="full" stored them),
        InvalidInput, and SnapshotExpired if the log was truncated during the read. Times are in UTC where the table's
        zone is one that polars lacks (an offset such as +05:30).

        In mode "net" the columns are those of `until`. In mode "epochs" the reader raises SchemaChanged after the
        changes before an alter that drops, renames or widens a column; another call after them has the new columns.
        """
        how = Columns(whole=mode == "net", cut=True)
        self._handle.recorder.add(READS, "changes")
        plan = self._plan_changes(after, until, how, pre_images)

        def batches_of(planned: LogPlan) -> Iterator[pa.RecordBatch]:
            options = ReadOptions(columns, filter)
            return planned.batches(self._handle.files, mode, pre_images=pre_images, options=options)

        def plan_from(epoch: int) -> Iterator[pa.RecordBatch]:
            """Plan the rest of the range, from a log epoch on, in the columns of the first plan."""
            start, end = max(after, epoch - 1), plan.groups[-1].label
            return batches_of(self._plan_changes(start, end, replace(how, schema=plan.table), pre_images))

        batches = read_replanned(self._handle, batches_of(plan), plan_from, by_epoch=mode == "epochs")
        return reader_in_common_zones(plan.schema(columns), ended_by_alter(plan, batches))

    def _plan_changes(self, after: int, until: int | None, columns: Columns, pre_images: bool) -> LogPlan:
        def body(view: ReadTxn, table: TableDef) -> LogPlan:
            return plan_changes(view, table, after, until, columns=columns, pre_images=pre_images)

        return self._read(body)

    def next_epoch(self, after: int) -> int | None:
        """Return the next log epoch after `after`, labels included; None while there is none."""
        return self._read(lambda view, table: next_epoch(view, table, after))

    def truncate_log(self, before: int) -> None:
        """Raise the log's truncation mark to `before`; LogHeld names the holder that needs an older part of the log."""
        truncate_log(self._handle, self._table, before)

    def history(self, limit: int | None = None) -> pa.Table:
        """Return one row for each remembered commit, newest first.

        engine: that has refreshed the output of a job: `local` (DuckDB, or the job's own function, here), `spark`,
        or `part` (the function of a part under a coordinator); else null.
        """
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise InvalidInput(f"limit must be a number of commits >= 0, not {limit!r}")
        commits = self._read(lambda view, table: read_commits(view, table, limit))
        rows = [
            {
                "epoch": commit.epoch,
                "timestamp": commit.at_ms,
                "txn": {"application": commit.txn[0], "id": commit.txn[1]} if commit.txn else None,
                "job": commit.job,
                "operation": commit.kind,
                "engine": commit.engine,
                "rows_upserted": commit.rows_upserted,
                "rows_deleted": commit.rows_deleted,
                "segments": commit.segments,
                "bytes": commit.bytes,
            }
            for commit in commits
        ]
        return pa.Table.from_pylist(rows, schema=HISTORY_SCHEMA)

    def _snapshot_at(self, epoch: int | None) -> TableSnapshot:
        if epoch is None:
            self._newest = newest = plan_default_read(self._handle, self._current, self._newest)
            return TableSnapshot(self._handle, newest.plan)
        at_epoch = as_epoch("epoch", epoch)

        def body(view: ReadTxn) -> ScanPlan:
            table = self._current(view)
            self._require_readable(view, table, at_epoch)
            return plan_scan(view, table, at_epoch)

        return TableSnapshot(self._handle, self._handle.catalog.read(body))

    def _require_readable(self, view: ReadTxn, table: TableDef, epoch: int) -> None:
        """Raise EpochNotCommitted if the table is not complete through the epoch, or begins after it."""
        epochs = read_epoch_view(view, self._handle.memory, self._handle.catalog.now_ms(), above=[table.id])
        require_complete(table.name, epoch, epochs.complete_through(table.id))
        require_begun(epochs.table(table.id), epoch)

    def _read(self, body: Callable[[ReadTxn, TableDef], Any]) -> Any:
        return self._handle.catalog.read(lambda view: body(view, self._current(view)))

    def _current(self, view: ReadTxn) -> TableDef:
        self._table = get_table(view, self._table.id, self._table.name)  # another process may have altered it
        return self._table


class TableWriter(OneProcess):
    """Writer of one root table's segments, which are durable when sealed and visible after `store.commit`."""

    def __init__(self, handle: Handle, table: TableDef) -> None:
        self._handle = handle
        self._writer, _ = open_writer(handle, table, sealed=True)
        self._last_label = 0

    def upsert(self, data: object) -> None:
        self._writer.upsert(data)

    def update(self, data: object, *, ignore_nulls: bool = False) -> None:
        self._writer.update(data, ignore_nulls=ignore_nulls)

    def delete(self, keys: object) -> None:
        self._writer.delete(keys)

    def seal(self, epoch: int) -> list[Segment]:
        """Write the collected rows as segments labelled with a log epoch; the labels of one writer must rise."""
        if self._handle.leases.closing and not self._writer.empty:  # no lease would keep the sealed segment
            raise StoreClosed("this store was closed; open it again with epochlog.open")
        epoch = as_epoch("the label of a seal", epoch)
        if epoch <= self._last_label:
            raise InvalidInput(
                f"the label of a seal must be an epoch above the last ({show_epoch(self._last_label)}), not {epoch!r}"
            )
        segments = self._writer.finish(epoch)
        self._last_label = epoch
        return segments

    def abort(self) -> None:
        """Discard the rows that were not sealed."""
        self._writer.discard()


def table_info(handle: Handle, view: ReadTxn, table: TableDef) -> TableInfo:
    """Read a table's settings and state from one view of the catalog."""
    version = get_version(view, table.id, table.name)
    job = get_job(view, table.job_id, "?") if table.job_id is not None else None
    plan = plan_scan(view, table, None)

    def count() -> int:
        with stale_reads_translated(handle):
            return plan.count(handle.files)

    return TableInfo(
        name=table.name,
        schema=table.schema.schema,
        primary_key=list(table.schema.primary_key),
        state=table_state(version, job),
        job=job.name if job else None,
        max_committed_epoch=version.max_committed_epoch,
        safe_epoch=version.safe_epoch,
        log_start_epoch=version.log_start,
        bytes=table_bytes(version),
        log_segments=version.log_segments,
        runs=version.runs,
        changelog=table.changelog,
        options=table.options,
        drop_unchanged=table.drop_unchanged,
        sequence_by=table.schema.sequence_by,
        checks=dict(table.checks),
        defaults={
            name: value[0].as_py()
            for name in table.schema.schema.names
            if (value := table.schema.default(name)) is not None
        },
        _count=count,
    )
