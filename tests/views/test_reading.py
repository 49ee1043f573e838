"""Texts of views as Spark reads them: literals, comments, numbers, names and rows, by Spark's answers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from sqlglot import exp
from sqlglot.dialects.spark import Spark

from epochlog.errors import InvalidInput
from epochlog.views import duckdb_engine, normal_form, scope, syntax, tie_breaks
from epochlog.views.derivation import ViewPlan, derive
from epochlog.views.parsing import parse
from epochlog.views.table_names import NOW
from plan_rows import rows_of
from spark_readings import (
    COMMENT_ANSWERS,
    COMMENTS,
    EXPRESSIONS,
    QUERIES,
    SCHEMAS,
    STAR_ANSWERS,
    STARS,
    TABLES,
    TEXT_ANSWERS,
    TEXTS,
    as_query,
    columns_of,
    in_order,
    kind,
    with_comment,
)

DuckDB = duckdb.DuckDBPyConnection


@pytest.fixture(scope="module")
def tables() -> Iterator[DuckDB]:
    with duckdb_engine._connected() as connection:
        for name, rows in TABLES.items():
            connection.register(NOW + name, rows)
        yield connection


def plan_of(sql: str) -> ViewPlan:
    first = normal_form.normal_form(parse(sql), SCHEMAS).outputs[0]
    return derive(sql, SCHEMAS, [first])


def answer(tables: DuckDB, sql: str) -> pa.Table:
    """Return the rows of a text as a view has them, in the columns of the view's table."""
    plan = plan_of(sql)
    schema = duckdb_engine.output_schema(plan, SCHEMAS)
    return rows_of(tables, plan).cast(schema)


# literals, comments, numbers


def read_text(text: str) -> str | None:
    """Return the value of a literal; None if it is refused."""
    try:
        output = parse(as_query(text)).expressions[1].this
    except InvalidInput:
        return None
    return output.name if isinstance(output, exp.Literal) and output.is_string else None


def test_literals_have_the_values_that_spark_gives_them() -> None:
    assert {text: read_text(text) for text in TEXTS} == {text: TEXT_ANSWERS.get(text) for text in TEXTS}


def test_literals_keep_their_values_on_duckdb(tables: DuckDB) -> None:
    listed = ", ".join(f"{text} AS c{number}" for number, text in enumerate(TEXT_ANSWERS))
    plan = plan_of(f"SELECT id, {listed} FROM a")
    rows = rows_of(tables, plan)
    values = [column[0].as_py() for column in rows.columns[1:]]
    assert dict(zip(TEXT_ANSWERS, values, strict=True)) == TEXT_ANSWERS


def value(expression: str) -> float | None:
    try:
        return duckdb.execute(f"SELECT {expression}").fetchall()[0][0]
    except duckdb.Error:
        return None


def read_comment(word: str) -> float | None:
    """Return the value of an expression with a comment, or what is nearly one; None if it is refused."""
    try:
        return value(parse(as_query(with_comment(word))).expressions[1].this.sql("duckdb"))
    except InvalidInput:
        return None


def test_comments_end_where_they_end_in_spark() -> None:
    values = {text: value(text) for text in {*COMMENT_ANSWERS.values(), "NULL"}}
    wanted = {word: values[COMMENT_ANSWERS.get(word, "NULL")] for word in COMMENTS}
    assert {word: read_comment(word) for word in COMMENTS} == wanted


@pytest.mark.parametrize(("sql", "message"), [
    ("SELECT id,\n v /* here FROM t", "the comment at line 2, column 4 has no end"),
    ("SELECT /*+ BROADCAST(t) */ id FROM t", "HINT, a comment that begins with /*+, at line 1, column 8: leave it out"),
    ("SELECT id {# ref #} FROM t", "a template ({# … #}) at line 1, column 11"),
    ("SELECT id, 'it''s AS x FROM t", "is a quote left open?"),
])  # fmt: skip
def test_a_comment_that_spark_refuses_is_refused_with_its_place(sql: str, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse(sql)
    assert message in str(error.value)


def test_expressions_have_the_values_and_types_that_spark_gives_them(tables: DuckDB) -> None:
    listed = ", ".join(f"{text} AS c{number}" for number, text in enumerate(EXPRESSIONS))
    row = answer(tables, f"SELECT id, {listed} FROM t").slice(0, 1)
    seen = [(kind(column.type), column[0].as_py()) for column in row.columns[1:]]
    assert dict(zip(EXPRESSIONS, seen, strict=True)) == EXPRESSIONS


# queries


def check_query(tables: DuckDB, sql: str) -> None:
    try:
        rows = answer(tables, sql)
    except InvalidInput as error:
        if "GROUPING SETS" in sql and "DuckDB and Spark differ" in str(error):
            return  # its text is compared on Spark
        raise
    assert (columns_of(rows), in_order(rows)) == QUERIES[sql]


@pytest.mark.parametrize("sql", QUERIES)
def test_a_query_has_the_rows_that_spark_gives(tables: DuckDB, sql: str) -> None:
    check_query(tables, sql)


@pytest.mark.medium
def test_stars_over_chains_of_using_have_the_columns_of_spark() -> None:
    seen = {sql: " ".join(normal_form.normal_form(parse(sql), SCHEMAS).outputs) for sql in STARS}
    assert seen == STAR_ANSWERS


@pytest.mark.parametrize(("text", "message"), [
    ("TIME '10:00:00'", "cannot have the type TIME: keep it as a text or a number"),
    ("CAST(s AS TIME)", "cannot have the type TIME"),
    ("TRUNC(day, 'Q')", "TRUNC(day, 'Q'): its unit is a text, one of YEAR"),
    ("DATE_TRUNC('decade', day)", "DATE_TRUNC('decade', day): its unit is a text"),
    ("DATE_TRUNC(s, day)", "DATE_TRUNC(s, day): its unit is a text"),
    ("FIRST_VALUE(v, 1 = 1) OVER (ORDER BY id)", "write IGNORE NULLS behind it"),
    ("MAX(v, g)", "cannot have EXPRESSIONS in MAX(v, g)"),
    ("v BETWEEN SYMMETRIC 2 AND 1", "SYMMETRIC"),
    ("SUM(v) OVER (ORDER BY id ROWS 1 PRECEDING EXCLUDE TIES)", "EXCLUDE"),
    ("SUM(v) OVER (ORDER BY id GROUPS 1 PRECEDING)", "a frame of GROUPS: write ROWS or RANGE"),
    ("NTH_VALUE(v, 1 - 2) OVER (ORDER BY id)", "its position must be a number above 0"),
    ("LAST_VALUE(v) IGNORE NULLS OVER (ORDER BY g)", "write ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"),
    ("LAST_VALUE(v) FILTER (WHERE v > 0) OVER (ORDER BY g)", "FILTER is of aggregates"),
    ("v + 1 AS y, y + 1", "cannot read y, another column of this SELECT: write its expression again"),
    ("day < 'infinity'", "write the date or time as 2024-01-31"),
    ("day IN ('2024-01-31', 'epoch')", "write the date or time as 2024-01-31"),
    ("1e400", "the number is too large"),
    ("LAG(v, g) OVER (ORDER BY id)", "its distance must be a number"),
    ("COUNT_IF(v) OVER (PARTITION BY g)", "its condition must be BOOLEAN"),
    ("day < 'today'", "'today' as a date or timestamp in day < 'today': its value is another one at each run"),
    ("day = 'to' || 'day'", "as a date or timestamp"),
    ("DATE ' Now UTC'", "as a date or timestamp"),
    ("YEAR('yesterday')", "as a date or timestamp"),
    ("COALESCE(day, 'tomorrow')", "as a date or timestamp"),
    ("SELECT id, SUM(v) OVER (w ORDER BY id) AS x FROM t WINDOW w AS (PARTITION BY g)", "write all of it in OVER"),
    ("SELECT id, SUM(v) OVER x AS y FROM t WINDOW w AS (PARTITION BY g), x AS (w)", "is defined by another one"),
    ("WITH q AS (SELECT id FROM t), Q AS (SELECT id FROM e) SELECT id FROM q", "WITH has two queries of one name, Q"),
    ("WITH q AS (SELECT id FROM e) SELECT t.id FROM t JOIN q JOIN a ON q.id = a.id ON t.id = q.id", "parentheses"),
    ("SELECT t.id FROM t JOIN (SELECT id FROM e) q JOIN a ON q.id = a.id ON t.id = q.id", "join in parentheses"),
    ("SELECT t.id FROM (t JOIN a ON a.id = t.id)", "cannot join in parentheses: "),
    ("SELECT g, COUNT(*) AS n FROM t GROUP BY -1", "GROUP BY -1: the query has no such column"),
    ("SELECT 1 AS x, COUNT(*) AS n FROM t GROUP BY ROLLUP (x)", "cannot group by the constant 1 in GROUPING SETS"),
    ("SELECT k FROM a JOIN b USING (k) JOIN d ON d.w = a.id", "the column 'k' is ambiguous"),
    ("SELECT p FROM (SELECT id, v FROM t) q(p)", "1 column names are given to a query with 2 columns"),
    ("SELECT DISTINCT g FROM t ORDER BY v LIMIT 1", "cannot order SELECT DISTINCT by v"),
    ("SELECT DISTINCT id AS k FROM t ORDER BY id + 1 LIMIT 1", "cannot order SELECT DISTINCT by id"),
    ("SELECT COUNT(*) AS n FROM t GROUP BY ()", "cannot have GROUP BY (): leave it out"),
    ("SELECT id AS 'k' FROM t", "cannot be parsed"),
    ("SELECT id FROM t AS 'q'", "cannot be parsed"),
    ("SELECT COUNT() AS n FROM t", "write COUNT(*)"),
    ("EXISTS (SELECT 1 FROM e) = (v = 1)", "write EXISTS (…) in parentheses"),
    ("EXISTS (SELECT 1 FROM e) IS NULL", "write EXISTS (…) in parentheses"),
    ("+v", "cannot have + before v"),
    ("v = 1 IS UNKNOWN", "cannot be parsed"),
    ("SUM(v) OVER (ORDER BY id ROWS BETWEEN 1 FOLLOWING AND 1 PRECEDING)", "its frame ends before it begins"),
    ("SUM(v) OVER (ORDER BY id ROWS BETWEEN -1 PRECEDING AND CURRENT ROW)", "or numbers of 0 or more"),
    ("SUM(v) OVER (ORDER BY id RANGE BETWEEN 1.5 PRECEDING AND CURRENT ROW)", "or numbers of 0 or more"),
    ("RANK() OVER (PARTITION BY v)", "write ORDER BY in it"),
    ("ROW_NUMBER() OVER (ORDER BY id ROWS 1 PRECEDING)", "leave out its frame"),
])  # fmt: skip
def test_what_would_be_read_wrongly_is_refused(tables: DuckDB, text: str, message: str) -> None:
    sql = text if text.startswith(("SELECT", "WITH")) else as_query(text)
    with pytest.raises(InvalidInput) as error:
        answer(tables, sql)
    assert message in str(error.value)


# frames that end at the last of equal rows

FUNCTIONS: dict[str, Callable[[list[int | None]], int | None]] = {
    "FIRST_VALUE(v)": lambda frame: frame[0],
    "LAST_VALUE(v)": lambda frame: frame[-1],
    "NTH_VALUE(v, 2)": lambda frame: frame[1] if len(frame) > 1 else None,
    "NTH_VALUE(v, 3)": lambda frame: frame[2] if len(frame) > 2 else None,
}
"""Functions, and their values over the rows of a frame."""
FRAMES = ["", " RANGE UNBOUNDED PRECEDING", " RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"]
_Row = tuple[int, int | None, int | None]


def possible_answers(rows: Sequence[_Row], function: str) -> set[tuple[tuple[int, int | None], ...]]:
    """Return the values by id, one answer for each order of the rows that the text's order leaves open."""
    answers: set[tuple[tuple[int, int | None], ...]] = set()
    for order in itertools.permutations(rows):
        keys = [-1 if g is None else g for _, g, _ in order]
        if keys != sorted(keys):
            continue
        values: list[tuple[int, int | None]] = []
        for place, (id_, _, _) in enumerate(order):
            frame = [v for key, (_, _, v) in zip(keys, order, strict=True) if key <= keys[place]]
            values.append((id_, FUNCTIONS[function](frame)))
        answers.add(tuple(sorted(values)))
    return answers


def check_ties(seed: int, connection: DuckDB) -> None:
    chance = random.Random(f"frames {seed}")
    rows: list[_Row] = [
        (id_, chance.choice([None, 1, 1, 2]), chance.choice([None, *range(9)])) for id_ in range(chance.randint(1, 5))
    ]
    function, frame = chance.choice(list(FUNCTIONS)), chance.choice(FRAMES)
    plan = plan_of(f"SELECT id, {function} OVER (ORDER BY g{frame}) AS x FROM t")
    columns = [pa.array([row[place] for row in rows], pa.int64()) for place in range(3)]
    connection.register(NOW + "t", pa.table(columns, ["id", "g", "v"]))
    values = rows_of(connection, plan).to_pylist()
    ours = tuple(sorted((row["id"], row["x"]) for row in values))
    assert ours in possible_answers(rows, function), f"seed {seed}: {function}{frame} of {rows}: {ours}"


def test_values_of_a_frame_are_those_of_an_order_of_its_equal_rows() -> None:
    with duckdb.connect() as connection:
        for seed in range(30):
            check_ties(seed, connection)


def test_the_last_and_the_nth_of_equal_rows(tables: DuckDB) -> None:
    """Spark gives 20, 20, 30 or 10, 10, 30 for the first, 20, 20, 20 or 10, 10, 10 for the second."""
    rows = pa.table({"id": [1, 2, 3], "g": [1, 1, 2], "v": [10, 20, 30]})
    with duckdb.connect() as connection:
        connection.register(NOW + "t", rows)
        for function, wanted in (("LAST_VALUE(v)", [20, 20, 30]), ("NTH_VALUE(v, 2)", [20, 20, 20])):
            plan = plan_of(f"SELECT id, {function} OVER (ORDER BY g) AS x FROM t")
            assert rows_of(connection, plan).sort_by("id").column("x").to_pylist() == wanted


# planted errors


def _sqlglot_reads_the_text(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(syntax, "DIALECT", Spark)


def _lists_of_columns_go_by_name(patch: pytest.MonkeyPatch) -> None:
    def renamed(query: exp.Select, columns: Sequence[str], names: Sequence[str]) -> list[str]:
        values = {output.alias: output.this for output in query.expressions}
        query.set("expressions", [syntax.named(values[c], name) for c, name in zip(columns, names, strict=True)])
        return list(names)

    patch.setattr(normal_form, "_renamed", renamed)


def _using_keeps_the_order_of_the_sources(patch: pytest.MonkeyPatch) -> None:
    merge = scope.Scope.merge

    def merged(self: scope.Scope, *arguments: Any) -> list[exp.Expr]:
        before = list(self.columns)
        conditions = merge(self, *arguments)
        self.columns.sort(key=lambda column: before.index(column) if column in before else len(before))
        return conditions

    patch.setattr(scope.Scope, "merge", merged)


def _using_hides_nothing(patch: pytest.MonkeyPatch) -> None:
    star = scope.Scope.star

    def of_columns(self: scope.Scope, node: exp.Expr) -> list[exp.Expr]:
        self.hidden = []
        return star(self, node)

    patch.setattr(scope.Scope, "star", of_columns)


def _keys_are_appended_in_every_frame(patch: pytest.MonkeyPatch) -> None:
    def settle(window: exp.Window, function: exp.Expr, order: exp.Order, keys: Sequence[exp.Expr]) -> None:
        tie_breaks._append_keys(order, keys)

    patch.setattr(tie_breaks, "_settle_among_peers", settle)


def _constants_become_positions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(normal_form, "with_constants", lambda group: group)


def _a_condition_is_counted_as_duckdb_does(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("epochlog.views.duckdb_functions._as_count", lambda count: count.copy())


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[[DuckDB], None]]] = {
    "quotes": (_sqlglot_reads_the_text, lambda _: test_literals_have_the_values_that_spark_gives_them()),
    "comments": (_sqlglot_reads_the_text, lambda _: test_comments_end_where_they_end_in_spark()),
    "numbers": (_sqlglot_reads_the_text, test_expressions_have_the_values_and_types_that_spark_gives_them),
    "column lists": (_lists_of_columns_go_by_name, lambda tables: check_all(tables, "(p, r)")),
    "USING": (_using_keeps_the_order_of_the_sources, lambda tables: check_all(tables, "USING")),
    "columns of a source of USING": (_using_hides_nothing, lambda tables: check_all(tables, "USING")),
    "frames": (
        _keys_are_appended_in_every_frame,
        lambda _: test_values_of_a_frame_are_those_of_an_order_of_its_equal_rows(),
    ),
    "constants": (_constants_become_positions, lambda tables: check_all(tables, "AS x FROM")),
    "COUNT_IF": (_a_condition_is_counted_as_duckdb_does, lambda tables: check_all(tables, "COUNT_IF")),
}
"""Error, and the check that finds it."""


def check_all(tables: DuckDB, part: str) -> None:
    for sql in QUERIES:
        if part in sql:
            check_query(tables, sql)


@pytest.mark.planted
@pytest.mark.parametrize("error", PLANTED)
def test_a_planted_error_of_reading_is_found(error: str, tables: DuckDB, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, check = PLANTED[error]
    plant(monkeypatch)
    with pytest.raises((AssertionError, InvalidInput)):
        check(tables)
