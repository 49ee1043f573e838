"""Table of docs/PERFORMANCE.md with rows per second into a table and out of it on Spark: P26 of a run.

    .venv/bin/python bench/throughput.py .benchmarks/figures.json docs/PERFORMANCE.md

writes that of a run of bench_throughput.py; `make bench` does it of a whole run.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pairs import ratio
from report import Figure, wrapped, write_between, write_from_results

BEGIN, END = "<!-- throughput: begin -->", "<!-- throughput: end -->"
NUMBER = "P26"
OWN, CATALOG, PARQUET = "epochlog", "epochlog, the catalog", "Spark's Parquet"
OLDEST = "Spark 4.0"
HEAD = (
    ("work", "epochlog", "CPU", "Spark's Parquet", "CPU", "its time", f"epochlog, {OLDEST}", f"Parquet, {OLDEST}"),
    ("---", "--:", "--:", "--:", "--:", "--:", "--:", "--:"),
)


@dataclass(frozen=True, slots=True)
class SparkWork:
    """SparkWork of P26 on so many rows at the full size, and who does it."""

    what: str
    rows: int
    legs: tuple[str, ...] = (OWN, PARQUET)

    @property
    def time(self) -> str:
        return f"Spark: {self.what}"

    @property
    def cpu(self) -> str:
        return f"CPU time of that: {self.what}"


APPEND, APPEND_MORE, STREAM_IN, READ, STREAM_OUT = WORKS = (
    SparkWork("append 1 M rows of a range", 1_000_000),
    SparkWork("append 5 M rows of a range", 5_000_000),
    SparkWork("a stream writes 1 M rows in four micro-batches", 1_000_000),
    SparkWork("a batch reads 5 M rows into noop", 5_000_000, (OWN, CATALOG, PARQUET)),
    SparkWork("a stream reads 5 M rows of the log into noop", 5_000_000),
)


def on_oldest(leg: str) -> str:
    """Return the name of a leg's samples on the oldest Spark."""
    return f"{leg}, {OLDEST}"


def write(path: Path, figures: Iterable[Figure]) -> None:
    """Write the table of these figures into the page, between its markers. Raises ValueError."""
    write_between(path, render(figures), BEGIN, END)


def render(figures: Iterable[Figure]) -> str:
    """Return the table as Markdown."""
    by_words = {figure.what: figure for figure in figures if figure.id == NUMBER}
    lines = [cells for work in WORKS if work.time in by_words for cells in _cells(work, by_words)]
    return "\n".join(
        [
            *(f"| {' | '.join(cells)} |" for cells in (*HEAD, *lines)),
            "",
            wrapped(
                "Millions of rows per second, of medians, and CPU seconds per million rows of the driver, its JVM and "
                "its Python workers. *Its time* is epochlog's over that of Spark's Parquet, in pairs."
            ),
        ]
    )


def _cells(work: SparkWork, figures: dict[str, Figure]) -> Iterator[list[str]]:
    time, cpu = figures[work.time], figures[work.cpu]
    millions = work.rows / 1e6

    def rate(leg: str) -> str:
        return f"{1000 * millions / statistics.median(time.samples[leg]):.2f}" if leg in time.samples else "–"

    def cpu_s(leg: str) -> str:
        return f"{statistics.median(cpu.samples[leg]) / 1000 / millions:.2f} s" if leg in cpu.samples else "–"

    for leg in work.legs:
        if leg != PARQUET:
            what = f"{work.what} ({leg.removeprefix(f'{OWN}, ')})" if leg != OWN else work.what
            times = f"{ratio(time.samples, leg, PARQUET):.2f}"
            oldest = (rate(on_oldest(leg)), rate(on_oldest(PARQUET)))
            yield [what, rate(leg), cpu_s(leg), rate(PARQUET), cpu_s(PARQUET), times, *oldest]


if __name__ == "__main__":
    write_from_results(write, *map(Path, sys.argv[1:]))
