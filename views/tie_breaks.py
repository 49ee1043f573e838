"""Orders without ties (a part of rule R0).

Theorem: a limited block, and a window whose result depends on the order of its rows, have one answer. Where the query
leaves open which of several rows comes first, the key of its sources decides, so the answer is one of the query's.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from epochlog.errors import InvalidInput

from . import syntax

ORDERED = (exp.RowNumber, exp.Ntile, exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue)
"""Window functions whose result depends on the order of rows that compare as equal."""
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
    if not isinstance(function, ORDERED) and kind != "ROWS":
        return
    if kind == "RANGE":
        raise InvalidInput(f"a view's {window.sql(syntax.DIALECT)} depends on the order of equal rows: use ROWS")
    order = window.args.get("order")
    if order is None:
        raise InvalidInput(f"a view's {window.sql(syntax.DIALECT)} needs ORDER BY: its rows would be in no order")
    present = {term.this.sql() for term in order.expressions}
    order.set("expressions", [*order.expressions, *(_ordered(key) for key in keys if key.sql() not in present)])


def _ordered(expression: exp.Expr) -> exp.Ordered:
    return exp.Ordered(this=expression.copy(), nulls_first=True)
