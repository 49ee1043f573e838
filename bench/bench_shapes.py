"""P1 to P5, P8 and P10 again, for tables with a key of text, with a composite key, and with fifty columns."""

from __future__ import annotations

import pytest
from bench_compaction import ALONE, OURS, SPEED, throughput
from bench_feed import FED, WHO, fed
from bench_flight import COMMITS, RAW, replayed
from course import Course, legs
from data import OTHERS, Shape
from pairs import ReplayClock
from report import Book, Figure

REPLAYED, COMPACTED = "Flight replay", "compact base and 20 commits"
LEGS = [
    (shape.name, *leg)
    for shape in OTHERS
    for leg in (
        *legs(shape),
        *((FED, who) for who in WHO),
        *((REPLAYED, who) for who in (OURS, RAW)),
        *((COMPACTED, who) for who in (OURS, ALONE)),
    )
]


def measured(factory: pytest.TempPathFactory, shape: Shape, scale: float, book: Book) -> dict[str, Figure]:
    rounds = 3 if scale >= 1 else 1
    course = Course(factory.mktemp("store"), scale, book.add, shape)
    try:
        course.run()
    finally:
        course.close()
    by_name = {figure.what: figure for figure in course.figures}
    by_name[FED] = fed(factory.mktemp("feed"), shape, scale, rounds)
    by_name[REPLAYED] = replayed(factory.mktemp("flight"), shape, max(COMMITS, round(shape.base_rows * scale)), rounds)
    took = throughput(factory.mktemp("compaction"), scale, shape)
    by_name[COMPACTED] = Figure("P10", COMPACTED, took, SPEED, shape=shape.name)
    for what in (FED, REPLAYED, COMPACTED):
        book.add(by_name[what])
    return by_name


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> dict[str, dict[str, Figure]]:
    return {shape.name: measured(tmp_path_factory, shape, scale, book) for shape in OTHERS}


@pytest.mark.parametrize(("shape", "what", "who"), LEGS)
def test_shape(
    shape: str, what: str, who: str, clock: ReplayClock, benchmark, figures: dict[str, dict[str, Figure]]
) -> None:
    clock.play(benchmark, figures[shape][what].samples[who])
