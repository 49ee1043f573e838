"""A slow history of a random graph of jobs; the rules of reading and of barriers stand here as their definitions.

Nothing here is shared with the library but the boundary arithmetic: entries are plain lists, every question is answered
by looking at all of them, and boundaries are walked one by one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from epochlog.store.epochs.table_epochs import TableEpochs
from epochlog.store.epochs.view import EpochView
from epochlog.store.types.epoch import boundary, boundary_index, to_unix_ms

INTERVAL_MS = 1
WIDTH = INTERVAL_MS << 12


@dataclass
class HistoryEntry:
    epoch: int
    state: dict[str, int]
    changed: bool
    ends: bool = False


@dataclass
class JobSpec:
    upstreams: list[str]
    interval: int = 1
    max_lag: int = 3
    snapshot: bool = False
    counts: bool = True  # the answer has a row even over empty inputs
    stride: int = 1  # boundaries that a step of a slow job takes at once


@dataclass
class History:
    roots: list[str]
    jobs: dict[str, JobSpec]
    last_epoch: int = 0
    forced: list[int] = field(default_factory=list)
    log: dict[str, list[HistoryEntry]] = field(default_factory=dict)
    known_from: dict[str, int] = field(default_factory=dict)
    safe_epoch: dict[str, int] = field(default_factory=dict)
    drains: dict[str, int] = field(default_factory=dict)  # jobs told to end, and through which epoch

    def __post_init__(self) -> None:
        self.names = [*self.roots, *self.jobs]
        self.log = self.log or {name: [] for name in self.names}

    # ---- the definitions of reading ------------------------------------------------------------------------------

    def upstreams(self, table: str) -> list[str]:
        return self.jobs[table].upstreams if table in self.jobs else []

    def commit_at(self, table: str, epoch: int) -> int:
        return max([entry.epoch for entry in self.log[table] if entry.epoch <= epoch], default=0)

    def position(self, table: str) -> int:
        return self.commit_at(table, self.last_epoch)

    def state(self, table: str, epoch: int) -> dict[str, int]:
        states = [entry.state for entry in self.log[table] if entry.epoch <= epoch]
        return states[-1] if states else {}

    def remembers(self, table: str, after: int) -> bool:
        return self.known_from.get(table, 0) <= after

    def changed(self, table: str, after: int, until: int) -> bool:
        """Return True if the table changed, or may have: forgotten commits count as changes."""
        forgotten = not self.remembers(table, after) and until > after
        return forgotten or any(entry.changed and after < entry.epoch <= until for entry in self.log[table])

    def complete(self, table: str, epoch: int) -> bool:
        if epoch > self.last_epoch:
            return False
        if table in self.roots or epoch <= self.position(table) or self.ended(table):
            return True
        if not self.log[table]:
            return False
        position = self.position(table)
        return all(self.complete(u, epoch) and not self.changed(u, position, epoch) for u in self.upstreams(table))

    def valid(self, table: str, epoch: int) -> bool:
        if not self.complete(table, epoch):
            return False
        if table in self.roots:
            return True
        commit = self.commit_at(table, epoch)
        if self.ended(table) and commit == self.position(table):
            return True
        return commit > 0 and all(
            self.valid(u, epoch) and self.remembers(u, commit) and not self.changed(u, commit, epoch)
            for u in self.upstreams(table)
        )

    def aligned(self, tables: list[str], until: int) -> int | None:
        """The largest epoch <= until valid for all. Between neighbouring marks nothing differs, so marks will do."""
        floor = max(self.safe_epoch.get(table, 0) for table in tables)
        marks = [epoch for epoch in {*self.marks(), until} if floor <= epoch <= until]
        return next((e for e in sorted(marks, reverse=True) if all(self.valid(t, e) for t in tables)), None)

    def marks(self) -> list[int]:
        """Every epoch at which anything can begin or end to hold, with its neighbours."""
        events = {0, self.last_epoch, *self.forced, *self.known_from.values(), *self.safe_epoch.values()}
        events.update(entry.epoch for log in self.log.values() for entry in log)
        events.update(self.boundaries())
        return sorted({e + d for e in events for d in (-1, 0, 1) if e + d >= 0})

    # ---- the definitions of barriers -----------------------------------------------------------------------------

    def boundaries(self, interval: int = 1) -> list[int]:
        out, k = [], interval
        while boundary(k, INTERVAL_MS) <= self.last_epoch:
            out.append(boundary(k, INTERVAL_MS))
            k += interval
        return out

    def next_barrier(self, job: str, after: int, first: bool) -> int | None:
        spec = self.jobs[job]
        regular = self.boundaries(spec.interval)
        clean, usable = [], []
        for stop in sorted({*regular, *self.forced}):
            if stop <= after:
                continue
            if not all(self.complete(u, stop) for u in spec.upstreams):
                break
            if not all(self.valid(u, stop) and stop >= self.safe_epoch.get(u, 0) for u in spec.upstreams):
                continue
            clean.append(stop)
            last = stop >= self.drains.get(job, stop + 1)
            if last or any(self.changed(u, after, stop) for u in spec.upstreams):
                usable.append(stop)
            if last:
                break
        if first and (spec.snapshot or not usable):
            return clean[-1] if clean else None
        if not usable:
            return None
        lag = sum(1 for stop in regular if stop > usable[0])
        power = 1
        while lag > spec.max_lag and power * 2 <= lag:
            power *= 2
        power = max(power, spec.stride)
        merged = [stop for stop in usable if stop in regular and (regular.index(stop) + 1) % power == 0]
        if power > 1 and merged:
            return merged[-1]
        return usable[-1] if spec.stride > 1 else usable[0]

    # ---- writing -------------------------------------------------------------------------------------------------

    def ended(self, table: str) -> bool:
        return bool(self.log[table]) and self.log[table][-1].ends

    def commit_root(self, table: str, rng: random.Random) -> None:
        if self.ended(table):
            return
        for _ in range(rng.choice([1, 1, 1, 3])):  # three labels of one commit, or one
            self.last_epoch += rng.randint(1, WIDTH)
            state, changed = dict(self.state(table, self.last_epoch)), rng.random() > 0.25
            if changed:
                state[f"k{rng.randrange(4)}"] = rng.randrange(1, 99)
            self.log[table].append(HistoryEntry(self.last_epoch, state, changed))

    def finish_root(self, table: str) -> None:
        if not self.ended(table):
            self.last_epoch += 1
            self.log[table].append(
                HistoryEntry(self.last_epoch, self.state(table, self.last_epoch), changed=True, ends=True)
            )

    def drain(self, job: str, rng: random.Random) -> None:
        """Now and then at a boundary that is there already."""
        if rng.random() < 0.7 or self.position(job) == self.last_epoch:
            self.last_epoch += rng.randint(1, WIDTH)
        self.forced = sorted({*self.forced, self.last_epoch})
        self.drains.setdefault(job, self.last_epoch)

    def seal(self) -> None:
        index = (self.last_epoch + 1) // WIDTH + 1
        self.last_epoch = boundary(index, INTERVAL_MS)

    def force(self, rng: random.Random) -> None:
        self.last_epoch += rng.randint(1, WIDTH)
        self.forced.append(self.last_epoch)

    def query(self, job: str, epoch: int) -> dict[str, int]:
        spec, out = self.jobs[job], {}
        for upstream in spec.upstreams:
            for key, value in self.state(upstream, epoch).items():
                out[key] = out.get(key, 0) + value
        return {**out, "rows": len(out)} if spec.counts else out

    def step(self, job: str, decide: Callable[[History, str], int | None]) -> bool:
        if self.ended(job):
            return False
        stop = decide(self, job)
        if stop is None:
            return False
        before, state = self.state(job, self.last_epoch), self.query(job, stop)
        ends = all(self.ended(u) and self.log[u][-1].epoch <= stop for u in self.upstreams(job))
        ends = ends or stop >= self.drains.get(job, stop + 1)
        self.log[job].append(HistoryEntry(stop, state, changed=state != before or ends, ends=ends))
        return True

    # ---- what the library is asked about -------------------------------------------------------------------------

    def view(self, empty_entries_count: bool = False) -> EpochView:
        ids = {name: number for number, name in enumerate(self.names, start=1)}
        tables = {}
        for name, number in ids.items():
            known = self.known_from.get(name, 0)
            changes = [e.epoch for e in self.log[name] if (e.changed or empty_entries_count) and e.epoch > known]
            tables[number] = TableEpochs(
                table_id=number,
                name=name,
                state="finished" if self.ended(name) else "created",
                derived=name in self.jobs,
                upstreams=tuple(ids[u] for u in self.upstreams(name)),
                safe_epoch=self.safe_epoch.get(name, 0),
                commits=[e.epoch for e in self.log[name]],  # pyright: ignore[reportArgumentType]
                changes=changes,  # pyright: ignore[reportArgumentType]
                known_from=known,
            )
        return EpochView(self.last_epoch, to_unix_ms(self.last_epoch) + 1_000, tables)


def random_history(rng: random.Random) -> History:
    """A graph of one to three roots and one to five jobs, some upon others, nothing committed yet."""
    roots = [f"r{i}" for i in range(rng.randint(1, 3))]
    jobs: dict[str, JobSpec] = {}
    for i in range(rng.randint(1, 5)):
        pool = [*roots, *jobs]
        jobs[f"j{i}"] = JobSpec(
            upstreams=rng.sample(pool, rng.randint(1, min(3, len(pool)))),
            interval=rng.choice([1, 1, 2, 3, 5]),
            max_lag=rng.choice([0, 1, 3, 100]),
            snapshot=rng.random() < 0.5,
            counts=rng.random() < 0.7,
        )
    return History(roots, jobs)


def play(
    history: History, rng: random.Random, decide: Callable[[History, str], int | None], steps: int = 40
) -> Iterator[History]:
    """Random load: root commits, sealing, forced boundaries, roots that end, drained jobs, a slow one. Yields now and
    then.
    """
    slow = rng.choice(list(history.jobs))
    for number in range(steps):
        for root in history.roots:
            if rng.random() < 0.4:
                history.commit_root(root, rng)
            elif rng.random() < 0.02:
                history.finish_root(root)
        if rng.random() < 0.8:
            history.seal()
        if rng.random() < 0.1:
            history.force(rng)
        if rng.random() < 0.02:
            history.drain(rng.choice(list(history.jobs)), rng)
        for job in history.jobs:
            if rng.random() < (0.07 if job == slow else 0.5):
                history.step(job, decide)
        if number % 8 == 7:
            yield history


def is_regular(epoch: int) -> bool:
    return boundary_index(epoch, INTERVAL_MS) is not None
