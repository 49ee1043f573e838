"""Groups below a query: what of a query reads tables, where its rows are computed of all its groups (rule R14, pure).

Theorem: let all tables of a query be read by one inner query of groups, or by the groups of a block that has windows or
LIMIT beside its aggregates, as if these were an inner query too. Then the query's rows follow from the rows of these
groups, and a state that keeps the groups tells them.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from . import syntax
from .stability import grouped_by, has_grouping_sets, is_aggregated, windows_of

ALIAS = "epochlog_groups"
_KEY, _VALUE = "key_", "value_"
_OF_ROWS = ("from_", "joins", "where", "group", "having")
"""Clauses of a block of groups that say which groups it has."""


def groups_below(query: exp.Query) -> Iterator[tuple[exp.Query, exp.Select]]:
    """Yield copies of a query, each with an inner query of groups that reads all its tables, outermost first."""
    for place, block in enumerate(_path(query)):
        if not is_aggregated(block) or has_grouping_sets(block):
            continue
        whole = query.copy()
        block = list(_path(whole))[place]
        if windows_of(block) or syntax.is_limited(block) or block.args.get("distinct"):
            inner = _split(block)
            if inner is not None:
                yield whole, inner
        elif place:
            yield whole, block


def _path(query: exp.Query) -> Iterator[exp.Select]:
    """Yield the block of a query, then the block of the inner query that each reads alone."""
    block = syntax.unwrapped(query)
    while isinstance(block, exp.Select):
        yield block
        sources = syntax.sources_of(block)
        tables = sum(1 for _ in block.find_all(exp.Table))
        inner = sources[0] if len(sources) == 1 else None
        if not isinstance(inner, exp.Subquery) or sum(1 for _ in inner.find_all(exp.Table)) < tables:
            return
        block = syntax.unwrapped(inner)


def _split(block: exp.Select) -> exp.Select | None:
    """Put an inner query of the groups of a block below it, and return that; None if the block reads other columns."""
    keys = {key: f"{_KEY}{number}" for number, key in enumerate(dict.fromkeys(grouped_by(block)))}
    parts = [*block.expressions, *([order] if (order := block.args.get("order")) is not None else [])]
    nodes = dict.fromkeys(node for part in parts for node in _aggregates(part))
    names = {**keys, **{node: f"{_VALUE}{number}" for number, node in enumerate(nodes)}}
    inner = syntax.select(syntax.named(value, name) for value, name in names.items())
    for clause in _OF_ROWS:
        inner.set(clause, block.args.pop(clause, None))

    def visit(node: exp.Expr) -> exp.Expr:
        is_group = node in names and not isinstance(node, exp.Literal) and not _is_of_window(node)
        return syntax.column(ALIAS, names[node]) if is_group else node

    for part in parts:
        part.transform(visit, copy=False)
    syntax.put_from(block, syntax.derived(inner, ALIAS))
    own = [column for part in parts for column in part.find_all(exp.Column)]
    return None if any(column.table != ALIAS for column in own) else inner


def _aggregates(part: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the aggregates of a block's rows in an expression, with their FILTER, but no function of a window."""
    pending = [part]
    while pending:
        node = pending.pop()
        if isinstance(node, exp.AggFunc) and not _is_of_window(node):
            yield node.parent if isinstance(node.parent, exp.Filter) else node
        elif not isinstance(node, exp.Query):
            pending.extend(reversed(list(node.iter_expressions())))


def _is_of_window(node: exp.Expr) -> bool:
    """Return True for the function of a window, and for its FILTER."""
    parent = node.parent
    while isinstance(parent, exp.IgnoreNulls | exp.RespectNulls | exp.Filter) and parent.this is node:
        node, parent = parent, parent.parent
    return isinstance(parent, exp.Window) and parent.this is node
