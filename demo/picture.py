"""Picture of a run, and its data: committed epochs over time, with a line and a lane of commits for each table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

COLOURS = {
    "flights": "#9aa0a6",
    "weather": "#c3b091",
    "route_delays": "#1b6ca8",
    "worst_routes": "#6a3d9a",
    "weather_impact": "#c62828",
    "carrier_scoreboard": "#e08a00",
}


Trace = Sequence[tuple[float, float]]
"""Commits of a table: (time, epoch), both in seconds of the run."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Period in which one table is disturbed, in seconds of the run."""

    table: str
    what: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """Data of the picture."""

    traces: Mapping[str, Trace]
    phases: Sequence[Phase]
    snapshots: Trace
    """Time and aligned epoch of each, in seconds of the run."""


def save(path: Path, figures: Figures) -> None:
    """Write the figures as JSON, which `load` reads."""
    path.write_text(json.dumps(asdict(figures)) + "\n", "utf-8")


def load(path: Path) -> Figures:
    """Read the figures that `save` wrote."""
    saved = json.loads(path.read_text("utf-8"))
    return Figures(saved["traces"], [Phase(**phase) for phase in saved["phases"]], saved["snapshots"])


def draw(path: Path, figures: Figures) -> None:
    """Write the PNG. Shaded: a table's slowed or killed phase. Dots: the aligned epoch of each snapshot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(figure)
    top, lanes = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    for name, colour in COLOURS.items():
        if figures.traces[name]:
            top.step(*zip(*figures.traces[name], strict=True), where="post", color=colour, label=name, linewidth=1.6)
    names = list(COLOURS)[::-1]
    lanes.eventplot(
        [[at_s for at_s, _ in figures.traces[name]] for name in names],
        colors=[COLOURS[name] for name in names],
        linelengths=0.7,
    )
    lanes.set_yticks(range(len(names)), names)
    for phase in figures.phases:
        top.axvspan(phase.start_s, phase.end_s, color=COLOURS[phase.table], alpha=0.12, linewidth=0)
        lane = names.index(phase.table)
        lanes.fill_between(
            [phase.start_s, phase.end_s], lane - 0.45, lane + 0.45, color=COLOURS[phase.table], alpha=0.25
        )
        middle = (phase.start_s + phase.end_s) / 2
        top.text(
            middle, 0.98, f"{phase.table}\n{phase.what}", transform=top.get_xaxis_transform(), ha="center", va="top"
        )
    top.plot(*zip(*figures.snapshots, strict=True), "o", color="black", label="aligned snapshot", zorder=3)
    top.set_ylabel("committed epoch (seconds of the run)")
    top.set_title("Committed epochs of each table: no view waits for the slowed one or the killed one")
    top.legend(loc="lower right")
    top.grid(alpha=0.3)
    lanes.set_xlabel("seconds of the run")
    lanes.set_title("commits", loc="left", fontsize=10)
    figure.savefig(path, dpi=100)
