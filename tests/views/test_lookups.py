"""Lookups of a refresh: rows of large tables are read by the values of changed rows, and no row is missed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochlog.checkpoint.job.local_context import LocalRefreshContext
from epochlog.views.reads import Reads
from epochlog.views.table_reads import looked_up
from raw_check import raw_check
from view_lookups import ROWS, VIEWS, LargeShop


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[LargeShop]:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    made = LargeShop(tmp_path / "lake", seed)
    for name, (sql, key) in VIEWS.items():
        made.store.create_view(name, sql, key)
    yield made
    made.store.close()


@pytest.mark.medium
def test_views_of_large_tables_equal_their_queries(shop: LargeShop) -> None:
    shop.play(12, lambda view: view.step())


@pytest.mark.medium
def test_a_refresh_reads_rows_by_the_values_of_changes(shop: LargeShop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.play(1, lambda view: view.step())
    shop.put("orders", [7])  # it may have been deleted
    shop.step_all(lambda view: view.step())
    read: list[int] = []
    rows_at = Reads.at

    def counted(self: Reads[pa.Table], *arguments: Any) -> pa.Table:
        rows = rows_at(self, *arguments)
        read.append(rows.num_rows)
        return rows

    monkeypatch.setattr(Reads, "at", counted)
    shop.move("orders")
    shop.store.checkpoint()
    shop.store.view("of_orders").step()
    assert read and max(read) < ROWS // 8


@pytest.mark.medium
def test_a_refresh_looks_up_its_own_rows_only_where_a_key_is_gone(
    shop: LargeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.play(1, lambda view: view.step())
    read: list[int] = []
    rows_of = LocalRefreshContext.output

    def counted(self: LocalRefreshContext, *args: Any, **options: Any) -> pa.Table:
        rows = rows_of(self, *args, **options)
        read.append(rows.num_rows)
        return rows

    monkeypatch.setattr(LocalRefreshContext, "output", counted)
    view = shop.store.view("of_orders")
    shop.put("orders", [1, 2])
    shop.store.checkpoint()
    assert view.step() and read == []
    shop.store.table("orders").delete(pa.table({"id": [1]}))
    shop.store.checkpoint()
    assert view.step() and read == [1] and raw_check(view).ok


@pytest.mark.parametrize("values, kind, expected", [
    ([1, 1, None], pa.int32(), [1, None]),
    ([1, 2**40, -(2**32) + 1], pa.int32(), [1]),  # no integer of 32 bits equals the others
    ([1], pa.uint64(), None),
    ([7], pa.string(), None),  # Spark compares the text 007 with 7 as numbers
])  # fmt: skip
def test_values_are_looked_up_as_stored_values(
    values: list[Any], kind: pa.DataType, expected: list[Any] | None
) -> None:
    schema = pa.schema([pa.field("id", kind, nullable=False)])
    rows = looked_up(pa.table({"id": pa.array(values, pa.int64())}), schema)
    assert (None if rows is None else sorted(rows["id"].to_pylist(), key=str)) == expected
