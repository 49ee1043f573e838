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
from simulator.shapes import KINDS, JobShape, SimulationPlan, Violation, draw_plan
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
    assert {shape.parts for shape in shapes} == {1, 2, 3}
    assert any(shape.settings.tolerable_failures == 1 for shape in shapes)
    assert any(len(plan.descendants(plan.jobs[0].name)) < len(plan.jobs) for plan in plans)
    assert {len(plan.jobs) for plan in plans} == set(range(2, 10))


def upstream_jobs(plan: SimulationPlan, shape: JobShape) -> list[JobShape]:
    return [other for other in plan.jobs if other.table in shape.upstreams]


def depth(plan: SimulationPlan, shape: JobShape) -> int:
    """Number of jobs in the longest chain that ends with this one; a load is at 0."""
    return max((1 + depth(plan, up) for up in upstream_jobs(plan, shape)), default=0)


def is_diamond(plan: SimulationPlan, shape: JobShape) -> bool:
    """Return True if the job reads two others that read a common table."""
    ups = [set(up.upstreams) for up in upstream_jobs(plan, shape)]
    return len(ups) == 2 and bool(ups[0] & ups[1])


def test_the_graphs_have_chains_diamonds_and_isolated_components() -> None:
    plans = [draw_plan(seed) for seed in range(200)]
    assert {depth(plan, shape) for plan in plans for shape in plan.jobs} >= {0, 1, 2, 3, 4}
    assert sum(any(is_diamond(plan, shape) for shape in plan.jobs) for plan in plans) >= 10
    components = [{frozenset(plan.component(shape.name)) for shape in plan.jobs} for plan in plans]
    assert {len(parts) for parts in components} == {1, 2, 3}
    for plan, parts in zip(plans, components, strict=True):
        assert sorted(name for names in parts for name in names) == sorted(shape.name for shape in plan.jobs)
        for shape in plan.jobs:
            assert plan.descendants(shape.name) <= plan.component(shape.name)
    with_jobs = [sum(any("job" in name for name in names) for names in parts) for parts in components]
    assert sum(number >= 2 for number in with_jobs) >= 20


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
