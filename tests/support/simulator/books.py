"""Model of each job, kept by the world apart from the core, and the invariants of every decision of the core."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from epochlog.checkpoint import Report
from epochlog.checkpoint.manager.commands import (
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
    Restart,
    Segments,
    Start,
)

from .catalog import DataPiece, SimulatedCatalog
from .shapes import JobShape, Violation


class Books:
    """Facts on one job, recorded by the world itself."""

    def __init__(self, shape: JobShape, seed: int) -> None:
        self.shape = shape
        self.rng = random.Random(f"{seed} {shape.name}")
        self.newest = 0  # the newest decided barrier
        self.sent: dict[tuple[int, Actor, int], Report] = {}  # by barrier, actor, incarnation
        self.dropped: set[int] = set()
        self.drains = False
        self.begin(frozenset())

    def begin(self, finished: frozenset[Actor]) -> None:
        """Begin a registration of the job at a manager, which knows nothing of the one before."""
        self.current: dict[Actor, int] = {}  # incarnations that have not ended
        self.started: dict[Actor, int] = {}  # incarnations that have started
        self.finished = finished  # as of commits with a known outcome
        self.in_flight: Inject | None = None
        self.at_catalog: CommitBarrier | None = None
        self.pending_forced = 0  # forced checkpoints not served
        self.pending_at: dict[int, int] = {}  # `pending_forced` when that barrier was decided
        self.state = "running"
        self.failures = 0  # counted failures in a row
        self.fenced = False  # its coordinator has been told

    @property
    def tolerates(self) -> float:
        most = self.shape.settings.tolerable_failures
        return float("inf") if most is None else most


def pieces_of(segments: Segments) -> Iterator[DataPiece]:
    return (piece for pieces in segments.values() for piece in pieces)


def one_barrier_at_a_time(books: Books, catalog: SimulatedCatalog, decision: Decide) -> None:
    if books.at_catalog is not None or books.in_flight is not None:
        raise Violation(f"{decision.job}: a barrier is decided while another is in flight")


def inject_is_planned(books: Books, catalog: SimulatedCatalog, decision: Inject) -> None:
    """Check that a barrier goes to all actors that have not finished, under the incarnations that have started."""
    name = decision.job
    if books.at_catalog is not None or books.in_flight is not None:
        raise Violation(f"{name}: two barriers are in flight")
    if books.state != "running" or books.failures > books.tolerates or books.fenced:
        raise Violation(f"{name}: a barrier of a job that is {books.state}, after {books.failures} failures")
    if not decision.targets or decision.targets.keys() != set(books.shape.actors) - books.finished:
        raise Violation(f"{name}: triggers {sorted(decision.targets)}, finished are {sorted(books.finished)}")
    for actor, incarnation in decision.targets.items():
        if books.started.get(actor) != incarnation:
            raise Violation(f"{name}: {actor} is triggered as {incarnation}, but it is {books.started.get(actor)}")


def commit_is_due(books: Books, catalog: SimulatedCatalog, decision: CommitBarrier) -> None:
    """Check that a commit has all reports of its attempt, and each piece of a live incarnation once."""
    name, number = decision.job, decision.barrier_id
    inject, finished = books.in_flight, books.finished
    if books.at_catalog is not None or inject is None:
        raise Violation(f"{name}: a commit of {number} out of turn")
    if inject.barrier_id != number:
        raise Violation(f"{name}: a commit of {number} while {inject.barrier_id} is in flight")
    for actor in inject.targets:
        report = books.sent.get((number, actor, books.current.get(actor, 0)))
        if report is None:
            raise Violation(f"{name}: a commit of {number} without a report of {actor}")
        if decision.states.get(actor) != report.state:
            raise Violation(f"{name}: the state of {actor} differs from its report")
    sent = (books.sent.get((number, actor, incarnation)) for actor, incarnation in books.current.items())
    ended = {report.actor for report in sent if report is not None and report.ended}
    if not decision.finished <= finished | ended:
        raise Violation(f"{name}: {sorted(decision.finished)} have not all finished")
    numbers: set[int] = set()
    for piece in pieces_of(decision.segments):
        if piece.number in numbers or piece.number in books.dropped:
            raise Violation(f"{name}: piece {piece.number} is committed twice, or after it was dropped")
        if books.current.get(piece.actor) != piece.incarnation and piece.actor not in finished:
            raise Violation(f"{name}: a piece of {piece.actor}, whose incarnation {piece.incarnation} has ended")
        numbers.add(piece.number)


def announced_is_committed(books: Books, catalog: SimulatedCatalog, decision: Announce) -> None:
    if catalog.records[decision.job].outcomes.get(decision.barrier_id) != decision.epoch:
        raise Violation(f"{decision.job}: {decision.barrier_id} is announced, but was not committed")


def dropped_is_never_committed(books: Books, catalog: SimulatedCatalog, decision: Drop) -> None:
    committed = catalog.landed | {
        piece.number for piece in pieces_of(books.at_catalog.segments if books.at_catalog else {})
    }
    for piece in pieces_of(decision.segments):
        if piece.number in committed:
            raise Violation(f"{decision.job}: piece {piece.number} is dropped, but is or may be committed")


def restart_has_a_reason(books: Books, catalog: SimulatedCatalog, decision: Restart) -> None:
    for actor, ended in decision.actors.items():
        if ended and books.current.get(actor) == ended:
            raise Violation(f"{decision.job}: {actor} is restarted, but {ended} is alive")


def start_has_a_settled_state(books: Books, catalog: SimulatedCatalog, decision: Start) -> None:
    if books.at_catalog is not None:
        raise Violation(f"{decision.job}: {decision.actor} starts while a commit is on its way")
    if decision.finished != (decision.actor in catalog.records[decision.job].finished):
        raise Violation(f"{decision.job}: {decision.actor} starts as finished: {decision.finished}")
    if books.current.get(decision.actor) != decision.incarnation:
        raise Violation(f"{decision.job}: {decision.actor} starts as {decision.incarnation}")


def finished_is_recorded(books: Books, catalog: SimulatedCatalog, decision: Finished) -> None:
    if set(books.shape.actors) != catalog.records[decision.job].finished:
        raise Violation(f"{decision.job}: finished, but not in the catalog")


def failed_after_too_many(books: Books, catalog: SimulatedCatalog, decision: Failed) -> None:
    if books.failures <= books.tolerates and not books.fenced:
        raise Violation(f"{decision.job}: failed after {books.failures} failures in a row")


def stopped_with_nothing_on_its_way(books: Books, catalog: SimulatedCatalog, decision: JobStopped) -> None:
    if books.at_catalog is not None:
        raise Violation(f"{decision.job}: stopped while a commit is on its way")


INVARIANTS: dict[type, Callable[[Books, SimulatedCatalog, Any], None]] = {
    Decide: one_barrier_at_a_time,
    Inject: inject_is_planned,
    CommitBarrier: commit_is_due,
    Announce: announced_is_committed,
    Drop: dropped_is_never_committed,
    Restart: restart_has_a_reason,
    Start: start_has_a_settled_state,
    Finished: finished_is_recorded,
    Failed: failed_after_too_many,
    JobStopped: stopped_with_nothing_on_its_way,
}


def check_decision(books: Books, catalog: SimulatedCatalog, decision: Decision) -> None:
    """Check a decision before it is executed; raise Violation with the broken invariant."""
    invariant = INVARIANTS.get(type(decision))
    if invariant is not None:
        invariant(books, catalog, decision)
