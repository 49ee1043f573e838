"""Texts of views that are written by hand, each with its key and the set of tables that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import view_functions
import view_lookups
import view_shop
import view_sums
from view_cases import CASES

ALL_ROWS = "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING"


@dataclass(frozen=True)
class Text:
    """Text of a view. tables: its set in `corner_tables`.

    settled: the text with the order that the view takes among equal rows, where its own leaves one open.
    """

    sql: str
    key: tuple[str, ...] = ("id",)
    tables: str = "integers"
    settled: str | None = None

    @property
    def asked(self) -> str:
        """Return the text that has one answer."""
        return self.settled or self.sql


QUOTES: Mapping[str, Text] = {
    "doubled quotes": Text("SELECT id, name FROM p WHERE name = 'O''Brien'"),
    "doubled double quotes": Text('SELECT id, name FROM p WHERE name = "a""b"'),
    "doubled quotes alone": Text("SELECT id, '''' AS x, '''a''' AS y, 'a''''b' AS z FROM p"),
    "quotes of the other kind": Text("""SELECT id FROM p WHERE name = 'a"b' OR name = "O'Brien" """),
    "a doubled quote in a pattern": Text("SELECT id FROM p WHERE name LIKE '%''%'"),
    "a doubled quote in a list": Text("SELECT id FROM p WHERE name IN ('O''Brien', 'it''s ''quoted''', 'A')"),
    "literals beside each other": Text("SELECT id, 'a' 'b' AS x FROM p WHERE name = 'O' 'Brien'"),
    "escapes": Text(
        r"SELECT id, 'a\\b' AS x, 'it\'s' AS y, '\u0041' AS z, 'a\qb' AS w FROM p WHERE name IN ('a\\b', 'tab\tend')"
    ),
    "an escaped quote before a doubled one": Text(r"SELECT id, '\'''' AS x, '\\''' AS y FROM p"),
    "a raw literal": Text(r"SELECT id, r'a\b' AS x FROM p WHERE name = r'a\b'"),
    "a comment in a literal": Text("SELECT id FROM p WHERE name = '-- no comment' OR name = '/* none */'"),
    "a quote in a comment": Text("SELECT id, /* it's */ v -- don't\nFROM p"),
    "a comment that a backslash continues": Text("SELECT id, 1 --c \\\n + 1\n AS x FROM p"),
    "comments in comments": Text("SELECT id /* a /* b */ , 1 AS y */ , v FROM p"),
    "names in backticks": Text("SELECT `p`.`id`, `v` AS `w` FROM `p` WHERE `name` = 'A'"),
}
NUMBERS: Mapping[str, Text] = {
    "a cast of a negative number": Text("SELECT id, -1::STRING AS x, -v AS y FROM p"),
    "smallest numbers": Text(
        "SELECT id, -128Y AS y, -32768S AS s, -2147483648 AS i, -9223372036854775808L AS l FROM p"
    ),
    "a negative divisor": Text("SELECT id, v % -3 AS x, v DIV -3 AS y FROM p"),
    "two signs": Text("SELECT id, v - -1 AS x, - -v AS y, 3 - 2 - 1 AS z FROM p"),
    "literals of kinds": Text("SELECT id, 1L AS l, 2S AS s, 3Y AS y, 1.5D AS d, 1.5 AS m, 1e3 AS e, .5D AS h FROM p"),
    "a sum with 0D": Text(
        "SELECT q.k, COUNT(*) AS n FROM (SELECT v + 0D AS k FROM p) q WHERE q.k >= 0 GROUP BY q.k", ("k",)
    ),
    "precedence": Text(
        "SELECT id, 1 + 2 * v - 3 AS x, NOT v = 1 AND g > 1 OR v < 0 AS y, v BETWEEN 0 AND 5 AND g = 3 AS z FROM p"
    ),
    "negative zeros": Text("SELECT id, -0D AS a, -0.0D AS b, -.0D AS c, - 0D AS d, -0 AS e FROM p"),
    "|| before a minus": Text("SELECT id, id || id - 1 AS x FROM p"),
    "|| behind a minus": Text("SELECT id, CAST(id - 1 AS STRING) || 'a' AS y, 'a' || id * 2 AS z FROM p"),
}
PREDICATES: Mapping[str, Text] = {
    "EXISTS in parentheses": Text("SELECT id, (EXISTS (SELECT 1 FROM u WHERE u.id = t.id)) = (a = 1) AS p FROM t"),
    "of a comparison": Text(
        "SELECT id, a = b IN (FALSE) AS p, a > b IN (TRUE, FALSE) AS q, a = b NOT IN (TRUE) AS r, "
        "a = b BETWEEN FALSE AND TRUE AS s, a < b IS NULL AS u, a <=> b IN (FALSE) AS w FROM t"
    ),
    "of a comparison of conditions": Text(
        "SELECT id, (a = 1) = (b = 1) IS NULL AS p, (a = 1) < (b = 1) IN (TRUE) AS q, "
        "(a = 1) = (b = 1) BETWEEN FALSE AND FALSE AS r FROM t"
    ),
    "with a comparison": Text(
        "SELECT id, a = 1 IS DISTINCT FROM b = 1 AS p, a = 1 BETWEEN FALSE AND b = 1 AS q, NOT a = b IS NULL AS r "
        "FROM t"
    ),
    "chains of comparisons": Text("SELECT id, a = b = TRUE AS p, a < b <> TRUE AS q, a = b < TRUE AS r FROM t"),
}
COLUMN_LISTS: Mapping[str, Text] = {
    "a list of a subquery": Text("SELECT y AS id, x FROM (SELECT v, id FROM t) AS q(x, y)"),
    "a list over one name twice": Text(
        "SELECT q.x AS id, q.y AS other FROM (SELECT id, id + 1 AS id FROM t) AS q(x, y)"
    ),
    "a list over a join": Text(
        "SELECT q.x AS id, q.z AS c, q.y AS other FROM (SELECT t.id, u.id, u.c FROM t JOIN u ON t.id = u.id) "
        "AS q(x, y, z)"
    ),
    "a list of a CTE over one name twice": Text(
        "WITH q(x, y) AS (SELECT id, v AS id FROM t) SELECT x AS id, y AS w FROM q WHERE y > 0"
    ),
    "a list of a table": Text("SELECT i AS id, l AS a FROM t AS q(i, j, k, l)"),
    "a list of exchanged names": Text("SELECT q.id, q.a, q.b FROM (SELECT id, a AS b, b AS a FROM t) AS q(id, a, b)"),
    "a list of a union": Text(
        "SELECT x, y FROM (SELECT a, c FROM r UNION ALL SELECT a + 9, a FROM r) AS q(x, y)", ("x",)
    ),
    "lists in lists": Text(
        "SELECT n AS id, m AS a FROM (SELECT y, x FROM (SELECT a, id FROM t) AS p(x, y)) AS q(n, m)"
    ),
}
USING: Mapping[str, Text] = {
    "all columns": Text("SELECT * FROM t JOIN r USING (a)"),
    "all columns of two joins": Text(
        "SELECT * FROM (SELECT id, a FROM t) x JOIN (SELECT id, c FROM u) y USING (id) JOIN (SELECT a, c AS d FROM r) "
        "z USING (a)"
    ),
    "all columns of two joins by one column": Text(
        "SELECT * FROM (SELECT b, id FROM t) x LEFT JOIN (SELECT c, id FROM u) y USING (id) LEFT JOIN "
        "(SELECT v, id FROM p) z USING (id)"
    ),
    "all columns by two": Text(
        "SELECT * FROM (SELECT id, a, b FROM t) x JOIN (SELECT v AS w, b, a FROM e) y USING (b, a)"
    ),
    "a chain of full joins": Text(
        "SELECT id, x.a, y.c, z.g FROM t x FULL JOIN u y USING (id) FULL JOIN (SELECT id, g FROM p WHERE id > 5) "
        "z USING (id)",
        ("id",),
    ),
    "all columns of a chain of full joins": Text(
        "SELECT * FROM (SELECT b, id FROM t) x FULL JOIN (SELECT c, id FROM u) y USING (id) FULL JOIN "
        "(SELECT g, id FROM p) z USING (id)"
    ),
    "a right join": Text("SELECT * FROM (SELECT b, id FROM t) x RIGHT JOIN (SELECT c, id FROM u) y USING (id)"),
    "both sides by name": Text("SELECT id, t.v, u.id AS other FROM t LEFT JOIN u USING (id)"),
    "all columns of one side": Text("SELECT x.*, y.c FROM t x JOIN u y USING (id)"),
    "a semi join": Text("SELECT * FROM t LEFT SEMI JOIN u USING (id)"),
}
GROUPS: Mapping[str, Text] = {
    "GROUPING SETS behind keys": Text(
        "SELECT a, b, COUNT(*) AS n FROM t GROUP BY a, b GROUPING SETS ((a), (a, b))", ("a", "b")
    ),
    "WITH CUBE": Text("SELECT a, b, COUNT(*) AS n FROM t GROUP BY a, b WITH CUBE", ("a", "b")),
    "COUNT_IF over nothing": Text("SELECT 1 AS k, COUNT_IF(v > 0) AS n FROM t WHERE id > 100", ("k",)),
    "COUNT_IF of groups": Text("SELECT a, COUNT_IF(v > 1) AS n FROM t WHERE a >= 0 GROUP BY a", ("a",)),
    "COUNT_IF in HAVING": Text(
        "SELECT a, COUNT(*) AS n FROM t WHERE a >= 0 GROUP BY a HAVING COUNT_IF(v > 2) = 0", ("a",)
    ),
    "a group of a literal": Text("SELECT 2 AS k, a, COUNT(*) AS n FROM t WHERE a >= 0 GROUP BY k, a", ("a",)),
    "a group of a literal below": Text(
        "SELECT q.k, q.a, SUM(q.v) AS s FROM (SELECT 3 AS k, a, v FROM t WHERE a >= 0) q GROUP BY q.k, q.a", ("a",)
    ),
    "GROUP BY ALL": Text("SELECT a, COUNT(*) AS n FROM t WHERE a >= 0 GROUP BY ALL", ("a",)),
    "GROUP BY ALL of aggregates": Text("SELECT COUNT(*) AS n, SUM(v) AS s FROM t GROUP BY ALL", ("n",)),
    "a position": Text("SELECT COUNT(*) AS n, a FROM t WHERE a >= 0 GROUP BY 2", ("a",)),
    "HAVING by the name of an output": Text(
        "SELECT a, SUM(v) AS s FROM t WHERE a >= 0 GROUP BY a HAVING s > 1", ("a",)
    ),
    "sums over nothing": Text("SELECT COUNT(*) AS n, SUM(v) AS s, MIN(v) AS m FROM t WHERE id > 100", ("n",)),
}
NAMES: Mapping[str, Text] = {
    "an order of DISTINCT": Text("SELECT DISTINCT t.id, a AS k FROM t ORDER BY k DESC, t.id LIMIT 3"),
    "an order of DISTINCT by a sum": Text("SELECT DISTINCT id, a FROM t ORDER BY id - a DESC LIMIT 3"),
    "a signed number": Text("SELECT id, +1 AS p, a - +2 AS q, + -3 AS r FROM t"),
    "a name of a truth value": Text("SELECT id, a AS unknown FROM t"),
    "an output in a later one": Text("SELECT id, v + 1 AS w, w * 2 AS x FROM t"),
    "an output named like a column": Text("SELECT id, v AS a, a + 1 AS x FROM t"),
    "an order by an output": Text("SELECT id, -v AS v FROM t WHERE v >= 0 ORDER BY v, id LIMIT 3"),
    "WITH in WITH": Text(
        "WITH a AS (WITH a AS (SELECT id FROM t WHERE id > 3) SELECT id FROM a WHERE id < 8) SELECT id FROM a"
    ),
    "WITH below a subquery": Text(
        "WITH c AS (SELECT id FROM u) SELECT c.id FROM c JOIN (WITH c AS (SELECT id FROM t WHERE v > 1) SELECT id "
        "FROM c) q ON q.id = c.id"
    ),
    "a join in parentheses": Text("SELECT t.id, u.c FROM t JOIN (u JOIN r ON r.a = u.a) ON u.id = t.id"),
    "INTERSECT before UNION": Text("SELECT a FROM t UNION SELECT a FROM u INTERSECT SELECT a FROM r", ("a",)),
    "EXCEPT, then UNION ALL": Text(
        "SELECT id FROM t EXCEPT SELECT id FROM u UNION ALL SELECT id + 100 FROM u WHERE id > 3"
    ),
    "tables after commas": Text("SELECT t.id, r.c FROM t, r WHERE t.a = r.a"),
    "an inner name before an outer one": Text(
        "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.id = id AND v > 2)"
    ),
    "names without case": Text("SELECT T.ID, v AS W FROM t WHERE T.a = 1", ("ID",)),
}


def _window(text: str, settled: str | None = None, table: str = "p") -> Text:
    return Text(f"SELECT id, {text} AS x FROM {table}", settled=settled and f"SELECT id, {settled} AS x FROM {table}")


FRAMES: Mapping[str, Text] = {
    "LAST_VALUE of equal rows": _window(
        "LAST_VALUE(v) OVER (ORDER BY g)", f"LAST_VALUE(v) OVER (PARTITION BY g ORDER BY id {ALL_ROWS})"
    ),
    "NTH_VALUE of equal rows": _window(
        "NTH_VALUE(v, 2) OVER (ORDER BY g)",
        f"CASE WHEN COUNT(*) OVER (ORDER BY g) >= 2 THEN NTH_VALUE(v, 2) OVER (ORDER BY g, id {ALL_ROWS}) END",
    ),
    "LAST_VALUE of equal rows in parts": _window(
        "LAST_VALUE(id) OVER (PARTITION BY a ORDER BY b DESC)",
        f"LAST_VALUE(id) OVER (PARTITION BY a, b ORDER BY id {ALL_ROWS})",
        "t",
    ),
    "NTH_VALUE of equal values": _window("NTH_VALUE(g, 2) OVER (PARTITION BY g ORDER BY g)"),
    "FIRST_VALUE of equal rows": _window("FIRST_VALUE(v) OVER (ORDER BY g)", "FIRST_VALUE(v) OVER (ORDER BY g, id)"),
    "a sum up to the last equal row": _window("SUM(v) OVER (ORDER BY g)"),
    "a count up to the last equal row": _window("COUNT(v) OVER (PARTITION BY a ORDER BY b)", table="t"),
    "a sum of two rows": _window(
        "SUM(v) OVER (ORDER BY g ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
        "SUM(v) OVER (ORDER BY g, id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)",
    ),
    "the row before": _window("LAG(v) OVER (PARTITION BY g ORDER BY v)", "LAG(v) OVER (PARTITION BY g ORDER BY v, id)"),
    "LAST_VALUE up to its row": _window(
        "LAST_VALUE(v) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    ),
    "LAST_VALUE of all": _window(f"LAST_VALUE(v) OVER (PARTITION BY g ORDER BY id {ALL_ROWS})"),
    "ranks": _window("RANK() OVER (ORDER BY g) * 100 + DENSE_RANK() OVER (ORDER BY v DESC)"),
    "NULL first, and last in a descending order": _window("ROW_NUMBER() OVER (ORDER BY v DESC, g, id)"),
    "NULL where the text says": _window("ROW_NUMBER() OVER (ORDER BY v NULLS LAST, g DESC NULLS FIRST, id)"),
    "a window with a name": Text(
        "SELECT id, SUM(v) OVER w AS x, COUNT(*) OVER w AS y FROM p WINDOW w AS (PARTITION BY g)"
    ),
    "a limit of equal rows": Text(
        "SELECT id, v FROM p WHERE v >= 3 ORDER BY v LIMIT 3",
        settled="SELECT id, v FROM p WHERE v >= 3 ORDER BY v, id LIMIT 3",
    ),
}


def _of_cases() -> dict[str, Text]:
    import nexmark

    texts = {name: Text(sql, scope, "integers") for name, (sql, scope, _) in CASES.items()}
    texts["functions of a row"] = Text(view_functions.of_rows(), ("k",), "kinds")
    texts["aggregates"] = Text(view_functions.of_groups(), ("k",), "kinds")
    texts |= {f"a query of kinds, {n}": Text(sql, ("k",), "kinds") for n, sql in enumerate(view_functions.WHOLE)}
    for group, tables, views in (
        ("shop", "shop", view_shop.VIEWS),
        ("sums", "shop", view_sums.VIEWS),
        ("large shop", "large shop", view_lookups.VIEWS),
        ("nexmark", "nexmark", nexmark.VIEWS),
    ):
        texts |= {f"{group}: {name}": Text(sql, tuple(key), tables) for name, (sql, key) in views.items()}
    return texts


READING: Mapping[str, Mapping[str, Text]] = {
    "quotes": QUOTES,
    "numbers": NUMBERS,
    "predicates": PREDICATES,
    "column lists": COLUMN_LISTS,
    "USING": USING,
    "groups": GROUPS,
    "names": NAMES,
    "frames": FRAMES,
}
"""Texts that are easily read wrongly."""
TEXTS: Mapping[str, Text] = {
    **{f"{group}: {name}": text for group, texts in READING.items() for name, text in texts.items()},
    **_of_cases(),
}
REFUSED = frozenset({
    "quotes: a raw literal", "numbers: a sum with 0D", "numbers: || before a minus", "groups: WITH CUBE",
    "names: an output in a later one",
    "names: a join in parentheses", "IN as a value", "a rollup",
})  # fmt: skip
"""Texts that no view on DuckDB can have."""
OTHERWISE = frozenset({
    "IN as a value", "EXISTS in EXISTS", "HAVING with a subquery and grouping sets",
    "a subquery beside a correlated global aggregate",
})  # fmt: skip
"""Texts that Spark refuses, or answers otherwise than DuckDB. They show rules of plans, which hold on each engine."""
