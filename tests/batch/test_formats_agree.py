"""Every door gives the same rows and aggregates as a model, for random tables of all types and random filters."""

from __future__ import annotations

import datetime as dt
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

import epochlog as el
from epochlog.store.scan import scan_plan
from epochlog.store.sst import segment, sorted_run
from row_sets import KINDS

pytestmark = pytest.mark.local_only  # what the doors add to reading lies above the catalog and the files

NAN = float("nan")
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int64": (pa.int64(), [-(2**63), -7, 0, 3, 4, 5, 100, 2**63 - 1]),
    "uint8": (pa.uint8(), [0, 1, 2, 127, 128, 254, 255]),
    "string": (pa.string(), ["", "\0", "\0a", "a", "a\0", "aa", "b", "é", "\U0010ffff"]),
    "float64": (pa.float64(), [-math.inf, -1.5, 0.0, 0.5, 2.0, math.inf, NAN]),
    "float32": (pa.float32(), [-1.5, 0.0, 0.5, 2.0, NAN]),
    "date32": (pa.date32(), [dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2020, 2, 29), dt.date(2021, 1, 1)]),
    "us": (pa.timestamp("us"), [dt.datetime(1960, 1, 1), dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 1, 1)]),
    "zoned": (pa.timestamp("us", "UTC"), [dt.datetime(2020, 1, day, tzinfo=dt.UTC) for day in range(1, 6)]),
    "bool": (pa.bool_(), [False, True]),
}
PAYLOAD = [name for name in KINDS if name not in ("s", "f16", "dec256")]  # the two are in test_doors.py


@dataclass(frozen=True)
class Column:
    """Builder of filters on one column in the syntax of each tool. All but IS NULL are true of no null."""

    name: str
    kind: pa.DataType
    sql: str = "{}"

    def terms(self, sign: str, value: Any) -> Terms:
        if sign == "null":
            return Terms(
                pc.field(self.name).is_null(), pl.col(self.name).is_null(), f"{self.name} IS NULL", sign, self, None
            )
        if sign == "in":
            values = pa.array(value, self.kind)
            return Terms(
                pc.field(self.name).isin(values),
                pl.col(self.name).is_in(value),
                f"{self.name} IN ({', '.join(self.text(item) for item in value)})",
                sign, self, value,
            )  # fmt: skip
        arrow = {"=": pc.equal, "<": pc.less, ">=": pc.greater_equal}[sign](
            pc.field(self.name), pa.scalar(value, self.kind)
        )
        polars = getattr(pl.col(self.name), {"=": "eq", "<": "lt", ">=": "ge"}[sign])(pl.lit(value))
        return Terms(arrow, polars, f"{self.name} {sign} {self.text(value)}", sign, self, value)

    def text(self, value: Any) -> str:
        if isinstance(value, str):
            return "chr(0)" if value == "\0" else "||".join(["''", *(f"chr({ord(c)})" for c in value)])
        if isinstance(value, dt.datetime | dt.date | float):
            return f"CAST('{value}' AS {self.sql})"
        return str(value)


@dataclass(frozen=True)
class Terms:
    arrow: pc.Expression
    polars: pl.Expr
    sql: str
    sign: str
    column: Column
    value: Any

    def holds(self, row: dict[str, Any], *, total: bool) -> bool | None:
        """Of a row of the model; None for null. total: NaN equals NaN and is above all numbers, in SQL and polars."""
        cell = row[self.column.name]
        if self.sign == "null":
            return cell is None
        if cell is None:
            return False if self.sign == "in" and not total else None
        if self.sign == "in":
            return any(_compare("=", cell, item, total=True) for item in self.value)  # Arrow's is_in takes NaN for NaN
        return _compare(self.sign, cell, self.value, total=total)


def _compare(sign: str, left: Any, right: Any, *, total: bool) -> bool:
    if isinstance(left, float) and (math.isnan(left) or math.isnan(right)):
        if not total:
            return False
        left, right = (math.isnan(left), 0.0), (math.isnan(right), 0.0)
        if left == right:
            return sign != "<"
        return {"=": False, "<": left < right, ">=": left > right}[sign]
    if isinstance(left, str):
        left, right = left.encode(), right.encode()
    return {"=": left == right, "<": left < right, ">=": left >= right}[sign]


SQL = {
    "int64": "BIGINT", "uint8": "UTINYINT", "string": "VARCHAR", "float64": "DOUBLE", "float32": "FLOAT",
    "date32": "DATE", "us": "TIMESTAMP", "zoned": "TIMESTAMPTZ", "bool": "BOOLEAN",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    key: str
    composite: bool
    payload: tuple[str, ...]
    commits: list[list[tuple[int, int, int]]]  # of each row: which key, which second key, its number (-1: a delete)
    compact_after: set[int]
    filters: list[tuple[str, Terms, Terms | None]]  # how two terms are joined

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([
            ("k", KEYS[self.key][0]), ("j", pa.int64()), ("n", pa.int64()), ("x", pa.float64()),
            ("s", pa.string()), *((name, KINDS[name][0]) for name in self.payload),
        ])  # fmt: skip

    @property
    def primary_key(self) -> list[str]:
        return ["k", "j"] if self.composite else ["k"]

    def row(self, place: int, second: int, number: int) -> dict[str, Any]:
        values = KEYS[self.key][1]
        made: dict[str, Any] = {"k": values[place % len(values)], "j": second if self.composite else 0, "n": number}
        made["x"] = None if number % 5 == 0 else NAN if number % 5 == 1 else number / 2
        made["s"] = None if number % 4 == 0 else f"s{number % 3}"
        for name in self.payload:
            made[name] = None if number % 3 == 0 else KINDS[name][1](number)
        return made


@st.composite
def cases(draw: st.DrawFn) -> Case:
    key = draw(st.sampled_from(sorted(KEYS)))
    kind, values = KEYS[key]
    columns = [
        (Column("k", kind, SQL[key]), values),
        (Column("n", pa.int64()), [0, 3, 10, 30]),
        (Column("x", pa.float64(), "DOUBLE"), [1.0, 4.0, NAN]),
        (Column("s", pa.string(), "VARCHAR"), ["s0", "s1", "zz"]),
    ]

    def term() -> Terms:
        column, known = draw(st.sampled_from([columns[0], *columns]))
        sign = draw(st.sampled_from(["=", "<", ">=", "in", "null"]))
        value = (
            draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
            if sign == "in"
            else draw(st.sampled_from(known))
        )
        return column.terms(sign, value)

    counter = iter(range(1, 1000))
    rows = st.tuples(st.integers(0, 20), st.integers(0, 2), st.booleans())
    commits = [
        [(place, second, next(counter) if alive else -1) for place, second, alive in commit]
        for commit in draw(st.lists(st.lists(rows, min_size=1, max_size=12), min_size=1, max_size=4))
    ]
    return Case(
        key,
        draw(st.booleans()),
        tuple(draw(st.lists(st.sampled_from(PAYLOAD), max_size=2, unique=True))),
        commits,
        draw(st.sets(st.integers(0, 3), max_size=2)),
        [(draw(st.sampled_from(["and", "or", "not"])), term(), term()) for _ in range(3)] + [("one", term(), None)],
    )


def joined(how: str, first: Any, second: Any) -> Any:
    """Two terms in the words of a tool that has &, | and ~."""
    operations = {"and": lambda: first & second, "or": lambda: first | second, "not": lambda: ~first}
    return operations.get(how, lambda: first)()


def judged(how: str, first: bool | None, second: bool | None) -> bool:
    """Three-valued, and then only what is true."""
    if how == "and":
        return first is True and second is True
    if how == "or":
        return first is True or second is True
    return first is False if how == "not" else first is True


@contextmanager
def tiny_blocks() -> Iterator[None]:
    with (
        mock.patch.object(segment, "BATCH_ROWS", 2),
        mock.patch.object(sorted_run, "ROW_GROUP_ROWS", 3),
        mock.patch.object(scan_plan, "BATCH_ROWS", 7),
        mock.patch.object(scan_plan, "READ_BYTES", 100),
    ):
        yield


def played(case: Case, store: el.Store) -> dict[Any, dict[str, Any]]:
    """The model: rows by key."""
    table, model = store.create_table("t", case.schema, case.primary_key), {}
    for place, commit in enumerate(case.commits):
        with store.transaction() as tx:
            for at, second, number in commit:
                row = case.row(at, second, max(number, 0))
                key = repr(tuple(row[name] for name in case.primary_key))
                change = pa.table({name: pa.array([row[name]], case.schema.field(name).type) for name in row})
                if number < 0:
                    tx.delete("t", change.select(case.primary_key))
                    model.pop(key, None)
                else:
                    tx.upsert("t", change)
                    model[key] = row
        if place in case.compact_after:
            store.compact(full=True)
    assert table.count() == len(model)
    return model


Doors = dict[str, Callable[[Any, Any, str], list[int]]]


def doors(snapshot: el.Snapshot, connection: duckdb.DuckDBPyConnection) -> Doors:
    """Each gives the numbers of the rows that pass."""
    table = snapshot["t"]

    def sql(_: Any, __: Any, text: str) -> list[int]:
        return [n for (n,) in connection.execute(f"SELECT n FROM t WHERE {text}").fetchall()]

    return {
        "arrow": lambda a, _, __: table.to_arrow(columns=["n"], filter=a)["n"].to_pylist(),
        "scan": lambda a, _, __: table.scan(columns=["x", "n"], filter=a).read_all()["n"].to_pylist(),
        "pandas": lambda a, _, __: table.to_pandas(filter=a)["n"].tolist(),
        "dataset": lambda a, _, __: table.dataset().to_table(["n"], filter=a)["n"].to_pylist(),
        "lazy": lambda _, p, __: table.lazy().filter(p).select("n").collect()["n"].to_list(),
        "streaming": lambda _, p, __: table.lazy().filter(p).collect(engine="streaming")["n"].to_list(),
        "duckdb": sql,
    }


TOTAL = {"lazy", "streaming", "duckdb"}


def check(case: Case) -> None:
    note(f"{case.schema}, key {case.primary_key}")
    with tempfile.TemporaryDirectory() as folder, tiny_blocks(), el.open(folder, durability="os") as store:
        model = played(case, store)
        with store.snapshot(["t"], consistency="latest") as snapshot, snapshot.duckdb() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for how, first, second in case.filters:
                two = second or first
                note(f"{how}: {first.sql}; {two.sql}")
                arrow, polars = joined(how, first.arrow, two.arrow), joined(how, first.polars, two.polars)
                text = {"not": f"NOT ({first.sql})", "one": first.sql}.get(how, f"({first.sql}) {how} ({two.sql})")
                for name, look in doors(snapshot, connection).items():
                    wanted = sorted(
                        row["n"]
                        for row in model.values()
                        if judged(how, first.holds(row, total=name in TOTAL), two.holds(row, total=name in TOTAL))
                    )
                    assert sorted(look(arrow, polars, text)) == wanted, name
            agree(case, model, snapshot, connection)


def agree(case: Case, model: dict[Any, dict[str, Any]], snapshot: el.Snapshot, connection: Any) -> None:
    """Compare aggregates in every format: number of rows, number of values of each column, sums."""
    table, names = snapshot["t"], case.schema.names
    rows = list(model.values())
    wanted = [len(rows), sum(row["n"] for row in rows), *(sum(row[name] is not None for row in rows) for name in names)]

    def aggregates(rows: pa.Table) -> list[int]:
        return [
            rows.num_rows,
            pc.sum(rows["n"]).as_py() or 0,
            *(rows.num_rows - rows[name].null_count for name in names),
        ]

    lazy = table.lazy().select(
        pl.len(), pl.col("n").sum(), *(pl.col(name).count().alias(f"c_{name}") for name in names)
    )
    text = ", ".join(f"count({name})" for name in names)
    for rows_read in (table.to_arrow(), table.dataset().to_table(), pa.table(table)):
        assert aggregates(rows_read) == wanted
    assert aggregates(pa.Table.from_batches(table.dataset().to_batches(batch_size=2), table.schema)) == wanted
    assert list(lazy.collect().row(0)) == list(lazy.collect(engine="streaming").row(0)) == wanted
    assert list(connection.execute(f"SELECT count(*), coalesce(sum(n), 0), {text} FROM t").fetchone()) == wanted
    assert table.lazy().collect().equals(table.to_polars(), null_equal=True)
    assert table.dataset().to_table().equals(table.to_arrow()) or "x" in names  # NaN differs from itself
    assert table.to_pandas().shape == (len(rows), len(names))


@pytest.mark.medium
@settings(max_examples=15)
@given(cases())
def test_doors_agree(case: Case) -> None:
    check(case)


@pytest.mark.campaign
@settings(max_examples=2_000)
@given(cases())
def test_doors_agree_at_length(case: Case) -> None:
    check(case)
