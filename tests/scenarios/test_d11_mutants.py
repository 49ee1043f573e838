"""D11 again, with a mutant in the processes: it must find each, and soon."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from staged_join import Serve, Work, serve, work

from scenarios import mutant_joins as mutant
from scenarios.test_d11 import run_group

pytestmark = [pytest.mark.local_only, pytest.mark.redis, pytest.mark.long]

GROUPS = 40
KILLS = {"producer": 2, "consumer": 16}
MUTANTS: dict[str, tuple[str, Work, Serve]] = {
    "a gate that trusts the counter": ("not DuckDB's", mutant.trusting_work, mutant.trusting_serve),
    "acknowledged before it is durable": ("not DuckDB's", mutant.hasty_work, serve),
    "a build side that is acknowledged": ("join-. failed", mutant.forgetful_work, serve),
    "other content under the same sequence": ("join-. failed", mutant.fickle_work, serve),
}
"""How each is found: by the result, or by a join that is refused, or has nothing to join with."""


@pytest.mark.planted
@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_found(mutant: str, tmp_path: Path) -> None:
    sign, *processes = MUTANTS[mutant]
    for group in range(GROUPS):
        try:
            _, problems = run_group(tmp_path / str(group), f"plants/{group}", 2, KILLS, *processes)
        except RuntimeError as error:
            problems = str(error)
        print(f"group {group}: {problems}")
        if re.search(sign, problems):
            return
    raise AssertionError(f"{GROUPS} groups do not find it")


def test_without_a_plant_nothing_is_found(tmp_path: Path) -> None:
    assert run_group(tmp_path / "whole", "plants/0", 2, KILLS, work, serve)[1] == ""
