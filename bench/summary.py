"""First table and picture of docs/PERFORMANCE.md: at most twelve figures of a run, for a reader in a hurry.

    .venv/bin/python bench/summary.py .benchmarks/figures.json docs/PERFORMANCE.md

writes them of a run of some bench files; `make bench` does it of a whole run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pairs import ratio
from plots import BLUE, DPI, RED, WIDTH_IN
from report import BASE, PLOTS, WIDE, Figure, shown, wrapped, write_between, write_from_results

BEGIN, END = "<!-- summary: begin -->", "<!-- summary: end -->"
MOST_ROWS = 12
PICTURE = "summary.png"


@dataclass(frozen=True, slots=True)
class Row:
    """Row of the summary, which answers one question. work: its words; id, what, shape: the figure, whose `what` begins
    so; peer: whom epochlog is compared with, by the name in the samples; beside: the peer's name for people.
    """

    work: str
    id: str
    what: str
    peer: str
    beside: str
    ours: str = "epochlog"
    shape: str = BASE

    def is_of(self, figure: Figure) -> bool:
        return (figure.id, figure.shape) == (self.id, self.shape) and figure.what.startswith(self.what)


ROWS = (
    Row("commit 20,000 rows to 2 M, durably", "P1", "durable commit", "deltalake", "deltalake's MERGE"),
    Row("read 2 M rows, compacted", "P2", "read the whole table after", "parquet", "one Parquet file"),
    Row("read them with 20 newer commits", "P2", "read the whole table before", "parquet", "one Parquet file"),
    Row("read them again after one more commit", "P2", "read the whole table again", "parquet", "one Parquet file"),
    Row("read them as of 15 commits ago, uncompacted", "P3", "read 15 commits back, before", "deltalake", "deltalake"),
    Row("look up 100,000 keys", "P8", "get 100,000 keys after", "rocksdict", "RocksDB"),
    Row("read the changes of 20 commits", "P4", "change feed", "deltalake", "deltalake's feed", ours="images stored"),
    Row("replay 5 M rows over Flight", "P5", "Flight replay", "raw Flight", "Flight from memory"),
    Row(
        "read 5 M rows in Spark", "P7", "Spark batch read", "Spark's Parquet, el.spark()", "Spark's own files",
        ours="epochlog, a snapshot",
    ),
    Row(
        "read 2 of 50 columns in Spark", "P7", "two of its columns", "Spark's Parquet, el.spark()", "Spark's own files",
        ours="epochlog, a snapshot", shape=WIDE,
    ),
    Row(
        "run a micro-batch of 20,000 rows in Spark", "P6", "Spark micro-batch", "rate → parquet, defaults",
        "Spark's rate source to Parquet", ours="epochlog, el.spark()",
    ),
    Row(
        "keep eight Nexmark views of 1 M events, each 1,000 more", "P21",
        "CPU of eight Nexmark views: a step of 1,000 events over 1,000,000", "all rows anew", "all rows anew, CPU time",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """Row of the summary with its figures. ratio: epochlog's time over the peer's; the median of the pairs."""

    row: Row
    ours: str
    theirs: str
    ratio: float

    @property
    def verdict(self) -> str:
        """Return the ratio in words: `68 times as fast`, `1.9 times as slow`, or `as fast` within five percent."""
        if 0.95 <= self.ratio <= 1.05:
            return "as fast"
        factor = max(self.ratio, 1 / self.ratio)
        return f"{factor:.{0 if factor >= 10 else 1}f} times as {'slow' if self.ratio > 1 else 'fast'}"


def lines_of(figures: Iterable[Figure]) -> list[Line]:
    """Return the lines whose figures a run has, in the order of ROWS."""
    measured, lines = list(figures), list[Line]()
    for row in ROWS:
        for figure in measured:
            if row.is_of(figure) and row.peer in figure.samples:
                between = ratio(figure.samples, row.ours, row.peer)
                lines.append(Line(row, shown(figure, row.ours), shown(figure, row.peer), between))
    return lines


def write(path: Path, figures: Iterable[Figure]) -> None:
    """Write table and picture of these figures into the page, between the markers of the summary. Raises ValueError."""
    lines = lines_of(figures)
    draw(lines, path.parent / PLOTS / PICTURE)
    write_between(path, render(lines), BEGIN, END)


def render(lines: Iterable[Line]) -> str:
    """Return the table and the picture's link as Markdown."""
    return "\n".join(
        [
            "| what | epochlog | beside | its time | epochlog is |",
            "|---|--:|---|--:|---|",
            *(f"| {' | '.join(_cells(line))} |" for line in lines),
            "",
            f"![Times of epochlog over those of its peers: left of the line epochlog is faster]({PLOTS}/{PICTURE})",
            "",
            wrapped("Medians of one run, in pairs. All figures, their targets and how they were measured are below."),
        ]
    )


def _cells(line: Line) -> Iterator[str]:
    yield from (line.row.work, line.ours, line.row.beside, line.theirs)
    yield line.verdict if line.ratio <= 1.05 else f"**{line.verdict}**"


def draw(lines: list[Line], path: Path) -> None:
    """Write the picture: one bar a line, from 1 to its ratio, on a logarithmic axis."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDTH_IN, 0.7 + 0.32 * len(lines)), dpi=DPI)
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    places = range(len(lines), 0, -1)
    axes.set_xscale("log", base=2)
    for place, line in zip(places, lines, strict=True):
        slow = line.ratio > 1
        axes.barh(place, line.ratio - 1, left=1, height=0.62, color=RED if slow else BLUE)
        axes.annotate(
            line.verdict, (line.ratio, place), xytext=(3 if slow else -3, 0), textcoords="offset points",
            ha="left" if slow else "right", va="center", fontsize=8,
        )  # fmt: skip
    axes.axvline(1, color="#222222", linewidth=1)
    axes.set_yticks(list(places), [f"{line.row.work}\nbeside {line.row.beside}" for line in lines], fontsize=7)
    smallest, largest = min(line.ratio for line in lines), max(line.ratio for line in lines)
    axes.set_xlim(min(0.5, smallest) / 6, max(2.0, largest) * 6)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}" if x >= 1 else f"1/{1 / x:g}")
    axes.tick_params(axis="x", labelsize=8)
    axes.set_title("epochlog's time over its peer's", loc="left", fontsize=9)
    canvas.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    write_from_results(write, *map(Path, sys.argv[1:]))
