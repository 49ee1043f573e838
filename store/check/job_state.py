"""Consistency of a job's catalog records with its tables, checked before a runner claims the job and by verify.

A catalog that works as it must never fails these; one that was restored from parts that do not fit, or was damaged,
does, and going on from it would lose or double changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from epochlog.errors import RestoreRejected
from epochlog.store.catalog.protocol import View
from epochlog.store.epochs.view import EpochView
from epochlog.store.metadata.definitions import JobRecord, TableDef
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.retention.holds import held_from
from epochlog.store.types.epoch import show_epoch


def require_consistent_job(view: View, job: JobRecord, epochs: EpochView) -> None:
    """Raise RestoreRejected, with the tables and epochs, unless the job's catalog records agree with its tables."""
    found = [*job_findings(view, job), *_upstream_findings(view, job, epochs)]
    if found:
        raise RestoreRejected(
            f"job {job.name!r} cannot go on: {'; '.join(found)}. Run `epochlog verify`, and restore the catalog from a "
            f"copy; or drop the job and make it anew"
        )


def standing_findings(view: View, job: JobRecord, epochs: EpochView) -> Iterator[str]:
    """Yield the inconsistencies of a job with its upstreams, for verify, which checks the outputs' epochs itself."""
    yield from _upstream_findings(view, job, epochs)


def job_findings(view: View, job: JobRecord) -> Iterator[str]:
    """Yield the outputs whose committed epoch differs from the job's position."""
    for table in _tables(view, job.outputs):
        committed = get_version(view, table.id, table.name).max_committed_epoch
        if committed != job.position:
            yield f"it stands at {show_epoch(job.position)}, and its output {table.name} at {show_epoch(committed)}"


def _upstream_findings(view: View, job: JobRecord, epochs: EpochView) -> Iterator[str]:
    """Yield violations of: the position is at or below each upstream's complete epoch; the log has all changes past it;
    a finished job has only finished upstreams, unless it was drained, and all its outputs have ended.
    """
    for table in _tables(view, job.upstreams):
        version, through = get_version(view, table.id, table.name), epochs.complete_through(table.id)
        if job.position > through:
            yield (
                f"it stands at {show_epoch(job.position)}, and its upstream {table.name} is complete through "
                f"{show_epoch(through)} only"
            )
        at = held_from(job, table.id)
        if at is not None and at < version.log_start:
            yield (
                f"it goes on from {show_epoch(at)}, and the log of its upstream {table.name} begins after "
                f"{show_epoch(version.log_start)}"
            )
        if job.state == "finished" and job.drain is None and version.end_epoch is None:
            yield (
                f"it is finished at {show_epoch(job.position)}, and its upstream {table.name} is not (it stands at "
                f"{show_epoch(through)})"
            )
    for table in _tables(view, job.outputs):
        end = get_version(view, table.id, table.name).end_epoch
        if (end is not None) != (job.state == "finished"):
            yield f"it is {job.state}, and the data of its output {table.name} ended at {show_epoch(end)}"


def _tables(view: View, ids: tuple[int, ...]) -> Iterator[TableDef]:
    return (get_table(view, table_id, f"table {table_id}") for table_id in ids)
