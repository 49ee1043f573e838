"""Feeds of a table whose log is packed by another process after each of the feed's calls of the catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochlog.exchange.subscription import table_feed
from epochlog.exchange.subscription.messages import FeedPosition
from epochlog.exchange.subscription.table_feed import TableFeed
from epochlog.store.changelog import change_reader, log_reader
from epochlog.store.changelog.tail_cache import tail
from epochlog.store.metadata.lookups import find_table
from lab import Lab
from stand_in_packer import PackedBetween


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
