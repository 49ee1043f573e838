"""P28: CPU time of the steps of eight views over the size of their tables, beside that of all rows anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nexmark
import pytest
from changing_events import ChangingEvents
from pairs import ReplayClock, Samples
from report import Book, Figure, Target
from view_course import KeptViews
from view_growth import ANEW, NUMBER, OURS, measured, what

STEPS = {1_000: 12, 10_000: 6}
"""Batches of each size that count; one more comes before them."""
LIMITS_MS = {1_000: 250, 10_000: 1_000}
LIMITED = 1_000_000
"""Events in the tables for which the limits hold."""
ROUNDS_ANEW = 2


def course(folder: Path, scale: float) -> Iterator[Figure]:
    """Yield the figures of a run, in the order of the sizes."""
    sizes: dict[int, list[tuple[int, bool]]] = {}
    for size, batch, mixed in measured():
        sizes.setdefault(size, []).append((batch, mixed))
    for size, batches in sizes.items():
        kept, coming = KeptViews(nexmark.Nexmark(folder / f"of {size}")), ChangingEvents()
        kept.commit(coming.batch(round(size * scale)))
        kept.step()
        anew = [kept.anew().cpu_ms for _ in range(ROUNDS_ANEW)]
        for batch, mixed in batches:
            events = round(batch * scale)
            samples: Samples = {name: [] for name in (OURS, *nexmark.VIEWS)}
            for number in range(STEPS[batch] + 1):
                kept.commit(coming.batch(events, mixed=mixed))
                took = {name: spent.cpu_ms for name, spent in kept.step().items()}
                for name, cpu_ms in {OURS: sum(took.values()), **took}.items():
                    samples[name] += [cpu_ms] if number else []
            limit = LIMITS_MS[batch]
            targets = (Target(OURS, None, limit, f"≤ {limit:,} ms"),) if size == LIMITED and not mixed else ()
            yield Figure(NUMBER, what(size, batch, mixed=mixed), {**samples, ANEW: anew}, targets)
        differing = {name: count for name, count in kept.nexmark.differing().items() if count}
        assert not differing, differing
        kept.nexmark.store.close()


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
