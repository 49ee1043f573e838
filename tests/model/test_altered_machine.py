"""A state machine of one altered table: alters among commits, open writers, compactions, restores and retention.

Every read of every readable epoch is compared with a model that knows columns by field id only.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import epochlog as el
from altered_table import AlteredTable, OpenWriter, random_alter, random_rows

SEEDS = st.integers(0, 1 << 20)
OPTIONS = el.TableOptions(history_retention=timedelta(hours=1), log_retention=timedelta(days=9), compact_segments=3)


class AlteredMachine(RuleBasedStateMachine):
    """The table, its model, and writers that were opened before some of its alters."""

    @initialize(changelog=st.sampled_from(["upsert", "full"]), seed=SEEDS)
    def start(self, changelog: str, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.now_ms = 1_800_000_000_000
        self.store = el.open(self.folder / "s", durability="os", clock=lambda: self.now_ms)
        self.altered = AlteredTable(self.store, changelog=changelog, options=OPTIONS)
        self.writers: list[OpenWriter] = []
        self.put(seed)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.altered.check()
            self.altered.check_feed(0)
            self.store.close()
            shutil.rmtree(self.folder)

    @rule(seed=SEEDS)
    def put(self, seed: int) -> None:
        rng = random.Random(seed)
        self.altered.upsert(random_rows(rng, self.altered.columns, 4, 6))

    @precondition(lambda self: self.altered.rows)
    @rule(seed=SEEDS)
    def delete(self, seed: int) -> None:
        self.altered.delete(random.Random(seed).sample(sorted(self.altered.rows), 1))

    @rule(seed=SEEDS)
    def alter(self, seed: int) -> None:
        change = random_alter(random.Random(seed), self.altered)
        if change is not None:
            self.altered.alter(**change)

    @rule(full=st.booleans())
    def compact(self, full: bool) -> None:
        self.store.compact("t", full=full)

    @rule(seed=SEEDS)
    def restore(self, seed: int) -> None:
        epochs = [epoch for epoch, _ in self.altered.readable()]
        self.altered.restore(random.Random(seed).choice(epochs))

    @rule(seed=SEEDS)
    def open_writer(self, seed: int) -> None:
        self.writers.append(self.altered.open_writer(random_rows(random.Random(seed), self.altered.columns, 3, 6)))

    @precondition(lambda self: self.writers)
    @rule()
    def commit_writer(self) -> None:
        self.altered.commit_writer(self.writers.pop(0))

    @rule(minutes=st.sampled_from([1, 40]))
    def tick(self, minutes: int) -> None:
        self.now_ms += minutes * 60_000

    @rule(seed=SEEDS)
    def read(self, seed: int) -> None:
        readable = [epoch for epoch, _ in self.altered.readable()]
        rng = random.Random(seed)
        self.altered.check(rng.choice(readable))
        after, until = sorted((rng.choice(readable), rng.choice(readable)))
        self.altered.check_changes(after, until)

    @invariant()
    def the_newest_rows_are_those_of_the_model(self) -> None:
        if hasattr(self, "altered"):
            newest = max(self.altered.moments)
            assert self.altered.table.to_arrow().to_pylist() == self.altered.moments[newest].read()


TestAlteredMachine = pytest.mark.slow(AlteredMachine.TestCase)
