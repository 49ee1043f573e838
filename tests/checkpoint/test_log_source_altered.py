"""Log sources of altered tables: the columns of the start, then SchemaChanged, then the new ones after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.changelog import tail_cache
from lab import Lab
from log_source_model import received


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    made = Lab(tmp_path / "store")
    made.root_table()
    made.root_table("q")
    return made


def values(items: list[Any], name: str) -> list[tuple[str, Any]]:
    return [
        (item.table, value) for item in items if isinstance(item, el.Chunk) for value in item.data[name].to_pylist()
    ]


def followed(lab: Lab, **options: Any) -> tuple[list[Any], list[int]]:
    """Read on past every alter; return the items, and the alters."""
    items: list[Any] = []
    alters: list[int] = []
    after = options.pop("after", 0)
    while True:
        log = el.UpstreamLog(lab.store, ["r", "q"], after=after, **options)
        try:
            while (item := log.poll()) is not None:
                items.append(item)
                after = log.position
            return items, alters
        except el.SchemaChanged as changed:
            alters.append(changed.epoch)
            assert len(alters) < 10, "it does not go on"
        finally:
            log.close()


@pytest.mark.rule("7.8")
@pytest.mark.parametrize("pre_images", [False, True])
def test_a_log_source_stops_at_an_alter_and_a_restart_goes_on(lab: Lab, pre_images: bool) -> None:
    table = lab.store.table("r")
    log = el.UpstreamLog(lab.store, ["r", "q"], after=0, pre_images=pre_images)
    lab.put({1: (0, 1)})
    lab.put({1: (0, 10)}, "q")
    lab.tick()
    assert values(received(log), "v") == [("r", 1), ("q", 10)]
    table.alter(add=[pa.field("c", pa.int8())])
    table.upsert([{"k": 2, "g": 0, "v": 2, "c": 2}])
    lab.tick()
    before = received(log)
    assert values(before, "v") == [("r", 2)]
    assert isinstance(before[0], el.Chunk)
    assert "c" not in before[0].data.schema.names
    table.upsert([{"k": 3, "g": 0, "v": 3, "c": 3}])
    table.alter(rename={"v": "g", "g": "v"})
    altered = table.history(1)["epoch"][0].as_py()
    table.upsert([{"k": 4, "g": 4, "v": 44, "c": 4}])
    lab.put({4: (0, 40)}, "q")
    lab.tick()
    items: list[Any] = []
    with pytest.raises(el.SchemaChanged) as changed:
        items.extend(iter(log.poll, None))
    assert changed.value.epoch == altered
    assert values(items, "v") == [("r", 3)]
    assert isinstance(items[-1], el.Barrier)
    assert items[-1].curr == log.position < altered
    with el.UpstreamLog(lab.store, ["r", "q"], after=log.position, pre_images=pre_images) as again:
        rest = received(again)
    assert [(row["k"], row["g"], row["v"]) for item in rest if isinstance(item, el.Chunk) and item.table == "r"
            for row in item.data.to_pylist()] == [(4, 4, 44)]  # fmt: skip
    assert [item.table for item in rest if isinstance(item, el.Chunk)] == ["r", "q"]


@pytest.mark.rule("7.8")
def test_a_replay_of_many_alters_ends_at_each_and_misses_nothing(lab: Lab) -> None:
    table = lab.store.table("r")
    made: list[int] = []
    for turn in range(4):
        names = table.schema.names
        table.upsert([dict(zip(names, (turn, turn, turn), strict=True))])
        lab.put({turn: (0, turn)}, "q")
        table.alter(rename={names[1]: names[2], names[2]: names[1]} if turn % 2 else {names[2]: f"v{turn}"})
        made.append(table.history(1)["epoch"][0].as_py())
    lab.tick()
    items, alters = followed(lab)
    assert alters == made[:-1]  # nothing stands past the last one
    keys = [
        row["k"] for item in items if isinstance(item, el.Chunk) and item.table == "r" for row in item.data.to_pylist()
    ]
    assert keys == [0, 1, 2, 3]
    assert [item.table for item in items if isinstance(item, el.Chunk)].count("q") == 4


@pytest.mark.rule("7.8")
def test_columns_by_name_are_those_of_the_first_change_to_read(lab: Lab) -> None:
    table = lab.store.table("r")
    lab.put({1: (0, 1)})
    table.alter(rename={"v": "w"})
    table.upsert([{"k": 2, "g": 0, "w": 2}])
    lab.tick()
    with pytest.raises(el.InvalidInput, match="no column 'w'"):
        el.UpstreamLog(lab.store, ["r"], after=0, columns={"r": ["k", "w"]})
    with el.UpstreamLog(lab.store, ["r"], after=0, columns={"r": ["k", "v"]}) as old:
        assert values([old.poll()], "v") == [("r", 1)]
        assert isinstance(old.poll(), el.Barrier)
        with pytest.raises(el.SchemaChanged):
            old.poll()
    with el.UpstreamLog(lab.store, ["r"], after=old.position, columns={"r": ["k", "w"]}) as new:
        assert values([new.poll()], "w") == [("r", 2)]


@pytest.mark.planted
@pytest.mark.rule("7.8")
def test_readers_with_other_columns_share_no_decoded_rows(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that began before an add, and one that began after it, read one epoch of the log."""

    def check() -> None:
        table = lab.store.table("r")
        with el.UpstreamLog(lab.store, ["r"], after=table.info.max_committed_epoch) as before:
            lab.put({1: (5, 1)})
            lab.tick()
            after = before.position
            first = before.poll()
            table.alter(add=[pa.field("c", pa.int8())])
            with el.UpstreamLog(lab.store, ["r"], after=after) as newer:
                again = newer.poll()
        assert isinstance(first, el.Chunk) and isinstance(again, el.Chunk)
        assert "c" not in first.data.schema.names
        assert again.data["c"].to_pylist() == [None]

    check()
    lab.store.table("r").alter(drop=["c"])
    monkeypatch.setattr(tail_cache, "signature", lambda *_: ())  # the bug: rows are cached by their file alone
    with pytest.raises((AssertionError, KeyError)):
        check()


@pytest.mark.rule("7.8")
def test_cached_epochs_have_the_columns_of_their_reader(lab: Lab) -> None:
    """The tail cache gives another reader the rows that it has decoded, by the columns' ids."""
    table = lab.store.table("r")
    with el.UpstreamLog(lab.store, ["r"], after=0) as before:
        lab.put({1: (5, 1)})
        lab.tick()
        assert values(received(before), "v") == [("r", 1)]
    table.alter(rename={"v": "g", "g": "v"})
    changes = table.changes(0, mode="net").read_all()
    assert changes["v"].to_pylist() == [5]
    table.upsert([{"k": 2, "g": 2, "v": 6}])
    lab.tick()
    with el.UpstreamLog(lab.store, ["r"], after="snapshot") as newest:
        assert values(received(newest), "v") == [("r", 5), ("r", 6)]
