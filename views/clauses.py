"""Clauses of one block in normal form: joins, named windows, positions in GROUP BY, names of outputs, misuse (R0)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlglot import exp

from epochlog.errors import InvalidInput

from . import syntax
from .scope import Scope

_OF_WINDOWS = ("partition_by", "order", "spec")
_LISTS_OF_KEYS = (exp.Group, exp.Rollup, exp.Cube, exp.GroupingSets, exp.Tuple)


def with_window_definitions(node: exp.Expr, windows: Mapping[str, exp.Expr]) -> exp.Expr:
    """Return the expression with the definitions of named windows in place of their names."""
    node = node.copy()
    for window in [child for child in syntax.walk(node) if isinstance(child, exp.Window)]:
        name = window.args.get("alias")
        if name is None:
            continue
        if any(window.args.get(clause) for clause in _OF_WINDOWS):
            raise InvalidInput(f"a view cannot have {window.sql(syntax.DIALECT)}: write all of it in OVER (…)")
        if name.name.lower() not in windows:
            raise InvalidInput(f"the window {name.name!r} is not defined")
        definition = windows[name.name.lower()]
        if definition.args.get("alias"):
            raise InvalidInput(f"the window {name.name!r} is defined by another one: write all of it in WINDOW")
        window.set("alias", None)
        for clause in _OF_WINDOWS:
            if definition.args.get(clause):
                value = definition.args[clause]
                window.set(clause, [part.copy() for part in value] if isinstance(value, list) else value.copy())
    return node


def with_totals_inside(group: exp.Expr) -> exp.Expr:
    """Return GROUP BY with ROLLUP (a, b) for a, b WITH ROLLUP, and so for CUBE, or with its GROUPING SETS alone.

    Raises InvalidInput for keys that Spark would take for others: those of no grouping set, and the other way round.
    """
    if any(isinstance(key, exp.Tuple) and not key.expressions for key in group.expressions):
        raise InvalidInput("a view cannot have GROUP BY (): leave it out, and an aggregate is of all rows")
    totals = [part for clause in ("rollup", "cube", "grouping_sets") for part in group.args.get(clause) or []]
    if not totals or not group.expressions:
        return group.copy()
    if len(totals) > 1 or any(isinstance(key, _LISTS_OF_KEYS) for key in group.expressions):
        raise InvalidInput("a view cannot have two of ROLLUP, CUBE and GROUPING SETS behind the keys of one GROUP BY")
    inside = totals[0].copy()
    if not isinstance(inside, exp.GroupingSets):
        inside.set("expressions", [key.copy() for key in group.expressions])
        return exp.Group(expressions=[inside])
    lists = [node for node in inside.walk() if isinstance(node, _LISTS_OF_KEYS)]
    parts = [part for node in lists for part in node.expressions if not isinstance(part, _LISTS_OF_KEYS)]
    sets = {part.unnest().sql(syntax.DIALECT).lower() for part in parts}
    for text in sets ^ {key.unnest().sql(syntax.DIALECT).lower() for key in group.expressions}:
        raise InvalidInput(
            f"a view cannot have {text} in GROUP BY or its GROUPING SETS alone: write GROUP BY GROUPING SETS (…)"
        )
    return exp.Group(expressions=[inside])


def without_ordinals(group: exp.Expr, query: exp.Select) -> exp.Expr:
    """Replace positions in GROUP BY by the outputs that they name."""

    def output(node: exp.Expr) -> exp.Expr:
        position = node.unnest()
        negative = isinstance(position, exp.Neg) and isinstance(position.this, exp.Literal) and position.this.is_int
        if not (isinstance(position, exp.Literal) and position.is_int) and not negative:
            return node
        ordinal = 0 if negative else int(position.name)
        if any(e.is_star for e in query.expressions) or not 1 <= ordinal <= len(query.expressions):
            raise InvalidInput(f"GROUP BY {node.sql(syntax.DIALECT)}: the query has no such column, or it has a star")
        return query.expressions[ordinal - 1].unalias().copy()

    for node in [child for child in group.walk() if isinstance(child, _LISTS_OF_KEYS)]:
        if isinstance(node, exp.Tuple) and not isinstance(node.parent, _LISTS_OF_KEYS):
            continue
        node.set("expressions", [output(part) for part in node.expressions])
    return group


def with_constants(group: exp.Expr) -> exp.Expr:
    """Return GROUP BY in normal form with casts in place of integers, which would be positions of outputs again.

    Raises InvalidInput for a constant among grouping sets: Spark gives NULL for it wherever it stands in the block.
    """
    constants = [key for key in grouping_keys(group) if isinstance(key.unnest(), exp.Literal | exp.Boolean | exp.Null)]
    if constants and group.find(exp.Rollup, exp.Cube, exp.GroupingSets):
        text = constants[0].sql(syntax.DIALECT)
        raise InvalidInput(f"a view cannot group by the constant {text} in GROUPING SETS, ROLLUP or CUBE: leave it out")
    for key in [constant.unnest() for constant in constants]:
        if isinstance(key, exp.Literal) and key.is_int:
            key.replace(exp.Cast(this=key.copy(), to=exp.DataType.build("INT" if int(key.name) < 2**31 else "BIGINT")))
    return group


def all_outputs_in_order(order: exp.Order, outputs: int) -> list[exp.Expr]:
    """Return the terms of ORDER BY; for ORDER BY ALL, the positions of all outputs."""
    terms = order.expressions
    term = terms[0].this
    if len(terms) > 1 or not (isinstance(term, exp.Var) and term.name.upper() == "ALL"):
        return terms
    ordered = []
    for position in range(outputs):
        ordered.append(terms[0].copy())
        ordered[-1].set("this", exp.Literal.number(position + 1))
    return ordered


def refuse_earlier_outputs(output: exp.Expr, earlier: Collection[str], scope: Scope) -> None:
    """Refuse the name of an earlier output of the SELECT that is no column of FROM. earlier: in lower case."""
    for column in syntax.columns(output):
        if not column.table and column.name.lower() in earlier and scope.find(column.name) is None:
            raise InvalidInput(
                f"a view cannot read {column.name}, another column of this SELECT: write its expression again, or "
                "compute it in a subquery in FROM"
            )


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
    lists = [node for node in group.walk() if isinstance(node, _LISTS_OF_KEYS)]
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
