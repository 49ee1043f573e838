"""Views with a state as the first release with states wrote them.

A release that derives other texts for one of these views makes its state anew at its first step: say so here then.
"""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import epochlog as el
from formats.golden import START_MS, Clock
from formats.golden_states import FOLDER, VIEWS, change, readings, step_all
from view_states import fail_on_disagreements

pytestmark = [pytest.mark.local_only, pytest.mark.medium]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with zipfile.ZipFile(FOLDER / "root.zip") as archive:
        archive.extractall(tmp_path / "store")
    with el.open(tmp_path / "store", clock=Clock(START_MS + 86_400_000)) as store:
        yield store


def check(store: el.Store) -> None:
    for name in VIEWS:
        assert store.view(name).check().ok
        report = store.view(name).check(state=True)
        assert report.ok and len(report.outputs) > 1, f"{name}: {report}"
    assert store.verify().ok


def ways(store: el.Store) -> set[str]:
    """Return what the newest step of each view was computed by."""
    return {store.view(name).stats().steps[-1].work.by for name in VIEWS}


def test_views_go_on_by_the_state_of_the_release(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_on_disagreements(monkeypatch)
    assert readings(store) == json.loads((FOLDER / "readings.json").read_text())
    check(store)
    chance = random.Random(41)
    for _ in range(2):
        change(store, chance)
        step_all(store)
        assert ways(store) == {"state"}, "the state of the release is used, not made anew"
        check(store)


def test_a_restored_catalog_has_the_views_and_no_state(tmp_path: Path) -> None:
    with zipfile.ZipFile(FOLDER / "root.zip") as archive:
        archive.extractall(tmp_path / "store")
    (tmp_path / "store" / "catalog" / "data.mdb").unlink()
    (tmp_path / "store" / "catalog").rmdir()
    el.restore_catalog(str(tmp_path / "store"), str(FOLDER / "catalog.dump"))
    with el.open(tmp_path / "store", clock=Clock(START_MS + 86_400_000)) as store:
        assert readings(store) == json.loads((FOLDER / "readings.json").read_text())
        change(store, random.Random(42))
        step_all(store)
        check(store)
