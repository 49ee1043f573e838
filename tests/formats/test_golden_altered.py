"""Altered tables as the first release with them wrote them: read to the last row, and restored from an export."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from formats import golden_altered, golden_evolved
from formats.golden import START_MS, Clock
from formats.golden_altered import readings

pytestmark = pytest.mark.local_only


@pytest.fixture(params=[golden_altered, golden_evolved], ids=["format 2", "format 3"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.param.FOLDER


@pytest.fixture
def root(folder: Path, tmp_path: Path) -> Path:
    with zipfile.ZipFile(folder / "root.zip") as archive:
        archive.extractall(tmp_path / "store")
    return tmp_path / "store"


def expected(folder: Path) -> object:
    return json.loads((folder / "readings.json").read_text())


def later() -> Clock:
    return Clock(START_MS + 86_400_000)


def test_altered_tables_read_the_same(folder: Path, root: Path) -> None:
    with el.open(root, clock=later()) as store:
        assert readings(store) == expected(folder)
        assert store.verify().ok


def test_altered_tables_read_the_same_after_another_alter_and_compaction(folder: Path, root: Path) -> None:
    before = expected(folder)
    assert isinstance(before, dict)
    with el.open(root, clock=later()) as store:
        for name in ("plain", "full"):
            table = store.table(name)
            if folder == golden_altered.FOLDER:
                table.alter(drop=["f"], widen={"b": pa.int64()}, rename={"a": "f"})
            else:
                table.alter(drop=["d"], rename={"e": "d"}, add=[pa.field("e", pa.int8())], defaults={"e": 5})
        store.compact(full=True)
        after = readings(store)
        for name, table in before.items():
            for what in ("schemas", "states"):
                assert {epoch: after[name][what][epoch] for epoch in table[what]} == table[what]
        assert store.verify().ok


def test_an_export_restores_altered_tables(folder: Path, root: Path) -> None:
    (root / "catalog" / "data.mdb").unlink()
    (root / "catalog").rmdir()
    el.restore_catalog(str(root), str(folder / "catalog.dump"))
    with el.open(root, clock=later()) as store:
        assert readings(store) == expected(folder)
