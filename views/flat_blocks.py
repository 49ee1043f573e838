"""Inner queries that the blocks above them take in, so that rules for one block hold for more queries (pure).

Theorem: a query has the same rows if an inner query of rows, which an inner join or FROM alone reads, gives way to its
own sources, with its conditions in WHERE and its expressions in the place of its columns. So it has if a block of rows
over one inner query of groups gives way to that table's block, with its conditions in HAVING.

Expressions may be evaluated of other rows then: a query of changes that fails is no error (see `step.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from . import syntax
from .stability import has_grouping_sets, is_aggregated, windows_of

_DEPENDING = ("distinct", "qualify", "laterals", "order", "limit", "offset", "with_", "pivots", "sample")
"""Clauses of a block whose rows are not, each by itself, rows of its FROM."""

MOST_NODES = 4096
"""Most nodes of the expressions that stand for the columns of one inner query."""


def flattened(query: exp.Query) -> exp.Query:
    """Return a query in normal form with fewer inner queries."""
    query = query.copy()
    block = syntax.unwrapped(query)
    return _flat(block) if isinstance(block, exp.Select) else query


def _flat(block: exp.Select) -> exp.Select:
    """Flatten a block in place, and return the block that has its rows."""
    for source in syntax.sources_of(block):
        inner = _inner_of(source)
        if inner is not None:
            source.set("this", _flat(inner))
    if _joins_inner(block):
        for source in syntax.sources_of(block):
            inner = _inner_of(source)
            if inner is not None and _is_of_rows(inner) and _is_short(block, source.alias, inner):
                _take_in(block, source, inner)
    sources = syntax.sources_of(block)
    inner = _inner_of(sources[0]) if len(sources) == 1 else None
    if inner is not None and _is_of_rows(block) and _is_of_groups(inner) and _is_short(block, sources[0].alias, inner):
        return _with_conditions(inner, block, sources[0].alias) or block
    return block


def _inner_of(source: exp.Expr) -> exp.Select | None:
    """Return the block of an inner query; None for another source."""
    inner = syntax.unwrapped(source) if isinstance(source, exp.Subquery) else None
    return inner if isinstance(inner, exp.Select) else None


def _is_of_rows(block: exp.Select) -> bool:
    """Return True if each row of the block is one row of the inner join in its FROM, if its conditions keep that."""
    return _has_own_rows(block) and not is_aggregated(block) and bool(syntax.sources_of(block))


def _is_of_groups(block: exp.Select) -> bool:
    return _has_own_rows(block) and is_aggregated(block) and not has_grouping_sets(block)


def _has_own_rows(block: exp.Select) -> bool:
    """Return True for a block over an inner join, without windows, subqueries, and clauses that leave rows out."""
    others = (value for name, value in block.args.items() if name not in ("from_", "joins"))
    parts = [part for value in others for part in (value if isinstance(value, list) else [value])]
    parts += [condition for join in syntax.joins_of(block) if (condition := join.args.get("on")) is not None]
    return (
        not any(block.args.get(name) for name in _DEPENDING)
        and not windows_of(block)
        and _joins_inner(block)
        and not any(part.find(exp.Query) for part in parts if isinstance(part, exp.Expr))
    )


def _joins_inner(block: exp.Select) -> bool:
    """Return True if the block's joins are all inner ones."""
    return not any(
        join.side or join.kind not in ("", "INNER", "CROSS") or join.args.get("using") or join.method
        for join in syntax.joins_of(block)
    )


def _is_short(block: exp.Select, alias: str, inner: exp.Select) -> bool:
    """Return True if an inner query's expressions stay few in the place of its columns. Each of a chain of tables may
    use a column of the one before it twice.
    """
    sizes = {output.alias: sum(1 for _ in output.this.walk()) for output in inner.expressions}
    return sum(sizes[column.name] for column in block.find_all(exp.Column) if column.table == alias) <= MOST_NODES


def _take_in(block: exp.Select, source: exp.Expr, inner: exp.Select) -> None:
    """Put the sources and conditions of an inner query of rows in its place."""
    _replace_columns(block, source.alias, _expressions(inner))
    first, own = syntax.sources_of(inner)[0].copy(), [join.copy() for join in syntax.joins_of(inner)]
    conditions = _conditions(inner, "where")
    joins: list[exp.Join] = []
    if isinstance(source.parent, exp.From):
        syntax.put_from(block, first)
        joins += own
    for join in syntax.joins_of(block):
        if join.this is source:
            conditions += syntax.conjuncts(join.args.get("on"))
            joins += [exp.Join(this=first, kind="CROSS"), *own]
        else:
            joins.append(join)
    block.set("joins", joins)
    _require(block, "where", conditions)


def _with_conditions(inner: exp.Select, block: exp.Select, alias: str) -> exp.Select | None:
    """Return the block of groups with the outputs and conditions of the block of rows above it; None if it would have
    no aggregate any more.
    """
    above, groups = block.copy(), inner.copy()
    _replace_columns(above, alias, _expressions(inner))
    groups.set("expressions", [output.copy() for output in above.expressions])
    _require(groups, "having", _conditions(above, "where"))
    return groups if is_aggregated(groups) else None


def _expressions(block: exp.Select) -> dict[str, exp.Expr]:
    """Return the outputs' expressions by name, each as a part of another expression."""
    return {output.alias: _as_part(output.this) for output in block.expressions}


def _as_part(value: exp.Expr) -> exp.Expr:
    is_closed = isinstance(value, exp.Column | exp.Literal | exp.Func | exp.Paren | exp.Null | exp.Boolean)
    return value if is_closed and not isinstance(value, exp.Binary) else exp.paren(value.copy())


def _replace_columns(block: exp.Select, alias: str, expressions: Mapping[str, exp.Expr]) -> None:
    """Replace the columns of a source by its expressions."""
    for column in list(block.find_all(exp.Column)):
        if column.table == alias:
            column.replace(expressions[column.name].copy())


def _conditions(block: exp.Select, clause: str) -> list[exp.Expr]:
    return syntax.conjuncts(syntax.condition_of(block, clause))


def _require(block: exp.Select, clause: str, conditions: list[exp.Expr]) -> None:
    """Add conditions to WHERE or HAVING."""
    both = [*_conditions(block, clause), *conditions]
    if both:
        parts = [exp.paren(part.copy()) for part in both]
        kind = exp.Where if clause == "where" else exp.Having
        block.set(clause, kind(this=exp.and_(*parts, copy=False)))
