"""The face that users see: Store, Table, TableWriter and Job, a thin composition of the packages below."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from .batch.policy import Policy
from .batch.registry import resolve_policy
from .batch.snapshot import Snapshot, take_snapshot
from .checkpoint.graph import JobInfo, create_job, drop_job, list_jobs
from .checkpoint.job import JobRunner, LocalRefresh
from .errors import InvalidInput
from .store.catalog import View
from .store.clock import Clock
from .store.commit import TableEdit, TxnPair, check_pair, commit_root, force_boundary, refuse_unwritable, resolve
from .store.compaction import compact_table
from .store.definitions import (
    Counters,
    TableDef,
    TableOptions,
    all_tables,
    find_job,
    find_table,
    get_job,
    get_table,
    get_version,
)
from .store.handle import Handle, open_handle
from .store.history import read_commits, read_epoch_view, table_state
from .store.log import next_epoch, plan_changes
from .store.scan import ScanPlan, plan_scan, require_complete
from .store.schema import TableSchema
from .store.segment import Segment
from .store.tables import create_table, drop_table, table_bytes, truncate_log
from .store.verify import VerifyReport, verify_store
from .store.version import TableVersion
from .store.writer import SegmentWriter, WriteTarget

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Job", "JobInfo", "Store", "Table", "TableInfo", "TableOptions", "TableWriter", "Transaction", "open"]

HISTORY_SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("txn", pa.struct([("application", pa.string()), ("id", pa.int64())])),
        ("job", pa.string()),
        ("operation", pa.string()),
        ("rows_upserted", pa.int64()),
        ("rows_deleted", pa.int64()),
        ("segments", pa.int64()),
        ("bytes", pa.int64()),
    ]
)


def open(
    root: str | Path,
    catalog: str | None = None,
    *,
    create: bool = True,
    checkpoint_interval_ms: int = 1000,
    durability: str = "disk",
    clock: Clock | None = None,
) -> Store:
    """Open the store at `root` (a local folder), or make one where there is nothing yet.

    checkpoint_interval_ms: distance of the boundaries at which jobs commit; fixed when the store is made.
    durability: "disk" syncs every commit; "os" leaves that to the operating system (survives kill -9, not power loss).
    clock: returns Unix milliseconds; drives epochs, boundaries, retention, leases and lag.
    Raises StoreNotFound, ForeignRoot, CatalogLost, UnsupportedFormat, InvalidInput.
    """
    return Store(
        open_handle(
            root,
            catalog,
            create=create,
            checkpoint_interval_ms=checkpoint_interval_ms,
            durability=durability,
            clock=clock,
        )
    )


@dataclass(frozen=True)
class TableInfo:
    """A table as of now. `rows` is exact and counted when first asked for, from the keys alone.

    The rest costs nothing.
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
    _count: Callable[[], int] = field(repr=False, compare=False)

    @cached_property
    def rows(self) -> int:
        return self._count()


class Store:
    """An open store. Safe to use from several threads; close it, or use it in a `with` block."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    @property
    def root(self) -> str:
        return self._handle.root

    @property
    def checkpoint_interval_ms(self) -> int:
        return self._handle.interval_ms

    @property
    def last_epoch(self) -> int:
        """The newest epoch issued or sealed, over all tables."""
        return self._handle.catalog.read(lambda view: Counters.read(view).last_epoch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<epochlog.Store {self.root}>"

    def close(self) -> None:
        """End the leases of this handle and close its catalog; a second call does nothing."""
        self._handle.close()

    # ---- tables --------------------------------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        schema: pa.Schema,
        primary_key: Sequence[str],
        *,
        changelog: str = "upsert",
        options: TableOptions | None = None,
    ) -> Table:
        """Make a root table. Raises InvalidName, InvalidSchema, TableExists."""
        checked = TableSchema(name, schema, tuple(primary_key) if isinstance(primary_key, list) else primary_key)
        return Table(self._handle, create_table(self._handle, checked, changelog, options or TableOptions()))

    def table(self, name: str) -> Table:
        """The table of that name, or TableNotFound."""
        return Table(self._handle, self._handle.catalog.read(lambda view: find_table(view, name)))

    def tables(self) -> list[TableInfo]:
        """All tables, by name."""

        def body(view: View) -> list[TableInfo]:
            return [_table_info(self._handle, view, table) for table in all_tables(view)]

        return sorted(self._handle.catalog.read(body), key=lambda info: info.name)

    def drop_table(self, name: str) -> None:
        """Remove a table with its log and history; TableInUse while a job reads or owns it."""
        drop_table(self._handle, name)

    # ---- commits -------------------------------------------------------------------------------------------------

    def transaction(self, txn: TxnPair | None = None, *, epoch: int | None = None) -> Transaction:
        """Several root tables, one epoch, all or nothing: `with store.transaction() as tx: tx.upsert(...)`."""
        return Transaction(self._handle, txn, epoch)

    def commit(
        self, segments: Mapping[str, Sequence[Segment]], *, epoch: int | None = None, txn: TxnPair | None = None
    ) -> int:
        """Make sealed segments of root tables visible, as one log entry a table; returns the epoch."""
        if not isinstance(segments, Mapping) or not segments:
            raise InvalidInput("commit takes a dict {table: segments} with at least one table")

        def find(view: View) -> list[TableDef]:
            return [find_table(view, name) for name in segments]

        tables = self._handle.catalog.read(find)
        edits = [TableEdit(table.id, table.name, tuple(segments[table.name])) for table in tables]
        return commit_root(self._handle, edits, epoch=epoch, txn=txn)

    def resolve(self, txn: TxnPair) -> int | None:
        """Decide the fate of a transaction: its epoch; or None, and then that commit can land no more."""
        return resolve(self._handle, txn)

    def checkpoint(self) -> int:
        """Force and seal a boundary now, so that jobs can take in all that is committed; returns its epoch."""
        return force_boundary(self._handle)

    # ---- reading and upkeep --------------------------------------------------------------------------------------

    def snapshot(
        self, tables: Sequence[str] | None = None, *, consistency: str | type | Policy = "global", **policy_options: Any
    ) -> Snapshot:
        """Several tables as of epochs that a policy chooses now, pinned until the snapshot is closed.

        consistency: "global", "aligned", "latest", "as_of", "at_least", "bounded", "exact" (options as keyword
        arguments), or a policy object. Raises NoConsistentEpoch, StalenessExceeded, TableNotReadable, EpochExpired,
        EpochNotCommitted.
        """
        return take_snapshot(self._handle, resolve_policy(consistency, **policy_options), tables)

    def compact(self, table: str | None = None, full: bool = False) -> None:
        """Fold the L0 of one table (None: of all) into its sorted run.

        Without `full` only where enough has gathered.
        """

        def due(view: View) -> list[TableDef]:
            return list(all_tables(view)) if table is None else [find_table(view, table)]

        for found in self._handle.catalog.read(due):
            compact_table(self._handle, found, full=full or table is not None)

    def verify(self) -> VerifyReport:
        """Check every record, file, checksum and order of the store; `.ok`, `.problems`. Never raises for damage."""
        return verify_store(self._handle)

    # ---- jobs ----------------------------------------------------------------------------------------------------

    def create_job(
        self,
        name: str,
        upstreams: Sequence[str],
        outputs: Mapping[str, tuple[pa.Schema, Sequence[str]]],
        *,
        backfill: str = "snapshot",
        interval: int = 1,
        max_lag: Any = None,
    ) -> Job:
        """Make a job with its output tables {name: (schema, primary key)}.

        backfill: "snapshot" starts from the upstreams' rows, "log" from the first entry of their logs. interval: in
        store boundaries. max_lag: in the job's own boundaries (or a timedelta); a job further behind may merge
        boundaries.
        """
        record = create_job(
            self._handle, name, upstreams, outputs, backfill=backfill, interval=interval, max_lag=max_lag
        )
        return Job(self._handle, record.id, record.name)

    def job(self, name: str) -> Job:
        """The job of that name, or JobNotFound. Its first step takes the job over from any other runner."""
        record = self._handle.catalog.read(lambda view: find_job(view, name))
        return Job(self._handle, record.id, record.name)

    def jobs(self) -> list[JobInfo]:
        """All jobs, by name."""
        return list_jobs(self._handle)

    def drop_job(self, name: str) -> None:
        """Remove a job and its output tables; TableInUse while another job reads one of them."""
        drop_job(self._handle, name)


class Transaction:
    """Upserts and deletes of several root tables that land together at one epoch when the `with` block ends well."""

    def __init__(self, handle: Handle, txn: TxnPair | None, epoch: int | None) -> None:
        check_pair(txn)
        self._handle = handle
        self._txn = txn
        self._at = epoch
        self._writers: dict[str, tuple[TableDef, SegmentWriter]] = {}
        self._epoch: int | None = None

    @property
    def epoch(self) -> int:
        """The commit's epoch; known when the block has ended."""
        if self._epoch is None:
            raise InvalidInput("the transaction has not committed; its epoch is known when the `with` block has ended")
        return self._epoch

    def upsert(self, table: str, data: object) -> None:
        self._writer(table).upsert(data)

    def delete(self, table: str, keys: object) -> None:
        self._writer(table).delete(keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            return
        edits = [TableEdit(table.id, table.name, tuple(writer.finish())) for table, writer in self._writers.values()]
        self._epoch = commit_root(self._handle, edits, epoch=self._at, txn=self._txn)

    def _writer(self, name: str) -> SegmentWriter:
        if name not in self._writers:
            table = self._handle.catalog.read(lambda view: find_table(view, name))
            self._writers[name] = (table, _segment_writer(self._handle, table))
        return self._writers[name][1]


class Table:
    """A table, by its id: when it is dropped and made anew under the same name, this handle raises TableDropped."""

    def __init__(self, handle: Handle, table: TableDef) -> None:
        self._handle = handle
        self._table = table

    @property
    def name(self) -> str:
        return self._table.name

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema.schema

    @property
    def primary_key(self) -> list[str]:
        return list(self._table.schema.primary_key)

    @property
    def info(self) -> TableInfo:
        return self._handle.catalog.read(lambda view: _table_info(self._handle, view, self._current(view)))

    def __repr__(self) -> str:
        return f"<epochlog.Table {self.name} of {self._handle.root}>"

    # ---- writing -------------------------------------------------------------------------------------------------

    def upsert(self, data: object, *, txn: TxnPair | None = None, epoch: int | None = None) -> int:
        """Insert rows or replace those with the same key, in one commit; returns its epoch.

        data: anything Arrow-shaped with all columns. Raises SchemaMismatch naming the column, NotWritable,
        TableFinished.
        """
        check_pair(txn)
        writer = _segment_writer(self._handle, self._table)
        writer.upsert(data)
        return self._commit(writer, "upsert", txn, epoch)

    def delete(self, keys: object, *, txn: TxnPair | None = None, epoch: int | None = None) -> int:
        """Delete rows by primary key (exactly its columns; unknown keys are fine), in one commit; returns its epoch."""
        check_pair(txn)
        writer = _segment_writer(self._handle, self._table)
        writer.delete(keys)
        return self._commit(writer, "delete", txn, epoch)

    def writer(self) -> TableWriter:
        """A writer that seals segments for `store.commit`; any number may be open on a root table."""
        return TableWriter(self._handle, self._table)

    def finish(self) -> int:
        """End the table's data, at an epoch of its own; later writes raise TableFinished."""
        edit = TableEdit(self._table.id, self._table.name, (), operation="finish", end=True)
        return commit_root(self._handle, [edit])

    def _commit(self, writer: SegmentWriter, operation: str, txn: TxnPair | None, epoch: int | None) -> int:
        edit = TableEdit(self._table.id, self._table.name, tuple(writer.finish()), operation=operation)
        return commit_root(self._handle, [edit], epoch=epoch, txn=txn)

    # ---- reading -------------------------------------------------------------------------------------------------

    def to_arrow(
        self, *, epoch: int | None = None, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> pa.Table:
        """All rows at an epoch (None: the newest commit), in key order. Raises EpochExpired, EpochNotCommitted."""
        return self._plan(epoch).read(self._handle.files, columns, filter)

    def scan(
        self, *, epoch: int | None = None, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> pa.RecordBatchReader:
        """The same in record batches, a bounded number of rows at a time."""
        plan = self._plan(epoch)
        return pa.RecordBatchReader.from_batches(
            plan.schema(columns), plan.batches(self._handle.files, columns, filter)
        )

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        return self.to_arrow(**options).to_pandas()

    def to_polars(self, **options: Any) -> pl.DataFrame:
        import polars as pl

        frame = pl.from_arrow(self.to_arrow(**options))
        assert isinstance(frame, pl.DataFrame)
        return frame

    def count(self, epoch: int | None = None) -> int:
        return self._plan(epoch).count(self._handle.files)

    def get(self, keys: object, *, epoch: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """One row for each key found, in the order asked; `keys` has exactly the primary-key columns."""
        return self._plan(epoch).lookup(self._handle.files, keys, columns)

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
        """What changed in (after, until] (None: up to the newest commit).

        mode "epochs": each epoch's net changes in key order; "net": one change a key over the range. Columns: the
        table's, then `_change_type`, `_commit_version` (epoch), `_commit_timestamp`. Without pre_images the types are
        upsert and delete; with them insert, update_preimage, update_postimage and delete. `filter` may name key
        columns only. Raises LogTruncated, EpochExpired (pre-images of a forgotten past), InvalidInput.
        """
        plan = self._read(lambda view, table: plan_changes(view, table, after, until))
        batches = plan.batches(self._handle.files, mode, pre_images=pre_images, columns=columns, filter=filter)
        return pa.RecordBatchReader.from_batches(plan.schema(columns), batches)

    def next_epoch(self, after: int) -> int | None:
        """The next log epoch past `after`, non-checkpoint ones too; None while there is none."""
        return self._read(lambda view, table: next_epoch(view, table, after))

    def truncate_log(self, before: int) -> None:
        """Raise the log's truncation mark to `before`; LogHeld while somebody still needs what lies below."""
        truncate_log(self._handle, self._table, before)

    def history(self, limit: int | None = None) -> pa.Table:
        """One row for each remembered commit, newest first."""
        commits = self._read(lambda view, table: read_commits(view, table, limit))
        rows = [
            {
                "epoch": commit.epoch,
                "timestamp": commit.at_ms,
                "txn": {"application": commit.txn[0], "id": commit.txn[1]} if commit.txn else None,
                "job": commit.job,
                "operation": commit.operation,
                "rows_upserted": commit.rows_upserted,
                "rows_deleted": commit.rows_deleted,
                "segments": commit.segments,
                "bytes": commit.bytes,
            }
            for commit in commits
        ]
        return pa.Table.from_pylist(rows, schema=HISTORY_SCHEMA)

    def _plan(self, epoch: int | None) -> ScanPlan:
        def body(view: View) -> ScanPlan:
            table = self._current(view)
            if epoch is not None:
                epochs = read_epoch_view(view, self._handle.memory, self._handle.catalog.now_ms())
                require_complete(table.name, epoch, epochs.complete_through(table.id))
            return plan_scan(view, table, epoch)

        return self._handle.catalog.read(body)

    def _read(self, body: Callable[[View, TableDef], Any]) -> Any:
        return self._handle.catalog.read(lambda view: body(view, self._current(view)))

    def _current(self, view: View) -> TableDef:
        return get_table(view, self._table.id, self._table.name)


class TableWriter:
    """Writes segments of one root table that are durable when sealed and visible when `store.commit` takes them."""

    def __init__(self, handle: Handle, table: TableDef) -> None:
        handle.catalog.read(lambda view: refuse_unwritable(view, table))
        self._writer = _segment_writer(handle, table)
        self._last_label = 0

    def upsert(self, data: object) -> None:
        self._writer.upsert(data)

    def delete(self, keys: object) -> None:
        self._writer.delete(keys)

    def seal(self, epoch: int) -> list[Segment]:
        """Write out what was collected, labelled with a log epoch; labels of one writer must rise."""
        if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch <= self._last_label:
            raise InvalidInput(
                f"the label of a seal is an epoch above the one before ({self._last_label}), not {epoch!r}"
            )
        segments = self._writer.finish(epoch)
        self._last_label = epoch
        return segments

    def abort(self) -> None:
        """Forget what was not sealed."""
        self._writer.discard()


class Job:
    """A job, and one runner of it: the first step or start takes the job over and fences every earlier runner."""

    def __init__(self, handle: Handle, job_id: int, name: str) -> None:
        self._handle = handle
        self._runner = JobRunner(handle, job_id, name)

    @property
    def name(self) -> str:
        return self._runner.name

    @property
    def info(self) -> JobInfo:
        """The job as of now."""
        self._runner.record()
        return next(info for info in list_jobs(self._handle) if info.name == self.name)

    def __repr__(self) -> str:
        return f"<epochlog.Job {self.name} of {self._handle.root}>"

    def step_local(self, refresh: LocalRefresh) -> int | None:
        """One barrier with pyarrow tables.

        The committed epoch, or None when there is nothing to do or the job is finished.

        refresh(ctx) reads ctx.changes/table/previous/output and writes ctx.upsert/delete; all of it is committed
        together when it returns, and nothing when it raises. Raises Fenced, JobParked, and what the refresh raises.
        """
        return self._runner.step_local(refresh)

    def step(self, spark: SparkSession, refresh: Callable[[Any], None]) -> int | None:
        """The same with Spark DataFrames, in the foreground."""
        from .checkpoint.spark_job import step

        return step(self._runner, spark, refresh)

    def start(
        self,
        spark: SparkSession,
        refresh: Callable[[Any], None],
        trigger: str = "continuous",
        poll: str = "100 milliseconds",
    ) -> StreamingQuery:
        """Run the job as a StreamingQuery that commits barrier after barrier; a second live start raises JobRunning.

        trigger: "continuous", or "available_now" to end when everything sealed so far is committed. poll: how often
        to look.
        """
        from .checkpoint.spark_job import start

        return start(self._runner, spark, refresh, trigger=trigger, poll=poll)


def _segment_writer(handle: Handle, table: TableDef) -> SegmentWriter:
    handle.catalog.read(lambda view: refuse_unwritable(view, table))
    return SegmentWriter(WriteTarget(handle.files, handle.table_folder(table.id), table.id, table.schema))


def _table_info(handle: Handle, view: View, table: TableDef) -> TableInfo:
    version: TableVersion = get_version(view, table.id, table.name)
    job = get_job(view, table.job_id, "?") if table.job_id is not None else None
    plan = plan_scan(view, table, None)
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
        runs=len(version.runs),
        _count=lambda: plan.count(handle.files),
    )
