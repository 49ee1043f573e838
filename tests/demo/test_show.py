"""The display: lines where there is no terminal, a table where there is one; the comparison; the picture."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from epochlog.demo.compare import TABLES, ComparedMoment, Finding
from epochlog.demo.picture import Figures, Phase, Trace, draw, load, save
from epochlog.demo.show import Screen, ShownLine, comparison
from epochlog.demo.views import VIEWS

ROOT = Path(__file__).parents[2]
LINES = [
    ShownLine("flights", 12.0, 0, 345_678, 40, ""),
    ShownLine("weather_impact", 9.0, 3_210, 1_234, 3, "killed"),
    ShownLine("airlines", 1.0, 0, 16, 1, ""),
]


def moment(number: int, latest: int, aligned: int = 0) -> ComparedMoment:
    at_s = 10.0 * number
    return ComparedMoment(
        number, at_s, 7, "weather_impact killed", at_s - 3, 2500,
        {name: Finding(1_000, aligned) for name in VIEWS}, {name: Finding(1_001, latest) for name in VIEWS},
    )  # fmt: skip


def test_without_a_terminal_there_are_plain_lines() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, width=80)) as screen:
        screen.update(1.0, "day 1 of 9", LINES)
        screen.say(11.0, "weather_impact was killed")
        screen.update(12.0, "day 2 of 9", LINES)
        screen.update(13.0, "day 3 of 9", LINES)
    lines = out.getvalue().splitlines()
    assert lines[0].strip() == "11.0 s  weather_impact was killed"
    assert "day 2 of 9: flights 345,678 (0.0 s)  weather_impact 1,234 (3.2 s)" in lines[1]
    assert len(lines) == 2


def test_on_a_terminal_there_is_a_live_table() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, width=100, force_terminal=True)) as screen:
        screen.say(0.5, "begun")
        screen.update(1.0, "day 1 of 9", LINES)
    text = out.getvalue()
    for word in ("day 1 of 9", "committed epoch", "345,678", "3.2 s", "killed", "begun"):
        assert word in text


def test_the_comparison_has_both_policies_side_by_side() -> None:
    out = io.StringIO()
    Console(file=out, width=160).print(comparison([moment(1, latest=0), moment(2, latest=17), moment(3, 5, aligned=4)]))
    text = out.getvalue()
    assert "1,000: 0 | 17" in text
    assert "1,000: 4 | 5" in text
    assert all(word in text for view in VIEWS for word in view.split("_"))
    assert (moment(2, latest=17).equal, moment(3, 5, aligned=4).equal) == (True, False)


@pytest.mark.medium
def test_the_picture_is_a_png_of_the_figures_as_they_are_saved(tmp_path: Path) -> None:
    traces: dict[str, Trace] = dict.fromkeys(TABLES, ())
    traces |= {"flights": [(1.0, 0.9), (1.4, 1.3)], "route_delays": [(4.0, 3.0)]}
    figures = Figures(traces, [Phase("weather_impact", "killed", 2.0, 3.0)], [(10.0, 7.0)])
    path = tmp_path / "picture.png"
    draw(path, figures)
    assert path.read_bytes().startswith(b"\x89PNG")
    save(tmp_path / "picture.json", figures)
    draw(tmp_path / "again.png", load(tmp_path / "picture.json"))
    assert (tmp_path / "again.png").read_bytes() == path.read_bytes()


@pytest.mark.medium
def test_the_picture_of_the_readme_is_one_that_the_demo_draws_now(tmp_path: Path) -> None:
    """Few pixels may differ, by the rounding of another processor."""
    picture = ROOT / "docs" / "demo" / "committed-epochs.png"
    draw(tmp_path / "drawn.png", load(picture.with_suffix(".json")))
    before, now = imread(picture), imread(tmp_path / "drawn.png")
    assert before.shape == now.shape and np.mean(np.any(before != now, axis=2)) < 0.001, (
        "run `make demo` and copy demo-output/committed-epochs.* to docs/demo/"
    )
    assert f"({picture.relative_to(ROOT).as_posix()})" in (ROOT / "README.md").read_text("utf-8")
    assert picture.stat().st_size < 120_000
