"""The face that users see: open, Store, Transaction and Job, a thin composition of the packages below."""

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
from .checkpoint.drain import drain as drain_job
from .checkpoint.graph import JobInfo, cancel_job, create_job, drop_job, list_jobs
from .checkpoint.job import JobRunner, LocalRefresh
from .checkpoint.live import live
from .errors import EpochlogError, InvalidInput, TableDropped
from .store.catalog import View
from .store.clock import Clock
from .store.commit import TableEdit, commit_own, commit_root
from .store.compaction import compact_table
from .store.consumers import ConsumerInfo, drop_consumer, list_consumers, reset_consumer
from .store.definitions import (
    Counters,
    TableDef,
    TableOptions,
    all_tables,
    find_job,
    find_table,
)
from .store.dump import Header
from .store.handle import Handle, open_handle
from .store.loads import drop_load
from .store.maintenance import Maintenance
from .store.outcomes import TxnPair, check_pair, resolve
from .store.retention import apply_retention
from .store.schema import TableSchema
from .store.sealing import force_boundary
from .store.segment import Segment
from .store.shipping import export_catalog
from .store.tables import create_table, drop_table
from .store.vacuum import GRACE, VacuumReport, vacuum
from .store.verify import VerifyReport, verify_store
from .store.writer import SegmentWriter, remove_segments
from .table import Table, TableInfo, TableWriter, segment_writer, table_info

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Job", "JobInfo", "Store", "Table", "TableInfo", "TableOptions", "TableWriter", "Transaction", "open"]


def open(
    root: str | Path,
    catalog: str | None = None,
    *,
    create: bool = True,
    checkpoint_interval_ms: int = 1000,
    durability: str = "disk",
    maintenance: bool = False,
    volatile: bool = False,
    clock: Clock | None = None,
) -> Store:
    """Open the store at `root` (a local folder, or a URI like s3://…), or make one where there is nothing yet.

    catalog: None keeps the catalog in the local root, for the processes of one host; "redis://…" or "rediss://…" keeps
    it on that server, for any number of hosts. A store has one kind of catalog for good.
    checkpoint_interval_ms: distance of the boundaries at which jobs commit; fixed when the store is made.
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
        durability=durability,
        volatile=volatile,
        clock=clock,
    )
    worker = Maintenance(handle) if maintenance else None
    if worker is not None:
        worker.start()
    return Store(handle, worker)


class Store:
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
        changelog: str = "upsert",
        options: TableOptions | None = None,
    ) -> Table:
        """Make a root table. Raises InvalidName, InvalidSchema, TableExists.

        changelog: "full" stores with every commit the rows that it replaces, so that `changes(pre_images=True)` works
        for as long as the log is kept; a commit then takes a lookup of its keys. "upsert" stores none.
        """
        checked = TableSchema(name, schema, primary_key)  # pyright: ignore[reportArgumentType]: it checks, and makes a tuple
        return Table(self._handle, create_table(self._handle, checked, changelog, options or TableOptions()))

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

        def due(view: View) -> list[TableDef]:
            return list(all_tables(view)) if table is None else [find_table(view, table)]

        failed: list[EpochlogError] = []
        for found in self._handle.catalog.read(due):
            try:
                apply_retention(self._handle, found)
                compact_table(self._handle, found, full=full or table is not None)
            except TableDropped:  # since: nothing to fold
                if table is not None:
                    raise
            except EpochlogError as error:  # one damaged table keeps no other from being compacted
                failed.append(error)
        if failed:
            raise failed[0]

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
        outputs: Mapping[str, tuple[pa.Schema, Sequence[str]]],
        *,
        backfill: str = "snapshot",
        interval: int = 1,
        max_lag: Any = None,
        snapshot_rows: int | None = None,
    ) -> Job:
        """Make a job with its output tables {name: (schema, primary key)}, of changelog "upsert".

        backfill: "snapshot" starts from the upstreams' rows, "log" from the first entry of their logs. interval: in
        store boundaries. max_lag: in the job's own boundaries (or a timedelta); a job further behind may merge
        boundaries. snapshot_rows: take the upstreams' rows in pieces of at most so many, each step one of them; None:
        in one step.
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


class Transaction:
    """Upserts and deletes of several root tables that land together at one epoch when the `with` block ends well."""

    def __init__(self, handle: Handle, txn: TxnPair | None, epoch: int | None) -> None:
        check_pair(txn)
        self._handle = handle
        self._txn = txn
        self._at = epoch
        self._writers: dict[str, tuple[TableDef, SegmentWriter]] = {}
        self._epoch: int | None = None
        self._state = "new"

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
        if self._state != "new":
            raise InvalidInput(f"this transaction is {self._state}; begin another with store.transaction()")
        self._state = "open"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = "over"
        edits: list[TableEdit] = []
        try:
            if kind is None:
                for table, writer in self._writers.values():
                    edits.append(TableEdit(table.id, table.name, tuple(writer.finish())))
        except BaseException:
            remove_segments(self._handle.files, [segment for edit in edits for segment in edit.segments])
            raise
        finally:
            for _, writer in self._writers.values():
                writer.discard()
        if kind is None:
            self._epoch = commit_own(self._handle, edits, epoch=self._at, txn=self._txn)

    def _writer(self, name: str) -> SegmentWriter:
        if self._state != "open":
            raise InvalidInput(f"this transaction is {self._state}: write inside its `with` block")
        if name not in self._writers:
            table = self._handle.catalog.read(lambda view: find_table(view, name))
            self._writers[name] = (table, segment_writer(self._handle, table, self._txn))
        return self._writers[name][1]


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
        return f"<epochlog.Job {self.name} of {self._handle.files.place}>"

    def step_local(self, refresh: LocalRefresh) -> int | None:
        """One barrier with pyarrow tables.

        The committed epoch, or None when there is nothing to do or the job is finished.

        refresh(ctx) reads ctx.changes/table/previous/output and writes ctx.upsert/delete; all of it is committed
        together when it returns, and nothing when it raises. Of a job with snapshot_rows the first steps each take in a
        piece of the upstreams' rows at one epoch: ctx.changes gives rows of one upstream, ctx.table all of them,
        ctx.output what earlier pieces made; such a step returns 0, and the one after the last piece commits. Raises
        Fenced, JobParked, JobNotFound, and what the refresh raises.
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

    def rebuild(self) -> None:
        """Make the outputs anew: the next step, or steps, refresh from the upstreams' rows, with ctx.output empty.

        For a parked job, or for new logic; earlier runners are fenced. The old rows stay readable until the commit,
        which is one log entry: what differs. Raises Fenced, TableFinished.
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
