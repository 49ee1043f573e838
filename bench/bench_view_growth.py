"""P28: CPU time of the steps of eight views over the size of their tables, beside that of all rows anew."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nexmark
import numpy as np
import pyarrow as pa
import pytest
from nexmark_data import SCHEMAS, Events
from pairs import ReplayClock, Samples
from report import Book, Figure, Target
from view_growth import ANEW, NUMBER, OURS, measured, what

STEPS = {1_000: 12, 10_000: 6}
"""Batches of each size that count; one more comes before them."""
LIMITS_MS = {1_000: 250, 10_000: 1_000}
LIMITED = 1_000_000
"""Events in the tables for which the limits hold."""
ROUNDS_ANEW = 2


@dataclass
class Tables:
    """Store with the eight views over so many events, and the events that come next."""

    nexmark: nexmark.Nexmark
    events: Events = field(default_factory=lambda: Events(1))
    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(28))
    count: int = 0
    bids: list[pa.Table] = field(default_factory=list)
    """All bids that have arrived, some of which are deleted."""

    def arrive(self, events: int, *, mixed: bool = False) -> None:
        """Commit the next events; mixed: also update a twentieth as many bids, and delete as many others."""
        (rows,) = self.events.batches(self.count, events, events)
        self.count += events
        old = pa.concat_tables(self.bids).combine_chunks() if mixed else None
        self.bids.append(rows["bid"])
        with self.nexmark.store.transaction() as tx:
            for name, part in rows.items():
                tx.upsert(name, part)
            if old is not None:
                some = old.take(pa.array(self.chance.choice(len(old), events // 10, replace=False)))
                updated, deleted = some.slice(0, events // 20), some.slice(events // 20)
                place = updated.column_names.index("price")
                prices = pa.array(self.chance.integers(100, 10_000_000, len(updated)))
                tx.upsert("bid", updated.set_column(place, SCHEMAS["bid"].field("price"), [prices]))
                tx.delete("bid", deleted.select(["auction", "number"]))
        self.nexmark.store.checkpoint()

    def step(self) -> dict[str, float]:
        """Step each view until it has all; return their CPU milliseconds, and those of all of them."""
        took: dict[str, float] = {}
        for name, view in self.nexmark.views.items():
            began = time.process_time()
            while view.step() is not None:
                pass
            took[name] = 1000 * (time.process_time() - began)
        return {OURS: sum(took.values()), **took}

    def anew(self) -> float:
        """Return the CPU milliseconds of DuckDB for all rows of all views."""
        with self.nexmark.store.snapshot([*SCHEMAS], consistency="aligned") as moment, moment.duckdb() as connection:
            for name in SCHEMAS:  # the rows are in memory before the clock starts
                connection.register(name, moment[name].to_arrow())
            began = time.process_time()
            for sql, _ in nexmark.VIEWS.values():
                connection.sql(sql).to_arrow_table()
            return 1000 * (time.process_time() - began)


def course(folder: Path, scale: float) -> Iterator[Figure]:
    """Yield the figures of a run, in the order of the sizes."""
    sizes: dict[int, list[tuple[int, bool]]] = {}
    for size, batch, mixed in measured():
        sizes.setdefault(size, []).append((batch, mixed))
    for size, batches in sizes.items():
        tables = Tables(nexmark.Nexmark(folder / f"of {size}"))
        tables.arrive(round(size * scale))
        tables.step()
        anew = [tables.anew() for _ in range(ROUNDS_ANEW)]
        for batch, mixed in batches:
            events = round(batch * scale)
            samples: Samples = {name: [] for name in (OURS, *nexmark.VIEWS)}
            for number in range(STEPS[batch] + 1):
                tables.arrive(events, mixed=mixed)
                for name, took in tables.step().items():
                    samples[name] += [took] if number else []
            limit = LIMITS_MS[batch]
            targets = (Target(OURS, None, limit, f"≤ {limit:,} ms"),) if size == LIMITED and not mixed else ()
            yield Figure(NUMBER, what(size, batch, mixed=mixed), {**samples, ANEW: anew}, targets)
        differing = {name: count for name, count in tables.nexmark.differing().items() if count}
        assert not differing, differing
        tables.nexmark.store.close()


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> dict[str, Samples]:
    samples: dict[str, Samples] = {}
    for figure in course(tmp_path_factory.mktemp("growth"), scale):
        book.add(figure)
        samples[figure.what] = figure.samples
    return samples


@pytest.mark.parametrize("who", [OURS, ANEW])
@pytest.mark.parametrize(("size", "batch", "mixed"), list(measured()))
def test_p28(
    size: int, batch: int, mixed: bool, who: str, clock: ReplayClock, benchmark, figures: dict[str, Samples]
) -> None:
    clock.play(benchmark, figures[what(size, batch, mixed=mixed)][who])
