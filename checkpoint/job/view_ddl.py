"""DDL of views: a view is a job with one output table of its name, and a definition on its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from epochlog.errors import InvalidInput, JobCycle
from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import Txn
from epochlog.store.commit.boundaries import force_within
from epochlog.store.env.log_events import VIEWS_REPLACED
from epochlog.store.metadata.definitions import Counters, JobRecord, ViewDefinition
from epochlog.store.metadata.job_columns import Declared, bound_versions, checked_columns, require_versions
from epochlog.store.metadata.lookups import all_jobs, find_job, find_table, get_table, get_version
from epochlog.store.session.handle import Handle

from .rebuild import rebuilding


@dataclass(frozen=True, slots=True)
class Replacement:
    """New definition of a view, and the columns that it reads, by table. planned: the versions of their columns."""

    definition: ViewDefinition
    columns: Declared
    planned: Mapping[str, int]


def require_view(job: JobRecord) -> ViewDefinition:
    """Return the definition of a view; raise InvalidInput for a job without one."""
    if job.view is None:
        raise InvalidInput(f"job {job.name!r} is no view: it has no query; use store.job({job.name!r})")
    return job.view


def replace_views(handle: Handle, replacements: Mapping[str, Replacement]) -> int:
    """Give views new definitions in one transaction; return the epoch at which all of them are rebuilt.

    Each view's next commit is its rebuild at that forced boundary, with the difference to its old rows, which stay
    readable until then. So a read at one epoch sees all views with the old definitions, or all with the new ones. A
    view's upstreams are those of its new definition from that boundary on; its earlier epochs are valid by the changes
    of the tables that it read there.
    Raises JobNotFound, TableNotFound, TableFinished, InvalidInput for a job that is no view, JobCycle.
    """

    def body(tx: Txn) -> int:
        jobs = {name: find_job(tx, name) for name in replacements}
        changed: dict[int, JobRecord] = {}
        for name, replacement in replacements.items():
            require_view(jobs[name])
            read = [find_table(tx, upstream) for upstream in replacement.columns]
            require_versions(read, replacement.planned)
            upstreams = tuple(dict.fromkeys(table.id for table in read))
            changed[jobs[name].id] = replace(
                jobs[name],
                view=replacement.definition,
                upstreams=upstreams,
                bound=bound_versions(read),
                columns=checked_columns(name, read, replacement.columns),
            )
        _refuse_cycle(tx, changed)
        boundary = force_within(tx, handle, above=Counters.read(tx).last_epoch)  # readers may have read up to it
        for job in jobs.values():
            new = rebuilding(tx, handle, changed[job.id], boundary)
            tx.put(job_key(job.id), replace(new, former=_former(tx, job, new, boundary)).to_record())
        return boundary

    boundary = handle.catalog.transact(body)
    handle.log(VIEWS_REPLACED, views=list(replacements))
    return boundary


def _former(tx: Txn, job: JobRecord, new: JobRecord, boundary: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return the tables that earlier queries of a replaced view read, without those of commits that are forgotten."""
    name = get_table(tx, job.outputs[0], f"output of {job.name}").name
    known_from = get_version(tx, job.outputs[0], name).known_from
    former = tuple((until, tables) for until, tables in job.former if until > known_from + 1)
    uncommitted = any(until > job.position for until, _ in former)  # no commit is of the tables of that replacement
    if not job.position or uncommitted or set(job.upstreams) == set(new.upstreams):
        return former
    return (*former, (boundary, job.upstreams))


def _refuse_cycle(tx: Txn, changed: Mapping[int, JobRecord]) -> None:
    """Raise JobCycle if a view would read a table that is derived from it."""
    jobs = {job.id: changed.get(job.id, job) for job in all_jobs(tx)}
    writers = {output: job.id for job in jobs.values() for output in job.outputs}
    for job in changed.values():
        reached: set[int] = set()
        pending = list(job.upstreams)
        while pending:
            writer = writers.get(pending.pop())
            if writer == job.id:
                output = get_table(tx, job.outputs[0], "?").name
                raise JobCycle(f"view {job.name!r} would read its own rows: it reads a table derived from {output!r}")
            if writer is not None and writer not in reached:
                reached.add(writer)
                pending += jobs[writer].upstreams
