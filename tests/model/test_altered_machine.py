"""State machine of one altered table: alters among commits, open writers, compactions, restores, tags, clones and
retention.

Every read of every readable epoch is compared with a model that knows columns by field id only.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import epochlog as el
from altered_table import AlteredTable, OpenWriter, random_alter, random_rows

SEEDS = st.integers(0, 1 << 20)
OPTIONS = el.TableOptions(history_retention=timedelta(hours=1), log_retention=timedelta(days=9), compact_segments=3)


class AlteredMachine(RuleBasedStateMachine):
    """State machine of a table, its model, and writers that were opened before some of its alters."""

    @initialize(changelog=st.sampled_from(["upsert", "full"]), seed=SEEDS)
    def start(self, changelog: str, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.now_ms = 1_800_000_000_000
        self.store = el.open(self.folder / "s", durability="os", clock=lambda: self.now_ms)
        self.altered = AlteredTable(self.store, changelog=changelog, options=OPTIONS)
        self.writers: list[OpenWriter] = []
        self.tags: dict[str, pa.Table] = {}
        self.clones: dict[str, pa.Table] = {}
        self.put(seed)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.altered.check()
            self.altered.check_feed(0)
            self.tags_and_clones_are_as_they_were()
            assert self.store.verify().ok
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

    @precondition(lambda self: len(self.tags) < 4)
    @rule()
    def tag(self) -> None:
        name = f"tag{len(self.tags)}"
        self.store.tag(name, ["t"], consistency="latest")
        self.tags[name] = self.altered.table.to_arrow()

    @precondition(lambda self: len(self.clones) < 3)
    @rule(of=st.sampled_from(["a clone", "the past", "a tag", "the present"]), seed=SEEDS)
    def clone(self, of: str, seed: int) -> None:
        rng, source, as_of = random.Random(seed), "t", None
        if of == "a clone" and self.clones:
            source = [*self.clones][-1]
        elif of == "the past":
            as_of = rng.choice([epoch for epoch, _ in self.altered.readable()])
        elif of == "a tag" and self.tags:
            as_of = rng.choice([*self.tags])
        rows = self.tags[as_of] if isinstance(as_of, str) else self.store.table(source).to_arrow(epoch=as_of)
        name = f"clone{len(self.clones)}"
        self.store.clone(source, name, as_of=as_of)
        self.clones[name] = rows

    @precondition(lambda self: self.clones)
    @rule(seed=SEEDS, full=st.booleans())
    def alter_and_compact_a_clone(self, seed: int, full: bool) -> None:
        """Rename a column of a clone and add one, which gets the next field id, as a column of its source does."""
        rng = random.Random(seed)
        name = rng.choice([*self.clones])
        rows = self.clones[name]
        old, new, added = rng.choice(rows.schema.names), f"r{seed}", f"n{seed}"
        if new in rows.schema.names:
            return
        self.store.table(name).alter(rename={old: new}, add=[pa.field(added, pa.int16())])
        names = [new if column == old else column for column in rows.schema.names]
        field = pa.field(added, pa.int16())
        self.clones[name] = rows.rename_columns(names).append_column(field, pa.nulls(rows.num_rows, pa.int16()))
        self.store.compact(name, full=full)

    @rule()
    def tags_and_clones_are_as_they_were(self) -> None:
        for name, rows in self.tags.items():
            with self.store.snapshot(tag=name) as snapshot:
                assert snapshot["t"].to_arrow().equals(rows)
        for name, rows in self.clones.items():
            assert self.store.table(name).to_arrow().equals(rows)

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


class LongerAlteredMachine(AlteredMachine):
    """State machine of more examples: each takes seconds."""


AlteredMachine.TestCase.settings = settings(max_examples=max(1, settings().max_examples // 8))
LongerAlteredMachine.TestCase.settings = settings(max_examples=settings().max_examples // 2)
TestAlteredMachine = pytest.mark.slow(AlteredMachine.TestCase)
TestLongerAlteredMachine = pytest.mark.long(LongerAlteredMachine.TestCase)
