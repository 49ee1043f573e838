"""Bugs of tags, and the random histories that catch them: each tag reads as it was, and no version between is kept."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import epochlog as el
from epochlog.store.compaction import executor, rewriter, strategy, subcompactions
from epochlog.store.compaction.executor import compact_table
from epochlog.store.compaction.subcompaction_rewriter import rewrite_in_threads
from epochlog.store.compaction.task_record import CompactionOutcome
from epochlog.store.metadata.lookups import find_table, get_runs
from epochlog.store.metadata.version import TableVersion
from epochlog.store.retention import retention
from epochlog.store.retention.holds import Hold
from epochlog.store.retention.retention import apply_retention
from epochlog.store.sst.sorted_run import RunFile
from epochlog.store.types.epoch import EPOCH_ORIGIN_MS
from faults.mutant import Mutant

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
State = dict[int, int]


def tagged_histories(base: Path) -> None:
    for seed in range(4):
        History(base / str(seed), seed).run()


class History:
    """Commits, tags, readers and slices of compactions in any order, on a table that keeps 100 ms of history."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.seed, self.rng = root, seed, random.Random(seed)
        self.now_ms = EPOCH_ORIGIN_MS + 1_000_000
        self.state: State = {}
        self.states: dict[int, State] = {}
        self.tags: dict[str, int] = {}
        self.readers: list[tuple[el.Snapshot, State]] = []

    def run(self, steps: int = 70) -> None:
        with (
            pytest.MonkeyPatch.context() as patch,
            el.open(self.root, durability="os", clock=lambda: self.now_ms) as self.store,
        ):
            patch.setattr(subcompactions, "SUBCOMPACTION_ROWS", self.rng.choice([9, 1000]))
            patch.setattr(strategy, "HISTORY_PARTS", 1)
            patch.setattr(rewriter, "PART_ROWS", 7)
            options = el.TableOptions(
                history_retention=timedelta(milliseconds=100),
                log_retention=timedelta(milliseconds=100),
                compact_segments=2,
            )
            self.table = self.store.create_table("t", SCHEMA, ["id"], options=options)
            self.definition = self.store._handle.catalog.read(lambda view: find_table(view, "t"))
            self.commit()
            for _ in range(steps):
                self.now_ms += self.rng.randint(1, 60)
                actions = (self.commit, self.commit, self.tag, self.drop, self.compact, self.read, self.close_reader)
                self.rng.choice(actions)()
                self.check()
            self.end()

    def commit(self) -> None:
        ids = self.rng.sample(range(30), self.rng.randint(1, 8))
        if self.rng.random() < 0.3:
            epoch = self.table.delete(pa.table({"id": ids}))
            self.state = {key: value for key, value in self.state.items() if key not in ids}
        else:
            number = len(self.states)
            epoch = self.table.upsert(pa.table({"id": ids, "n": [number] * len(ids)}, schema=SCHEMA))
            self.state = {**self.state, **dict.fromkeys(ids, number)}
        self.states[epoch] = self.state

    def tag(self) -> None:
        name = f"t-{len(self.states)}-{self.rng.random()}"[:20].replace(".", "_")
        again = self.rng.choice([None, *self.tags]) if self.tags else None
        if again is not None:
            self.tags[name] = self.store.tag(name, consistency=el.Exact({"t": self.tags[again]})).epochs["t"]
        else:
            self.tags[name] = self.store.tag(name, consistency="latest").epochs["t"]

    def drop(self) -> None:
        if len(self.tags) > 1:
            name = self.rng.choice(sorted(self.tags))
            self.store.drop_tag(name)
            del self.tags[name]

    def compact(self) -> None:
        if self.rng.random() < 0.5:
            apply_retention(self.store._handle, self.definition)
        kind = self.rng.choice([{"l0_only": True}, {}, {"full": True}, {"past_only": True}])
        compact_table(self.store._handle, self.definition, budget=self.rng.choice([None, 1, 3]), **kind)

    def read(self) -> None:
        if self.tags:
            name = self.rng.choice(sorted(self.tags))
            self.readers.append((self.store.snapshot(tag=name), self.states_at(self.tags[name])))

    def close_reader(self) -> None:
        if self.readers:
            self.readers.pop(self.rng.randrange(len(self.readers)))[0].close()

    def states_at(self, epoch: int) -> State:
        return self.states[max(at for at in self.states if at <= epoch)]

    def rows_at(self, epoch: int) -> State:
        rows = self.table.to_arrow(epoch=epoch)
        return dict(zip(rows["id"].to_pylist(), rows["n"].to_pylist(), strict=True))

    def check(self) -> None:
        held = {*self.tags.values(), *(snapshot.epochs["t"] for snapshot, _ in self.readers)}
        for epoch in held:
            try:
                assert self.rows_at(epoch) == self.states_at(epoch), f"seed {self.seed}: at {epoch}"
            except el.EpochExpired as error:
                raise AssertionError(f"seed {self.seed}: {error}") from error
        for snapshot, state in self.readers:
            rows = snapshot["t"].to_arrow()
            assert dict(zip(rows["id"].to_pylist(), rows["n"].to_pylist(), strict=True)) == state, f"seed {self.seed}"
        between = [epoch for epoch in self.states if epoch < self.table.info.safe_epoch and epoch not in held]
        for epoch in self.rng.sample(between, min(2, len(between))):
            try:
                assert self.rows_at(epoch) == self.states[epoch], f"seed {self.seed}: at {epoch}, which no tag keeps"
            except el.EpochExpired:
                continue

    def end(self) -> None:
        """All that may go goes: the rows that stay are those of the tags, each version once."""
        while self.readers:
            self.close_reader()
        self.now_ms += 10_000
        self.commit()
        self.now_ms += 10_000
        self.commit()
        self.now_ms += 10_000
        for _ in range(3):
            self.store.compact("t", full=True)
        self.store.vacuum(grace=0)
        self.check()
        past = past_rows(self.store)
        kept, safe = sorted({*self.tags.values()}), self.table.info.safe_epoch
        assert safe == max(self.states), f"seed {self.seed}: more than the tagged epochs is kept"
        unseen = [row for row in past if row[2] <= safe and not any(row[1] <= at < row[2] for at in kept)]
        assert not unseen, f"seed {self.seed}: no tag sees {unseen}"
        assert len(past) == len(set(past)), f"seed {self.seed}: a version is kept twice"
        report = self.store.verify()
        assert report.ok, f"seed {self.seed}: {report.problems}"


def past_rows(store: el.Store) -> list[tuple[int, int, int]]:
    """The replaced rows of the first table's runs: key, first epoch, and the epoch that replaced it."""
    rows = []
    for run in store._handle.catalog.read(lambda view: get_runs(view, 1)):
        for part in run.history:
            table = pq.read_table(pa.BufferReader(store._handle.files.read(part.path)))
            rows += zip(*(table[name].to_pylist() for name in ("id", "_epoch", "_until")), strict=True)
    return rows


def an_overtaken_compaction_copies_nothing_twice(base: Path) -> None:
    """While a compaction merges a part of the history, another one copies the rows that a tag keeps out of it."""
    history = History(base / "s", 0)

    options = el.TableOptions(history_retention=timedelta(milliseconds=100))
    with (
        pytest.MonkeyPatch.context() as patch,
        el.open(history.root, durability="os", clock=lambda: history.now_ms) as store,
    ):
        patch.setattr(strategy, "_rewritten", lambda version, runs: tuple(p.path for r in runs for p in r.history))
        store.create_table("t", SCHEMA, ["id"], options=options)
        table = store._handle.catalog.read(lambda view: find_table(view, "t"))
        for number in range(3):
            store.table("t").upsert(pa.table({"id": [1], "n": [number]}, schema=SCHEMA))
            if number == 0:
                store.tag("a", consistency="latest")
            if number == 1:
                store.compact("t", full=True)
            history.now_ms += 1

        def rewrite_and_lose(*arguments: Any) -> Any:
            yield from rewrite_in_threads(*arguments)
            history.now_ms += 1000
            apply_retention(store._handle, table)
            assert compact_table(store._handle, table, past_only=True) is CompactionOutcome.DONE

        compact_table(store._handle, table, full=True, rewrite=rewrite_and_lose)
        past = past_rows(store)
        assert past and len(past) == len(set(past)), f"a version is kept twice: {past}"


# ---- bugs --------------------------------------------------------------------------------------------------------


def a_tag_keeps_all_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hold, "single_epoch", lambda hold, safe_epoch: None)


def compaction_forgets_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rewriter.visible_history

    def forgetful(history: Sequence[Any], safe_epoch: int, kept: Sequence[int] = (), *, bottom: bool) -> Any:
        return real(history, safe_epoch, bottom=bottom)

    monkeypatch.setattr(rewriter, "visible_history", forgetful)


def retention_forgets_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        retention, "_is_past", lambda part, version: part.history and 0 < part.until <= version.safe_epoch
    )


def parts_of_tags_are_not_carried_over(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., bool] = RunFile.needed_at
    monkeypatch.setattr(RunFile, "needed_at", lambda part, safe_epoch, kept: real(part, safe_epoch, ()))


def epochs_between_tags_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableVersion, "keeps", lambda version, epoch: epoch >= min([version.safe_epoch, *version.kept]))


def rows_between_tags_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochlog.store.compaction.claim.past_task", lambda version, runs: None)


def readers_of_tags_hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hold, "single_epoch", lambda hold, safe_epoch: hold.read_epoch if hold.is_tag else None)


def a_version_is_copied_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction does not see that another one has copied rows out of a part that it merged."""
    monkeypatch.setattr(executor, "_has_history", lambda runs, task: True)


MUTANTS = [
    Mutant("a-tag-keeps-all-history", a_tag_keeps_all_history, tagged_histories),
    Mutant("compaction-forgets-tags", compaction_forgets_tags, tagged_histories),
    Mutant("retention-forgets-tags", retention_forgets_tags, tagged_histories),
    Mutant("parts-of-tags-are-not-carried-over", parts_of_tags_are_not_carried_over, tagged_histories),
    Mutant("epochs-between-tags-are-read", epochs_between_tags_are_read, tagged_histories),
    Mutant("rows-between-tags-stay", rows_between_tags_stay, tagged_histories),
    Mutant("a-version-is-copied-twice", a_version_is_copied_twice, an_overtaken_compaction_copies_nothing_twice),
    Mutant("readers-of-tags-hold-nothing", readers_of_tags_hold_nothing, tagged_histories),
]
