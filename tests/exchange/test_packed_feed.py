"""Feeds of a table whose log is packed by another process after each of the feed's calls of the catalog."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
import plain_flight as plain
from epochlog.exchange.flight import planner
from epochlog.exchange.flight.descriptors import ChangesCommand
from epochlog.exchange.flight.planner import FlightPlanner
from epochlog.exchange.subscription import table_feed
from epochlog.exchange.subscription.messages import FeedPosition
from epochlog.exchange.subscription.table_feed import TableFeed
from epochlog.store.changelog import change_reader, log_plan, log_reader, raw_replay, replanned
from epochlog.store.changelog.tail_cache import tail
from epochlog.store.metadata.lookups import find_table
from lab import Lab
from stand_in_packer import PackedBetween, pack


@pytest.mark.rule("4.18")
@pytest.mark.medium
def test_a_feed_finds_the_files_of_its_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_feed, "ROUND_ENTRIES", 3)
    monkeypatch.setattr(log_reader, "MOVE_HOLD_S", 0)
    for name in ("UNIT_ROWS", "SPLIT_ROWS"):
        monkeypatch.setattr(change_reader, name, 2)
    tail.clear()
    lab = Lab(tmp_path / "store")
    lab.root_table()
    for key in range(10):
        lab.put({key: (0, key), key + 1: (0, key)})
    handle = lab.store._handle
    expected = lab.store.table("r").changes(0).read_all().select(["k", "v"]).to_pylist()
    table = handle.catalog.read(lambda view: find_table(view, "r"))
    with lab.open() as packer:
        feed = TableFeed(handle, table, None, FeedPosition(after=0), "Begin anew")
        with PackedBetween(lab.store, packer) as packed:
            rows = [
                row
                for item in feed.read_new()
                if item.data is not None
                for row in item.data.select(["k", "v"]).to_pylist()
            ]
        feed.close()
    assert rows == expected
    assert packed.deleted > 10


# a store that is opened read-only, which can hold nothing


def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (change_reader, "UNIT_ROWS"), (change_reader, "SPLIT_ROWS"), (log_plan, "BATCH_ROWS"),
        (log_reader, "SLICE_ROWS"), (raw_replay, "WORTH_ROWS"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 4)
    monkeypatch.setattr(table_feed, "ROUND_ENTRIES", 5)
    monkeypatch.setattr(table_feed, "TOGETHER_BYTES", 200)
    monkeypatch.setattr(planner, "PART_ROWS", 20)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    small_reads(monkeypatch)
    tail.clear()
    lab = Lab(tmp_path / "store")
    lab.root_table(changelog="full")
    for turn in range(9):
        lab.put(dict.fromkeys(range(turn, turn + 1 + turn % 3), (0, turn)))
    lab.put(dict.fromkeys(range(30), (0, 9)))
    lab.put({3: (0, 10)})
    yield lab
    lab.store.close()


def read_only(lab: Lab) -> el.Store:
    return el.open(lab.root, clock=lambda: lab.now_ms, read_only=True)


def feed_rows(lab: Lab, position: FeedPosition | None, *, together: bool, packs: bool) -> tuple[list[Any], int]:
    """Read a feed of a store opened read-only, whose log is packed after each slice; return its rows and notices, and
    the number of files that were deleted meanwhile.
    """
    tail.clear()
    given, deleted = list[Any](), 0
    with read_only(lab) as store, lab.open() as packer:
        handle = store._handle
        table = handle.catalog.read(lambda view: find_table(view, "r"))
        feed = TableFeed(handle, table, None, position, "Begin anew", together=together)
        for item in feed.read_new():
            given += [] if item.data is None else item.data.to_pylist()
            given += [("through", item.epoch)] if item.data is None else []
            if packs:
                deleted += pack(packer)
                tail.clear()
        feed.close()
        assert feed.position == FeedPosition(after=lab.store.table("r").info.max_committed_epoch)
    return given, deleted


@pytest.mark.rule("4.18")
@pytest.mark.medium
@pytest.mark.local_only
@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("rows_first", [False, True])
def test_a_feed_that_can_hold_nothing_plans_anew(lab: Lab, together: bool, rows_first: bool) -> None:
    position = None if rows_first else FeedPosition(after=0)
    expected, _ = feed_rows(lab, position, together=together, packs=False)
    given, deleted = feed_rows(lab, position, together=together, packs=True)
    assert given == expected and deleted > 10


@pytest.mark.rule("4.18")
@pytest.mark.local_only
def test_a_feed_of_a_truncated_log_ends_with_what_it_could_not_read(lab: Lab) -> None:
    with read_only(lab) as store, lab.open() as other:
        handle = store._handle
        table = handle.catalog.read(lambda view: find_table(view, "r"))
        feed = TableFeed(handle, table, None, FeedPosition(after=0), "Begin anew").read_new()
        next(feed)
        other.table("r").truncate_log(other.table("r").info.max_committed_epoch)
        other.compact("r", full=True)
        lab.tick()
        other.vacuum(grace=0)
        tail.clear()
        with pytest.raises(el.SnapshotExpired):
            list(feed)


def flight_rows(lab: Lab, command: ChangesCommand, *, packs: bool) -> tuple[list[Any], int]:
    """Read a flight of a store opened read-only, whose log is packed before each part and after each batch."""
    deleted, batches = 0, list[pa.RecordBatch]()
    with read_only(lab) as store, lab.open() as packer:
        flight = FlightPlanner(store._handle, lambda *_: pytest.fail("no rows")).plan(command, lambda: None)
        assert len(flight.parts) > 1
        for part in flight.parts:
            deleted += pack(packer) if packs else 0
            for batch in part.batches():
                batches.append(batch)
                deleted += pack(packer) if packs else 0
        flight.release()
    return pa.Table.from_batches(batches).to_pylist(), deleted


@pytest.mark.rule("4.18")
@pytest.mark.medium
@pytest.mark.local_only
@pytest.mark.parametrize("mode", ["epochs", "net"])
@pytest.mark.parametrize("images", [False, True])
def test_a_flight_of_changes_that_can_hold_nothing_plans_anew(lab: Lab, mode: str, images: bool) -> None:
    after = lab.store.table("r").history()["epoch"].to_pylist()[-2]
    command = ChangesCommand("r", after, None, mode, images)
    expected, _ = flight_rows(lab, command, packs=False)
    given, deleted = flight_rows(lab, command, packs=True)
    assert given == expected and deleted > 10
    assert expected == lab.store.table("r").changes(after, mode=mode, pre_images=images).read_all().to_pylist()


def rows_twice(feed: TableFeed, view: Any) -> Any:
    """Bug: twice the rows that were given of an epoch are skipped."""
    planned = PLAN_ROUND(feed, view)
    position = FeedPosition(after=planned.position.after, rows=2 * planned.position.rows)
    return table_feed._FeedRound(planned.plan, position, planned.until, planned.ended)


def past_the_epoch(rows: Any, batch: pa.RecordBatch) -> Any:
    """Bug: the new plan begins past the last epoch, of which more may be to come."""
    return replanned.Returned(rows.by_epoch, int(batch.column("_commit_version")[-1].as_py()) + 1, 0)


PLAN_ROUND = TableFeed._plan_round


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.local_only
@pytest.mark.parametrize("bug", [rows_twice, past_the_epoch])
def test_the_comparison_of_reads_without_a_hold_is_not_blind(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, bug: Any
) -> None:
    if bug is rows_twice:
        monkeypatch.setattr(TableFeed, "_plan_round", bug)
        with pytest.raises(AssertionError):
            test_a_feed_that_can_hold_nothing_plans_anew(lab, together=False, rows_first=False)
    else:
        monkeypatch.setattr(replanned.Returned, "and_batch", bug)
        with pytest.raises(AssertionError):
            test_a_flight_of_changes_that_can_hold_nothing_plans_anew(lab, "epochs", images=True)


PACKER = """
import sys, epochlog as el
from epochlog.store.compaction import packing
packing.LEAST_COMMITS, packing.MOST_COMMITS = 2, 4
with el.open(sys.argv[1]) as store:
    store.compact("t", full=True)
    print(len(store.vacuum(grace=0).deleted))
"""


@pytest.mark.rule("4.18")
@pytest.mark.slow
@pytest.mark.local_only
def test_a_flight_is_read_in_the_packs_of_another_process(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
    with el.open(tmp_path / "s", durability="os") as store:
        table = store.create_table("t", schema, ["id"])
        for number in range(12):
            table.upsert(pa.table({"id": [number % 3], "v": [number]}, schema=schema))
        expected = table.changes(0).read_all().select(["id", "v", "_commit_version"])
    with (
        el.open(tmp_path / "s", read_only=True) as store,
        el.serve(store) as server,
        plain.connected(server.location) as (client, _),
    ):
        info = client.get_flight_info(plain.command(changes="t", after=0))
        ran = subprocess.run([sys.executable, "-c", PACKER, str(tmp_path / "s")], check=True, capture_output=True)
        assert int(ran.stdout) >= 8
        given = pa.concat_tables([client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints])
        assert given.select(expected.column_names).equals(expected)
        with el.connect(server.location) as remote, remote.subscribe("t", after=0) as subscription:
            heard = list[int]()
            while len(heard) < 12:
                batch = subscription.poll(10.0)
                assert batch is not None
                heard += batch["v"].to_pylist()
        assert heard == list(range(12))
