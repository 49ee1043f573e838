"""Whether a job can go on from what the catalog says of it: checked before a runner claims it, and by verify.

A catalog that works as it must never fails these; one that was restored from parts that do not fit, or was damaged,
does, and going on from it would lose or double changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import RestoreRejected
from .catalog import View
from .definitions import JobRecord, TableDef, get_table, get_version
from .epoch import show_epoch
from .holds import held_from
from .lineage import EpochView


def require_standing(view: View, job: JobRecord, epochs: EpochView) -> None:
    """RestoreRejected, with the tables and epochs, when the job cannot go on from here."""
    found = [*job_findings(view, job), *_upstream_findings(view, job, epochs)]
    if found:
        raise RestoreRejected(
            f"job {job.name!r} cannot go on: {'; '.join(found)}. Run `epochlog verify`, and restore the catalog from a "
            f"copy; or drop the job and make it anew"
        )


def standing_findings(view: View, job: JobRecord, epochs: EpochView) -> Iterator[str]:
    """The same for verify, which says of the outputs' epochs itself."""
    yield from _upstream_findings(view, job, epochs)


def job_findings(view: View, job: JobRecord) -> Iterator[str]:
    """All outputs of a job share one epoch: its position."""
    for table in _tables(view, job.outputs):
        committed = get_version(view, table.id, table.name).max_committed_epoch
        if committed != job.position:
            yield f"it stands at {show_epoch(job.position)}, and its output {table.name} at {show_epoch(committed)}"


def _upstream_findings(view: View, job: JobRecord, epochs: EpochView) -> Iterator[str]:
    """Downstream <= upstream; the log has what follows the position; who has finished has only finished upstreams, but
    for one that was drained.
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
