"""Change events through the Spark sink, without Spark: partitions, replays and lost attempts; partial rows; options."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from cdc import SCHEMA, CdcEvent, contents, events, expected, replayed
from epochlog.spark import sink
from sink_simulation import SinkWrite

EVENTS = pa.schema([("k", pa.int64()), ("v", pa.string()), ("at", pa.int64()), ("op", pa.string())])
FEED = {"applyAsDeletes": "op = 'd'", "exceptColumnList": "op", "sequenceBy": "at", "keys": "k"}
WIDE = pa.schema([("k", pa.int64()), ("a", pa.string()), ("b", pa.int64())])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "store") as opened:
        yield opened


def debezium(batch: list[CdcEvent]) -> pa.Table:
    columns = {
        "k": [event.k for event in batch],
        "v": [None if event.deleted else event.v for event in batch],
        "at": [event.at for event in batch],
        "op": ["d" if event.deleted else "u" for event in batch],
    }
    return pa.table(columns, EVENTS)


@pytest.mark.medium
@pytest.mark.rule("1.12")
@given(st.lists(st.lists(events(), min_size=1, max_size=8), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_micro_batches_in_any_order_with_replays_and_lost_attempts(
    batches: list[list[CdcEvent]], chance: random.Random
) -> None:
    with TemporaryDirectory() as folder, el.open(Path(folder) / "s") as store:
        table = store.create_table("t", SCHEMA, ["k"], sequence_by="at")
        for number, batch in enumerate(batches):
            cut = chance.randint(0, len(batch))
            for _ in range(chance.randint(1, 2)):  # the second time it is a replay
                write = SinkWrite(store, "t", EVENTS, stream=number, txnAppId="q", **FEED)
                parts = [debezium(batch[:cut]), debezium(batch[cut:])]
                if chance.random() < 0.3:
                    write.run(parts[0])  # an attempt of which Spark hears nothing
                write.commit(write.run(*parts))
            if chance.random() < 0.3:
                store.compact("t", full=True)
        arrived = [event for batch in batches for event in batch]
        assert contents(table) == expected(arrived)
        assert replayed(table) == contents(table)


def write(store: el.Store, rows: list[dict[str, Any]], schema: pa.Schema, **options: Any) -> None:
    sink = SinkWrite(store, "t", schema, **options)
    sink.commit(sink.run(pa.Table.from_pylist(rows, schema)))


@pytest.mark.rule("1.15")
def test_partial_rows_keep_the_other_columns(store: el.Store) -> None:
    table = store.create_table("t", WIDE, ["k"])
    table.upsert([{"k": 1, "a": "x", "b": 1}, {"k": 2, "a": "y", "b": 2}])
    write(store, [{"k": 1, "b": 7}, {"k": 3, "b": 8}], pa.schema([WIDE.field("k"), WIDE.field("b")]), partial=True)
    write(store, [{"k": 2, "a": None, "b": 9}, {"k": 2, "a": "z", "b": None}], WIDE, ignoreNullUpdates=True)
    assert table.to_arrow().to_pylist() == [
        {"k": 1, "a": "x", "b": 7},
        {"k": 2, "a": "z", "b": 9},
        {"k": 3, "a": None, "b": 8},
    ]


def test_partial_rows_behind_a_delete_of_their_key_begin_anew(store: el.Store) -> None:
    table = store.create_table("t", WIDE, ["k"])
    table.upsert([{"k": 1, "a": "x", "b": 1}, {"k": 2, "a": "y", "b": 2}])
    schema = pa.schema([WIDE.field("k"), WIDE.field("b"), ("op", pa.string())])
    rows = [
        *({"k": 1, "b": 5, "op": "u"}, {"k": 1, "b": None, "op": "d"}, {"k": 1, "b": 6, "op": "u"}),
        *({"k": 2, "b": 5, "op": "u"}, {"k": 2, "b": None, "op": "d"}),
    ]
    write(store, rows, schema, partial=True, applyAsDeletes="op = 'd'", exceptColumnList="op")
    assert table.to_arrow().to_pylist() == [{"k": 1, "a": None, "b": 6}]


def test_columns_are_chosen(store: el.Store) -> None:
    table = store.create_table("t", WIDE, ["k"])
    wider = WIDE.append(pa.field("extra", pa.string()))
    write(store, [{"k": 1, "a": "x", "b": 1, "extra": "e"}], wider, columnList="k, a, b")
    write(store, [{"k": 2, "a": "y", "b": 2, "extra": "e"}], wider, columnList="k, a", partial=True)
    assert table.to_arrow().to_pylist() == [{"k": 1, "a": "x", "b": 1}, {"k": 2, "a": "y", "b": None}]


@pytest.mark.rule("1.16")
@pytest.mark.parametrize(
    ("sequence_by", "mode", "options", "says"),
    [
        ("b", "append", {"partial": True}, "takes whole rows"),
        ("b", "append", {"ignoreNullUpdates": True}, "takes whole rows"),
        (None, "overwrite", {"partial": True}, "overwrite replaces all rows"),
        (None, "append", {"sequenceBy": "b"}, "it has no sequence, not b"),
        ("b", "append", {"sequenceBy": "a"}, "its sequence is b, not a"),
        (None, "append", {"keys": "k,a"}, "its primary key is k, not k, a"),
        (None, "append", {"storedAsScdType": "2"}, "newest row of each key"),
        (None, "append", {"applyAsTruncates": "b = 1"}, "mode overwrite"),
        (None, "append", {"columnList": "k", "exceptColumnList": "a"}, "do not go together"),
        (None, "append", {"partial": True, "mergeSchema": True}, "add the columns first with ALTER TABLE"),
        (None, "append", {"ignoreNullUpdates": True, "mergeSchema": True}, "mergeSchema takes whole rows"),
        (None, "append", {"ignoreNullUpdate": True}, "did you mean 'ignoreNullUpdates'"),
    ],
)
def test_options_that_would_give_other_rows_are_refused(
    store: el.Store, sequence_by: str | None, mode: str, options: dict[str, Any], says: str
) -> None:
    store.create_table("t", WIDE, ["k"], sequence_by=sequence_by)
    with pytest.raises(el.InvalidInput, match=says):
        SinkWrite(store, "t", WIDE, mode, **options)
    with pytest.raises(el.SchemaMismatch, match="column 'z' is listed"):
        SinkWrite(store, "t", WIDE, exceptColumnList="z")


@pytest.mark.rule("1.14")
def test_an_overwrite_does_not_compare_with_the_table(store: el.Store) -> None:
    table = store.create_table("t", SCHEMA, ["k"], sequence_by="at")
    table.upsert([{"k": 1, "v": "new", "at": 9}, {"k": 2, "v": "gone", "at": 9}])
    table.delete([(3, 9)])
    write(
        store,
        [{"k": 1, "v": "old", "at": 1}, {"k": 3, "v": "back", "at": 1}, {"k": 3, "v": "older", "at": 0}],
        SCHEMA,
        mode="overwrite",
    )
    assert contents(table) == {1: ("old", 1), 3: ("back", 1)}
    table.upsert([{"k": 2, "v": "late", "at": 9}, {"k": 1, "v": "next", "at": 2}])
    assert contents(table) == {1: ("next", 2), 3: ("back", 1)}


@pytest.mark.rule("7.9")
def test_a_rename_that_comes_before_the_alter_of_merge_schema_is_noticed(
    store: el.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frame fits the columns of before; of those that are to be written it lacks one, and has one too many."""
    table = store.create_table("t", WIDE, ["k"])
    real = sink.alter_schema

    def overtaken(*args: Any) -> Any:
        table.alter(rename={"b": "c"})
        return real(*args)

    monkeypatch.setattr(sink, "alter_schema", overtaken)
    with pytest.raises(el.SchemaMismatch):
        SinkWrite(store, "t", WIDE.append(pa.field("more", pa.int64())), mergeSchema=True)
    monkeypatch.undo()
    with pytest.raises(el.SchemaMismatch):
        SinkWrite(store, "t", WIDE)
