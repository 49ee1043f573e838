"""Curves of a run as PNGs: small, always of one size, the same picture for the same figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLUE, GREY, RED = "#1f5fa8", "#666666", "#b3261e"
WIDTH_IN, HEIGHT_IN, DPI = 8.0, 3.6, 100


Point = tuple[float, float, float, float]
"""x, then the lower quartile, the middle and the upper quartile."""


def at(x: float, y: float) -> Point:
    """A point that was measured once."""
    return x, y, y, y


@dataclass(frozen=True, slots=True)
class Panel:
    """One curve, and the line that it has to stay below."""

    says: str  # above it: what is drawn, with its unit
    points: Sequence[Point]
    limit: float
    limit_says: str


@dataclass(frozen=True, slots=True)
class Plot:
    """Panels side by side over the same axis, and one line that says what was found."""

    name: str
    title: str
    x_says: str
    panels: Sequence[Panel]
    log_x: bool = False

    @property
    def file(self) -> str:
        return f"{self.name}.png"


def draw(plot: Plot, path: Path) -> None:
    """Write the picture. matplotlib is the bench's alone, so it is loaded here."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DPI)
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(1, len(plot.panels), squeeze=False)[0], plot.panels, strict=True):
        _panel(axes, plot, panel)
    figure.suptitle(plot.title, x=0.01, y=0.98, ha="left", va="top", fontsize=10, fontweight="bold")
    figure.tight_layout(rect=(0, 0, 1, 0.97), w_pad=3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})


def _panel(axes: Any, plot: Plot, panel: Panel) -> None:
    xs, low, middle, high = zip(*panel.points, strict=True)
    if any(a != b for a, b in zip(low, high, strict=True)):
        axes.fill_between(xs, low, high, color=BLUE, alpha=0.15, linewidth=0)
    markers = {"marker": "o", "markersize": 4} if len(xs) <= 12 else {}
    axes.plot(xs, middle, color=BLUE, linewidth=1.8, **markers)
    axes.axhline(panel.limit, color=RED, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(
        panel.limit_says, (1, panel.limit), xycoords=("axes fraction", "data"), xytext=(-2, 3),
        textcoords="offset points", ha="right", color=RED, fontsize=8,
    )  # fmt: skip
    axes.set_title(panel.says, loc="left", fontsize=9, color="#222222")
    axes.set_ylim(0, max(panel.limit, *high) * 1.15 or 1)
    if plot.log_x:
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.set_xlabel(plot.x_says, fontsize=9, color=GREY)
    axes.tick_params(labelsize=8, colors=GREY, which="both")
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
