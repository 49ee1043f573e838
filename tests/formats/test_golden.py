"""Stores of earlier format versions stay readable to the last row; later versions are refused before any write."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.metadata.definitions import FORMAT_VERSION
from formats.golden import GOLDEN, START_MS, Clock, plain, readings

pytestmark = pytest.mark.local_only
VERSIONS = sorted(path.name for path in GOLDEN.iterdir())


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """The folder of a version, and its store unpacked."""
    folder, root = GOLDEN / request.param, tmp_path / "store"
    with zipfile.ZipFile(folder / "root.zip") as archive:
        archive.extractall(root)
    return folder, root


def later() -> Clock:
    return Clock(START_MS + 86_400_000)


def test_every_version_has_a_golden_store() -> None:
    assert [f"v{n}" for n in range(1, FORMAT_VERSION + 1)] == VERSIONS


def test_what_a_version_wrote_reads_the_same(golden: tuple[Path, Path]) -> None:
    folder, root = golden
    with el.open(root, clock=later()) as store:
        assert readings(store) == json.loads((folder / "readings.json").read_text())
        assert store.verify().ok


def test_what_a_version_wrote_can_be_written_on(golden: tuple[Path, Path]) -> None:
    folder, root = golden
    with el.open(root, clock=later()) as store:
        orders, before = store.table("orders"), store.table("orders").count()
        at = orders.upsert(plain(10_000, 5))
        store.table("full").upsert(plain(0, 3, 7.0))
        store.compact(full=True)
        assert orders.count() == before + 5 and orders.count(at) == before + 5
        readings = json.loads((folder / "readings.json").read_text())
        for epoch, rows in readings["orders"]["states"].items():
            assert [repr(row) for row in orders.to_arrow(epoch=int(epoch)).to_pylist()] == rows
        assert store.verify().ok


def test_an_exported_catalog_restores_it(golden: tuple[Path, Path]) -> None:
    folder, root = golden
    (root / "catalog" / "data.mdb").unlink()
    (root / "catalog").rmdir()
    el.restore_catalog(str(root), str(folder / "catalog.dump"))
    with el.open(root, clock=later()) as store:
        assert readings(store) == json.loads((folder / "readings.json").read_text())


def test_a_later_version_is_refused_and_nothing_is_written(golden: tuple[Path, Path]) -> None:
    _, root = golden
    marker = root / "epochlog.json"
    marker.write_text(marker.read_text().replace('"format": 1', f'"format": {FORMAT_VERSION + 1}'))

    def state() -> dict[Path, tuple[int, bytes]]:
        return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.rglob("*") if path.is_file()}

    before = state()
    with pytest.raises(el.UnsupportedFormat, match="upgrade epochlog"):
        el.open(root)
    assert state() == before


def test_any_reader_opens_the_files(golden: tuple[Path, Path]) -> None:
    """A segment is a plain Arrow file, a part a plain Parquet file."""
    import duckdb
    import polars as pl

    _, root = golden
    segments, parts = sorted(root.rglob("*.arrow")), sorted(root.rglob("*.parquet"))
    assert segments and parts
    for path in segments:
        with pa.memory_map(str(path)) as file:
            assert len(pl.from_arrow(pa.ipc.open_file(file).read_all())) > 0
    for path in parts:
        ((count,),) = duckdb.connect().execute(f"select count(*) from read_parquet('{path}')").fetchall()
        assert count > 0
