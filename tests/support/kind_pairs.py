"""Expressions of one or two values of each kind, all of them, and the texts in which Spark was asked for their values.

DuckDB and Spark bring values of different kinds to other common types, or one of them refuses them. A view takes an
expression only if both give it one value: `test_kind_pairs` compares those that a view takes with Spark's answers.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from epochlog.errors import InvalidInput
from epochlog.store.types.schema import TableSchema
from epochlog.views import duckdb_engine
from epochlog.views.derivation import NOW, derive
from plan_rows import rows_of

SCHEMA = pa.schema([
    *(pa.field("id", pa.int64(), nullable=False), ("sm", pa.int16()), ("i", pa.int32()), ("n", pa.int64())),
    *(("fl", pa.float32()), ("f", pa.float64()), ("d", pa.decimal128(10, 2)), ("wide", pa.decimal128(38, 0))),
    *(("s", pa.string()), ("bin", pa.binary()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC"))),
    *(("ntz", pa.timestamp("us")), ("b", pa.bool_()), ("st", pa.struct([("x", pa.int64())]))),
    *(("li", pa.list_(pa.int64())), ("mp", pa.map_(pa.string(), pa.int64()))),
])  # fmt: skip
INTEGERS = (None, 0, -3, 1, 2, 3, 1, None)
FLOATS = (None, 0.0, -1.5, 1.0, 0.1, 3.0, math.nan, math.inf)
DAYS = (
    *(None, dt.date(1970, 1, 1), dt.date(2024, 1, 1), dt.date(2024, 2, 29), dt.date(2023, 12, 31)),
    *(dt.date(1969, 12, 31), dt.date(2024, 1, 1), dt.date(2, 1, 1)),
)
TIMES = (
    None,
    *(dt.datetime(day.year, day.month, day.day, day.day % 24, day.day % 2, 7, 8) for day in DAYS[1:-2] if day),
    *(dt.datetime(2024, 1, 1), dt.datetime(2, 1, 1, 0, 5)),
)
VALUES: dict[str, Sequence[Any]] = {
    "id": range(8),
    **dict.fromkeys(("sm", "i", "n"), INTEGERS),
    **dict.fromkeys(("fl", "f"), FLOATS),
    "d": [None, *map(Decimal, ("0.00", "-1.50", "1.00", "0.10", "3.00", "1.00", "0.01"))],
    "wide": [None, *map(Decimal, (0, -3, 1, 2, 3, 1, 7))],
    "s": [None, "", "a", "2024-01-01", " A ", "a%", "\U0001f600", "1"],
    "bin": [None, b"", b"a", b"\x00", b"\xff", b"a%", b"a", b"1"],
    "day": DAYS,
    "at": [time and time.replace(tzinfo=dt.UTC) for time in TIMES],
    "ntz": TIMES,
    "b": [None, False, True, True, False, None, True, False],
    "st": [None, {"x": 0}, {"x": None}, {"x": 1}, {"x": 2}, {"x": 0}, {"x": -1}, {"x": 3}],
    "li": [None, [], [None], [1], [1, 2], [1, None], [], [0]],
    "mp": [None, [], [("a", None)], [("a", 1)], [("b", 1)], [("a", 1)], [("a", 1), ("b", 2)], []],
}
ROWS = pa.table([pa.array(VALUES[field.name], field.type) for field in SCHEMA], schema=SCHEMA)
TABLES = {"x": TableSchema("x", SCHEMA, ("id",))}
COLUMNS = tuple(SCHEMA.names[1:])
LITERALS = ("NULL", "1", "1.5", "'a'", "'2024-01-01'", "DATE '2024-01-01'", "TRUE", "CAST(1 AS FLOAT)")
ATOMS = (*COLUMNS, *LITERALS)
OPERATORS = ("=", "<=>", "<", "IS DISTINCT FROM", "+", "-", "*", "/", "%", "DIV", "||", "AND", "OR", "LIKE")
CALLS = (
    *("COALESCE", "NULLIF", "GREATEST", "LEAST", "CONCAT", "STARTSWITH", "CONTAINS", "DATEDIFF", "DATE_ADD"),
    *("TRY_DIVIDE", "LEFT", "SUBSTRING"),
)
PAIRS = (
    *(f"{{0}} {operator} {{1}}" for operator in OPERATORS),
    *(f"{name}({{0}}, {{1}})" for name in CALLS),
    "IF(id > 3, {0}, {1})",
    "CASE WHEN id > 3 THEN {0} WHEN id = 2 THEN NULL ELSE {1} END",
    "CASE {0} WHEN {1} THEN 1 ELSE 0 END",
    *("{0} NOT IN ({1}, NULL)", "{0} BETWEEN {1} AND {0}", "NOT {0} = {1}", "({0} = {1}) IS NULL"),
    *("LAG({0}, 1, {1}) OVER (ORDER BY id)", "LEAD({0}, {1}) OVER (ORDER BY id)"),
    "NTH_VALUE({0}, {1}) OVER (ORDER BY id)",
    "SUM({0}) FILTER (WHERE {1}) OVER (PARTITION BY id % 2)",
    *(f"{{0}} {operator} NULLIF({{1}}, 0)" for operator in ("/", "%", "DIV")),
)
TYPES = (
    *("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10, 2)", "DECIMAL(38, 0)", "STRING"),
    *("BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "BOOLEAN", "ARRAY<BIGINT>", "VARCHAR(1)"),
)
FUNCTIONS = (
    *("ABS", "LENGTH", "TRIM", "LTRIM", "YEAR", "QUARTER", "MONTH", "DAY", "DAYOFYEAR", "HOUR", "SECOND", "DATE"),
    *("TO_DATE", "COALESCE", "CONCAT", "ISNULL", "CHAR_LENGTH"),
)
AGGREGATES = ("COUNT", "SUM", "AVG", "MIN", "MAX", "COUNT_IF", "BOOL_AND", "BOOL_OR")
ONE = (
    *(f"{name}({{0}})" for name in FUNCTIONS),
    *("-{0}", "+{0}", "NOT {0}", "{0} = {0}", "{0} < {0}", "{0} || 'x'", "ABS({0}) / 2"),
    *(f"CAST({{0}} AS {kind})" for kind in TYPES),
    *(f"{{0}} IS {test}" for test in ("NULL", "NOT NULL", "TRUE", "NOT TRUE", "FALSE", "UNKNOWN")),
    *(f"DATE_TRUNC('{unit}', {{0}})" for unit in ("DAY", "SECOND", "QUARTER", "WEEK")),
    *(f"{{0}} {sign} INTERVAL 25 HOUR" for sign in "+-"),
    *("CASE WHEN {0} THEN 1 END", "CASE WHEN id > 2 THEN {0} END", "IF({0}, 1, 2)", "IF(id > 2, {0}, NULL)"),
    *(f"{name}({{0}}) OVER (PARTITION BY id % 2)" for name in AGGREGATES),
    *(f"{name}({{0}}) OVER (ORDER BY id)" for name in ("SUM", "FIRST_VALUE", "LAST_VALUE", "LAG", "NTILE")),
    *(f"SUM(i) OVER ({clause})" for clause in ("ORDER BY {0}", "PARTITION BY {0}", "ORDER BY {0} DESC NULLS LAST")),
    "SUM(i) OVER (ORDER BY {0} RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)",
    *(f"{name}() OVER (ORDER BY {{0}})" for name in ("RANK", "DENSE_RANK", "PERCENT_RANK", "CUME_DIST")),
    *("ROW_NUMBER() OVER (ORDER BY {0}, id)", "RANK() OVER (ORDER BY {0} DESC)", "COUNT(DISTINCT {0}) OVER ()"),
)
GROUPED = (
    *(f"{name}({{0}})" for name in AGGREGATES),
    *(f"{name}(DISTINCT {{0}})" for name in ("COUNT", "SUM", "AVG", "MAX", "COUNT_IF")),
    *("SUM(-{0})", "COUNT(*) FILTER (WHERE {0})", "SUM({0}) + 1", "CAST(SUM({0}) AS DECIMAL(38, 2))"),
    *("AVG({0}) / 2", "SUM({0}) / COUNT(*)", "MAX({0}) - MIN({0})"),
)
BLOCKS_OF_ONE = (
    *("SELECT COUNT(*) AS c FROM x WHERE {0}", "SELECT MAX(id) AS c FROM x GROUP BY {0}"),
    "SELECT MAX(id) AS c FROM x GROUP BY id % 2 HAVING MAX({0})",
    "SELECT COUNT(*) AS c FROM (SELECT DISTINCT {0} AS v FROM x) q",
)
BLOCKS = (
    "SELECT id AS c FROM x WHERE {0} IN (SELECT {1} FROM x)",
    "SELECT id AS c FROM x WHERE {0} NOT IN (SELECT {1} FROM x WHERE id > 0)",
    "SELECT id AS c FROM x WHERE {0} = (SELECT MAX({1}) FROM x)",
)
BLOCKS_OF_COLUMNS = (
    "SELECT l.id * 10 + r.id AS c FROM x l JOIN x r ON l.{0} = r.{1}",
    "SELECT l.id * 10 + r.id AS c FROM x l LEFT JOIN x r ON l.{0} <=> r.{1}",
    "SELECT l.id AS c FROM x l WHERE NOT EXISTS (SELECT 1 FROM x r WHERE l.{0} = r.{1})",
)
SETS = ("UNION ALL", "UNION", "EXCEPT", "INTERSECT")
BOUNDS = (
    *("UNBOUNDED PRECEDING", "2 PRECEDING", "-1 PRECEDING", "CURRENT ROW", "0 FOLLOWING", "1 FOLLOWING"),
    *("1.5 FOLLOWING", "NULL FOLLOWING", "i FOLLOWING", "UNBOUNDED FOLLOWING"),
)
FRAMES = tuple(
    f"{kind} {frame}"
    for kind in ("ROWS", "RANGE", "GROUPS")
    for frame in (*BOUNDS, *(f"BETWEEN {start} AND {end}" for start in BOUNDS for end in BOUNDS))
)
RANKING = ("ROW_NUMBER()", "RANK()", "PERCENT_RANK()", "CUME_DIST()", "NTILE(2)", "LAG(i)", "LEAD(i, 1, i)")
WINDOWS = ("SUM(i)", "MIN(day)", "COUNT(*)", "AVG(n)", "FIRST_VALUE(i)", "LAST_VALUE(i)", "NTH_VALUE(i, 2)")
ORDERS = ("", "ORDER BY id", "PARTITION BY b", "PARTITION BY b ORDER BY id DESC", "ORDER BY id, i", "ORDER BY day, id")


@dataclass(frozen=True)
class Case:
    """Expression in its place: a row, a group, a block, or one of SETS, whose expression is a pair."""

    place: str
    text: str
    pair: tuple[str, str] = ("", "")


def cases() -> Iterator[Case]:
    """Yield all expressions."""
    for form in PAIRS:
        yield from (Case("row", form.format(*pair)) for pair in itertools.product(ATOMS, ATOMS))
    for form in ONE:
        yield from (Case("row", form.format(atom)) for atom in ATOMS)
    yield from (Case("row", text) for text in _windows())
    for form in GROUPED:
        yield from (Case("group", form.format(atom)) for atom in ATOMS)
    for form in BLOCKS_OF_ONE:
        yield from (Case("block", form.format(atom)) for atom in ATOMS)
    for forms, atoms in ((BLOCKS, ATOMS), (BLOCKS_OF_COLUMNS, COLUMNS)):
        for form in forms:
            yield from (Case("block", form.format(*pair)) for pair in itertools.product(atoms, atoms))
    for operation in SETS:
        yield from (Case(operation, f"{a} {operation} {b}", (a, b)) for a, b in itertools.product(ATOMS, ATOMS))


def _windows() -> Iterator[str]:
    for function in (*RANKING, *WINDOWS):
        yield from (f"{function} OVER ({order})" for order in ORDERS)
    yield from RANKING
    for frame in FRAMES:
        yield from (f"{function} OVER (ORDER BY id {frame})" for function in (*WINDOWS, "RANK()", "LAG(i)"))
        yield from (f"SUM(i) OVER ({order} {frame})" for order in ("", "ORDER BY day", "ORDER BY id, i"))


def text_of(some: Sequence[Case]) -> str:
    """Return one query of expressions of one place. Comments name those that are in no line of their own."""
    place, named = some[0].place, [f"-- {case.text}" for case in some]
    if place in ("row", "group"):
        key, end = ("id", "") if place == "row" else ("id % 2", " GROUP BY id % 2")
        columns = ",\n".join(f"{case.text} AS c{number}" for number, case in enumerate(some))
        return f"SELECT {key} AS k,\n{columns}\nFROM x{end}"
    if place == "block":
        blocks = [f"SELECT {number} AS k, q{number}.c FROM ({case.text}) q{number}" for number, case in enumerate(some)]
        return "\n".join([*named, "\nUNION ALL ".join(blocks)])
    left = ", ".join(f"{case.pair[0]} AS c{number}" for number, case in enumerate(some))
    right = ", ".join(case.pair[1] for case in some)
    return "\n".join([*named, f"SELECT id AS k, {left} FROM x {place} SELECT id + 4, {right} FROM x"])


def expressions_of(text: str) -> list[str]:
    """Return the expressions of a query that `text_of` made."""
    named = re.findall(r"^-- (.*)$", text, re.MULTILINE)
    return named or re.findall(r"^(.*) AS c\d+,?$", text, re.MULTILINE)


class Product:
    """Views over the table, as create_view and a refresh see them."""

    def __init__(self) -> None:
        self._connected = duckdb_engine._connected()
        self._connection = self._connected.__enter__()
        self._connection.register(NOW + "x", ROWS)

    def verdict(self, case: Case) -> str:
        """Return "refused", "taken", or "failed" if a view takes the expression and its refresh fails."""
        try:
            plan = derive(text_of([case]), TABLES, ["k"])
            duckdb_engine.output_schema(plan, TABLES)
        except InvalidInput:
            return "refused"
        try:
            rows_of(self._connection, plan)
        except InvalidInput:
            return "failed"
        return "taken"


def asked_texts(verdicts: Iterable[tuple[Case, str]]) -> list[str]:
    """Return the texts in which Spark is asked: many taken expressions together, and each failed one alone."""
    by_place: dict[str, list[Case]] = {}
    texts = []
    for case, verdict in verdicts:
        if verdict == "failed":
            texts.append(text_of([case]))
        elif verdict == "taken":
            by_place.setdefault(case.place, []).append(case)
    for place, some in by_place.items():
        of_text = 8 if place == "block" else 40
        texts += [text_of(some[first : first + of_text]) for first in range(0, len(some), of_text)]
    return texts
