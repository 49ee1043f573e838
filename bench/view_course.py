"""Eight views of Nexmark, kept by epochlog through a course of steps: what a step costs, by what it does."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import nexmark
from changing_events import Batch, ChangingEvents
from nexmark_data import SCHEMAS
from spent import Spent, spent

OURS, COMMIT, COMPACTION = "epochlog", "commit of the events", "compaction"
ANEW, MERGE = "all rows anew", "deltalake MERGE of the rows that differ"
STEPS_OF_COMPACTION = 8
"""After so many steps all tables are asked to compact."""
ROUNDS_ANEW, MERGES = 2, 5


@dataclass
class KeptViews:
    """Store with the eight views, and what was spent on them."""

    nexmark: nexmark.Nexmark
    spent: dict[str, Spent] = field(default_factory=dict)

    def begin(self, base: Batch) -> None:
        """Fill tables and views; that does not count."""
        self.step(base)
        self.nexmark.store.compact()
        self.spent.clear()

    def step(self, batch: Batch) -> None:
        """Commit a batch, and step each view until it has it."""
        began = spent()
        with self.nexmark.store.transaction() as tx:
            for name in SCHEMAS:
                tx.upsert(name, batch.upserts(name))
            if len(batch.deleted):
                tx.delete("bid", batch.deleted.select(["auction", "number"]))
        self.nexmark.store.checkpoint()
        began = self._add(COMMIT, began)
        for name, view in self.nexmark.views.items():
            while view.step() is not None:
                pass
            began = self._add(name, began)

    def compact(self) -> None:
        began = spent()
        self.nexmark.store.compact()
        self._add(COMPACTION, began)

    def _add(self, what: str, began: Spent) -> Spent:
        now = spent()
        self.spent[what] = self.spent.get(what, Spent()) + (now - began)
        return now

    def anew(self) -> Spent:
        """Return what the eight queries cost DuckDB for all rows, which are in memory before."""
        with self.nexmark.store.snapshot([*SCHEMAS], consistency="aligned") as moment, moment.duckdb() as connection:
            for name in SCHEMAS:
                connection.register(name, moment[name].to_arrow())
            began = spent()
            for sql, _ in nexmark.VIEWS.values():
                connection.sql(sql).to_arrow_table()
            return spent() - began


def kept_by_epochlog(
    folder: Path, size: int, batch: int, steps: int, *, mixed: bool, compare: bool = True
) -> Mapping[str, Spent]:
    """Return the mean of the steps after so many events: of all, and of each part. Views that differ from DuckDB's
    answers at the end raise AssertionError.

    compare: also all rows anew, and merges of the rows that differ into Delta tables.
    """
    events = ChangingEvents()
    kept = KeptViews(nexmark.Nexmark(folder))
    kept.begin(events.batch(size))
    for number in range(1, steps + 1):
        kept.step(events.batch(batch, mixed=mixed))
        if number % STEPS_OF_COMPACTION == 0 or number == steps:
            kept.compact()
    means = {what: own.by(steps) for what, own in kept.spent.items()}
    means = {OURS: sum(means.values(), Spent()), **means}
    if compare:
        means[ANEW] = sum((kept.anew() for _ in range(ROUNDS_ANEW)), Spent()).by(ROUNDS_ANEW)
        means[MERGE] = merged(kept, events, batch, folder.with_name(f"{folder.name}-delta"), mixed=mixed)
    differing = {name: count for name, count in kept.nexmark.differing().items() if count}
    assert not differing, differing
    kept.nexmark.store.close()
    shutil.rmtree(folder)
    return means


def merged(kept: KeptViews, events: ChangingEvents, batch: int, folder: Path, *, mixed: bool) -> Spent:
    """Take further steps; return the mean of the merges of the rows of all views that differ after each."""
    delta = nexmark.DeltaTables(folder)
    delta.merge(delta.changes(kept.nexmark))
    total = Spent()
    for _ in range(MERGES):
        kept.step(events.batch(batch, mixed=mixed))
        changes = delta.changes(kept.nexmark)
        began = spent()
        delta.merge(changes)
        total += spent() - began
    shutil.rmtree(folder)
    return total.by(MERGES)
