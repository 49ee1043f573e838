"""Functions that DuckDB computes as Spark does: a view that has others needs Spark (pure).

The list is of node types, and of the kinds of values that they take: division of decimals, casts of floats to integers
and texts to numbers, and comparisons of texts with numbers differ between the engines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from sqlglot import exp

from epochlog.errors import InvalidInput
from epochlog.store.types.schema import TableSchema

from . import syntax
from .advice import ADVICE, BY_PYTHON, name_of, written
from .parsing import ALLOWED
from .value_kinds import NARROW, OF_ALL, ValueKinds, kind_of_literal, kind_of_type

_ELSEWHERE = frozenset(
    (
        *(exp.Sign, exp.Ceil, exp.Floor, exp.Round, exp.Sqrt, exp.Upper, exp.Lower, exp.Right, exp.Replace),
        *(exp.RegexpLike, exp.DayOfWeek, exp.DateTrunc, exp.DateAdd, exp.DateSub, exp.Rollup, exp.Cube, exp.Grouping),
        *(exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop, exp.IgnoreNulls),
        exp.RespectNulls,
    )
)
LOCAL = ALLOWED - _ELSEWHERE
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
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
_UNITS = ("DAY", "DAYS", "HOUR", "HOURS", "MINUTE", "MINUTES", "SECOND", "SECONDS")
_MOMENT = re.compile(r"\s*\d{4}-\d\d?-\d\d?([ T]\d\d?:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?)?\s*")
_NOT_A_MOMENT = "write the date or time as 2024-01-31 or 2024-01-31 10:00:00"
_NO_EQUIVALENT = "no equivalent"
_WITH_SPARK = (
    "pass a Spark session (spark=…) to create_view, replace_views, step and check, and --engine spark to commands"
)


def require_local(query: exp.Query, tables: Mapping[str, str], schemas: Mapping[str, TableSchema]) -> None:
    """Raise InvalidInput for a query in normal form of which DuckDB could give another answer than Spark.

    tables: by alias of an occurrence.
    """
    kinds = ValueKinds(query, tables, schemas)
    for node in query.walk():
        reason = _reason_of_membership(node) if isinstance(node, exp.In) else _reason(node, kinds)
        reason = reason or _reason_of_mixture(node, kinds) or _reason_of_place(node, kinds)
        reason = reason or _reason_of_group(node, kinds)
        if reason:
            advice = f"{reason}; or {_WITH_SPARK}"
            if reason == _NO_EQUIVALENT:
                advice = f"{_WITH_SPARK}; without Spark {BY_PYTHON}"
            raise InvalidInput(f"DuckDB and Spark differ on {written(node)}: {advice}")


def _reason(node: exp.Expr, kinds: ValueKinds) -> str | None:
    """Return how to write the node so that the engines agree; None if they do."""
    if isinstance(node, exp.Literal) and not node.is_string and math.isinf(float(node.name)):
        return "the number is too large"
    if isinstance(node, exp.Literal) and kind_of_literal(node) == "decimal" and node.is_int and len(node.name) >= 38:
        return "the number is too large"
    if isinstance(node, exp.Lag | exp.Lead):
        return _reason_of_neighbour(node, kinds)
    if not _is_known(node):
        return ADVICE.get(name_of(node), _NO_EQUIVALENT)
    reasons = (check(node, kinds) for types, check in _CHECKS if isinstance(node, types))
    return next((reason for reason in reasons if reason is not None), None)


def _reason_of_neighbour(node: exp.Lag | exp.Lead, kinds: ValueKinds) -> str | None:
    if node.args.get("offset") and not node.args["offset"].is_int:
        return "its distance must be a number"
    kind, default = kinds.of(node.this), node.args.get("default")
    known = (kind, "null", "integer") if kind in ("float", "decimal") else (kind, "null")
    if default is None:
        return None
    is_single = [kinds.width(value) == "FLOAT" for value in (node.this, default)]
    if kinds.of(default) in known and (is_single[0] == is_single[1] or kinds.of(default) != "float"):
        return None
    return "its default must have the type of its value"


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
        return None if all(number > 0 for number in numbers) else "its positions must be numbers above 0"
    if isinstance(node, exp.Concat | exp.DPipe):
        parts = node.expressions or [node.this, node.expression]
        plain = all(kinds.of(part) in ("text", "integer") for part in parts)
        return None if plain else "it takes texts and integers"
    if isinstance(node, exp.Trim):
        return _NO_EQUIVALENT if node.expression else None if kinds.of(node.this) == "text" else "it takes a text"
    return None if {kinds.of(node.this), kinds.of(node.expression)} == {"text"} else "it takes two texts"


def _reason_of_time(node: exp.Expr, kinds: ValueKinds) -> str | None:
    if isinstance(node, exp.TsOrDsToDate):
        known = _is_moment(node.this) or kinds.of(node.this) in ("date", "timestamp")
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
    if operands & {"date", "timestamp"}:
        return "write DATE_ADD(date, number), or DATEDIFF(end, start), which counts days"
    return None if not operands & {"text", "boolean"} else "its operands must be numbers"


def _unit_of(interval: exp.Interval) -> str:
    unit = interval.args.get("unit")
    return unit.name.upper() if isinstance(unit, exp.Var) else ""


def _reason_of_group(node: exp.Expr, kinds: ValueKinds) -> str | None:
    """Return a reason for values that the engines tell apart differently."""
    if isinstance(node, exp.Avg) and isinstance(node.this, exp.Distinct) and kinds.of(node.this) == "integer":
        return "Spark tells its integers apart and DuckDB their DOUBLE values: cast to DOUBLE within it"
    if isinstance(node, exp.Group | exp.Select | exp.SetOperation) and any(
        kinds.of(value) == "float" and not _has_no_negative_zero(value) for value in _grouped(node, kinds)
    ):
        return "Spark makes -0.0 to 0.0 where rows are grouped by a DOUBLE: add 0D to it"
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
        return None if _is_moment(node.this) else _NOT_A_MOMENT
    if isinstance(node.this, exp.Null):
        return None
    if source is None or target not in agreed.get(source, ()):
        return _NO_EQUIVALENT  # it rounds or fails differently
    if kinds.width(node) == "FLOAT" and source == "float" and kinds.width(node.this) != "FLOAT":
        return None if isinstance(node.this, exp.Literal) else "it fails for a value beyond FLOAT: leave it as DOUBLE"
    return None


def _reason_of_comparison(node: exp.Expr, kinds: ValueKinds) -> str | None:
    left, right = kinds.of(node.this), kinds.of(node.expression)
    if left is None or right is None or left == right or "null" in (left, right):
        return None
    numbers = {"integer", "float", "decimal"}
    if {left, right} <= numbers:
        return None
    literals = [side for side in (node.this, node.expression) if isinstance(side, exp.Literal)]
    if literals and {left, right} & {"date", "timestamp"} and "text" in (left, right):
        return None if all(map(_is_moment, literals)) else _NOT_A_MOMENT
    return f"it compares {left} with {right}: cast one side"


def _reason_of_order(node: exp.Expr, kinds: ValueKinds) -> str | None:
    """Return a reason for an order of structs, lists or maps: a NULL within them is Spark's smallest value and DuckDB's
    largest.
    """
    is_nested = any(kinds.of(value) == "nested" for value in node.iter_expressions())
    return "it orders values that can have a NULL within them: use their fields" if is_nested else None


def _reason_of_mixture(node: exp.Expr, kinds: ValueKinds) -> str | None:
    """Return a reason for values of several types: the engines choose other common types for them."""
    for values in values_with_one_type(node, kinds):
        known = {kinds.of(value) for value in values} - {None, "null"}
        if known & {"integer", "decimal"} and any(kinds.width(value) == "FLOAT" for value in values):
            return "cast its FLOAT to DOUBLE"
        if isinstance(node, exp.SetOperation) and {"decimal", "integer"} <= known:
            return "cast all its values to one DECIMAL(precision, scale)"
        if isinstance(node, exp.SetOperation) and "text" in known and len(known) > 1:
            return "cast its texts to dates or timestamps"
        if known & {"text", "boolean"} and len(known) > 1 and not _is_date_text(values, known, kinds):
            return f"it takes {' and '.join(sorted(map(str, known)))} together: cast them to one type"
    results = kinds.values_of(node) if isinstance(node, (*OF_ALL, exp.Case, exp.If)) else []
    if any(_is_number(value) for value in results):
        narrow = [width for value in results if (width := kinds.width(value)) in ("TINYINT", "SMALLINT")]
        return f"cast its {narrow[0]} to INT" if narrow else None
    return None


def _reason_of_place(node: exp.Expr, kinds: ValueKinds) -> str | None:
    """Return a reason for a part of the node that Spark refuses: DuckDB casts it to the type that it needs."""
    if isinstance(node, exp.And | exp.Or):
        conditions = [node.left, node.right]
    elif isinstance(node, exp.CountIf):
        conditions = node.this.expressions if isinstance(node.this, exp.Distinct) else [node.this]
    elif isinstance(node, exp.Where | exp.Having | exp.Not | exp.If):
        is_compared = isinstance(node.parent, exp.Case) and node.parent.this is not None
        conditions = [] if is_compared else [node.this]
    else:
        conditions = [node.args["on"]] if isinstance(node, exp.Join) and node.args.get("on") else []
    if any(kinds.of(condition) not in ("boolean", "null", None) for condition in conditions):
        return "its condition must be BOOLEAN"
    if isinstance(node, exp.Sum | exp.Avg) and kinds.of(node.this) == "boolean":
        return "Spark has no sum of BOOLEAN: use COUNT_IF"
    if isinstance(node, exp.Window) and isinstance(syntax.function_of(node).this, exp.Distinct):
        return "Spark has no DISTINCT in a window"
    if isinstance(node, exp.Is) and isinstance(node.expression, exp.Boolean):
        return None if kinds.of(node.this) in ("boolean", "null", None) else "it tests a BOOLEAN"
    if isinstance(node, exp.In) and kinds.of(node.this) == "boolean":
        values = {kinds.of(value) for value in node.expressions} - {"boolean", "null", None}
        return "it compares a BOOLEAN with other values" if values else None
    if isinstance(node, exp.Tuple) and isinstance(node.parent, exp.Alias):
        return "the names of a struct's fields differ: make a column of each value"
    return None


def _is_number(value: exp.Expr) -> bool:
    """Return True for an integer as it is written, which is INT in Spark and of any width in DuckDB."""
    while isinstance(value, exp.Paren | exp.Neg):
        value = value.this
    return isinstance(value, exp.Literal) and value.is_int


def values_with_one_type(node: exp.Expr, kinds: ValueKinds) -> list[list[exp.Expr]]:
    """Return the lists of values for which an engine needs one type to compute the node."""
    if isinstance(node, exp.SetOperation):
        sides = [syntax.unwrapped(side) for side in (node.this, node.expression)]
        return [list(pair) for pair in zip(*map(kinds.outputs, sides), strict=True)]
    if isinstance(node, exp.In):
        query = node.args.get("query")
        if not isinstance(query, exp.Query):
            return [[node.this, *node.expressions]]
        left = node.this.expressions if isinstance(node.this, exp.Tuple) else [node.this]
        return [list(pair) for pair in zip(left, kinds.outputs(syntax.unwrapped(query)), strict=True)]
    if isinstance(node, exp.Between):
        return [[node.this, node.args["low"], node.args["high"]]]
    if isinstance(node, exp.Case) and node.this is not None:
        return [[node.this, *(case.this for case in node.args["ifs"])], kinds.values_of(node)]
    if isinstance(node, (*OF_ALL, exp.Case, exp.If)):
        return [kinds.values_of(node)] if not isinstance(node.parent, exp.Case) else []
    if isinstance(node, (*_COMPARISONS, exp.Nullif)):
        return [[node.args["this"], node.args["expression"]]]
    return []


def _is_date_text(values: Sequence[exp.Expr], known: set[str | None], kinds: ValueKinds) -> bool:
    """Return True if the only texts beside dates or instants are literals of such."""
    texts = [value for value in values if kinds.of(value) == "text"]
    return bool(known & {"date", "timestamp"}) and len(known) == 2 and all(map(_is_moment, texts))


def _reason_of_membership(test: exp.In) -> str | None:
    if not test.args.get("query") or _is_condition(test):
        return None
    return "as a value it is FALSE in Spark where it is NULL in SQL, so use it in WHERE, ON or HAVING"


def _is_moment(value: exp.Expr) -> bool:
    """Return True for a literal date or time as both engines read it; DuckDB knows 'infinity' and 'epoch' too."""
    return isinstance(value, exp.Literal) and value.is_string and _MOMENT.fullmatch(value.name) is not None


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


def _is_nonzero(divisor: exp.Expr) -> bool:
    while isinstance(divisor, exp.Paren | exp.Cast | exp.Neg):
        divisor = divisor.this
    if isinstance(divisor, exp.Literal):
        return not divisor.is_string and float(divisor.name) != 0
    zero = divisor.expression if isinstance(divisor, exp.Nullif) else None
    return isinstance(zero, exp.Literal) and not zero.is_string and float(zero.name) == 0


_CHECKS: tuple[tuple[tuple[type[exp.Expr], ...], Callable[[Any, ValueKinds], str | None]], ...] = (
    ((exp.Div, exp.Mod, exp.IntDiv, exp.SafeDivide, exp.Avg), _reason_of_division),
    ((exp.Cast,), _reason_of_cast),
    ((exp.Add, exp.Sub, exp.Mul, exp.Interval), _reason_of_arithmetic),
    ((exp.Sum, *OF_ALL, exp.Case, exp.If), _reason_of_decimal),
    ((exp.Like, exp.Substring, exp.Left, exp.Concat, exp.DPipe, exp.Trim), _reason_of_text),
    ((exp.StartsWith, exp.EndsWith, exp.Contains), _reason_of_text),
    ((*_OF_TIMES, *_OF_DATES, exp.TsOrDsAdd, exp.DateDiff, exp.TsOrDsToDate), _reason_of_time),
    (_COMPARISONS, _reason_of_comparison),
    ((exp.Ordered, exp.Min, exp.Max, exp.Greatest, exp.Least, exp.Between, *_ORDERS), _reason_of_order),
)
"""Checks of nodes by their types. The first reason counts."""
_REWRITTEN = (exp.TryCast, exp.TsOrDsToDate, exp.TsOrDsAdd, exp.IntDiv, exp.Trim)


def as_spark_computes(query: exp.Expr) -> exp.Expr:
    """Return the query for DuckDB with casts that fail as Spark's do, results as wide as Spark's, and averages that are
    summed as DOUBLE, as Spark sums them.
    """
    query = query.copy()
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
    if isinstance(node, exp.Trim) and not node.expression:  # else other white space too
        return exp.Trim(this=node.this, position=node.args.get("position"), expression=exp.Literal.string(" "))
    return node


def _as_decimal(number: exp.Literal) -> exp.Expr:
    """Return a number with a point, or beyond BIGINT, in the type that Spark gives it: zeros before it do not count."""
    if isinstance(number.parent, exp.Cast):
        return number
    _, digits, exponent = Decimal(number.name).as_tuple()
    scale = -int(exponent)
    params = [exp.DataTypeParam(this=exp.Literal.number(size)) for size in (max(len(digits), scale), scale)]
    return exp.Cast(this=number.copy(), to=exp.DataType(this=exp.DType.DECIMAL, expressions=params))


def _as_count(count: exp.CountIf) -> exp.Count:
    """Return COUNT of a value that is NULL where the condition is not met: of no rows it is 0."""
    conditions = count.this.expressions if isinstance(count.this, exp.Distinct) else [count.this]
    values = [exp.Case(ifs=[exp.If(this=condition.copy(), true=exp.true())]) for condition in conditions]
    return exp.Count(this=exp.Distinct(expressions=values) if isinstance(count.this, exp.Distinct) else values[0])


def _as_int(node: exp.Expr) -> exp.Cast:
    return exp.Cast(this=node.copy(), to=exp.DataType.build("INT"))
