"""Parking: a job that has made no headway for longer than a log is kept stops holding it.

The transaction of retention that lets go of what such a job has not taken in, or of rows that it needs, parks it: the
job is visible as parked, keeps what it has committed, and holds nothing any more. A job that has taken in everything
holds nothing that matters, and is never parked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from epochlog.store.catalog.keys import hist_key, job_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.env.failpoints import hit
from epochlog.store.metadata.definitions import JobRecord, TableDef
from epochlog.store.metadata.lookups import all_jobs, get_job, get_table, get_version
from epochlog.store.metadata.staged_segments import discard_staged
from epochlog.store.metadata.table_settings import show_option
from epochlog.store.types.epoch import show_epoch, show_span, to_unix_ms

from .holds import held_from

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


@dataclass(frozen=True, slots=True)
class StalledJob:
    """A job without headway for longer than the log is kept, and the first change of the table that it lacks."""

    job: JobRecord
    change: int


def late_jobs(handle: Handle, view: View, table: TableDef, now_ms: int) -> Iterator[StalledJob]:
    """Yield the jobs that read the table and have lacked a change of it for longer than its log is kept."""
    kept_ms = table.options.log_retention / timedelta(milliseconds=1)
    for job in all_jobs(view):
        at = held_from(job, table.id)
        if at is None or table.id not in job.upstreams:
            continue
        progress_ms = _progress_ms(job)
        if progress_ms is None or now_ms - progress_ms <= kept_ms:
            continue
        change = _first_change(handle, view, table, at)
        if change is not None and now_ms - _landed_ms(view, table.id, change) > kept_ms:
            yield StalledJob(job, change)


def park(handle: Handle, tx: Txn, table: TableDef, late: StalledJob, now_ms: int) -> None:
    """Park a job. Part of the transaction that releases its changes and moves the counters."""
    job = get_job(tx, late.job.id, late.job.name)
    above = [get_table(tx, table_id, f"upstream of {job.name}") for table_id in job.upstreams]
    lacked = [_first_change(handle, tx, up, job.position) for up in above]
    idle_ms = now_ms - (_progress_ms(job) or now_ms)
    lost = (
        f"the changes of {table.name!r} from epoch {show_epoch(late.change)} on were let go of, as the log is kept for "
        f"{show_option(table.options.log_retention)} and the job had made no headway for {show_span(idle_ms)}"
    )
    discard_staged(tx, job.outputs, now_ms)
    parked = replace(
        job,
        state="parked",
        barrier=None,
        cursor=None,
        rebuild=None,
        lost=lost,
        unread=job.unread or min((change for change in lacked if change is not None), default=None),
    )
    tx.put(job_key(job.id), parked.to_record())
    hit("job:parked")


def _progress_ms(job: JobRecord) -> int | None:
    """Return the Unix ms of the job's last headway, or of its barrier or position if not recorded; None without any."""
    if job.progress_ms:
        return job.progress_ms
    at = job.barrier[1] if job.barrier else job.position
    return to_unix_ms(at) if at else None


def _first_change(handle: Handle, view: View, table: TableDef, after: int) -> int | None:
    version = get_version(view, table.id, table.name)
    if version.max_committed_epoch <= after:
        return None
    if version.known_from > after:
        return after + 1
    changes = handle.memory.of(view, table.id, version.known_from, version.max_committed_epoch).changes
    place = int(changes.searchsorted(after, "right"))
    return int(changes[place]) if place < len(changes) else None


def _landed_ms(view: View, table_id: int, epoch: int) -> int:
    """Return the Unix ms at which a commit landed; by its epoch where the commit is not remembered."""
    record = view.get(hist_key(table_id, epoch))
    return record["at_ms"] if record is not None else to_unix_ms(epoch)
