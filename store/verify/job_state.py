"""Consistency of a job's catalog records with its tables, checked before a runner claims the job and by verify.

A correct catalog always passes. A damaged catalog, or one restored from parts that do not fit, can fail; a runner that
continued from it would lose or double changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from epochlog.checkpoint.manager.job_graph import JobGraph, vertex_of
from epochlog.errors import RestoreRejected
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.epochs.view import EpochView
from epochlog.store.metadata.definitions import JobRecord, TableDef
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.retention.holds import held_from
from epochlog.store.types.epoch import show_epoch


def require_consistent_job(view: ReadTxn, job: JobRecord, epochs: EpochView) -> None:
    """Raise RestoreRejected, with the tables and epochs, unless the job's catalog records agree with its tables."""
    findings = [*_output_findings(view, job), *upstream_findings(view, job, epochs)]
    if findings:
        raise RestoreRejected(
            f"job {job.name!r} cannot continue: {'; '.join(findings)}. Run `epochlog verify` and restore the catalog "
            f"from a copy, or drop the job and create it again"
        )


def _output_findings(view: ReadTxn, job: JobRecord) -> Iterator[str]:
    """Yield the outputs whose committed epoch differs from the job's position."""
    for table in _tables(view, job.outputs):
        committed = get_version(view, table.id, table.name).max_committed_epoch
        if committed != job.position:
            position = show_epoch(job.position)
            yield f"its position is {position}, but its output {table.name} is at {show_epoch(committed)}"


def upstream_findings(view: ReadTxn, job: JobRecord, epochs: EpochView) -> Iterator[str]:
    """Yield each violation of these rules by a job and its upstreams.

    The position is at or below each upstream's complete epoch. The log has all changes after the position. A finished
    job has only finished upstreams, unless it was drained, and the data of all its outputs has ended.
    """
    for table in _tables(view, job.rows_from):
        version, through = get_version(view, table.id, table.name), epochs.complete_through(table.id)
        if job.position > through:
            yield (
                f"its position is {show_epoch(job.position)}, but its upstream {table.name} is complete only through "
                f"{show_epoch(through)}"
            )
        held = held_from(job, table.id)
        if held is not None and held < version.log_start:
            yield (
                f"it continues from {show_epoch(held)}, but the log of its upstream {table.name} begins after "
                f"{show_epoch(version.log_start)}"
            )
    vertex = replace(vertex_of(job), reads=frozenset(job.rows_from))
    ended = [up for up in job.rows_from if get_version(view, up, epochs.table(up).name).end_epoch is not None]
    for _, up in JobGraph([vertex], ended=ended).check_restore():
        through = show_epoch(epochs.complete_through(up))
        yield (
            f"it is finished at {show_epoch(job.position)}, but its upstream {epochs.table(up).name} is not (it is "
            f"complete through {through})"
        )
    for table in _tables(view, job.outputs):
        end = get_version(view, table.id, table.name).end_epoch
        if (end is not None) != (job.state == "finished"):
            yield f"it is {job.state}, but the data of its output {table.name} ended at {show_epoch(end)}"


def _tables(view: ReadTxn, ids: tuple[int, ...]) -> Iterator[TableDef]:
    return (get_table(view, table_id, f"table {table_id}") for table_id in ids)
