"""Groups are told apart by value, in every type that a table may be grouped by; filters made of them lose no row."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.checkpoint.job.local_context import read_groups
from epochlog.checkpoint.job.row_groups import belonging, distinct, pruning
from epochlog.store.types.read_options import ReadOptions

pytestmark = pytest.mark.local_only

MIDNIGHT, DAY = dt.datetime(2020, 1, 1), dt.date(2020, 1, 1)
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [1, 2, -(2**63)]),
    (pa.uint64(), [2**64 - 1, 0]),
    (pa.string(), ["", "a", "b"]),
    (pa.large_string(), ["", "x"]),
    (pa.bool_(), [True, False]),
    (pa.float64(), [0.0, -0.0, float("nan"), 1.5]),
    (pa.float32(), [0.0, -0.0, float("nan")]),
    (pa.float16(), [0.0, 1.5]),
    (pa.date32(), [DAY, dt.date(2021, 1, 1)]),
    (pa.date64(), [DAY]),
    (pa.timestamp("us"), [MIDNIGHT]),
    (pa.timestamp("ms", "UTC"), [MIDNIGHT]),
    (pa.time32("s"), [dt.time(1)]),
    (pa.duration("s"), [dt.timedelta(1)]),
    (pa.decimal32(5, 1), [Decimal("1.0"), Decimal("2.5")]),
    (pa.decimal64(12, 1), [Decimal("1.0"), Decimal("2.5")]),
    (pa.decimal128(10, 2), [Decimal("1.00"), Decimal("-2.00")]),
    (pa.decimal256(50, 2), [Decimal("1.00")]),
    (pa.binary(2), [b"ab", b"cd"]),
    (pa.binary(), [b"", b"x"]),
]


def known(value: Any) -> Any:
    """The value as Python compares it: one NaN, one zero."""
    return ("nan" if value != value else value + 0.0) if isinstance(value, float) else value


def table(chance: random.Random, rows: int, *columns: tuple[pa.DataType, list[Any]]) -> pa.Table:
    return pa.table(
        {
            f"c{place}": pa.array([chance.choice([*values, None]) for _ in range(rows)], kind)
            for place, (kind, values) in enumerate(columns)
        }
    )


@pytest.mark.rule("5.13")
@pytest.mark.parametrize("column", VALUES, ids=lambda column: str(column[0]))
@pytest.mark.parametrize("count", [0, 1, 4])
def test_rows_belong_to_groups_of_their_values(column: tuple[pa.DataType, list[Any]], count: int) -> None:
    chance = random.Random(count)
    for others in ([], [VALUES[0]], [VALUES[2], VALUES[5]]):
        rows, changed_rows = table(chance, 30, column, *others), table(chance, count, column, *others)
        groups = distinct(changed_rows, changed_rows.column_names)
        wanted = {tuple(map(known, row.values())) for row in changed_rows.to_pylist()}
        mask = belonging(rows, groups)
        assert [tuple(map(known, row.values())) in wanted for row in rows.to_pylist()] == mask.tolist()
        passing = pruning(groups)
        if passing is not None:
            passed_rows = rows.filter(passing)
            assert belonging(passed_rows, groups).sum() == mask.sum()
            assert others or passed_rows.num_rows == mask.sum()  # of one column it says it all


def test_many_columns_of_many_values_do_not_overflow() -> None:
    count = 3000
    columns = {f"c{place}": pa.array(range(count), pa.int64()) for place in range(8)}
    groups = pa.table(columns)
    assert belonging(groups, groups).all()
    assert not belonging(groups.set_column(7, "c7", pa.array(range(1, count + 1))), groups).any()


@pytest.mark.parametrize("key", [["a"], ["s"], ["a", "s"], ["s", "a", "b"]])
def test_rows_of_groups_are_found_by_any_columns(tmp_path: Path, key: list[str]) -> None:
    """Groups of a key of one column and of other columns were looked up as ranges of keys: none was found of a text,
    and an integer raised TypeError.
    """
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    schema = pa.schema([("a", pa.int32()), ("s", pa.string()), ("b", pa.int64()), ("v", pa.int64())])
    rows = [{"a": n % 40, "s": f"s{n % 50}", "b": n % 3, "v": n % 5} for n in range(200)]
    each_once = list({tuple(row[name] for name in key): row for row in rows}.values())
    with el.open(tmp_path, durability="os") as store:
        table = store.create_table("t", schema, key)
        for part in range(3):
            table.upsert(each_once[part::3])
        with store.snapshot(["t"]) as moment:
            there, plan = table.to_arrow(), moment["t"].plan
            for _ in range(60):
                names = chance.sample(schema.names, chance.randrange(1, 5))
                some = chance.sample(range(there.num_rows), chance.randrange(1, 6))
                groups = distinct(there.take(some).select(names), names)
                wanted = there.filter(pa.array(belonging(there, groups)))
                assert read_groups(store._handle.files, plan, ReadOptions(), groups).equals(wanted), names
