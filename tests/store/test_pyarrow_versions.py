"""Run files of each version of pyarrow are read by all others: an older one returns fewer types from Parquet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.store.commit import type_trial
from epochlog.store.env.lru_cache import LRUCache
from epochlog.store.sst import sorted_run
from epochlog.store.types import column_types
from epochlog.store.types.column_types import parquet_type

ABILITIES = {
    21: {"SMALL_DECIMALS_IN_PARQUET": False, "FIXED_SIZES_FROM_PARQUET": False},
    22: {"SMALL_DECIMALS_IN_PARQUET": True, "FIXED_SIZES_FROM_PARQUET": False},
    26: {"SMALL_DECIMALS_IN_PARQUET": True, "FIXED_SIZES_FROM_PARQUET": True},
}
"""What a version of pyarrow and those after it have."""
VERSIONS = [version for version in ABILITIES if version <= int(pa.__version__.partition(".")[0])]
"""Versions that this one can stand for."""
VECTOR = pa.list_(pa.int8(), 2)
SMALL = pa.decimal64(9, 2)
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "id": (SMALL, [Decimal("-1.50"), Decimal("0.00"), Decimal("2.25")]),
    "price": (pa.decimal32(5, 2), [Decimal("1.10"), None, Decimal("-2.20")]),
    "prices": (pa.list_(SMALL), [[Decimal("1.10"), None], None, []]),
    "vector": (VECTOR, [[1, None], None, [3, 4]]),
    "required": (pa.list_(pa.field("item", pa.float32(), nullable=False), 2), [[1.0, 2.0], None, [3.0, 4.0]]),
    "inside": (pa.struct([("v", VECTOR), ("n", pa.int8())]), [{"v": [1, 2], "n": 1}, None, {"v": None, "n": None}]),
    "vectors": (pa.list_(VECTOR), [[[1, 2], None], None, []]),
    "entries": (pa.map_(pa.string(), VECTOR), [[("x", [1, 2]), ("y", None)], None, []]),
    "half": (pa.float16(), [0.5, None, 1.5]),
    "zoned": (pa.timestamp("us", "Asia/Tokyo"), [5, None, 7]),
    "large": (pa.large_string(), ["x", None, ""]),
    "span": (pa.duration("ms"), [5, None, 7]),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
ROWS = pa.table([pa.array(values, kind) for kind, values in COLUMNS.values()], schema=SCHEMA)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os") as opened:
        yield opened


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A function after which the process is as one with that version of pyarrow."""

    def another(version: int) -> None:
        for name, able in ABILITIES[version].items():
            monkeypatch.setattr(column_types, name, able)
        monkeypatch.setattr(sorted_run, "_footers", LRUCache(1 << 20, lambda _: 1))
        monkeypatch.setattr(type_trial, "_returned", set())

    return another


def test_the_abilities_of_this_version_are_those_of_its_number() -> None:
    assert all(getattr(column_types, name) is able for name, able in ABILITIES[VERSIONS[-1]].items())


@pytest.mark.parametrize("writer, reader", [*product(VERSIONS, VERSIONS)])
def test_each_version_reads_the_run_files_of_each(
    store: el.Store, become: Callable[[int], None], writer: int, reader: int
) -> None:
    become(writer)
    table = store.create_table("t", SCHEMA, ["id"])
    table.upsert(ROWS)
    store.compact(full=True)
    become(reader)
    check(store, ROWS)
    assert table.to_arrow(filter=pc.field("id") > pa.scalar(Decimal("0.00"), SMALL)).num_rows == 1
    table.update(ROWS.slice(0, 1).set_column(3, SCHEMA.field("vector"), pa.array([None], VECTOR)))
    store.compact(full=True)
    become(writer)
    check(store, ROWS.set_column(3, SCHEMA.field("vector"), pa.array([None, None, [3, 4]], VECTOR)))


def check(store: el.Store, wanted: pa.Table) -> None:
    assert store.table("t").to_arrow().to_pylist() == wanted.to_pylist()
    assert store.table("t").schema.types == SCHEMA.types
    assert store.verify().ok


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_version_keeps_what_parquet_does_not_return_in_another_type(
    become: Callable[[int], None], version: int
) -> None:
    become(version)
    vectors = {name: parquet_type(COLUMNS[name][0]) != COLUMNS[name][0] for name in COLUMNS}
    decimals = {"id", "price", "prices"} if version < 22 else set()
    lists = {"vector", "required", "inside", "vectors", "entries"} if version < 26 else set()
    assert {name for name, another in vectors.items() if another} == decimals | lists
    assert parquet_type(SMALL) == (pa.decimal128(9, 2) if decimals else SMALL)


@pytest.mark.planted
def test_run_files_in_the_types_of_a_newer_version_are_found(
    store: el.Store, become: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    become(21)
    monkeypatch.setattr(column_types, "FIXED_SIZES_FROM_PARQUET", True)
    with pytest.raises(AssertionError):
        test_an_older_version_keeps_what_parquet_does_not_return_in_another_type(lambda _: None, 21)
