"""Power fails before any operation, and again during recovery: what was acknowledged is there, and nothing is half."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.power import cut_everywhere, cut_twice, seeded

pytestmark = pytest.mark.local_only


@pytest.mark.medium
def test_a_power_cut_before_any_operation(tmp_path: Path) -> None:
    cut_everywhere(tmp_path, seeded(), chances=1, most=60)


@pytest.mark.slow
def test_a_power_cut_during_recovery(tmp_path: Path) -> None:
    cut_twice(tmp_path, seeded(), first=6, second=4)


@pytest.mark.campaign
def test_power_cuts_with_much_lost_by_chance(tmp_path: Path) -> None:
    cut_everywhere(tmp_path, seeded(), chances=6)


@pytest.mark.campaign
def test_many_power_cuts_during_recovery(tmp_path: Path) -> None:
    cut_twice(tmp_path, seeded(), first=60, second=5)
