"""Rows that a view of a join gains and loses, computed of the changes alone (rule R11, pure).

Theorem: let a query be one block over one table, or over an inner join of tables, without aggregates, windows,
DISTINCT, LIMIT and subqueries. Let the view's primary key have the key of a table, and let equalities of the join give
the keys of the others from columns of tables whose keys are known. Then there is at most one row of each primary key,
also if some of the tables have their old rows and others their new ones. Each term of the delta join (`delta_join.py`)
leads from one such join to the next, so the last term that has rows of a primary key tells the row that is there at the
end: the one that it gains, or none if it only loses one.

No row of the view is read for it, nor touched values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from epochlog.store.types.arrays import from_numpy
from epochlog.store.types.key_codec import KeyCodec, last_of_each, sort_indices
from epochlog.store.types.schema import TableSchema

from . import syntax
from .changed_keys import equal_columns
from .delta_join import TERM, delta_join, is_inner_join
from .stability import is_aggregated, windows_of
from .table_names import IS_NEW

Column = tuple[str, str]
"""Column of a source: alias and name."""


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Plan of a refresh that computes rows of the changes alone."""

    block: exp.Select
    tables: Mapping[str, str]
    """Table of each occurrence, by alias."""

    def deltas(self, changed: Collection[str]) -> exp.Query:
        """Return the query of the rows that the view gains and loses in a barrier in which these tables have changed:
        its columns, IS_NEW and TERM. It reads tables SIGNED, NOW and OLD.
        """
        outputs = {output.alias: output.this for output in self.block.expressions}
        return delta_join(self.block, outputs, self.tables, changed)


def row_changes_of(
    query: exp.Query, tables: Mapping[str, str], schemas: Mapping[str, TableSchema], primary_key: Sequence[str]
) -> RowChanges | None:
    """Return the plan of a query in normal form that follows the rule; None for another one.

    tables: by alias of an occurrence.
    """
    block = syntax.unwrapped(query)
    if not isinstance(block, exp.Select) or not is_inner_join(block) or not _has_rows_of_its_join(block):
        return None
    outputs = {output.alias: output.this for output in block.expressions}
    key = [outputs[name] for name in primary_key]
    known = {(column.table, column.name) for column in key if isinstance(column, exp.Column)}
    conditions = syntax.conjuncts(syntax.condition_of(block, "where"))
    for join in syntax.joins_of(block):
        conditions += syntax.conjuncts(join.args.get("on"))
    equals = [
        ((alias, name), other)
        for alias in tables
        for other, name in equal_columns(alias, conditions, tables, schemas).items()
    ]
    keys = {alias: schemas[table].primary_key for alias, table in tables.items()}
    return RowChanges(block, dict(tables)) if _gives_all_keys(known, keys, equals) else None


def _has_rows_of_its_join(block: exp.Select) -> bool:
    """Return True if each row of the block is computed of one row of its join."""
    clauses = ("distinct", "qualify", "laterals", "order")
    return (
        not any(block.args.get(clause) for clause in clauses)
        and not is_aggregated(block)
        and not syntax.is_limited(block)
        and not windows_of(block)
        and len(list(block.find_all(exp.Query))) == 1
    )


def _gives_all_keys(
    known: Collection[Column], keys: Mapping[str, Sequence[str]], equals: Collection[tuple[Column, Column]]
) -> bool:
    """Return True if known columns determine a row of each source. keys: by alias. equals: pairs of columns of which
    the second is equal to the first.
    """
    columns, determined, grew = set(known), set[str](), True
    while grew:
        before = len(columns), len(determined)
        determined |= {alias for alias, key in keys.items() if all((alias, name) in columns for name in key)}
        columns |= {other for column, other in equals if column in columns or column[0] in determined}
        grew = before != (len(columns), len(determined))
    return len(determined) == len(keys)


@lru_cache(maxsize=1024)
def with_marks(output: TableSchema) -> TableSchema:
    """Return the schema of the rows of `deltas`, in the types of the view's table."""
    schema = output.schema.append(pa.field(IS_NEW, pa.bool_())).append(pa.field(TERM, pa.int32()))
    return replace(output, schema=schema, ids=(), lineage=(), defaults=())


def gained_and_lost(output: TableSchema, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows of the changed primary keys that the view has then, and the keys of which it has none.

    output: schema of the view's table. rows: those of `deltas`, with the columns of `with_marks`.
    """
    rows = rows.sort_by([(TERM, "ascending"), (IS_NEW, "ascending")])
    keys = KeyCodec(output.schema, output.primary_key).encode(rows)
    order = from_numpy(sort_indices(keys))  # stable
    last = rows.take(order).filter(from_numpy(last_of_each(keys.take(order))))
    is_new = last.column(IS_NEW)
    lost = last.filter(pc.invert(is_new)).select(list(output.primary_key))
    return last.filter(is_new).select(output.schema.names), lost
