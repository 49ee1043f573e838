"""Widenings: every value of the narrower type is read in the wider type, from every kind of file and in every feed."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from altered_table import WIDER, widened_value
from epochlog.store.catalog.keys import table_key
from epochlog.store.types import schema as schemas
from epochlog.store.types.widening import is_old_widening, widened_type

DAY = dt.date(2024, 2, 29)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path, durability="os") as store:
        yield store


def keyed(store: el.Store, *kinds: pa.DataType, name: str = "t") -> el.Table:
    columns = [(f"c{place}", kind) for place, kind in enumerate(kinds)]
    return store.create_table(name, pa.schema([("id", pa.int64()), *columns]), ["id"])


@pytest.mark.rule("7.13")
def test_the_widenings_that_lakes_have(store: el.Store) -> None:
    struct = pa.struct([("a", pa.int32())])
    table = keyed(store, pa.int32(), pa.int64(), pa.decimal128(5, 2), pa.date32(), struct)
    row = {"id": 1, "c0": 5, "c1": 2**63 - 1, "c2": Decimal("1.25"), "c3": DAY, "c4": {"a": 7}}
    first = table.upsert([row])
    store.compact("t", full=True)
    table.upsert([{**row, "id": 2}])
    more = pa.struct([("a", pa.int32()), ("b", pa.string())])
    table.alter(widen={"c0": pa.float64(), "c1": pa.decimal128(21, 2), "c2": pa.decimal128(9, 5),
                       "c3": pa.timestamp("us"), "c4": more})  # fmt: skip
    wide = {"c0": 5.0, "c1": Decimal(f"{2**63 - 1}.00"), "c2": Decimal("1.25000"), "c3": dt.datetime(2024, 2, 29),
            "c4": {"a": 7, "b": None}}  # fmt: skip
    table.upsert([{"id": 3, **wide, "c0": 0.5, "c4": {"a": None, "b": "x"}}])
    for _ in ("in files of both", "in one file"):
        assert table.to_arrow().to_pylist()[:2] == [{"id": key, **wide} for key in (1, 2)]
        assert table.to_arrow().to_pylist()[2]["c4"] == {"a": None, "b": "x"}
        assert table.to_arrow(filter=pc.field("c3") == pa.scalar(dt.datetime(2024, 2, 29)))["id"].to_pylist() == [
            1,
            2,
            3,
        ]
        assert table.get(1, epoch=first).to_pylist() == [row]
        store.compact("t", full=True)
    assert table.schema.field("c4").type == more


VALUES: dict[Any, list[Any]] = {
    pa.types.is_integer: [0, 1, -1],
    pa.types.is_floating: [0.0, -0.5, float("inf")],
    pa.types.is_decimal: [Decimal(0)],
    pa.types.is_date: [DAY, dt.date.min, dt.date.max],
}


def extremes(kind: Any) -> list[Any]:
    if pa.types.is_integer(kind):
        low = 0 if pa.types.is_unsigned_integer(kind) else -(2 ** (kind.bit_width - 1))
        return [low, low + 2**kind.bit_width - 1, 0]
    if pa.types.is_decimal(kind):
        return [Decimal((sign, (9,) * kind.precision, -kind.scale)) for sign in (0, 1)]
    return [0.0, -0.5, float("inf"), 3.4e38] if pa.types.is_floating(kind) else [DAY, dt.date.min, dt.date.max]


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
DECIMALS = [pa.decimal128(3, 0), pa.decimal128(5, 2), pa.decimal128(22, 3), pa.decimal128(38, 0), pa.decimal256(60, 20)]
TIMES = [pa.date32(), pa.date64(), *(pa.timestamp(unit) for unit in ("s", "ms", "us")), pa.timestamp("us", "UTC")]
FLAT = [*INTEGERS, pa.float16(), pa.float32(), pa.float64(), *DECIMALS, *TIMES, pa.string(), pa.bool_()]
PAIRS = [pair for pair in itertools.permutations(FLAT, 2) if widened_type(*pair) is not None]


@pytest.mark.rule("7.13")
def test_every_widening_keeps_every_value(store: el.Store) -> None:
    """All pairs of flat types; of the other pairs each has a value that the wider type lacks, or none in common."""
    assert len(PAIRS) == 70
    rows = pa.table({"id": range(4)})  # the last row has nulls
    for place, (kind, _) in enumerate(PAIRS):
        values = [*extremes(kind)[:3], None]
        rows = rows.append_column(f"c{place}", pa.array((values + [None] * 4)[:4], kind))
    table = keyed(store, *(kind for kind, _ in PAIRS))
    first = table.upsert(rows)
    store.compact("t", full=True)
    table.upsert(rows.slice(1, 1))
    table.alter(widen={f"c{place}": wider for place, (_, wider) in enumerate(PAIRS)})
    for _ in ("in a run and a segment", "in a run"):
        wide, narrow = table.to_arrow(), table.to_arrow(epoch=first)
        assert narrow.select(rows.column_names) == rows.cast(narrow.schema)
        for place, (kind, wider) in enumerate(PAIRS):
            assert wide[f"c{place}"].type == wider
            expected = [widened_value(value, wider) for value in rows[f"c{place}"].to_pylist()]
            assert wide[f"c{place}"].to_pylist() == expected, (kind, wider)
        table.upsert(wide.slice(0, 1))
        store.compact("t", full=True)


def test_what_is_no_widening() -> None:
    struct = pa.struct([("a", pa.int8()), ("b", pa.int8())])
    for kind, wider in [
        (pa.int64(), pa.float64()), (pa.int32(), pa.float32()), (pa.int8(), pa.float16()),
        (pa.int64(), pa.decimal128(18, 0)), (pa.uint64(), pa.decimal128(19, 0)), (pa.int8(), pa.decimal128(4, 2)),
        (pa.float32(), pa.decimal128(38, 2)), (pa.decimal128(5, 2), pa.decimal128(6, 4)), (pa.bool_(), pa.int8()),
        (pa.decimal128(5, 2), pa.float64()), (pa.decimal128(3, 0), pa.int64()), (pa.string(), pa.large_string()),
        (pa.date32(), pa.timestamp("us", "UTC")), (pa.timestamp("us"), pa.date32()),
        (pa.timestamp("ms"), pa.timestamp("us")), (pa.list_(pa.date32()), pa.list_(pa.timestamp("us"))),
        (struct, pa.struct([("a", pa.int8())])), (struct, pa.struct([("b", pa.int8()), ("a", pa.int8())])),
        (struct, pa.struct([*struct, pa.field("c", pa.int8(), nullable=False)])),
        (struct, pa.struct([("a", pa.int8()), ("x", pa.int8())])), (struct, pa.struct([*struct, ("a", pa.int8())])),
        (pa.list_(pa.int8()), pa.list_(pa.int8(), 2)), (pa.list_(pa.int8()), pa.large_list(pa.int8())),
        (pa.map_(pa.int8(), pa.int8()), pa.map_(pa.int16(), pa.int8())),
    ]:  # fmt: skip
        assert widened_type(kind, wider) is None, (kind, wider)


@pytest.mark.rule("7.13")
def test_fields_are_added_at_any_depth(store: el.Store) -> None:
    inner = pa.struct([("x", pa.int8())])
    kind = pa.struct([("a", pa.list_(inner)), ("m", pa.map_(pa.string(), inner))])
    wider_inner = pa.struct([("y", pa.list_(pa.string())), ("x", pa.int32())])
    wider = pa.struct([("new", pa.int8()), ("a", pa.list_(wider_inner)), ("m", pa.map_(pa.string(), wider_inner))])
    table = keyed(store, kind)
    values = [{"a": [{"x": 1}, None], "m": [("k", {"x": None})]}, None, {"a": None, "m": []}]
    first = table.upsert([{"id": place, "c0": value} for place, value in enumerate(values)])
    table.alter(widen={"c0": wider})
    wide = {"new": None, "a": [{"y": None, "x": 1}, None], "m": [("k", {"y": None, "x": None})]}
    for _ in ("in segments", "in a run"):
        assert table.to_arrow()["c0"].to_pylist() == [wide, None, {"new": None, "a": None, "m": []}]
        assert table.to_arrow(epoch=first)["c0"].to_pylist() == values
        store.compact("t", full=True)
    table.update([{"id": 0, "c0": {"new": 5, "a": [], "m": []}}])
    assert table.get(0)["c0"].to_pylist() == [{"new": 5, "a": [], "m": []}]
    before = table.history().num_rows
    table.alter(widen={"c0": wider})  # again
    assert table.history().num_rows == before


@pytest.mark.rule("7.14")
def test_dates_that_no_timestamp_of_the_unit_holds(store: el.Store) -> None:
    far = pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32())
    for unit in ("us", "ns"):
        table = keyed(store, pa.date32(), name=unit)
        table.upsert(pa.table({"id": [7, 8], "c0": far}))
        with pytest.raises(
            el.InvalidInput, match=rf"column 'c0': the date of the row with the key 7 .*timestamp\[{unit}\]"
        ):
            table.alter(widen={"c0": pa.timestamp(unit)})
        late = table.writer()
        late.upsert(pa.table({"id": [9], "c0": far[:1]}))
        table.delete([7])
        table.alter(widen={"c0": pa.timestamp(unit)})
        assert table.to_arrow()["c0"].to_pylist() == [dt.datetime(1970, 1, 1)]
        with pytest.raises(el.SchemaChanged, match="column 'c0' was widened to a timestamp"):
            store.commit({unit: late.seal(store.last_epoch + 1)})
    table = keyed(store, pa.date32(), name="ms")
    table.upsert(pa.table({"id": [7, 8], "c0": far}))
    table.alter(widen={"c0": pa.timestamp("ms")})
    assert table.to_arrow()["c0"].cast(pa.date32()).combine_chunks().equals(far)


def test_a_commit_that_lands_during_the_test_of_dates_is_tested(
    store: el.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = keyed(store, pa.date32())
    table.upsert([{"id": 1, "c0": DAY}])
    from epochlog.store.commit import table_ddl

    real, tests = table_ddl.require_dates_fit, []

    def test(*given: Any) -> int | None:
        tested = real(*given)
        if not tests:
            table.upsert(pa.table({"id": [2], "c0": pa.array([2**31 - 1], pa.int32()).cast(pa.date32())}))
        tests.append(tested)
        return tested

    monkeypatch.setattr(table_ddl, "require_dates_fit", test)
    with pytest.raises(el.InvalidInput, match="key 2"):
        table.alter(widen={"c0": pa.timestamp("us")})
    assert len(tests) == 1


@pytest.mark.rule("7.16")
@pytest.mark.parametrize("change", [
    {"widen": {"c0": pa.float64()}}, {"widen": {"c0": pa.decimal128(12, 2)}}, {"widen": {"c1": pa.decimal128(9, 5)}},
    {"widen": {"c2": pa.timestamp("ms")}}, {"widen": {"c3": pa.struct([("a", pa.int8()), ("b", pa.int8())])}},
    {"widen": {"c3": pa.struct([("a", pa.int16())])}}, {"add": [pa.field("d", pa.int8())], "defaults": {"d": 1}},
], ids=str)  # fmt: skip
def test_an_older_release_refuses_the_table(store: el.Store, monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    kinds = pa.int32(), pa.decimal128(5, 2), pa.date32(), pa.struct([("a", pa.int8())])
    table, plain = keyed(store, *kinds), keyed(store, *kinds, name="plain")
    table.alter(**change)
    plain.alter(widen={"c0": pa.int64(), "c1": pa.decimal128(9, 2)})  # as version 0.2 does it
    old = store.clone("t", "old", as_of=store.table("t").info.log_start_epoch or None)
    records = [
        store._handle.catalog.read(lambda view, t=t: view.get(table_key(t._table.id))) for t in (table, old, plain)
    ]
    monkeypatch.setattr(schemas, "_FORMAT", 2)
    for record in records[:2]:
        with pytest.raises(el.UnsupportedFormat, match="format 3, newer than 2"):
            schemas.TableSchema.from_bytes(record["schema"])
    assert schemas.TableSchema.from_bytes(records[2]["schema"]).version


def test_the_random_histories_have_the_new_widenings() -> None:
    pairs = [(kind, wider) for kind, all_ in WIDER.items() for wider in all_]
    assert all(widened_type(kind, wider) is not None for kind, wider in pairs)
    assert sum(not is_old_widening(kind, wider) for kind, wider in pairs) >= 10
