"""Day of a store in small: with its retention full, an hour costs what the hour before did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from scenarios.day import DAY, TINY, Hour, Scale, live

pytestmark = pytest.mark.local_only
COUNTS = ("files", "catalog_records", "catalog_bytes", "cache_bytes", "commits")
MOST = 1.2


def growth(hours: list[Hour]) -> dict[str, float]:
    """Return by count the greatest of the last third of the hours, by the greatest of the third before."""
    third = len(hours) // 3
    middle, last = hours[-2 * third : -third], hours[-third:]
    return {name: max(getattr(h, name) for h in last) / max(getattr(h, name) for h in middle) for name in COUNTS}


@pytest.mark.slow
@pytest.mark.parametrize("scale", [TINY, pytest.param(DAY, marks=pytest.mark.long)], ids=["tiny", "day"])
def test_each_hour_of_a_day_is_as_the_hour_before(tmp_path: Path, scale: Scale) -> None:
    hours = live(tmp_path / "store", scale)
    assert all(hour.packs for hour in hours[1:])
    assert max(growth(hours).values()) < MOST, growth(hours)


def _nothing_is_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("epochlog.store.maintenance.scheduler.apply_retention", lambda handle, table: None)


def _packed_files_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("epochlog.store.compaction.packing.mark_unreachable", lambda *args: None)


@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.parametrize("plant", [_nothing_is_released, _packed_files_stay])
def test_growth_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[..., None]) -> None:
    plant(monkeypatch)
    assert growth(live(tmp_path / "store", replace(TINY, hours=9)))["files"] > MOST
