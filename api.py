"""Public entry points: `open` and `Store`, a thin composition of the packages below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochlog.batch.default_policy import named_policy
from epochlog.batch.epoch_as_of import epoch_as_of
from epochlog.batch.policy import Exact, Policy
from epochlog.batch.snapshot import default_of, take_snapshot
from epochlog.batch.tags import Tag, drop_tag, find_tag, list_tags
from epochlog.checkpoint.job.job_ddl import JobInfo
from epochlog.lineage.client_check import check_client
from epochlog.store.backup.incremental import export_catalog
from epochlog.store.catalog.export_format import Header
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.consumer_info import ConsumerInfo, list_consumers
from epochlog.store.changelog.consumers import drop_consumer, reset_consumer
from epochlog.store.commit.boundaries import force_boundary
from epochlog.store.commit.change import TableChange
from epochlog.store.commit.clone import clone_table
from epochlog.store.commit.idempotency import TxnPair, find_committed_epoch, resolve
from epochlog.store.commit.lag_marks import alter_store
from epochlog.store.commit.loads import drop_load
from epochlog.store.commit.root_commit import RootCommit
from epochlog.store.commit.table_ddl import create_table, drop_table
from epochlog.store.commit.transaction import commit_changes
from epochlog.store.env.clock import Clock
from epochlog.store.env.closeable import Closeable
from epochlog.store.env.process_local import OneProcess, warn_unclosed
from epochlog.store.maintenance.compact_request import compact_tables
from epochlog.store.maintenance.scheduler import Maintenance
from epochlog.store.maintenance.vacuum import GRACE, VacuumReport, vacuum
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.lookups import all_tables, find_table, get_store
from epochlog.store.metadata.read_default import AUTO, read_default
from epochlog.store.metadata.table_options import TableOptions
from epochlog.store.session.handle import Handle, open_handle
from epochlog.store.sst.segment import Segment
from epochlog.store.types.schema import TableSchema
from epochlog.store.verify.verify import VerifyReport, verify_store

from .errors import InvalidInput
from .snapshot import Snapshot
from .store_jobs import StoreJobs
from .table import Table, TableInfo, TableWriter, table_info
from .transaction import Transaction

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient
    from pyspark.sql import SparkSession

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
    lineage: OpenLineageClient | None = None,
    read_only: bool = False,
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
    lineage: an OpenLineageClient, which gets the start and the end of each run of a job by this open store, in a thread
    beside it; see "Logs and lineage". The extra `openlineage` installs its package.
    read_only: True reads an existing store with the right to read alone, and writes nothing: no lease, no lock, no
    file. Calls that write raise StoreReadOnly; retention and vacuum elsewhere may end a snapshot (SnapshotExpired).
    Raises StoreNotFound, ForeignRoot, CatalogLost, UnsupportedFormat, InvalidInput, StoreReadOnly (only readable).
    """
    for name, flag in (("maintenance", maintenance), ("read_only", read_only)):
        if not isinstance(flag, bool):
            raise InvalidInput(f"{name} must be True or False, not {flag!r}")
    if read_only and maintenance:
        raise InvalidInput("maintenance writes: leave out read_only=True, or maintenance=True")
    if lineage is not None:
        check_client(lineage)
    handle = open_handle(
        root,
        catalog,
        create=create,
        checkpoint_interval_ms=checkpoint_interval_ms,
        global_max_lag=global_max_lag,
        durability=durability,
        volatile=volatile,
        clock=clock,
        read_only=read_only,
    )
    if lineage is not None:
        from epochlog.lineage.listener import LineageListener

        handle.run_listener = LineageListener(handle, lineage)
    worker = Maintenance(handle) if maintenance else None
    if worker is not None:
        worker.start()
    return Store(handle, worker)


class Store(StoreJobs, OneProcess, Closeable):
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

    @property
    def default_consistency(self) -> str:
        """Return the policy of reads that name none; "auto": their tables decide."""
        return self._handle.catalog.read(read_default) or AUTO

    def alter(self, *, global_max_lag: float | timedelta | None = None, default_consistency: str | None = None) -> None:
        """Change settings of the store; None keeps one. They apply to the next choice of every process.

        global_max_lag: see `open`. default_consistency: the policy of reads that name none, in any way: "global",
        "aligned" or "latest"; "auto": their tables decide, see `snapshot`. Raises InvalidInput.
        """
        alter_store(self._handle, global_max_lag, default_consistency)

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
        sequence_by: str | None = None,
        checks: Mapping[str, str] | None = None,
        changelog: str | None = None,
        options: TableOptions | None = None,
        exist_ok: bool = False,
    ) -> Table:
        """Create a root table. Raises InvalidName, InvalidSchema, TableExists.

        sequence_by: a column, not null, that orders the changes of each key whatever the order of their arrival: a row
        replaces one with a smaller value, at a tie a delete wins, then the later arrival. Deletes carry the column too,
        and win over older changes for `TableOptions(tombstone_retention=…)`. None: the later commit wins.

        checks: {name: condition in the language of a filter} that no row may break; a null passes. Each commit tests
        the rows that it would leave, after sequence and updates, or raises CheckViolated.
        exist_ok: return an existing root table of that name; TableExists names its differences from columns, keys, and
        (if passed) checks, changelog and options. changelog: "full" stores the replaced rows with every commit, which
        looks up its keys, so that `changes(pre_images=True)` works while the log is kept; "upsert" (and None)
        stores none.
        """
        checked = TableSchema(name, schema, primary_key, sequence_by)  # pyright: ignore[reportArgumentType]: it checks
        return Table(self._handle, create_table(self._handle, checked, changelog, options, checks, exist_ok=exist_ok))

    def clone(self, source: str, name: str, *, as_of: int | str | datetime | None = None) -> Table:
        """Create a root table with the rows of another table, which shares its files: no row is copied.

        as_of: None for the newest commit, an epoch, a time (datetime), or the name of a tag of the source. The clone
        begins at its own epoch: it has no history, and no log, from before it. It has the columns that the source had
        at the cloned epoch, and its present settings. Of a table with a sequence it has the deletes that were kept at
        the epoch. From then on both are changed and dropped without each other; a shared file is deleted when neither
        needs it. Raises TableNotFound, TableExists, InvalidName, TagNotFound, EpochExpired, EpochNotCommitted,
        LimitExceeded, InvalidInput (settings that name a column which was altered after the epoch).
        """
        if as_of is None:
            return Table(self._handle, clone_table(self._handle, source, name, None))
        with epoch_as_of(self._handle, source, as_of) as epoch:
            return Table(self._handle, clone_table(self._handle, source, name, epoch))

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
        target = RootCommit(epoch, txn)
        landed = find_committed_epoch(self._handle, txn, [table.id for table in tables])
        if landed is not None:  # vacuum may have deleted the sealed files of its repetition
            return landed
        changes = [TableChange(table, tuple(segments[table.name])) for table in tables]
        return commit_changes(self._handle, changes, target).epoch

    def resolve(self, txn: TxnPair) -> int | None:
        """Decide the outcome of a transaction: return its epoch, or None; after None, that commit can no
        longer land.
        """
        return resolve(self._handle, txn)

    def checkpoint(self) -> int:
        """Force and seal a boundary now, so that jobs can take in all committed changes; return its epoch."""
        return force_boundary(self._handle)

    # ---- reading and maintenance ---------------------------------------------------------------------------------

    def snapshot(
        self,
        tables: Sequence[str] | None = None,
        *,
        consistency: str | type | Policy | None = None,
        tag: str | None = None,
        **policy_options: Any,
    ) -> Snapshot:
        """Take a snapshot of several tables at epochs that a policy chooses now, pinned until the snapshot is closed.

        tag: read at the epochs of this tag, without a policy. Raises TagNotFound.

        consistency: "global", "aligned", "latest", "as_of", "at_least", "bounded", "exact" (options as keyword
        arguments), or a policy object. None: the store's `default_consistency`, if it is set, else "global" without
        tables, and "aligned" with them: if there are several, within the store's `global_max_lag`.
        Raises NoConsistentEpoch, StalenessExceeded, TableNotReadable, EpochExpired, EpochNotCommitted.
        """
        if tag is not None:
            if consistency is not None or policy_options:
                raise InvalidInput("a tag names its epochs: leave out consistency and the options of policies")
            return take_snapshot(self._handle, Exact(find_tag(self._handle, tag).token), tables, Snapshot)
        policy = named_policy(consistency, lambda: default_of(self._handle, tables), **policy_options)
        return take_snapshot(self._handle, policy, tables, Snapshot)

    def tag(
        self,
        name: str,
        tables: Sequence[str] | None = None,
        *,
        lasting: float | timedelta | None = None,
        partial: bool = False,
        consistency: str | type | Policy | None = None,
        **policy_options: Any,
    ) -> Tag:
        """Keep the epochs that a policy chooses now under a name: for good, or for `lasting`.

        It takes a snapshot as `snapshot` does and tags it, see `snapshot.tag`. Compaction keeps the rows that the
        epochs see, and no versions between tags. Raises the errors of both.
        """
        with self.snapshot(tables, consistency=consistency, **policy_options) as snapshot:
            return snapshot.tag(name, lasting, partial=partial)

    def tags(self) -> list[Tag]:
        """Return all tags, by name."""
        return list_tags(self._handle)

    def drop_tag(self, name: str) -> None:
        """Delete a tag, or raise TagNotFound. Open snapshots of its epochs stay readable."""
        drop_tag(self._handle, name)

    def metrics(self) -> str:
        """Return the metrics of this open store, as Prometheus text: the phases of each barrier that its jobs, queries
        and pipelines have committed (epochlog_barrier_phase_seconds), and the epochs and lag of each table.
        """
        from epochlog.checkpoint.coordinator.metrics import as_text, store_lines

        return as_text(store_lines(self._handle))

    def compact(self, table: str | None = None, full: bool = False, *, spark: SparkSession | None = None) -> None:
        """Delete the rows whose ttl has passed, and compact the L0 log into sorted runs: of one table (None: of all).

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
