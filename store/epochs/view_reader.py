"""Reader of EpochViews: one atomic read of the catalog, which decodes only the commits since the last view.

Commits only append to a table's history, retention removes from its beginning, and table ids are never reused. So
cached commits stay valid, and the cost of a view is the number of commits since the view before it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import timedelta
from itertools import islice
from typing import NamedTuple

import numpy as np

from epochlog.store.catalog.keys import bound_key, key_epoch
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.catalog.records import Record
from epochlog.store.metadata.commit_log import commit_arrays, newest_commits
from epochlog.store.metadata.definitions import Counters, JobRecord, StoreRecord, TableDef
from epochlog.store.metadata.lookups import all_jobs, all_tables, get_head, get_job, get_store, get_table
from epochlog.store.metadata.version import Commit, TableVersion
from epochlog.store.types.epoch_set import Ints, ints

from .table_epochs import TableEpochs
from .view import EpochView


class CommitEpochs(NamedTuple):
    """Epochs of a table's commits, and of the commits among them with a change; sorted int64, read-only."""

    commits: Ints
    changes: Ints


class _GrowingInts:
    """Ascending int64 values that only grow at the end. Parts that were returned before share the memory and stay as
    they are; to append takes time for the appended values only, on average.
    """

    def __init__(self) -> None:
        self._buffer, self._length = np.empty(0, np.int64), 0

    def __len__(self) -> int:
        return self._length

    @property
    def bytes(self) -> int:
        return self._buffer.nbytes

    @property
    def last(self) -> int:
        return int(self._buffer[self._length - 1]) if self._length else 0

    def append(self, values: Ints) -> None:
        end = self._length + len(values)
        if end > len(self._buffer):
            buffer = np.empty(2 * end, np.int64)
            buffer[: self._length] = self._buffer[: self._length]
            self._buffer = buffer
        self._buffer[self._length : end] = values
        self._length = end

    def between(self, after: int, until: int) -> Ints:
        """Return the values in (after, until], without a copy."""
        values = self._buffer[: self._length]
        part = values[values.searchsorted(after, "right") : values.searchsorted(until, "right")]
        part.flags.writeable = False
        return part


class _KnownCommits:
    """Commits of a table in (begin, last], all of them."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self._commits, self._changes = _GrowingInts(), _GrowingInts()

    @property
    def last(self) -> int:
        return self._commits.last

    @property
    def bytes(self) -> int:
        return self._commits.bytes + self._changes.bytes

    def __len__(self) -> int:
        return len(self._commits)

    def append(self, fresh: CommitEpochs) -> None:
        """Add commits that follow those which were known at some time; some of them may be known by now."""
        last = self.last
        for known, epochs in ((self._commits, fresh.commits), (self._changes, fresh.changes)):
            known.append(epochs[epochs.searchsorted(last, "right") :])

    def between(self, after: int, until: int) -> CommitEpochs:
        return CommitEpochs(self._commits.between(after, until), self._changes.between(after, until))


class EpochMemory:
    """Cache of the commit epochs of each table that this process has read. Thread-safe.

    A look takes time for the commits since the look before. Those that retention has forgotten are removed once they
    are more than the others.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, _KnownCommits] = {}

    @property
    def bytes(self) -> int:
        with self._lock:
            return sum(known.bytes for known in self._known.values())

    def of(self, view: ReadTxn, table_id: int, known_from: int, newest: int) -> CommitEpochs:
        """Return the table's commits in (known_from, newest], as of its version in this view."""
        with self._lock:
            known = self._known.get(table_id)
            begin, last = (known.begin, known.last) if known is not None else (known_from, 0)
            if known is not None and begin <= known_from and newest <= last:
                return known.between(known_from, newest)
        if begin > known_from:  # another thread has cached a view in which more was forgotten
            return _read_commits(view, table_id, known_from, newest)
        if known is None or last < known_from:
            known, last = _KnownCommits(known_from), known_from
        fresh = _read_commits(view, table_id, last, newest)
        with self._lock:
            known.append(fresh)
            epochs = known.between(known_from, newest)
            if 2 * len(epochs.commits) < len(known):
                known = _KnownCommits(known_from)
                known.append(epochs)
            cached = self._known.get(table_id)
            if cached is None or cached.last <= known.last:
                self._known[table_id] = known
        return epochs

    def forget_others(self, tables: AbstractSet[int]) -> None:
        """Forget the commits of all tables but these."""
        with self._lock:
            for table_id in self._known.keys() - tables:
                del self._known[table_id]


def _read_commits(view: ReadTxn, table_id: int, after: int, until: int) -> CommitEpochs:
    """Read the catalog's commits in (after, until]."""
    commits, changed = commit_arrays(view, table_id, after, until)
    return CommitEpochs(commits, commits[changed])


class TableRecords(NamedTuple):
    """Records of one table in one state of the catalog."""

    definition: TableDef
    head: Record
    """That of `version`."""
    version: TableVersion


def read_epoch_view(
    view: ReadTxn, memory: EpochMemory, now_ms: int, store_id: str = "", *, above: Iterable[int] | None = None
) -> EpochView:
    """Read the epochs and lineage of all tables as of one state of the catalog.

    above: read only these tables (by id) and their ancestors, which is enough for questions about them. Jobs use it, so
    that the cost of a view does not grow with the number of other tables.
    """
    names = None if above is None else {table_id: f"table {table_id}" for table_id in above}
    return read_epochs_and_records(view, memory, now_ms, store_id, above=names)[0]


def read_epochs_and_records(
    view: ReadTxn, memory: EpochMemory, now_ms: int, store_id: str = "", *, above: Mapping[int, str] | None
) -> tuple[EpochView, dict[str, TableRecords]]:
    """Return the view of `read_epoch_view`, and by name of each table the records that it was made of.

    above: names of the tables by id; None: of all tables. Raises Corrupt if the record of a named table is missing, and
    TableDropped if it was dropped.
    """
    jobs: dict[int, JobRecord] = {}
    tables: dict[int, TableEpochs] = {}
    records: dict[str, TableRecords] = {}
    store, last_epoch = get_store(view), Counters.read(view).last_epoch

    def add(table: TableDef) -> None:
        head = get_head(view, table.id, table.name)
        records[table.name] = TableRecords(table, head, TableVersion.from_record(head))
        job = jobs.get(table.job_id or 0)
        tables[table.id] = _table_epochs(view, memory, records[table.name], job, store, last_epoch)

    if above is None:
        jobs = {job.id: job for job in all_jobs(view)}
        for table in all_tables(view):
            add(table)
        memory.forget_others(tables.keys())  # those of dropped tables
    else:
        stack = list(above)
        while stack:
            table_id = stack.pop()
            if table_id not in tables:
                table = get_table(view, table_id, above.get(table_id, f"table {table_id}"))
                if table.job_id is not None and table.job_id not in jobs:
                    jobs[table.job_id] = get_job(view, table.job_id, f"of table {table.name}")
                add(table)
                stack += tables[table_id].lineage
    return EpochView(last_epoch, now_ms, tables, store_id, store.max_lag_ms), records


def _table_epochs(
    view: ReadTxn,
    memory: EpochMemory,
    records: TableRecords,
    job: JobRecord | None,
    store: StoreRecord,
    last_epoch: int,
) -> TableEpochs:
    """Build the TableEpochs of a table. job: the job that writes it. `created` is 0 while the store has no epoch."""
    table, version = records.definition, records.version
    known = memory.of(view, table.id, version.known_from, version.max_committed_epoch)
    return TableEpochs(
        table_id=table.id,
        name=table.name,
        state=table_state(version, job),
        derived=job is not None,
        upstreams=job.upstreams if job else (),
        safe_epoch=version.safe_epoch,
        kept=version.kept,
        commits=known.commits,
        changes=known.changes,
        known_from=version.known_from,
        due=job.due if job else None,
        created=table.created if last_epoch else 0,
        adopted=table.adopted,
        history_ms=table.options.least_history // timedelta(milliseconds=1),
        job_id=table.job_id,
        interval_ms=job.interval * store.interval_ms if job else 0,
        outside_ms=job.outside_ms if job else None,
        superseded=ints(job.superseded if job else ()),
        former=tuple(former for former in job.former if former[0] > version.known_from + 1) if job else (),
        traced_from=job.traced_from if job else 0,
    )


def table_state(version: TableVersion, job: JobRecord | None) -> str:
    """Return the state of a table for TableInfo: created | creating | finished | parked."""
    if version.end_epoch is not None:
        return "finished"
    if job is not None and job.state in ("creating", "parked"):
        return job.state
    return "created"


def forced_boundaries(view: ReadTxn, after: int, until: int) -> Ints:
    """Return the epochs of the forced boundaries in (after, until], rising."""
    return ints([key_epoch(key) for key, _ in view.scan(bound_key(after + 1), bound_key(until + 1))])


def read_commits(view: ReadTxn, table: TableDef, limit: int | None = None) -> list[Commit]:
    """Return at most `limit` of a table's remembered commits, newest first."""
    return list(islice(newest_commits(view, table.id), limit))
