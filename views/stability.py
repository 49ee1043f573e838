"""Stable outputs of a block (rule R1).

Theorem: when the rows of one table change, a stable output of a changed row of the block has a value that it has in a
changed row of the block's FROM. So the values of stable outputs tell which rows of the block can have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from sqlglot import exp

from . import syntax


def is_aggregated(block: exp.Select) -> bool:
    """Return True if the block's rows are groups of the rows of its FROM."""
    having = syntax.condition_of(block, "having")
    return (
        block.args.get("group") is not None
        or having is not None
        or any(syntax.has_aggregate(output.this) for output in block.expressions)
    )


def is_global(block: exp.Select) -> bool:
    """Return True if the block has one row, also for no rows of its FROM."""
    return is_aggregated(block) and block.args.get("group") is None


def has_grouping_sets(block: exp.Select) -> bool:
    """Return True if a grouping expression can be NULL in a row because of GROUPING SETS, ROLLUP or CUBE."""
    group = block.args.get("group")
    return group is not None and group.find(exp.Rollup, exp.Cube, exp.GroupingSets) is not None


def grouped_by(block: exp.Select) -> list[exp.Expr]:
    """Return the expressions that are in every grouping set, without subqueries."""
    group = block.args.get("group")
    keys: list[exp.Expr] = []
    for part in [] if group is None else group.expressions:
        if isinstance(part, exp.GroupingSets):
            sets = [_members(entry) for entry in part.expressions]
            keys += [key for key in sets[0] if all(key in others for others in sets[1:])] if sets else []
        elif not isinstance(part, exp.Rollup | exp.Cube):
            keys.append(part)
    return [key for key in keys if not syntax.has_query(key)]


def _members(entry: exp.Expr) -> list[exp.Expr]:
    if isinstance(entry, exp.Tuple):
        return entry.expressions
    if isinstance(entry, exp.Paren):
        return [entry.this]
    return [] if isinstance(entry, exp.Rollup | exp.Cube | exp.GroupingSets) else [entry]


def windows_of(block: exp.Select) -> list[exp.Window]:
    """Return the windows of a block's outputs."""
    return [child for output in block.expressions for child in syntax.walk(output) if isinstance(child, exp.Window)]


def is_function_of(expression: exp.Expr, keys: Collection[exp.Expr]) -> bool:
    """Return True if the expression's value follows from the values of the keys, a set if there are many."""
    if expression in keys:
        return True
    if isinstance(expression, exp.Column | exp.Query | exp.Window | exp.AggFunc):
        return False
    return all(is_function_of(part, keys) for part in expression.iter_expressions())


def stable_outputs(
    block: exp.Select, readable: Callable[[exp.Column], bool], *, changes: bool
) -> Callable[[exp.Expr], bool]:
    """Return the test if an output expression of the block is stable.

    readable: True for columns of the block's FROM whose values a changed row of FROM has. changes: the changed table is
    inside of the block.
    """
    groups = set(grouped_by(block)) if is_aggregated(block) else None
    partitions = [set(window.args.get("partition_by") or []) for window in windows_of(block)] if changes else []
    limited = changes and syntax.is_limited(block)

    def is_stable(expression: exp.Expr) -> bool:
        if limited or any(isinstance(part, exp.Query | exp.Window | exp.AggFunc) for part in syntax.walk(expression)):
            return False
        if not all(readable(column) for column in syntax.columns(expression)):
            return False
        if groups is not None and not is_function_of(expression, groups):
            return False
        return all(is_function_of(expression, keys) for keys in partitions)

    return is_stable
