"""Power fails before any operation, and again during recovery: what was acknowledged is there, and nothing is half."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.power import cut_everywhere, cut_twice, seeded

pytestmark = pytest.mark.local_only


@pytest.mark.medium
@pytest.mark.parametrize("most", [20, pytest.param(40, marks=pytest.mark.long)])
def test_a_power_cut_before_any_operation(tmp_path: Path, most: int) -> None:
    cut_everywhere(tmp_path, seeded(), chances=1, most=most)


@pytest.mark.slow
@pytest.mark.parametrize("first", [2, pytest.param(4, marks=pytest.mark.long)])
def test_a_power_cut_during_recovery(tmp_path: Path, first: int) -> None:
    cut_twice(tmp_path, seeded(), first=first, second=4)


@pytest.mark.campaign
def test_power_cuts_with_much_lost_by_chance(tmp_path: Path) -> None:
    cut_everywhere(tmp_path, seeded(), chances=6)


@pytest.mark.campaign
def test_many_power_cuts_during_recovery(tmp_path: Path) -> None:
    cut_twice(tmp_path, seeded(), first=60, second=5)
