"""Values that an engine brings to one type: comparisons, lists, branches, set operations (pure).

DuckDB casts more types into each other than Spark, and chooses other common types, so only values of one family agree.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from . import syntax
from .value_kinds import NOT_A_MOMENT, OF_ALL, ValueKinds, is_moment

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
_TESTS = (*_COMPARISONS, exp.In, exp.Between, exp.Nullif)
_FAMILIES = ({"integer", "float", "decimal"}, {"date", "timestamp"})
_WITHOUT_TEXTS = (exp.SetOperation, exp.Greatest, exp.Least, exp.Lag, exp.Lead)
"""Expressions for which Spark makes no date or timestamp of a text."""


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
        compared: list[exp.Expr] = [node.args["this"], *(case.this for case in node.args["ifs"])]
        return [compared, kinds.values_of(node)]
    if isinstance(node, (*OF_ALL, exp.Case, exp.If)):
        return [kinds.values_of(node)] if not isinstance(node.parent, exp.Case) else []
    if isinstance(node, exp.Lag | exp.Lead):
        return [[node.args["this"], node.args["default"]]] if node.args.get("default") else []
    if isinstance(node, (*_COMPARISONS, exp.Nullif)):
        return [[node.args["this"], node.args["expression"]]]
    return []


def reason_of_types(node: exp.Expr, kinds: ValueKinds) -> str | None:
    """Return a reason for values of several types of which the engines make other common types; None if they agree."""
    for place, values in enumerate(values_with_one_type(node, kinds)):
        is_tested = isinstance(node, _TESTS) or (isinstance(node, exp.Case) and node.this is not None and not place)
        reason = _reason_of_values(node, values, kinds, is_tested=is_tested)
        if reason is not None:
            return reason
    return None


def has_unknown_types(node: exp.Expr, kinds: ValueKinds) -> bool:
    """Return True if a value that an engine brings to the type of others has no known type."""
    return any(kinds.of(value) is None for values in values_with_one_type(node, kinds) for value in values)


def _reason_of_values(node: exp.Expr, values: Sequence[exp.Expr], kinds: ValueKinds, *, is_tested: bool) -> str | None:
    known = {kind for value in values if (kind := kinds.of(value)) is not None} - {"null"}
    names = " and ".join(sorted(kind.partition("<")[0] for kind in known))
    if is_tested and any(kind.startswith("map") for kind in known):
        return "Spark compares no maps: use their values"
    if len(known) > 1 and not any(known <= family for family in _FAMILIES):
        texts = [value for value in values if kinds.of(value) == "text"]
        is_alike = known - {"text"} <= {"date", "timestamp"} and not isinstance(node, _WITHOUT_TEXTS)
        if is_alike and all(isinstance(text, exp.Literal) for text in texts):
            return None if all(map(is_moment, texts)) else NOT_A_MOMENT
        return f"it takes {names} together: cast them to one type"
    if known & {"integer", "decimal"} and any(kinds.width(value) == "FLOAT" for value in values):
        return "cast its FLOAT to DOUBLE"
    if isinstance(node, exp.Lag | exp.Lead):
        return _reason_of_default(values, kinds)
    if isinstance(node, exp.SetOperation) and known == {"integer", "decimal"}:
        return "cast all its values to one DECIMAL(precision, scale)"
    if "decimal" in known and "float" not in known:
        digits = [kinds.digits(value) for value in values if kinds.of(value) != "null"]
        if max(whole for whole, _ in digits) + max(behind for _, behind in digits) > 38:
            return "its numbers need more than 38 digits together: cast them to one DECIMAL(precision, scale)"
    if not is_tested and "integer" in known and any(map(_is_number, values)):
        narrow = [width for value in values if (width := kinds.width(value)) in ("TINYINT", "SMALLINT")]
        return f"cast its {narrow[0]} to INT" if narrow else None
    return None


def _reason_of_default(values: Sequence[exp.Expr], kinds: ValueKinds) -> str | None:
    """Return a reason for a default of LAG or LEAD, which Spark casts to the type of the value."""
    (kind, default), (value, other) = map(kinds.of, values), values
    is_exact = default in (kind, "null") or (default == "integer" and kind in ("float", "decimal"))
    is_single = [kinds.width(side) == "FLOAT" for side in (value, other)]
    if is_exact and (is_single[0] == is_single[1] or default != "float"):
        return None
    return "its default must have the type of its value"


def _is_number(value: exp.Expr) -> bool:
    """Return True for an integer as it is written, which is INT in Spark and of any width in DuckDB."""
    while isinstance(value, exp.Paren | exp.Neg):
        value = value.this
    return isinstance(value, exp.Literal) and value.is_int
