"""Eight views of Nexmark, kept by epochlog through a course of steps: what a step costs, by what it does."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class KeptViews:
    """Store with the eight views, stepped one by one. Each call returns what it cost."""

    nexmark: nexmark.Nexmark

    def commit(self, batch: Batch) -> Spent:
        """Commit a batch of events, in one epoch."""
        began = spent()
        with self.nexmark.store.transaction() as tx:
            for name in SCHEMAS:
                tx.upsert(name, batch.upserts(name))
            if len(batch.deleted):
                tx.delete("bid", batch.deleted.select(["auction", "number"]))
        self.nexmark.store.checkpoint()
        return spent() - began

    def step(self) -> dict[str, Spent]:
        """Step each view until it has all that was committed."""
        took: dict[str, Spent] = {}
        for name, view in self.nexmark.views.items():
            began = spent()
            while view.step() is not None:
                pass
            took[name] = spent() - began
        return took

    def compact(self) -> Spent:
        began = spent()
        self.nexmark.store.compact()
        return spent() - began

    def anew(self) -> Spent:
        """Run the eight queries by DuckDB over all rows, which are in memory before."""
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
    kept.commit(events.batch(size))
    kept.step()
    kept.compact()
    total = {what: Spent() for what in (COMMIT, *nexmark.VIEWS, COMPACTION)}
    for number in range(1, steps + 1):
        took = {COMMIT: kept.commit(events.batch(batch, mixed=mixed)), **kept.step()}
        if number % STEPS_OF_COMPACTION == 0 or number == steps:
            took[COMPACTION] = kept.compact()
        total |= {what: total[what] + own for what, own in took.items()}
    means = {what: own.by(steps) for what, own in total.items()}
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
        kept.commit(events.batch(batch, mixed=mixed))
        kept.step()
        changes = delta.changes(kept.nexmark)
        began = spent()
        delta.merge(changes)
        total += spent() - began
    shutil.rmtree(folder)
    return total.by(MERGES)
