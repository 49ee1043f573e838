"""Windows that Spark refuses, or whose frames it bounds otherwise than DuckDB (pure)."""

from __future__ import annotations

from sqlglot import exp

from . import syntax
from .value_kinds import ValueKinds

_RANKS = (exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist)
_WITHOUT_FRAME = (*_RANKS, exp.RowNumber, exp.Ntile, exp.Lag, exp.Lead)
_LARGEST = 2**31 - 1
"""Largest INT, the type of positions in Spark."""


def reason_of_window(window: exp.Window, kinds: ValueKinds) -> str | None:
    """Return how to write a window so that the engines agree; None if they do."""
    function, frame, order = syntax.function_of(window), window.args.get("spec"), window.args.get("order")
    if isinstance(function.this, exp.Distinct):
        return "Spark has no DISTINCT in a window"
    if any((kinds.of(key) or "").startswith("map") for key in window.args.get("partition_by") or []):
        return "Spark compares no maps: use their values"
    if isinstance(function, _RANKS) and order is None:
        return "write ORDER BY in it: without one Spark ranks nothing"
    if frame is None:
        return None
    if isinstance(function, _WITHOUT_FRAME):
        return "leave out its frame, which this function has not in Spark"
    return _reason_of_frame(frame, order, kinds)


def reason_of_position(node: exp.Expr) -> str | None:
    """Return a reason for a distance, a position or a number of tiles that is no number Spark takes."""
    position = node.this if isinstance(node, exp.Ntile) else node.args.get("offset")
    if position is None:
        return None
    number = position.this if isinstance(node, exp.Lag | exp.Lead) and isinstance(position, exp.Neg) else position
    least = 0 if isinstance(node, exp.Lag | exp.Lead) else 1
    known = isinstance(number, exp.Literal) and number.is_int and least <= int(number.name) <= _LARGEST
    what = "distance" if isinstance(node, exp.Lag | exp.Lead) else "argument"
    return None if known else f"its {what} must be a number" + (" above 0" if least else "")


def _reason_of_frame(frame: exp.WindowSpec, order: exp.Order | None, kinds: ValueKinds) -> str | None:
    bounds = [_bound(frame.args.get(side), frame.args.get(f"{side}_side")) for side in ("start", "end")]
    start, end = bounds[0], 0 if frame.args.get("end") is None else bounds[1]
    if start is None or end is None:
        return "its bounds must be UNBOUNDED, CURRENT ROW or numbers of 0 or more"
    if start > end or start == float("inf") or end == -float("inf"):
        return "its frame ends before it begins"
    if str(frame.args.get("kind")).upper() != "RANGE" or abs(start) == abs(end) == float("inf"):
        return None
    if order is None:
        return "write ORDER BY in it, which a frame of RANGE needs"
    if {abs(bound) for bound in (start, end)} <= {0, float("inf")}:
        return None
    types = {kinds.of(term.this) for term in order.expressions}
    if len(order.expressions) != 1 or not types <= {"integer", "float", "decimal", "date"}:
        return "a RANGE of numbers needs one ORDER BY of numbers or dates"
    largest = max(abs(bound) for bound in (start, end) if abs(bound) != float("inf"))
    return (
        None if largest <= _largest_distance(order.expressions[0].this, kinds) else "its bounds do not fit its ORDER BY"
    )


def _largest_distance(value: exp.Expr, kinds: ValueKinds) -> int:
    """Return the largest bound of a frame of RANGE over the value: Spark casts the bounds to its type."""
    if kinds.of(value) == "decimal":
        whole, behind = kinds.digits(value)
        return (10**whole - 1) if whole + behind < 38 else 0
    return {"TINYINT": 2**7 - 1, "SMALLINT": 2**15 - 1}.get(kinds.width(value) or "", _LARGEST)


def _bound(value: exp.Expr | str | None, side: object) -> float | None:
    """Return the distance of a frame's bound from the current row, before it below 0; None if it is unknown."""
    sign = -1 if str(side).upper() == "PRECEDING" else 1
    if isinstance(value, exp.Expr):
        is_number = isinstance(value, exp.Literal) and value.is_int and int(value.name) <= _LARGEST
        return sign * int(value.name) if is_number else None
    return {"UNBOUNDED": sign * float("inf"), "CURRENT ROW": 0}.get(str(value).upper())
