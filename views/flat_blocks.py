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
"""Most nodes of the expressions that stand for columns of inner queries. Each of a chain of inner queries may use a
column of the one before it twice.
"""


def flattened(query: exp.Query) -> exp.Query:
    """Return a query in normal form with fewer inner queries."""
    query = query.copy()
    block = syntax.unwrapped(query)
    return _Flattening().flat(block) if isinstance(block, exp.Select) else query


class _Flattening:
    """Flattening of one query."""

    def __init__(self) -> None:
        self._left = MOST_NODES

    def flat(self, block: exp.Select) -> exp.Select:
        """Flatten a block in place, and return the block that has its rows."""
        for source in syntax.sources_of(block):
            inner = _inner_of(source)
            if inner is not None:
                source.set("this", self.flat(inner))
        if _joins_inner(block):
            for source in syntax.sources_of(block):
                inner = _inner_of(source)
                if inner is not None and _is_of_rows(inner) and self._takes(block, source.alias, inner):
                    _take_in(block, source, inner)
        sources = syntax.sources_of(block)
        inner = _inner_of(sources[0]) if len(sources) == 1 else None
        if inner is None or not _is_of_rows(block) or not _is_of_groups(inner):
            return block
        alias = sources[0].alias
        return _with_conditions(inner, block, alias) or block if self._takes(block, alias, inner) else block

    def _takes(self, block: exp.Select, alias: str, inner: exp.Select) -> bool:
        """Return True if the expressions of an inner query can stand for its columns, and count their nodes: these are
        few, and each value has the type of the column.
        """
        outputs = {output.alias: output.this for output in inner.expressions}
        read = [outputs[column.name] for column in block.find_all(exp.Column) if column.table == alias]
        sizes = {id(value): sum(1 for _ in value.walk()) for value in outputs.values()}
        size = sum(sizes[id(value)] for value in read)
        if size > self._left or any(_typed(value) is None for value in read):
            return False
        self._left -= size
        return True


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
    typed = {output.alias: _typed(output.this) for output in block.expressions}
    return {name: _as_part(value) for name, value in typed.items() if value is not None}


def _typed(value: exp.Expr) -> exp.Expr | None:
    """Return an expression of the type that a column has whose value it is; None if that is not known. DuckDB gives a
    constant the type of what stands beside it: w + 1 is SMALLINT for such a w, and INT if 1 is a column's value.
    """
    constant = value.unnest()
    number = constant.this if isinstance(constant, exp.Neg) else constant
    if isinstance(number, exp.Literal) and number.is_int and int(number.name) < 1 << 63:
        kind = "INT" if int(number.name) < 1 << 31 else "BIGINT"
        return exp.cast(value.copy(), kind)
    return None if isinstance(constant, exp.Literal | exp.Null) else value


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
