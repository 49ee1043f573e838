"""Orders without ties (a part of rule R0).

Theorem: a limited block, and a window whose result depends on the order of its rows, have one answer. Where the query
leaves open which of several rows comes first, the key of its sources decides, so the answer is one of the query's.

A longer order alone would be wrong where a frame ends at the last row that compares as equal, for each row would end
its own. There the frame is all rows of the partition, and the text's order tells which rows are equal: LAST_VALUE is
computed among these, and NTH_VALUE is NULL until there are so many rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from epochlog.errors import InvalidInput

from . import syntax

ORDERED = (exp.RowNumber, exp.Ntile, exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue)
"""Window functions whose result depends on the order of rows that compare as equal."""
_BY_FRAME = (exp.FirstValue, exp.LastValue, exp.NthValue)
_SETS = ("grouping_sets", "rollup", "cube")


def break_ties(query: exp.Select, sources: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Complete the orders of a block. sources: aliases, each with columns that are unique in it."""
    if query.args.get("order"):
        terms = query.args["order"].expressions
        terms += [_ordered(exp.Literal.number(position + 1)) for position in range(len(query.expressions))]
    group = query.args.get("group")
    if group is not None:
        keys = _keys_of_groups(group)
    elif any(syntax.has_aggregate(output) for output in query.expressions):
        keys = []
    else:
        keys = [syntax.column(alias, name) for alias, names in sources for name in names]
    for output in query.expressions:
        for window in [child for child in syntax.walk(output) if isinstance(child, exp.Window)]:
            _break_ties_of_window(window, keys)


def _keys_of_groups(group: exp.Group) -> list[exp.Expr]:
    """Return expressions that tell the groups apart: those of all grouping sets, and to which set a group belongs."""
    keys: dict[str, exp.Expr] = {}
    pending: list[exp.Expr] = [*group.expressions, *(part for kind in _SETS for part in group.args.get(kind) or [])]
    several = False
    while pending:
        part = pending.pop(0)
        if isinstance(part, exp.Rollup | exp.Cube | exp.GroupingSets | exp.Tuple):
            several = several or not isinstance(part, exp.Tuple)
            pending = [*part.expressions, *pending]
        elif isinstance(part, exp.Paren):
            pending.insert(0, part.this)
        else:
            keys.setdefault(part.sql(), part)
    grouping = [exp.Grouping(expressions=[key.copy()]) for key in keys.values()] if several else []
    return [*keys.values(), *grouping]


def _break_ties_of_window(window: exp.Window, keys: Sequence[exp.Expr]) -> None:
    function, frame = syntax.function_of(window), window.args.get("spec")
    kind = "" if frame is None else str(frame.args.get("kind") or "").upper()
    if kind == "GROUPS":
        raise InvalidInput(f"a view cannot have {_text(window)}, with a frame of GROUPS: write ROWS or RANGE")
    if not isinstance(function, ORDERED) and kind != "ROWS":
        return
    if isinstance(window.this, exp.Filter):
        raise InvalidInput(f"a view cannot have {_text(window)}: FILTER is of aggregates, so write CASE WHEN … in it")
    order = window.args.get("order")
    if order is None:
        raise InvalidInput(f"a view's {_text(window)} needs ORDER BY: its rows would be in no order")
    if isinstance(function, _BY_FRAME) and (frame is None or _is_default(frame)):
        _settle_among_peers(window, function, order, keys)
        return
    if kind == "RANGE":
        raise InvalidInput(f"a view's {_text(window)} depends on the order of equal rows: use ROWS")
    _append_keys(order, keys)


def _settle_among_peers(window: exp.Window, function: exp.Expr, order: exp.Order, keys: Sequence[exp.Expr]) -> None:
    """Complete the order of a function of a frame that ends at the last row that compares as equal (a peer)."""
    ignores_nulls = any(isinstance(node, exp.IgnoreNulls) for node in syntax.walk(window.this))
    partition = [part.copy() for part in window.args.get("partition_by") or []]
    if isinstance(function, exp.LastValue):
        if ignores_nulls:
            raise InvalidInput(
                f"a view cannot have {_text(window)}: its frame ends at the last of equal rows, which IGNORE NULLS can "
                "skip; write ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
            )
        window.set("partition_by", [*partition, *(term.this.copy() for term in order.expressions)])
        if keys:
            order.set("expressions", [_ordered(key) for key in keys])
        window.set("spec", _all_rows())
        return
    number = function.args.get("offset") or exp.Literal.number(1)
    if not (isinstance(number, exp.Literal) and number.is_int and int(number.name) > 0):
        raise InvalidInput(f"a view cannot have {_text(window)}: its position must be a number above 0")
    before = order.copy()
    _append_keys(order, keys)
    if isinstance(function, exp.FirstValue) and not ignores_nulls:
        return
    window.set("spec", _all_rows())
    counted = function.this.copy() if ignores_nulls else exp.Star()
    count = exp.Window(this=exp.Count(this=counted), partition_by=partition, order=before, over="OVER")
    reached = exp.GTE(this=count, expression=number.copy())
    window.replace(exp.Case(ifs=[exp.If(this=reached, true=window.copy())]))


def _append_keys(order: exp.Order, keys: Sequence[exp.Expr]) -> None:
    present = {term.this.sql() for term in order.expressions}
    order.set("expressions", [*order.expressions, *(_ordered(key) for key in keys if key.sql() not in present)])


def _is_default(frame: exp.WindowSpec) -> bool:
    """Return True for the frame that a window with ORDER BY has if none is written."""
    start = (str(frame.args.get("start")).upper(), str(frame.args.get("start_side")).upper())
    return (
        str(frame.args.get("kind")).upper() == "RANGE"
        and start == ("UNBOUNDED", "PRECEDING")
        and str(frame.args.get("end") or "CURRENT ROW").upper() == "CURRENT ROW"
    )


def _all_rows() -> exp.WindowSpec:
    sides = {"start_side": "PRECEDING", "end_side": "FOLLOWING"}
    return exp.WindowSpec(kind="ROWS", start="UNBOUNDED", end="UNBOUNDED", **sides)


def _text(window: exp.Window) -> str:
    return window.sql(syntax.DIALECT)


def _ordered(expression: exp.Expr) -> exp.Ordered:
    return exp.Ordered(this=expression.copy(), nulls_first=True)
