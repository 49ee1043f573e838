"""The text of `filter`: the meaning SQL gives it, literals in the type of the column, errors that name the place."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.types.predicate import parse_predicate

pytestmark = pytest.mark.local_only

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, None]),
        "x": pa.array([1.5, None, -2.0, 4.0]),
        "s": pa.array(["a", "b'c", None, "abc"]),
        "ts": pa.array([dt.datetime(2024, 1, day) for day in range(1, 5)], pa.timestamp("us")),
        "d": pa.array([dt.date(2024, 1, day) for day in range(1, 5)]),
        "b": pa.array([True, False, None, True]),
        "f": pa.array([0.0, -0.0, float("nan"), None]),
        "i": pa.array([-(2**31), 0, None, 2**31 - 1], pa.int32()),
        "u": pa.array([0, 1, 2**64 - 1, None], pa.uint64()),
        "big": pa.array([2**53, 2**53 + 1, -(2**53) - 1, None]),
        "m": pa.array([Decimal("0.00"), Decimal("0.01"), Decimal("-9999999999.99"), None], pa.decimal128(12, 2)),
        "sec": pa.array([dt.datetime(2024, 1, 1, 0, 0, second) for second in range(3)] + [None], pa.timestamp("s")),
        "ns": pa.array([0, 1, -1, None], pa.timestamp("ns")),
        "ms": pa.array([0, 1, -1, None], pa.timestamp("ms")),
        "n": pa.array([0, 1, 2, 3]),
    }
)


SIGNS = ("=", "<>", "<", "<=", ">", ">=")


@pytest.mark.parametrize(
    "text",
    [
        "id > 1",
        "id >= 1.5",
        "2 < id",
        "id <> 2 AND NOT (x > 1)",
        "id IN (1, 3)",
        "NOT id IN (1, 3)",
        "id NOT IN (1)",
        "s = 'b''c'",
        "s LIKE 'a%'",
        "s NOT LIKE 'a%' OR id IS NULL",
        "d >= DATE '2024-01-03'",
        "ts < TIMESTAMP '2024-01-02 12:00:00' OR b",
        "b AND id = 1 OR x IS NOT NULL AND NOT b",
        '"id" BETWEEN 2 AND 3',
        "id NOT BETWEEN 2 AND 3",
        "n = id",
        "id = -1",
        "x = -2",
        "b = TRUE",
        *(f"f {sign} {zero}" for sign in ("=", "<>", "<") for zero in ("0", "-0.0")),
        "f IN (0.0)",
        "f IN (-0.0, 7)",
        "f NOT IN (0)",
        *(f"i {sign} {edge}" for sign in SIGNS for edge in (99999999999, -99999999999, 2147483648, 0.5, -0.5)),
        "i BETWEEN -1 AND 3000000000",
        "i IN (0, 0.5, 3000000000)",
        "i NOT IN (0.5, 3000000000)",
        *(f"u {sign} {edge}" for sign in SIGNS for edge in (-1, 18446744073709551616, 18446744073709551615)),
        *(f"big {sign} {edge}" for sign in SIGNS for edge in ("9007199254740992.5", "-9007199254740992.5")),
        *(f"m {sign} {edge}" for sign in SIGNS for edge in ("0.005", "-0.005", "99999999999999", "0.010")),
        "m BETWEEN 0.001 AND 1.999",
        *(f"sec {sign} TIMESTAMP '2024-01-01 00:00:00.5'" for sign in SIGNS),
        *(f"ns {sign} TIMESTAMP_NS '1970-01-01 00:00:00.000000001'" for sign in SIGNS),
        *(f"ms {sign} TIMESTAMP '1970-01-01 00:00:00.000500'" for sign in SIGNS),
        *(f"d {sign} TIMESTAMP '2024-01-02 03:00:00'" for sign in SIGNS),
    ],
)
@pytest.mark.medium
def test_means_what_sql_means(text: str) -> None:
    wanted = duckdb.connect().register("rows", ROWS).execute(f"SELECT n FROM rows WHERE {text} ORDER BY n").fetchall()
    numbers = ROWS.filter(parse_predicate(text.replace("_NS", ""), ROWS.schema))["n"].to_pylist()
    assert numbers == [n for (n,) in wanted]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id >", "a literal near position 4"),
        ("foo = 1", "there is no column 'foo'"),
        ("id = 'a'", "column 'id' of type int64"),
        ("d = 5", "column 'd' of type date32"),
        ("id 1", "a comparison of column 'id'"),
        ("(id = 1", r"expected \)"),
        ("id = 1; DROP TABLE t", "near position"),
        ("id = 1 id = 2", "AND, OR or the end"),
        ("s LIKE", "a literal"),
        ("'a'", "a comparison"),
        ("", "a column"),
        ("id IN ()", "a literal"),
        ("(" * 20_000 + "id = 1" + ")" * 20_000, "more than 100 parentheses"),
        ("NOT " * 20_000 + "id = 1", "more than 100 parentheses or NOTs"),
        (" OR ".join(["id = 1"] * 2_001), "more than 2000 comparisons"),
        ("id < 1e999999999", "more than 400 digits"),
        ("ts = zoned", "does not fit the columns it names"),
        ("id LIKE 'a'", "does not fit the columns it names"),
        ("ts > '2024-01-01T00:00:00.1234567891'", "column 'ts' of type"),
    ],
)
def test_what_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(el.InvalidInput, match=message):
        parse_predicate(text, ROWS.schema.append(pa.field("zoned", pa.timestamp("us", "UTC"))))


def test_backquotes_name_any_column() -> None:
    odd = pa.table({"and": [1, 2], "a`b": [1, 2]})
    assert odd.filter(parse_predicate("`and` = 2 AND `a``b` = 2", odd.schema)).num_rows == 1


def test_expressions_travel_to_tasks() -> None:
    made = parse_predicate("id IN (1, 2) AND s LIKE 'a%'", ROWS.schema)
    assert ROWS.filter(pickle.loads(pickle.dumps(made)))["n"].to_pylist() == [0]


def test_not_a_number_equals_nothing_and_is_named_by_no_list() -> None:
    for text in ("f = 'NaN'", "f IN ('NaN')", "f IN ('NaN', 5)"):
        assert ROWS.filter(parse_predicate(text, ROWS.schema)).num_rows == 0


def test_a_column_of_a_dictionary_means_its_values() -> None:
    rows = pa.table({"w": pa.array(["x", "y", None]).dictionary_encode(), "n": [0, 1, 2]})
    for text, wanted in {"w = 'x'": [0], "w IN ('x', 'z')": [0], "w NOT IN ('x')": [1], "w > 'x'": [1]}.items():
        assert rows.filter(parse_predicate(text, rows.schema))["n"].to_pylist() == wanted
