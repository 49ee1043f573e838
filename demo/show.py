"""Display of the demo: a live table on a terminal, plain lines elsewhere, and the comparison at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .compare import ComparedMoment
from .views import VIEWS

PLAIN_EVERY_S = 10.0
LINES_KEPT = 12


@dataclass(frozen=True, slots=True)
class ShownLine:
    """State of one table: its committed epoch (seconds of the run), lag, rows, commits seen, and disturbance."""

    table: str
    epoch_s: float | None
    lag_ms: int
    rows: int
    commits: int
    state: str


def seconds(value_ms: int) -> str:
    return f"{value_ms / 1000:.1f} s"


class Screen:
    """Display of the run: a live table above the newest events; without a terminal, events and periodic lines."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal else None
        self._events: list[str] = []
        self._plain_at_s = 0.0

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def say(self, at_s: float, text: str) -> None:
        """Show an event under the live table, or print it."""
        line = f"{at_s:6.1f} s  {text}"
        self._events = [*self._events, line][-LINES_KEPT:]
        if not self._live:
            self.console.print(line, highlight=False, soft_wrap=True)

    def update(self, at_s: float, title: str, lines: Sequence[ShownLine]) -> None:
        """Show the current state of all tables."""
        if self._live:
            events = Text("\n".join(self._events), no_wrap=True, overflow="ellipsis")
            self._live.update(Group(status(title, lines), events))
        elif at_s - self._plain_at_s >= PLAIN_EVERY_S:
            self._plain_at_s = at_s
            states = "  ".join(f"{x.table} {x.rows:,} ({seconds(x.lag_ms)})" for x in lines if x.commits > 1)
            self.console.print(f"{at_s:6.1f} s  {title}: {states}", highlight=False, soft_wrap=True)


def status(title: str, lines: Sequence[ShownLine]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("table")
    for column in ("committed epoch", "lag", "rows", "commits"):
        table.add_column(column, justify="right")
    table.add_column("state")
    for line in lines:
        epoch = "" if line.epoch_s is None else f"{line.epoch_s:.1f} s"
        style = "bold red" if "kill" in line.state else "yellow" if line.state else None
        lag = seconds(line.lag_ms) if line.table in VIEWS else ""
        table.add_row(line.table, epoch, lag, f"{line.rows:,}", str(line.commits), line.state, style=style)
    return table


def comparison(moments: Sequence[ComparedMoment]) -> Table:
    """Build a table with a row per moment: the rows and differing keys of each view, under `aligned` and `latest`."""
    table = Table(title="rows of each view: keys unlike its SQL under aligned | latest", title_justify="left")
    for column in ("#", "at", "day"):
        table.add_column(column, justify="right")
    for view in VIEWS:
        table.add_column(view.replace("_", "_\n"), justify="right")
    table.add_column("during")
    for moment in moments:
        cells = [cell(moment, view) for view in VIEWS]
        table.add_row(str(moment.number), f"{moment.at_s:.0f} s", str(moment.day), *cells, moment.during)
    return table


def cell(moment: ComparedMoment, view: str) -> Text:
    aligned, latest = moment.aligned[view], moment.latest[view]
    good = Text(str(aligned.differing), style="green" if aligned.differing == 0 else "bold red")
    bad = Text(str(latest.differing), style="yellow" if latest.differing else "")
    return Text(f"{aligned.rows:,}: ") + good + Text(" | ") + bad
