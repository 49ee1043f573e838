"""Altered tables as the first release with them wrote them: read to the last row, and restored from an export."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from formats.golden import START_MS, Clock
from formats.golden_altered import FOLDER, readings

pytestmark = pytest.mark.local_only


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with zipfile.ZipFile(FOLDER / "root.zip") as archive:
        archive.extractall(tmp_path / "store")
    return tmp_path / "store"


def expected() -> object:
    return json.loads((FOLDER / "readings.json").read_text())


def later() -> Clock:
    return Clock(START_MS + 86_400_000)


def test_altered_tables_read_the_same(root: Path) -> None:
    with el.open(root, clock=later()) as store:
        assert readings(store) == expected()
        assert store.verify().ok


def test_altered_tables_read_the_same_after_another_alter_and_compaction(root: Path) -> None:
    before = expected()
    assert isinstance(before, dict)
    with el.open(root, clock=later()) as store:
        for name in ("plain", "full"):
            store.table(name).alter(drop=["f"], widen={"b": pa.int64()}, rename={"a": "f"})
        store.compact(full=True)
        after = readings(store)
        for name, table in before.items():
            for what in ("schemas", "states"):
                assert {epoch: after[name][what][epoch] for epoch in table[what]} == table[what]
        assert store.verify().ok


def test_an_export_restores_altered_tables(root: Path) -> None:
    (root / "catalog" / "data.mdb").unlink()
    (root / "catalog").rmdir()
    el.restore_catalog(str(root), str(FOLDER / "catalog.dump"))
    with el.open(root, clock=later()) as store:
        assert readings(store) == expected()
