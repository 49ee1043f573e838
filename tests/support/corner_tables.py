"""Small tables over which texts of views are compared: NULLs, ties, and the corner values of each type."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import random
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

import pyarrow as pa

from epochlog.store.types.schema import TableSchema
from view_queries import TABLES
from view_types import ARROW, random_value

UTC = dt.UTC
Tables = Mapping[str, pa.Table]


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("i", pa.int32()),
        pa.field("n", pa.int64()),
        pa.field("f", pa.float64()),
        pa.field("d", pa.decimal128(10, 2)),
        pa.field("s", pa.string()),
        pa.field("day", pa.date32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("b", pa.bool_()),
        pa.field("small", pa.int16()),
        pa.field("single", pa.float32()),
    ]
)
TIMES = [
    None,
    dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
    dt.datetime(2024, 2, 29, 13, 5, 7, 8, UTC),
    dt.datetime(1500, 3, 1, 0, 0, 0, 1, UTC),  # the Julian calendar had a 29th of February
]
ROWS = pa.Table.from_pylist(
    [
        {"id": number, "i": i, "n": n, "f": f, "d": d, "s": s, "day": day, "at": at, "b": b}
        | {"small": number * 7 if number else None, "single": number / 10 if number else None}
        for number, (i, n, f, d, s, day, at, b) in enumerate(
            [
                (None, None, None, None, None, None, TIMES[0], None),
                (0, 0, 0.0, Decimal("0.00"), "", dt.date(1970, 1, 1), TIMES[1], False),
                (-7, 2**53 + 1, -0.0, Decimal("-1.50"), "a", dt.date(1582, 10, 15), TIMES[2], True),
                (7, -(2**62), math.nan, Decimal("99999999.99"), "A_ä%\U0001f600", dt.date(2024, 2, 29), TIMES[2], True),
                (2**31 - 1, 3, math.inf, Decimal("0.01"), " a ", dt.date(9999, 12, 31), TIMES[1], False),
                (3, -3, -math.inf, Decimal("2.50"), "ab\\c", dt.date(2023, 1, 1), TIMES[2], None),
                (1, 1, 1e-300, Decimal("1.00"), "\n", dt.date(2000, 12, 31), TIMES[1], True),
                (-1, -5, -1.5, Decimal("-0.01"), "\u00a0\t x \u3000", dt.date(2, 1, 1), TIMES[3], False),
            ]
        )
    ],
    schema=SCHEMA,
)
INTEGERS: Mapping[str, Sequence[Sequence[int | None]]] = {
    "t": [
        *([0, 1, 1, 1], [1, 1, 2, 1], [2, 1, 2, 3], [3, None, 1, 2], [4, 2, None, None], [5, 2, 3, 0]),
        *([6, 0, 0, -1], [7, 3, 1, 3], [8, None, None, None], [9, 0, 3, 2]),
    ],
    "u": [
        *([0, 1, 2, 3], [1, 1, None, 1], [2, 2, 2, 2], [3, None, 3, 0], [4, 0, 1, None], [7, 3, 3, 3]),
        [8, 2, 0, 1],
    ],
    "r": [[0, 1], [1, 2], [2, None], [3, 3]],
    "e": [[0, 0, 1], [1, 2, 3], [1, 3, None], [2, 1, 2], [3, 1, 0]],
    "cfg": [[0, 1]],
}
NAMES = pa.schema([("id", pa.int32()), ("name", pa.string()), ("g", pa.int32()), ("v", pa.int32())])
NAMED = [
    *((1, "O'Brien", 1, 10), (2, "OBrien", 1, 20), (3, 'a"b', 2, 30), (4, "ab", 2, None), (5, "a\\b", 3, 5)),
    *((6, "a_b", 3, 5), (7, "axb", None, 7), (8, "", None, -7), (9, None, 4, 0), (10, "-- no comment", 4, 1)),
    *((11, "it's 'quoted'", 5, 2), (12, "A", 5, -128), (13, "tab\tend", 6, 3), (14, "100%", 6, 3)),
]


def _integers() -> dict[str, pa.Table]:
    tables = {name: _table(table_schema(name), rows) for name, rows in INTEGERS.items()}
    return {**tables, "p": _table(NAMES, NAMED)}


def table_schema(name: str, types: Mapping[str, str] | None = None) -> pa.Schema:
    """Return the columns of a table of `view_queries`; INT without other types."""
    columns, key = TABLES[name]
    kinds = {column: ARROW[types[column]] if types else pa.int32() for column in columns}
    return pa.schema([pa.field(column, kinds[column], column not in key) for column in columns])


def _table(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def _shop() -> dict[str, pa.Table]:
    import view_shop  # which compares its views with the answers over these tables

    orders = [
        *([1, 1, 1, 10], [2, 1, 1, 10], [3, 2, 2, 5], [4, None, 1, 99], [5, 2, 1, None], [6, 3, None, 7]),
        *([7, 9, 3, -5], [8, None, None, None]),
    ]
    customers = [[1, "eu"], [2, "us"], [3, None], [4, "eu"], [5, "none"]]
    regions = [["eu", 1, 10, 1], ["eu", 2, 10, 1], ["us", 1, None, 0], ["none", 1, 99, 0], ["us", 3, -5, 2]]
    by_region = pa.schema([("region", pa.string()), ("day", pa.int32()), ("cents", pa.int64()), ("known", pa.int64())])
    return {
        "orders": _table(view_shop.ORDERS, orders),
        "customers": _table(view_shop.CUSTOMERS, customers),
        "by_region": _table(by_region, regions),
    }


def _large_shop() -> dict[str, pa.Table]:
    import view_lookups

    customers = [[1, "7", 1], [2, "007", 1], [3, None, 2], [4, "8", None]]
    orders = [[1, 1, 7, 1], [2, 1, 7, 2], [3, 2**40, 7, 1], [4, None, 7, 1], [5, 3, 7, None], [6, 4, 7, 1]]
    return {"customers": _table(view_lookups.CUSTOMERS, customers), "orders": _table(view_lookups.ORDERS, orders)}


def _nexmark() -> dict[str, pa.Table]:
    import nexmark_data

    (rows,) = nexmark_data.Events(3).batches(0, 300, 300)
    return {name: rows[name].cast(nexmark_data.SCHEMAS[name]) for name in rows}


def typed(seed: int, types: Mapping[str, Mapping[str, str]]) -> dict[str, pa.Table]:
    """Return the tables of `view_queries` with columns of these types, and rows of random values and corners."""
    chance = random.Random(f"rows {seed}")
    tables = {}
    for name, kinds in types.items():
        key = TABLES[name][1]
        rows: dict[str, list[Any]] = {}
        for _ in range(1 if name == "cfg" else 9):
            row = [
                None
                if column not in key and chance.random() < 0.2
                else random_value(chance, kind, 10 if column == "id" else 4)
                for column, kind in kinds.items()
            ]
            rows[repr([value for column, value in zip(kinds, row, strict=True) if column in key])] = row
        tables[name] = _table(table_schema(name, kinds), list(rows.values()))
    return tables


KEYS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "integers": {**{name: key for name, (_, key) in TABLES.items()}, "p": ("id",)},
    "kinds": {"x": ("id",)},
    "pairs": {"x": ("id",)},
    "shop": {"orders": ("id",), "customers": ("id",), "by_region": ("region", "day")},
    "large shop": {"orders": ("id",), "customers": ("id",)},
    "nexmark": {"person": ("id",), "auction": ("id",), "bid": ("number",)},
}
"""Primary key of each table, by set of tables."""


@cache
def tables_of_set(name: str) -> Tables:
    """Return the tables of a set."""
    if name.startswith("world "):
        from view_worlds import tables_of_world

        return tables_of_world(int(name.split()[1]))
    if name == "pairs":
        import kind_pairs

        return {"x": kind_pairs.ROWS}
    makers = {"integers": _integers, "shop": _shop, "large shop": _large_shop, "nexmark": _nexmark}
    return {"x": ROWS} if name == "kinds" else makers[name]()


def schemas_of_set(name: str) -> dict[str, TableSchema]:
    """Return the tables of a set as epochlog describes them."""
    return {table: TableSchema(table, rows.schema, KEYS[name][table]) for table, rows in tables_of_set(name).items()}


def fingerprint(tables: Tables) -> str:
    """Return a digest of the rows and types of tables."""
    columns = [
        (name, field.name, str(field.type), [str(value) for value in rows.column(field.name).to_pylist()])
        for name, rows in sorted(tables.items())
        for field in rows.schema
    ]
    return hashlib.sha256(repr(columns).encode()).hexdigest()[:16]
