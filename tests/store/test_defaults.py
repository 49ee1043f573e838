"""Defaults of added columns: the value of a column in rows that were written without it, through every reader."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el

STRUCT = pa.struct([("a", pa.int8()), ("l", pa.list_(pa.string()))])
ADDED = [
    pa.field("status", pa.string()),
    pa.field("n", pa.int64()),
    pa.field("s", STRUCT),
    pa.field("other", pa.int8()),
]
DEFAULTS = {"status": "new", "n": 2**63 - 1, "s": {"a": 1, "l": ["x", None]}}
FILLED = {**DEFAULTS, "other": None}
LONG = el.TableOptions(history_retention=timedelta(days=9), log_retention=timedelta(days=9))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path, durability="os") as store:
        yield store


@pytest.fixture
def table(store: el.Store) -> el.Table:
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    return store.create_table("t", schema, ["id"], options=LONG)


def rows(table: el.Table, **options: Any) -> dict[int, dict[str, Any]]:
    return {row.pop("id"): row for row in table.to_arrow(**options).to_pylist()}


@pytest.mark.medium
@pytest.mark.rule("7.15")
@pytest.mark.parametrize("compacted", ["before", "after", "never"])
def test_rows_that_were_written_without_the_column_have_its_default(
    store: el.Store, table: el.Table, compacted: str
) -> None:
    first = table.upsert([{"id": key, "v": "a"} for key in range(4)])
    if compacted == "before":
        store.compact("t", full=True)
    late = table.writer()
    late.upsert([{"id": 4, "v": "late"}])
    table.delete([3])
    table.alter(add=ADDED, defaults=DEFAULTS)
    store.commit({"t": late.seal(store.last_epoch + 1)})
    table.upsert([{"id": 0, "v": "b", **FILLED, "status": None}])
    table.update([{"id": 1, "other": 5}])
    table.update([{"id": 9, "v": "made"}])
    if compacted == "after":
        store.compact("t", full=True)
    wanted = {
        0: {"v": "b", **FILLED, "status": None},
        1: {"v": "a", **FILLED, "other": 5},
        2: {"v": "a", **FILLED},
        4: {"v": "late", **FILLED},
        9: {"v": "made", **FILLED},
    }
    assert rows(table) == wanted
    assert rows(table, epoch=first) == {key: {"v": "a"} for key in range(4)}
    for condition, keys in [
        (pc.field("status") == "new", [1, 2, 4, 9]), (pc.field("status") == "old", []),
        (pc.field("status").is_null(), [0]),
        (pc.field("n") > 5, [0, 1, 2, 4, 9]), (pc.field("other").is_valid(), [1]),
    ]:  # fmt: skip
        assert table.to_arrow(filter=condition)["id"].to_pylist() == keys
    assert table.get(2, columns=["n"]).to_pylist() == [{"n": 2**63 - 1}]
    changes = table.changes(0, mode="net", pre_images=True).read_all().to_pylist()
    assert {row["id"]: row["status"] for row in changes} == {0: None, 1: "new", 2: "new", 4: "new", 9: "new"}
    with store.snapshot(["t"]) as moment, moment.duckdb() as connection:
        counted = connection.execute("SELECT count(*) FROM t WHERE status = 'new' AND s.a = 1").fetchone()
        assert counted == (4,) and moment["t"].to_polars()["status"].to_list() == [None, "new", "new", "new", "new"]


@pytest.mark.rule("7.15")
def test_a_delete_has_no_defaults_and_a_feed_has_those_of_its_columns(store: el.Store, table: el.Table) -> None:
    table.upsert([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    table.delete([1])
    feed = table.changes(0)
    table.alter(add=ADDED, defaults=DEFAULTS)
    assert "status" not in feed.schema.names
    changes = [row for row in table.changes(0).read_all().to_pylist() if row["_commit_version"]]
    assert [(row["id"], row["_change_type"], row["status"], row["n"]) for row in changes] == [
        (1, "upsert", "new", 2**63 - 1), (2, "upsert", "new", 2**63 - 1), (1, "delete", None, None)
    ]  # fmt: skip


@pytest.mark.rule("7.15")
def test_restores_clones_tags_and_views_have_the_default(store: el.Store, table: el.Table) -> None:
    first = table.upsert([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
    store.tag("before", ["t"], consistency="latest")
    table.alter(add=ADDED, defaults=DEFAULTS)
    view = store.create_view("by_status", "SELECT status, COUNT(*) AS n FROM t GROUP BY status", ["status"])
    table.upsert([{"id": 1, "v": "c", **FILLED, "status": "old"}])
    store.checkpoint()
    while view.step() is not None:
        store.checkpoint()
    assert store.table("by_status").to_arrow().to_pylist() == [{"status": "new", "n": 1}, {"status": "old", "n": 1}]
    table.restore(first)
    assert rows(table) == {1: {"v": "a", **FILLED}, 2: {"v": "b", **FILLED}}
    clone, past = store.clone("t", "clone"), store.clone("t", "past", as_of="before")
    assert rows(clone) == rows(table) and rows(past) == {1: {"v": "a"}, 2: {"v": "b"}}
    past.alter(add=[pa.field("x", pa.int8())], defaults={"x": 3})
    assert rows(past) == {1: {"v": "a", "x": 3}, 2: {"v": "b", "x": 3}}
    store.compact(full=True)
    assert rows(table) == rows(clone) and rows(past)[1] == {"v": "a", "x": 3}


@pytest.mark.rule("7.15")
def test_a_dropped_column_keeps_its_default_at_older_epochs(store: el.Store, table: el.Table) -> None:
    table.upsert([{"id": 1, "v": "a"}])
    table.alter(add=[pa.field("status", pa.string())], defaults={"status": "new"})
    with_it = table.history(1)["epoch"][0].as_py()
    table.alter(drop=["status"])
    table.alter(add=[pa.field("status", pa.string())], defaults={"status": "newer"})
    for _ in range(2):
        assert rows(table) == {1: {"v": "a", "status": "newer"}}
        assert rows(table, epoch=with_it) == {1: {"v": "a", "status": "new"}}
        store.compact("t", full=True)


def test_a_default_of_each_type(store: el.Store, table: el.Table) -> None:
    table.upsert([{"id": 1, "v": "a"}])
    given: dict[pa.DataType, Any] = {
        pa.bool_(): True, pa.uint64(): 2**64 - 1, pa.float32(): 0.5, pa.decimal128(5, 2): Decimal("1.25"),
        pa.decimal256(50, 3): Decimal("0.125"), pa.binary(): b"\0", pa.binary(2): b"ab", pa.date32(): dt.date.max,
        pa.timestamp("us", "+05:30"): dt.datetime(2024, 2, 29, tzinfo=dt.UTC), pa.time64("us"): dt.time(1, 2, 3),
        pa.duration("ms"): timedelta(seconds=1), pa.dictionary(pa.int8(), pa.string()): "red", pa.string_view(): "seen",
        pa.list_(pa.int8(), 2): [1, 2], pa.map_(pa.string(), pa.int8()): [("a", 1)], pa.large_list(pa.date32()): [],
    }  # fmt: skip
    fields = [pa.field(f"c{place}", kind) for place, kind in enumerate(given)]
    table.alter(add=fields, defaults=dict(zip((field.name for field in fields), given.values(), strict=True)))
    for _ in range(2):
        row = rows(table)[1]
        assert [row[field.name] for field in fields] == list(given.values())
        store.compact("t", full=True)


@pytest.mark.parametrize("defaults, error, words", [
    ({"nope": 1}, el.InvalidInput, "does not add 'nope'"), ({"n": None}, el.InvalidInput, "null without a default"),
    ({"n": "x"}, el.SchemaMismatch, "column 'n'"), ({"n": 0.5}, el.SchemaMismatch, "column 'n'"),
    ({"v": "x"}, el.InvalidInput, "does not add 'v'"), ([1], el.InvalidInput, "defaults is a dict"),
], ids=str)  # fmt: skip
def test_what_is_no_default(table: el.Table, defaults: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        table.alter(add=[pa.field("n", pa.int64())], defaults=defaults)
    assert table.schema.names == ["id", "v"]


def test_a_default_belongs_to_the_alter(table: el.Table) -> None:
    """A repetition has no effect; another default is another column."""
    add = [pa.field("status", pa.string())]
    table.alter(add=add, defaults={"status": "new"}, txn=("deploy", 1))
    before = table.history().num_rows
    table.alter(add=add, defaults={"status": "new"})
    table.alter(add=add, defaults={"status": "new"}, txn=("deploy", 1))
    assert table.history().num_rows == before
    for other in ({"status": "old"}, None):
        with pytest.raises(el.InvalidSchema, match="has a column 'status' already"):
            table.alter(add=add, defaults=other)
    with pytest.raises(el.TxnMismatch):
        table.alter(add=add, defaults={"status": "old"}, txn=("deploy", 1))
    with pytest.raises(el.InvalidInput, match="does not add"):
        table.alter(drop=["v"], defaults={"v": "x"})
    assert table.info.defaults == {"status": "new"}
