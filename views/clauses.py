"""Clauses of one block in normal form: joins, named windows, positions in GROUP BY, names of outputs, misuse (R0)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from epochlog.errors import InvalidInput

from . import syntax


def with_window_definitions(node: exp.Expr, windows: Mapping[str, exp.Expr]) -> exp.Expr:
    """Return the expression with the definitions of named windows in place of their names."""
    node = node.copy()
    for window in [child for child in syntax.walk(node) if isinstance(child, exp.Window)]:
        name = window.args.get("alias")
        if name is None:
            continue
        if name.name.casefold() not in windows:
            raise InvalidInput(f"the window {name.name!r} is not defined")
        definition = windows[name.name.casefold()]
        window.set("alias", None)
        for clause in ("partition_by", "order", "spec"):
            if definition.args.get(clause) and not window.args.get(clause):
                value = definition.args[clause]
                window.set(clause, [part.copy() for part in value] if isinstance(value, list) else value.copy())
    return node


def with_totals_inside(group: exp.Expr) -> exp.Expr:
    """Return GROUP BY with ROLLUP (a, b) for a, b WITH ROLLUP, and so for CUBE."""
    group = group.copy()
    for clause, kind in (("rollup", exp.Rollup), ("cube", exp.Cube)):
        if group.args.get(clause):
            group = exp.Group(expressions=[kind(expressions=group.expressions)])
    return group


def without_ordinals(group: exp.Expr, query: exp.Select) -> exp.Expr:
    """Replace positions in GROUP BY by the outputs that they name."""

    def output(node: exp.Expr) -> exp.Expr:
        if not (isinstance(node, exp.Literal) and node.is_int):
            return node
        ordinal = int(node.name)
        if any(e.is_star for e in query.expressions) or not 1 <= ordinal <= len(query.expressions):
            raise InvalidInput(f"GROUP BY {ordinal}: the query has no such column, or it has a star")
        return query.expressions[ordinal - 1].unalias().copy()

    for node in [child for child in group.walk() if isinstance(child, exp.Group | exp.Rollup | exp.Cube)]:
        node.set("expressions", [output(part) for part in node.expressions])
    return group


def refuse_misplaced(query: exp.Select) -> None:
    """Refuse aggregates and windows where rows are not grouped yet."""
    places = [("WHERE", syntax.condition_of(query, "where"))]
    places += [("ON", join.args.get("on")) for join in syntax.joins_of(query)]
    places += [("GROUP BY", query.args.get("group"))]
    for clause, condition in places:
        if condition is not None and (
            syntax.has_aggregate(condition) or any(isinstance(child, exp.Window) for child in syntax.walk(condition))
        ):
            raise InvalidInput(f"a view cannot have an aggregate or a window in {clause}")


def name_of_output(output: exp.Expr) -> str:
    """Return the name of an output: its alias, or that of a column, also in a cast; empty for another expression."""
    inside = output.this if isinstance(output, exp.Cast) else output
    return inside.alias_or_name if isinstance(inside, exp.Alias | exp.Column) else ""


def unnamed(number: int) -> str:
    """Return the name by which an output without a name is read; a view's column cannot have it."""
    return f"_c{number}"


def grouping_keys(group: exp.Expr | None) -> list[exp.Expr]:
    """Return the expressions of all grouping sets."""
    if group is None:
        return []
    lists = [node for node in group.walk() if isinstance(node, exp.Group | exp.Rollup | exp.Cube | exp.Tuple)]
    return [part for node in lists for part in node.expressions]


def require_width(test: exp.In) -> None:
    """Refuse IN with a subquery of more or fewer columns than the values on its left."""
    query = test.args.get("query")
    if not isinstance(query, exp.Query):
        return
    left = len(test.this.expressions) if isinstance(test.this, exp.Tuple) else 1
    first = syntax.unwrapped(query)
    while isinstance(first, exp.SetOperation):
        first = syntax.unwrapped(first.this)
    if len(first.expressions) != left:
        raise InvalidInput(
            f"IN compares {left} value{'s'[: left > 1]} with the {len(first.expressions)} of its subquery"
        )


def rename_outputs(query: exp.Query, names: Sequence[str]) -> None:
    """Give the outputs of a query in normal form the names of the other side of its set operation."""
    query = syntax.unwrapped(query)
    if isinstance(query, exp.SetOperation):
        rename_outputs(query.this, names)
        rename_outputs(query.expression, names)
        return
    for output, name in zip(query.expressions, names, strict=True):
        output.set("alias", exp.to_identifier(name, quoted=True))


def kind_of_join(join: exp.Join) -> str:
    """Return INNER, LEFT, RIGHT, FULL, CROSS, SEMI or ANTI. Raises InvalidInput for a join that views do not have."""
    if join.method or join.args.get("match_condition") or join.args.get("pivots"):
        raise InvalidInput(f"a view cannot have a {join.method or 'matched'} JOIN: join with ON or USING")
    side, kind = (join.side or "").upper(), (join.kind or "").upper()
    if kind in ("SEMI", "ANTI"):
        return kind
    if kind not in ("", "INNER", "OUTER", "CROSS"):
        raise InvalidInput(f"a view cannot have a {kind} JOIN")
    return side or ("CROSS" if kind == "CROSS" else "INNER")
