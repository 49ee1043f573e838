"""A real store under random load: commits of all kinds, random job graphs, failures, takeovers, restarts, compaction.

The world keeps its own account of every root table's rows at every epoch and of every commit that it saw. What is read
from the store is compared with the queries' answers over that account, and what a policy chooses with the definitions.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.store.types.epoch import EPOCH_ORIGIN_MS, from_unix_ms
from law_definitions import Lineage, LineageEntry
from law_queries import KEY, SCHEMA, Query, State, keys_of, random_query, state_of, table_of

HOUR_MS = 3_600_000


def newest_rows(table: el.Table) -> Any:
    """Return the rows of the newest commit, valid or not."""
    return state_of(table.to_arrow(epoch=table.info.max_committed_epoch))


class RequestedError(Exception):
    """Error that a refresh raises on request."""


@dataclass
class Pinned:
    """An open snapshot, and what it read at first."""

    snapshot: el.Snapshot
    rows: dict[str, State]


class LawWorld:
    """One store and everything that is known about it. `seed` repeats it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.upkeep = random.Random(~seed)  # apart, so that it changes nothing else that a seed does
        self.endings = random.Random(f"endings {seed}")
        self.settings = random.Random(f"settings {seed}")
        self.now_ms = EPOCH_ORIGIN_MS + 10_000
        self.folder = folder
        self.interval_ms = self.rng.choice([1, 5, 20])
        self.store = self._open()
        self.lineage = Lineage()
        self.truth: dict[str, list[tuple[int, State]]] = {}  # of root tables, by epoch
        self.queries: dict[str, Query] = {}
        self.jobs: dict[str, el.Job] = {}
        self.zombies: list[tuple[str, el.Job]] = []
        self.barriers: dict[str, tuple[int, int]] = {}  # decided, not committed
        self.drains: dict[str, int] = {}  # jobs told to end, and through which epoch
        self.wrote: dict[str, set[str]] = {}  # outputs that pieces of a snapshot under way wrote to, by job
        self.rebuilding: set[str] = set()  # jobs that make their outputs anew
        self.rebuilds: dict[str, int] = {}  # from which epoch on they are anew
        self.once_parked: set[str] = set()  # their tables: what was valid is not all remembered
        self.pinned: list[Pinned] = []
        self.tokens: list[tuple[str, dict[str, int]]] = []
        self.seen: Counter[str] = Counter()
        self.slow = ""
        self._answers: dict[tuple[str, tuple[tuple[str, int], ...]], State] = {}
        self._build()

    def _open(self) -> el.Store:
        return el.open(self.folder, checkpoint_interval_ms=self.interval_ms, durability="os", clock=lambda: self.now_ms)

    def _build(self) -> None:
        rng = self.rng
        self.begin = from_unix_ms(self.now_ms)
        """Epoch at which the root tables are created, or the one after it."""
        for number in range(rng.randint(1, 3)):
            retention = timedelta(hours=1) if rng.random() < 0.7 else timedelta(0)
            options = el.TableOptions(history_retention=retention, compact_segments=rng.choice([2, 8]))
            self.store.create_table(f"r{number}", SCHEMA, KEY, options=options)
            self.truth[f"r{number}"] = [(0, {})]
            self.lineage.add_table(f"r{number}")
        for _ in range(rng.randint(1, 4)):
            self.create_job()
        self.slow = rng.choice(list(self.queries))

    # ---- what is so ------------------------------------------------------------------------------------------------

    @property
    def roots(self) -> list[str]:
        return list(self.truth)

    @property
    def tables(self) -> list[str]:
        return list(self.lineage.log)

    @property
    def derived(self) -> list[str]:
        return [table for table in self.tables if table not in self.truth]

    def check(self, holds: bool, *what: object) -> None:
        assert holds, (f"seed {self.seed}", *what)

    def rows_of_root(self, table: str, epoch: int) -> State:
        return next(rows for at, rows in reversed(self.truth[table]) if at <= epoch)

    def answer(self, table: str, epochs: Mapping[str, int]) -> State:
        """The rows that a table must have when the root tables are read at these epochs; an ended one as of its end."""
        if table not in self.truth and self.lineage.ended(table):
            epochs = {root: min(epoch, self.lineage.position(table)) for root, epoch in epochs.items()}
        known = (table, tuple(sorted(epochs.items())))
        if known not in self._answers:
            if table in self.truth:
                return self.rows_of_root(table, epochs[table])
            query = next(query for query in self.queries.values() if table in query.outputs)
            answers = query.answer({up: self.answer(up, epochs) for up in query.upstreams})
            for out, rows in answers.items():
                self._answers[out, known[1]] = rows
        return self._answers[known]

    def answer_at(self, table: str, epoch: int) -> State:
        return self.answer(table, dict.fromkeys(self.roots, epoch))

    # ---- the load --------------------------------------------------------------------------------------------------

    def play(self, rounds: int, after_round: Callable[[], object] = lambda: None) -> None:
        """Random load; snapshots among it are checked."""
        for _ in range(rounds):
            self.now_ms += self.rng.choice([0, 1, self.interval_ms, self.rng.randint(0, 3 * self.interval_ms)])
            for chance, act in (
                (0.8, self.commit),
                (0.05, self.checkpoint),
                (0.10, self.compact),
                (0.05, self.truncate),
                (0.02, self.finish),
                (0.03, self.create_job),
                (0.04, self.reopen),
                (0.05, self.take_over),
                (0.02, self.jump),
                (0.02, self.idle_days),
                (0.30, self.snapshot),
                (0.10, self.repeat),
                (0.06, self.unpin),
            ):
                if self.rng.random() < chance:
                    act()
            self.vacuum()
            self.drain()
            self.alter()
            if self.endings.random() < 0.03:
                self.now_ms += 30 * HOUR_MS
                self.store.compact()
            if self.endings.random() < 0.03:
                self.rebuild(self.endings.choice(list(self.queries)))
            for name in self.rng.sample(list(self.queries), len(self.queries)):
                if self.rng.random() < (0.07 if name == self.slow else 0.45):
                    self.step(name, self.random_trouble())
            after_round()

    def random_trouble(self) -> str:
        return self.rng.choice(["before", "after", "overtaken"]) if self.rng.random() < 0.15 else ""

    def commit(self) -> None:
        """One commit to one or more root tables."""
        open_roots = [root for root in self.roots if not self.lineage.ended(root)]
        if not open_roots:
            return
        some = self.rng.sample(open_roots, min(len(open_roots), self.rng.choice([1, 1, 2])))
        edits = {root: self._edit(root) for root in some}
        if len(some) > 1:
            pair = ("app", self.rng.randrange(1 << 40)) if self.rng.random() < 0.3 else None
            with self.store.transaction(pair) as tx:
                for root, (upserts, deletes) in edits.items():
                    tx.upsert(root, table_of(upserts))
                    tx.delete(root, keys_of(deletes))
            self._committed(edits, tx.epoch)
            return
        root, (upserts, deletes) = next(iter(edits.items()))
        table = self.store.table(root)
        if self.rng.random() < 0.2:
            self._commit_labelled(root, upserts, deletes)
        elif self.rng.random() < 0.3:
            self._committed({root: ({}, deletes)}, table.delete(keys_of(deletes)))
        elif self.rng.random() < 0.3:
            pair = ("app", self.rng.randrange(1 << 40))
            epoch = table.upsert(table_of(upserts), txn=pair)
            self.check(table.upsert(table_of(upserts), txn=pair) == epoch, "the outcome of", pair)
            self._committed({root: (upserts, set())}, epoch)
        else:
            self._committed({root: (upserts, set())}, table.upsert(table_of(upserts)))

    def _commit_labelled(self, root: str, upserts: State, deletes: set[int]) -> None:
        """Two writers, sealed at labels of their own; the later label wins."""
        first, second = self.store.table(root).writer(), self.store.table(root).writer()
        first.upsert(table_of(upserts))
        second.delete(keys_of(deletes))
        start = self.store.last_epoch
        segments = [*first.seal(start + 1), *second.seal(start + 2 + self.rng.randint(0, 1))]
        self._committed({root: (upserts, deletes)}, self.store.commit({root: segments}))
        self.seen["labels"] += 1

    def _edit(self, root: str) -> tuple[State, set[int]]:
        rng, rows = self.rng, self.truth[root][-1][1]
        keys = [rng.randrange(8) for _ in range(rng.choice([0, 1, 1, 2, 5]))]
        upserts = {k: (rng.randrange(-3, 8), rng.randrange(9)) for k in keys}
        if keys and rng.random() < 0.1 and rows:
            upserts = dict(rng.sample(list(rows.items()), 1))  # as it was already
        return upserts, {k for k in range(8) if rng.random() < 0.15}

    def _committed(self, edits: Mapping[str, tuple[State, set[int]]], epoch: int) -> None:
        for root, (upserts, deletes) in edits.items():
            rows = {**self.truth[root][-1][1], **upserts}
            self.truth[root].append((epoch, {k: row for k, row in rows.items() if k not in deletes}))
            self.lineage.log[root].append(LineageEntry(epoch, bool(upserts or deletes)))
            self.seen["empty"] += not (upserts or deletes)

    def finish(self) -> None:
        root = self.rng.choice(self.roots)
        if not self.lineage.ended(root):
            epoch = self.store.table(root).finish()
            self.truth[root].append((epoch, self.truth[root][-1][1]))
            self.lineage.log[root].append(LineageEntry(epoch, changed=True, ends=True))

    def drain(self) -> None:
        """Now and then a job is told to end: it has no query here, so its runner does it when it comes to it."""
        if self.endings.random() > 0.02:
            return
        name = self.endings.choice(list(self.queries))
        if self.jobs[name].info.state == "parked":
            self.rebuild(name)
        self.store.job(name).stop(drain=True)
        if self.jobs[name].info.draining:
            self.drains.setdefault(name, self.store.last_epoch)
            self._due(name, self.rebuilds.get(name, self.drains[name]))
            self.check(self.drains[name] > self.position(name), name, "was told to end where it stands")

    def checkpoint(self) -> None:
        self.store.checkpoint()

    def compact(self) -> None:
        self.store.compact(self.rng.choice([*self.tables, None]), full=self.rng.random() < 0.5)

    def truncate(self) -> None:
        table = self.store.table(self.rng.choice(self.tables))
        try:
            table.truncate_log(self.rng.choice([table.info.safe_epoch, table.info.max_committed_epoch]))
            self.seen["truncated"] += 1
        except el.LogHeld:
            self.seen["log held"] += 1

    def vacuum(self) -> None:
        """Now and then what nothing reaches goes, with grace or without; all that can be read is there after it."""
        if self.upkeep.random() > 0.08:
            return
        report = self.store.vacuum(grace=self.upkeep.choice([0, 0, 900]))
        self.check(not report.foreign, "foreign files", report.foreign)
        for pin in self.pinned:
            for table, rows in pin.rows.items():
                self.check(state_of(pin.snapshot[table].to_arrow()) == rows, table, "vacuum took a pinned snapshot's")
        self.seen["vacuumed"] += bool(report.deleted)

    def alter(self) -> None:
        """Now and then a table gets other settings; who reads its old rows finds them all the same."""
        if self.settings.random() > 0.15:
            return
        name, pick = self.settings.choice(self.tables), self.settings.choice
        settings: dict[str, Any] = {"changelog": pick(["full", "upsert"])}
        if name not in self.truth:
            settings["drop_unchanged"] = pick([True, True, False])
        if pick([True, False, False, False]):
            settings["options"] = el.TableOptions(
                history_retention=pick([timedelta(0), timedelta(hours=1)]), compact_segments=pick([2, 8])
            )
        self.store.table(name).alter(**settings)
        self.seen["altered"] += 1

    def jump(self) -> None:
        self.now_ms -= self.rng.randint(0, 5 * self.interval_ms)

    def idle_days(self) -> None:
        """Longer than any retention: compaction lets history go, except where it is held."""
        self.now_ms += self.rng.randint(1, 48) * HOUR_MS

    # ---- jobs ------------------------------------------------------------------------------------------------------

    def create_job(self) -> None:
        if len(self.queries) >= 7:
            return
        name = f"j{len(self.queries)}"
        query = random_query(self.rng, name, self.tables)
        backfill = self.rng.choice(["snapshot", "log"])
        whole = all(self.store.table(up).info.log_start_epoch == 0 for up in query.upstreams)
        if not whole and backfill == "log":
            backfill = "snapshot"
        self.jobs[name] = self.store.create_job(
            name,
            query.upstreams,
            {out: self._output() for out in query.outputs},
            backfill=backfill,
            interval=self.rng.choice([1, 1, 2, 3]),
            max_lag=self.rng.choice([0, 1, 3, 100]),
            snapshot_rows=self.endings.choice([None, None, 1, 3]),
        )
        self.queries[name] = query
        for out in query.outputs:
            self.lineage.add_table(out, query.upstreams)

    def _output(self) -> el.Output:
        pick = self.settings.choice
        return el.Output(
            SCHEMA, KEY, changelog=pick(["upsert", "upsert", "full"]), drop_unchanged=pick([True, True, True, False])
        )

    def step(self, name: str, trouble: str = "") -> int | None:
        """One step of the job's present runner, checked; None when it had nothing to do or failed."""
        if trouble == "overtaken":
            return self._step_overtaken(name)
        try:
            return self.step_with(self.jobs[name], name, trouble)
        except el.JobParked:
            self.parked(name)
            return None
        except RequestedError:
            info = self.jobs[name].info
            self.check(info.state == "failed" and "RequestedError" in (info.last_error or ""), name, info)
            self.check(info.committed_epoch == self.position(name), name, "moved by a failure", info)
            self.seen["failed"] += 1
            return None

    def parked(self, name: str) -> None:
        """A job that lacked something for longer than its log is kept: it says so, keeps its rows, and is made anew."""
        info, query = self.jobs[name].info, self.queries[name]
        self.check(info.state == "parked" and info.lost, name, info)
        self.check(info.committed_epoch == self.position(name), name, "moved when it was parked", info)
        self.barriers.pop(name, None)
        self.wrote.pop(name, None)
        self.once_parked.update(query.outputs)
        self.seen["parked"] += 1
        if self.endings.random() < 0.5:
            self.rebuild(name)

    def rebuild(self, name: str) -> None:
        """The job is to make its outputs anew; a finished one refuses."""
        if self.jobs[name].info.state == "finished":
            with pytest.raises(el.TableFinished):
                self.jobs[name].rebuild()
            return
        if self.jobs[name].info.state == "parked":
            self.once_parked.update(self.queries[name].outputs)
        self.store.job(name).rebuild()  # its present runner goes on with it
        self.rebuilds[name] = self.store.last_epoch
        self._due(name, self.rebuilds[name])
        self.barriers.pop(name, None)
        self.wrote.pop(name, None)
        self.rebuilding.add(name)
        self.seen["rebuilt"] += 1

    def _due(self, name: str, epoch: int) -> None:
        for out in self.queries[name].outputs:
            self.lineage.due[out] = min(epoch, self.drains.get(name, epoch))

    def _step_overtaken(self, name: str) -> None:
        """Another runner commits the barrier while the refresh of this one is at work."""
        old, called = self.jobs[name], []

        def meanwhile() -> None:
            called.append(name)
            self.zombies.append((name, old))
            self.jobs[name] = self.store.job(name)
            with pytest.raises(el.JobRunning):
                self.jobs[name].step_local(lambda ctx: None)
            done = self.step_with(self.jobs[name], name, take_over=True)
            self.check(done is not None, name, "the barrier is gone")

        try:
            done = self.step_with(old, name, meanwhile=meanwhile)
        except el.Fenced:
            self.seen["fenced in flight"] += 1
        except el.JobParked:
            self.parked(name)
        else:
            self.check(done is None or not called, name, "a runner committed after another had taken over")

    def step_with(
        self,
        job: el.Job,
        name: str,
        trouble: str = "",
        meanwhile: Callable[[], object] = lambda: None,
        take_over: bool = False,
    ) -> int | None:
        query, wrote = self.queries[name], {}

        def refresh(ctx: Any) -> None:
            self._check_barrier(name, ctx.barrier)
            if trouble == "before":
                raise RequestedError(name)
            wrote.update(query.refresh(ctx))
            meanwhile()
            if trouble:
                raise RequestedError(name)

        old = {out: self.store.table(out) for out in query.outputs}
        rows_before = {out: newest_rows(table) for out, table in old.items()}
        dropping = {out: table.info.drop_unchanged for out, table in old.items()}
        epoch = job.step_local(refresh, take_over=take_over)
        if epoch is None:
            return None
        written = self.wrote.setdefault(name, set())
        written |= {out for out, rows in wrote.items() if rows}
        if not epoch:
            self.seen["pieces"] += 1
            return epoch
        committed = self.barriers.pop(name, None)
        self.check(committed is not None, name, "a runner committed after another had taken over")
        self.check(committed is not None and committed[1] == epoch, name, epoch, "is not the barrier's", committed)
        drained = epoch >= self.drains.get(name, epoch + 1)
        ends = drained or all(self.lineage.ended(up) and self.lineage.position(up) <= epoch for up in query.upstreams)
        rebuilt = name in self.rebuilding
        self.rebuilding.discard(name)
        self.rebuilds.pop(name, None)
        for out in query.outputs:
            self.lineage.due.pop(out, None)
            if name in self.drains and not ends:
                self.lineage.due[out] = self.drains[name]
            changed = out in self.wrote[name]
            if (rebuilt and self.position_of(out)) or dropping[out]:  # the entry is what differs
                changed = newest_rows(self.store.table(out)) != rows_before[out]
                self.seen["unchanged"] += out in self.wrote[name] and not changed
            self.lineage.log[out].append(LineageEntry(epoch, changed or ends, ends))
        del self.wrote[name]
        info = job.info
        self.check(info.committed_epoch == epoch and info.last_error is None, name, info)
        self.check((info.state == "finished") == ends, name, info)
        self.seen["drained" if drained else "finished"] += ends
        return epoch

    def _check_barrier(self, name: str, barrier: Any) -> None:
        """It starts where the job stands, is the one decided before if there was one, and something woke the job."""
        query, decided = self.queries[name], (barrier.prev, barrier.curr)
        prev = 0 if name in self.rebuilding else self.position(name)
        self.check(barrier.prev == prev and self.position(name) < barrier.curr, name, barrier)
        self.check(
            self.barriers.setdefault(name, decided) == decided, name, barrier, self.barriers[name], "decided anew"
        )
        self.check((barrier.kind == "initial") == (barrier.prev == 0), name, barrier)
        woken = any(self.lineage.changed(up, *decided) for up in query.upstreams)
        last = barrier.curr >= self.drains.get(name, barrier.curr + 1)
        self.check(woken or last or barrier.kind == "initial", name, barrier, "nothing changed")

    def position(self, name: str) -> int:
        return self.position_of(self.queries[name].outputs[0])

    def position_of(self, table: str) -> int:
        return self.lineage.position(table)

    def take_over(self) -> None:
        """A new runner of some job; the old one is a zombie, and so are those before."""
        name = self.rng.choice(list(self.queries))
        self.step(name)  # a runner that never ran has claimed nothing, so nothing is taken from it
        self.zombies.append((name, self.jobs[name]))
        self.jobs[name] = self.store.job(name)
        self.step(name)
        for name, zombie in self.zombies:
            before = self.store.last_epoch, self.position(name)
            with pytest.raises(el.Fenced):
                zombie.step_local(lambda ctx: None)
            self.check(
                before == (self.store.last_epoch, self.jobs[name].info.committed_epoch), name, "a zombie's effect"
            )
        self.zombies = [(name, zombie) for name, zombie in self.zombies if self.rng.random() < 0.5]
        self.seen["fenced"] += 1

    def reopen(self) -> None:
        """The store is closed and opened again, with new runners; what was pinned is let go."""
        self.store.close()
        self.store = self._open()
        self.zombies, self.pinned = [], []
        self.jobs = {name: self.store.job(name) for name in self.queries}
        self.seen["reopened"] += 1

    # ---- snapshots -------------------------------------------------------------------------------------------------

    def snapshot(self, policy: str = "") -> None:
        """A snapshot of some tables: its epochs are the policy's by definition, its rows are the queries' answers."""
        rng = self.rng
        policy = policy or rng.choice(["aligned", "aligned", "global", "as_of", "everything"])
        tables = self.tables if policy == "everything" else rng.sample(self.tables, rng.randint(1, len(self.tables)))
        until = rng.choice([self.store.last_epoch, rng.choice(self._marks())]) if policy == "as_of" else None
        options = {"epoch": until} if policy == "as_of" else {}
        consistency = {"everything": "aligned"}.get(policy, policy)
        wanted = self._wanted(consistency, tables, until)
        try:
            snapshot = self.store.snapshot(tables, consistency=consistency, **options)
        except (el.NoConsistentEpoch, el.EpochExpired) as error:
            self.check(wanted is None or self.half_known(policy, tables), policy, tables, until, wanted, error)
            self.seen["no epoch"] += 1
            return
        except el.EpochNotCommitted as error:
            self.check(False, policy, tables, wanted, error, "the law")
            return
        rows = self.check_law(snapshot, policy)
        if not self.half_known(policy, tables):
            self.check(set(snapshot.epochs.values()) == {wanted}, policy, tables, snapshot.epochs, wanted)
        self.check(len(set(snapshot.epochs.values())) == 1, policy, snapshot.epochs)
        self.seen[policy] += 1
        self.tokens.append((snapshot.token, snapshot.epochs))
        if rng.random() < 0.3:
            self.pinned.append(Pinned(snapshot, rows))
        else:
            snapshot.close()

    def check_law(self, snapshot: el.Snapshot, policy: str) -> dict[str, State]:
        """Every table equals its query over the root tables as of this snapshot; returns the rows read."""
        rows = {table: state_of(snapshot[table].to_arrow()) for table in snapshot}
        for table in snapshot:
            own = snapshot.epochs[table]
            epochs = {root: snapshot.epochs.get(root, own) for root in self.roots}
            expected = self.answer(table, epochs)
            self.check(rows[table] == expected, policy, table, snapshot.epochs, rows[table], expected, "the law")
        return rows

    def _wanted(self, policy: str, tables: Sequence[str], until: int | None) -> int | None:
        """Return the epoch that the policy must choose, or None."""
        last_epoch = self.store.last_epoch
        infos = {info.name: info for info in self.store.tables()}
        floor = max(infos[table].safe_epoch for table in tables)
        members: Iterable[str] = tables
        if policy == "global":
            # who takes part is tests/support/policy_model.py's to say; here, that they agree at the epoch chosen
            left_out = {table for job in self.store.jobs() if job.outside for table in job.outputs}
            away = {name for name, info in infos.items() if info.state in ("creating", "parked")}
            self.check(away <= left_out, policy, away, left_out, "creating and parked tables take no part")
            if left_out.intersection(tables):
                return None
            members = [table for table in self.tables if table not in left_out]
        return self.lineage.at(last_epoch).largest_valid(members, last_epoch if until is None else until, floor)

    def half_known(self, policy: str, tables: Sequence[str]) -> bool:
        """Return True if a table descends from a once parked job: then fewer epochs may be valid, never more."""
        ancestors = list(self.tables if policy == "global" else tables)
        for table in ancestors:
            ancestors += [up for up in self.lineage.upstreams[table] if up not in ancestors]
        return not self.once_parked.isdisjoint(ancestors)

    def _marks(self) -> list[int]:
        return [entry.epoch for log in self.lineage.log.values() for entry in log] or [0]

    def repeat(self) -> None:
        """An earlier snapshot again by its token: the same epochs and the law; or its history has been let go."""
        if not self.tokens:
            return
        token, epochs = self.rng.choice(self.tokens)
        try:
            with self.store.snapshot(consistency=el.Exact(token)) as snapshot:
                self.check(snapshot.epochs == epochs, "repeated", snapshot.epochs, epochs)
                self.check_law(snapshot, "exact")
                self.seen["exact"] += 1
        except el.EpochExpired:
            safe = [self.store.table(table).info.safe_epoch > epoch for table, epoch in epochs.items()]
            self.check(any(safe), "expired for no reason", epochs)

    def unpin(self) -> None:
        """Pinned snapshots still read what they read at first; then they are closed."""
        for pin in self.pinned:
            for table, rows in pin.rows.items():
                self.check(state_of(pin.snapshot[table].to_arrow()) == rows, table, "a pinned snapshot changed")
            pin.snapshot.close()
        self.pinned = []

    def check_everywhere(self, marks: int) -> None:
        """The law again at many epochs, for each table by itself, at those where it is valid by the definitions."""
        moment = self.lineage.at(self.store.last_epoch)
        around = sorted({mark + d for mark in self._marks() for d in (-1, 0, 1) if 0 <= mark + d <= moment.last_epoch})
        for table in self.tables:
            handle = self.store.table(table)
            safe = handle.info.safe_epoch
            for epoch in self.rng.sample(around, min(marks, len(around))):
                if epoch < safe or (table in self.truth and epoch == self.begin - 1):
                    continue  # expired, or perhaps the epoch of the creation
                if table in self.truth and 0 < epoch < self.begin:
                    with pytest.raises(el.EpochNotCommitted, match="was created at"):
                        handle.to_arrow(epoch=epoch)
                elif moment.valid(table, epoch):
                    rows, expected = state_of(handle.to_arrow(epoch=epoch)), self.answer_at(table, epoch)
                    self.check(rows == expected, table, epoch, rows, expected, "the law, later")

    # ---- the end ---------------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """With the load gone every job catches up and runs or is finished, and the newest epoch is valid for all."""
        for name in self.queries:
            self.step(name)
            if self.jobs[name].info.state == "parked":
                self.rebuild(name)
        for _ in range(2 * len(self.queries) + 2):
            self.now_ms += 6 * self.interval_ms
            while sum(self.step(name) is not None for name in self.queries):
                pass
        states = {info.name: (info.state, info.lag_ms) for info in self.store.jobs()}
        self.check(set(states.values()) <= {("running", 0), ("finished", 0)}, "not caught up", states)
        with self.store.snapshot() as snapshot:
            self.check(sorted(snapshot) == sorted(self.tables), "global covers", list(snapshot))
            self.check(set(snapshot.epochs.values()) == {self.store.last_epoch}, "not caught up", snapshot.epochs)
            self.check_law(snapshot, "at the end")
        before = self.store.last_epoch
        for name in self.queries:
            self.check(self.step(name) is None, name, "has something to do in an idle store")
        self.check(self.store.last_epoch == before, "an idle store moved")

    def finish_all(self) -> None:
        """All roots end, then all jobs, for good."""
        for root in self.roots:
            if not self.lineage.ended(root):
                epoch = self.store.table(root).finish()
                self.truth[root].append((epoch, self.truth[root][-1][1]))
                self.lineage.log[root].append(LineageEntry(epoch, changed=True, ends=True))
        self.catch_up()
        self.reopen()
        for name in self.queries:
            self.check(self.jobs[name].info.state == "finished" and self.step(name) is None, name, "is not finished")
        self.check({info.state for info in self.store.tables()} == {"finished"}, "tables are not finished")

    def close(self) -> None:
        self.unpin()
        self.store.close()


def run(seed: int, folder: Path, rounds: int = 25) -> LawWorld:
    """One seed from beginning to end in an empty folder; an AssertionError names the seed."""
    world = LawWorld(seed, folder)
    try:
        world.play(rounds)
        world.check_everywhere(marks=6)
        world.catch_up()
        if seed % 3 == 0:
            world.finish_all()
        if seed % 8 == 0:
            report = world.store.verify()
            world.check(report.ok, "verify", report.problems)
    finally:
        world.close()
    return world
