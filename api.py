"""Public entry points: `open` and `Store`, a thin composition of the packages below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochlog.batch.named_snapshots import HeldSnapshot, held_snapshots, release_snapshot
from epochlog.batch.policy import Policy
from epochlog.batch.policy_registry import resolve_policy
from epochlog.batch.snapshot import take_snapshot
from epochlog.checkpoint.job.adopt import adopt_table, drop_job_alone
from epochlog.checkpoint.job.job_ddl import JobInfo, Output, create_job, drop_job, list_jobs
from epochlog.checkpoint.job.view_ddl import require_view
from epochlog.store.backup.incremental import export_catalog
from epochlog.store.catalog.export_format import Header
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.consumer_info import ConsumerInfo, list_consumers
from epochlog.store.changelog.consumers import drop_consumer, reset_consumer
from epochlog.store.check.verify import VerifyReport, verify_store
from epochlog.store.commit.boundaries import force_boundary
from epochlog.store.commit.edits import TableEdit
from epochlog.store.commit.idempotency import TxnPair, resolve
from epochlog.store.commit.lag_marks import alter_store
from epochlog.store.commit.loads import drop_load
from epochlog.store.commit.root_commit import commit_root
from epochlog.store.commit.table_ddl import create_table, drop_table
from epochlog.store.compaction.request import compact_tables
from epochlog.store.env.clock import Clock
from epochlog.store.env.closeable import Closeable
from epochlog.store.env.process_local import OneProcess, warn_unclosed
from epochlog.store.maintenance.scheduler import Maintenance
from epochlog.store.maintenance.vacuum import GRACE, VacuumReport, vacuum
from epochlog.store.metadata.definitions import Counters, TableDef, TableOptions
from epochlog.store.metadata.lookups import all_tables, find_job, find_table, get_store
from epochlog.store.session.handle import Handle, open_handle
from epochlog.store.sst.segment import Segment
from epochlog.store.types.schema import TableSchema

from .errors import InvalidInput
from .job import Job
from .snapshot import Snapshot
from .table import Table, TableInfo, TableWriter, table_info
from .transaction import Transaction
from .view import View

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from epochlog.views.definition import SchemaPlanner

__all__ = ["JobInfo", "Store", "Table", "TableInfo", "TableOptions", "TableWriter", "Transaction", "open"]


def open(
    root: str | Path,
    catalog: str | None = None,
    *,
    create: bool = True,
    checkpoint_interval_ms: int | None = None,
    global_max_lag: float | timedelta | None = None,
    durability: str = "disk",
    maintenance: bool = False,
    volatile: bool = False,
    clock: Clock | None = None,
) -> Store:
    """Open the store at `root` (a local folder, or a URI like s3://…), or create one in an empty root.

    catalog: None keeps the catalog in the local root, for the processes of one host; "redis://…" or "rediss://…" keeps
    it on that server, for any number of hosts. A store never changes its kind of catalog.
    checkpoint_interval_ms: distance of the boundaries at which jobs commit; fixed when the store is created, 1000 by
    default. InvalidInput when an existing store has another one.
    global_max_lag: largest lag of a view that takes part in `global`, seconds or a timedelta, at least two checkpoint
    intervals; 10 minutes by default. InvalidInput when an existing store has another one; `Store.alter` changes it.
    durability: "disk" syncs every commit; "os" leaves that to the operating system (survives kill -9, not power loss).
    maintenance: True runs retention, compaction, vacuum and backups of the catalog in a thread of this process, until
    the store is closed. Without it call `store.compact()` and `store.vacuum()`.
    volatile: True accepts a Redis server that may forget acknowledged commits (no append-only file that is always
    synced).
    clock: returns Unix milliseconds; drives epochs, boundaries, retention, leases and lag.
    Raises StoreNotFound, ForeignRoot, CatalogLost, UnsupportedFormat, InvalidInput.
    """
    if not isinstance(maintenance, bool):
        raise InvalidInput(f"maintenance must be True or False, not {maintenance!r}")
    handle = open_handle(
        root,
        catalog,
        create=create,
        checkpoint_interval_ms=checkpoint_interval_ms,
        global_max_lag=global_max_lag,
        durability=durability,
        volatile=volatile,
        clock=clock,
    )
    worker = Maintenance(handle) if maintenance else None
    if worker is not None:
        worker.start()
    return Store(handle, worker)


class Store(OneProcess, Closeable):
    """Open store. Safe to use from several threads; close it, or use it in a `with` block."""

    def __init__(self, handle: Handle, maintenance: Maintenance | None = None) -> None:
        self._handle = handle
        self._maintenance = maintenance

    @property
    def root(self) -> str:
        return self._handle.root

    @property
    def checkpoint_interval_ms(self) -> int:
        return self._handle.interval_ms

    @property
    def global_max_lag(self) -> timedelta:
        """Return the largest lag of a view that takes part in `global`."""
        return timedelta(milliseconds=self._handle.catalog.read(get_store).max_lag_ms)

    def alter(self, *, global_max_lag: float | timedelta) -> None:
        """Change the store's `global_max_lag`; it applies to the next choice of every process. Raises InvalidInput."""
        alter_store(self._handle, global_max_lag)

    @property
    def last_epoch(self) -> int:
        """Return the newest epoch issued or sealed, over all tables."""
        return self._handle.catalog.read(lambda view: Counters.read(view).last_epoch)

    def __del__(self) -> None:
        if not self._handle.leases.closing:
            warn_unclosed(self)

    def __repr__(self) -> str:
        return f"<epochlog.Store {self._handle.files.place}>"

    def close(self) -> None:
        """End maintenance, the leases of this handle and its catalog; a second call does nothing."""
        if self._maintenance is not None:
            self._maintenance.close()
        self._handle.close()

    # ---- tables --------------------------------------------------------------------------------------------------

    def create_table(
        self,
        name: str,
        schema: pa.Schema,
        primary_key: Sequence[str],
        *,
        changelog: str | None = None,
        options: TableOptions | None = None,
        exist_ok: bool = False,
    ) -> Table:
        """Create a root table. Raises InvalidName, InvalidSchema, TableExists.

        exist_ok: return an existing root table of that name; TableExists names its differences from columns, key, and
        (if passed) changelog and options. changelog: "full" stores the replaced rows with every commit, which looks up
        its keys, so that `changes(pre_images=True)` works while the log is kept; "upsert" (and None) stores none.
        """
        checked = TableSchema(name, schema, primary_key)  # pyright: ignore[reportArgumentType]: it checks, and makes a tuple
        return Table(self._handle, create_table(self._handle, checked, changelog, options, exist_ok=exist_ok))

    def table(self, name: str) -> Table:
        """Return the table of that name, or raise TableNotFound."""
        return Table(self._handle, self._handle.catalog.read(lambda view: find_table(view, name)))

    def tables(self) -> list[TableInfo]:
        """Return all tables, by name."""

        def body(view: ReadTxn) -> list[TableInfo]:
            return [table_info(self._handle, view, table) for table in all_tables(view)]

        return sorted(self._handle.catalog.read(body), key=lambda info: info.name)

    def drop_table(self, name: str) -> None:
        """Delete a table with its log and history; TableInUse while a job reads or owns it."""
        drop_table(self._handle, name)

    # ---- commits -------------------------------------------------------------------------------------------------

    def transaction(self, txn: TxnPair | None = None, *, epoch: int | None = None) -> Transaction:
        """Begin a transaction on root tables, all or nothing: `with store.transaction() as tx: tx.upsert(...)`."""
        return Transaction(self._handle, txn, epoch)

    def commit(
        self, segments: Mapping[str, Sequence[Segment]], *, epoch: int | None = None, txn: TxnPair | None = None
    ) -> int:
        """Make sealed segments of root tables visible, as one log entry per table; return the epoch."""
        if not isinstance(segments, Mapping) or not segments:
            raise InvalidInput("commit takes a dict {table: segments} with at least one table")

        def find(view: ReadTxn) -> list[TableDef]:
            return [find_table(view, name) for name in segments]

        tables = self._handle.catalog.read(find)
        for name, sealed in segments.items():
            if not isinstance(sealed, Sequence):
                raise InvalidInput(
                    f"table {name!r}: a commit takes a list of segments returned by seal(), not {sealed!r}"
                )
        edits = [TableEdit(table.id, table.name, tuple(segments[table.name])) for table in tables]
        return commit_root(self._handle, edits, epoch=epoch, txn=txn)

    def resolve(self, txn: TxnPair) -> int | None:
        """Decide the outcome of a transaction: return its epoch, or None; after None, that commit can no
        longer land.
        """
        return resolve(self._handle, txn)

    def checkpoint(self) -> int:
        """Force and seal a boundary now, so that jobs can take in all committed changes; return its epoch."""
        return force_boundary(self._handle)

    # ---- reading and upkeep --------------------------------------------------------------------------------------

    def snapshot(
        self, tables: Sequence[str] | None = None, *, consistency: str | type | Policy = "global", **policy_options: Any
    ) -> Snapshot:
        """Take a snapshot of several tables at epochs that a policy chooses now, pinned until the snapshot is closed.

        consistency: "global", "aligned", "latest", "as_of", "at_least", "bounded", "exact" (options as keyword
        arguments), or a policy object. Raises NoConsistentEpoch, StalenessExceeded, TableNotReadable, EpochExpired,
        EpochNotCommitted.
        """
        return take_snapshot(self._handle, resolve_policy(consistency, **policy_options), tables, Snapshot)

    def held_snapshots(self) -> list[HeldSnapshot]:
        """Return the named snapshots that `snapshot.hold(…)` keeps readable now, by name."""
        return held_snapshots(self._handle)

    def release_snapshot(self, name: str) -> None:
        """Release a named snapshot before its end, or raise SnapshotNotFound. Open snapshots stay readable."""
        release_snapshot(self._handle, name)

    def compact(self, table: str | None = None, full: bool = False, *, spark: SparkSession | None = None) -> None:
        """Compact the L0 log of one table (None: of all) into sorted runs.

        Without `full`, only tables with enough segments are compacted. A table that another process compacts is left to
        it. A compaction whose process died is continued, on another machine after two minutes.
        spark: a classic SparkSession whose tasks rewrite the key ranges of large tables; the rows and epochs are those
        of a compaction without it. This process plans and commits, so tasks need only the files. A task that fails is
        repeated by Spark; vacuum deletes the files of its lost attempts.
        Raises TableNotFound, TableDropped, Corrupt, WriteFailed, and with `spark` InvalidInput and SparkLost.
        """
        if spark is None:
            compact_tables(self._handle, table, full=full)
            return
        from epochlog.spark.compaction import compact_by_tasks

        compact_by_tasks(self._handle, table, spark, full=full)

    def vacuum(self, dry_run: bool = False, *, grace: float | timedelta = GRACE) -> VacuumReport:
        """Delete the files unreachable for `grace` (seconds or a timedelta); report the remaining files with their
        reasons.

        Safe beside commits, readers and other vacuums: files that are being written, or that a snapshot, a job or
        another lease holds, stay. A read without a hold that takes longer than `grace` may raise SnapshotExpired.
        dry_run: only report, write nothing.
        """
        return vacuum(self._handle, dry_run=dry_run, grace=grace)

    def verify(self) -> VerifyReport:
        """Check every record, file, checksum and order of the store; return damage as `.problems` (`.ok` is True
        without).
        """
        return verify_store(self._handle)

    def export_catalog(self, uri: str | Path) -> Header:
        """Write the whole catalog, as of one version, to a new file (a path or URI); return the header of the file.

        `epochlog.restore_catalog(root, uri)` restores the catalog from it. It does not contain the data files.
        """
        return export_catalog(self._handle, uri)

    # ---- jobs ----------------------------------------------------------------------------------------------------

    def create_job(
        self,
        name: str,
        upstreams: Sequence[str],
        outputs: Mapping[str, Output | tuple[pa.Schema, Sequence[str]]],
        *,
        backfill: str = "snapshot",
        interval: int | timedelta | None = None,
        max_lag: float | timedelta | None = None,
        snapshot_rows: int | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        exist_ok: bool = False,
    ) -> Job:
        """Create a job with its output tables {name: Output(schema, primary key)}, or pairs of both.

        backfill: "snapshot" starts from the upstreams' rows, "log" from the first entry of their logs. interval:
        distance of two commits: a number of store boundaries (None: 1) or a timedelta, which must be a whole number of
        them. max_lag: a job further behind may merge boundaries: a number of its own boundaries (None: 30) or a
        timedelta, rounded down to whole ones. `job.info` shows both as boundaries and as time. snapshot_rows: take in
        the upstreams' rows in chunks of at most this many rows, one chunk a step; None: in one step. columns:
        {upstream: columns} that the job reads beside the key; it reads all columns of the others. It keeps these
        columns, their names and their types at every epoch, and prevents an alter that drops or widens one of them
        (SchemaInUse). exist_ok: return an existing job of that name; JobExists names its differences (interval and
        max_lag only if passed).
        """
        record = create_job(
            self._handle,
            name,
            upstreams,
            outputs,
            backfill=backfill,
            interval=interval,
            max_lag=max_lag,
            snapshot_rows=snapshot_rows,
            columns=columns,
            exist_ok=exist_ok,
        )
        return Job(self._handle, record.id, record.name)

    def job(self, name: str) -> Job:
        """Return the job of that name, or raise JobNotFound. Its first step claims the job, unless another runner is
        alive.
        """
        record = self._handle.catalog.read(lambda view: find_job(view, name))
        return Job(self._handle, record.id, record.name)

    def jobs(self) -> list[JobInfo]:
        """Return all jobs, by name."""
        return list_jobs(self._handle)

    def drop_job(self, name: str, *, keep_outputs: bool = False) -> None:
        """Delete a job and its output tables; TableInUse while another job reads one of them.

        keep_outputs: keep the tables as root tables (see `adopt`); jobs that read them continue.
        """
        (drop_job_alone if keep_outputs else drop_job)(self._handle, name)

    def adopt(self, name: str) -> Table:
        """Make an output of a finished job a root table, which every process may write, for the end of a migration.

        Jobs that read it continue; a finished one does not take in later writes, and stays as it is (its own output can
        be adopted, too). Policies choose no epoch below the job's last commit for the table or its descendants; it can
        still be read there by itself. A root table is returned unchanged. Raises TableNotFound, and TableInUse while
        the job may still write the table (`job.stop(drain=True)` ends that).
        """
        return Table(self._handle, adopt_table(self._handle, name))

    # ---- views ---------------------------------------------------------------------------------------------------

    def create_view(
        self,
        name: str,
        sql: str,
        primary_key: Sequence[str],
        *,
        refresh: str = "auto",
        spark: SparkSession | None = None,
        interval: int | timedelta | None = None,
        max_lag: float | timedelta | None = None,
        changelog: str | None = None,
        options: TableOptions | None = None,
        exist_ok: bool = False,
    ) -> View:
        """Create a view: a table that is kept equal to a query over tables of this store, by a derived refresh.

        sql: one SELECT in Spark's dialect, on DuckDB and on Spark. Its columns and their types are those of the table;
        primary_key names those that identify a row. refresh: "incremental" recomputes the groups of rows that the
        changes touch, and is refused for a query without such groups; "full" recomputes all rows; "auto" chooses.
        Either way a commit has only the rows that differ. spark: the session that plans the query; None: DuckDB.
        interval, max_lag: as in `create_job`. changelog, options: of the view's table. exist_ok: return an existing
        view of that name; JobExists names its differences.

        Raises InvalidInput for a query that cannot be kept, with the clause or function that is the reason,
        TableNotFound, JobExists, OutputOwned, InvalidSchema, DependencyMissing without sqlglot or DuckDB
        (`pip install epochlog[sql]`).
        """
        from epochlog.views.definition import create_view

        record = create_view(
            self._handle,
            name,
            sql,
            primary_key,
            refresh=refresh,
            schema_of=_schema_planner(spark),
            interval=interval,
            max_lag=max_lag,
            changelog=changelog,
            options=options,
            exist_ok=exist_ok,
        )
        return View(self._handle, record.id, record.name)

    def view(self, name: str) -> View:
        """Return the view of that name. Raises JobNotFound, and InvalidInput for a job that is no view."""
        record = self._handle.catalog.read(lambda view: find_job(view, name))
        require_view(record)
        return View(self._handle, record.id, record.name)

    def replace_views(self, queries: Mapping[str, str], *, spark: SparkSession | None = None) -> int:
        """Give views new queries {view: query}, all together; return the epoch at which the views change.

        Each view is rebuilt at that epoch by its next step, in whatever process runs it, and commits the rows that
        differ; its old rows stay readable until then. A read at one epoch sees all views by the old queries, or all by
        the new ones. The columns, their types and the primary keys stay.

        Raises JobNotFound, InvalidInput, SchemaMismatch, TableNotFound, TableFinished, JobCycle; then no view changes.
        """
        from epochlog.views.definition import change_views

        return change_views(self._handle, queries, schema_of=_schema_planner(spark))

    def drop_view(self, name: str) -> None:
        """Delete a view with its table. Raises JobNotFound, InvalidInput for a job that is no view, TableInUse."""
        self.view(name)
        drop_job(self._handle, name)

    # ---- consumers ----------------------------------------------------------------------------------------------

    def consumers(self) -> list[ConsumerInfo]:
        """Return all consumers, by name, each with its position, its lag and the state of its hold on the log.

        `UpstreamLog(…, consumer=name)`, a subscription or Spark's option consumerId creates one.
        """
        return list_consumers(self._handle)

    def reset_consumer(self, name: str, to: str | int) -> None:
        """Move a consumer and fence the process that has it open.

        to: "snapshot" (start again with the tables' rows), "earliest" (the beginning of the logs), "latest" (only new
        commits), or an epoch. Raises ConsumerNotFound, TableDropped, InvalidInput, and LogTruncated for an epoch that
        the logs do not reach.
        """
        reset_consumer(self._handle, name, to)

    def drop_consumer(self, name: str) -> None:
        """Delete a consumer and release its hold on the log; raise ConsumerNotFound if there is none. An open one
        raises that too from then on.
        """
        drop_consumer(self._handle, name)

    # ---- loads --------------------------------------------------------------------------------------------------

    def drop_load(self, name: str) -> None:
        """Delete a load and the states of its parts, or raise LoadNotFound. Its committed rows stay."""
        drop_load(self._handle, name)


def _schema_planner(spark: SparkSession | None) -> SchemaPlanner:
    """Return the planner of views' schemas: DuckDB, or Spark with a session."""
    if spark is None:
        from epochlog.views.local_engine import output_schema

        return output_schema
    from epochlog.spark.view_engine import output_schema

    return partial(output_schema, spark)
