"""Tables with a packed log as the first release with packs wrote them, and as an earlier one finds them."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.store.catalog import records
from epochlog.store.catalog.records import Record, checked
from epochlog.store.metadata import version
from epochlog.store.metadata.commit_log import history_records, scan_entries
from epochlog.store.metadata.definitions import SCHEMAS
from epochlog.store.metadata.lookups import find_table
from epochlog.store.sst.segment import Segment
from epochlog.store.types import schema as schemas
from formats.golden import START_MS, Clock
from formats.golden_packed import FOLDER, commit, readings, small_packs

pytestmark = pytest.mark.local_only
TABLES = ("plain", "full")


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    small_packs(monkeypatch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with zipfile.ZipFile(FOLDER / "root.zip") as archive:
        archive.extractall(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def expected() -> Any:
    return json.loads((FOLDER / "readings.json").read_text())


def later() -> Clock:
    return Clock(START_MS + 86_400_000)


def packs(store: el.Store, name: str) -> list[int]:
    """Return the number of commits of each log entry."""
    return store._handle.catalog.read(
        lambda view: [entry.commits for entry in scan_entries(view, find_table(view, name).id)]
    )


def chapters(store: el.Store, name: str) -> list[int]:
    """Return the number of commits of each record of remembered commits."""
    return store._handle.catalog.read(
        lambda view: [len(record.commits) for record in history_records(view, find_table(view, name).id)]
    )


def files(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if path.is_file() and path.name != "lock.mdb"}


def test_packed_logs_read_the_same(root: Path, expected: Any) -> None:
    with el.open(root, clock=later()) as store:
        assert packs(store, "plain") == packs(store, "full") == [16, 6, 8, 1, 1, 1]
        assert chapters(store, "plain") == chapters(store, "full") == [16, 16, 1]
        mark = store.table("plain").info.log_start_epoch
        assert store.table("plain").history()["epoch"].to_pylist().index(mark) == 29, "the mark lies in the first pack"
        assert readings(store) == expected
        assert store.verify().ok


def test_packed_logs_are_written_stepped_and_packed_further(root: Path, expected: Any) -> None:
    clock = later()
    with el.open(root, clock=clock) as store:
        for name in TABLES:
            for number in range(32, 46):
                clock.tick()
                commit(store.table(name), number)
            store.compact(name, full=True)
            assert packs(store, name) == [16, 6, 16, 8, 1], "one has a pack of the golden store and a new one"
        store.checkpoint()
        while store.view("sums").step() is not None:
            continue
        sums = dict[str, float]()
        for row in store.table("full").to_arrow().to_pylist():
            sums[row["s"]] = sums.get(row["s"], 0.0) + row["v"]
        assert {row["s"]: row["v"] for row in store.table("sums").to_arrow().to_pylist()} == sums
        after = readings(store)
        for name in TABLES:
            for epoch, rows in expected[name]["states"].items():
                assert after[name]["states"][epoch] == rows
            assert after[name]["changes"][0] == expected[name]["changes"][0]
            for what in ("changes", "images"):
                newest = expected[name][what][1]
                assert after[name][what][1][: len(newest)] == newest
            assert after[name]["history"][-len(expected[name]["history"]) :] == expected[name]["history"]
        assert store.verify().ok


def test_clones_of_packed_tables_outlive_them(root: Path, expected: Any) -> None:
    with el.open(root, clock=later()) as store:
        clones = {
            (name, epoch): store.clone(name, f"{name}_{epoch}", as_of=int(epoch))
            for name in TABLES
            for epoch in list(expected[name]["states"])[::7]
        }
        store.drop_job("sums")
        for name in TABLES:
            store.drop_table(name)
        store.vacuum(grace=0)
        for (name, epoch), clone in clones.items():
            assert [repr(row) for row in clone.to_arrow().to_pylist()] == expected[name]["states"][epoch]
        assert store.verify().ok


def test_an_export_restores_packed_tables(root: Path, expected: Any) -> None:
    (root / "catalog" / "data.mdb").unlink()
    (root / "catalog").rmdir()
    el.restore_catalog(str(root), str(FOLDER / "catalog.dump"))
    with el.open(root, clock=later()) as store:
        assert readings(store) == expected
        assert store.verify().ok


# an earlier release


@contextmanager
def opened_anew(root: Path) -> Iterator[el.Store]:
    """Open a store whose records this process has not decoded before."""
    records.DECODED.clear()
    SCHEMAS.clear()
    with el.open(root, clock=later()) as store:
        yield store


@checked
def _from_record_before_packs(cls: type[version.LogEntry], record: Record) -> version.LogEntry:
    """Decode a log entry as the last revision without packs did."""
    stored = record.get("images")
    groups = tuple(
        version.LabelGroup(
            label, tuple(map(Segment.from_record, segments)), tuple(map(Segment.from_record, images)), stored
        )
        for label, segments, images in record["groups"]
    )
    return cls(record["epoch"], groups, record["end"])


@pytest.mark.rule("4.20")
def test_a_release_that_knows_no_pack_refuses_the_tables(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "_FORMAT", 3)
    monkeypatch.setattr(version.LogEntry, "from_record", classmethod(_from_record_before_packs))
    with opened_anew(root) as store:
        before = files(root)
        for act in (
            lambda: store.table("plain"),
            store.compact,
            lambda: store.clone("full", "copy"),
            lambda: store.drop_table("plain"),
        ):
            with pytest.raises(el.UnsupportedFormat, match="format 4, newer than 3"):
                act()
        with pytest.raises(el.Corrupt, match="LogEntry is damaged"):
            store.vacuum(grace=0)
        assert not store.verify().ok
    assert files(root) == before


def test_a_revision_that_knows_the_format_but_no_pack_deletes_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version.LogEntry, "from_record", classmethod(_from_record_before_packs))
    with opened_anew(root) as store:
        before = files(root)
        for act in (
            lambda: store.vacuum(grace=0),
            lambda: store.table("plain").changes(store.table("plain").info.log_start_epoch).read_all(),
            lambda: store.table("full").truncate_log(store.table("full").info.max_committed_epoch),
            lambda: store.drop_table("plain"),
        ):
            with pytest.raises(el.Corrupt, match="LogEntry is damaged"):
                act()
        assert {problem.where for problem in store.verify().problems} >= {"table plain", "table full"}
    assert files(root) == before
