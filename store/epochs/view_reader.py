"""Reader of EpochViews: one atomic look at the catalog, which decodes only the commits since the last look.

Commits only ever append to a table's history, retention takes away from its beginning, and table ids are never used
again; so what was read once stays true, and a view costs the commits since the view before it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np

from epochlog.store.catalog.keys import after_prefix, bound_key, hist_key, key_epoch
from epochlog.store.catalog.protocol import View
from epochlog.store.metadata.definitions import Counters, JobRecord, StoreRecord, TableDef
from epochlog.store.metadata.lookups import all_jobs, all_tables, get_job, get_store, get_table, get_version
from epochlog.store.metadata.version import Commit, TableVersion

from .table_epochs import TableEpochs
from .view import EpochView


@dataclass(frozen=True, slots=True)
class _Seen:
    """Epochs of a table's commits past `known_from`, and of those among them that changed it; sorted int64."""

    commits: np.ndarray
    changes: np.ndarray
    known_from: int = 0

    def between(self, known_from: int, newest: int) -> _Seen:
        """Return the part in (known_from, newest]."""
        return _Seen(_part(self.commits, known_from, newest), _part(self.changes, known_from, newest), known_from)


def _part(epochs: np.ndarray, after: int, until: int) -> np.ndarray:
    return epochs[epochs.searchsorted(after, "right") : epochs.searchsorted(until, "right")]


_NOTHING = _Seen(np.empty(0, np.int64), np.empty(0, np.int64))


class EpochMemory:
    """Cache of the commit epochs of each table that this process has read. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[int, _Seen] = {}

    def of(self, view: View, table_id: int, known_from: int, newest: int) -> _Seen:
        """Return the table's commits after `known_from` and through `newest`, as its version in this view has them."""
        with self._lock:
            seen = self._seen.get(table_id, _NOTHING)
        if seen.known_from > known_from:  # another thread has looked later, when more had been forgotten
            seen = _Seen(_NOTHING.commits, _NOTHING.changes, known_from)
        last = int(seen.commits[-1]) if len(seen.commits) else 0
        if last < newest:
            seen = _extended(view, table_id, seen, max(last, known_from), newest)
        seen = seen.between(known_from, newest)
        if last < newest:
            with self._lock:
                self._seen[table_id] = max(self._seen.get(table_id, _NOTHING), seen, key=_reach)
        return seen


def _extended(view: View, table_id: int, seen: _Seen, last: int, newest: int) -> _Seen:
    """Add the commits in (last, newest] that the catalog has."""
    fresh = [
        (key_epoch(key), record["changed"])
        for key, record in view.scan(hist_key(table_id, last + 1), hist_key(table_id, newest + 1))
    ]
    commits = np.fromiter((epoch for epoch, _ in fresh), np.int64, len(fresh))
    changed = np.fromiter((flag for _, flag in fresh), np.bool_, len(fresh))
    return replace(
        seen,
        commits=np.concatenate([seen.commits, commits]),
        changes=np.concatenate([seen.changes, commits[changed]]),
    )


def _reach(seen: _Seen) -> tuple[int, int]:
    """Return the newest commit and, negated, the epoch back to which the commits are known; a sort key."""
    return (int(seen.commits[-1]) if len(seen.commits) else 0), -seen.known_from


def read_epoch_view(
    view: View, memory: EpochMemory, now_ms: int, store_id: str = "", *, above: Iterable[int] | None = None
) -> EpochView:
    """Read the epochs and lineage of all tables as of one state of the catalog.

    above: only of these tables (by id) and all that they descend from, which is all that a question about them needs.
    Jobs ask so, time and again: what a look costs must not grow with the number of others.
    """
    jobs: dict[int, JobRecord] = {}
    tables: dict[int, TableEpochs] = {}
    store, last_epoch = get_store(view), Counters.read(view).last_epoch
    if above is None:
        jobs = {job.id: job for job in all_jobs(view)}
        tables = {
            table.id: _table_epochs(view, memory, table, jobs.get(table.job_id or 0), store, last_epoch)
            for table in all_tables(view)
        }
    else:
        stack = list(above)
        while stack:
            table_id = stack.pop()
            if table_id not in tables:
                table = get_table(view, table_id, f"table {table_id}")
                if table.job_id is not None and table.job_id not in jobs:
                    jobs[table.job_id] = get_job(view, table.job_id, f"of table {table.name}")
                job = jobs.get(table.job_id or 0)
                tables[table_id] = one = _table_epochs(view, memory, table, job, store, last_epoch)
                stack += one.upstreams
    return EpochView(last_epoch, now_ms, tables, store_id, store.max_lag_ms)


def _table_epochs(
    view: View, memory: EpochMemory, table: TableDef, job: JobRecord | None, store: StoreRecord, last_epoch: int
) -> TableEpochs:
    """Build the TableEpochs of a table. `job`: the one that writes it. While the store has no epoch, no table has begun
    after one.
    """
    version = get_version(view, table.id, table.name)
    seen = memory.of(view, table.id, version.known_from, version.max_committed_epoch)
    return TableEpochs(
        table_id=table.id,
        name=table.name,
        state=table_state(version, job),
        derived=job is not None,
        upstreams=job.upstreams if job else (),
        safe_epoch=version.safe_epoch,
        commits=seen.commits,
        changes=seen.changes,
        known_from=version.known_from,
        due=job.due if job else None,
        created=table.created if last_epoch else 0,
        adopted=table.adopted,
        history_ms=table.options.history_retention // timedelta(milliseconds=1),
        job_id=table.job_id,
        interval_ms=job.interval * store.interval_ms if job else 0,
        outside_ms=job.outside_ms if job else None,
    )


def table_state(version: TableVersion, job: JobRecord | None) -> str:
    """Return the state of a table for TableInfo: created | creating | finished | parked."""
    if version.end_epoch is not None:
        return "finished"
    if job is not None and job.state in ("creating", "parked"):
        return job.state
    return "created"


def forced_boundaries(view: View, after: int, until: int) -> list[int]:
    """Return the epochs of the forced boundaries in (after, until], rising."""
    return [key_epoch(key) for key, _ in view.scan(bound_key(after + 1), bound_key(until + 1))]


def read_commits(view: View, table: TableDef, limit: int | None = None) -> list[Commit]:
    """Return a table's remembered commits, newest first; at most `limit` of them."""
    prefix = b"hist/%08x/" % table.id
    found: list[Commit] = []
    for _, record in view.scan(prefix, after_prefix(prefix), reverse=True):
        if limit is not None and len(found) >= limit:
            break
        found.append(Commit.from_record(record))
    return found
