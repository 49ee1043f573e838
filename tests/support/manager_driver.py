"""Driver of a checkpoint manager in tests: it plays the catalog and the actors on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from epochlog.checkpoint import CheckpointManager, JobSettings, Report
from epochlog.checkpoint.job.next_barrier import Barrier
from epochlog.checkpoint.manager.commands import (
    Actor,
    Announce,
    CommitBarrier,
    Decide,
    Decision,
    Inject,
    Restart,
    Start,
)

START_MS = 1_000_000_000_000
D = TypeVar("D")


class ManagerDriver:
    """Answers each Decide and each Commit at once, unless `answers` is switched off; keeps all decisions in `log`.

    Restarted actors attach again by themselves while `attaches` is on.
    """

    def __init__(self) -> None:
        self.now = START_MS
        self.manager = CheckpointManager(clock=lambda: self.now)
        self.log: list[tuple[int, Decision]] = []
        self.answers = True
        self.attaches = True
        self.epoch = 0
        self.positions: dict[str, int] = {}
        self.incarnations: dict[tuple[str, Actor], int] = {}
        self.on_inject: dict[str, Callable[[Inject], object]] = {}

    def job(
        self,
        name: str,
        vertices: dict[str, int] | None = None,
        *,
        incarnation: int = 1,
        finished: Any = (),
        **settings: Any,
    ) -> list[Actor]:
        """Registers a job and attaches all its actors; returns those."""
        shape = vertices or {"v": 1}
        made = JobSettings(**settings)
        self.do(self.manager.register(name, shape, incarnation=incarnation, settings=made, finished=finished))
        actors = [(vertex, index) for vertex, count in shape.items() for index in range(count)]
        for actor in actors:
            self.attach(name, actor)
        return actors

    def again(self, name: str, vertices: dict[str, int] | None = None, **options: Any) -> list[Actor]:
        """Registers the job again under a new incarnation, as its coordinator does, and attaches its actors."""
        incarnation = self.manager.status(name).incarnation + 1
        self.do(self.manager.unregister(name))
        return self.job(name, vertices, incarnation=incarnation, **options)

    def attach(self, job: str, actor: Actor) -> int:
        incarnation, decisions = self.manager.attach(job, actor)
        self.incarnations[job, actor] = incarnation
        self.do(decisions)
        return incarnation

    def do(self, decisions: list[Decision]) -> list[Decision]:
        """Carries decisions out."""
        for decision in decisions:
            self.log.append((self.now, decision))
            if isinstance(decision, Decide) and self.answers:
                self.do(self.manager.decided(decision.job, decision.barrier_id, self.barrier(decision.job)))
            elif isinstance(decision, Inject) and decision.job in self.on_inject:
                self.on_inject[decision.job](decision)
            elif isinstance(decision, CommitBarrier) and self.answers:
                self.epoch += 1
                self.positions[decision.job] = decision.barrier.curr
                self.do(self.manager.committed(decision.job, decision.barrier_id, self.epoch))
            elif isinstance(decision, Restart) and self.attaches:
                for actor in decision.actors:
                    self.attach(decision.job, actor)
        return decisions

    def barrier(self, job: str) -> Barrier:
        prev = self.positions.get(job, 0)
        return Barrier(prev, prev + 1, "checkpoint" if prev else "initial")

    def to(self, ms: int) -> None:
        """Lets time pass until START_MS + ms, with a tick whenever one is due."""
        until = START_MS + ms
        while (due := self.manager.next_due()) is not None and due <= until:
            self.now = max(self.now, due)
            done = self.do(self.manager.tick())
            assert done or self.manager.next_due() != due, "a tick is due and does nothing"
        self.now = until

    def current(self, job: str) -> Inject:
        """The newest inject of the job."""
        return self.of(Inject, job)[-1]

    def report(
        self, job: str, actor: Actor, *rows: object, barrier_id: int | None = None, incarnation: int | None = None,
        ended: bool = False, state: bytes = b"",
    ) -> list[Decision]:  # fmt: skip
        """One actor's report for the job's newest barrier: rows become one segment each of table t."""
        segments = {"t": tuple(rows)} if rows else {}
        number = self.current(job).barrier_id if barrier_id is None else barrier_id
        claimed = self.incarnations[job, actor] if incarnation is None else incarnation
        return self.do(self.manager.collect(Report(job, number, actor, claimed, segments, state, ended)))

    def decline(self, job: str, actor: Actor, barrier_id: int | None = None) -> list[Decision]:
        number = self.current(job).barrier_id if barrier_id is None else barrier_id
        return self.do(self.manager.decline(job, number, actor, self.incarnations[job, actor], "no"))

    def fail(self, job: str, actor: Actor) -> list[Decision]:
        return self.do(self.manager.fail(job, actor, self.incarnations[job, actor], "killed"))

    def works(self, job: str) -> None:
        """From now on every actor of the job reports each barrier at once, with one row that names it."""

        def answer(inject: Inject) -> None:
            for actor in inject.targets:
                self.report(job, actor, (actor, inject.barrier_id))

        self.on_inject[job] = answer

    # ---- what was decided ----------------------------------------------------------------------------------------

    def of(self, kind: type[D], job: str) -> list[D]:
        """All decisions of this kind about the job."""
        return [decision for _, decision in self.log if isinstance(decision, kind) and decision.job == job]  # type: ignore[union-attr]

    def ticks(self, job: str) -> list[tuple[int, str]]:
        """List the decisions about the job with their times in ms since the start."""
        return [(at - START_MS, type(decision).__name__) for at, decision in self.log if decision.job == job]

    def rows(self, job: str) -> list[object]:
        """The rows committed in table t, in order."""
        return [row for commit in self.of(CommitBarrier, job) for row in commit.segments.get("t", ())]

    def announced(self, job: str) -> list[int]:
        return [decision.barrier_id for decision in self.of(Announce, job)]

    def started(self, job: str) -> list[Actor]:
        return [decision.actor for decision in self.of(Start, job)]
