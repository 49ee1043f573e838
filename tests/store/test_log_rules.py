"""The rules of the log one by one: ranges, truncation, next_epoch, empty entries, changes, columns and filters."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.store.types.epoch import from_unix_ms, to_unix_ms
from log_model import GONE, NOW_MS, ChangelogPair

WIDE = pa.schema(
    [
        pa.field("a", pa.string(), nullable=False),
        pa.field("b", pa.int32(), nullable=False),
        pa.field("f", pa.float64()),
        pa.field("l", pa.list_(pa.float64())),
        pa.field("st", pa.struct([("x", pa.float32()), ("y", pa.string())])),
    ]
)
FORMS = [("epochs", False), ("epochs", True), ("net", False), ("net", True)]
NAN = float("nan")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ChangelogPair]:
    opened = ChangelogPair(tmp_path / "s")
    yield opened
    opened.close()


@pytest.fixture(params=["upsert", "full"])
def wide(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[el.Table]:
    """Composite keys and nested values."""
    with el.open(tmp_path / "w", durability="os", clock=lambda: NOW_MS) as store:
        yield store.create_table("wide", WIDE, ["a", "b"], changelog=request.param)


def types(table: el.Table, after: int, **options: Any) -> list[str]:
    return table.changes(after, **options).read_all()["_change_type"].to_pylist()


def row(a: str, b: int, f: Any = 0.0, items: Any = None, st: Any = None) -> pa.Table:
    return pa.Table.from_pylist([{"a": a, "b": b, "f": f, "l": items, "st": st}], schema=WIDE)


# ---- ranges and the mark -----------------------------------------------------------------------------------------


@pytest.mark.rule("4.9", "4.10")
@pytest.mark.medium
@pytest.mark.parametrize("name", ChangelogPair.NAMES)
def test_truncation_drops_entries_below_the_mark_and_hides_labels_below_it_in_the_first_one_left(
    world: ChangelogPair, name: str
) -> None:
    world.commit([[(1, 1.0)], [(2, 1.0)]])
    second = world.commit([[(1, 2.0)], [(2, 2.0)], [(3, 2.0)]])
    third = world.commit([[(1, 3.0)]])
    middle = [at for at, _ in world.model.groups if at < second][-1]
    world.truncate(middle)
    table = world.table(name)
    assert table.info.log_start_epoch == middle
    assert table.info.log_segments == 4, "the first entry is gone; the one that the mark cuts is there"
    assert table.next_epoch(middle) == second and table.next_epoch(second) == third
    assert table.changes(middle).read_all()["_commit_version"].to_pylist() == [second, third]
    for after in (0, middle - 1):
        with pytest.raises(el.LogTruncated, match=str(middle)):
            table.next_epoch(after)
        for mode, images in FORMS:
            with pytest.raises(el.LogTruncated, match=str(middle)):
                table.changes(after, mode=mode, pre_images=images)
    world.check_all()
    world.store.compact(full=True)
    world.check_all()
    world.truncate(second)
    assert table.info.log_segments == 4, "the entry at the mark stays"
    world.truncate(second + 1)
    assert table.info.log_segments == 1
    world.truncate(middle)
    assert table.info.log_start_epoch == second + 1, "a mark never falls"
    world.check_all()


@pytest.mark.rule("4.10")
@pytest.mark.parametrize("name", ChangelogPair.NAMES)
def test_a_log_can_be_truncated_through_its_newest_epoch_and_not_past_it(world: ChangelogPair, name: str) -> None:
    newest = world.commit([[(1, 1.0)]])
    table = world.table(name)
    with pytest.raises(el.InvalidInput, match=str(newest)):
        table.truncate_log(newest + 1)
    world.truncate(newest)
    assert table.next_epoch(newest) is None and table.next_epoch(newest + 9) is None
    assert types(table, newest, pre_images=True) == []
    following = world.commit([[(1, 2.0)]])
    assert table.next_epoch(newest) == following
    assert types(table, newest, pre_images=True) == ["update_preimage", "update_postimage"]


@pytest.mark.rule("4.10")
def test_an_explicit_truncation_overrides_retention_and_never_a_hold(world: ChangelogPair) -> None:
    first, second = world.commit([[(1, 1.0)]]), world.commit([[(1, 2.0)]])
    world.store.create_job("j", ["full"], {"out": (WIDE, ["a", "b"])}, backfill="log")
    for before in (1, first, second):
        with pytest.raises(el.LogHeld, match="job:j"):
            world.table("full").truncate_log(before)
    assert world.table("full").info.log_start_epoch == 0
    world.store.drop_job("j")
    world.truncate(second)
    assert world.table("full").info.log_start_epoch == second, "a day of retention does not keep it"


@pytest.mark.rule("4.1")
@pytest.mark.parametrize("name", ChangelogPair.NAMES)
@pytest.mark.parametrize(("mode", "images"), FORMS)
def test_ranges_begin_after_and_end_at_their_bounds(world: ChangelogPair, name: str, mode: str, images: bool) -> None:
    world.commit([[(1, 1.0)], [(1, 2.0)], [(1, 3.0)]])
    world.commit([[(1, GONE)]])
    table, labels = world.table(name), [at for at, _ in world.model.groups]
    for after in range(4):
        for until in range(after, 4):
            world.check(name, labels[after], labels[until], mode, images=images)
            world.check(name, labels[after] - 1, labels[until] - 1, mode, images=images)
    assert table.changes(labels[3], None, mode=mode, pre_images=images).read_all().num_rows == 0
    assert table.changes(labels[3] + 7, None, mode=mode, pre_images=images).read_all().num_rows == 0
    with pytest.raises(el.InvalidInput, match="inverted"):
        table.changes(labels[1], labels[0], mode=mode, pre_images=images)
    for wrong in (-1, 1.5, "1", None):
        with pytest.raises(el.InvalidInput):
            table.changes(wrong, mode=mode, pre_images=images)  # pyright: ignore[reportArgumentType]
    with pytest.raises(el.InvalidInput, match="mode"):
        table.changes(0, mode=f"{mode}s ")


def test_after_a_drop_the_log_is_gone_also_under_the_same_name(world: ChangelogPair) -> None:
    world.commit([[(1, 1.0)]])
    table = world.table("full")
    world.store.drop_table("full")
    world.store.create_table("full", WIDE, ["a", "b"], changelog="full")
    for asked in (lambda: table.next_epoch(0), lambda: table.changes(0), lambda: table.truncate_log(0)):
        with pytest.raises(el.TableDropped):
            asked()
    again = world.store.table("full")
    assert again.next_epoch(0) is None and again.info.log_start_epoch == 0


def test_a_new_table_begins_at_mark_0_and_only_its_own_commits_are_entries(world: ChangelogPair) -> None:
    info = world.table("full").info
    assert (info.max_committed_epoch, info.safe_epoch, info.log_start_epoch) == (0, 0, 0)
    world.table("upsert").upsert(pa.table({"k": [1], "v": [1.0], "s": ["x"]}))
    world.table("full").writer().seal(world.store.last_epoch + 5)
    world.store.checkpoint()
    world.store.compact(full=True)
    assert world.table("full").next_epoch(0) is None
    assert len(world.table("full").history()) == 0


# ---- entries -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("4.9")
@pytest.mark.parametrize("name", ChangelogPair.NAMES)
def test_empty_entries_and_the_end_of_data_are_epochs_without_changes(world: ChangelogPair, name: str) -> None:
    first = world.commit([[]])
    second = world.commit([[(1, 1.0)]], sealed=False)
    third = world.commit([[]], sealed=False)
    table = world.table(name)
    end = table.finish()
    assert [table.next_epoch(at) for at in (0, first, second, third, end)] == [first, second, third, end, None]
    for mode, images in FORMS:
        changes = table.changes(0, mode=mode, pre_images=images).read_all()
        assert changes["_commit_version"].to_pylist() == [second]
    history = table.history().to_pylist()[::-1]
    assert [entry["epoch"] for entry in history] == [first, second, third, end]
    assert [entry["operation"] for entry in history][-1] == "finish"
    assert [(entry["rows_upserted"], entry["rows_deleted"]) for entry in history] == [(0, 0), (1, 0), (0, 0), (0, 0)]


@pytest.mark.parametrize("changelog", ChangelogPair.NAMES)
def test_history_tells_each_commit_and_does_not_count_old_rows(world: ChangelogPair, changelog: str) -> None:
    table = world.table(changelog)
    table.upsert(pa.table({"k": [1, 2], "v": [1.0, 2.0], "s": ["a", "b"]}), txn=("app", 7))
    table.delete(pa.table({"k": [2, 3]}))
    newest, oldest = table.history().to_pylist()
    assert oldest["txn"] == {"application": "app", "id": 7} and newest["txn"] is None
    assert (newest["rows_upserted"], newest["rows_deleted"], newest["segments"]) == (0, 2, 1)
    assert (oldest["rows_upserted"], oldest["rows_deleted"], oldest["operation"]) == (2, 0, "upsert")
    assert newest["bytes"] > 0 and newest["job"] is None and newest["operation"] == "delete"
    assert table.history(limit=1).num_rows == 1 and table.history(limit=0).num_rows == 0
    assert to_unix_ms(newest["epoch"]) == newest["timestamp"].timestamp() * 1000 == NOW_MS


# ---- what a change is --------------------------------------------------------------------------------------------


@pytest.mark.rule("4.2")
def test_a_row_written_as_it_was_is_no_change(wide: el.Table) -> None:
    """Null equals null and NaN equals NaN, in lists and structs too; other floats are equal if all their bits are."""
    rows = [
        row("x", 1, NAN, [1.0, None, NAN], {"x": NAN, "y": None}),
        row("x", 2, None, None, None),
        row("x", 3, 0.0, [], {"x": None, "y": ""}),
        row("x", 4, 1.0, [None], {"x": 0.5, "y": "y"}),
    ]
    first = wide.upsert(pa.concat_tables(rows))
    again = pa.concat_tables([*rows[:2], row("x", 3, 0.0, [], {"x": None, "y": ""}), rows[3]])
    second = wide.upsert(again)
    for mode in ("epochs", "net"):
        assert types(wide, first, mode=mode, pre_images=True) == []
        assert types(wide, first, mode=mode) == ["upsert"] * 4, "the cheap form does not look"
    signed = wide.upsert(row("x", 3, -0.0, [], {"x": None, "y": ""}))
    for mode in ("epochs", "net"):
        assert types(wide, second, mode=mode, pre_images=True) == ["update_preimage", "update_postimage"]
    second = wide.upsert(rows[2])
    assert signed < second
    others = [
        row("x", 1, NAN, [1.0, None, None], {"x": NAN, "y": None}),
        row("x", 2, None, [], None),
        row("x", 3, 0.0, [], None),
        row("x", 4, 1.0, [None], {"x": 0.5, "y": "z"}),
    ]
    wide.upsert(pa.concat_tables(others))
    for mode in ("epochs", "net"):
        assert types(wide, second, mode=mode, pre_images=True) == ["update_preimage", "update_postimage"] * 4
    wide.upsert(pa.concat_tables(rows))
    assert types(wide, second, mode="net", pre_images=True) == [], "it ends as it began"
    assert len(types(wide, second, pre_images=True)) == 16


@pytest.mark.rule("4.2")
def test_deletes_of_keys_that_never_were(wide: el.Table) -> None:
    first = wide.upsert(row("x", 1))
    second = wide.delete(pa.table({"a": ["x", "x"], "b": pa.array([1, 2], pa.int32())}))
    for mode in ("epochs", "net"):
        cheap = wide.changes(first, mode=mode).read_all().to_pylist()
        assert [(r["_change_type"], r["a"], r["b"], r["f"], r["st"]) for r in cheap] == [
            ("delete", "x", 1, None, None),
            ("delete", "x", 2, None, None),
        ]
        whole = wide.changes(first, mode=mode, pre_images=True).read_all().to_pylist()
        assert [(r["_change_type"], r["b"], r["f"], r["_commit_version"]) for r in whole] == [
            ("delete", 1, 0.0, second)
        ]
    assert types(wide, 0, mode="net", pre_images=True) == [], "inserted and deleted inside"
    assert types(wide, 0, mode="net") == ["delete", "delete"]
    assert types(wide, 0, pre_images=True) == ["insert", "delete"]


@pytest.mark.rule("4.1")
def test_net_gives_the_first_old_row_and_the_last_new_one(wide: el.Table) -> None:
    wide.upsert(pa.concat_tables([row("x", 1, 1.0), row("x", 2, 1.0)]))
    start = wide.delete(pa.table({"a": ["x"], "b": pa.array([2], pa.int32())}))
    for f in (2.0, 3.0, 4.0):
        last = wide.upsert(pa.concat_tables([row("x", 1, f), row("x", 2, f)]))
    changes = wide.changes(start, mode="net", pre_images=True).read_all().to_pylist()
    assert [(r["_change_type"], r["b"], r["f"], r["_commit_version"]) for r in changes] == [
        ("update_preimage", 1, 1.0, last),
        ("update_postimage", 1, 4.0, last),
        ("insert", 2, 4.0, last),
    ]


@pytest.mark.rule("4.1")
def test_epochs_come_in_order_and_keys_in_order_within_each(wide: el.Table) -> None:
    keys = [("b", 2), ("a", 5), ("", 9), ("é", -1), ("a", -5)]
    for f in (1.0, 2.0):
        wide.upsert(pa.concat_tables([row(a, b, f) for a, b in keys]))
    ordered = sorted(keys, key=lambda key: (key[0].encode(), key[1]))
    changes = wide.changes(0, pre_images=True).read_all().to_pylist()
    twice = [key for key in ordered for _ in range(2)]
    assert [(r["a"], r["b"]) for r in changes] == ordered + twice
    assert [(r["a"], r["b"]) for r in wide.changes(0, mode="net").read_all().to_pylist()] == ordered


# ---- columns and filters -----------------------------------------------------------------------------------------


@pytest.mark.rule("4.4")
def test_a_change_in_columns_that_are_not_asked_for_is_one(wide: el.Table) -> None:
    first = wide.upsert(row("x", 1, 1.0, [1.0]))
    wide.upsert(row("x", 1, 2.0, [1.0]))
    for mode in ("epochs", "net"):
        changes = wide.changes(first, mode=mode, pre_images=True, columns=["l", "a"]).read_all()
        assert changes.column_names == ["l", "a", "_change_type", "_commit_version", "_commit_timestamp"]
        assert changes["_change_type"].to_pylist() == ["update_preimage", "update_postimage"]
        assert changes["l"].to_pylist() == [[1.0], [1.0]]
        bare = wide.changes(first, mode=mode, pre_images=True, columns=[]).read_all()
        assert bare.column_names == ["_change_type", "_commit_version", "_commit_timestamp"] and bare.num_rows == 2


def test_the_schema_of_changes(wide: el.Table) -> None:
    wide.upsert(row("x", 1))
    for mode, images in FORMS:
        changes = wide.changes(0, mode=mode, pre_images=images)
        assert changes.schema.names[:5] == WIDE.names
        assert all(changes.schema.field(name).nullable for name in WIDE.names)
        assert [changes.schema.field(name).type for name in WIDE.names] == [field.type for field in wide.schema]
        assert [str(field.type) for field in changes.schema][5:] == ["string", "int64", "timestamp[us, tz=UTC]"]
        assert changes.read_all().schema == changes.schema
        assert wide.changes(1 << 52, mode=mode, pre_images=images).read_all().schema == changes.schema


@pytest.mark.rule("4.4")
def test_filters_of_key_columns_judge_all_rows_of_a_change_alike(wide: el.Table) -> None:
    first = wide.upsert(pa.concat_tables([row(a, b) for a in "xyz" for b in range(3)]))
    wide.upsert(pa.concat_tables([row("y", 1, 5.0), row("z", 2, 5.0)]))
    wide.delete(pa.table({"a": ["y", "x"], "b": pa.array([2, 2], pa.int32())}))
    for mode in ("epochs", "net"):
        changes = wide.changes(
            first, mode=mode, pre_images=True, filter=(pc.field("a") == "y") & (pc.field("b") > 0), columns=["f"]
        ).read_all()
        assert changes.select(["f", "_change_type"]).to_pylist() == [
            {"f": 0.0, "_change_type": "update_preimage"},
            {"f": 5.0, "_change_type": "update_postimage"},
            {"f": 0.0, "_change_type": "delete"},
        ]
    with pytest.raises(el.InvalidInput, match="key columns"):
        wide.changes(first, filter=pc.field("f") > 1)


def test_timestamps_are_those_of_the_epochs(tmp_path: Path) -> None:
    now = [NOW_MS]
    with el.open(tmp_path / "s", durability="os", clock=lambda: now[0]) as store:
        table = store.create_table("wide", WIDE, ["a", "b"], changelog="full")
        for step in (0, 1, 999, 3_600_000):
            now[0] += step
            at = table.upsert(row("x", 1, float(now[0])))
            changes = table.changes(at - 1, pre_images=True).read_all()
            assert set(changes["_commit_timestamp"].cast(pa.int64()).to_pylist()) == {now[0] * 1000}
            assert from_unix_ms(now[0]) <= at < from_unix_ms(now[0] + 1)


@pytest.mark.rule("4.10")
@pytest.mark.parametrize("name", ChangelogPair.NAMES)
def test_automatic_truncation_follows_log_retention(tmp_path: Path, name: str) -> None:
    options = el.TableOptions(log_retention=timedelta(seconds=10), history_retention=timedelta(seconds=1))
    world = ChangelogPair(tmp_path / "s", options)
    try:
        first = world.commit([[(1, 1.0)]])
        world.now_ms += 11_000
        second = world.commit([[(1, 2.0)]])
        world.store.compact(full=True)
        table = world.table(name)
        assert table.info.log_start_epoch == first, "the newest entry that is older than the retention"
        assert table.next_epoch(first) == second
        assert types(table, first) == ["upsert"]
        with pytest.raises(el.LogTruncated):
            table.changes(first - 1)
    finally:
        world.close()
