"""No refresh is shown to users that is not played against DuckDB; and what would be a wrong one is noticed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

import refresh_cases
import refresh_discovery
from refresh_world import RefreshWorld
from refreshes.test_local import ROUNDS, step

pytestmark = pytest.mark.local_only


def test_every_refresh_of_a_page_or_program_is_played() -> None:
    refreshes = {
        where for path, text in refresh_discovery.sources() for where in refresh_discovery.refreshes_in(path, text)
    }
    assert refreshes == refresh_cases.covered()


@pytest.mark.parametrize(
    "text, names",
    [
        ("def refresh(ctx):\n    pass", {"refresh"}),
        ("def refresh(ctx: el.LocalRefreshContext) -> None: ...", {"refresh"}),
        ("def of(column):\n    def inner(ctx): ...\n    return inner", {"of.inner"}),
        ("class Best:\n    def __call__(self, ctx): ...", {"Best.__call__"}),
        ("job.step_local(lambda ctx: None)", {"lambda"}),
        ("def sums(context): ...\njob.step(spark, sums)", {"sums"}),
        ("def sums(context): ...\njob.start(spark, sums, poll='1 second')", {"sums"}),
        ("from somewhere import theirs\npipe.add(job, theirs)", {"theirs"}),
        ("def helper(ctx, view): ...\ndef run(refresh): job.step_local(refresh)\nreader.start()", set()),
    ],
)
def test_how_refreshes_are_found(text: str, names: set[str]) -> None:
    assert set(refresh_discovery.refreshes_in("page.md", text)) == {f"page.md:{name}" for name in names}


def forgets_vanished_days(ctx: Any) -> None:
    """A refresh that keeps the sums of days without orders."""
    days = ctx.changes("orders", mode="net", pre_images=True)["day"].unique()
    now = ctx.table("orders")
    sums = now.filter(pc.is_in(now["day"], days)).group_by("day").aggregate([("cents", "sum")])
    ctx.upsert("revenue", sums.rename_columns(["day", "cents"]))


def forgets_the_days_before(ctx: Any) -> None:
    """Only the days in which changed orders are now are made anew."""
    days = ctx.changes("orders").select(["day"])
    sums = ctx.table("orders", among=days).group_by("day").aggregate([("cents", "sum")])
    ctx.recompute("revenue", by="day", touched=days, from_=sums.rename_columns(["day", "cents"]))


@pytest.mark.planted
@pytest.mark.parametrize("wrong", [forgets_vanished_days, forgets_the_days_before])
@pytest.mark.parametrize("seed", range(2))
def test_a_wrong_refresh_is_noticed(wrong: Any, seed: int, tmp_path: Path) -> None:
    (recipe,) = (shown for shown in refresh_cases.LOCAL if shown.where.endswith("refreshes.md:revenue"))
    story = refresh_cases.story_of(recipe, tmp_path)
    mutant = replace(story, views=[replace(story.views[0], refresh=wrong)])
    world = RefreshWorld(mutant, seed, tmp_path / "store", step)
    with pytest.raises(AssertionError, match=f"seed {seed}, revenue at .*too many"):
        world.play(ROUNDS)
