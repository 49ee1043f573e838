"""Graph of jobs: which job is triggered, which waits for whom, which has finished, and what a restart may find.

Vertices are jobs. An edge leads from the job that writes a table to each job that reads it. A barrier does not flow
along an edge: each job commits by itself, and its readers take its changes from the log. The rules are those of Flink's
FLIP-147, between jobs in place of tasks:

- A job is triggered if no job above it still has to commit: it reads tables that users write, or jobs that have
  finished or have nothing to commit.
- Any other unfinished job waits for the commits of those that it reads.
- A finished job has finished upstreams, unless it was drained.

The graph has no clock and no I/O. It knows only the jobs that it was told of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from epochlog.errors import JobNotFound
from epochlog.store.metadata.definitions import JobRecord

VertexState = Literal["running", "parked", "finished"]


@dataclass(frozen=True, slots=True)
class JobVertex:
    """Vertex of a job graph: a job with the tables that it reads and writes, all by id."""

    id: int
    name: str
    reads: frozenset[int]
    writes: frozenset[int]
    state: VertexState = "running"
    """A job that is creating runs."""
    drained: bool = False
    """True if `stop(drain=True)` ends, or has ended, the job's data while its upstreams go on."""


def vertex_of(job: JobRecord) -> JobVertex:
    """Return the vertex of a job with this record."""
    state: VertexState = "running"
    if job.state == "finished" or job.state == "parked":
        state = job.state
    return JobVertex(
        job.id, job.name, frozenset(job.upstreams), frozenset(job.outputs), state, drained=job.drain is not None
    )


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Plan of the commits that are due: jobs by id."""

    triggered: frozenset[int]
    """Jobs that wait for no other job."""
    waiting: Mapping[int, frozenset[int]]
    """Job -> the jobs that it reads, and whose commits it waits for."""
    finished: frozenset[int]
    """Jobs that never commit again, so that they take part in no checkpoint and carry no state."""


class JobGraph:
    """Graph of jobs that is told of each event. Not thread-safe: its owner calls it under one lock."""

    def __init__(self, jobs: Iterable[JobVertex] = (), *, ended: Collection[int] = ()) -> None:
        """Create a graph. ended: the ids of tables whose data has ended, beside those of finished jobs."""
        self._jobs: dict[int, JobVertex] = {}
        self._writers: dict[int, int] = {}  # job by the table that it writes
        self._readers: dict[int, dict[int, None]] = {}  # jobs by the table that they read
        self._ended = frozenset(ended)
        for job in jobs:
            self.created(job)

    def __contains__(self, job: int) -> bool:
        return job in self._jobs

    # ---- events --------------------------------------------------------------------------------------------------

    def created(self, job: JobVertex) -> None:
        """Add a job, or replace it: by one with other upstreams, or one that runs again.

        The job that was told of last is the writer of its tables: it may have adopted those of a job that was dropped.
        """
        before = self._jobs.get(job.id)
        if before == job:
            return
        if before is not None:
            self._unlink(before)
        self._jobs[job.id] = job
        for table in job.writes:
            self._writers[table] = job.id
        for table in job.reads:
            self._readers.setdefault(table, {})[job.id] = None

    def dropped(self, job: int) -> None:
        """Remove a job. One that is not in the graph is ignored."""
        before = self._jobs.pop(job, None)
        if before is not None:
            self._unlink(before)

    def parked(self, job: int) -> None:
        """Note that a job was parked: it commits nothing until it is created again, and its readers wait for it."""
        self._set_state(job, "parked")

    def finished(self, job: int) -> frozenset[int]:
        """Note that a job has finished; return its readers, which may be triggered now."""
        self._set_state(job, "finished")
        return self.committed(job)

    def committed(self, job: int) -> frozenset[int]:
        """Return the jobs to look at after a commit of this one: those that read its tables and are running."""
        return frozenset(
            reader for reader in self._readers_of(self._require(job)) if self._jobs[reader].state == "running"
        )

    def vertex(self, job: int) -> JobVertex:
        """Return a job as the graph was told of it last. Raises JobNotFound."""
        return self._require(job)

    # ---- questions -----------------------------------------------------------------------------------------------

    def writer(self, table: int) -> JobVertex | None:
        """Return the job that writes the table; None for a table that users write, or whose job is not here."""
        job = self._writers.get(table)
        return None if job is None else self._jobs[job]

    def upstreams(self, job: int) -> frozenset[int]:
        """Return the jobs whose tables this one reads."""
        return frozenset(self._writers[table] for table in self._require(job).reads if table in self._writers)

    def plan(self, behind: Collection[int] | None = None) -> JobPlan:
        """Plan the commits of the jobs that are behind, which are those with something to commit; None: all jobs.

        A parked job is never triggered.
        """
        finished = frozenset(job.id for job in self._jobs.values() if job.state == "finished")
        chosen = (self._jobs.keys() if behind is None else self._jobs.keys() & set(behind)) - finished
        waiting = {job: ups for job in sorted(chosen) if (ups := self.upstreams(job) & chosen)}
        parked = {job for job in chosen if self._jobs[job].state == "parked"}
        return JobPlan(frozenset(chosen - waiting.keys() - parked), MappingProxyType(waiting), finished)

    def components(self) -> list[frozenset[int]]:
        """Return the connected components, ordered by their lowest ids. No job waits for one of another component."""
        components: list[frozenset[int]] = []
        placed: set[int] = set()
        for first in sorted(self._jobs):
            if first in placed:
                continue
            component, stack = {first}, [first]
            while stack:
                job = self._jobs[stack.pop()]
                near = (self.upstreams(job.id) | self._readers_of(job)) - component
                component |= near
                stack += near
            placed |= component
            components.append(frozenset(component))
        return components

    def ending_with(self, table: int) -> list[JobVertex]:
        """Return the jobs whose data ends if that of a root table does, upstreams before their readers: none of their
        other upstreams goes on.
        """
        ended = self._ended | {table for job in self._jobs.values() if job.state == "finished" for table in job.writes}
        closing, ending = {table}, list[JobVertex]()
        while closing:
            ended |= closing
            readers = dict.fromkeys(reader for closed in closing for reader in self._readers.get(closed, ()))
            ends = [job for reader in readers if (job := self._jobs[reader]).state != "finished" and job.reads <= ended]
            ending += ends
            closing = {output for job in ends for output in job.writes}
        return ending

    # ---- restarts ------------------------------------------------------------------------------------------------

    def check_restore(self) -> Iterator[tuple[JobVertex, int]]:
        """Yield each finished job with a table that it reads whose data has not ended.

        A restart from these states would lose the rest of its input. A drained job may end before its upstreams.
        """
        for job in self._jobs.values():
            if job.state == "finished" and not job.drained:
                for table in sorted(job.reads):
                    writer = self.writer(table)
                    if table not in self._ended and (writer is None or writer.state != "finished"):
                        yield job, table

    # ---- within --------------------------------------------------------------------------------------------------

    def _readers_of(self, job: JobVertex) -> frozenset[int]:
        return frozenset(reader for table in job.writes for reader in self._readers.get(table, ()))

    def _set_state(self, job: int, state: VertexState) -> None:
        before = self._require(job)
        self._jobs[job] = replace(before, state=state)

    def _require(self, job: int) -> JobVertex:
        vertex = self._jobs.get(job)
        if vertex is None:
            raise JobNotFound(f"the graph has no job {job}")
        return vertex

    def _unlink(self, job: JobVertex) -> None:
        """Remove the edges of a job."""
        for table in job.writes:
            if self._writers.get(table) == job.id:
                del self._writers[table]
        for table in job.reads:
            self._readers[table].pop(job.id, None)
            if not self._readers[table]:
                del self._readers[table]
