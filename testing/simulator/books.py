"""Books of the world on each job, by its own account, and the invariants of every decision of the core."""

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

from .catalog import Catalog, Piece
from .shapes import JobShape, Violation


class Books:
    """Facts on one job, by the world's own account."""

    def __init__(self, shape: JobShape, seed: int) -> None:
        self.shape = shape
        self.rng = random.Random(f"{seed} {shape.name}")
        self.current: dict[Actor, int] = {}  # incarnations that have not ended
        self.begun: dict[Actor, int] = {}  # and those that have started
        self.left: set[Actor] = set()  # said that they go
        self.finished: frozenset[Actor] = frozenset()  # by commits whose outcome is known
        self.newest = 0  # the newest barrier that was decided
        self.in_flight: Inject | None = None
        self.at_catalog: CommitBarrier | None = None
        self.sent: dict[tuple[int, Actor, int], Report] = {}  # by barrier, actor, incarnation
        self.dropped: set[int] = set()
        self.asks = 0  # forced checkpoints not served
        self.asks_at: dict[int, int] = {}  # when that barrier was decided
        self.drains = False
        self.state = "running"
        self.failures = 0  # attempts in a row that count
        self.fenced = False  # and knows it

    @property
    def tolerates(self) -> float:
        most = self.shape.settings.tolerable_failures
        return float("inf") if most is None else most


def pieces_of(segments: Segments) -> Iterator[Piece]:
    return (piece for pieces in segments.values() for piece in pieces)


def one_barrier_at_a_time(books: Books, catalog: Catalog, decision: Decide) -> None:
    if books.at_catalog is not None or books.in_flight is not None:
        raise Violation(f"{decision.job}: a barrier is decided while another is in flight")


def inject_is_planned(books: Books, catalog: Catalog, decision: Inject) -> None:
    """Let a barrier wait for all actors that have not finished, and trigger only those that have started."""
    name = decision.job
    if books.at_catalog is not None or books.in_flight is not None:
        raise Violation(f"{name}: two barriers are in flight")
    if books.state != "running" or books.failures > books.tolerates or books.fenced:
        raise Violation(f"{name}: a barrier of a job that is {books.state}, after {books.failures} failures")
    actors, finished = set(books.shape.actors), books.finished
    if not actors - finished - books.left <= decision.waits <= actors - finished:
        raise Violation(f"{name}: waits for {sorted(decision.waits)}, finished are {sorted(finished)}")
    if not decision.targets.keys() <= decision.waits or not decision.targets:
        raise Violation(f"{name}: triggers {sorted(decision.targets)} of {sorted(decision.waits)}")
    for actor, incarnation in decision.targets.items():
        if books.begun.get(actor) != incarnation:
            raise Violation(f"{name}: {actor} is triggered as {incarnation}, it is {books.begun.get(actor)}")


def commit_is_due(books: Books, catalog: Catalog, decision: CommitBarrier) -> None:
    """Let a commit have all reports of its attempt, and each piece of an incarnation that has not ended once."""
    name, number = decision.job, decision.barrier_id
    inject, finished = books.in_flight, books.finished
    gone = set(books.shape.actors) - finished <= books.left
    if books.at_catalog is not None or (inject is None and not gone):
        raise Violation(f"{name}: a commit of {number} out of turn")
    if inject is not None and inject.barrier_id != number:
        raise Violation(f"{name}: a commit of {number} while {inject.barrier_id} is in flight")
    for actor in inject.waits if inject is not None else ():
        report = books.sent.get((number, actor, books.current.get(actor, 0)))
        if report is None:
            raise Violation(f"{name}: a commit of {number} without a report of {actor}")
        if decision.states.get(actor) != report.state:
            raise Violation(f"{name}: the state of {actor} is not the one reported")
    sent = (books.sent.get((number, actor, incarnation)) for actor, incarnation in books.current.items())
    ended = {report.actor for report in sent if report is not None and report.ended}
    if not decision.finished <= finished | books.left | ended:
        raise Violation(f"{name}: {sorted(decision.finished)} are said to have finished")
    seen: set[int] = set()
    for piece in pieces_of(decision.segments):
        if piece.number in seen or piece.number in books.dropped:
            raise Violation(f"{name}: piece {piece.number} is committed twice, or after it was dropped")
        if books.current.get(piece.actor) != piece.incarnation and piece.actor not in finished:
            raise Violation(f"{name}: a piece of {piece.actor}, whose incarnation {piece.incarnation} has ended")
        seen.add(piece.number)


def announced_is_committed(books: Books, catalog: Catalog, decision: Announce) -> None:
    if catalog.records[decision.job].outcomes.get(decision.barrier_id) != decision.epoch:
        raise Violation(f"{decision.job}: {decision.barrier_id} is announced and was not committed")


def dropped_is_never_committed(books: Books, catalog: Catalog, decision: Drop) -> None:
    kept = catalog.landed | {piece.number for piece in pieces_of(books.at_catalog.segments if books.at_catalog else {})}
    for piece in pieces_of(decision.segments):
        if piece.number in kept:
            raise Violation(f"{decision.job}: piece {piece.number} is dropped and is, or may be, committed")


def restart_has_a_reason(books: Books, catalog: Catalog, decision: Restart) -> None:
    for actor, ended in decision.actors.items():
        if ended and books.current.get(actor) == ended:
            raise Violation(f"{decision.job}: {actor} is restarted, and nothing has happened to {ended}")


def start_has_a_settled_state(books: Books, catalog: Catalog, decision: Start) -> None:
    if books.at_catalog is not None:
        raise Violation(f"{decision.job}: {decision.actor} starts while a commit is on its way")
    if decision.finished != (decision.actor in catalog.records[decision.job].finished):
        raise Violation(f"{decision.job}: {decision.actor} starts as finished: {decision.finished}")
    if books.current.get(decision.actor) != decision.incarnation:
        raise Violation(f"{decision.job}: {decision.actor} starts as {decision.incarnation}")


def finished_is_recorded(books: Books, catalog: Catalog, decision: Finished) -> None:
    if set(books.shape.actors) != catalog.records[decision.job].finished:
        raise Violation(f"{decision.job}: finished, and the catalog does not know")


def failed_after_too_many(books: Books, catalog: Catalog, decision: Failed) -> None:
    if books.failures <= books.tolerates and not books.fenced:
        raise Violation(f"{decision.job}: failed after {books.failures} failures in a row")


def stopped_with_nothing_on_its_way(books: Books, catalog: Catalog, decision: JobStopped) -> None:
    if books.at_catalog is not None:
        raise Violation(f"{decision.job}: stopped while a commit is on its way")


INVARIANTS: dict[type, Callable[[Books, Catalog, Any], None]] = {
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


def check_decision(books: Books, catalog: Catalog, decision: Decision) -> None:
    """Check a decision before it is carried out; Violation says what is broken."""
    invariant = INVARIANTS.get(type(decision))
    if invariant is not None:
        invariant(books, catalog, decision)
