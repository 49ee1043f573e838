"""vacuum, history --compactions, and what describe and status tell of holders, writers, pressure and trouble."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochlog import api
from epochlog.store.maintenance import scheduler
from epochlog.store.metadata.lookups import find_table, get_version
from epochlog.store.metadata.table_options import TableOptions
from epochlog.store.retention.holds import Hold, put_holds

ORDERS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("cents", pa.int64())])
NOTHING_KEPT = TableOptions(history_retention=timedelta(0), log_retention=timedelta(0), compact_segments=1)


def orders(ids: list[int], days: list[str], cents: list[int]) -> pa.Table:
    return pa.table({"id": ids, "day": days, "cents": cents})


@pytest.fixture
def worn(tmp_path: Path) -> str:
    """A store with garbage in it, and a file of somebody else."""
    root = tmp_path / "worn"
    with api.open(root) as store:
        table = store.create_table("orders", ORDERS, ["id"], options=NOTHING_KEPT)
        for number in range(3):
            table.upsert(orders([1], ["mon"], [number]))
            store.compact("orders", full=True)
        (root / store._handle.store_id / "notes.txt").write_text("mine")
    return str(root)


@pytest.mark.medium
def test_vacuum_tells_what_it_deletes_and_what_stays(run: Any, worn: str) -> None:
    plan = json.loads(run("vacuum", worn, "--dry-run", "--grace", "0", "--json").out)
    assert plan["dry_run"] and plan["deleted"] and plan["bytes_freed"] == sum(file["bytes"] for file in plan["deleted"])
    report = json.loads(run("vacuum", worn, "--json").out)
    assert report["deleted"] == [] and {file["reason"] for file in report["kept"]} == {"in grace"}
    assert all(file["since"] < file["until"] for file in report["kept"])
    done = json.loads(run("vacuum", worn, "--grace", "0", "--json").out)
    assert {**done, "dry_run": True} == plan
    assert [file["path"].rsplit("/", 1)[-1] for file in done["foreign"]] == ["notes.txt"]
    assert json.loads(run("vacuum", worn, "--json").out)["deleted"] == []
    assert run("read", worn, "orders").code == 0 and run("verify", worn).code == 0


def test_vacuum_for_people(run: Any, worn: str) -> None:
    page = run("vacuum", worn, "--dry-run", "--grace", "0").out
    assert "would be deleted" in page and "unreachable" in page and "notes.txt" in page and "foreign file" in page
    assert "in grace" in run("vacuum", worn).out
    last = run("vacuum", worn, "--grace", "0").out.strip().splitlines()[-1]
    assert " deleted, " in last and last.endswith("0 kept; 2 in use")
    assert run("vacuum", worn, "--grace", "-1").code == 2


def test_vacuum_names_who_is_writing_and_who_is_dead(run: Any, tmp_path: Path) -> None:
    now = [1_767_225_600_000]
    with api.open(tmp_path / "s", clock=lambda: now[0]) as store:
        store.create_table("orders", ORDERS, ["id"])
        writer = store.table("orders").writer()
        writer.upsert(orders([1], ["mon"], [1]))
        writer.seal(store.last_epoch + 1)
        (kept_file,) = json.loads(run("vacuum", store.root, "--dry-run", "--grace", "0", "--json").out)["kept"]
        assert "being written under store intent" in kept_file["reason"]
    report = json.loads(run("vacuum", tmp_path / "s", "--json").out)  # its lease ended long ago by today's clock
    assert [intent["kind"] for intent in report["revoked"]] == ["store"] and len(report["deleted"]) == 1


def test_history_of_compactions(run: Any, worn: str) -> None:
    lines = [json.loads(line) for line in run("history", worn, "orders", "--compactions", "--json").out.splitlines()]
    assert len(lines) == 3 and [line["at"] for line in lines] == sorted((line["at"] for line in lines), reverse=True)
    first = lines[-1]
    assert (first["by"], first["rows_in"], first["rows_out"], first["segments_in"]) == ("command", 1, 1, 1)
    assert first["bytes_in"] > 0 and first["took_ms"] >= 0 and first["after"] < first["until"] and first["reason"]
    assert len(run("history", worn, "orders", "--compactions", "--limit", "1", "--json").out.splitlines()) == 1
    page = run("history", worn, "orders", "--compactions").out
    assert "why" in page and first["reason"] in page
    assert "full compaction" in page


@pytest.fixture
def packed(tmp_path: Path) -> str:
    """A store whose log has 64 commits in a pack, and three single ones."""
    with api.open(tmp_path / "packed", durability="os") as store:
        table = store.create_table("orders", ORDERS, ["id"], changelog="full")
        for number in range(67):
            table.upsert(orders([number % 3], ["mon"], [number]))
        store.compact("orders", full=True)
    return str(tmp_path / "packed")


@pytest.mark.medium
def test_the_packs_of_a_log_are_shown(run: Any, packed: str) -> None:
    facts = json.loads(run("describe", packed, "orders", "--json").out)
    log = facts["log"]
    assert (log["entries"], log["packs"], log["packed_commits"], log["packed_files"]) == (67, 1, 64, 2)
    assert log["files"] == 2 + 3 + 3, "changes and old rows of the pack and of each single commit"
    assert 0 < log["packed_bytes"] < log["bytes"]
    page = " ".join(run("describe", packed, "orders").out.split())
    assert "; packs: 1 of 64 commits, 2 files, " in page and "; single: 3 commits, 6 files" in page
    packing, merge, *_ = map(json.loads, run("history", packed, "orders", "--compactions", "--json").out.splitlines())
    assert packing["reason"] == "packing of 64 commits" and packing["by"] == "command"
    assert (packing["packs"], packing["commits"]) == (1, 64) and "packs" not in merge
    assert (packing["files_in"], packing["files_out"]) == (64 + 61, 2), "the first three commits replaced no row"
    assert packing["bytes_in"] > packing["bytes_out"] == log["packed_bytes"] and packing["took_ms"] >= 0
    assert list(packing)[:3] == list(merge)[:3] == ["at", "reason", "by"]
    (line,) = (line for line in run("history", packed, "orders", "--compactions").out.splitlines() if "packing" in line)
    assert "packing of 64 commits" in line and "125 → 2" in line


def test_a_table_that_was_never_compacted(run: Any, lake: Any) -> None:
    assert run("history", lake.root, "orders", "--compactions").out == "orders has not been compacted yet\n"
    assert run("history", lake.root, "orders", "--compactions", "--json").out == ""


def test_describe_says_who_holds_states_and_log_back(run: Any, worn: str) -> None:
    free = json.loads(run("describe", worn, "orders", "--json").out)
    assert free["held_back"] == {
        "safe_epoch": {"holder": None, "epoch": None, "reason": "retention: 0 ms"},
        "log_start": {"holder": None, "epoch": None, "reason": "retention: 0 ms"},
    }
    with api.open(worn) as store, store.snapshot(["orders"]) as snapshot:
        catalog, at = store._handle.catalog, snapshot.epochs["orders"]
        consumer = Hold("consumer:dash", 1, at - 1, None, catalog.now_ms(), None)
        catalog.transact(lambda tx: put_holds(tx, [consumer]))
        store.table("orders").upsert(orders([2], ["tue"], [5]))
        facts = json.loads(run("describe", worn, "orders", "--json").out)
        kinds = {hold["kind"]: hold for hold in facts["holds"]}
        assert set(kinds) == {"snapshot", "consumer"} and kinds["consumer"]["expires"] is None
        assert kinds["snapshot"]["read_epoch"] == at and kinds["snapshot"]["expires"] is not None
        back = facts["held_back"]
        assert back["safe_epoch"]["holder"] == kinds["snapshot"]["holder"] and back["safe_epoch"]["epoch"] == at
        assert back["log_start"] == {
            "holder": "consumer:dash", "epoch": at - 1, "reason": f"consumer:dash holds epoch {at - 1}"
        }  # fmt: skip
        (writer,) = facts["writers"]
        assert writer["kind"] == "store" and " on " in writer["by"] and writer["age_ms"] >= 0
        page = run("describe", worn, "orders").out
        for text in (f"consumer:dash holds epoch {at - 1}", "states kept by", "write intent", writer["by"]):
            assert text in page
    assert "retention: 0 ms" in run("describe", worn, "orders").out


@pytest.mark.medium
def test_status_shows_pressure_compactions_under_way_and_trouble(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    monkeypatch.setattr("epochlog.store.compaction.subcompactions.SUBCOMPACTION_ROWS", 8)
    monkeypatch.setattr("epochlog.store.sst.segment.BATCH_ROWS", 4)
    with api.open(root) as store:
        options = TableOptions(compact_segments=2, max_segments=4)
        table = store.create_table("orders", ORDERS, ["id"], options=options)
        for number in range(3):
            table.upsert(orders(list(range(40)), ["mon"] * 40, [number] * 40))
        handle = store._handle
        orders_table = handle.catalog.read(lambda view: find_table(view, "orders"))
        assert handle.catalog.read(lambda view: get_version(view, orders_table.id, "orders")).l0_segments == 3
        scheduler.compact_table(handle, orders_table, budget=1, by="maintenance")
        worker = scheduler.Maintenance(handle)

        def refused(*args: Any, **options: Any) -> Any:
            raise OSError("no room")

        monkeypatch.setattr(scheduler, "compact_table", refused)
        worker.run_once()
        (facts,) = json.loads(run("status", root, "--json").out)["tables"]
        assert "3 segments of the log wait for compaction" in facts["pressure"]
        assert facts["compaction"]["by"] == "maintenance" and facts["compaction"]["done"] >= 1
        assert facts["compaction"]["done"] < facts["compaction"]["pieces"]
        assert facts["trouble"]["error"] == "OSError: no room" and facts["trouble"]["by"] == "maintenance"
        page = run("status", root).out
        assert "no room" in page and "compaction by maintenance" in page and "wait for compaction" in page
        monkeypatch.undo()
        store.compact("orders")
