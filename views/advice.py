"""Advice for refused queries: the text as the user wrote it, and an equivalent that a view can have (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from sqlglot import exp

from . import syntax

BY_PYTHON = "a Python refresh can compute it: store.create_job(…)"
"""Advice for what no query of a view can say."""
_ROW_NUMBER = "number the rows with ROW_NUMBER() OVER (PARTITION BY … ORDER BY …) in a subquery and take row 1"
_PARTS = "write YEAR, QUARTER, MONTH, DAY, HOUR, MINUTE or SECOND of the value"
_COLUMN = (
    "write its fields or elements into columns of the table, or read them in a Python refresh: store.create_job(…)"
)
_ROWS = "write each element as a row of a table, or make the rows in a Python refresh: store.create_job(…)"
_CASE = "write CASE WHEN … THEN … ELSE … END"
_TEXT = "keep the changed text in a column of the table"
_GROUPS = "write one SELECT with GROUP BY for each set of columns, and UNION ALL of them"
_MOMENT = "keep the moment in a row of a table of the store, and join that table"

ADVICE: Mapping[str, str] = {
    # clauses
    "ALL": "write NOT EXISTS (SELECT … WHERE NOT COALESCE(…, FALSE))",
    "ANY": "write EXISTS (SELECT … WHERE …), or IN",
    "CLUSTER BY": "leave it out, because a view's rows have no order",
    "CUBE": _GROUPS,
    "DISTRIBUTE BY": "leave it out, because a view's rows have no order",
    "GROUPING SETS": _GROUPS,
    "HINT": "leave it out",
    "LATERAL": "join a subquery with GROUP BY, or number its rows with ROW_NUMBER",
    "LATERAL VIEW": _ROWS,
    "PIVOT": "write an aggregate with FILTER (WHERE …) for each column",
    "QUALIFY": "put the window into a subquery, and its condition into WHERE around it",
    "ROLLUP": _GROUPS,
    "TABLESAMPLE": "choose the rows by a condition on their key",
    "SORT BY": "leave it out, because a view's rows have no order",
    "UNPIVOT": "write one SELECT for each column, and UNION ALL of them",
    "VALUES": "write the rows into a table of the store",
    # aggregates
    "ANY_VALUE": "write MIN or MAX",
    "APPROX_COUNT_DISTINCT": "write COUNT(DISTINCT …)",
    "FIRST": _ROW_NUMBER,
    "LAST": _ROW_NUMBER,
    "MAX_BY": _ROW_NUMBER,
    "MIN_BY": _ROW_NUMBER,
    # moments
    "CURRENT_DATE": _MOMENT,
    "CURRENT_TIMESTAMP": _MOMENT,
    "NOW": _MOMENT,
    # dates and times
    "DATEADD": "write DATE_ADD(day, number) for a date, or add an INTERVAL to a timestamp",
    "DATE_DIFF": "write DATEDIFF(end, start), which takes dates and counts days",
    "DATE_FORMAT": f"{_PARTS}, or CAST(… AS DATE)",
    "DATE_PART": _PARTS,
    "DATE_TRUNC": "write DATE_TRUNC(…, CAST(… AS TIMESTAMP))",
    "EXTRACT": _PARTS,
    "INTERVAL": "write DATE_ADD(date, number) for a date, or timestamp + INTERVAL '1' DAY, HOUR, MINUTE or SECOND",
    "TIMESTAMPDIFF": "write DATEDIFF(end, start), which takes dates and counts days",
    "TRUNC": "write CAST(DATE_TRUNC(…, CAST(… AS TIMESTAMP)) AS DATE)",
    # texts
    "ILIKE": "write LIKE, with OR for each spelling",
    "RLIKE": "write LIKE, if a pattern of % and _ is enough",
    "REGEXP_LIKE": "write LIKE, if a pattern of % and _ is enough",
    "LOWER": _TEXT,
    "UPPER": _TEXT,
    "LCASE": _TEXT,
    "UCASE": _TEXT,
    "CONCAT_WS": "write CONCAT or ||, with COALESCE for values that can be NULL",
    "BTRIM": "write TRIM",
    # numbers and conditions
    "DECODE": _CASE,
    "NVL2": _CASE,
    "SIGN": "write CASE WHEN x > 0 THEN 1 WHEN x < 0 THEN -1 WHEN x = 0 THEN 0 END",
    "SIGNUM": "write CASE WHEN x > 0 THEN 1 WHEN x < 0 THEN -1 WHEN x = 0 THEN 0 END",
    "PMOD": "write ((x % 7) + 7) % 7 for the divisor 7",
    "POWER": "write x * x for a square",
    "POW": "write x * x for a square",
    # nested values
    "EXPLODE": _ROWS,
    "EXPLODE_OUTER": _ROWS,
    "POSEXPLODE": _ROWS,
    "INLINE": _ROWS,
    "BRACKET": _COLUMN,
    "DOT": _COLUMN,
}
"""Equivalents by the name of a function or clause as it is written; other names have none within a view."""

_CLAUSES = {"laterals": "LATERAL VIEW", "sort": "SORT BY", "cluster": "CLUSTER BY", "distribute": "DISTRIBUTE BY"}
_NODES = {"GROUPINGSETS": "GROUPING SETS", "REGEXPLIKE": "RLIKE", "INTDIV": "DIV"}
_MOST_CHARACTERS = 100
_NAME = re.compile(r"([A-Za-z_]\w*)\s*(?:\(|$)")


MOST_NAMES = 20
"""Most names of columns that an error lists."""


def refusal(text: str, name: str, reason: str = "") -> str:
    """Return the message for a function or clause that no view has, with what to write in its place."""
    because = f": {reason}" if reason else ""
    if name in ADVICE:
        return f"a view cannot have {text}{because}{'; ' if reason else ': '}{ADVICE[name]}"
    return f"a view cannot have {text}{because}, but {BY_PYTHON}"


def clause_name(argument: str) -> str:
    """Return the name in SQL of an argument of a parsed SELECT."""
    return _CLAUSES.get(argument, argument.strip("_").upper())


def name_of(node: exp.Expr) -> str:
    """Return the name of a function or clause as it is written, in upper case."""
    if isinstance(node, exp.Pivot):
        return "UNPIVOT" if node.args.get("unpivot") else "PIVOT"
    if isinstance(node, exp.Lateral):
        return "LATERAL" if isinstance(node.this, exp.Query) else "LATERAL VIEW"
    key = node.key.upper()
    match = None if key in _NODES else _NAME.match(written(node))
    return match[1].upper() if match else _NODES.get(key, key)


def note_texts(query: exp.Expr, sql: str) -> None:
    """Keep on each column and function of a parsed query its text, which copies and the normal form keep too."""
    for node in query.walk():
        if isinstance(node, exp.Column):
            node.meta["written"] = node.sql(syntax.DIALECT)
        elif isinstance(node, exp.Func) and "start" in node.meta:
            node.meta["written"] = _call_at(sql, node.meta["start"], node.meta["end"] + 1)


def keep_text(node: exp.Expr, of: exp.Column) -> exp.Expr:
    """Return the node that a column means; a column with the text of that column."""
    if isinstance(node, exp.Column) and "written" in of.meta:
        node.meta["written"] = of.meta["written"]
    return node


def written(node: exp.Expr) -> str:
    """Return the text of an expression or clause as the user wrote it, shortened."""
    text = node.meta.get("written") or _generated(node)
    text = " ".join(text.split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def _generated(node: exp.Expr) -> str:
    if isinstance(node, exp.SetOperation):
        return node.key.upper()
    if isinstance(node, exp.Select):
        return "SELECT DISTINCT" if node.args.get("distinct") else "SELECT"
    if isinstance(node, exp.Join):
        on = node.args.get("on")
        return "JOIN" if on is None else f"ON {written(on)}"
    if isinstance(node, exp.Where | exp.Having):
        return f"{node.key.upper()} {written(node.this.unnest())}"
    node = node.copy()
    for child in list(syntax.walk(node)):
        if child is node or child.parent is None:
            continue
        if isinstance(child, exp.Query):
            child.replace(exp.Var(this="(SELECT …)" if isinstance(child, exp.Subquery) else "SELECT …"))
        elif "written" in child.meta or isinstance(child, exp.Column):
            child.replace(exp.Var(this=child.meta.get("written") or child.name))
    return node.sql(syntax.DIALECT)


def _call_at(sql: str, start: int, end: int) -> str:
    """Return the call of a function whose name stands in sql[start:end]; its name alone without parentheses."""
    depth, quote = 0, ""
    for position in range(end, len(sql)):
        character = sql[position]
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"`":
            quote = character
        elif character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
            if depth <= 0:
                return sql[start : position + (depth == 0)]
        elif not depth and not character.isspace():
            break
    return sql[start:end]


def hint_for_column(column: exp.Column, sources: Mapping[str, Sequence[str]]) -> str:
    """Return what to write in place of an unknown column, for an error. sources: columns by the names in FROM."""
    table = next((name for name in sources if name.lower() == column.table.lower()), None)
    if column.table and table is None:
        return f"; FROM has {', '.join(sources) or 'no table'}, and not {column.table}"
    known = [name for source, names in sources.items() if table in (None, source) for name in names]
    near = get_close_matches(column.name, known, 1)
    if near:
        return f"; did you mean {near[0]}?"
    listed = list(dict.fromkeys(known))
    return f"; the columns are {', '.join(listed[:MOST_NAMES])}{', …' * (len(listed) > MOST_NAMES)}" if listed else ""
