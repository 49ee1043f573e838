"""A small graph of jobs under all that may be done to jobs and tables, between refreshes and in the middle of them.

Outputs get other settings, are adopted, drained, made anew and dropped; jobs get other intervals. The model is the
rows of each root table at each epoch, and the queries; what the store says is valid is compared with their answers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import epochlog as el
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import read_epoch_view
from lab import Lab
from law_queries import KEY, SCHEMA, Query, State, keys_of, random_query, state_of, sums, table_of

BOUND_MS = 600_000
GONE = (el.Fenced, el.JobNotFound, el.JobParked, el.BarrierChanged, el.TableDropped, el.SegmentUnknown)
"""What a refresh may end with when something was done to its job meanwhile."""
NOT_NOW = (el.NoConsistentEpoch, el.TableNotReadable, el.EpochExpired, el.EpochNotCommitted)


class RequestedError(Exception):
    """Error that a refresh raises on request."""


class Mixed:
    """One store and its model. `seed` repeats it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.rng, self.lab = seed, random.Random(seed), Lab(folder)
        self.truth: dict[str, list[tuple[int, State]]] = {}  # of root tables, by epoch
        self.since: dict[str, int] = {}  # of adopted ones, from which epoch on
        self.queries: dict[str, Query] = {}  # of all outputs there ever were
        self.ended: dict[str, int] = {}  # outputs of jobs that have finished, and where
        self.jobs: dict[str, Query] = {}
        self.runners: dict[str, el.Job] = {}
        self.tokens: list[tuple[str, dict[str, State]]] = []
        self.seen: Counter[str] = Counter()
        self.made = 0
        self.create_table()
        for _ in range(self.rng.randint(1, 3)):
            self.create_job()

    @property
    def store(self) -> el.Store:
        return self.lab.store

    def check(self, holds: bool, *what: object) -> None:
        assert holds, (f"seed {self.seed}", *what)

    def tables(self) -> list[str]:
        return [table.name for table in self.store.tables()]

    def view(self) -> EpochView:
        handle = self.store._handle
        return handle.catalog.read(lambda view: read_epoch_view(view, handle.memory, self.lab.now_ms, handle.store_id))

    def answer(self, table: str, epoch: int) -> State:
        """The rows that the table must have at a valid epoch."""
        if table in self.truth and epoch >= self.since.get(table, 0):
            return next((rows for at, rows in reversed(self.truth[table]) if at <= epoch), {})
        query, epoch = self.queries[table], min(epoch, self.ended.get(table, epoch))
        return query.answer({up: self.answer(up, epoch) for up in query.upstreams})[table]

    # ---- tables ----------------------------------------------------------------------------------------------------

    def options(self) -> el.TableOptions:
        history = self.rng.choice([timedelta(0), timedelta(minutes=5), timedelta(hours=1)])
        return el.TableOptions(history_retention=history, compact_segments=self.rng.choice([2, 8]))

    def create_table(self) -> None:
        self.made += 1
        name = f"r{self.made}"
        self.lab.root_table(name, changelog=self.rng.choice([None, "full"]), options=self.options())
        self.truth[name] = [(0, {})]

    def put(self) -> None:
        """One commit to one or two root tables."""
        rng, new = self.rng, dict[str, State]()
        roots = [table for table in self.tables() if table in self.truth]
        with self.store.transaction() as tx:
            for table in rng.sample(roots, min(len(roots), rng.choice([1, 1, 2]))):
                rows = self.truth[table][-1][1]
                upserts = {rng.randrange(8): (rng.randrange(-3, 8), rng.randrange(9)) for _ in range(rng.randrange(4))}
                if rows and rng.random() < 0.2:
                    upserts |= rng.sample(list(rows.items()), 1)
                gone = {k for k in range(8) if rng.random() < 0.15}
                tx.upsert(table, table_of(upserts))
                tx.delete(table, keys_of(gone))
                new[table] = {k: row for k, row in {**rows, **upserts}.items() if k not in gone}
        for table, rows in new.items():
            self.truth[table].append((tx.epoch, rows))

    def alter(self) -> None:
        settings: dict[str, Any] = {"changelog": self.rng.choice(["full", "upsert"])}
        name = self.rng.choice(self.tables())
        if self.rng.random() < 0.5:
            settings["options"] = self.options()
        if name not in self.truth:
            settings["drop_unchanged"] = self.rng.random() < 0.7
        self.store.table(name).alter(**settings)

    def compact(self) -> None:
        self.store.compact(self.rng.choice([*self.tables(), None]), full=self.rng.random() < 0.5)

    def vacuum(self) -> None:
        self.store.vacuum(grace=0)

    def tick(self) -> None:
        self.lab.tick(self.rng.choice([0.3, 1, 1, 2, 5, 60, 60, 240]))

    # ---- jobs ------------------------------------------------------------------------------------------------------

    def create_job(self) -> None:
        if len(self.jobs) >= 4:
            return
        self.made += 1
        rng, name = self.rng, f"j{self.made}"
        query = random_query(rng, name, self.tables())
        whole = all(self.store.table(up).info.log_start_epoch == 0 for up in query.upstreams)
        self.runners[name] = self.store.create_job(
            name,
            list(query.upstreams),
            {out: el.Output(SCHEMA, KEY, rng.choice(["upsert", "full"]), self.options()) for out in query.outputs},
            backfill="log" if whole and rng.random() < 0.4 else "snapshot",
            interval=rng.choice([1, 1, 2, 3, timedelta(minutes=1), timedelta(minutes=4)]),
            max_lag=rng.choice([0, 1, 30, 100]),
            snapshot_rows=rng.choice([None, None, 1, 3]),
        )
        self.jobs[name] = query
        self.queries |= dict.fromkeys(query.outputs, query)

    def any_job(self) -> str | None:
        return self.rng.choice(list(self.jobs)) if self.jobs else None

    def alter_job(self) -> None:
        if name := self.any_job():
            interval = self.rng.choice([1, 2, 3, timedelta(minutes=7), timedelta(seconds=30)])
            self.store.job(name).alter(interval=interval, max_lag=self.rng.choice([0, 1, 30]))

    def rebuild(self) -> None:
        if (name := self.any_job()) and self.store.job(name).info.state != "finished":
            self.store.job(name).rebuild()
            self.seen["rebuild"] += 1

    def drain(self) -> None:
        if (name := self.any_job()) and self.store.job(name).info.state != "parked":
            self.store.job(name).stop(drain=True)
            self.seen["drain"] += 1

    def adopt(self) -> None:
        """Outputs become root tables: one of a finished job, or all of a job that is dropped without them."""
        name = self.any_job()
        if name is None:
            return
        outputs = list(self.store.job(name).info.outputs)
        if self.store.job(name).info.state == "finished":
            outputs = [self.rng.choice(outputs)]
            self.store.adopt(outputs[0])
        else:
            self.store.drop_job(name, keep_outputs=True)
        for out in outputs:
            self.since[out] = self.view().table(out).adopted
            self.truth[out] = [(self.since[out], self.lab.rows(out))]
        self._forget_gone()
        self.seen["adopted"] += 1

    def drop(self) -> None:
        name = self.any_job()
        above = {up for query in self.jobs.values() for up in query.upstreams}
        if name and above.isdisjoint(outputs := self.store.job(name).info.outputs):
            self.store.drop_job(name)
            self.check(not set(outputs) & set(self.tables()), name, "left a table")
            self._forget_gone()

    def _forget_gone(self) -> None:
        left = {info.name for info in self.store.jobs()}
        self.jobs = {name: query for name, query in self.jobs.items() if name in left}

    def take_over(self, name: str) -> None:
        self.runners[name] = self.store.job(name)
        self.step(name, calm=True, take_over=True)

    def step(self, name: str, *, calm: bool = False, take_over: bool = False) -> int | None:
        """One step; unless it is calm, it may die, or something is done in the middle of it."""
        trouble = "" if calm else self.rng.choice(["", "", "", "", "before", "after", "meanwhile", "meanwhile"])
        query = self.jobs[name]

        def refresh(ctx: Any) -> None:
            if trouble == "before":
                raise RequestedError
            self._refresh(name, query, ctx)
            if trouble == "meanwhile":
                self.rng.choice([*self.between(), lambda: self.take_over(name)])()
            if trouble == "after":
                raise RequestedError

        try:
            epoch = self.runners[name].step_local(refresh, take_over=take_over)
        except RequestedError:
            return None
        except GONE as error:
            self.seen[type(error).__name__] += 1
            self.check(trouble == "meanwhile" or isinstance(error, el.JobParked | el.Fenced), name, repr(error))
            if name in self.jobs and isinstance(error, el.JobParked):
                self.store.job(name).rebuild()
            if name in self.jobs and isinstance(error, el.Fenced):
                self.runners[name] = self.store.job(name)
            return None
        if epoch and name in self.jobs and (info := self.store.job(name).info).state == "finished":
            self.ended |= {out: info.committed_epoch for out in query.outputs if out not in self.ended}
        return epoch

    def _refresh(self, name: str, query: Query, ctx: Any) -> None:
        """By its query's own way; some sums by the groups that were touched."""
        if query.kind != "sums" or query.total or int(name[1:]) % 2:
            query.refresh(ctx)
            return
        groups = sorted({abs(g) for g in ctx.touched(query.upstreams[0], ["g"])["g"].to_pylist()})
        rows = sums(state_of(ctx.table(query.upstreams[0])))
        rows = {group: row for group, row in rows.items() if group in groups}
        touched = pa.table({"k": pa.array(groups, pa.int64())})
        ctx.recompute(query.outputs[0], by="k", touched=touched, from_=table_of(rows))

    # ---- reads -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> None:
        rng, options = self.rng, dict[str, Any]()
        how = rng.choice(["global", "aligned", "as_of"])
        tables = rng.sample(self.tables(), rng.randint(1, len(self.tables())))
        if how == "as_of":
            commits = [int(epoch) for table in self.view().tables.values() for epoch in table.commits[-8:]]
            options["epoch"] = max(0, rng.choice([*commits, 0]) + rng.randint(-1, 1))
        try:
            moment = self.store.snapshot(tables, consistency=how, **options)
        except NOT_NOW as error:
            self.seen[f"{how}: {type(error).__name__}"] += 1
            return
        with moment:
            self.check_rows(moment)

    def default_snapshot(self) -> None:
        """It never fails, is never too old, and says what it has not."""
        with self.store.snapshot() as moment:
            self.check_rows(moment)
            self.check({*moment, *moment.left_out} == set(self.tables()), "silently left out", moment.left_out)
            self.check(max(moment.lag_ms.values(), default=0) <= BOUND_MS, "too old", moment.lag_ms)
            self.seen["left out"] += len(moment.left_out)

    def check_rows(self, moment: el.Snapshot) -> None:
        rows = {table: state_of(moment[table].to_arrow()) for table in moment}
        for table, epoch in moment.epochs.items():
            wanted = self.answer(table, epoch)
            self.check(rows[table] == wanted, moment.policy, table, epoch, rows[table], wanted)
        self.tokens.append((moment.token, rows))

    def repeat(self) -> None:
        if not self.tokens:
            return
        token, rows = self.rng.choice(self.tokens)
        try:
            moment = self.store.snapshot(consistency=el.Exact(token))
        except (el.EpochExpired, el.TableDropped):
            return
        with moment:
            self.check({table: state_of(moment[table].to_arrow()) for table in moment} == rows, "repeated", rows)

    def changes(self) -> None:
        """The changes between two commits lead from the rows at one to those at the other, with the right old rows."""
        table = self.store.table(self.rng.choice(self.tables()))
        commits = sorted({int(epoch) for epoch in self.view().table(table.name).commits})
        if len(commits) < 2:
            return
        after, until = sorted(self.rng.sample(commits, 2))
        try:
            old, new = (state_of(table.to_arrow(epoch=epoch)) for epoch in (after, until))
            read = table.changes(after, until, mode=self.rng.choice(["net", "epochs"]), pre_images=True)
        except (el.EpochExpired, el.LogTruncated):
            return
        for change in read.read_all().to_pylist():
            k, row, kind = change["k"], (change["g"], change["v"]), change["_change_type"]
            if kind in ("update_preimage", "delete"):
                self.check(old.pop(k, None) == row, table.name, after, until, change)
            else:
                self.check(k not in old, table.name, after, until, change)
                old[k] = row
        self.check(old == new, table.name, after, until, old, new)
        self.seen["changes"] += 1

    def check_everywhere(self) -> None:
        """The law where the first and last epochs of what the store holds for valid lie."""
        view = self.view()
        for name in self.tables():
            table = view.table(name)
            ends = sorted({int(epoch) for side in view.valid_intervals(name) for epoch in side})
            for epoch in self.rng.sample(ends, min(6, len(ends))):
                if epoch >= max(table.safe_epoch, table.begin):
                    rows, wanted = self.lab.rows(name, epoch), self.answer(name, epoch)
                    self.check(rows == wanted, "valid", name, epoch, rows, wanted)

    # ---- the play --------------------------------------------------------------------------------------------------

    def between(self) -> list[Callable[[], None]]:
        """List the actions that are allowed at any time."""
        jobs = [self.alter_job, self.rebuild, self.drain, self.adopt, self.drop]
        return [*jobs, self.alter, self.compact, self.vacuum, self.put, self.tick, self.default_snapshot]

    def play(self, rounds: int) -> None:
        chances = [
            (0.8, self.put),
            (0.15, self.alter),
            (0.06, self.alter_job),
            (0.15, self.compact),
            (0.05, self.vacuum),
        ]
        chances += [
            (0.06, self.rebuild),
            (0.03, self.drain),
            (0.06, self.adopt),
            (0.02, self.drop),
            (0.07, self.create_job),
        ]
        chances += [(0.03, self.create_table), (0.3, self.snapshot), (0.3, self.default_snapshot), (0.2, self.repeat)]
        chances += [(0.3, self.changes), (0.02, lambda: self.lab.tick(7200))]
        for _ in range(rounds):
            self.tick()
            for chance, act in chances:
                if self.rng.random() < chance:
                    act()
            for name in self.rng.sample(list(self.jobs), len(self.jobs)):
                if name in self.jobs and self.rng.random() < 0.5:
                    self.step(name)
        self.check_everywhere()

    def catch_up(self) -> None:
        """With the load gone all take part again, but those whose intervals are too long."""
        for _ in range(2 * len(self.jobs) + 4):
            self.lab.tick(500)
            while any(self.step(name, calm=True) is not None for name in self.jobs):
                pass
        states = {info.name: (info.state, info.lag_ms) for info in self.store.jobs()}
        self.check(set(states.values()) <= {("running", 0), ("finished", 0)}, states)
        with self.store.snapshot() as moment:
            self.check_rows(moment)
            self.check(all("commits every" in why for why in moment.left_out.values()), moment.left_out)
        self.check_everywhere()
        report = self.store.verify()
        self.check(report.ok, report.problems)


def run(seed: int, folder: Path, rounds: int = 25) -> Counter[str]:
    """One seed from beginning to end in an empty folder; an AssertionError names the seed."""
    mixed = Mixed(seed, folder)
    try:
        mixed.play(rounds)
        mixed.catch_up()
    finally:
        mixed.store.close()
    return mixed.seen
