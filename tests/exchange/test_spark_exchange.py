"""The parts of `format("epochlog.exchange")` that need no Spark session: options, and the hash that splits rows."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

import epochlog as el
from epochlog.exchange import ChannelProgress
from epochlog.spark import exchange_layout
from epochlog.spark.exchange_format import ExchangeSource
from epochlog.spark.exchange_layout import ExchangeLayout, PushTarget
from epochlog.spark.exchange_sink import make_sink
from epochlog.spark.exchange_source import ConsumerRead, ExchangeReader
from epochlog.spark.exchange_stream import deliverable
from epochlog.spark.row_hash import hash_rows, refuse_unhashable, split_by_hash
from staged_fixture import TOKEN, served

pytestmark = pytest.mark.local_only

QUERY = {"location": "grpc://127.0.0.1:1", "query": "q"}

SCHEMA = pa.schema({"k": pa.int64(), "x": pa.float64()})


@pytest.mark.parametrize("options, message", [
    ({"query": ""}, "query"),
    ({"location": ""}, "location"),
    ({"query": "a query"}, "named by"),
    ({"stages": "build"}, "whole numbers"),
    ({"stages": "0, 0"}, "twice"),
    ({"channel": "4"}, "did you mean 'channels'"),
    ({"foo": "4"}, "takes no option foo; it takes location, token, .*, consumers, stage, partitionBy, broadcast"),
    ({"path": "lake"}, "takes no path"),
    ({"consumers": "0"}, ">= 1"),
    ({}, 'option\\("stage"'),
    ({"stage": "1"}, "not among the stages"),
    ({"stage": "0", "consumers": "2"}, "partitionBy"),
    ({"stage": "0", "consumers": "2", "partitionBy": "k", "broadcast": "true"}, "exclude each other"),
])  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(el.InvalidInput, match=message):
        PushTarget.from_options({**QUERY, **options})


def test_options_of_writes_are_refused_in_reads() -> None:
    with pytest.raises(el.InvalidInput, match="option stage is for writing"):
        exchange_layout.refuse_push_options({**QUERY, "stage": "0"})
    with pytest.raises(el.InvalidInput, match="takes no option foo; it takes location, .*, channels, consumers$"):
        ExchangeLayout.from_options({**QUERY, "foo": "0"})


def test_every_option_is_in_the_reference() -> None:
    known = {*exchange_layout.SERVER, *exchange_layout.LAYOUT, *exchange_layout.PUSH}
    text = (Path(__file__).parents[2] / "docs" / "SPARK.md").read_text("utf-8")
    assert not {name for name in known if not re.search(rf"`{name}`", text)}


def test_each_channel_has_one_producer_and_one_consumer() -> None:
    layout = ExchangeLayout.from_options({**QUERY, "stages": "0,-1", "channels": "3", "consumers": "2"})
    names = [name for consumer in range(2) for channels in layout.channels_of(consumer).values() for name in channels]
    assert len(names) == len(set(names)) == 12 and list(layout.channels_of(0)) == [-1, 0]


def test_frames_that_cannot_be_pushed_are_refused_at_once() -> None:
    spark_schema, target = from_arrow_schema(SCHEMA), {**QUERY, "stage": "0"}
    with pytest.raises(el.InvalidInput, match="cannot be overwritten"):
        make_sink(target, spark_schema, True)
    with pytest.raises(el.InvalidInput, match="cast it"):
        make_sink({**target, "partitionBy": "x"}, spark_schema, False)
    for names in (["k", "_stage"], ["k", "k"]):
        renamed = from_arrow_schema(pa.schema([(name, pa.int64()) for name in names]))
        with pytest.raises(el.InvalidInput, match="rename it"):
            make_sink(target, renamed, False)
    source = ExchangeSource(target)
    with pytest.raises(el.InvalidInput, match=r"needs \.schema"):
        source.schema()
    with pytest.raises(el.InvalidInput, match="never ends"):
        source.streamWriter(spark_schema, False)


def test_a_stream_reads_no_stage_before_all_lower_ones_of_its_consumer_have_passed() -> None:
    layout = ExchangeLayout.from_options({**QUERY, "stages": "-1,0", "channels": "2", "consumers": "2"})

    def progress(**changed: tuple[int, int | None]) -> dict[str, ChannelProgress]:
        """Progress of all channels; by default none has a batch, and all have ended but the changed ones."""
        names = [(stage, name) for c in range(2) for stage, names in layout.channels_of(c).items() for name in names]
        short = {name: name.replace("s-1", "build").replace("s0", "probe").replace(".", "_")[:-3] for _, name in names}
        return {name: ChannelProgress(stage, *changed.get(short[name], (0, -1))) for stage, name in names}

    def end(start: dict[str, int] | None = None, **changed: tuple[int, int | None]) -> dict[str, int]:
        return deliverable(layout, progress(**changed), start or {})

    assert end() == {}
    assert end(build_p0_c0=(3, None), probe_p0_c0=(2, 1), probe_p1_c1=(4, 3)) == {
        "s-1.p0.c0of2": 3, "s0.p1.c1of2": 4,  # each consumer has a gate of its own
    }  # fmt: skip
    assert end(build_p0_c0=(3, 3), probe_p0_c0=(2, 1)) == {"s-1.p0.c0of2": 3}  # the end mark came before a batch
    assert end(build_p0_c0=(4, 3), probe_p0_c0=(2, None)) == {"s-1.p0.c0of2": 4, "s0.p0.c0of2": 2}
    with pytest.raises(el.InvalidInput, match="an earlier query 'q'"):
        end({"s-1.p0.c0of2": 5}, build_p0_c0=(4, 3))


def test_another_layout_of_a_query_is_refused(tmp_path: Path) -> None:
    with served(tmp_path) as (_, server):
        known = {**QUERY, "location": server.location, "token": TOKEN, "stages": "-1,0", "channels": "2"}
        make_sink({**known, "stage": "0"}, from_arrow_schema(SCHEMA), False)
        ExchangeReader(ExchangeLayout.from_options(known), from_arrow_schema(SCHEMA))
        for other in ({"stages": "0"}, {"channels": "3"}, {"consumers": "2"}):
            layout = ExchangeLayout.from_options({**known, **other})
            with pytest.raises(el.InvalidInput, match="other channels"):
                ExchangeReader(layout, from_arrow_schema(SCHEMA))


def test_a_schema_that_does_not_fit_the_batches_is_refused(tmp_path: Path) -> None:
    with served(tmp_path) as (_, server):
        options = {**QUERY, "location": server.location, "token": TOKEN, "stages": "-1,0", "channels": "1"}
        layout = ExchangeLayout.from_options(options)
        with layout.connect() as client:
            layout.declare(client)
            for stage, rows in ((-1, {"k": [1, 2]}), (0, {"k": [3, None], "x": [0.5, 1.5]})):
                client.push(layout.channel(stage, 0, 0), stage, 0, pa.record_batch(rows))
                client.end(layout.channel(stage, 0, 0), 0)

        def read(*fields: pa.Field) -> list[dict[str, object]]:
            return pa.Table.from_batches(ConsumerRead(layout, 0, pa.schema(fields), {}).read()).to_pylist()

        assert read(pa.field("_stage", pa.int32()), pa.field("x", pa.float32()), pa.field("k", pa.int32())) == [
            {"_stage": -1, "x": None, "k": 1}, {"_stage": -1, "x": None, "k": 2},
            {"_stage": 0, "x": 0.5, "k": 3}, {"_stage": 0, "x": 1.5, "k": None},
        ]  # fmt: skip
        for field, message in (
            (pa.field("kk", pa.int64()), "no stage has the column 'kk'"),
            (pa.field("k", pa.int64(), nullable=False), "NOT NULL"),
            (pa.field("x", pa.float64(), nullable=False), "NOT NULL"),
            (pa.field("k", pa.date32()), "channel s-1.p0"),
        ):
            with pytest.raises(el.SchemaMismatch, match=message):
                read(field)


ROWS = pa.table({
    "int": pa.array([1, None, -3, 2**31 - 1, 0, 1], pa.int32()),
    "text": ["", "a", "a\0", None, "a longer text, of many words", ""],
    "flag": [True, False, None, True, False, True],
    "day": pa.array([1, 2, 3, 4, None, 1], pa.date32()),
})  # fmt: skip


def hashes(table: pa.Table, columns: list[str]) -> list[int]:
    return hash_rows(table.combine_chunks().to_batches()[0], columns).tolist()


def test_equal_values_have_equal_hashes_in_each_form() -> None:
    wide = ROWS.set_column(0, "int", ROWS["int"].cast(pa.int64())).set_column(
        1, "text", ROWS["text"].cast(pa.large_string())
    )
    columns = ["int", "text", "flag", "day"]
    assert hashes(ROWS, columns) == hashes(wide, columns)
    assert len(set(hashes(ROWS, columns))) == 5 and hashes(ROWS, columns)[0] == hashes(ROWS, columns)[5]
    assert hashes(ROWS, columns)[2:5] == hash_rows(ROWS.to_batches()[0].slice(2, 3), columns).tolist()
    binary = ROWS.set_column(1, "text", ROWS["text"].cast(pa.binary()))
    assert len(set(hashes(ROWS, ["text"]))) == 4 and hashes(ROWS, ["text"]) == hashes(binary, ["text"])
    # the hash is part of the exchange: applications of other versions push to the same consumers
    assert hashes(pa.table({"k": [0, 1, -1], "t": ["", "a", "city"]}), ["k", "t"]) == KNOWN


KNOWN = [14315598729617650406, 1357293302228093974, 3229907154671497447]


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.text(max_size=20)), max_size=50), st.integers(1, 5))
def test_a_split_keeps_each_row_once_in_order_and_equal_keys_together(rows: list[tuple[int, str]], count: int) -> None:
    batch = pa.record_batch({
        "k": pa.array([row[0] for row in rows], pa.int64()),
        "t": pa.array([row[1] for row in rows], pa.string()),
        "n": pa.array(range(len(rows)), pa.int64()),
    })  # fmt: skip
    parts = split_by_hash(batch, ["k", "t"], count)
    assert len(parts) == count
    seen: dict[tuple[int, str], int] = {}
    for number, part in enumerate(parts):
        order = part["n"].to_pylist()
        assert order == sorted(order)
        for key in zip(part["k"].to_pylist(), part["t"].to_pylist(), strict=True):
            assert seen.setdefault(key, number) == number
    assert sorted(n for part in parts for n in part["n"].to_pylist()) == list(range(len(rows)))


def test_consumers_get_similar_shares() -> None:
    for column in (pa.array(range(10_000)), pa.array(range(0, 10_000_000, 1_000)), pa.array(map(str, range(10_000)))):
        sizes = [part.num_rows for part in split_by_hash(pa.record_batch({"k": column}), ["k"], 7)]
        assert np.std(sizes) < 80, sizes  # 37 of a binomial distribution


@pytest.mark.parametrize("kind", [pa.float64(), pa.decimal128(10, 2), pa.list_(pa.int64())], ids=str)
def test_types_whose_equal_values_have_several_forms_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(el.InvalidInput, match="cast it"):
        refuse_unhashable(pa.schema([("k", kind)]), ["k"])
    with pytest.raises(el.InvalidInput, match="the columns are k"):
        refuse_unhashable(pa.schema([("k", kind)]), ["other"])
