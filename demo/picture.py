"""The picture of a run: committed epochs over time, one line and one lane of commits per table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .compare import Moment

COLOURS = {
    "flights": "#9aa0a6",
    "weather": "#c3b091",
    "route_delays": "#1b6ca8",
    "worst_routes": "#6a3d9a",
    "weather_impact": "#c62828",
    "carrier_scoreboard": "#e08a00",
}


Trace = Sequence[tuple[float, float]]
"""A table's commits: (when it was made, its epoch), both in seconds of the run."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Something done to one table on purpose, from and until (seconds of the run)."""

    table: str
    what: str
    start_s: float
    end_s: float


def draw(path: Path, traces: Mapping[str, Trace], phases: Sequence[Phase], moments: Sequence[Moment]) -> None:
    """Write the PNG. Shaded: a table's slowed or killed phase. Dots: the aligned epoch of each snapshot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    FigureCanvasAgg(figure)
    top, lanes = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    for name, colour in COLOURS.items():
        if traces[name]:
            top.step(*zip(*traces[name], strict=True), where="post", color=colour, label=name, linewidth=1.6)
    names = list(COLOURS)[::-1]
    lanes.eventplot(
        [[at_s for at_s, _ in traces[name]] for name in names],
        colors=[COLOURS[name] for name in names],
        linelengths=0.7,
    )
    lanes.set_yticks(range(len(names)), names)
    for phase in phases:
        top.axvspan(phase.start_s, phase.end_s, color=COLOURS[phase.table], alpha=0.12, linewidth=0)
        lane = names.index(phase.table)
        lanes.fill_between(
            [phase.start_s, phase.end_s], lane - 0.45, lane + 0.45, color=COLOURS[phase.table], alpha=0.25
        )
        middle = (phase.start_s + phase.end_s) / 2
        top.text(
            middle, 0.98, f"{phase.table}\n{phase.what}", transform=top.get_xaxis_transform(), ha="center", va="top"
        )
    top.plot(
        [m.at_s for m in moments], [m.epoch_s for m in moments], "o", color="black", label="aligned snapshot", zorder=3
    )
    top.set_ylabel("committed epoch (seconds of the run)")
    top.set_title("What each table has committed; nobody waits for the slow or the dead one")
    top.legend(loc="lower right")
    top.grid(alpha=0.3)
    lanes.set_xlabel("seconds of the run")
    lanes.set_title("commits", loc="left", fontsize=10)
    figure.savefig(path, dpi=120)
