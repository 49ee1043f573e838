"""The face that users see: open, Store and Job, a thin composition of the packages below."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from .batch.held import HeldSnapshot, held_snapshots, release_snapshot
from .batch.policy import Policy
from .batch.registry import resolve_policy
from .batch.snapshot import Snapshot, take_snapshot
from .checkpoint.adopting import adopt_table, drop_job_alone
from .checkpoint.drain import drain as drain_job
from .checkpoint.graph import JobInfo, Output, alter_job, cancel_job, create_job, drop_job, list_jobs
from .checkpoint.job import JobRunner, LocalRefresh
from .checkpoint.live import live
from .errors import InvalidInput
from .store.catalog import View
from .store.clock import Clock
from .store.commit import commit_root
from .store.consumers import ConsumerInfo, drop_consumer, list_consumers, reset_consumer
from .store.definitions import Counters, TableDef, TableOptions, all_tables, find_job, find_table, get_store
from .store.dump import Header
from .store.edits import TableEdit
from .store.handle import Handle, open_handle
from .store.loads import drop_load
from .store.maintenance import Maintenance
from .store.one_process import OneProcess, warn_unclosed
from .store.outcomes import TxnPair, resolve
from .store.outside import alter_store
from .store.schema import TableSchema
from .store.sealing import force_boundary
from .store.segment import Segment
from .store.shipping import export_catalog
from .store.tables import create_table, drop_table
from .store.upkeep import compact_tables
from .store.vacuum import GRACE, VacuumReport, vacuum
from .store.verify import VerifyReport, verify_store
from .table import Table, TableInfo, TableWriter, table_info
from .transaction import Transaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from .batch.check import CheckContext
    from .batch.differences import CheckReport
    from .checkpoint.spark_job import Refresh as SparkRefresh

__all__ = ["Job", "JobInfo", "Store", "Table", "TableInfo", "TableOptions", "TableWriter", "Transaction", "open"]


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
    """Open the store at `root` (a local folder, or a URI like s3://…), or make one where there is nothing yet.

    catalog: None keeps the catalog in the local root, for the processes of one host; "redis://…" or "rediss://…" keeps
    it on that server, for any number of hosts. A store has one kind of catalog for good.
    checkpoint_interval_ms: distance of the boundaries at which jobs commit; fixed when the store is made, then 1000
    unless it is given. InvalidInput when a store that is there has another one.
    global_max_lag: how late a view may be before `global` goes on without it, seconds or a timedelta, at least two
    checkpoint intervals; 10 minutes by default. InvalidInput when a store that is there has another one; `Store.alter`
    changes it.
    durability: "disk" syncs every commit; "os" leaves that to the operating system (survives kill -9, not power loss).
    maintenance: retention, compaction, vacuum and shipping in a thread of this process, until the store is closed.
    Without it `store.compact()` and `store.vacuum()` do the same when they are called.
    volatile: take a Redis server that may forget acknowledged commits (no append-only file that is always synced).
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


class Store(OneProcess):
    """An open store. Safe to use from several threads; close it, or use it in a `with` block."""

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
        """How late a view may be before `global` goes on without it."""
        return timedelta(milliseconds=self._handle.catalog.read(get_store).max_lag_ms)

    def alter(self, *, global_max_lag: float | timedelta) -> None:
        """Change the store's `global_max_lag`, for all that have it open, from their next choice on. InvalidInput."""
        alter_store(self._handle, global_max_lag)

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
        """Make a root table. Raises InvalidName, InvalidSchema, TableExists.

        exist_ok: return a root table of that name that is there; TableExists tells what of it differs from columns,
        key, and (where they are given here) changelog and options. changelog: "full" stores with every commit the rows
        that it replaces, so that `changes(pre_images=True)` works for as long as the log is kept; a commit then takes a
        lookup of its keys. "upsert" (and None) stores none.
        """
        checked = TableSchema(name, schema, primary_key)  # pyright: ignore[reportArgumentType]: it checks, and makes a tuple
        return Table(self._handle, create_table(self._handle, checked, changelog, options, exist_ok=exist_ok))

    def table(self, name: str) -> Table:
        """The table of that name, or TableNotFound."""
        return Table(self._handle, self._handle.catalog.read(lambda view: find_table(view, name)))

    def tables(self) -> list[TableInfo]:
        """All tables, by name."""

        def body(view: View) -> list[TableInfo]:
            return [table_info(self._handle, view, table) for table in all_tables(view)]

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
        for name, given in segments.items():
            if not isinstance(given, Sequence):
                raise InvalidInput(
                    f"table {name!r}: a commit takes a list of the segments that seal() gave, not {given!r}"
                )
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

    def held_snapshots(self) -> list[HeldSnapshot]:
        """The snapshots that `snapshot.hold(…)` keeps readable now, by name."""
        return held_snapshots(self._handle)

    def release_snapshot(self, name: str) -> None:
        """End what `snapshot.hold(…)` began, before its time, or SnapshotNotFound. Who reads it just now reads on."""
        release_snapshot(self._handle, name)

    def compact(self, table: str | None = None, full: bool = False) -> None:
        """Fold the L0 of one table (None: of all) into its sorted run.

        Without `full` only where enough has gathered.
        """
        compact_tables(self._handle, table, full=full)

    def vacuum(self, dry_run: bool = False, *, grace: float | timedelta = GRACE) -> VacuumReport:
        """Delete the files that nothing has reached for `grace` (seconds or a timedelta), and tell what stays and why.

        Safe beside commits, readers and other vacuums: what is being written, or held by a snapshot, a job or another
        lease, stays. A read that holds nothing and takes longer than `grace` may raise SnapshotExpired. dry_run:
        nothing is written, only told.
        """
        return vacuum(self._handle, dry_run=dry_run, grace=grace)

    def verify(self) -> VerifyReport:
        """Check every record, file, checksum and order of the store; `.ok`, `.problems`. Never raises for damage."""
        return verify_store(self._handle)

    def export_catalog(self, uri: str | Path) -> Header:
        """Write all of the catalog, as of one moment, to a new file (a path or URI); returns what it says of itself.

        `epochlog.restore_catalog(root, uri)` makes the catalog anew from it. The data files are not in it.
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
        exist_ok: bool = False,
    ) -> Job:
        """Make a job with its output tables {name: Output(schema, primary key)}, or pairs of both.

        backfill: "snapshot" starts from the upstreams' rows, "log" from the first entry of their logs. interval: from
        one commit to the next: a number of store boundaries (None: 1) or a timedelta, which must be a whole number of
        them. max_lag: a job further behind may merge boundaries: a number of its own boundaries (None: 30) or a
        timedelta, rounded down to whole ones. `job.info` shows both as boundaries and as time. snapshot_rows: take the
        upstreams' rows in pieces of at most so many, each step one of them; None: in one step. exist_ok: return a job
        of that name that is there; JobExists tells what of it differs (interval and max_lag only where given here).
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
            exist_ok=exist_ok,
        )
        return Job(self._handle, record.id, record.name)

    def job(self, name: str) -> Job:
        """The job of that name, or JobNotFound. Its first step claims the job, unless another runner is alive."""
        record = self._handle.catalog.read(lambda view: find_job(view, name))
        return Job(self._handle, record.id, record.name)

    def jobs(self) -> list[JobInfo]:
        """All jobs, by name."""
        return list_jobs(self._handle)

    def drop_job(self, name: str, *, keep_outputs: bool = False) -> None:
        """Remove a job and its output tables; TableInUse while another job reads one of them.

        keep_outputs: leave the tables as they are, as root tables (see `adopt`); jobs that read them go on.
        """
        (drop_job_alone if keep_outputs else drop_job)(self._handle, name)

    def adopt(self, name: str) -> Table:
        """Make an output of a finished job a root table, which anybody may write, so that a migration can end.

        Jobs that read it go on; one that has finished does not take in what is written from now on, and stays as it is
        (its own output can be adopted, too). Policies choose no epoch below the job's last commit for it, or for what
        is made from it; it can still be read there by itself. A root table is returned as it is. Raises TableNotFound,
        and TableInUse while the job may still write it (`job.stop(drain=True)` ends that).
        """
        return Table(self._handle, adopt_table(self._handle, name))

    # ---- consumers ----------------------------------------------------------------------------------------------

    def consumers(self) -> list[ConsumerInfo]:
        """All named consumers, by name: where each stands, how far behind, and whether it still holds its log.

        `UpstreamLog(…, consumer=name)`, a subscription or Spark's option consumerId makes one.
        """
        return list_consumers(self._handle)

    def reset_consumer(self, name: str, to: str | int) -> None:
        """Move a consumer: to "snapshot" (it begins anew with the tables' rows), "earliest" (what the logs still have),
        "latest" (only what is new from now on), or an epoch. Whoever has it open is fenced.

        Raises ConsumerNotFound, TableDropped, InvalidInput, and LogTruncated for an epoch that the logs do not reach.
        """
        reset_consumer(self._handle, name, to)

    def drop_consumer(self, name: str) -> None:
        """Forget a consumer and let go of what it holds, or ConsumerNotFound. Whoever has it open is told so."""
        drop_consumer(self._handle, name)

    # ---- loads --------------------------------------------------------------------------------------------------

    def drop_load(self, name: str) -> None:
        """Forget a load and the states of its parts, or LoadNotFound. The rows that it committed stay."""
        drop_load(self._handle, name)


class Job(OneProcess):
    """A job, and one runner of it: its first step or start claims the job, and fences an earlier runner that is idle.

    A runner that is alive is not fenced: it is inside a step, or in a query or a pipeline, and its process has been
    heard within ten seconds; one of this machine that has died is known to be dead at once.
    """

    _instead = "send store.root and the job's name: epochlog.open(root).job(name)"

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
        return f"<epochlog.Job {self.name} of {self._handle.files.place}>"

    def step_local(self, refresh: LocalRefresh, *, take_over: bool = False) -> int | None:
        """One barrier with pyarrow tables: its epoch, or None when there is nothing to do or the job is finished.

        refresh(ctx) reads ctx.changes/table/previous/output and writes ctx.upsert/delete; all of it is committed
        together when it returns, and nothing when it raises. Of a job with snapshot_rows the first steps each take in a
        piece of the upstreams' rows at one epoch: ctx.changes gives rows of one upstream, ctx.table all of them,
        ctx.output what earlier pieces made; such a step returns 0, and the one after the last piece commits.

        While another runner of the job is alive it raises JobRunning, which names it; take_over=True fences that one at
        once. Raises Fenced when another has claimed the job since this one did, JobParked, JobNotFound, and what the
        refresh raises.
        """
        return self._runner.step_local(refresh, take_over=take_over)

    def step(self, spark: SparkSession, refresh: SparkRefresh, *, take_over: bool = False) -> int | None:
        """The same with Spark DataFrames, in the foreground."""
        from .checkpoint.spark_job import step

        return step(self._runner, spark, refresh, take_over=take_over)

    def start(
        self,
        spark: SparkSession,
        refresh: SparkRefresh,
        trigger: str | timedelta = "continuous",
        poll: str | timedelta = "100 milliseconds",
        *,
        take_over: bool = False,
    ) -> StreamingQuery:
        """Run the job as a StreamingQuery that commits barrier after barrier; a second live start raises JobRunning.

        trigger: "continuous"; "available_now" to end when everything sealed so far is committed; or a time (timedelta,
        "1 minute 30 seconds"; Spark is told whole milliseconds), for one barrier in each such time at most. poll: how
        often a continuous query looks. Failures are noted as the job's last_error and tried again, as `Pipeline` does,
        five times in a row for "available_now"; Fenced, JobParked, JobNotFound, SparkLost and StoreClosed end the
        query. While another process runs the job, the query waits for its end; take_over=True fences it at once.
        """
        from .checkpoint.spark_query import start

        return start(self._runner, spark, refresh, trigger=trigger, poll=poll, take_over=take_over)

    def alter(
        self,
        *,
        interval: int | timedelta | None = None,
        max_lag: float | timedelta | None = None,
        options: TableOptions | Mapping[str, TableOptions] | None = None,
    ) -> None:
        """Change how often the job commits and how late it may be, as `store.create_job` takes them, and the options of
        its outputs: one for all, or a dict by the outputs' names. What is None stays.

        Whoever runs the job goes on, and is not fenced: a barrier that is recorded is committed as it is, and the next
        ones are boundaries of the new interval. A max_lag that was given as a number stays that number of the job's own
        boundaries, one that was given as a time stays that time. Raises InvalidInput, JobNotFound.
        """
        alter_job(self._handle, self._runner.job_id, self.name, interval=interval, max_lag=max_lag, options=options)

    def check(
        self,
        query: str | Mapping[str, str] | Callable[[CheckContext], Any],
        *,
        tolerance: float = 0.0,
        sample: int = 20,
    ) -> CheckReport:
        """Compare the outputs with a query over the upstreams, all as of the job's newest commit, and tell the
        differences.

        query: a SELECT that DuckDB answers, which sees the upstreams as tables of their names and nothing else; of a
        job with several outputs a dict {output: SELECT}, of some or all; or a function, given a `CheckContext` whose
        `.table(upstream)` is a pyarrow Table, that returns an Arrow-shaped table, or a dict of them by output. Columns
        are matched by name, in any order, and cast where no value changes; rows by primary key. NaN equals NaN, -0.0
        equals 0.0. tolerance: how far floats may lie apart, relative to the larger, or absolutely where both are below
        1: sums of floats depend on their order. sample: rows of each kind of difference that the report keeps.

        Everything is pinned while it is read, and the rows of both sides are held in memory. The job may run on.
        Raises InvalidInput before the first commit and for a query that gives no such table, SchemaMismatch,
        DependencyMissing where DuckDB is not installed, and EpochExpired for a parked job whose upstreams have gone on.
        """
        from .batch.check import check_job

        return check_job(self._handle, self._runner.job_id, self.name, query, tolerance=tolerance, sample=sample)

    def rebuild(self) -> None:
        """Make the outputs anew: the next step, or steps, refresh from the upstreams' rows, with ctx.output empty.

        For a parked job, or for new logic. It fences nobody; the old rows stay readable until the commit, which is one
        log entry: what differs. Raises TableFinished.
        """
        self._runner.rebuild()

    def cancel(self) -> None:
        """Remove the job and its outputs at once while it is still creating; whoever runs it gets JobNotFound.

        A query that `start` made in this process is stopped. Raises InvalidInput for a job that is not creating
        (`store.drop_job` removes it), TableInUse when another job reads one of its outputs.
        """
        cancel_job(self._handle, self._runner.job_id, self.name)
        live.stop(self._runner)

    def stop(self, drain: bool = False, *, timeout: float | timedelta | None = 60.0) -> None:
        """Stop the query that `start` made in this process, after the barrier at hand. It does not end the data.

        drain: end the data too. What the upstreams have got so far is taken in, the commit that does it is the job's
        last, and its outputs are finished: later changes of the upstreams are not its input. Without a query here the
        rest is run with the refresh that this Job was last given; one that was given none records the end for whoever
        runs the job next. Raises DrainPending after `timeout` (seconds or a timedelta; None: never), JobParked, Fenced,
        and what the refresh raises. A finished job stays as it is.
        """
        if drain:
            drain_job(self._runner, timeout)
        else:
            live.stop(self._runner)
