"""Parsing of a view's query, and refusal of what a view cannot have: all that is not listed here.

A query that passes has one answer for its tables' rows, on each run and on each engine that has its functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError

from epochlog.errors import InvalidInput

from . import syntax
from .advice import ADVICE, clause_name, name_of, note_texts, refusal, written

_CLAUSES = (
    *(exp.Select, exp.Union, exp.Except, exp.Intersect, exp.Subquery, exp.With, exp.CTE, exp.TableAlias, exp.From),
    *(exp.Join, exp.Table, exp.Identifier, exp.Column, exp.Star, exp.Alias, exp.Where, exp.Group, exp.Having),
    *(exp.Order, exp.Ordered, exp.Limit, exp.Offset, exp.Distinct, exp.Rollup, exp.Cube, exp.GroupingSets, exp.Tuple),
    *(exp.Window, exp.WindowSpec, exp.Filter, exp.IgnoreNulls, exp.RespectNulls, exp.Paren),
)
_SCALARS = (
    *(exp.Literal, exp.Null, exp.Boolean, exp.DataType, exp.DataTypeParam, exp.Interval, exp.Var),
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ),
    *(exp.Between, exp.In, exp.Is, exp.Like, exp.Exists, exp.Case, exp.If, exp.Coalesce, exp.Nullif),
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.SafeDivide, exp.Neg, exp.Cast, exp.TryCast),
    *(exp.Abs, exp.Sign, exp.Ceil, exp.Floor, exp.Round, exp.Sqrt, exp.Greatest, exp.Least),
    *(exp.Upper, exp.Lower, exp.Length, exp.Substring, exp.Left, exp.Right, exp.Trim, exp.Concat, exp.DPipe),
    *(exp.StartsWith, exp.EndsWith, exp.Contains, exp.Replace, exp.RegexpLike),
    *(exp.Year, exp.Quarter, exp.Month, exp.Day, exp.Hour, exp.Minute, exp.Second, exp.DayOfWeek, exp.DayOfYear),
    *(exp.TsOrDsToDate, exp.TsOrDsAdd, exp.DateDiff, exp.DateTrunc, exp.TimestampTrunc, exp.DateAdd, exp.DateSub),
)
_AGGREGATES = (
    *(exp.Count, exp.CountIf, exp.Sum, exp.Avg, exp.Min, exp.Max, exp.LogicalAnd, exp.LogicalOr, exp.Grouping),
    *(exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop),
)
_WINDOWS = (
    *(exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist, exp.Ntile, exp.Lag, exp.Lead),
    *(exp.FirstValue, exp.LastValue, exp.NthValue),
)
ALLOWED: frozenset[type[exp.Expr]] = frozenset((*_CLAUSES, *_SCALARS, *_AGGREGATES, *_WINDOWS))
"""Classes of nodes that a view's query can have."""
_UNSTABLE = (exp.Rand, exp.Randn, exp.Uuid, exp.CurrentDate, exp.CurrentTimestamp, exp.CurrentTime, exp.CurrentUser)
_BY_ORDER = (
    *(exp.First, exp.Last, exp.AnyValue, exp.ArgMax, exp.ArgMin, exp.Mode, exp.ArrayAgg, exp.ArrayUniqueAgg),
    *(exp.GroupConcat, exp.ApproxDistinct, exp.ApproxQuantile),
)
"""Aggregates whose value the order of the rows decides, some of them among equal rows alone."""


_TYPES = (
    *(exp.DType.BOOLEAN, exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT, exp.DType.FLOAT),
    *(exp.DType.DOUBLE, exp.DType.DECIMAL, exp.DType.TEXT, exp.DType.BINARY, exp.DType.DATE, exp.DType.TIMESTAMP),
    *(exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ, exp.DType.TIMESTAMPNTZ, exp.DType.NULL, exp.DType.INTERVAL),
    *(exp.DType.ARRAY, exp.DType.MAP, exp.DType.STRUCT, exp.DType.VARIANT),
)
_QUERY = ("this", "with_", "order", "limit", "offset")
_PARTS: Mapping[type[exp.Expr], tuple[str, ...]] = {
    **dict.fromkeys(
        (exp.Union, exp.Except, exp.Intersect), (*_QUERY, "expression", "distinct", "by_name", "side", "on")
    ),
    exp.Subquery: (*_QUERY, "alias"),
    exp.Table: ("this", "alias", "db", "catalog"),
    exp.With: ("expressions", "recursive"),
    exp.CTE: ("this", "alias"),
    exp.Join: ("this", "on", "using", "side", "kind", "method", "match_condition"),
    exp.Order: ("expressions",),
    exp.Ordered: ("this", "desc", "nulls_first"),
    exp.Limit: ("expression",),
    exp.Offset: ("expression",),
    exp.Window: ("this", "partition_by", "order", "spec", "alias", "over"),
    exp.WindowSpec: ("kind", "start", "start_side", "end", "end_side"),
    exp.DataType: ("this", "expressions", "nested"),
    exp.Between: ("this", "low", "high"),
    exp.In: ("this", "expressions", "query"),
    exp.Cast: ("this", "to", "safe"),
    exp.TryCast: ("this", "to", "safe", "requires_string"),
    exp.Trim: ("this", "expression", "position"),
    exp.CountIf: ("this",),
    **dict.fromkeys((exp.Max, exp.Min), ("this",)),
    exp.NthValue: ("this", "offset"),
    exp.RegexpLike: ("this", "expression"),
}
"""Parts of clauses and functions that the normal form keeps, for those that can have others."""


def parse(sql: str) -> exp.Query:
    """Parse a query in Spark's dialect. Raises InvalidInput, with the name of the clause that a view cannot have."""
    try:
        statements = sqlglot.parse(sql, read=syntax.DIALECT)
    except InvalidInput:
        raise
    except SqlglotError as error:
        if "{{" in sql or "{%" in sql:
            raise InvalidInput("the query has a template ({{ … }}): a view names its tables as they are") from error
        raise InvalidInput(f"the query cannot be parsed: {_place_of(error)}") from error
    except RecursionError as error:
        raise InvalidInput("the query is nested too deeply") from error
    except (AssertionError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"the query cannot be parsed: {type(error).__name__}: {error}") from error
    statements = [statement for statement in statements if not isinstance(statement, exp.Semicolon | None)]
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        kinds = ", ".join(statement.key.upper() for statement in statements) or "nothing"
        raise InvalidInput(f"a view is one SELECT, not {f'{len(statements)}: ' * (len(statements) > 1)}{kinds}")
    if statements[0].find(exp.Placeholder, exp.Parameter):
        raise InvalidInput("the query has a parameter or a template ({{ … }}): a view has values and names of tables")
    note_texts(statements[0], sql)
    for node in list(statements[0].walk()):
        _require_allowed(node)
        _complete(node)
    return statements[0]


def _complete(node: exp.Expr) -> None:
    """Write out what Spark adds to a text by itself: adjacent texts are one, DECIMAL has digits, TIMESTAMP a zone."""
    if isinstance(node, exp.Concat) and "start" not in node.meta and all(part.is_string for part in node.expressions):
        node.replace(exp.Literal.string("".join(part.name for part in node.expressions)))
    elif isinstance(node, exp.DataType) and node.this == exp.DType.DECIMAL and not node.expressions:
        node.set("expressions", [exp.DataTypeParam(this=exp.Literal.number(number)) for number in (10, 0)])
    elif isinstance(node, exp.DataType) and node.this == exp.DType.TIMESTAMP:
        node.set("this", exp.DType.TIMESTAMPTZ)


def _place_of(error: SqlglotError) -> str:
    """Describe an error of the parser with its place: the terminal's codes that it has around the place left out."""
    mistake = error.errors[0] if isinstance(error, ParseError) and error.errors else None
    if mistake is None:
        return re.sub(r"\x1b\[\d+m", "", f"{error}; is a quote left open?")
    what = re.sub(
        r"Required keyword: '\w+' missing for <class '[\w.]*\.(\w+)'>",
        r"a part of \1 is missing",
        mistake["description"],
    )
    before, at = " ".join(str(mistake["start_context"]).split()[-5:]), mistake["highlight"]
    column = mistake["col"] - len(at) + 1
    return f"{what.removesuffix('.')}, at line {mistake['line']}, column {column}: {before} >>> {at} <<<"


def _require_allowed(node: exp.Expr) -> None:
    if type(node) not in ALLOWED:
        text, name = written(node), name_of(node)
        if isinstance(node, _UNSTABLE) or (isinstance(node, exp.Anonymous) and name in ("NOW", "UUID")):
            advice = f"; {ADVICE[name]}" if name in ADVICE else ""
            raise InvalidInput(f"a view cannot have {text}: its value is another one at each run{advice}")
        reason = "its value can depend on the order of rows" if isinstance(node, _BY_ORDER) else ""
        raise InvalidInput(refusal(text, name, reason))
    _require_known_parts(node)
    _require_arguments(node)
    if isinstance(node, exp.Table) and not isinstance(node.this, exp.Identifier):
        raise InvalidInput(f"a view reads tables of its store by name, not {node.sql(syntax.DIALECT)}")
    if isinstance(node, exp.With) and node.args.get("recursive"):
        raise InvalidInput("a view cannot have WITH RECURSIVE")
    if isinstance(node, exp.Select):
        known = ("with_", "expressions", "distinct", "from_", "joins", "where", "group", "having", "windows", "order")
        extra = [clause for clause, value in node.args.items() if value and clause not in (*known, "limit", "offset")]
        if extra:
            name = clause_name(extra[0])
            raise InvalidInput(refusal(name, name))
    operand = (exp.Binary, exp.Between, exp.In, exp.Neg)
    if isinstance(node, exp.Exists) and isinstance(node.parent, operand) and not isinstance(node.parent, exp.Connector):
        raise InvalidInput(f"a view cannot have {written(node.parent)}: write EXISTS (…) in parentheses of its own")
    if isinstance(node, exp.Lag | exp.Lead | exp.FirstValue | exp.LastValue | exp.NthValue | exp.Ntile | exp.RowNumber):
        around = node.parent
        while isinstance(around, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
            around = around.parent
        if not isinstance(around, exp.Window):
            raise InvalidInput(f"a view cannot have {node.sql(syntax.DIALECT)} without OVER")


def _require_arguments(node: exp.Expr) -> None:
    if isinstance(node, exp.Greatest | exp.Least) and not node.expressions:
        raise InvalidInput(f"a view cannot have {written(node)}: name at least two values")
    if isinstance(node, exp.If) and not isinstance(node.parent, exp.Case) and not node.args.get("false"):
        raise InvalidInput(f"a view cannot have {written(node)}: write IF(condition, value, other value)")
    if isinstance(node, exp.Count) and node.this is None:
        raise InvalidInput("a view cannot have COUNT(): write COUNT(*)")


def _require_known_parts(node: exp.Expr) -> None:
    """Refuse a part of a clause, function or type that the normal form would drop."""
    known = _PARTS.get(type(node), tuple(node.args))
    others = [part for part, value in node.args.items() if value and part not in known and not _is_refused(value)]
    if others and others[0] == "joins":
        raise InvalidInput(f"a view cannot join in parentheses: {written(node)}; write the joins one after the other")
    if others:
        name = clause_name(others[0])
        raise InvalidInput(refusal(f"{name} in {written(node)}", name))
    if isinstance(node, exp.DataType) and node.this == exp.DType.DECIMAL and node.expressions:
        precision, scale = [int(part.name) for part in [*node.expressions, exp.Literal.number(0)][:2]]
        if not 0 <= scale <= precision <= 38 or precision < 1:
            raise InvalidInput(f"a view cannot have {written(node)}: a DECIMAL has at most 38 digits")
    if isinstance(node, exp.DataType) and node.this not in _TYPES:
        raise InvalidInput(f"a view cannot have the type {node.this.value}: keep it as a text or a number")


def _is_refused(part: object) -> bool:
    """Return True for a clause that is refused by its own name."""
    first = part[0] if isinstance(part, list) else part
    return isinstance(first, exp.Expr) and type(first) not in ALLOWED
