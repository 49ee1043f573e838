"""Rows and columns that a query of a plan reads of each table (pure).

Theorem: a query gives the same rows if a table that it names once has only those rows that a lookup of it finds. A
lookup is by equality with columns of another source: of the touched values, of a source that an inner join or WHERE
compares, or of the left side of a left join whose right side the table is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from . import syntax
from .restriction import TOUCHED
from .table_names import prefix_of, table_of

LOOKUP_SHARE = 8
"""A table is looked up by key if it has at least this number of rows for each key."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Lookup of a table's rows."""

    source: str
    """Name of the table with the values."""
    columns: Mapping[str, str]
    """Column of the table with the values, by the column that is looked up."""


@dataclass(frozen=True, slots=True)
class TableRead:
    """Read of one table of a query."""

    name: str
    columns: frozenset[str]
    """Columns that the query reads."""
    lookups: tuple[Lookup, ...]
    """Lookups of which each finds all rows that count."""

    @property
    def prefix(self) -> str:
        """Return the prefix of the name, which says what rows the table has."""
        return prefix_of(self.name)

    @property
    def table(self) -> str:
        """Return the store's table."""
        return table_of(self.name)


def table_reads(query: exp.Expr, known: Collection[str] = (TOUCHED,)) -> dict[str, TableRead]:
    """Return the reads of a query of a plan by the name of the table in the query.

    known: names of tables that are not of the store.
    """
    nodes: dict[str, list[exp.Table]] = {}
    for node in query.find_all(exp.Table):
        if node.name not in known:
            nodes.setdefault(node.name, []).append(node)
    read: dict[str, set[str]] = {}
    for column in query.find_all(exp.Column):
        read.setdefault(column.table, set()).add(column.name)
    return {
        name: TableRead(
            name,
            frozenset().union(*(read.get(node.alias, ()) for node in own)),
            tuple(_lookups(own[0])) if len(own) == 1 else (),
        )
        for name, own in nodes.items()
    }


def _lookups(node: exp.Table) -> Iterator[Lookup]:
    block = _block_of(node)
    if block is None:
        return
    touched = _touched_columns(block, node.alias)
    if touched:
        yield Lookup(TOUCHED, touched)
    outer = _block_of(block.parent) if isinstance(block.parent, exp.Subquery) and _is_whole(block) else None
    for chain in (block, outer):
        if chain is None:
            continue
        names = {source.alias: name for source in syntax.sources_of(chain) if (name := _table_name(source)) is not None}
        for other, pairs in _equalities(chain, node.alias).items():
            if names.get(other, node.name) != node.name:
                yield Lookup(names[other], pairs)


def _table_name(source: exp.Expr) -> str | None:
    """Return the name of the table that a source is, perhaps restricted; None for another source."""
    block = source.this if isinstance(source, exp.Subquery) else None
    if isinstance(block, exp.Select) and _is_whole(block):
        source = syntax.sources_of(block)[0]
    return source.name if isinstance(source, exp.Table) else None


def _block_of(source: exp.Expr | None) -> exp.Select | None:
    """Return the SELECT in whose FROM the source stands."""
    parent = None if source is None else source.parent
    return parent.parent if isinstance(parent, exp.From | exp.Join) and isinstance(parent.parent, exp.Select) else None


def _is_whole(block: exp.Select) -> bool:
    """Return True for `SELECT * FROM table AS alias WHERE …`, as the restriction writes it."""
    return len(block.expressions) == 1 and isinstance(block.expressions[0], exp.Star) and not syntax.joins_of(block)


def _touched_columns(block: exp.Select, alias: str) -> dict[str, str]:
    """Return the columns of a source by the column of touched values that WHERE requires them to equal."""
    pairs: dict[str, str] = {}
    for part in syntax.conjuncts(syntax.condition_of(block, "where")):
        query = part.this if isinstance(part, exp.Exists) else None
        if not isinstance(query, exp.Select) or [source.name for source in syntax.sources_of(query)] != [TOUCHED]:
            continue
        for equality in syntax.conjuncts(syntax.condition_of(query, "where")):
            if isinstance(equality, exp.NullSafeEQ):
                value = equality.expression.unnest()
                if isinstance(value, exp.Column) and value.table == alias and isinstance(equality.this, exp.Column):
                    pairs[value.name] = equality.this.name
    return pairs


def _equalities(block: exp.Select, alias: str) -> dict[str, dict[str, str]]:
    """Return by other source of the block, and by column of the source, the other's column that it must equal."""
    joins = syntax.joins_of(block)
    if any((join.side or "").upper() not in ("", "LEFT") for join in joins):
        return {}
    conditions = syntax.conjuncts(syntax.condition_of(block, "where"))
    for join in joins:
        if not join.side or join.this.alias == alias:
            conditions += syntax.conjuncts(join.args.get("on"))
    pairs: dict[str, dict[str, str]] = {}
    for condition in conditions:
        if isinstance(condition, exp.EQ):
            sides = [condition.this.unnest(), condition.expression.unnest()]
            for own, other in (sides, sides[::-1]):
                if isinstance(own, exp.Column) and isinstance(other, exp.Column) and own.table == alias != other.table:
                    pairs.setdefault(other.table, {})[own.name] = other.name
    return pairs


def choose_lookup(
    read: TableRead, primary_key: Sequence[str], known: Mapping[str, object]
) -> tuple[Lookup, tuple[str, ...]] | None:
    """Return a lookup among known sources by the longest prefix of the primary key, and that prefix; None without."""
    best: tuple[Lookup, tuple[str, ...]] | None = None
    for lookup in read.lookups:
        prefix: list[str] = []
        for column in primary_key:
            if column not in lookup.columns:
                break
            prefix.append(column)
        if prefix and lookup.source in known and (best is None or len(prefix) > len(best[1])):
            best = (lookup, tuple(prefix))
    return best


def looked_up(values: pa.Table, schema: pa.Schema) -> pa.Table | None:
    """Return the distinct values with the types of the columns of their names, without integers that these cannot have;
    None if equality of the two types is more than equality of stored values.
    """
    columns: list[pa.ChunkedArray] = []
    possible = pa.chunked_array([pa.repeat(True, values.num_rows)])
    for name, column in zip(values.column_names, values.columns, strict=True):
        kind = schema.field(name).type
        if column.type != kind:
            if not (pa.types.is_signed_integer(column.type) and pa.types.is_signed_integer(kind)):
                return None
            narrowed = column.cast(kind, safe=False)
            same = pc.equal(narrowed.cast(column.type, safe=False), column)
            column, possible = narrowed, pc.and_(possible, pc.fill_null(same, True))
        columns.append(column)
    fields = [pc.field(name) for name in values.column_names]  # Arrow takes a text that begins with a dot for a path.
    return pa.table(columns, names=values.column_names).filter(possible).group_by(fields).aggregate([])
