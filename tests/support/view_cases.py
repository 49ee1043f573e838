"""Queries on which incremental refreshes are known to go wrong.

Each has the scope of a change of `t`, and the tables of which a change recomputes all rows.
"""

from __future__ import annotations

from collections.abc import Mapping

Case = tuple[str, tuple[str, ...], tuple[str, ...]]

CASES: Mapping[str, Case] = {
    "an aggregate": (
        "SELECT a, SUM(v) AS s, COUNT(*) AS n FROM t GROUP BY a",
        ("a",),
        (),
    ),
    "a join": (
        "SELECT t.a, u.c, COUNT(*) AS n FROM t JOIN u ON t.b = u.a GROUP BY t.a, u.c",
        ("a", "c"),
        (),
    ),
    "a null-safe join": (
        "SELECT t.a, COUNT(*) AS n FROM t JOIN u ON t.b <=> u.c GROUP BY t.a",
        ("a",),
        (),
    ),
    "a left join": (
        "SELECT r.a, COALESCE(SUM(t.v), 0) AS s FROM r LEFT JOIN t ON t.b = r.a GROUP BY r.a",
        ("a",),
        (),
    ),
    "grouped by the right side of a left join": (
        "SELECT r.c, COUNT(*) AS n FROM t LEFT JOIN r ON r.a = t.a GROUP BY r.c",
        ("c",),
        (),
    ),
    "an anti join by NULL": (
        "SELECT t.id FROM t LEFT JOIN u ON u.a = t.a WHERE u.id IS NULL",
        ("id",),
        (),
    ),
    "a snowflake of left joins": (
        "SELECT t.id, u.c, r.c AS d FROM t LEFT JOIN u ON u.id = t.a LEFT JOIN r ON r.a = u.c",
        ("id",),
        (),
    ),
    "a snowflake of left joins by a null-safe condition": (
        "SELECT t.id, r.c AS d FROM t LEFT JOIN u ON u.id = t.a LEFT JOIN r ON r.a <=> u.c",
        ("id",),
        (),
    ),
    "a left join below an inner one": (
        "SELECT t.id, u.id AS other FROM t LEFT JOIN u ON u.a = t.a JOIN r ON r.a = u.c",
        ("id",),
        (),
    ),
    "an inner join below a right join": (
        "SELECT e.a, e.b, u.c FROM t JOIN u ON u.a = t.a RIGHT JOIN e ON e.v = t.b",
        ("a", "b"),
        (),
    ),
    "a right join": (
        "SELECT u.id, t.v FROM t RIGHT JOIN u ON t.id = u.id",
        ("id",),
        (),
    ),
    "a full join": (
        "SELECT COALESCE(t.id, u.id) AS id, t.v, u.c FROM t FULL JOIN u ON t.id = u.id",
        ("id",),
        (),
    ),
    "a full join of groups": (
        (
            "SELECT COALESCE(x.a, y.a) AS a, x.s, y.n FROM (SELECT a, SUM(v) AS s FROM t GROUP BY a) x FULL "
            "JOIN (SELECT a, COUNT(*) AS n FROM u GROUP BY a) y ON x.a = y.a WHERE COALESCE(x.a, y.a) IS NOT "
            "NULL"
        ),
        ("a",),
        (),
    ),
    "both sides of a full join": (
        "SELECT t.a, u.c, COUNT(*) AS n FROM t FULL JOIN u ON t.b = u.a GROUP BY t.a, u.c",
        ("a", "c"),
        (),
    ),
    "a full join below a left join": (
        (
            "SELECT COALESCE(t.id, u.id) AS id, r.c FROM t FULL JOIN u ON t.id = u.id LEFT JOIN r ON r.a = "
            "COALESCE(t.a, u.a)"
        ),
        ("id",),
        (),
    ),
    "USING of a full join": (
        "SELECT id, t.v, u.c FROM t FULL JOIN u USING (id)",
        ("id",),
        (),
    ),
    "USING of a right join": (
        "SELECT id, t.v, u.c FROM t RIGHT JOIN u USING (id)",
        ("id",),
        (),
    ),
    "a subquery in the ON of a left join": (
        "SELECT t.id, u.id AS other FROM t LEFT JOIN u ON u.a = t.a AND EXISTS (SELECT 1 FROM r WHERE r.a = u.c)",
        ("id",),
        (),
    ),
    "a semi join": (
        "SELECT t.id, t.v FROM t LEFT SEMI JOIN u ON u.a = t.a",
        ("id",),
        (),
    ),
    "an anti join": (
        "SELECT t.id, t.v FROM t LEFT ANTI JOIN u ON u.a = t.a AND u.v > 1",
        ("id",),
        (),
    ),
    "EXISTS": (
        "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a)",
        ("id",),
        (),
    ),
    "NOT EXISTS": (
        "SELECT id FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND u.c > 0)",
        ("id",),
        (),
    ),
    "a condition or EXISTS": (
        "SELECT id, v FROM t WHERE v > 2 OR EXISTS (SELECT 1 FROM u WHERE u.a = t.a)",
        ("id",),
        (),
    ),
    "IN": (
        "SELECT id FROM t WHERE t.a IN (SELECT a FROM u)",
        ("id",),
        (),
    ),
    "NOT IN with NULL": (
        "SELECT id FROM t WHERE t.a NOT IN (SELECT c FROM u)",
        ("id",),
        (),
    ),
    "NOT IN, correlated": (
        "SELECT id FROM t WHERE t.a NOT IN (SELECT c FROM u WHERE u.a = t.b)",
        ("id",),
        (),
    ),
    "IN as a value": (
        "SELECT id, t.a IN (SELECT c FROM u) AS known FROM t",
        ("id",),
        (),
    ),
    "IN of a pair": (
        "SELECT id FROM t WHERE (t.a, t.b) IN (SELECT a, b FROM e)",
        ("id",),
        (),
    ),
    "a window below IN": (
        (
            "SELECT id FROM t WHERE t.v IN (SELECT q.v FROM (SELECT v, a, ROW_NUMBER() OVER (PARTITION BY a "
            "ORDER BY id) AS n FROM u) q WHERE q.n = 1 AND q.a = t.a)"
        ),
        ("id",),
        (),
    ),
    "a limit below IN": (
        "SELECT id FROM t WHERE t.v IN (SELECT v FROM u ORDER BY id LIMIT 2)",
        ("id",),
        ("u",),
    ),
    "a limit of other tables below IN": (
        "SELECT id FROM t WHERE t.v IN (SELECT v FROM cfg ORDER BY id LIMIT 2)",
        ("id",),
        ("cfg",),
    ),
    "a scalar subquery": (
        "SELECT id, (SELECT MAX(u.v) FROM u WHERE u.a = t.a) AS m FROM t",
        ("id",),
        (),
    ),
    "a count in a condition": (
        "SELECT id FROM t WHERE (SELECT COUNT(*) FROM u WHERE u.a = t.a) = 0",
        ("id",),
        (),
    ),
    "EXISTS in EXISTS": (
        (
            "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.a AND NOT EXISTS (SELECT 1 FROM r "
            "WHERE r.a = u.c AND r.c = t.b))"
        ),
        ("id",),
        (),
    ),
    "HAVING with a subquery": (
        "SELECT a, COUNT(*) AS n FROM t GROUP BY a HAVING COUNT(*) > (SELECT COUNT(*) FROM u WHERE u.a = t.a)",
        ("a",),
        (),
    ),
    "HAVING with a subquery and grouping sets": (
        (
            "SELECT a, b, COUNT(*) AS n FROM t GROUP BY GROUPING SETS ((a, b), (a)) HAVING COUNT(*) > (SELECT "
            "COUNT(*) FROM u WHERE u.a <=> t.a AND u.c <=> t.b)"
        ),
        ("a",),
        (),
    ),
    "a global aggregate": (
        "SELECT 1 AS k, COUNT(*) AS n FROM t",
        (),
        ("t",),
    ),
    "a global aggregate over no rows": (
        "SELECT t.id, x.n FROM t JOIN (SELECT 1 AS k, COUNT(*) AS n FROM cfg WHERE v > 9) x ON x.k = t.a",
        ("id",),
        (),
    ),
    "a subquery beside a global aggregate": (
        (
            "SELECT t.id FROM t WHERE t.v = (SELECT COUNT(*) + COALESCE((SELECT MAX(u.v) FROM u), 0) FROM r "
            "WHERE r.a > 8)"
        ),
        ("id",),
        ("r", "u"),
    ),
    "a rollup": (
        "SELECT a, b, COUNT(*) AS n FROM t GROUP BY ROLLUP (a, b)",
        (),
        ("t",),
    ),
    "grouping sets with one column in all": (
        "SELECT a, b, COUNT(*) AS n FROM t GROUP BY GROUPING SETS ((a, b), (a))",
        ("a",),
        (),
    ),
    "a window": (
        "SELECT id, a, ROW_NUMBER() OVER (PARTITION BY a ORDER BY v, id) AS n FROM t",
        ("a",),
        (),
    ),
    "windows of two partitions": (
        "SELECT id, a, b, COUNT(*) OVER (PARTITION BY a) AS n, SUM(v) OVER (PARTITION BY b) AS s FROM t",
        (),
        ("t",),
    ),
    "a window over a join": (
        (
            "SELECT t.id, t.a, u.id AS other, RANK() OVER (PARTITION BY t.a ORDER BY u.v) AS n FROM t JOIN u ON "
            "u.c = t.b"
        ),
        ("a",),
        (),
    ),
    "the first of each group": (
        (
            "SELECT a, id, v FROM (SELECT a, id, v, ROW_NUMBER() OVER (PARTITION BY a ORDER BY v DESC, id) AS n "
            "FROM t) q WHERE n = 1"
        ),
        ("a",),
        (),
    ),
    "a limit": (
        "SELECT id, v FROM t ORDER BY v, id LIMIT 3",
        (),
        ("t",),
    ),
    "a scope outside of the key": (
        "SELECT a, MAX(v) AS m FROM t GROUP BY a",
        ("a",),
        (),
    ),
    "DISTINCT": (
        "SELECT DISTINCT a, b FROM t",
        ("a", "b"),
        (),
    ),
    "a union with tags": (
        "SELECT 0 AS tag, id, a FROM t UNION ALL SELECT 1 AS tag, id, c FROM u",
        ("id",),
        (),
    ),
    "a union": (
        "SELECT a FROM t UNION SELECT c FROM u",
        ("a",),
        (),
    ),
    "EXCEPT": (
        "SELECT a FROM t EXCEPT SELECT c FROM u",
        ("a",),
        (),
    ),
    "EXCEPT ALL": (
        "SELECT a FROM t EXCEPT ALL SELECT c FROM u",
        ("a",),
        (),
    ),
    "INTERSECT": (
        "SELECT a FROM t INTERSECT SELECT c FROM u",
        ("a",),
        (),
    ),
    "EXCEPT beside a join": (
        "SELECT r.a, x.k FROM r JOIN (SELECT a AS k FROM t EXCEPT SELECT c FROM u) x ON x.k = r.c",
        ("a",),
        (),
    ),
    "a self join": (
        "SELECT x.id, COUNT(*) AS n FROM t x JOIN t y ON x.a = y.b AND x.id < y.id GROUP BY x.id",
        ("id",),
        (),
    ),
    "a self left join": (
        "SELECT x.id, y.v FROM t x LEFT JOIN t y ON y.id = x.a",
        ("id",),
        (),
    ),
    "a CTE used twice": (
        (
            "WITH s AS (SELECT a, SUM(v) AS s FROM t GROUP BY a) SELECT x.a, x.s, y.s AS other FROM s x LEFT "
            "JOIN s y ON y.a = x.a + 1 WHERE x.a IS NOT NULL"
        ),
        ("a",),
        (),
    ),
    "a CTE named like a table": (
        "WITH t AS (SELECT id, a FROM t WHERE v > 0) SELECT t.id, u.c FROM t JOIN u ON u.a = t.a",
        ("id",),
        (),
    ),
    "a table of one row beside": (
        "SELECT t.id, cfg.v FROM t CROSS JOIN cfg",
        ("id",),
        (),
    ),
    "a comparison with a global aggregate": (
        "SELECT id FROM t WHERE v > (SELECT AVG(v) FROM u)",
        ("id",),
        ("u",),
    ),
    "levels of aggregates": (
        "SELECT s, COUNT(*) AS n FROM (SELECT a, SUM(v) AS s FROM t GROUP BY a) GROUP BY s",
        (),
        ("t",),
    ),
    "levels of aggregates by one column": (
        (
            "SELECT c, MAX(s) AS m FROM (SELECT r.c, t.a, SUM(t.v) AS s FROM t JOIN r ON r.a = t.a GROUP BY "
            "r.c, t.a) GROUP BY c"
        ),
        ("c",),
        (),
    ),
    "an expression as the key": (
        "SELECT COALESCE(a, -1) * 10 + id AS k, v FROM t WHERE CASE WHEN v IS NULL THEN a > 1 ELSE v < 3 END",
        ("k",),
        (),
    ),
    "a subquery beside a correlated global aggregate": (
        (
            "SELECT t.id FROM t WHERE t.v <= (SELECT COUNT(*) + COALESCE((SELECT MAX(u.v) FROM u WHERE u.a = t.a), 0) "
            "FROM r WHERE r.c = t.b)"
        ),
        ("id",),
        (),
    ),
}

OF_KEYS = {
    "t": "SELECT u.id, SUM(t.v) AS s FROM t JOIN u ON t.id = u.id GROUP BY u.id",
    "u": "SELECT u.id, t.v, r.c FROM t JOIN u ON t.id = u.id JOIN r ON r.a = u.a",
    "e": "SELECT e.a, e.b, COUNT(*) AS n FROM e JOIN t ON e.a = t.a AND e.b = t.b WHERE e.v > 1 GROUP BY e.a, e.b",
    "r": "SELECT t.a, MAX(t.v) AS v FROM t, r WHERE r.a = t.a AND r.c > 0 GROUP BY t.a",
}
"""Queries whose scope is a key of that table."""
OF_OTHERS = {
    "t": "SELECT u.c, COUNT(*) AS n FROM t JOIN u ON t.id = u.id GROUP BY u.c",
    "u": "SELECT t.id, u.c FROM t LEFT JOIN u ON t.id = u.id",
    "r": "SELECT t.id, r.c FROM t JOIN r ON r.c = t.id",
    "e": "SELECT t.id, e.v FROM t JOIN e ON e.a <=> t.id",
}
OF_AN_OUTER_JOIN = "SELECT r.a, COUNT(*) AS n FROM t LEFT JOIN r ON r.a = t.id GROUP BY r.a"
COUNTED = "SELECT r.a, COUNT(*) AS n FROM r LEFT JOIN t ON t.b = r.a GROUP BY r.a"
"""Counts over outer joins."""

OF_ROWS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "one table": ("SELECT id, a, v + 1 AS w FROM t WHERE v > 0 OR a IS NULL", ("id",)),
    "a key of two columns": ("SELECT a, b, v FROM e WHERE v <> 1", ("a", "b")),
    "a key with another column": ("SELECT id, v, a FROM t WHERE v IS NOT NULL", ("id", "v")),
    "a dimension": ("SELECT t.id, r.c, t.v FROM t JOIN r ON r.a = t.a", ("id",)),
    "two dimensions": (
        "SELECT t.id, r.c, u.v FROM t JOIN r ON r.a = t.a JOIN u ON u.id = t.b WHERE u.v > 0",
        ("id",),
    ),
    "a chain": ("SELECT t.id, u.v, r.c FROM t JOIN u ON u.id = t.a JOIN r ON r.a = u.a", ("id",)),
    "a table joined with itself": ("SELECT x.id, x.v + y.v AS s FROM t x JOIN t y ON y.id = x.a", ("id",)),
    "values compared": ("SELECT x.id, y.v FROM t x JOIN t y ON y.id = x.a AND x.v < y.v", ("id",)),
    "a dimension of two columns": ("SELECT t.id, e.v FROM t JOIN e ON e.a = t.a AND e.b = t.b", ("id",)),
    "keys of both tables": ("SELECT t.id, u.id AS other, t.v FROM t JOIN u ON u.a = t.a", ("id", "other")),
    "a condition in WHERE": ("SELECT t.id, cfg.v FROM t, cfg WHERE cfg.id = t.a", ("id",)),
    "a key by an equality": ("SELECT u.id AS k, t.v FROM t JOIN u ON u.id = t.id", ("k",)),
}
"""Queries, with a key of each view, whose rows follow from the changes alone (R11)."""

OF_OTHER_ROWS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "a join without a key": ("SELECT t.id, u.v FROM t JOIN u ON u.a = t.a", ("id",)),
    "an outer join": ("SELECT t.id, r.c FROM t LEFT JOIN r ON r.a = t.a", ("id",)),
    "a key that is computed": ("SELECT id + 0 AS k, v FROM t", ("k",)),
    "a null-safe equality": ("SELECT t.id, u.v FROM t JOIN u ON u.id <=> t.a", ("id",)),
    "a group": ("SELECT id, COUNT(*) AS n FROM t GROUP BY id", ("id",)),
    "DISTINCT": ("SELECT DISTINCT id, v FROM t", ("id",)),
    "a window": ("SELECT id, ROW_NUMBER() OVER (PARTITION BY a ORDER BY id) AS n FROM t", ("id",)),
    "a subquery": ("SELECT id, v FROM t WHERE a IN (SELECT a FROM u)", ("id",)),
    "another column's key": ("SELECT id, v, b FROM t", ("b",)),
    "LIMIT": ("SELECT id, v FROM t ORDER BY id LIMIT 3", ("id",)),
    "a set operation": ("SELECT id, v FROM t UNION ALL SELECT id, v FROM u", ("id",)),
}
"""Queries, with a key, of which that does not follow."""
