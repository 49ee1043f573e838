"""Parking: a job that has made no progress for longer than a log is kept stops holding it.

The retention transaction that releases changes or rows which such a job still needs also parks it. A parked job is
visible as parked, keeps its committed outputs and holds nothing. A job without pending changes is never parked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.env.failpoints import hit
from epochlog.store.metadata.commit_log import commit_at
from epochlog.store.metadata.definitions import JobRecord, TableDef
from epochlog.store.metadata.lookups import get_job, get_table, get_version
from epochlog.store.metadata.staged_segments import discard_staged
from epochlog.store.metadata.table_settings import show_option
from epochlog.store.types.epoch import show_epoch, show_span, to_unix_ms

from .holds import held_from

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


@dataclass(frozen=True, slots=True)
class StalledJob:
    """Job without progress for longer than the log is kept, and the first change of the table that it lacks."""

    job: JobRecord
    change: int


def stalled_jobs(
    handle: Handle, view: ReadTxn, table: TableDef, jobs: Iterable[JobRecord], now_ms: int
) -> Iterator[StalledJob]:
    """Yield those of `jobs` that read the table and have lacked one of its changes for longer than its log is kept."""
    kept_ms = table.options.log_retention / timedelta(milliseconds=1)
    for job in jobs:
        held = held_from(job, table.id)
        if held is None or table.id not in job.upstreams:
            continue
        progress_ms = _progress_ms(job)
        if progress_ms is None or now_ms - progress_ms <= kept_ms:
            continue
        change = _first_change(handle, view, table, held)
        if change is not None and now_ms - _committed_ms(view, table.id, change) > kept_ms:
            yield StalledJob(job, change)


def park(handle: Handle, tx: Txn, table: TableDef, stalled: StalledJob, now_ms: int) -> None:
    """Park a job. Call inside the transaction that releases its changes and moves the counters."""
    job = get_job(tx, stalled.job.id, stalled.job.name)
    upstreams = [get_table(tx, table_id, f"upstream of {job.name}") for table_id in job.upstreams]
    lacked = [_first_change(handle, tx, upstream, job.position) for upstream in upstreams]
    idle_ms = now_ms - (_progress_ms(job) or now_ms)
    lost = (
        f"the changes of {table.name!r} from epoch {show_epoch(stalled.change)} on were released, as the log is kept "
        f"for {show_option(table.options.log_retention)} and the job had made no progress for {show_span(idle_ms)}"
    )
    discard_staged(tx, job.outputs, now_ms)
    parked = replace(
        job.without_rebuild(),
        state="parked",
        barrier=None,
        cursor=None,
        lost=lost,
        unread=job.unread or min((change for change in lacked if change is not None), default=None),
    )
    tx.put(job_key(job.id), parked.to_record())
    hit("job:parked")


def _progress_ms(job: JobRecord) -> int | None:
    """Return the Unix ms of the job's last progress, or of its barrier or position if that is later; None without
    any.
    """
    epoch = job.barrier[1] if job.barrier else job.position
    return max(job.progress_ms, to_unix_ms(epoch) if epoch else 0) or None


def _first_change(handle: Handle, view: ReadTxn, table: TableDef, after: int) -> int | None:
    version = get_version(view, table.id, table.name)
    if version.max_committed_epoch <= after:
        return None
    if version.known_from > after:
        return after + 1
    changes = handle.memory.of(view, table.id, version.known_from, version.max_committed_epoch).changes
    index = int(changes.searchsorted(after, "right"))
    return int(changes[index]) if index < len(changes) else None


def _committed_ms(view: ReadTxn, table_id: int, epoch: int) -> int:
    """Return the Unix ms of a commit; taken from its epoch if that is later, or the commit is no longer remembered."""
    commit = commit_at(view, table_id, epoch)
    return max(0 if commit is None else commit.at_ms, to_unix_ms(epoch))
