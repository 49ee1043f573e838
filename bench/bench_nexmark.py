"""P21: CPU and wall time of steps of eight Nexmark views, beside Flink SQL, pathway, all rows anew, and MERGE.

EPOCHLOG_BENCH_STEPS has the number of steps that a mean is of; they are 300 without it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path

import nexmark
import pytest
from pairs import ReplayClock, Samples
from peers import FLINK, PATHWAY, PEERS
from report import Book, Figure, Target
from spent import Spent
from stream_peers import ALL, ANSWERS, SOURCES, STREAM_PEERS, Course, StreamPeer, answers_of_duckdb
from view_course import ANEW, MERGE, OURS, kept_by_epochlog

NUMBER = "P21"
SIZES, BATCHES = (300_000, 1_000_000, 3_000_000), (1_000, 10_000)
BY_VIEW = 1_000_000
"""Size over which the peers are measured by view too; a run below the full size has this size alone."""
STEPS = int(os.environ.get("EPOCHLOG_BENCH_STEPS", "300"))
CHECKED = 2_000
"""Events after which the answers of the peers are checked, with a few steps more."""
CPU, WALL = "CPU", "wall"


def measured(scale: float) -> Iterator[tuple[int, int, bool]]:
    """Yield size, batch, and whether it has updates and deletes, of each course of a run."""
    yield from product(SIZES if scale >= 1 else [BY_VIEW], BATCHES, [False, True])


def what(size: int, batch: int, time: str, *, mixed: bool) -> str:
    """Return the words of a figure."""
    kind = ", and a tenth as many updates and deletes," if mixed else ""
    return f"{time} of eight Nexmark views: a step of {batch:,} events{kind} over {size:,}"


def figures(
    size: int, batch: int, means: Mapping[str, Spent], absent: Mapping[str, str], *, mixed: bool
) -> list[Figure]:
    """Return the figures of one course, of CPU and of wall time."""
    targets = tuple(Target(OURS, peer, 1, "≤ 1") for peer in (FLINK, PATHWAY, ANEW, MERGE))
    cpu = {who: [mean.cpu_ms] for who, mean in means.items()}
    wall = {who: [mean.wall_ms] for who, mean in means.items()}
    return [
        Figure(NUMBER, what(size, batch, CPU, mixed=mixed), cpu, targets, absent=absent),
        Figure(NUMBER, what(size, batch, WALL, mixed=mixed), wall, (), absent=absent),
    ]


def named(peer: str, means: Mapping[str, Spent]) -> dict[str, Spent]:
    return {peer if work == ALL else f"{peer}, {work}": mean for work, mean in means.items()}


def course_of(
    folder: Path, kind: tuple[int, int, bool], peers: Mapping[str, StreamPeer], scale: float
) -> dict[str, Spent]:
    """Return the means of everybody over one course. kind: its size, batch, and whether it is mixed."""
    size, batch, mixed = kind
    steps, events, base = max(2, round(STEPS * scale)), max(20, round(batch * scale)), round(size * scale)
    means = dict(kept_by_epochlog(folder / "store", base, events, steps, mixed=mixed))
    course = Course(folder / "course", events, steps, mixed)
    if peers:
        course.write(base)
    works = [SOURCES, *(nexmark.VIEWS if size == BY_VIEW and scale >= 1 else []), ALL]
    for name, peer in peers.items():
        means |= named(name, peer.measured(course, works))
    shutil.rmtree(course.folder, ignore_errors=True)
    return means


def check(folder: Path, peers: Iterable[str]) -> None:
    """Compare what each peer answers after a small course with DuckDB's answers."""
    course = Course(folder / "checked", 100, 5, mixed=True)
    course.write(CHECKED)
    answers = answers_of_duckdb(course.batches(CHECKED))
    for name in peers:
        for view, rows in ANSWERS[name](folder / f"answers of {name}", course).items():
            assert rows == answers[view], f"{name} answers {view} otherwise"


def run(folder: Path, scale: float) -> Iterator[Figure]:
    """Yield the figures of a run."""
    absent = {name: why for name in STREAM_PEERS if (why := PEERS[name].why_absent()) is not None}
    check(folder, STREAM_PEERS.keys() - absent.keys())
    peers = {name: make(folder / name) for name, make in STREAM_PEERS.items() if name not in absent}
    try:
        for size, batch, mixed in measured(scale):
            means = course_of(folder, (size, batch, mixed), peers, scale)
            yield from figures(size, batch, means, absent, mixed=mixed)
    finally:
        for peer in peers.values():
            peer.close()


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> dict[str, Samples]:
    by_words: dict[str, Samples] = {}
    for figure in run(tmp_path_factory.mktemp("nexmark"), scale):
        book.add(figure)
        by_words[figure.what] = figure.samples
    return by_words


@pytest.mark.parametrize("who", [OURS, ANEW, MERGE])
@pytest.mark.parametrize("time", [CPU, WALL])
def test_p21(time: str, who: str, clock: ReplayClock, benchmark, scale: float, samples: dict[str, Samples]) -> None:
    means = [samples[what(size, batch, time, mixed=mixed)][who] for size, batch, mixed in measured(scale)]
    clock.play(benchmark, [took for own in means for took in own])
