"""Every refresh of a page or example that needs no Spark keeps its view equal to its query, whatever changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import epochlog as el
import pipeline
import refresh_cases
from refresh_cases import ORDERS, Shown
from refresh_world import CheckedView, RefreshWorld, Story
from seeds import seeds

pytestmark = pytest.mark.local_only

SEEDS = seeds(range(6))
ROUNDS = 6


def step(job: el.Job, refresh: Any) -> int | None:
    return job.step_local(refresh)


def play(story: Story, seed: int, folder: Path) -> None:
    world = RefreshWorld(story, seed, folder / "store", step)
    world.play(ROUNDS)
    assert world.commits >= ROUNDS // 2, "nothing was held against DuckDB"


@pytest.mark.rule("2.5")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("shown", refresh_cases.LOCAL, ids=lambda shown: shown.where)
def test_a_refresh_of_a_page_keeps_the_law(shown: Shown, seed: int, tmp_path: Path) -> None:
    play(refresh_cases.story_of(shown, tmp_path), seed, tmp_path)


@pytest.mark.parametrize("shown", refresh_cases.OF_POLICIES, ids=lambda shown: shown.where)
def test_the_refresh_of_a_policys_page_keeps_the_law(shown: Shown, tmp_path: Path) -> None:
    play(refresh_cases.story_of(shown, tmp_path), 0, tmp_path)


BEST = "SELECT 1 AS rank, day, cents FROM ({sums}) ORDER BY cents DESC, day LIMIT 1"


@pytest.mark.medium
@pytest.mark.parametrize("seed", SEEDS)
def test_the_pipelines_refreshes_keep_the_law(seed: int, tmp_path: Path) -> None:
    sums = refresh_cases.SUMS.format("day")
    revenue = CheckedView("revenue", ("orders",), pipeline.REVENUE, ("day",), sums, pipeline.revenue)
    best = CheckedView("best", ("revenue",), pipeline.BEST, ("rank",), BEST.format(sums=sums), pipeline.Best())
    orders = {"orders": ORDERS}
    play(Story(orders, [revenue, best], may_raise=(ConnectionError,)), seed, tmp_path)
