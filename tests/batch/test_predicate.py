"""The text of `filter`: the meaning SQL gives it, literals in the type of the column, errors that name the place."""

from __future__ import annotations

import datetime as dt
import pickle

import duckdb
import pyarrow as pa
import pytest

import epochlog as el
from epochlog.batch.predicate import parse_predicate

pytestmark = pytest.mark.local_only

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3, None]),
        "x": pa.array([1.5, None, -2.0, 4.0]),
        "s": pa.array(["a", "b'c", None, "abc"]),
        "ts": pa.array([dt.datetime(2024, 1, day) for day in range(1, 5)], pa.timestamp("us")),
        "d": pa.array([dt.date(2024, 1, day) for day in range(1, 5)]),
        "b": pa.array([True, False, None, True]),
        "n": pa.array([0, 1, 2, 3]),
    }
)


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
    ],
)
def test_means_what_sql_means(text: str) -> None:
    wanted = duckdb.connect().register("rows", ROWS).execute(f"SELECT n FROM rows WHERE {text} ORDER BY n").fetchall()
    found = ROWS.filter(parse_predicate(text, ROWS.schema))["n"].to_pylist()
    assert found == [n for (n,) in wanted]


@pytest.mark.parametrize(
    ("text", "told"),
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
    ],
)
def test_what_means_nothing_is_refused(text: str, told: str) -> None:
    with pytest.raises(el.InvalidInput, match=told):
        parse_predicate(text, ROWS.schema)


def test_backquotes_name_any_column() -> None:
    odd = pa.table({"and": [1, 2], "a`b": [1, 2]})
    assert odd.filter(parse_predicate("`and` = 2 AND `a``b` = 2", odd.schema)).num_rows == 1


def test_expressions_travel_to_tasks() -> None:
    made = parse_predicate("id IN (1, 2) AND s LIKE 'a%'", ROWS.schema)
    assert ROWS.filter(pickle.loads(pickle.dumps(made)))["n"].to_pylist() == [0]
