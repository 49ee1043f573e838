"""World of the simulation: a seeded scheduler with a virtual clock, the adapter of the core, and the invariants.

Each job draws from its own random stream, so the faults of one job change nothing for another unless the core lets
them. The world itself records which actors were asked, which have reported and which incarnations have ended, and never
asks the core for them.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Collection, Mapping
from typing import Any

from epochlog.checkpoint import CheckpointManager, Report
from epochlog.checkpoint.manager.commands import (
    Abort,
    Actor,
    Announce,
    CommitBarrier,
    Decide,
    Decision,
    Drop,
    Failed,
    Finished,
    Inject,
    JobStopped,
    Resolve,
    Restart,
    Start,
)
from epochlog.errors import EpochlogError, Fenced, SegmentUnknown

from .actors import Process
from .books import Books, check_decision
from .catalog import DataPiece, SimulatedCatalog
from .ends import unfinished_work
from .shapes import (
    FAULTS_END_MS,
    GIVE_UP_MS,
    KINDS,
    QUIET_MS,
    START_MS,
    Event,
    JobShape,
    Violation,
    draw_plan,
)

LAST_CALLS_MS = QUIET_MS + 100
LAW_EVERY = 5
"""All tables are checked together after this many commits; each commit checks its own table."""
MESSAGE, TICK = 0, 1
"""Ranks of events in one ms: ticks come last, so that their place does not depend on other jobs."""
UNCOUNTED = ("killed", "another attached in its place")


class World:
    """Run of one seed. calm: names of jobs without faults. kinds: the kinds of faults. manager: class of the core."""

    def __init__(
        self,
        seed: int,
        *,
        calm: Collection[str] = (),
        kinds: Collection[str] = KINDS,
        manager: type[CheckpointManager] = CheckpointManager,
    ) -> None:
        self.manager = manager
        self.seed, self.calm, self.kinds = seed, frozenset(calm), frozenset(kinds)
        self.plan = draw_plan(seed)
        self.now = START_MS
        self.until = GIVE_UP_MS
        self.trace: list[tuple[Any, ...]] = []
        self.catalog = SimulatedCatalog(self.plan.jobs)
        self.books = {shape.name: Books(shape, seed) for shape in self.plan.jobs}
        self.processes: dict[tuple[str, Actor], Process] = {}
        self.zombies: dict[tuple[str, Actor], Process] = {}
        self.core: CheckpointManager | None = None
        self.life = 0  # of the coordinator
        self._queue: list[tuple[int, int, int, Callable[[], object]]] = []
        self._pushed = self._pieces = self._landed = 0
        self._tick_at: int | None = None

    # ---- the scheduler -------------------------------------------------------------------------------------------

    def at(self, when: int, action: Callable[[], object], rank: int = MESSAGE) -> None:
        self._pushed += 1
        heapq.heappush(self._queue, (max(when, self.now + 1), rank, self._pushed, action))

    def run(self) -> World:
        """Run until faults and rows have ended and all jobs have caught up. Raises Violation."""
        self.start_core()
        for event in self.plan.events:
            if event.kind in self.kinds and (event.job not in self.calm or event.kind in ("forces", "drains")):
                self.at(event.at_ms, lambda event=event: self.befall(event))
        if "coordinator" in self.kinds:
            for when, length in self.plan.coordinator_crashes:
                self.at(when, lambda length=length: self.crash_core(length))
        self.at(LAST_CALLS_MS, lambda: [self.last_call(books) for books in self.books.values()])
        check_at = QUIET_MS + 3_000
        while True:
            if not self._queue or self._queue[0][0] >= check_at:
                self.now = max(self.now, check_at)
                if self.core is not None and not self._behind():
                    break
                check_at += 1_000
                if check_at > self.until:
                    raise Violation(f"not caught up: {self._behind()}")
                continue
            self.now, _, _, action = heapq.heappop(self._queue)
            action()
        self.catalog.check_law(self.now)
        return self

    def hash(self) -> str:
        return hashlib.sha256(repr(self.trace).encode()).hexdigest()

    def note(self, job: str, *details: Any) -> None:
        self.trace.append((self.now - START_MS, job, *details))

    def trace_of(self, job: str) -> list[tuple[Any, ...]]:
        return [entry for entry in self.trace if entry[1] == job]

    # ---- chance --------------------------------------------------------------------------------------------------

    def rate(self, shape: JobShape, kind: str) -> float:
        if self.now >= FAULTS_END_MS or shape.name in self.calm or kind not in self.kinds:
            return 0
        return self.plan.troubled[shape.name][kind]

    def happens(self, shape: JobShape, kind: str) -> bool:
        rate = self.rate(shape, kind)
        return rate > 0 and self.books[shape.name].rng.random() < rate

    def _behind(self) -> list[str]:
        """Return a sentence for each load or job that has not caught up."""
        limits: dict[str, list[int | None]] = {name: [] for name in self.books}
        for (name, _), process in self.processes.items():
            limits[name].append(process.limit)
        return unfinished_work(self.books, limits, self.catalog, self.now)

    def declines(self, shape: JobShape) -> bool:
        return self.happens(shape, "declines")

    def delay_ms(self, shape: JobShape) -> int:
        most = int(self.rate(shape, "delays"))
        return 2 + (self.books[shape.name].rng.randrange(most) if most else 0)

    def work_ms(self, shape: JobShape) -> int:
        slow = self.happens(shape, "slow")
        return self.books[shape.name].rng.randrange(1_000, 5_000) if slow else 3

    def over_the_net(self, shape: JobShape, deliver: Callable[[], object]) -> None:
        """Deliver a message, which may be lost, repeated, or delayed and so come out of order."""
        if self.happens(shape, "loss"):
            return
        for _ in range(2 if self.happens(shape, "repeats") else 1):
            self.at(self.now + self.delay_ms(shape), deliver)

    # ---- messages ------------------------------------------------------------------------------------------------

    def to_core(self, shape: JobShape, call: Callable[[CheckpointManager], list[Decision]]) -> None:
        def arrive() -> None:
            if self.core is not None:
                self.execute(call(self.core))

        self.over_the_net(shape, arrive)

    def send_report(self, shape: JobShape, report: Report) -> None:
        self.books[shape.name].sent[report.barrier_id, report.actor, report.incarnation] = report
        self.to_core(shape, lambda core: core.collect(report))

    def to_actor(self, shape: JobShape, actor: Actor, incarnation: int, call: Callable[[Process], object]) -> None:
        process = self.processes[shape.name, actor]
        if process.incarnation == incarnation:
            self.over_the_net(shape, lambda: call(process))

    def piece(self, shape: JobShape, actor: Actor, incarnation: int, changes: Mapping[Any, int | None]) -> DataPiece:
        self._pieces += 1
        return DataPiece(self._pieces, actor, incarnation, changes)

    # ---- the coordinator -----------------------------------------------------------------------------------------

    def start_core(self) -> None:
        """Start a coordinator from the catalog alone."""
        self.core = self.manager(clock=lambda: self.now)
        for books in self.books.values():
            self.register(books)

    def register(self, books: Books) -> None:
        """Register a job with its state in the catalog, under a new incarnation; new processes attach to it."""
        assert self.core is not None
        shape, name = books.shape, books.shape.name
        incarnation, finished = self.catalog.claim(name), self.catalog.records[name].finished
        books.begin(finished)
        vertices = {"w": shape.parts}
        self.execute(
            self.core.register(
                name, vertices, incarnation=incarnation, settings=shape.settings, finished=finished
            )
        )  # fmt: skip
        if books.drains:
            self.execute(self.core.stop(name, drain=True))
        for actor in shape.actors:
            self.respawn(shape, actor, zombie=books.rng.random() < 0.5)
        if self.now >= LAST_CALLS_MS:
            self.last_call(books)

    def crash_core(self, length: int) -> None:
        self.life += 1
        self.core = None
        self.at(self.now + length, self.start_core)

    def respawn(self, shape: JobShape, actor: Actor, *, zombie: bool) -> None:
        """Start a new process for the actor. The old one is dead, or a zombie for a while."""
        old = self.processes.get((shape.name, actor))
        if old is not None:
            old.alive_until = self.now + (3_000 if zombie else 0)
            self.zombies[shape.name, actor] = old
        process = self.processes[shape.name, actor] = Process(self, shape, actor)
        self.at(self.now + 5 + self.delay_ms(shape), lambda: self.attach(process))

    def attach(self, process: Process) -> None:
        shape, actor = process.shape, process.actor
        if self.core is None or self.processes[shape.name, actor] is not process:
            return  # a new coordinator has started new processes
        self.ends(shape, actor)
        process.incarnation, decisions = self.core.attach(shape.name, actor)
        self.books[shape.name].current[actor] = process.incarnation
        self.execute(decisions)

    def ends(self, shape: JobShape, actor: Actor) -> None:
        """Record that the actor's incarnation has ended, unless the actor has finished."""
        books = self.books[shape.name]
        if actor not in books.finished:
            books.current.pop(actor, None)
            books.started.pop(actor, None)

    def befall(self, event: Event) -> None:
        """Execute one of the planned events."""
        books = self.books[event.job]
        shape, name = books.shape, event.job
        self.note(name, event.kind)
        if event.kind == "forces" and shape.derived:
            self.catalog.force(self.now)
        if event.kind == "drains":
            books.drains = True
        if self.core is None:
            return
        if event.kind == "forces":
            books.pending_forced += 1
            self.execute(self.core.inject(name))
        elif event.kind == "drains":
            self.execute(self.core.stop(name, drain=True))
        elif event.kind == "stops" and books.state == "running" and not books.drains:
            books.in_flight = None
            self.execute(self.core.stop(name, drain=False))
        elif event.kind == "claims":
            self.catalog.claim(name)  # by another coordinator, which then does nothing
        elif event.kind == "recovers" and books.state == "running":
            self.renew(name)
        elif event.kind == "crashes":
            assert event.actor is not None
            process = self.processes[name, event.actor]
            noticed = event.flag
            self.respawn(shape, event.actor, zombie=not noticed)
            if noticed:
                self.at(self.now + books.rng.choice([3, 3, 400]), lambda: self.lost(process))

    def lost(self, process: Process) -> None:
        shape, actor = process.shape, process.actor
        if self.core is None or not process.incarnation:
            return
        if self.books[shape.name].current.get(actor) == process.incarnation:
            self.ends(shape, actor)
        self.execute(self.core.fail(shape.name, actor, process.incarnation, "killed"))

    def last_call(self, books: Books) -> None:
        """Force a last checkpoint of a load without periodic ones, unless a forced one is pending."""
        under_way = books.in_flight is not None or books.at_catalog is not None
        to_come = books.pending_forced - (books.pending_at.get(books.newest, 0) if under_way else 0)
        if books.shape.settings.interval_ms is None and not to_come:
            self.befall(Event(self.now, "forces", books.shape.name))

    def renew(self, name: str) -> None:
        """Take the job over, or let a failed or stopped one continue, as a coordinator does."""
        assert self.core is not None
        self.execute(self.core.unregister(name))
        self.register(self.books[name])

    def later(self, shape: JobShape, wait_ms: int, call: Callable[[CheckpointManager], list[Decision] | None]) -> None:
        """Answer this coordinator after `wait_ms`; its crash loses the answer."""
        life = self.life

        def answer() -> None:
            if self.life == life and self.core is not None:
                self.execute(call(self.core) or [])

        self.at(self.now + wait_ms, answer)

    # ---- execution of decisions ----------------------------------------------------------------------------------

    def execute(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            books = self.books[decision.job]
            self.note(decision.job, type(decision).__name__, getattr(decision, "barrier_id", None))
            check_decision(books, self.catalog, decision)
            EXECUTORS[type(decision)](self, books, decision)
        self.plan_tick()

    def plan_tick(self) -> None:
        due = None if self.core is None else self.core.next_due()
        if due is not None and (self._tick_at is None or due < self._tick_at):
            self._tick_at = max(due, self.now + 1)
            self.at(self._tick_at, self.tick, TICK)

    def tick(self) -> None:
        if self._tick_at is not None and self._tick_at <= self.now:
            self._tick_at = None
            if self.core is not None:
                self.execute(self.core.tick())

    def _decide(self, books: Books, decision: Decide) -> None:
        books.pending_at[decision.barrier_id], books.newest = books.pending_forced, decision.barrier_id

        def answer(core: CheckpointManager) -> list[Decision]:
            if self.happens(books.shape, "catalog"):
                silent = books.rng.random() < 0.2
                return [] if silent else core.decided(decision.job, decision.barrier_id, None)
            barrier, settled = self.catalog.decide(books.shape, self.now)
            if settled and barrier is None:
                self.served(books, decision.barrier_id)
            self.note(decision.job, "decided", barrier)
            return core.decided(decision.job, decision.barrier_id, barrier, settled=settled)

        self.later(books.shape, 2, answer)

    def _inject(self, books: Books, decision: Inject) -> None:
        for actor, incarnation in decision.targets.items():
            self.to_actor(books.shape, actor, incarnation, lambda process: process.inject(decision))
            zombie = self.zombies.get((decision.job, actor))
            if zombie is not None and zombie.lives:  # it hears and answers messages for its successor
                self.at(self.now + 1, lambda zombie=zombie: zombie.inject(decision))
        books.in_flight = decision

    def _commit(self, books: Books, decision: CommitBarrier) -> None:
        books.in_flight, books.at_catalog = None, decision
        shape, number = books.shape, decision.barrier_id
        wait = 3 + self.delay_ms(shape) // 8
        if self.happens(shape, "catalog"):
            result = books.rng.choice(["landed", "lost", "late", "refused", "gone"])
            lands_in = {"landed": wait, "late": wait + books.rng.randrange(1, 400)}.get(result)
            if lands_in is not None:
                self.at(self.now + lands_in, lambda: self.land(decision))
            if result in ("refused", "gone"):
                error = EpochlogError("no room") if result == "refused" else SegmentUnknown("vacuumed")
                self.later(shape, wait, lambda core: self.refuse(core, books, decision, error))
            else:
                silence = books.rng.choice([1, 300, 1_500])
                self.later(shape, wait + silence, lambda core: core.unknown(decision.job, number))
            return

        def answer(core: CheckpointManager) -> list[Decision]:
            outcome = self.land(decision)
            if isinstance(outcome, EpochlogError):
                return self.refuse(core, books, decision, outcome)
            self.known(books, decision, landed=True)
            return core.committed(decision.job, number, outcome)

        life = self.life  # a commit in flight lands even if the coordinator dies
        self.at(self.now + wait, lambda: self.land(decision) if self.life != life else None)
        self.later(shape, wait, answer)

    def refuse(
        self, core: CheckpointManager, books: Books, decision: CommitBarrier, error: EpochlogError
    ) -> list[Decision]:
        if books.at_catalog is decision and isinstance(error, SegmentUnknown):  # all must write again
            for actor in list(books.current):
                self.ends(books.shape, actor)
        books.fenced = books.at_catalog is decision and isinstance(error, Fenced)
        self.known(books, decision, landed=False)
        self.note(decision.job, "refused", decision.barrier_id, type(error).__name__)
        return core.refused(decision.job, decision.barrier_id, error)

    def known(self, books: Books, order: CommitBarrier, *, landed: bool) -> None:
        """Record that the coordinator learns an outcome, unless it has recovered the job since."""
        if books.at_catalog is order:
            books.at_catalog = None
            if landed:
                books.finished |= order.finished
                books.failures = 0

    def land(self, decision: CommitBarrier) -> int | EpochlogError:
        """Run the transaction of a commit."""
        repeated = decision.barrier_id in self.catalog.records[decision.job].outcomes
        try:
            epoch = self.catalog.commit(decision, self.now)
        except EpochlogError as error:
            return error
        if not repeated:
            self.note(decision.job, "landed", decision.barrier_id, epoch >> 12, decision.final)
            self.served(self.books[decision.job], decision.barrier_id)
            self._landed += 1
            if self._landed % LAW_EVERY == 0:
                self.catalog.check_newest(self.now)
        return epoch

    def served(self, books: Books, barrier_id: int) -> None:
        served = books.pending_at.pop(barrier_id, 0)
        books.pending_forced -= served
        books.pending_at = {number: max(0, at - served) for number, at in books.pending_at.items()}

    def _resolve(self, books: Books, decision: Resolve) -> None:
        order = books.at_catalog

        def answer(core: CheckpointManager) -> list[Decision]:
            epoch = self.catalog.resolve(decision.job, decision.barrier_id)
            if order is not None:
                self.known(books, order, landed=epoch is not None)
            self.note(decision.job, "resolved", decision.barrier_id, epoch is not None)
            return core.resolved(decision.job, decision.barrier_id, epoch)

        self.later(books.shape, 3 + self.delay_ms(books.shape) // 8, answer)

    def _announce(self, books: Books, decision: Announce) -> None:
        for actor in decision.finished:
            incarnation = decision.actors[actor]
            self.to_actor(books.shape, actor, incarnation, lambda process: setattr(process, "finished", True))

    def _abort(self, books: Books, decision: Abort) -> None:
        if books.in_flight is not None and books.in_flight.barrier_id == decision.barrier_id:
            books.in_flight = None
        books.failures += not decision.reason.endswith(UNCOUNTED)

    def _drop(self, books: Books, decision: Drop) -> None:
        books.dropped |= {piece.number for pieces in decision.segments.values() for piece in pieces}

    def _restart(self, books: Books, decision: Restart) -> None:
        for actor, ended in decision.actors.items():
            process = self.processes.get((decision.job, actor))
            if process is not None and process.incarnation <= ended and process.lives:
                self.respawn(books.shape, actor, zombie=books.rng.random() < 0.5)

    def _start(self, books: Books, decision: Start) -> None:
        books.started[decision.actor] = decision.incarnation
        state = self.catalog.records[decision.job].states.get(decision.actor, b"")
        process = self.processes[decision.job, decision.actor]
        if process.incarnation in (0, decision.incarnation):  # 0: it has not learned its incarnation yet
            self.at(self.now + self.delay_ms(books.shape), lambda: process.start(decision, state))

    def _finished(self, books: Books, decision: Finished) -> None:
        books.state = "finished"

    def _ended(self, books: Books, decision: Failed | JobStopped) -> None:
        books.state, books.in_flight, books.failures, books.fenced = "ended", None, 0, False
        books.current, books.started = {}, {}
        self.later(books.shape, 300, lambda _: self.renew(decision.job))


EXECUTORS: dict[type, Callable[[World, Books, Any], None]] = {
    Decide: World._decide,
    Inject: World._inject,
    CommitBarrier: World._commit,
    Resolve: World._resolve,
    Announce: World._announce,
    Abort: World._abort,
    Drop: World._drop,
    Restart: World._restart,
    Start: World._start,
    Finished: World._finished,
    Failed: World._ended,
    JobStopped: World._ended,
}
