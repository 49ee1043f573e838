"""The catalog's side of what a coordinator runs: loads and jobs, opened, decided, committed and resolved.

Each is used by one thread at a time, but the ones of different names by different threads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from epochlog.checkpoint.control_messages import Attach
from epochlog.checkpoint.job.barrier import Barrier
from epochlog.checkpoint.job.drain import record_drain
from epochlog.checkpoint.job.refresh_plan import RefreshPlan
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.manager.commands import CommitBarrier, JobSettings
from epochlog.errors import InvalidInput, LoadNotFound, NotWritable, TableDropped, TableFinished
from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.commit.edits import TableEdit
from epochlog.store.commit.idempotency import has_outcome, resolve
from epochlog.store.commit.job_commit import check_incarnation
from epochlog.store.commit.loads import (
    LoadCommit,
    LoadRecord,
    PartRecord,
    claim_load,
    declare_load,
    get_load,
    load_parts,
    load_txn,
    require_incarnation,
)
from epochlog.store.commit.root_commit import commit_root
from epochlog.store.metadata.lookups import find_job, get_job, get_table
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment import Segment

HOPELESS = (TableFinished, TableDropped, NotWritable, LoadNotFound)
"""Refusals of a commit that no later one can escape."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Catalog state of a claimed load or job: its incarnation, number of parts, and finished parts."""

    incarnation: int
    parts: int
    finished: frozenset[int]
    settings: JobSettings


class ManagedJob(Protocol):
    """One load or job under a coordinator."""

    @property
    def tables(self) -> Collection[str]:
        """Return the tables that its parts may write."""
        ...

    @property
    def interval_ms(self) -> int | None:
        """Return the time between triggers (ms), as `decide` found it last."""
        ...

    def same(self, asked: Attach) -> None:
        """Raise InvalidInput unless a part that attaches with these settings belongs to it."""
        ...

    def open(self) -> Opened:
        """Claim it: every earlier coordinator is fenced. JobRunning while another runner of the job is alive."""
        ...

    def check(self) -> None:
        """Raises Fenced when another has claimed it since, JobNotFound or LoadNotFound when it has gone."""
        ...

    def leave(self) -> None:
        """Note that nobody works on it here now; `decide` takes it up again."""
        ...

    def decide(self, *, news: bool, drain: bool) -> tuple[Barrier | None, bool]:
        """Decide its next barrier (None: nothing to do), and tell if a drain ends with that barrier.

        news: its parts have something to commit.
        """
        ...

    def commit(self, commit: CommitBarrier) -> tuple[int, bool]:
        """Commit; the epoch, and whether it has finished with that."""
        ...

    def resolve(self) -> int | None:
        """Decide the fate of the commit tried last; return its epoch, or None."""
        ...

    def state(self, index: int) -> PartRecord:
        """Return the record from which a part resumes."""
        ...


class LoadTask:
    """A load: its barriers are numbers of checkpoints, and it commits by root commits."""

    def __init__(self, handle: Handle, asked: Attach, settings: JobSettings) -> None:
        self._handle = handle
        self._asked = asked
        self._settings = settings
        self.interval_ms = settings.interval_ms
        self._load: LoadRecord | None = None
        self._number = 0  # the highest number that was given to a commit
        self.tables: Collection[str] = tuple(sorted(asked.tables))

    def same(self, asked: Attach) -> None:
        mine = self._asked
        if (asked.parts, sorted(asked.tables), asked.finish_tables) != (
            mine.parts,
            sorted(mine.tables),
            mine.finish_tables,
        ):
            raise InvalidInput(
                f"load {mine.part.name!r}: its parts must be attached with the same of, tables and finish"
            )
        if asked.part.number >= mine.parts:
            raise InvalidInput(f"load {mine.part.name!r} has the parts 0 to {mine.parts - 1}, not {asked.part.number}")

    def open(self) -> Opened:
        asked, name = self._asked, self._asked.part.name
        declare_load(self._handle, name, asked.tables, asked.parts, finish_tables=asked.finish_tables)
        self._load = load = claim_load(self._handle, name)
        self._number = self._handle.catalog.read(lambda view: _last_number(view, load))
        parts = self._handle.catalog.read(lambda view: load_parts(view, name))
        finished = frozenset(index for index, part in parts if part.finished)
        return Opened(load.incarnation, load.parts, finished, self._settings)

    def check(self) -> None:
        assert self._load is not None
        mine, name = self._load.incarnation, self._load.name
        require_incarnation(self._handle.catalog.read(lambda view: get_load(view, name)), mine)

    def leave(self) -> None:
        """Do nothing: only coordinators claim loads."""

    def decide(self, *, news: bool, drain: bool) -> tuple[Barrier | None, bool]:
        assert self._load is not None
        if not news and not drain:
            return None, False
        before = self._load.checkpoint
        return Barrier(before, self._number + 1, "checkpoint" if before else "initial"), drain

    def commit(self, commit: CommitBarrier) -> tuple[int, bool]:
        assert self._load is not None
        load, name = self._load, self._load.name
        self._number = commit.barrier.curr

        def find(view: View) -> list[TableEdit]:
            edits = []
            for table_id in load.tables:
                table = get_table(view, table_id, f"table of load {name}")
                segments = tuple(one.labelled(1) for one in commit.segments.get(table.name, ()))
                end = commit.final and load.finish_tables
                if segments or end:
                    edits.append(TableEdit(table.id, table.name, segments, operation="load", end=end))
            return edits

        epoch = commit_root(
            self._handle,
            self._handle.catalog.read(find),
            txn=load_txn(name, self._number),
            load=LoadCommit(
                name,
                load.incarnation,
                load.checkpoint,
                self._number,
                {index: state for (_, index), state in commit.states.items() if state},
                frozenset(index for _, index in commit.finished),
                commit.final,
            ),
        )
        self._landed()
        return epoch, commit.final

    def resolve(self) -> int | None:
        assert self._load is not None
        epoch = resolve(self._handle, load_txn(self._load.name, self._number))
        if epoch is not None:
            self._landed()
        return epoch

    def state(self, index: int) -> PartRecord:
        name = self._asked.part.name
        return dict(self._handle.catalog.read(lambda view: load_parts(view, name))).get(index, PartRecord())

    def _landed(self) -> None:
        assert self._load is not None
        self._load = replace(self._load, checkpoint=self._number)


def _last_number(view: View, load: LoadRecord) -> int:
    """Return the highest number that a commit of the load may have used: those after its checkpoint were given up."""
    number = load.checkpoint
    while has_outcome(view, load_txn(load.name, number + 1)):
        number += 1
    return number


class JobTask:
    """A job whose parts each refresh their share; it commits at the barriers that the catalog records."""

    def __init__(self, handle: Handle, asked: Attach, settings: JobSettings) -> None:
        record = handle.catalog.read(lambda view: find_job(view, asked.part.name))
        self._handle = handle
        self._parts = asked.parts
        self.interval_ms: int | None = handle.interval_ms * record.interval
        self._settings = replace(settings, interval_ms=self.interval_ms)
        self._runner = JobRunner(handle, record.id, record.name)
        self._tenure = self._runner.tenure("coordinator")
        self._run: RefreshPlan | None = None
        self.tables: Collection[str] = handle.catalog.read(
            lambda view: tuple(get_table(view, table, f"output of {record.name}").name for table in record.outputs)
        )

    def same(self, asked: Attach) -> None:
        if asked.parts != self._parts:
            raise InvalidInput(f"job {self._runner.name!r} is run by {self._parts} parts now, not by {asked.parts}")
        if asked.part.number >= self._parts:
            raise InvalidInput(
                f"job {self._runner.name!r} has the parts 0 to {self._parts - 1}, not {asked.part.number}"
            )

    def open(self) -> Opened:
        record = self._runner.record()
        served = record.runner is not None and record.runner.kind == "coordinator"
        record = self._runner.enter(self._tenure, take_over=served)  # its parts have come here instead
        over = record.state == "finished"
        return Opened(record.incarnation, self._parts, frozenset(range(self._parts) if over else ()), self._settings)

    def check(self) -> None:
        assert self._tenure.incarnation is not None
        check_incarnation(self._runner.record(), self._tenure.incarnation)

    def leave(self) -> None:
        self._runner.leave(self._tenure)

    def decide(self, *, news: bool, drain: bool) -> tuple[Barrier | None, bool]:
        end = record_drain(self._runner) if drain else None
        self._run = self._runner.begin(whole=True, tenure=self._tenure)
        job = self._runner.record() if self._run is None else self._run.job
        self.interval_ms = self._handle.interval_ms * job.interval  # it may have been altered
        if self._run is None:
            return None, False
        # barriers of earlier boundaries come before the one that ends it
        return self._run.barrier, end is not None and self._run.barrier.curr >= end

    def commit(self, commit: CommitBarrier) -> tuple[int, bool]:
        assert self._run is not None and self._run.barrier == commit.barrier
        at = commit.barrier.curr
        outputs: Mapping[str, tuple[Segment, ...]] = {  # labelled: reported again later they are known as committed
            name: tuple(one.labelled(at) for one in found) for name, found in commit.segments.items()
        }
        epoch = self._runner.commit(self._run, outputs, keep=True)  # what is refused is in the next attempt
        return epoch, self._runner.record().state == "finished"

    def resolve(self) -> int | None:
        """Return the epoch of the commit if it has landed; else claim a newer incarnation, so that it never lands."""
        runner, tenure, run = self._runner, self._tenure, self._run
        assert run is not None

        def body(tx: Txn) -> tuple[int | None, int | None]:
            job = get_job(tx, runner.job_id, runner.name)
            if job.position == run.barrier.curr:
                return job.position, tenure.incarnation
            if job.incarnation != tenure.incarnation:
                return None, tenure.incarnation
            tx.put(job_key(job.id), replace(job, incarnation=job.incarnation + 1).to_record())
            return None, job.incarnation + 1

        epoch, tenure.incarnation = self._handle.catalog.transact(body)
        runner.incarnation = tenure.incarnation
        return epoch

    def state(self, index: int) -> PartRecord:
        return PartRecord(None, self._runner.record().state == "finished")


def make_task(handle: Handle, asked: Attach, settings: JobSettings) -> ManagedJob:
    """Return the load or job that a part asks to belong to. Raises JobNotFound, InvalidInput."""
    made: ManagedJob = (LoadTask if asked.part.kind == "load" else JobTask)(handle, asked, settings)
    made.same(asked)
    return made
