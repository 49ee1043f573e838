"""Cases of altered tables in which a wrong answer lies near: each opens a store and asserts what it reads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from altered_table import LONG, AlteredTable

MANY = 40_000
"""Rows of a table with several row groups, whose epochs are replayed by file."""


def _opened(root: Path, **options: Any) -> el.Store:
    return el.open(root, durability="os", **options)


def swap_of_two_names(root: Path) -> None:
    """A filter on either name finds the rows of that column, in segments and in parts of runs."""
    with _opened(root) as store:
        table = store.create_table("t", pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.int32())]), ["id"])
        ids = list(range(MANY))
        before = table.upsert(pa.table({"id": ids, "a": ids, "b": [-i for i in ids]}, schema=table.schema))
        for compacted in (False, True):
            if compacted:
                store.compact("t", full=True)
            else:
                table.alter(rename={"a": "b", "b": "a"})
            assert table.to_arrow(filter=pc.field("b") == 39_000, columns=["id"]).to_pylist() == [{"id": 39_000}]
            assert table.to_arrow(filter=pc.field("a") == -39_000, columns=["id"]).to_pylist() == [{"id": 39_000}]
            assert table.to_arrow(filter=pc.field("a") > 0).num_rows == 0
            assert table.to_arrow(epoch=before, filter=pc.field("a") > 0).num_rows == MANY - 1
            assert table.get(7).to_pylist() == [{"id": 7, "b": 7, "a": -7}]
            assert table.get(7, epoch=before).to_pylist() == [{"id": 7, "a": 7, "b": -7}]


def swap_after_compaction(root: Path) -> None:
    """Row groups are pruned by the statistics of the column that a name has now."""
    with _opened(root) as store:
        schema = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.int32())])
        table = store.create_table("t", schema, ["id"])
        ids = list(range(MANY))
        table.upsert(pa.table({"id": ids, "a": ids, "b": [-i for i in ids]}, schema=schema))
        store.compact("t", full=True)
        both = ["a", "b"]
        assert table.get(7, columns=both).to_pylist() == [{"a": 7, "b": -7}]  # its block is cached from here on
        table.alter(rename={"a": "b", "b": "a"})
        assert table.get(7, columns=both).to_pylist() == [{"a": -7, "b": 7}]
        assert table.to_arrow(filter=pc.field("b") == 39_000).num_rows == 1
        assert table.to_arrow(filter=pc.field("a") == -39_000).num_rows == 1


def swap_of_key_columns(root: Path) -> None:
    """Files are left out by the statistics of the key column that a name has now."""
    with _opened(root) as store:
        schema = pa.schema([("x", pa.int64()), ("y", pa.int64()), ("v", pa.int64())])
        table = store.create_table("t", schema, ["x", "y"])
        table.upsert([{"x": 1, "y": 100, "v": 1}])
        table.upsert([{"x": 2, "y": 200, "v": 2}])
        table.alter(rename={"x": "y", "y": "x"})
        assert table.primary_key == ["y", "x"]
        assert table.to_arrow(filter=pc.field("x") == 100).to_pylist() == [{"y": 1, "x": 100, "v": 1}]
        assert table.to_arrow(filter=pc.field("x") < 100).num_rows == 0
        assert table.get((2, 200)).to_pylist() == [{"y": 2, "x": 200, "v": 2}]
        changes = table.changes(0, mode="net", filter=pc.field("x") == 200).read_all()
        assert changes["v"].to_pylist() == [2]


def drop_then_add_of_one_name(root: Path) -> None:
    """The values of a dropped column do not come back under its name, but at the epochs that have it."""
    with _opened(root) as store:
        altered = AlteredTable(store)
        row = {"k": 1, "g": "a", "a": 1, "b": "first"}
        first = altered.upsert([row, {**row, "k": 2}])
        store.compact("t", full=True)
        altered.upsert([{**row, "k": 3}])
        altered.alter(drop=["b"])
        altered.alter(add={"b": pa.string()})
        altered.check()
        altered.upsert([{"k": 2, "g": "a", "a": 2, "b": "second"}])
        altered.check()
        store.compact("t", full=True)
        altered.check()
        altered.check_changes(first, max(altered.moments))
        assert altered.table.to_arrow()["b"].to_pylist() == [None, "second", None]


def widening_casts_statistics(root: Path) -> None:
    """A value that the old type cannot hold is compared with the statistics of old files, and none is missed."""
    with _opened(root) as store:
        schema = pa.schema([("id", pa.int64()), ("n", pa.int8()), ("d", pa.decimal128(4, 2))])
        table = store.create_table("t", schema, ["id"])
        rows = [{"id": i, "n": i % 100, "d": Decimal(1 + i % 99)} for i in range(MANY)]
        before = table.upsert(pa.Table.from_pylist(rows, schema=schema))
        store.compact("t", full=True)
        table.alter(widen={"n": pa.int64(), "d": pa.decimal128(30, 2)})
        assert table.to_arrow(filter=pc.field("n") == 99).num_rows == MANY // 100
        assert table.to_arrow(filter=pc.field("n") < 1000).num_rows == MANY
        assert table.to_arrow(filter=pc.field("n") > 1000).num_rows == 0
        wide = pa.decimal128(30, 2)
        assert table.to_arrow(filter=pc.field("d") < pa.scalar(Decimal(1000), wide)).num_rows == MANY
        assert table.to_arrow(filter=pc.field("d") == pa.scalar(Decimal(1), wide)).num_rows == -(-MANY // 99)
        table.upsert([{"id": 5, "n": 1 << 40, "d": Decimal(10**20)}])
        store.compact("t", full=True)
        assert table.to_arrow(filter=pc.field("n") > 1000, columns=["id"]).to_pylist() == [{"id": 5}]
        assert table.get(5, epoch=before).to_pylist() == [{"id": 5, "n": 5, "d": Decimal(6)}]
        assert table.to_arrow(epoch=before).schema.types == schema.types
        assert table.to_arrow(epoch=before)["n"].to_pylist() == [i % 100 for i in range(MANY)]


def compaction_keeps_what_epochs_need(root: Path) -> None:
    """A dropped column stays in the files for as long as an epoch with it can be read, and then goes."""
    now_ms = [1_800_000_000_000]
    with _opened(root, clock=lambda: now_ms[0]) as store:
        altered = AlteredTable(store, options=el.TableOptions(timedelta(hours=1), timedelta(hours=1)))
        row = {"k": 1, "g": "a", "a": 1, "b": "kept"}
        first = altered.upsert([row, {**row, "k": 2}])
        altered.alter(drop=["b"], widen={"a": pa.int64()})
        second = altered.upsert([{"k": 1, "g": "a", "a": 1 << 40}])
        altered.alter(drop=["a"])
        altered.upsert([{"k": 3, "g": "a"}])
        store.compact("t", full=True)
        altered.check(first)
        altered.check(second)
        altered.check()
        with store.snapshot(["t"], consistency="latest"):
            now_ms[0] += 7_200_000
            altered.upsert([{"k": 4, "g": "a"}])
        now_ms[0] += 7_200_000
        altered.upsert([{"k": 2, "g": "a"}])  # within the part's keys, which is written anew
        store.compact("t", full=True)
        altered.check()
        parts = store._handle.catalog.read(lambda view: _kept(view, altered.table._table.id))
        assert set(parts) == {()}, parts


def _kept(view: Any, table_id: int) -> list[tuple[int, ...]]:
    from epochlog.store.metadata.lookups import get_runs

    return [part.kept for run in get_runs(view, table_id) for part in (*run.parts, *run.history)]


def a_held_epoch_keeps_its_columns(root: Path) -> None:
    """A hold keeps the columns of its epoch through compactions, however old it is."""
    now_ms = [1_800_000_000_000]
    with _opened(root, clock=lambda: now_ms[0]) as store:
        altered = AlteredTable(store, options=el.TableOptions(timedelta(0), timedelta(hours=1)))
        first = altered.upsert([{"k": 1, "g": "a", "a": 1, "b": "held"}])
        with store.snapshot(["t"], consistency="latest") as held:
            altered.alter(drop=["b", "a"])
            for key in range(2, 5):
                now_ms[0] += 60_000
                altered.upsert([{"k": key, "g": "a"}])
                store.compact("t", full=True)
            assert held["t"].to_arrow().to_pylist() == [{"k": 1, "g": "a", "a": 1, "b": "held"}]
            altered.check(first)  # a new plan of the epoch, over the new files


def narrow_types_at_old_epochs(root: Path) -> None:
    """A part with wide values is read at an epoch with the narrow type: rows that came later do not disturb it."""
    with _opened(root) as store:
        altered = AlteredTable(store)
        first = altered.upsert([{"k": k, "g": "a", "a": k, "b": None} for k in range(5)])
        altered.alter(widen={"a": pa.int64()}, add={"f": pa.float32()})
        altered.upsert([{"k": 1, "g": "a", "a": 1 << 50, "b": None, "f": 1.5}])
        altered.upsert([{"k": 9, "g": "a", "a": 1 << 51, "b": None, "f": 1.5}])
        altered.alter(widen={"f": pa.float64()})
        altered.upsert([{"k": 9, "g": "a", "a": 1 << 51, "b": None, "f": 1e300}])
        store.compact("t", full=True)
        altered.check()
        assert altered.table.to_arrow(epoch=first).schema.field("a").type == pa.int32()
        assert altered.table.to_arrow(epoch=first, filter=pc.field("a") > 2)["a"].to_pylist() == [3, 4]


def pre_images_across_alters(root: Path) -> None:
    """Stored and looked-up pre-images have the columns of the range, by id."""
    for changelog in ("upsert", "full"):
        with _opened(root / changelog) as store:
            altered = AlteredTable(store, changelog=changelog)
            row = {"k": 1, "g": "a", "a": 1, "b": "x"}
            first = altered.upsert([row, {**row, "k": 2}])
            second = altered.upsert([{**row, "a": 2}])
            altered.alter(rename={"a": "b", "b": "a"}, add={"c": pa.int8()})
            both = [{"k": 1, "g": "a", "b": 3, "a": "y", "c": 1}, {"k": 2, "g": "a", "b": 1, "a": "z", "c": 2}]
            third = altered.upsert(both)
            store.compact("t")
            altered.delete([(2, "a")])
            last = altered.alter(drop=["a"])
            for after in (0, first, second, third):
                for until in (second, third, last):
                    if after < until:
                        altered.check_changes(after, until)
            images = altered.table.changes(second, third, pre_images=True).read_all()
            assert [(r["b"], r["a"], r["c"]) for r in images.to_pylist()][:2] == [(2, "x", None), (3, "y", 1)]


def whole_files_replayed(root: Path) -> None:
    """A large commit is replayed from its file in the columns of the range."""
    with _opened(root) as store:
        schema = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.string())])
        table = store.create_table("t", schema, ["id"], options=LONG)
        ids = list(range(MANY))
        first = table.upsert(pa.table({"id": ids, "a": ids, "b": ["x"] * MANY}, schema=schema))
        table.alter(rename={"a": "n"}, add=[pa.field("c", pa.int8())], widen={"a": pa.int64()})
        changes = table.changes(0, first).read_all()
        assert changes.schema.names[:3] == ["id", "a", "b"]
        net = table.changes(0, mode="net").read_all()
        assert net.schema.names[:4] == ["id", "n", "b", "c"]
        assert net["n"].to_pylist() == ids
        assert net["n"].type == pa.int64()
        assert net["c"].null_count == MANY


def feed_stops_at_an_alter(root: Path) -> None:
    """No batch spans an alter that drops, renames or widens; a reader that begins again misses nothing."""
    with _opened(root) as store:
        altered = AlteredTable(store)
        row = {"k": 1, "g": "a", "a": 1, "b": "x"}
        altered.upsert([row])
        added = altered.alter(add={"c": pa.int8()})
        altered.upsert([{**row, "k": 2, "c": 1}])
        swapped = altered.alter(rename={"a": "b", "b": "a"})
        assert altered.check_feed(0) == []  # nothing stands past it yet
        altered.upsert([{"k": 3, "g": "a", "b": 3, "a": "z", "c": 3}])
        dropped = altered.alter(drop=["a"])
        altered.alter(add={"a": pa.string()})
        altered.delete([(1, "a")])
        assert altered.check_feed(0) == [swapped, dropped]
        assert altered.check_feed(swapped) == [dropped]
        assert altered.check_feed(dropped) == []
        assert added not in altered.check_feed(0)


def a_writer_that_races_with_a_drop(root: Path) -> None:
    """Rows with a value of a column that was dropped meanwhile are refused, not committed without it."""
    with _opened(root) as store:
        schema = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.string())])
        table = store.create_table("t", schema, ["id"])
        table.upsert([{"id": 1, "a": 1, "b": "x"}])
        writer = table.writer()
        writer.upsert([{"id": 2, "a": 2, "b": "lost"}])
        segments = writer.seal(store.last_epoch + 1)
        table.alter(drop=["b"])
        with pytest.raises(el.SchemaChanged) as changed:
            store.commit({"t": segments})
        assert changed.value.epoch == table.history(1)["epoch"][0].as_py()
        assert table.to_arrow().to_pylist() == [{"id": 1, "a": 1}]


def defaults_of_added_columns(root: Path) -> None:
    """Rows that lack a column have its default at each epoch that has the column, also after it was dropped."""
    with _opened(root) as store:
        altered = AlteredTable(store, options=LONG)
        altered.upsert([{"k": 1, "g": "a", "a": 1, "b": "first"}, {"k": 2, "g": "a", "a": 2, "b": None}])
        altered.delete([(2, "a")])
        altered.alter(add={"c": pa.string(), "d": pa.int8()}, defaults={"c": "new"})
        altered.upsert([{"k": 3, "g": "a", "a": 1, "b": "x", "c": None, "d": 1}])
        altered.check_feed(0)
        deletes = altered.table.changes(0).read_all().filter(pc.field("_change_type") == "delete")
        assert deletes["c"].to_pylist() == [None]
        altered.alter(drop=["c"])
        altered.alter(add={"c": pa.string()}, defaults={"c": "newer"})
        altered.check()
        store.compact("t", full=True)
        altered.check()
        altered.check_changes(0, max(altered.moments))


def fields_inside_of_structs(root: Path) -> None:
    """Fields that were added are found by their names, in files of both types and at epochs of both."""
    with _opened(root) as store:
        altered = AlteredTable(store, options=LONG)
        pair = pa.struct([("x", pa.int8()), ("y", pa.int8())])
        altered.alter(add={"s": pair})
        row = {"k": 1, "g": "a", "a": 1, "b": "first"}
        altered.upsert([{**row, "s": {"x": 1, "y": 2}}, {**row, "k": 2, "s": None}])
        altered.alter(widen={"s": pa.struct([("new", pa.int8()), ("x", pa.int8()), ("y", pa.int16())])})
        altered.upsert([{**row, "k": 3, "s": {"new": 7, "x": 8, "y": 300}}])
        altered.check()
        store.compact("t", full=True)
        altered.check()


CASES: dict[str, Callable[[Path], None]] = {
    case.__name__: case
    for case in (
        swap_of_two_names,
        swap_after_compaction,
        swap_of_key_columns,
        drop_then_add_of_one_name,
        widening_casts_statistics,
        compaction_keeps_what_epochs_need,
        a_held_epoch_keeps_its_columns,
        narrow_types_at_old_epochs,
        pre_images_across_alters,
        whole_files_replayed,
        feed_stops_at_an_alter,
        a_writer_that_races_with_a_drop,
        defaults_of_added_columns,
        fields_inside_of_structs,
    )
}
