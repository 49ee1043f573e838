"""P1, P2, P3 and P8: durable commits, whole reads, reads of the past and point reads, beside the peers."""

from __future__ import annotations

import pytest
from course import Course, legs
from data import PLAIN
from pairs import ReplayClock
from report import Book, Figure


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> dict[str, Figure]:
    course = Course(tmp_path_factory.mktemp("store"), scale, book.add)
    try:
        course.run()
    finally:
        course.close()
    return {figure.what: figure for figure in course.figures}


@pytest.mark.parametrize(("what", "who"), legs(PLAIN))
def test_store(what: str, who: str, clock: ReplayClock, benchmark, figures: dict[str, Figure]) -> None:
    if who not in figures[what].absent:
        clock.play(benchmark, figures[what].samples[who])
