"""Functions that DuckDB computes as Spark does: a view that has others needs Spark (pure).

The list is of node types, and of the kinds of values that they take: division of decimals, casts of floats to integers
and texts to numbers, and comparisons of texts with numbers differ between the engines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp

from epochlog.errors import InvalidInput
from epochlog.store.types.schema import TableSchema

from . import syntax
from .advice import ADVICE, BY_PYTHON, name_of, written
from .common_types import has_unknown_types, reason_of_types
from .parsing import ALLOWED
from .value_kinds import (
    NARROW,
    NOT_A_MOMENT,
    OF_ALL,
    ValueKinds,
    is_moment,
    is_nested,
    kind_of_literal,
    kind_of_type,
    type_of_decimal,
)
from .window_frames import reason_of_position, reason_of_window

_ELSEWHERE = frozenset(
    (
        *(exp.Sign, exp.Ceil, exp.Floor, exp.Round, exp.Sqrt, exp.Upper, exp.Lower, exp.Right, exp.Replace),
        *(exp.RegexpLike, exp.DayOfWeek, exp.DateTrunc, exp.DateAdd, exp.DateSub, exp.Rollup, exp.Cube, exp.Grouping),
        *(exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop, exp.IgnoreNulls),
        exp.RespectNulls,
    )
)
LOCAL = ALLOWED - _ELSEWHERE
_ORDERS = (exp.LT, exp.LTE, exp.GT, exp.GTE)
_NUMBERS = ("integer", "float")
_OF_TIMES = (exp.TimestampTrunc, exp.Hour, exp.Minute, exp.Second)
_OF_DATES = (exp.Year, exp.Quarter, exp.Month, exp.Day, exp.DayOfYear)
OF_MOMENTS = (
    *(*_OF_TIMES, exp.TsOrDsToDate, exp.TsOrDsAdd, exp.DateDiff, exp.DateTrunc, exp.DateAdd, exp.DateSub),
    *(exp.Quarter, exp.DayOfWeek, exp.DayOfYear),
)
"""Functions whose first value is a date or a timestamp."""
_MOST_DIGITS = 6
"""Digits of a number that is added to a date or timestamp. With larger ones Spark's dates begin again at the oldest."""
_SMALLEST = tuple(str(2**bits) for bits in (7, 15, 31, 63))
_UNITS = ("DAY", "DAYS", "HOUR", "HOURS", "MINUTE", "MINUTES", "SECOND", "SECONDS")
_NO_EQUIVALENT = "no equivalent"
_WITH_SPARK = (
    "pass a Spark session (spark=…) to create_view, replace_views, step and check, and --engine spark to commands"
)


def require_local(query: exp.Query, tables: Mapping[str, str], schemas: Mapping[str, TableSchema]) -> None:
    """Raise InvalidInput for a query in normal form of which DuckDB could give another answer than Spark.

    tables: by alias of an occurrence.
    """
    kinds = ValueKinds(query, tables, schemas)
    unknown = None
    for node in query.walk():
        reason = _reason_of_membership(node) if isinstance(node, exp.In) else _reason(node, kinds)
        reason = reason or reason_of_types(node, kinds) or _reason_of_place(node, kinds)
        reason = reason or _reason_of_group(node, kinds)
        if reason:
            advice = f"{reason}; or {_WITH_SPARK}"
            if reason == _NO_EQUIVALENT:
                advice = f"{_WITH_SPARK}; without Spark {BY_PYTHON}"
            raise InvalidInput(f"DuckDB and Spark differ on {written(node)}: {advice}")
        if unknown is None and (has_unknown_types(node, kinds) or _has_unknown_condition(node, kinds)):
            unknown = node
    if unknown is not None:
        raise InvalidInput(
            f"DuckDB and Spark can differ on {written(unknown)}: cast each value in it to its type; or {_WITH_SPARK}"
        )


def _reason(node: exp.Expr, kinds: ValueKinds) -> str | None:
    """Return how to write the node so that the engines agree; None if they do."""
    if isinstance(node, exp.Literal) and not node.is_string and math.isinf(float(node.name)):
        return "the number is too large"
    if isinstance(node, exp.Literal) and kind_of_literal(node) == "decimal" and node.is_int and len(node.name) >= 38:
        return "the number is too large"
    if not _is_known(node):
        return ADVICE.get(name_of(node), _NO_EQUIVALENT)
    reasons = (check(node, kinds) for types, check in _CHECKS if isinstance(node, types))
    return next((reason for reason in reasons if reason is not None), None)


def _reason_of_division(node: exp.Expr, kinds: ValueKinds) -> str | None:
    if isinstance(node, exp.Div | exp.Mod | exp.IntDiv) and not _is_nonzero(node.expression):
        return "divide by NULLIF(…, 0), because division by zero fails in Spark alone"
    operands = [node.this] if isinstance(node, exp.Avg) else [node.this, node.expression]
    if isinstance(node, exp.Div | exp.SafeDivide) and any(kinds.width(operand) == "FLOAT" for operand in operands):
        return "cast its FLOAT to DOUBLE"
    if any(kinds.of(operand) not in _NUMBERS for operand in operands):
        return "its operands must be integers or DOUBLE, as CAST(… AS DOUBLE) makes them"
    is_integral = not isinstance(node, exp.IntDiv) or all(kinds.of(operand) == "integer" for operand in operands)
    return None if is_integral else "its operands must be integers"


def _reason_of_text(node: exp.Expr, kinds: ValueKinds) -> str | None:
    if isinstance(node, exp.Like):
        pattern = node.expression
        plain = isinstance(pattern, exp.Literal) and "\\" not in pattern.name
        return None if plain else "its pattern must be plain text"
    if isinstance(node, exp.Substring | exp.Left):
        bounds = [value for name, value in node.args.items() if name != "this" and isinstance(value, exp.Expr)]
        numbers = [int(b.name) if isinstance(b, exp.Literal) and b.is_int else 0 for b in bounds]
        return (
            None if all(0 < number < 2**31 for number in numbers) else "its positions must be numbers above 0, of INT"
        )
    if isinstance(node, exp.Concat | exp.DPipe):
        parts = node.expressions or [node.this, node.expression]
        plain = all(kinds.of(part) in ("text", "integer") for part in parts)
        plain = plain and (len(parts) > 1 or kinds.of(parts[0]) == "text")
        return None if plain else "it takes texts and integers"
    if isinstance(node, exp.Length):
        return None if kinds.of(node.this) == "text" else "it takes a text"
    if isinstance(node, exp.Trim):
        return _NO_EQUIVALENT if node.expression else None if kinds.of(node.this) == "text" else "it takes a text"
    return None if {kinds.of(node.this), kinds.of(node.expression)} == {"text"} else "it takes two texts"


def _reason_of_time(node: exp.Expr, kinds: ValueKinds) -> str | None:
    if isinstance(node, exp.TsOrDsToDate):
        known = is_moment(node.this) or kinds.of(node.this) in ("date", "timestamp")
        return None if known and not node.args.get("format") else "it takes a date, a timestamp or a literal"
    if isinstance(node, exp.TsOrDsAdd):
        days = node.expression.unnest()
        days = days.this.unnest() if isinstance(days, exp.Neg | exp.Mul) else days  # DATE_SUB(day, 1): 1 * -1
        literal = isinstance(days, exp.Literal) and days.is_int and len(days.name) <= _MOST_DIGITS
        known = kinds.of(node.this) == "date" and literal
        return None if known else "it takes a date and a number of at most six digits"
    if isinstance(node, exp.DateDiff):
        dates = {kinds.of(node.this), kinds.of(node.expression)} == {"date"} and not node.args.get("unit")
        return None if dates else "write DATEDIFF(end, start), which takes dates and counts days"
    if isinstance(node, exp.TimestampTrunc) and kinds.width(node.this) == "TIMESTAMP_NTZ":
        return _NO_EQUIVALENT
    wanted = ("timestamp",) if isinstance(node, _OF_TIMES) else ("date", "timestamp")
    return None if kinds.of(node.this) in wanted else ADVICE.get(name_of(node), f"it takes a {' or '.join(wanted)}")


def _reason_of_arithmetic(node: exp.Expr, kinds: ValueKinds) -> str | None:
    """Return a reason for arithmetic of other values than numbers: a day, hour, minute or second may be added to a
    timestamp.
    """
    if isinstance(node, exp.Interval):
        around = node.parent
        if not isinstance(around, exp.Add | exp.Sub) or around.expression is not node:
            return ADVICE["INTERVAL"]
        number = node.this.name if isinstance(node.this, exp.Literal) else ""
        plain = number.isdecimal() and len(number) <= _MOST_DIGITS and _unit_of(node) in _UNITS
        return None if plain and kinds.of(around.this) == "timestamp" else ADVICE["INTERVAL"]
    if isinstance(node.expression, exp.Interval):
        return None
    operands = {kinds.of(node.this), kinds.of(node.expression)}
    if operands == {"null"}:
        return "cast its NULL to the type of a number"
    if operands & {"date", "timestamp"}:
        return "write DATE_ADD(date, number), or DATEDIFF(end, start), which counts days"
    return None if operands <= {*_NUMBERS, "decimal", "null"} else "its operands must be numbers"


def _reason_of_number(node: exp.Expr, kinds: ValueKinds) -> str | None:
    """Return a reason for a function of one number: of a NULL alone Spark makes a DOUBLE, and DuckDB widens a negated
    constant.
    """
    kind, operand = kinds.of(node.this), node.this.unnest()
    if isinstance(node, exp.Neg | exp.Abs) and isinstance(operand, exp.Neg | exp.Cast) and _is_smallest(operand):
        return "write the number with its sign"
    if kind == "boolean":
        return "Spark has no sum of BOOLEAN: use COUNT_IF"
    return None if kind in (*_NUMBERS, "decimal") else "it takes a number"


def _unit_of(interval: exp.Interval) -> str:
    unit = interval.args.get("unit")
    return unit.name.upper() if isinstance(unit, exp.Var) else ""


def _reason_of_group(node: exp.Expr, kinds: ValueKinds) -> str | None:
    """Return a reason for values that the engines tell apart differently."""
    if isinstance(node, exp.Avg) and isinstance(node.this, exp.Distinct) and kinds.of(node.this) == "integer":
        return "Spark tells its integers apart and DuckDB their DOUBLE values: cast to DOUBLE within it"
    values = _grouped(node, kinds) if isinstance(node, exp.Group | exp.Select | exp.SetOperation) else []
    if any(kinds.of(value) == "float" and not _has_no_negative_zero(value) for value in values):
        return "Spark makes -0.0 to 0.0 where rows are grouped by a DOUBLE: add 0D to it"
    nested = [kind for value in values if is_nested(kind := kinds.of(value))]
    if any(kind.startswith("map") or "double" in kind or "float" in kind for kind in nested if kind):
        return "it tells maps, or DOUBLE values inside of others, apart: use their parts"
    return None


def _grouped(node: exp.Group | exp.Select | exp.SetOperation, kinds: ValueKinds) -> list[exp.Expr]:
    """Return the expressions by whose equal values the node makes rows one."""
    if isinstance(node, exp.Group):
        entries = [*node.expressions, *(node.args.get("grouping_sets") or [])]
        keys = [
            key for entry in entries for key in (entry.expressions if isinstance(entry, exp.GroupingSets) else [entry])
        ]
        return [part for key in keys for part in (key.expressions if isinstance(key, exp.Tuple) else [key.unnest()])]
    if isinstance(node, exp.Select):
        return [output.unalias() for output in node.expressions] if node.args.get("distinct") else []
    if isinstance(node, exp.Union) and not node.args.get("distinct"):
        return []
    return [value for side in (node.this, node.expression) for value in kinds.outputs(syntax.unwrapped(side))]


def _has_no_negative_zero(value: exp.Expr) -> bool:
    """Return True for a sum with a literal 0, and for an absolute value, in both of which -0.0 becomes 0.0."""
    value = value.unnest()
    if isinstance(value, exp.Column):
        return False
    if not isinstance(value, exp.Add):
        return isinstance(value, exp.Abs)
    sides = [side.this if isinstance(side, exp.Cast) else side for side in (value.left.unnest(), value.right.unnest())]
    return any(isinstance(side, exp.Literal) and not side.is_string and float(side.name) == 0 for side in sides)


def _is_known(node: exp.Expr) -> bool:
    """Return True if the engines can agree on nodes of this type."""
    if isinstance(node, exp.Grouping):
        return isinstance(node.parent, exp.Ordered)  # its type differs, its order does not
    return type(node) in LOCAL and not (isinstance(node, exp.GroupingSets) and any(map(_is_empty, node.expressions)))


def _reason_of_decimal(node: exp.Expr, kinds: ValueKinds) -> str | None:
    """Return a reason for arithmetic of decimals, whose results have other numbers of digits."""
    if kinds.of(node) != "decimal":
        return None
    if isinstance(node, exp.Sum):
        around = node.parent
        while isinstance(around, exp.Filter | exp.Window | exp.Paren):
            around = around.parent
        return None if isinstance(around, exp.Cast) else "cast the sum to a DECIMAL(precision, scale)"
    if isinstance(node, exp.Add | exp.Sub | exp.Mul | exp.Mod):
        return "cast its decimals to DOUBLE"
    if {kinds.of(part) for part in kinds.values_of(node)} <= {"decimal", "null"}:
        return None
    return "cast all its values to one DECIMAL(precision, scale)"


def _reason_of_cast(node: exp.Cast, kinds: ValueKinds) -> str | None:
    source, target = kinds.of(node.this), kind_of_type(node.to)
    if node.args.get("safe"):
        return "use CAST"
    agreed = {
        "integer": ("integer", "float", "decimal", "text"),
        "float": ("float",),
        "decimal": ("float", "decimal"),
        "text": ("text",),
        "date": ("date", "text", "timestamp"),
        "timestamp": ("timestamp", "date"),
        "boolean": ("boolean", "integer"),
    }
    if isinstance(node.this, exp.Literal) and target in ("date", "timestamp"):
        return None if is_moment(node.this) else NOT_A_MOMENT
    if isinstance(node.this, exp.Null):
        return None
    if source is None or target not in agreed.get(source, ()):
        return _NO_EQUIVALENT  # it rounds or fails differently
    if kinds.width(node) == "FLOAT" and source == "float" and kinds.width(node.this) != "FLOAT":
        return None if isinstance(node.this, exp.Literal) else "it fails for a value beyond FLOAT: leave it as DOUBLE"
    return None


def _reason_of_order(node: exp.Expr, kinds: ValueKinds) -> str | None:
    """Return a reason for an order of structs, lists or maps: a NULL within them is Spark's smallest value and DuckDB's
    largest.
    """
    if isinstance(node, exp.Greatest | exp.Least) and any(
        kinds.width(value) == "FLOAT" for value in kinds.values_of(node)
    ):
        return "cast its FLOAT to DOUBLE"  # DuckDB's have no -0.0 beside a constant
    nested = any(
        is_nested(kinds.of(value)) or isinstance(value.unnest(), exp.Tuple) for value in node.iter_expressions()
    )
    return "it orders values that can have a NULL within them: use their fields" if nested else None


def _reason_of_place(node: exp.Expr, kinds: ValueKinds) -> str | None:
    """Return a reason for a part of the node that Spark refuses: DuckDB casts it to the type that it needs."""
    is_filter = isinstance(node, exp.Where | exp.Having | exp.Join | exp.Filter)
    is_filter = is_filter or (isinstance(node, exp.If) and isinstance(node.parent, exp.Case))
    known = ("boolean", None) if is_filter else ("boolean", "null", None)
    if any(kinds.of(condition) not in known for condition in _conditions_of(node)):
        return "its condition must be BOOLEAN"
    if isinstance(node, exp.Tuple) and isinstance(node.parent, exp.Alias):
        return "the names of a struct's fields differ: make a column of each value"
    return None


def _has_unknown_condition(node: exp.Expr, kinds: ValueKinds) -> bool:
    return any(kinds.of(condition) is None for condition in _conditions_of(node))


def _conditions_of(node: exp.Expr) -> list[exp.Expr]:
    """Return the parts of a node that are conditions in Spark."""
    if isinstance(node, exp.And | exp.Or):
        return [node.left, node.right]
    if isinstance(node, exp.CountIf):
        return node.this.expressions if isinstance(node.this, exp.Distinct) else [node.this]
    if isinstance(node, exp.Filter):
        return [node.expression.this]
    if isinstance(node, exp.Is):
        return [node.this] if isinstance(node.expression, exp.Boolean) else []
    if isinstance(node, exp.If):
        return [] if isinstance(node.parent, exp.Case) and node.parent.this is not None else [node.this]
    if isinstance(node, exp.Where | exp.Having | exp.Not | exp.LogicalAnd | exp.LogicalOr):
        return [node.this]
    return [node.args["on"]] if isinstance(node, exp.Join) and node.args.get("on") else []


def _reason_of_membership(test: exp.In) -> str | None:
    if not test.args.get("query") or _is_condition(test):
        return None
    return "as a value it is FALSE in Spark where it is NULL in SQL, so use it in WHERE, ON or HAVING"


def _is_condition(test: exp.In) -> bool:
    """Return True if NULL and FALSE of the test, or of its negation, select the same rows."""
    node: exp.Expr = test
    negated = False
    while isinstance(node.parent, exp.Paren | exp.And | exp.Or | exp.Not):
        if isinstance(node, exp.And | exp.Or) and isinstance(node.parent, exp.Not):
            return False
        if isinstance(node.parent, exp.Not):
            if negated:
                return False
            negated = True
        node = node.parent
    return isinstance(node.parent, exp.Where | exp.Having | exp.Join)


def _is_empty(entry: exp.Expr) -> bool:
    return isinstance(entry, exp.Tuple) and not entry.expressions


def _is_smallest(value: exp.Expr) -> bool:
    """Return True for a constant that can be the smallest integer of its type, which has no positive one."""
    return isinstance(_without_sign(value), exp.Literal) and _without_sign(value).name in _SMALLEST


def _without_sign(value: exp.Expr) -> exp.Expr:
    while isinstance(value, exp.Paren | exp.Cast | exp.Neg):
        value = value.this
    return value


def _is_nonzero(divisor: exp.Expr) -> bool:
    divisor = _without_sign(divisor)
    if isinstance(divisor, exp.Literal):
        return not divisor.is_string and float(divisor.name) != 0
    zero = divisor.expression if isinstance(divisor, exp.Nullif) else None
    return isinstance(zero, exp.Literal) and not zero.is_string and float(zero.name) == 0


_CHECKS: tuple[tuple[tuple[type[exp.Expr], ...], Callable[[Any, ValueKinds], str | None]], ...] = (
    ((exp.Div, exp.Mod, exp.IntDiv, exp.SafeDivide, exp.Avg), _reason_of_division),
    ((exp.Cast,), _reason_of_cast),
    ((exp.Add, exp.Sub, exp.Mul, exp.Interval), _reason_of_arithmetic),
    ((exp.Neg, exp.Abs, exp.Sum), _reason_of_number),
    ((exp.Window,), reason_of_window),
    ((exp.Lag, exp.Lead, exp.NthValue, exp.Ntile), lambda node, _: reason_of_position(node)),
    ((exp.Sum, *OF_ALL, exp.Case, exp.If), _reason_of_decimal),
    ((exp.Like, exp.Substring, exp.Left, exp.Concat, exp.DPipe, exp.Trim, exp.Length), _reason_of_text),
    ((exp.StartsWith, exp.EndsWith, exp.Contains), _reason_of_text),
    ((*_OF_TIMES, *_OF_DATES, exp.TsOrDsAdd, exp.DateDiff, exp.TsOrDsToDate), _reason_of_time),
    ((exp.Ordered, exp.Min, exp.Max, exp.Greatest, exp.Least, exp.Between, *_ORDERS), _reason_of_order),
)
"""Checks of nodes by their types. The first reason counts."""
_REWRITTEN = (exp.TryCast, exp.TsOrDsToDate, exp.TsOrDsAdd, exp.IntDiv, exp.Mod, exp.Trim, exp.Neg)


def as_spark_computes(query: exp.Expr, kinds: ValueKinds) -> exp.Expr:
    """Return the query for DuckDB with casts and sums that fail as Spark's do, results as wide as Spark's, and averages
    that are summed as DOUBLE, as Spark sums them.
    """
    query = query.copy()
    totals = [node for node in query.find_all(exp.Sum) if kinds.of(node) in ("integer", "null")]
    for total in reversed(totals):  # inner ones first
        _replace_total(total)
    for node in list(query.find_all(*_REWRITTEN)):
        other = _rewritten(node)
        if other is not node:
            node.replace(other)
    for count in list(query.find_all(exp.CountIf)):
        count.replace(_as_count(count))
    for number in [node for node in query.find_all(exp.Literal) if kind_of_literal(node) == "decimal"]:
        number.replace(_as_decimal(number))
    for average in query.find_all(exp.Avg):
        values = average.this.expressions if isinstance(average.this, exp.Distinct) else [average.this]
        for value in values:
            value.replace(exp.Cast(this=value.copy(), to=exp.DataType.build("DOUBLE")))
    for node in [child for child in query.find_all(*NARROW) if not isinstance(child.parent, exp.Window | exp.Filter)]:
        node.replace(_as_int(node))
    for window in [child for child in query.find_all(exp.Window) if isinstance(syntax.function_of(child), NARROW)]:
        window.replace(_as_int(window))
    return query


def duckdb_text(query: exp.Expr, tables: Mapping[str, str], schemas: Mapping[str, TableSchema]) -> str:
    """Return the text of a query of a plan for DuckDB. tables: by alias of an occurrence. Raises InvalidInput for what
    DuckDB's SQL cannot say.
    """
    computed = as_spark_computes(query, ValueKinds(query, tables, schemas))
    return syntax.text_of(computed, "duckdb", identify=True)


def _rewritten(node: exp.Expr) -> exp.Expr:
    """Return the node as DuckDB computes it like Spark. Its parts are moved to the new node."""
    date, bigint = exp.DataType.build("DATE"), exp.DataType.build("BIGINT")
    if type(node) is exp.TryCast and not node.args.get("safe"):
        return exp.Cast(this=node.this, to=node.args["to"])
    if isinstance(node, exp.TsOrDsToDate):  # else NULL for a text that is no date
        return exp.Cast(this=node.this, to=date)
    if isinstance(node, exp.TsOrDsAdd):  # a date and an INTERVAL give a timestamp
        return exp.Paren(this=exp.Add(this=exp.Paren(this=node.this), expression=exp.Paren(this=node.expression)))
    if isinstance(node, exp.IntDiv):  # of INT it would be INT
        sides = [exp.Cast(this=side, to=bigint.copy()) for side in (node.this, node.expression)]
        return exp.IntDiv(this=sides[0], expression=sides[1])
    if isinstance(node, exp.Mod) and isinstance(
        node.expression.unnest(), exp.Neg
    ):  # the smallest integer % -1 overflows
        divisor = node.expression.unnest().this
        return exp.Mod(this=node.this, expression=divisor) if isinstance(divisor, exp.Literal) else node
    if isinstance(node, exp.Trim) and not node.expression:  # else other white space too
        return exp.Trim(this=node.this, position=node.args.get("position"), expression=exp.Literal.string(" "))
    if isinstance(node, exp.Neg) and node.this.unnest() == exp.Literal.number(2**31):
        # In Spark the sign is a part of the number, but not before parentheses. DuckDB 2.0.0 takes both for INT, and
        # 2.0.1 both for BIGINT.
        kind = exp.DataType.build("INT") if isinstance(node.this, exp.Literal) else bigint
        return exp.Cast(this=exp.Neg(this=node.this), to=kind)
    return node


def _replace_total(total: exp.Expr) -> None:
    """Cast a sum of integers to BIGINT, Spark's type, which DuckDB would go on to compute with as HUGEINT."""
    while isinstance(total.parent, exp.Filter | exp.Window):
        total = total.parent
    total.replace(exp.Cast(this=total.copy(), to=exp.DataType.build("BIGINT")))


def _as_decimal(number: exp.Literal) -> exp.Expr:
    """Return a number with a point, or beyond BIGINT, in the type that Spark gives it."""
    if isinstance(number.parent, exp.Cast):
        return number
    kind = type_of_decimal(number)
    params = [exp.DataTypeParam(this=exp.Literal.number(size)) for size in (kind.precision, kind.scale)]
    return exp.Cast(this=number.copy(), to=exp.DataType(this=exp.DType.DECIMAL, expressions=params))


def _as_count(count: exp.CountIf) -> exp.Count:
    """Return COUNT of a value that is NULL where the condition is not met: of no rows it is 0."""
    conditions = count.this.expressions if isinstance(count.this, exp.Distinct) else [count.this]
    values = [exp.Case(ifs=[exp.If(this=condition.copy(), true=exp.true())]) for condition in conditions]
    return exp.Count(this=exp.Distinct(expressions=values) if isinstance(count.this, exp.Distinct) else values[0])


def _as_int(node: exp.Expr) -> exp.Cast:
    return exp.Cast(this=node.copy(), to=exp.DataType.build("INT"))
