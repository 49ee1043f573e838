"""The checkpoint manager under a seeded scheduler: random graphs, random faults, every invariant after every step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from epochlog.checkpoint import CheckpointManager
from seeds import seeds
from simulator.runs import check
from simulator.shapes import KINDS, Violation, draw_plan
from simulator.world import World

pytestmark = pytest.mark.local_only

SEEDS = int(os.environ.get("EPOCHLOG_SIM_SEEDS", "300"))
FEW = 12
IN_ONE = 50
SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.rule("5.22", "5.23")
@pytest.mark.parametrize("seed", range(FEW))
def test_a_few_seeds(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", seeds(range(FEW, max(SEEDS, FEW + 1), IN_ONE), 2))
def test_many_seeds(first: int) -> None:
    """EPOCHLOG_SIM_SEEDS says how many."""
    for seed in range(first, min(first + IN_ONE, max(SEEDS, FEW + 1))):
        check(seed)


def test_the_same_seed_gives_the_same_trace() -> None:
    """In this process, and in another whose strings hash otherwise."""
    code = "from simulator.world import World; print(World(7).run().hash())"
    here = World(7).run().hash()
    assert World(7).run().hash() == here != World(8).run().hash()
    for salt in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONPATH": str(SUPPORT)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == here


def test_the_seeds_have_what_they_are_to_show() -> None:
    """Each kind of fault and each shape comes up; else the seeds prove nothing of it."""
    plans = [draw_plan(seed) for seed in range(200)]
    shapes = [shape for plan in plans for shape in plan.jobs]
    rates = [rates for plan in plans for rates in plan.troubled.values()]
    seen = {kind for kind in rates[0] for rate in rates if rate[kind]}
    seen |= {event.kind for plan in plans for event in plan.events}
    seen |= {"coordinator" for plan in plans if plan.coordinator_crashes}
    assert seen == set(KINDS)
    assert {shape.settings.interval_ms for shape in shapes} == {None, 700, 1_000, 2_000}
    assert {shape.edges[0].pattern if shape.edges else None for shape in shapes} == {None, "all", "pointwise"}
    assert any(shape.leaves for shape in shapes) and any(shape.settings.tolerable_failures == 1 for shape in shapes)
    assert any(len(plan.descendants(plan.jobs[0].name)) < len(plan.jobs) for plan in plans)


class Stands(CheckpointManager):
    """Manager that asks for no tick, as one that lost its timer."""

    def next_due(self) -> int | None:
        return None


@pytest.mark.planted
def test_an_own_manager_is_run_in_place_of_ours() -> None:
    with pytest.raises(Violation):
        World(1, manager=Stands).run()


@pytest.mark.medium
def test_the_runs_have_what_they_are_to_show() -> None:
    """Carry-over, unknown outcomes, rollbacks, failures, ends: all of them happen."""
    steps = [entry[2] for seed in range(40) for entry in World(seed).run().trace]
    for kind in ("Abort", "Resolve", "resolved", "refused", "Restart", "Drop", "Failed", "JobStopped", "Finished"):
        assert steps.count(kind) >= 5, kind
