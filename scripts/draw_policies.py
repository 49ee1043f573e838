"""Drawing of the timelines in docs/policies/, from a real store and the choices of its policies.

    python scripts/draw_policies.py

The store has its own clock, so that each run draws equal files.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import epochlog as el
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.types.epoch import EPOCH_ORIGIN_MS, to_unix_ms

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "policies"
START_MS = EPOCH_ORIGIN_MS + 1_000_000
TABLES = ("orders", "payments", "revenue", "balance", "report")
ROWS = pa.schema([("id", pa.int64()), ("cents", pa.int64())])
ORDERS, PAYMENTS = (1.2, 2.4, 3.6, 4.8, 6.3, 7.7, 9.1, 10.5), (2.6, 5.2, 8.4)
REVENUE, BALANCE = (2, 3, 4, 5, 7, 8, 10), (3, 5, 6)


# ---- the story -----------------------------------------------------------------------------------------------------


class Story:
    """Story of the pictures, at 11 s: two root tables; the views `revenue` and `balance` over them, the latter stopped
    at 6 s; and `report` over `balance`, whose job has not run yet.
    """

    def __init__(self, folder: Path) -> None:
        self._now_ms = START_MS
        self.store = el.open(folder, durability="os", clock=lambda: self._now_ms)
        for name in ("orders", "payments"):
            self.store.create_table(name, ROWS, ["id"])
        upstreams = {"revenue": ["orders"], "balance": ["orders", "payments"], "report": ["balance"]}
        for name, above in upstreams.items():
            self.store.create_job(name, above, {name: (ROWS, ["id"])})
        events: list[tuple[float, Callable[[float, str], object], str]] = [
            *((second, self.put, "orders") for second in ORDERS),
            *((second, self.put, "payments") for second in PAYMENTS),
            *((second + 0.1, self.step, "revenue") for second in REVENUE),
            *((second + 0.1, self.step, "balance") for second in BALANCE),
        ]
        for second, act, name in sorted(events, key=lambda event: event[0]):
            act(second, name)
        self.clock(11)

    def clock(self, second: float) -> None:
        self._now_ms = START_MS + round(second * 1000)

    def put(self, second: float, name: str) -> int:
        """Commit one row to a root table."""
        self.clock(second)
        return self.store.table(name).upsert(pa.table({"id": [round(second * 10)], "cents": [100]}, schema=ROWS))

    def step(self, second: float, name: str) -> None:
        """Step a job through all boundaries in the past; its output counts the rows of its upstreams."""
        self.clock(second)

        def refresh(ctx: Any) -> None:
            cents = sum(len(ctx.table(up)) for up in ctx.plan.upstreams)
            ctx.upsert(name, pa.table({"id": [0], "cents": [cents]}, schema=ROWS))

        job, commits = self.store.job(name), 0
        while job.step_local(refresh):
            commits += 1
        assert commits, f"{name} has nothing to do at {second} s"


def second_of(epoch: int) -> float:
    return (to_unix_ms(epoch) - START_MS) / 1000


@dataclass(frozen=True)
class Picture:
    """Choice of one policy with all data of its picture; `now`, `marks` and `band` are in seconds."""

    title: str
    subtitle: str
    now: float
    epochs: Mapping[str, int]
    lags_ms: Mapping[str, int]
    commits: Mapping[str, tuple[int, ...]]
    valid: Mapping[str, tuple[tuple[int, int], ...]]
    states: Mapping[str, str]
    last_epoch: int
    marks: Mapping[float, str] = field(default_factory=dict)
    band: tuple[float, float] | None = None

    def commit_of(self, table: str) -> int:
        """Return the commit whose rows are read; 0 if the table is read as empty."""
        return max((epoch for epoch in self.commits[table] if epoch <= self.epochs[table]), default=0)


def picture_of(
    story: Story, title: str, subtitle: str, tables: tuple[str, ...], policy: Any, now: float, **extra: Any
) -> Picture:
    """Build the picture of the policy's current choice for these tables."""
    with story.store.snapshot(tables, consistency=policy) as snapshot:
        epochs, lags_ms = dict(snapshot.epochs), dict(snapshot.lag_ms)
    handle = story.store._handle
    view = handle.catalog.read(lambda view: read_epoch_view(view, handle.memory, handle.catalog.now_ms()))
    valid = {name: tuple((int(a), int(b)) for a, b in zip(*view.valid_intervals(name), strict=True)) for name in TABLES}
    commits = {name: tuple(int(epoch) for epoch in view.table(name).commits) for name in TABLES}
    states = {name: view.table(name).state for name in TABLES}
    return Picture(title, subtitle, now, epochs, lags_ms, commits, valid, states, view.last_epoch, **extra)


def pictures(story: Story) -> Iterator[tuple[str, Picture]]:
    """Yield the picture of each policy, in an order that continues the story."""
    two, three = ("orders", "revenue"), ("orders", "revenue", "balance")
    yield "global", picture_of(
        story, "global: orders and revenue", "one epoch for all tables that take part; report is creating and outside",
        two, el.Global(), 11,
    )  # fmt: skip
    aligned = picture_of(
        story,
        "aligned: orders and revenue",
        "one epoch for these two tables; the lag of balance does not matter",
        two,
        el.Aligned(),
        11,
    )
    yield "aligned", aligned
    yield (
        "latest",
        picture_of(
            story, "latest: orders, revenue and balance", "each table at its newest commit", three, el.Latest(), 11
        ),
    )
    yield "as_of", picture_of(
        story, "as_of 5.6 s: orders and balance", "the largest valid epoch at or below the given time",
        ("orders", "balance"), el.AsOf(timestamp=START_MS + 5_600), 11, marks={5.6: "given"},
    )  # fmt: skip
    yield "bounded", picture_of(
        story, "bounded by 5 s: orders, revenue and balance", "aligned, and no table may lag more than the bound",
        three, el.Bounded(max_lag=5, timeout=0), 11, band=(6, 11),
    )  # fmt: skip
    with story.store.snapshot(two, consistency=el.Aligned()) as pinned:
        written = story.store.table("orders").info.max_committed_epoch
        try:
            story.store.snapshot(two, consistency=el.AtLeast(written, timeout=0))
        except el.NoConsistentEpoch:
            story.step(12.1, "revenue")
        yield "at_least", picture_of(
            story, "at_least the order of 10.5 s: orders and revenue", "called at 11 s, waits until revenue has it",
            two, el.AtLeast(written, timeout=0), 12.1, marks={second_of(written): "written", 11: "called"},
        )  # fmt: skip
        story.put(12.7, "orders")
        story.step(13.1, "revenue")
        story.store.compact(full=True)
        story.clock(13.5)
        yield "exact", picture_of(
            story, "exact, with the token of the snapshot of 11 s", "the rows of 11 s, despite commits and compaction",
            two, el.Exact(pinned.token), 13.5, marks={11: "token made"},
        )  # fmt: skip


# ---- the drawing ---------------------------------------------------------------------------------------------------

LEFT, RIGHT, TOP, LANE, SECOND = 96, 190, 98, 46, 44
SECONDS = 14
WIDTH, HEIGHT = LEFT + SECONDS * SECOND + RIGHT, TOP + LANE * len(TABLES) + 66
BLUE, ORANGE, GREEN, INK, PALE = "#0072B2", "#D55E00", "#CDE8DC", "#222222", "#9a9a9a"


def x_of(second: float) -> float:
    return round(LEFT + second * SECOND, 1)


def text(x: float, y: float, words: str, *, size: int = 12, color: str = INK, attributes: str = "") -> str:
    extra = " " + attributes if attributes else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{color}"{extra}>{words}</text>'


def line(x1: float, y1: float, x2: float, y2: float, color: str, attributes: str = "") -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{color}"{" " + attributes if attributes else ""}/>'


def box(x1: float, y: float, x2: float, height: float, color: str, attributes: str = "") -> str:
    width = round(max(x2 - x1, 1.2), 1)
    extra = " " + attributes if attributes else ""
    return f'<rect x="{x1}" y="{y}" width="{width}" height="{height}" fill="{color}"{extra}/>'


def svg(picture: Picture) -> str:
    """Return the picture as the text of an SVG file."""
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    fonts = 'font-family="Helvetica, Arial, DejaVu Sans, sans-serif"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {fonts} role="img" aria-label="{picture.title}">',
        box(0, 0, WIDTH, HEIGHT, "#ffffff"),
        text(16, 28, picture.title, size=16, attributes='font-weight="bold"'),
        text(16, 48, picture.subtitle, color="#555555"),
        *_axis(picture),
        *(part for place, table in enumerate(TABLES) for part in _lane(picture, table, TOP + place * LANE)),
        *_choice(picture),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axis(picture: Picture) -> Iterator[str]:
    bottom = TOP + LANE * len(TABLES)
    if picture.band:
        first, last = map(x_of, picture.band)
        yield box(first, TOP - 14, last, bottom - TOP + 14, "#f4e3d7", 'class="bound"')
    for second in range(SECONDS + 1):
        yield line(x_of(second), TOP - 6, x_of(second), bottom, "#e6e6e6")
        yield text(
            x_of(second), bottom + 16, f"{second} s", size=11, color="#777777", attributes='text-anchor="middle"'
        )
    for place, (second, words) in enumerate({**picture.marks, picture.now: "now"}.items()):
        yield line(x_of(second), TOP - 14, x_of(second), bottom, PALE, 'stroke-dasharray="4 3"')
        y = TOP - 18 - 12 * (place % 2)  # neighbouring labels alternate between two heights
        yield text(x_of(second), y, words, size=11, color="#777777", attributes='text-anchor="middle"')


def _lane(picture: Picture, table: str, y: int) -> Iterator[str]:
    """Yield the table's name, its valid intervals and its commits."""
    read = table in picture.epochs
    color, middle = INK if read else PALE, y + LANE // 2
    yield text(
        LEFT - 12, middle + 4, table, color=color, attributes=f'text-anchor="end" font-weight="{600 if read else 400}"'
    )
    for begin, end in picture.valid[table]:
        first, last = max(second_of(begin), 0), min(second_of(end), second_of(picture.last_epoch))
        if last >= 0:
            yield box(x_of(first), middle - 9, x_of(last), 18, GREEN, "" if read else 'opacity="0.45"')
    yield line(x_of(0), middle, x_of(picture.now), middle, color)
    for epoch in picture.commits[table]:
        at, kind = x_of(second_of(epoch)), BLUE if read else PALE
        yield f'<circle cx="{at}" cy="{middle}" r="4" fill="{kind}" data-commit="{epoch}"/>'
    if not picture.commits[table]:
        yield text(x_of(0.3), middle - 6, f"{picture.states[table]}: no commit yet", size=11, color=PALE)


def _choice(picture: Picture) -> Iterator[str]:
    """Yield the chosen epochs, as one line or one per table, with the commit that is read and its lag."""
    bottom, shared = TOP + LANE * len(TABLES), len(set(picture.epochs.values())) == 1
    for table, epoch in picture.epochs.items():
        middle, commit = TOP + TABLES.index(table) * LANE + LANE // 2, picture.commit_of(table)
        at, height = x_of(second_of(epoch)), 18
        yield (
            f'<g class="read" data-table="{table}" data-epoch="{epoch}" data-commit="{commit}" '
            f'data-lag-ms="{picture.lags_ms[table]}">'
        )
        if not shared:
            yield line(at, middle - height, at, middle + height, ORANGE, 'stroke-width="2"')
        ring = x_of(second_of(commit))
        yield f'<circle cx="{ring}" cy="{middle}" r="8" fill="none" stroke="{ORANGE}" stroke-width="2"/>'
        label = f"reads its commit of {second_of(commit):.3f} s"
        yield text(x_of(SECONDS) + 10, middle - 3, label, size=11)
        yield text(x_of(SECONDS) + 10, middle + 11, f"lag {picture.lags_ms[table]:,} ms", size=11, color="#555555")
        yield "</g>"
    if shared:
        at = x_of(second_of(next(iter(picture.epochs.values()))))
        yield line(at, TOP - 10, at, bottom + 22, ORANGE, 'stroke-width="2" class="chosen"')
    for epoch in sorted(set(picture.epochs.values())):
        at = x_of(second_of(epoch))
        words = f"{second_of(epoch):.3f} s"
        yield text(
            at, bottom + 34, words, color=ORANGE, attributes='text-anchor="middle" font-weight="bold" class="epoch"'
        )


def _legend() -> Iterator[str]:
    y = HEIGHT - 12
    yield box(LEFT, y - 9, LEFT + 22, 12, GREEN)
    yield text(LEFT + 28, y + 1, "epochs at which the table is valid", size=11, color="#555555")
    yield f'<circle cx="{LEFT + 250}" cy="{y - 3}" r="4" fill="{BLUE}"/>'
    yield text(LEFT + 260, y + 1, "a commit", size=11, color="#555555")
    yield f'<circle cx="{LEFT + 340}" cy="{y - 3}" r="7" fill="none" stroke="{ORANGE}" stroke-width="2"/>'
    yield text(LEFT + 353, y + 1, "the commit that is read", size=11, color="#555555")
    yield line(LEFT + 512, y - 10, LEFT + 512, y + 3, ORANGE, 'stroke-width="2"')
    yield text(LEFT + 520, y + 1, "the epoch chosen", size=11, color="#555555")


def drawn(folder: Path) -> dict[str, str]:
    """Return all pictures by file name, from a new store in an empty folder."""
    story = Story(folder)
    with story.store:
        return {f"{name}.svg": svg(picture) for name, picture in pictures(story)}


def main() -> None:
    scratch = Path(tempfile.mkdtemp())
    try:
        for name, content in drawn(scratch / "lake").items():
            (FOLDER / name).write_text(content, "utf-8")
            print(FOLDER / name)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    sys.exit(main())
