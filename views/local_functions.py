"""Functions that DuckDB computes as Spark does: a view that has others needs Spark (pure).

The list is of node types, and of the kinds of values that they take: division of decimals, casts of floats to integers
and texts to numbers, and comparisons of texts with numbers differ between the engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from epochlog.errors import InvalidInput
from epochlog.store.types.schema import TableSchema

from . import syntax
from .parsing import ALLOWED
from .value_kinds import NARROW, OF_ALL, ValueKinds, kind_of_type

_ELSEWHERE = frozenset(
    (
        *(exp.IntDiv, exp.Sign, exp.Ceil, exp.Floor, exp.Round, exp.Sqrt, exp.Upper, exp.Lower, exp.Right, exp.Trim),
        *(exp.StartsWith, exp.EndsWith, exp.Contains, exp.Replace, exp.RegexpLike, exp.DayOfWeek, exp.Interval),
        *(exp.TsOrDsAdd, exp.DateDiff, exp.DateTrunc, exp.DateAdd, exp.DateSub, exp.Rollup, exp.Cube, exp.Grouping),
        *(exp.Stddev, exp.StddevPop, exp.StddevSamp, exp.Variance, exp.VariancePop, exp.IgnoreNulls),
        *(exp.RespectNulls, exp.Hour, exp.Minute, exp.Second),
    )
)
LOCAL = ALLOWED - _ELSEWHERE
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_NUMBERS = ("integer", "float")


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
            raise InvalidInput(
                f"DuckDB and Spark differ on {node.sql(syntax.DIALECT)}: {reason}; or pass a Spark session "
                "(spark=…) to create_view, replace_views, step and check"
            )


def _reason(node: exp.Expr, kinds: ValueKinds) -> str | None:
    """Return how to write the node so that the engines agree; None if they do."""
    if not _is_known(node):
        return "use another expression"
    if isinstance(node, exp.Div | exp.Mod) and not _is_nonzero(node.expression):
        return "divide by NULLIF(…, 0), because division by zero fails in Spark alone"
    if isinstance(node, exp.Div | exp.Mod | exp.SafeDivide | exp.Avg):
        operands = [node.this] if isinstance(node, exp.Avg) else [node.this, node.expression]
        if any(kinds.of(operand) not in _NUMBERS for operand in operands):
            return "its operands must be integers or DOUBLE, as CAST(… AS DOUBLE) makes them"
    if isinstance(node, exp.Cast):
        return _reason_of_cast(node, kinds)
    if isinstance(node, (exp.Sum, *OF_ALL, exp.Case, exp.If)) and kinds.of(node) == "decimal":
        return _reason_of_decimal(node, kinds)
    if isinstance(node, exp.Like):
        pattern = node.expression
        return (
            None if isinstance(pattern, exp.Literal) and "\\" not in pattern.name else "its pattern must be plain text"
        )
    if isinstance(node, exp.Substring | exp.Left):
        bounds = [value for name, value in node.args.items() if name != "this" and isinstance(value, exp.Expr)]
        numbers = [int(b.name) if isinstance(b, exp.Literal) and b.is_int else 0 for b in bounds]
        return None if all(number > 0 for number in numbers) else "its positions must be numbers above 0"
    if isinstance(node, exp.Concat | exp.DPipe):
        parts = node.expressions or [node.this, node.expression]
        plain = all(kinds.of(part) in ("text", "integer") for part in parts)
        return None if plain else "it takes texts and integers"
    if isinstance(node, exp.TimestampTrunc | exp.Year | exp.Quarter | exp.Month | exp.Day | exp.DayOfYear):
        wanted = ("timestamp",) if isinstance(node, exp.TimestampTrunc) else ("date", "timestamp")
        return None if kinds.of(node.this) in wanted else f"it takes a {' or '.join(wanted)}"
    if isinstance(node, _COMPARISONS):
        return _reason_of_comparison(kinds.of(node.this), kinds.of(node.expression), node)
    return None


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
        "date": ("date", "text"),
        "timestamp": ("timestamp",),
        "boolean": ("boolean", "integer"),
    }
    if isinstance(node.this, exp.Null) or (isinstance(node.this, exp.Literal) and target in ("date", "timestamp")):
        return None
    if source is None or target not in agreed.get(source, ()):
        return f"a cast of {source or 'this'} to {node.to.sql(syntax.DIALECT)} rounds or fails differently"
    return None


def _reason_of_comparison(left: str | None, right: str | None, node: exp.Expr) -> str | None:
    if left is None or right is None or left == right or "null" in (left, right):
        return None
    numbers = {"integer", "float", "decimal"}
    if {left, right} <= numbers:
        return None
    literal = any(isinstance(side, exp.Literal) for side in (node.this, node.expression))
    if literal and {left, right} & {"date", "timestamp"} and "text" in (left, right):
        return None
    return f"it compares {left} with {right}: cast one side"


def _reason_of_mixture(node: exp.Expr, kinds: ValueKinds) -> str | None:
    """Return a reason for values of several types: the engines choose other common types for them."""
    for values in _values_with_one_type(node, kinds):
        known = {kinds.of(value) for value in values} - {None, "null"}
        if known & {"integer", "decimal"} and any(kinds.width(value) == "FLOAT" for value in values):
            return "cast its FLOAT to DOUBLE"
        if "text" in known and len(known) > 1 and not _is_date_text(values, known):
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


def _values_with_one_type(node: exp.Expr, kinds: ValueKinds) -> list[list[exp.Expr]]:
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


def _is_date_text(values: Sequence[exp.Expr], known: set[str | None]) -> bool:
    """Return True if the only texts beside dates or instants are literals."""
    texts = [value for value in values if not (isinstance(value, exp.Literal) and value.is_string)]
    return bool(known & {"date", "timestamp"}) and len(texts) < len(values) and len(known) == 2


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


def _is_nonzero(divisor: exp.Expr) -> bool:
    while isinstance(divisor, exp.Paren | exp.Cast):
        divisor = divisor.this
    if isinstance(divisor, exp.Literal):
        return not divisor.is_string and float(divisor.name) != 0
    zero = divisor.expression if isinstance(divisor, exp.Nullif) else None
    return isinstance(zero, exp.Literal) and not zero.is_string and float(zero.name) == 0


def as_spark_computes(query: exp.Expr) -> exp.Expr:
    """Return the query for DuckDB with casts that fail as Spark's do, results as wide as Spark's, and averages that are
    summed as DOUBLE, as Spark sums them.
    """

    def visit(node: exp.Expr) -> exp.Expr:
        if type(node) is exp.TryCast and not node.args.get("safe"):
            return exp.Cast(this=node.this, to=node.args["to"])
        return node

    query = query.copy().transform(visit, copy=False)
    for average in query.find_all(exp.Avg):
        values = average.this.expressions if isinstance(average.this, exp.Distinct) else [average.this]
        for value in values:
            value.replace(exp.Cast(this=value.copy(), to=exp.DataType.build("DOUBLE")))
    for node in [child for child in query.find_all(*NARROW) if not isinstance(child.parent, exp.Window | exp.Filter)]:
        node.replace(_as_int(node))
    for window in [child for child in query.find_all(exp.Window) if isinstance(syntax.function_of(child), NARROW)]:
        window.replace(_as_int(window))
    return query


def _as_int(node: exp.Expr) -> exp.Cast:
    return exp.Cast(this=node.copy(), to=exp.DataType.build("INT"))
