"""Table and picture of docs/PERFORMANCE.md with the cost of a step over the size of the tables: P28 of a run.

    .venv/bin/python bench/view_growth.py .benchmarks/figures.json docs/PERFORMANCE.md

writes them of a run of bench_view_growth.py; `make bench` does it of a whole run.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

from plots import BLUE, DPI, GREY, RED, WIDTH_IN
from report import PLOTS, Figure, wrapped, write_between, write_from_results

BEGIN, END = "<!-- growth of views: begin -->", "<!-- growth of views: end -->"
NUMBER = "P28"
OURS, ANEW = "epochlog", "all rows anew"
SIZES = 100_000, 300_000, 1_000_000, 3_000_000
BATCHES = 1_000, 10_000
MIXED = 1_000_000
"""Size at which batches with updates and deletes are measured too."""
PICTURE = "views.png"


def what(size: int, batch: int, *, mixed: bool = False) -> str:
    """Return the words of the figure of a batch over tables of so many events."""
    kind = ", and a tenth as many updates and deletes," if mixed else ""
    return f"CPU of eight Nexmark views: a batch of {batch:,} events{kind} over {size:,}"


def measured() -> Iterator[tuple[int, int, bool]]:
    """Yield size, batch, and whether it has updates and deletes, of each figure of a whole run."""
    yield from ((size, batch, False) for size, batch in product(SIZES, BATCHES))
    yield from ((MIXED, batch, True) for batch in BATCHES)


def write(path: Path, figures: Iterable[Figure]) -> None:
    """Write table and picture of these figures into the page, between the markers. Raises ValueError."""
    by_words = {figure.what: figure for figure in figures if figure.id == NUMBER}
    draw(by_words, path.parent / PLOTS / PICTURE)
    write_between(path, render(by_words), BEGIN, END)


def render(figures: dict[str, Figure]) -> str:
    """Return the table and the picture's link as Markdown. figures: by their words."""
    heads = ["events in the tables", *(f"a batch of {batch:,}" for batch in BATCHES), ANEW]
    lines = [f"| {' | '.join(heads)} |", f"|{'--:|' * len(heads)}"]
    for size in SIZES:
        own = [figures.get(what(size, batch)) for batch in BATCHES]
        anew = next((figure for figure in own if figure is not None), None)
        cells = [f"{size:,}", *(_shown(figure, OURS) for figure in own), _shown(anew, ANEW)]
        lines.append(f"| {' | '.join(cells)} |")
    mixed = [figures.get(what(MIXED, batch, mixed=True)) for batch in BATCHES]
    lines.append(f"| {MIXED:,}, also updates and deletes | {' | '.join(_shown(each, OURS) for each in mixed)} | – |")
    note = (
        "CPU milliseconds of all eight views of Nexmark together, each stepped by itself with DuckDB and committed: "
        "medians of one process. *All rows anew* is DuckDB's time for their eight queries alone."
    )
    text = "CPU of a step of eight views over the events in their tables: flat, where all rows anew grow with them"
    return "\n".join([*lines, "", f"![{text}]({PLOTS}/{PICTURE})", "", wrapped(note)])


def _shown(figure: Figure | None, who: str) -> str:
    return "–" if figure is None or not figure.samples.get(who) else f"{statistics.median(figure.samples[who]):,.0f} ms"


def draw(figures: dict[str, Figure], path: Path) -> None:
    """Write the picture: a curve of each batch, and of all rows anew, on logarithmic axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(WIDTH_IN, 3.2), dpi=DPI)
    FigureCanvasAgg(canvas)
    axes = canvas.subplots()
    curves: list[tuple[str, str, Sequence[tuple[int, float]]]] = [
        (f"epochlog, {batch:,} events", color, points(figures, batch, OURS))
        for batch, color in zip(BATCHES, (BLUE, "#6ea3d8"), strict=True)
    ]
    curves.append((ANEW, RED, points(figures, BATCHES[0], ANEW)))
    for name, color, curve in curves:
        if curve:
            axes.plot(*zip(*curve, strict=True), color=color, marker="o", markersize=4, linewidth=1.8)
            axes.annotate(
                name, curve[-1], xytext=(6, 0), textcoords="offset points", va="center", color=color, fontsize=8
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(SIZES[0] * 0.85, SIZES[-1] * 2.6)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:,.0f}")
    axes.set_xlabel("events in the tables", fontsize=9, color=GREY)
    axes.set_title("CPU of a step of eight views, ms", loc="left", fontsize=9)
    axes.tick_params(labelsize=8, colors=GREY, which="both")
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    canvas.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, metadata={"Software": None})


def points(figures: dict[str, Figure], batch: int, who: str) -> list[tuple[int, float]]:
    """Return the sizes with the median of somebody's milliseconds."""
    own = ((size, figures.get(what(size, batch))) for size in SIZES)
    return [(size, statistics.median(f.samples[who])) for size, f in own if f is not None and f.samples.get(who)]


if __name__ == "__main__":
    write_from_results(write, *map(Path, sys.argv[1:]))
