"""Queries whose orders leave ties, and the columns that these leave as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

TIES: Mapping[str, tuple[str, Sequence[str]]] = {
    "a limit": ("SELECT id, v FROM t ORDER BY v LIMIT 3", ["v"]),
    "a limit of a union": ("SELECT a, v FROM t UNION ALL SELECT c, v FROM u ORDER BY v LIMIT 4", ["v"]),
    "a limit below IN": ("SELECT id, 1 AS k FROM u WHERE a IN (SELECT a FROM t ORDER BY b LIMIT 2)", []),
    "a window": ("SELECT id, a, v, ROW_NUMBER() OVER (PARTITION BY a ORDER BY v) AS n FROM t", ["a", "v", "n"]),
    "a window over a join": (
        (
            "SELECT t.id, u.id AS other, t.a, t.v, ROW_NUMBER() OVER (PARTITION BY t.a ORDER BY t.v) AS n "
            "FROM t JOIN u ON u.a = t.a"
        ),
        ["a", "v", "n"],
    ),
    "a window over groups": (
        "SELECT a, b, COUNT(*) AS c, ROW_NUMBER() OVER (PARTITION BY a ORDER BY COUNT(*)) AS n FROM t GROUP BY a, b",
        ["a", "c", "n"],
    ),
    "a window over grouping sets": (
        (
            "SELECT a, b, COUNT(*) AS c, MAX(v) AS v, ROW_NUMBER() OVER (PARTITION BY a ORDER BY MAX(v)) AS n FROM t "
            "GROUP BY GROUPING SETS ((a, b), (a))"
        ),
        ["a", "v", "n"],
    ),
    "a window over a rollup": (
        "SELECT a, b, COUNT(*) AS c, ROW_NUMBER() OVER (ORDER BY COUNT(*)) AS n FROM t GROUP BY ROLLUP (a, b)",
        ["c", "n"],
    ),
    "a window over distinct rows": (
        "SELECT a, b, ROW_NUMBER() OVER (PARTITION BY a ORDER BY a) AS n FROM (SELECT DISTINCT a, b FROM t) x",
        ["a", "n"],
    ),
    "the first of each group": (
        (
            "SELECT a, id, v FROM (SELECT a, id, v, ROW_NUMBER() OVER (PARTITION BY a ORDER BY v DESC) AS n FROM t) q "
            "WHERE n = 1"
        ),
        ["a", "v"],
    ),
    "a frame of rows": (
        (
            "SELECT id, a, v, SUM(b) OVER (PARTITION BY a ORDER BY v ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS s "
            "FROM t"
        ),
        ["id", "a", "v"],
    ),
    "the last of equal rows": (
        "SELECT id, a, v, LAST_VALUE(id) OVER (PARTITION BY a ORDER BY v) AS last FROM t",
        ["id", "a", "v"],
    ),
    "the second of a frame": (
        "SELECT id, a, v, NTH_VALUE(id, 2) OVER (PARTITION BY a ORDER BY v) AS second FROM t",
        ["id", "a", "v"],
    ),
    "the row before": ("SELECT id, a, v, LAG(id) OVER (PARTITION BY a ORDER BY v) AS before FROM t", ["id", "a", "v"]),
}
"""Query of each case, and the columns whose values ties leave as they are."""


def certain_part(sql: str, columns: Sequence[str]) -> str:
    """Return the text of the columns that ties leave as they are."""
    return f"SELECT {', '.join(columns)} FROM ({sql}) q"
