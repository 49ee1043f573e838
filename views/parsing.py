"""Parsing of a view's query, and refusal of what a view cannot have: all that is not listed here.

A query that passes has one answer for its tables' rows, on each run and on each engine that has its functions.
"""

from __future__ import annotations

import re

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


def parse(sql: str) -> exp.Query:
    """Parse a query in Spark's dialect. Raises InvalidInput, with the name of the clause that a view cannot have."""
    try:
        statements = sqlglot.parse(sql, read=syntax.DIALECT)
    except SqlglotError as error:
        if "{{" in sql or "{%" in sql:
            raise InvalidInput("the query has a template ({{ … }}): a view names its tables as they are") from error
        raise InvalidInput(f"the query cannot be parsed: {_place_of(error)}") from error
    except RecursionError as error:
        raise InvalidInput("the query is nested too deeply") from error
    statements = [statement for statement in statements if not isinstance(statement, exp.Semicolon | None)]
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        kinds = ", ".join(statement.key.upper() for statement in statements) or "nothing"
        raise InvalidInput(f"a view is one SELECT, not {f'{len(statements)}: ' * (len(statements) > 1)}{kinds}")
    if statements[0].find(exp.Placeholder, exp.Parameter):
        raise InvalidInput("the query has a parameter or a template ({{ … }}): a view has values and names of tables")
    note_texts(statements[0], sql)
    for node in statements[0].walk():
        _require_allowed(node)
    return statements[0]


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
    if isinstance(node, exp.Lag | exp.Lead | exp.FirstValue | exp.LastValue | exp.NthValue | exp.Ntile | exp.RowNumber):
        around = node.parent
        while isinstance(around, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
            around = around.parent
        if not isinstance(around, exp.Window):
            raise InvalidInput(f"a view cannot have {node.sql(syntax.DIALECT)} without OVER")
