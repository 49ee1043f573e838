"""Touched values that are keys of the changed rows themselves (rule R7, pure).

Theorem: in a block of inner joins an equality of two columns of one type holds in each row, so that either column can
stand for the other. If the wanted outputs can be had of the changed table alone, its changed rows have all touched
values, and perhaps others. These are no more than the changed rows if one of them is a first column of its key, and no
other table is read for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from sqlglot import exp

from epochlog.store.types.schema import TableSchema

from . import syntax
from .opening import Path, aliases_of, opened, settled
from .table_names import CHANGED

_EXACT = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp)


def changed_keys(
    query: exp.Query, path: Path, wanted: Sequence[str], tables: Mapping[str, str], schemas: Mapping[str, TableSchema]
) -> exp.Select | None:
    """Return the query of the outputs' touched values over the changed rows alone; None if they are not keys of it.

    tables: by alias of an occurrence.
    """
    block = syntax.unwrapped(query)
    if not isinstance(block, exp.Select):
        return None
    flat = settled(opened(block, path))
    changed = [join.source for join in flat.joins if join.source.changed]
    if len(flat.chains) != 1 or len(changed) != 1 or not isinstance(changed[0].node, exp.Table):
        return None
    if any(join.side for join in flat.joins) or any(name not in flat.outputs for name in wanted):
        return None
    alias = changed[0].alias
    schema = schemas[tables[alias]]
    conditions = [condition.expression for condition in flat.all_conditions()]
    equals = equal_columns(alias, conditions, tables, schemas)

    def own(column: exp.Column) -> exp.Expr | None:
        name = equals.get((column.table, column.name))
        return None if name is None else syntax.column(alias, name)

    outputs = {name: syntax.replaced(flat.outputs[name], own) for name in wanted}
    if any(not aliases_of(output) <= {alias} for output in outputs.values()):
        return None
    if syntax.column(alias, schema.primary_key[0]) not in outputs.values():
        return None
    keys = syntax.select(syntax.named(output, name) for name, output in outputs.items())
    keys.set("distinct", exp.Distinct())
    syntax.put_from(keys, syntax.table(CHANGED + tables[alias], alias))
    of_changed = [exp.paren(condition.copy()) for condition in conditions if aliases_of(condition) == {alias}]
    if of_changed:
        keys.set("where", exp.Where(this=exp.and_(*of_changed, copy=False)))
    return keys


def equal_columns(
    alias: str, conditions: Sequence[exp.Expr], tables: Mapping[str, str], schemas: Mapping[str, TableSchema]
) -> dict[tuple[str, str], str]:
    """Return by another table's column the column of `alias` that it equals in each row, in one exact type."""
    equals: dict[tuple[str, str], str] = {}
    for condition in conditions:
        sides = [condition.this.unnest(), condition.expression.unnest()] if isinstance(condition, exp.EQ) else []
        for one_side, other in (sides, sides[::-1]) if sides else ():
            if not isinstance(one_side, exp.Column) or not isinstance(other, exp.Column):
                continue
            if one_side.table == alias != other.table and other.table in tables:
                kinds = [schemas[tables[side.table]].schema.field(side.name).type for side in (one_side, other)]
                if kinds[0] == kinds[1] and any(check(kinds[0]) for check in _EXACT):
                    equals[other.table, other.name] = one_side.name
    return equals
