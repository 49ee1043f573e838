"""Refused queries: each message has the text as it was written, and what to write instead."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from epochlog.errors import InvalidInput
from epochlog.store.types.schema import TableSchema
from epochlog.views import duckdb_engine
from epochlog.views.advice import ADVICE, refusal
from epochlog.views.derivation import derive

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        *(("i", pa.int32()), ("n", pa.int64()), ("f", pa.float64()), ("d", pa.decimal128(10, 2)), ("s", pa.string())),
        *(("day", pa.date32()), ("ts", pa.timestamp("us", "UTC")), ("b", pa.bool_())),
        *(("st", pa.struct([("x", pa.int64())])), ("arr", pa.list_(pa.int64()))),
    ]
)
TABLES = {name: TableSchema(name, SCHEMA, ("id",)) for name in ("t", "u")}
PYTHON = "a Python refresh can compute it: store.create_job"
INTERNAL = re.compile(r"\bs\d+\b|\bc\d+\b|epochlog_|_q_|`")
"""Names that the normal form has, and not the text of a user."""


def message(text: str) -> str:
    sql = text if text.startswith(("SELECT", "WITH")) else f"SELECT id, {text} AS x FROM t"
    with pytest.raises(InvalidInput) as error:
        duckdb_engine.output_schema(derive(sql, TABLES, ["id"]), TABLES)
    refused = str(error.value)
    assert not INTERNAL.search(refused), refused
    return refused


@pytest.mark.parametrize(("text", "named", "advice"), [
    ("ROUND(f, 1)", "on ROUND(f, 1)", PYTHON),
    ("SELECT q.id, Round(q.f,  1) AS x FROM t AS q", "on Round(q.f, 1)", "Spark session"),
    ("UPPER(s)", "on UPPER(s)", "column of the table"),
    ("s RLIKE 'a.*'", "on s RLIKE 'a.*'", "write LIKE"),
    ("regexp_like(s, 'a(b)')", "on regexp_like(s, 'a(b)')", "write LIKE"),
    ("day + INTERVAL 1 MONTH", "on INTERVAL '1' MONTH", "write DATE_ADD"),
    ("day - day", "on day - day", "DATEDIFF(end, start)"),
    ("DATEDIFF(HOUR, ts, ts)", "on DATEDIFF(HOUR, ts, ts)", "DATEDIFF(end, start)"),
    ("CAST(s AS DATE)", "on CAST(s AS DATE)", "Spark session"),
    ("YEAR(s)", "on YEAR(s)", "takes a date or timestamp"),
    ("DATE_TRUNC('DAY', day)", "on DATE_TRUNC('DAY', day)", "CAST(… AS TIMESTAMP)"),
    ("DATE_FORMAT(ts, 'yyyy')", "have DATE_FORMAT(ts, 'yyyy')", "write YEAR"),
    ("EXTRACT(HOUR FROM ts)", "have EXTRACT(HOUR FROM ts)", "HOUR"),
    ("INSTR(s, ')')", "have INSTR(s, ')')", PYTHON),
    ("i & 1", "have i & 1", PYTHON),
    ("CURRENT_DATE", "have CURRENT_DATE", "another one at each run; keep the moment in a row"),
    ("my_function(i)", "have my_function(i)", PYTHON),
    ("SELECT id, MEDIAN(n) AS x FROM t GROUP BY id", "have MEDIAN(n), but", PYTHON),
    ("SELECT id, PERCENTILE(n, 0.5) AS x FROM t GROUP BY id", "have PERCENTILE(n, 0.5), but", PYTHON),
    ("SELECT id, BIT_AND(n) AS x FROM t GROUP BY id", "have BIT_AND(n), but", PYTHON),
    ("SELECT id, FIRST(n) AS x FROM t GROUP BY id", "FIRST(n): its value can depend on the order", "ROW_NUMBER"),
    ("SELECT id, COLLECT_LIST(n) AS x FROM t GROUP BY id", "COLLECT_LIST(n): its value can depend", PYTHON),
    ("SELECT id, SUM(n) AS x FROM t GROUP BY ROLLUP(id)", "on ROLLUP (id)", "UNION ALL"),
    ("SELECT id, SUM(n) AS x FROM t GROUP BY id WITH CUBE", "on CUBE (id)", "UNION ALL"),
    ("SELECT * FROM t UNPIVOT (v FOR k IN (i, n))", "have UNPIVOT(", "UNION ALL"),
    ("SELECT * FROM t PIVOT (SUM(n) FOR i IN (1, 2))", "have PIVOT(", "FILTER (WHERE"),
    ("SELECT id, x FROM t LATERAL VIEW EXPLODE(arr) y AS x", "have LATERAL VIEW", "row of a table"),
    ("SELECT id, x FROM t, LATERAL (SELECT 1 AS x)", "have LATERAL (SELECT …)", "ROW_NUMBER"),
    ("EXPLODE(arr)", "have EXPLODE(arr)", "row of a table"),
    ("st.x", "read st.x, a field of a struct", "columns of the table"),
    ("t.st.x", "read t.st.x", "columns of the table"),
    ("arr[0]", "have arr[0]", "columns of the table"),
    ("f > ALL (SELECT f FROM u)", "have ALL (SELECT …)", "NOT EXISTS"),
    ("SELECT id, n FROM t QUALIFY ROW_NUMBER() OVER (ORDER BY id) = 1", "have QUALIFY", "subquery"),
    ("SELECT id, n FROM t SORT BY id", "have SORT BY", "leave it out"),
    ("SELECT ROUND(f, 1) AS id, COUNT(*) AS n FROM t GROUP BY id", "on ROUND(f, 1)", PYTHON),
    ("SELECT UPPER(s) AS id, COUNT(*) AS n FROM t GROUP BY UPPER(s) HAVING id > 'a'", "on UPPER(s)", "column"),
    ("SELECT DISTINCT f AS id FROM t", "on SELECT DISTINCT", "add 0D"),
    ("SELECT t.id FROM t JOIN u ON u.i", "on ON u.i", "BOOLEAN"),
    ("SELECT id FROM t q WHERE q.i", "on WHERE q.i", "BOOLEAN"),
    ("(SELECT MAX(LOWER(q.s)) FROM u q WHERE q.id = t.id)", "on LOWER(q.s)", "column of the table"),
    ("WITH q AS (SELECT id, CONCAT(s, s) AS two FROM t) SELECT id, UPPER(two) AS x FROM q", "UPPER(two)", "column"),
    ("IF(id IN (SELECT u.i FROM u), 1, 2)", "on id IN (SELECT …)", "use it in WHERE"),
    ("SELECT id FROM t WHERE ROUND((SELECT MAX(u.f) FROM u), 1) > 1", "ROUND((SELECT MAX(u.f) FROM u), 1)", PYTHON),
])  # fmt: skip
def test_a_refusal_has_the_text_and_what_to_write(text: str, named: str, advice: str) -> None:
    refused = message(text)
    assert named in refused and advice in refused, refused


def test_long_texts_are_cut() -> None:
    refused = message(f"UPPER(CONCAT({', '.join(['s'] * 99)}))")
    assert "…" in refused and len(refused) < 300


def test_the_name_of_a_function_is_looked_up_as_it_is_written() -> None:
    assert all(name == name.upper() and advice for name, advice in ADVICE.items())
    assert refusal("first(n)", "FIRST", "why").startswith("a view cannot have first(n): why; number the rows")


@pytest.mark.parametrize(("sql", "message"), [
    ("SELCT id FROM t", "at line 1, column 10: SELCT id >>> FROM <<<"),
    ("SELECT id\nFROM t WHERE (s = 'mon'", "Expecting ), at line 2, column 19: "),
    ("SELECT id, n > 5 AND AS x FROM t", "a part of And is missing, at line 1, column 22: "),
    ("SELECT id FROM t WHERE s = 'mon", "is a quote left open?"),
    ("SELECT id FROM {{ ref('t') }}", "has a template"),
    ("SELECT id, {{ x }} AS x FROM t", "a parameter or a template"),
    ("SELECT id FROM t; DROP TABLE t", "is one SELECT, not 2: SELECT, DROP"),
    ("SELECT dya, id FROM t", "column dya, which is unknown; did you mean day?"),
    ("SELECT o.id FROM t", "column o.id, which is unknown; FROM has t, and not o"),
    ("SELECT id FROM t o WHERE EXISTS (SELECT 1 FROM u WHERE u.id = o.idd)", "o.idd, which is unknown; did you mean"),
    ("SELECT zzz FROM t", "unknown; the columns are id, i, n, f, d, s, day, ts, b, st, arr"),
    ("SELECT * FROM t JOIN u ON t.n = u.n", "two columns of one name: id, i, n, f"),
    ("SELECT id, t.n AS x, u.n AS X FROM t JOIN u USING (id)", "two columns of one name: x, X; write … AS name"),
    ("SELECT id, SUM(n) AS x FROM t", 'column "id" must appear in the GROUP BY clause'),
])  # fmt: skip
def test_a_mistake_is_told_with_its_place_and_without_codes(sql: str, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        duckdb_engine.output_schema(derive(sql, TABLES, ["id"]), TABLES)
    refused = str(error.value)
    assert message in refused and "\x1b" not in refused and "ANY_VALUE" not in refused and "<class" not in refused
