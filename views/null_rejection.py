"""Outer joins whose null-extended rows are rejected (a part of rule R0).

Theorem: if a condition that every row must meet is not TRUE for rows in which a side of an outer join is NULL, the join
has no more rows than without its null extension of that side.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlglot import exp

from . import syntax

_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.Like)
_STRICT = (exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Paren, exp.Cast)


def inner_where_nulls_are_rejected(query: exp.Select) -> None:
    """Make outer joins of a block inner as far as WHERE and the ON of later inner joins reject their NULLs."""
    joins = syntax.joins_of(query)
    where = syntax.conjuncts(syntax.condition_of(query, "where"))
    changed = True
    while changed:
        changed = False
        for place, join in enumerate(joins):
            later = [
                part
                for other in joins[place + 1 :]
                if not other.side
                for part in syntax.conjuncts(other.args.get("on"))
            ]
            before = {source.alias for source in syntax.sources_of(query)[: place + 1]}
            side = narrowed(join.side, before, {join.this.alias}, [*where, *later])
            if side != join.side:
                join.set("side", side or None)
                changed = True


def narrowed(side: str, before: Collection[str], right: Collection[str], conditions: list[exp.Expr]) -> str:
    """Return the side of an outer join that remains when these conditions must be TRUE; "" for an inner join."""
    left_exists = any(rejects_null(condition, before) for condition in conditions)
    right_exists = any(rejects_null(condition, right) for condition in conditions)
    if side == "FULL":
        return {(True, True): "", (True, False): "LEFT", (False, True): "RIGHT"}.get((left_exists, right_exists), side)
    if (side == "LEFT" and right_exists) or (side == "RIGHT" and left_exists):
        return ""
    return side


def rejects_null(condition: exp.Expr, aliases: Collection[str]) -> bool:
    """Return True if the condition is not TRUE when all columns of these sources are NULL."""
    if isinstance(condition, exp.Paren):
        return rejects_null(condition.this, aliases)
    if isinstance(condition, exp.And):
        return rejects_null(condition.left, aliases) or rejects_null(condition.right, aliases)
    if isinstance(condition, exp.Or):
        return rejects_null(condition.left, aliases) and rejects_null(condition.right, aliases)
    if isinstance(condition, exp.Not):
        return _not_rejects_null(condition.this, aliases)
    return _is_null(condition, aliases) or (isinstance(condition, exp.In) and _strict(condition.this, aliases))


def _not_rejects_null(condition: exp.Expr, aliases: Collection[str]) -> bool:
    if isinstance(condition, exp.Paren):
        return _not_rejects_null(condition.this, aliases)
    if isinstance(condition, exp.Is) and isinstance(condition.expression, exp.Null):
        return _strict(condition.this, aliases)
    return _is_null(condition, aliases)


def _is_null(condition: exp.Expr, aliases: Collection[str]) -> bool:
    """Return True if the condition is surely NULL."""
    if isinstance(condition, _COMPARISONS):
        return _strict(condition.this, aliases) or _strict(condition.expression, aliases)
    if isinstance(condition, exp.Between):
        return _strict(condition.this, aliases)
    if isinstance(condition, exp.In):
        return not condition.args.get("query") and _strict(condition.this, aliases)
    return False


def _strict(expression: exp.Expr, aliases: Collection[str]) -> bool:
    """Return True if the expression is NULL when all columns of these sources are NULL."""
    if isinstance(expression, exp.Column):
        return expression.table in aliases
    return isinstance(expression, _STRICT) and any(
        _strict(part, aliases) for part in expression.iter_expressions() if not isinstance(part, exp.DataType)
    )
