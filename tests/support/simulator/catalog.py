"""Model catalog of the simulation: small dicts for states, and the real EpochView and next_barrier for decisions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from epochlog.checkpoint.job.next_barrier import Barrier, InputPosition, next_barrier
from epochlog.checkpoint.manager.commands import Actor, CommitBarrier
from epochlog.errors import BarrierChanged, Fenced, TxnAborted, UpstreamIncomplete
from epochlog.store.epochs.table_epochs import TableEpochs
from epochlog.store.epochs.view import EpochView
from epochlog.store.types.epoch import EPOCH_ORIGIN_MS, boundary, from_unix_ms, newest_index, show_epoch
from epochlog.store.types.epoch_set import FAR, ints

from .shapes import INTERVAL_MS, JobShape, Violation

State = dict[Any, int]
BUCKETS = 7


@dataclass(frozen=True)
class DataPiece:
    """Segment: the changes of one incarnation of an actor; the value None deletes the key."""

    number: int
    actor: Actor
    incarnation: int
    changes: Mapping[Any, int | None]


@dataclass
class SimulatedTable:
    name: str
    number: int
    job: JobShape
    commits: list[int] = field(default_factory=list)
    changes: list[int] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    ended: int | None = None
    epochs: TableEpochs | None = None

    def at(self, epoch: int) -> State:
        """Return the rows at the newest commit at or below the epoch."""
        index = bisect_right(self.commits, epoch)
        return self.states[index - 1] if index else {}


@dataclass
class Record:
    """Record of a job or load in the catalog."""

    shape: JobShape
    incarnation: int = 0
    number: int = 0  # of commits
    position: int = 0
    barrier: Barrier | None = None
    states: dict[Actor, bytes] = field(default_factory=dict)
    finished: frozenset[Actor] = frozenset()
    over: bool = False
    outcomes: dict[int, int | None] = field(default_factory=dict)


def query(upstreams: Iterable[State]) -> State:
    """Compute the query of every derived table: a sum per bucket, and the number of rows, 0 included."""
    rows: State = {"rows": 0}
    for state in upstreams:
        rows["rows"] += len(state)
        for key, value in state.items():
            bucket = (key[1] if isinstance(key, tuple) else ord(key[-1])) % BUCKETS
            name = f"b{bucket}"
            rows[name] = rows.get(name, 0) + value
    return rows


class SimulatedCatalog:
    """Durable state. Its transactions are atomic; the world decides when they answer."""

    def __init__(self, jobs: Iterable[JobShape]) -> None:
        self.last_epoch = 0
        self.forced: list[int] = []
        self.records = {shape.name: Record(shape) for shape in jobs}
        self.tables = {
            shape.table: SimulatedTable(shape.table, number, shape)
            for number, shape in enumerate((record.shape for record in self.records.values()), start=1)
        }
        self.landed: set[int] = set()  # numbers of committed pieces
        self.counts: dict[tuple[str, int], int] = {}

    # ---- reading -------------------------------------------------------------------------------------------------

    def view(self, now: int) -> EpochView:
        return EpochView(self.last_epoch, now, {table.number: self._epochs(table) for table in self.tables.values()})

    def _epochs(self, table: SimulatedTable) -> TableEpochs:
        if table.epochs is None:
            ups = tuple(self.tables[name].number for name in table.job.upstreams)
            table.epochs = TableEpochs(
                table.number, table.name, derived=table.job.derived, upstreams=ups,
                commits=ints(table.commits), changes=ints(table.changes),
            )  # fmt: skip
        return table.epochs

    def answer(self, shape: JobShape, epoch: int) -> State:
        """Compute the query of a job at an epoch."""
        return query(self.tables[name].at(epoch) for name in shape.upstreams)

    def inputs_ended(self, shape: JobShape, epoch: int) -> bool:
        ends = [self.tables[name].ended for name in shape.upstreams]
        return shape.derived and all(end is not None and end <= epoch for end in ends)

    def settled(self, shape: JobShape, now: int) -> bool:
        """Return True if the job has committed all changes up to the newest sealed boundary."""
        record, view = self.records[shape.name], self.view(now)
        newest = max([boundary(newest_index(self.last_epoch, INTERVAL_MS), INTERVAL_MS), *self.forced[-1:]])
        return record.position > 0 and all(
            view.complete(name, newest) and view.table(name).first_change(record.position) > newest
            for name in shape.upstreams
        )

    # ---- writing -------------------------------------------------------------------------------------------------

    def claim(self, job: str) -> int:
        self.records[job].incarnation += 1
        return self.records[job].incarnation

    def seal(self, now: int) -> None:
        self.last_epoch = max(self.last_epoch, boundary((now - EPOCH_ORIGIN_MS) // INTERVAL_MS, INTERVAL_MS))

    def force(self, now: int) -> None:
        self.last_epoch = max(self.last_epoch + 1, from_unix_ms(now))
        self.forced.append(self.last_epoch)

    def decide(self, shape: JobShape, now: int) -> tuple[Barrier | None, bool]:
        """Record and return the next barrier (a load's is that of its commits), and True if no change is
        left for one.
        """
        record = self.records[shape.name]
        if not shape.derived:
            return Barrier(record.number, record.number + 1, "checkpoint"), False
        if record.barrier is None:
            self.seal(now)
            record.barrier = next_barrier(
                self.view(now),
                InputPosition(
                    [self.tables[name].number for name in shape.upstreams],
                    record.position,
                    INTERVAL_MS * shape.interval,
                    forced=self.forced,
                ),
                max_lag=shape.max_lag,
                first=record.position == 0,
                snapshot=shape.snapshot,
            )
        settled = record.barrier is None and self.settled(shape, now)
        return record.barrier, settled

    def resolve(self, job: str, barrier_id: int) -> int | None:
        return self.records[job].outcomes.setdefault(barrier_id, None)

    def commit(self, order: CommitBarrier, now: int) -> int:
        """Commit in one transaction; a repeated order returns its first outcome. Raises the errors of the
        real catalog.
        """
        record = self.records[order.job]
        if order.barrier_id in record.outcomes:
            epoch = record.outcomes[order.barrier_id]
            if epoch is None:
                raise TxnAborted("resolved before")
            return epoch
        if record.incarnation != order.incarnation:
            raise Fenced("another coordinator has claimed the job")
        if record.over:
            raise Violation(f"{order.job} commits after its end")
        table = self.tables[record.shape.table]
        pieces: list[DataPiece] = list(order.segments.get(table.name, ()))
        for piece in pieces:
            if piece.number in self.landed:
                raise Violation(f"{order.job}: piece {piece.number} is committed twice")
            self.landed.add(piece.number)
        epoch = self._epoch(record, order, table, now)
        self._append(table, epoch, pieces, end=order.final and record.shape.derived)
        if order.final:
            record.over = True
            if not record.shape.derived:
                self._append(table, epoch + 1, [], end=True)
                self.last_epoch = epoch + 1
        record.number, record.position, record.barrier = record.number + 1, epoch, None
        record.states.update(order.states)
        record.finished |= order.finished
        record.outcomes[order.barrier_id] = epoch
        self._check(record, table, pieces)
        return epoch

    def _epoch(self, record: Record, order: CommitBarrier, table: SimulatedTable, now: int) -> int:
        if not record.shape.derived:
            self.last_epoch = max(self.last_epoch + 1, from_unix_ms(now))
            return self.last_epoch
        if order.barrier != record.barrier or order.barrier.prev != record.position:
            raise BarrierChanged(f"{order.job}: {order.barrier} is not {record.barrier}")
        view = self.view(now)
        for name in record.shape.upstreams:
            if not view.complete(name, order.barrier.curr):
                raise UpstreamIncomplete(name)
        through = view.complete_through(table.number)
        if order.barrier.curr <= through and any(order.segments.values()):
            raise Violation(
                f"{order.job} changes {show_epoch(order.barrier.curr)}, complete through {show_epoch(through)}"
            )
        return order.barrier.curr

    def _append(self, table: SimulatedTable, epoch: int, pieces: list[DataPiece], *, end: bool) -> None:
        if table.commits and epoch <= table.commits[-1]:
            raise Violation(f"{table.name}: epoch {show_epoch(epoch)} after {show_epoch(table.commits[-1])}")
        state = dict(table.states[-1]) if table.states else {}
        for piece in pieces:
            for key, value in piece.changes.items():
                if not table.job.derived:
                    if key in state:
                        raise Violation(f"{table.name}: row {key} is committed twice")
                    owner = (table.name, key[0])
                    self.counts[owner] = self.counts.get(owner, 0) + 1
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
        table.commits.append(epoch)
        table.states.append(state)
        if end:
            table.ended = epoch
        if end or any(piece.changes for piece in pieces):
            table.changes.append(epoch)
        table.epochs = None

    def _check(self, record: Record, table: SimulatedTable, pieces: list[DataPiece]) -> None:
        """Check a job's commit against its query, and a load's against the offsets committed with its rows."""
        shape = record.shape
        if shape.derived:
            expected, actual = self.answer(shape, record.position), table.at(record.position)
            if expected != actual:
                raise Violation(f"the law: {table.name} at {show_epoch(record.position)} is {actual}, not {expected}")
            return
        for actor in shape.sources:
            offset = int(record.states.get(actor, b"0"))
            count = self.counts.get((table.name, actor[1]), 0)
            if count != offset:
                raise Violation(f"{table.name}: {count} rows of {actor}, whose state is {offset}")

    # ---- the law, everywhere -------------------------------------------------------------------------------------

    def check_law(self, now: int) -> None:
        """Check each derived table against its query at both ends of each valid interval; it is constant within one."""
        view = self.view(now)
        for table in self.tables.values():
            if not table.job.derived:
                continue
            starts, ends = view.valid_intervals(table.number)
            for epoch in {*starts.tolist(), *ends.tolist()}:
                if table.at(epoch) != self.answer(table.job, epoch):
                    raise Violation(f"the law: {table.name} at {show_epoch(epoch)}, which is valid")

    def check_newest(self, now: int) -> None:
        """Check all tables at the epoch that a reader of all of them gets now."""
        view = self.view(now)
        epoch = view.largest_valid_at_most(list(view.tables))
        for table in self.tables.values():
            if epoch is not None and table.job.derived and table.at(epoch) != self.answer(table.job, epoch):
                raise Violation(f"the law: {table.name} at {show_epoch(epoch)}, which is valid for all")

    def caught_up(self, now: int) -> bool:
        """Return True if the newest epoch is valid for all tables."""
        self.seal(now)
        view = self.view(now)
        valid = view.largest_valid_at_most(list(view.tables))
        return valid == self.last_epoch and self.last_epoch < FAR
