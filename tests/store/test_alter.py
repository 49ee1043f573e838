"""Altered tables: reads at each epoch have its columns, whatever was dropped, renamed, widened or compacted since."""

from __future__ import annotations

import pickle
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from alter_cases import CASES
from altered_table import AlteredTable, random_alter, random_rows
from epochlog.store.catalog.keys import LOG_PREFIX, SCHEMA_PREFIX
from epochlog.store.catalog.protocol import ReadTxn, scan_prefix
from epochlog.store.metadata import schema_change
from epochlog.store.metadata.definitions import SCHEMAS
from epochlog.store.types import schema as schemas
from lab import Lab
from seeds import seeds

FIELDS = pa.schema([("id", pa.int64()), ("a", pa.int32()), ("b", pa.string())])
ROWS = [{"id": 1, "a": 1, "b": "x"}, {"id": 2, "a": 2, "b": "y"}]


@pytest.fixture
def table(lab: Lab) -> el.Table:
    return lab.store.create_table("t", FIELDS, ["id"])


@pytest.mark.rule("7.1", "7.2", "7.3", "7.4")
@pytest.mark.parametrize("name", CASES)
def test_an_altered_table_reads_as_its_model(name: str, tmp_path: Path) -> None:
    CASES[name](tmp_path / "s")


@pytest.mark.rule("7.2")
@pytest.mark.parametrize("seed", seeds(range(6), 2))
def test_random_alters_among_commits_and_compactions(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    with el.open(tmp_path / "s", durability="os") as store:
        altered = AlteredTable(store, changelog=rng.choice(["upsert", "full"]))
        for _ in range(30):
            step = rng.random()
            if step < 0.45:
                altered.upsert(random_rows(rng, altered.columns, 6, 8))
            elif step < 0.55 and altered.rows:
                altered.delete(rng.sample(sorted(altered.rows), 1))
            elif step < 0.85:
                change = random_alter(rng, altered)
                if change is not None:
                    altered.alter(**change)
            else:
                store.compact("t", full=rng.random() < 0.5)
        altered.check()
        epochs = sorted(altered.moments)
        for _ in range(5):
            altered.check_changes(*sorted(rng.sample(epochs, 2)))
        altered.check_feed(0)


# ---- the call ----------------------------------------------------------------------------------------------------


@pytest.mark.rule("7.1")
def test_an_alter_is_an_entry_that_is_no_change(lab: Lab, table: el.Table) -> None:
    first = table.upsert(ROWS)
    lab.tick()
    table.alter(add=[pa.field("c", pa.float64())])
    newest = table.history(1).to_pylist()[0]
    assert newest["operation"] == "alter"
    assert newest["epoch"] > first
    assert newest["rows_upserted"] == newest["segments"] == 0
    assert table.schema.names == ["id", "a", "b", "c"]
    assert table.schema_at(first).names == ["id", "a", "b"]
    assert table.schema_at(newest["epoch"] - 1).names == ["id", "a", "b"]
    assert lab.store.table("t").schema_at(newest["epoch"]).names == ["id", "a", "b", "c"]


@pytest.mark.rule("7.1")
@pytest.mark.parametrize(
    "change",
    [
        {"add": [pa.field("c", pa.float64())]},
        {"drop": ["b"]},
        {"rename": {"a": "aa"}},
        {"widen": {"a": pa.int64()}},
        {"add": [pa.field("c", pa.int8())], "rename": {"a": "c2"}, "widen": {"a": pa.int64()}, "drop": ["b"]},
    ],
)
def test_an_alter_that_is_repeated_has_no_effect(table: el.Table, lab: Lab, change: dict[str, Any]) -> None:
    table.upsert(ROWS)
    table.alter(**change)
    once = table.schema, table.history().num_rows
    table.alter(**change)
    lab.store.table("t").alter(**change)
    assert (table.schema, table.history().num_rows) == once


@pytest.mark.rule("7.1")
def test_an_alter_that_reuses_a_name_is_made_again_after_the_name_was_free(table: el.Table) -> None:
    table.upsert(ROWS)
    for number in range(3):
        table.alter(drop=["b"])
        table.alter(add=[pa.field("b", pa.string())])
        assert set(table.to_arrow()["b"].to_pylist()) == {None}
        table.upsert([{"id": 1, "a": 1, "b": f"value {number}"}])


@pytest.mark.rule("7.1")
def test_a_column_that_was_added_is_renamed_and_its_name_added_again(table: el.Table) -> None:
    table.alter(add=[pa.field("y", pa.string())])
    table.upsert([{"id": 1, "a": 1, "b": "x", "y": "old"}])
    table.alter(rename={"y": "q"}, add=[pa.field("y", pa.string())])
    assert table.schema.names == ["id", "a", "b", "q", "y"]
    assert table.to_arrow().select(["q", "y"]).to_pylist() == [{"q": "old", "y": None}]


@pytest.mark.rule("7.1")
def test_parts_of_an_alter_that_the_table_has_are_left_out(table: el.Table) -> None:
    table.alter(add=[pa.field("c", pa.int8())])
    table.alter(add=[pa.field("c", pa.int8()), pa.field("d", pa.int8())], widen={"a": pa.int64()})
    table.alter(widen={"a": pa.int64(), "c": pa.int16()})
    table.alter(drop=["d"])
    table.alter(drop=["d"], add=[pa.field("e", pa.int8())], rename={"b": "bb"})
    table.alter(rename={"b": "bb", "c": "cc"}, widen={"b": pa.string(), "c": pa.int32()})
    table.alter(rename={"b": "bb", "c": "cc"}, widen={"b": pa.string(), "c": pa.int64()})
    assert [(field.name, field.type) for field in table.schema] == [
        ("id", pa.int64()), ("a", pa.int64()), ("bb", pa.string()), ("cc", pa.int64()), ("e", pa.int8())
    ]  # fmt: skip


@pytest.mark.rule("7.1", "7.3")
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"add": [pa.field("c", pa.int8(), nullable=False)]}, el.InvalidSchema, "nullable"),
        ({"add": [pa.field("a", pa.int8())]}, el.InvalidSchema, "has a column 'a' already, of type int32"),
        ({"add": [pa.field("a", pa.int32())]}, el.InvalidSchema, "has a column 'a' already"),
        ({"rename": {"b": "c"}, "add": [pa.field("c", pa.int8())]}, el.InvalidSchema, "column 'c' already"),
        ({"add": [pa.field("_c", pa.int8())]}, el.InvalidSchema, "reserved"),
        ({"add": [pa.field("c", pa.null())]}, el.InvalidSchema, "holds no values"),
        ({"add": pa.field("c", pa.int8())}, el.InvalidInput, "list of pyarrow fields"),
        ({"drop": ["id"]}, el.InvalidInput, "primary key"),
        ({"drop": ["nope"]}, el.InvalidInput, "no column 'nope'"),
        ({"drop": "a"}, el.InvalidInput, "list of column names"),
        ({"drop": ["a", "a"]}, el.InvalidInput, "twice"),
        ({"drop": ["a"], "rename": {"a": "c"}}, el.InvalidInput, "dropped, and renamed"),
        ({"rename": {"a": "b"}}, el.InvalidSchema, "twice"),
        ({"rename": {"nope": "c"}}, el.InvalidInput, "no column 'nope'"),
        ({"rename": ["a"]}, el.InvalidInput, "dict"),
        ({"widen": {"id": pa.int64(), "a": pa.int16()}}, el.InvalidInput, "cannot be widened"),
        ({"widen": {"a": pa.float32()}}, el.InvalidInput, "cannot be widened"),
        ({"widen": {"a": pa.uint64()}}, el.InvalidInput, "cannot be widened"),
        ({"widen": {"b": pa.large_string()}}, el.InvalidInput, "cannot be widened"),
        ({"widen": {"a": "int64"}}, el.InvalidInput, "dict"),
        ({}, el.InvalidInput, "alter takes"),
    ],
)
def test_an_alter_that_cannot_be_is_refused_and_changes_nothing(
    table: el.Table, lab: Lab, change: dict[str, Any], error: type[Exception], words: str
) -> None:
    table.upsert(ROWS)
    before = lab.txn_id()
    with pytest.raises(error, match=words):
        table.alter(**change)
    assert lab.txn_id() == before
    assert lab.store.table("t").schema == table.schema == table.to_arrow().schema


def test_key_columns_are_renamed_and_never_widened(lab: Lab) -> None:
    table = lab.store.create_table("t", pa.schema([("id", pa.int32()), ("a", pa.int32())]), ["id"])
    table.upsert([{"id": 1, "a": 1}])
    with pytest.raises(el.InvalidInput, match="primary key"):
        table.alter(widen={"id": pa.int64()})
    table.alter(rename={"id": "key"})
    assert table.primary_key == ["key"]
    assert table.get(1).to_pylist() == [{"key": 1, "a": 1}]


def test_versions_are_limited_in_number(table: el.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_change, "MAX_VERSIONS", 3)
    table.alter(add=[pa.field("c", pa.int8())])
    table.alter(drop=["c"])
    with pytest.raises(el.LimitExceeded, match="altered 2 times"):
        table.alter(add=[pa.field("d", pa.int8())])


def test_finished_tables_and_outputs_keep_their_columns(table: el.Table, lab: Lab) -> None:
    lab.root_table("r")
    lab.job("j", ["r"])
    with pytest.raises(el.NotWritable, match="output of a job"):
        lab.store.table("j_out").alter(drop=["v"])
    table.finish()
    with pytest.raises(el.TableFinished):
        table.alter(drop=["a"])


def test_settings_and_columns_change_together(table: el.Table) -> None:
    options = el.TableOptions(history_retention=timedelta(days=3))
    table.alter(options=options, changelog="full", add=[pa.field("c", pa.int8())])
    assert table.info.options == options
    assert (table.info.changelog, table.info.schema.names) == ("full", ["id", "a", "b", "c"])
    with pytest.raises(el.InvalidInput, match="root table"):
        table.alter(drop_unchanged=True, drop=["c"])
    assert table.schema.names == ["id", "a", "b", "c"]


def test_schema_at_is_asked_of_epochs_that_are_complete(table: el.Table, lab: Lab) -> None:
    epoch = table.upsert(ROWS)
    with pytest.raises(el.EpochNotCommitted):
        table.schema_at(lab.store.last_epoch + 1)
    with pytest.raises(el.EpochNotCommitted):
        table.schema_at(1)
    assert table.schema_at(epoch) == table.schema


def test_a_plan_that_goes_to_another_process_knows_all_versions(table: el.Table) -> None:
    table.upsert(ROWS)
    table.alter(rename={"a": "b", "b": "a"})
    plan = table._snapshot_at(None).plan
    read_there = pickle.loads(pickle.dumps(plan)).read(table._handle.files)
    assert read_there == plan.read(table._handle.files) == table.to_arrow()


# ---- formats -----------------------------------------------------------------------------------------------------


@pytest.mark.rule("7.5")
def test_the_first_alter_alone_raises_the_format_of_a_tables_records(table: el.Table, lab: Lab) -> None:
    handle = lab.store._handle

    def records() -> tuple[list[bytes], list[str]]:
        def body(view: ReadTxn) -> tuple[list[bytes], list[str]]:
            logs = [record for _, record in scan_prefix(view, LOG_PREFIX)]
            fields = sorted({name for log in logs for group in log["groups"] for seg in group[1] for name in seg})
            return [key for key, _ in scan_prefix(view, SCHEMA_PREFIX)], fields

        return handle.catalog.read(body)

    table.upsert(ROWS)
    keys, fields = records()
    assert not keys
    assert "schema_version" not in fields
    table.alter(add=[pa.field("c", pa.int8())])
    table.upsert([{"id": 3, "a": 3, "b": "z", "c": 3}])
    keys, fields = records()
    assert len(keys) == 2
    assert "schema_version" in fields
    lab.store.drop_table("t")
    assert not records()[0]


@pytest.mark.rule("7.5")
def test_an_older_process_fails_at_its_next_transaction(
    table: el.Table, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.upsert(ROWS)
    other = lab.open()
    older = other.table("t")
    table.alter(rename={"a": "b", "b": "a"})
    with monkeypatch.context() as old_release:
        old_release.setattr(schemas, "_FORMAT", 1)
        SCHEMAS.clear()
        with pytest.raises(el.UnsupportedFormat, match="upgrade"):
            older.upsert(ROWS)
        with pytest.raises(el.UnsupportedFormat, match="upgrade"):
            older.to_arrow()
    other.close()


# ---- writers that are open meanwhile ------------------------------------------------------------------------------


@pytest.mark.rule("7.6")
def test_rows_that_were_written_before_an_alter_adapt_to_it(table: el.Table, lab: Lab) -> None:
    table.upsert([{"id": 9, "a": 9, "b": "old"}])
    writer = table.writer()
    writer.upsert(ROWS)
    table.alter(add=[pa.field("c", pa.float64())], rename={"a": "b", "b": "a"}, widen={"a": pa.int64()})
    other = lab.open().table("t")
    other.upsert([{"id": 3, "b": 1 << 40, "a": "new", "c": 0.5}])
    writer.upsert([{"id": 4, "a": 4, "b": "w"}])  # it runs on with its columns
    lab.store.commit({"t": writer.seal(lab.store.last_epoch + 1)})
    expected = [
        {"id": 1, "b": 1, "a": "x", "c": None},
        {"id": 2, "b": 2, "a": "y", "c": None},
        {"id": 3, "b": 1 << 40, "a": "new", "c": 0.5},
        {"id": 4, "b": 4, "a": "w", "c": None},
        {"id": 9, "b": 9, "a": "old", "c": None},
    ]
    assert table.to_arrow().to_pylist() == expected
    lab.store.compact("t", full=True)
    assert table.to_arrow().to_pylist() == expected


@pytest.mark.rule("7.6")
@pytest.mark.parametrize("changelog", ["upsert", "full"])
def test_rows_with_a_column_that_was_dropped_are_refused(table: el.Table, lab: Lab, changelog: str) -> None:
    table.alter(changelog=changelog)
    table.upsert(ROWS)
    writer = table.writer()
    writer.upsert([{"id": 3, "a": 3, "b": "z"}])
    segments = writer.seal(lab.store.last_epoch + 1)
    deleting = table.writer()
    deleting.delete([1])
    deletes = deleting.seal(lab.store.last_epoch + 2)
    table.alter(drop=["b"], add=[pa.field("b", pa.string())])
    with pytest.raises(el.SchemaChanged, match="column 'b' of this commit was dropped") as changed:
        lab.store.commit({"t": segments})
    assert changed.value.epoch == table.history(1)["epoch"][0].as_py()
    assert table.to_arrow().to_pylist() == [{"id": 1, "a": 1, "b": None}, {"id": 2, "a": 2, "b": None}]
    lab.store.commit({"t": deletes})  # a delete writes its key only
    assert table.to_arrow().to_pylist() == [{"id": 2, "a": 2, "b": None}]


def test_a_handle_that_was_open_sees_the_columns_of_another_process(table: el.Table, lab: Lab) -> None:
    other = lab.open()
    there = other.table("t")
    table.alter(add=[pa.field("c", pa.int8())], drop=["a"])
    there.upsert([{"id": 1, "b": "x", "c": 1}])
    assert there.schema == table.schema
    assert there.to_arrow().to_pylist() == [{"id": 1, "b": "x", "c": 1}]
    with pytest.raises(el.SchemaMismatch, match="a"):
        there.upsert(ROWS)
    other.close()


# ---- other reads -------------------------------------------------------------------------------------------------


@pytest.mark.rule("7.2")
def test_every_format_of_a_snapshot_has_the_columns_of_its_epoch(table: el.Table, lab: Lab) -> None:
    duckdb = pytest.importorskip("duckdb")
    before = table.upsert(ROWS)
    with lab.store.snapshot(["t"], consistency="latest") as held:
        table.alter(rename={"a": "b", "b": "a"}, widen={"a": pa.int64()}, add=[pa.field("c", pa.int8())])
        table.upsert([{"id": 1, "a": "new", "b": 1 << 40, "c": 1}])
        lab.store.compact("t", full=True)
        assert held["t"].to_arrow().to_pylist() == ROWS
        assert held["t"].to_polars().to_dicts() == ROWS
        assert held["t"].to_pandas().to_dict("records") == ROWS
        assert held["t"].dataset().to_table(filter=pc.field("a") == 2).to_pylist() == ROWS[1:]
        assert held["t"].lazy().collect().to_dicts() == ROWS
        relation = duckdb.from_arrow(held["t"].dataset())
        assert relation.filter("a = 1").fetchall() == [(1, 1, "x")]
        assert held.duckdb().sql("SELECT b, a FROM t ORDER BY id").fetchall() == [("x", 1), ("y", 2)]
    now = [{"id": 1, "b": 1 << 40, "a": "new", "c": 1}, {"id": 2, "b": 2, "a": "y", "c": None}]
    with lab.store.snapshot(["t"], consistency="latest") as newest:
        assert newest["t"].to_polars().to_dicts() == now
        assert newest["t"].dataset().to_table(filter=pc.field("b") > 2).to_pylist() == now[:1]
    assert table.lazy(epoch=before).collect().to_dicts() == ROWS


@pytest.mark.rule("7.2")
@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("s"), pa.date64(), pa.time32("s"), pa.timestamp("us"), pa.duration("s"), pa.int8(), pa.float16()],
    ids=str,
)
def test_past_epochs_of_an_altered_table_with_any_key(lab: Lab, kind: pa.DataType) -> None:
    """Parquet keeps seconds as milliseconds and date64 as date32; such keys were null where an epoch has no row."""
    day = 86_400_000 if kind == pa.date64() else 1
    bits = pa.int64() if kind.bit_width == 64 else pa.int32()

    def rows(numbers: list[int], value: int) -> pa.Table:
        if pa.types.is_temporal(kind):
            keys = pa.array([number * day for number in numbers], bits).view(kind)
        else:
            keys = pa.array(numbers).cast(kind)
        return pa.table([keys, pa.array([value] * len(numbers))], schema=schema)

    schema = pa.schema([pa.field("k", kind, nullable=False), ("v", pa.int64())])
    table = lab.store.create_table("keyed", schema, ["k"])
    before = table.upsert(rows([1, 2, 3, 4], 0))
    table.upsert(rows([1, 5, 6], 1))
    table.alter(rename={"v": "w"})
    lab.store.compact("keyed", full=True)
    wanted = rows([1, 2, 3, 4], 0)
    assert table.to_arrow(epoch=before).equals(wanted)
    assert table.scan(epoch=before).read_all().equals(wanted)
    assert table.count(epoch=before) == 4
    assert table.get(wanted.select(["k"]), epoch=before).equals(wanted)
    assert table.get(wanted.select(["k"])[1:2], epoch=before).equals(wanted[1:2])
    clone = lab.store.clone("keyed", "cut", as_of=before)
    assert clone.to_arrow()["k"].equals(wanted["k"])


@pytest.mark.rule("7.4", "1.9")
def test_a_restore_casts_to_the_present_columns(table: el.Table, lab: Lab) -> None:
    before = table.upsert(ROWS)
    table.alter(rename={"a": "b", "b": "a"}, add=[pa.field("c", pa.int8())], widen={"a": pa.int64()})
    table.upsert([{"id": 1, "a": "new", "b": 1 << 40, "c": 1}, {"id": 3, "a": "z", "b": 3, "c": 3}])
    table.restore(before)
    assert table.to_arrow().to_pylist() == [
        {"id": 1, "b": 1, "a": "x", "c": None}, {"id": 2, "b": 2, "a": "y", "c": None}
    ]  # fmt: skip
    table.alter(drop=["a"])
    table.alter(add=[pa.field("a", pa.string())])
    table.restore(before)
    assert table.to_arrow().to_pylist() == [
        {"id": 1, "b": 1, "c": None, "a": None}, {"id": 2, "b": 2, "c": None, "a": None}
    ]  # fmt: skip


@pytest.mark.rule("7.7")
def test_a_job_that_reads_the_table_keeps_its_columns(lab: Lab) -> None:
    table = lab.root_table("r")
    lab.job("j", ["r"])
    with pytest.raises(el.SchemaInUse, match="'j'"):
        table.alter(drop=["v"])
    lab.store.drop_job("j")
    table.alter(drop=["v"])
