"""Sums and counts of a view that a refresh keeps by adding changes (rule R9, pure).

Theorem: let a query be one block over one table whose outputs are its GROUP BY expressions, sums and counts of exact
numbers, and functions of these. A new value of a sum or count of a group is its old value, and that over the new images
of the changed rows, less that over the old ones. A group of which one of these values is not 0 has rows; a sum that is
not 0 is not NULL. Nothing follows for other groups: a refresh that meets one of them recomputes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, localcontext
from typing import Any

import pyarrow as pa
from sqlglot import exp

from . import syntax
from .stability import grouped_by, has_grouping_sets, windows_of

SIGNED = "epochlog_signed_"
"""Prefix of the table of old and new images of a table's changed rows, with the column IS_NEW."""
FOLDED = "epochlog_folded"
"""Name of the table of groups with their new sums and counts."""
IS_NEW = "epochlog_is_new"
MOST_GROUPS = 10_000
"""Largest number of groups whose sums a refresh keeps by adding changes."""
_VALUE = "epochlog_value_"
_ALIAS = "epochlog_folded_row"


@dataclass(frozen=True, slots=True)
class Fold:
    """Plan of a refresh that adds changes.

    table: the only one. groups: outputs that are GROUP BY expressions; () for an aggregate of all rows. holders: by
    column of the table FOLDED, the output that is this sum or count. sums: those of its columns that are sums. deltas:
    query of the groups' changes, over the table SIGNED. rows: query of the view's rows, over the table FOLDED.
    """

    table: str
    groups: tuple[str, ...]
    holders: Mapping[str, str]
    sums: frozenset[str]
    deltas: exp.Select
    rows: exp.Select


def fold_of(query: exp.Query, tables: Mapping[str, str], primary_key: Sequence[str]) -> Fold | None:
    """Return the plan that adds changes to the sums of a query in normal form; None if the query is of another kind.

    tables: by alias of an occurrence.
    """
    block = syntax.unwrapped(query)
    if not isinstance(block, exp.Select) or not _is_plain(block):
        return None
    (source,) = syntax.sources_of(block)
    keys = grouped_by(block)
    groups = {o.alias: o.this for o in block.expressions if o.this in keys}
    aggregates = [node for node in block.find_all(exp.AggFunc) if node.parent_select is block]
    distinct = list(dict.fromkeys(node for o in block.expressions for node in o.find_all(exp.AggFunc)))
    holders = {f"{_VALUE}{number}": _holder(block, node) for number, node in enumerate(distinct)}
    if not distinct or len(groups) != len(keys) or (block.args.get("group") and set(groups) != set(primary_key)):
        return None
    if not all(map(_is_additive, aggregates)) or None in holders.values():
        return None
    names = dict(zip(distinct, holders, strict=True))
    outputs = [_rewritten(output.this, groups, names) for output in block.expressions]
    if any(column.table != _ALIAS for output in outputs for column in output.find_all(exp.Column)):
        return None
    deltas = syntax.select(
        [
            *(syntax.named(expression, name) for name, expression in groups.items()),
            *(syntax.named(_change_of(node), name) for node, name in names.items()),
        ]
    )
    syntax.put_from(deltas, syntax.table(SIGNED + tables[source.alias], source.alias))
    deltas.set("where", block.args["where"].copy() if block.args.get("where") else None)
    deltas.set("group", block.args["group"].copy() if block.args.get("group") else None)
    _mark(deltas, source.alias)
    rows = syntax.select(syntax.named(o, own.alias) for o, own in zip(outputs, block.expressions, strict=True))
    syntax.put_from(rows, syntax.table(FOLDED, _ALIAS))
    held = {column: holder for column, holder in holders.items() if holder is not None}
    sums = frozenset(name for node, name in names.items() if isinstance(node, exp.Sum))
    return Fold(tables[source.alias], tuple(groups), held, sums, deltas, rows)


def _is_plain(block: exp.Select) -> bool:
    """Return True for a block over one table, without clauses whose rows depend on others."""
    sources = syntax.sources_of(block)
    having = syntax.condition_of(block, "having")
    return (
        len(sources) == 1
        and isinstance(sources[0], exp.Table)
        and not block.args.get("distinct")
        and not block.args.get("qualify")
        and not syntax.is_limited(block)
        and not windows_of(block)
        and not has_grouping_sets(block)
        and len(list(block.find_all(exp.Query))) == 1
        and (having is None or _is_positive_count(having))
    )


def _is_positive_count(having: exp.Expr) -> bool:
    """Return True for `COUNT(*) > 0`, which no group fails."""
    test = having.unnest()
    return isinstance(test, exp.GT) and _is_count_of_rows(test.this) and test.expression == exp.Literal.number(0)


def _is_count_of_rows(node: exp.Expr) -> bool:
    return isinstance(node, exp.Count) and isinstance(node.this, exp.Star)


def _is_additive(node: exp.AggFunc) -> bool:
    if isinstance(node.parent, exp.Filter | exp.Window | exp.IgnoreNulls | exp.RespectNulls):
        return False
    if type(node) not in (exp.Sum, exp.Count) or node.expressions or isinstance(node.this, exp.Distinct):
        return False
    return not syntax.has_aggregate(node.this)


def _holder(block: exp.Select, aggregate: exp.Expr) -> str | None:
    """Return the output that is this aggregate, perhaps cast; None without."""
    for output in block.expressions:
        value = output.this.unnest()
        if isinstance(value, exp.Cast) and not value.args.get("safe"):
            value = value.this.unnest()
        if value == aggregate:
            return output.alias
    return None


def _rewritten(output: exp.Expr, groups: Mapping[str, exp.Expr], names: Mapping[exp.Expr, str]) -> exp.Expr:
    """Return an output over the table FOLDED. Columns that stay are of no group."""

    def visit(node: exp.Expr) -> exp.Expr:
        for name, expression in groups.items():
            if node == expression:
                return syntax.column(_ALIAS, name)
        return syntax.column(_ALIAS, names[node]) if node in names else node

    return output.copy().transform(visit, copy=False)


def _change_of(aggregate: exp.Expr) -> exp.Expr:
    """Return the aggregate over new images less that over old ones. The name of IS_NEW gets its table later."""
    is_new = exp.column(exp.to_identifier(IS_NEW, quoted=True))
    plus: exp.Expr = exp.Literal.number(1)
    if isinstance(aggregate, exp.Sum):
        plus = exp.paren(aggregate.this.copy())
    signed: exp.Expr = exp.Case(ifs=[exp.If(this=is_new, true=plus)], default=exp.Neg(this=plus.copy()))
    if isinstance(aggregate, exp.Count) and not _is_count_of_rows(aggregate):
        present = exp.Not(this=exp.Is(this=exp.paren(aggregate.this.copy()), expression=exp.Null()))
        signed = exp.Case(ifs=[exp.If(this=present, true=signed)], default=exp.Literal.number(0))
    return exp.Sum(this=signed)


def _mark(deltas: exp.Select, alias: str) -> None:
    for column in deltas.find_all(exp.Column):
        if not column.table and column.name == IS_NEW:
            column.set("table", exp.to_identifier(alias, quoted=True))


def groups_of_changes(fold: Fold, schema: pa.Schema, deltas: pa.Table) -> pa.Table | None:
    """Return the groups of the changes in the types of the view's table; None if they cannot be folded.

    schema: of the view's table. deltas: rows of `fold.deltas`.
    """
    if len(deltas) > MOST_GROUPS or not all(
        _is_exact(deltas.schema.field(column).type, schema.field(holder).type)
        for column, holder in fold.holders.items()
    ):
        return None
    fields = [schema.field(name) for name in fold.groups]
    if not all(_is_comparable(field.type) for field in fields):
        return None
    if any(not field.nullable and deltas.column(field.name).null_count for field in fields):
        return None  # the view's own refresh refuses a key that is NULL
    try:
        return deltas.select(list(fold.groups)).cast(pa.schema(fields).remove_metadata())
    except pa.ArrowInvalid:
        return None


def folded(fold: Fold, groups: pa.Table, deltas: pa.Table, before: pa.Table) -> pa.Table | None:
    """Return the groups that the changes alter, with their new sums and counts; None if the theorem does not give them.

    groups: of the changes. deltas: rows of `fold.deltas`, in the order of the groups. before: the view's rows of them.
    """
    types = {column: deltas.schema.field(column).type for column in fold.holders}
    target = pa.schema([*groups.schema, *types.items()])
    known = {tuple(row[name] for name in fold.groups): row for row in before.to_pylist()}
    rows: list[dict[str, Any]] = []
    with localcontext(Context(prec=100)):
        keys: list[dict[str, Any]] = groups.to_pylist() if fold.groups else [{}] * len(deltas)
        for group, change in zip(keys, deltas.to_pylist(), strict=True):
            row = known.get(tuple(group.values()))
            old = {column: 0 if row is None else row[holder] for column, holder in fold.holders.items()}
            if None in old.values():
                return None
            new = {column: old[column] + (change[column] or 0) for column in old}
            if not _has_rows(new) or not _has_sums(new, fold.sums):
                return None
            if row is None or new != old:
                rows.append({**group, **new})
    try:
        return pa.Table.from_pylist(rows, schema=target)
    except pa.ArrowInvalid:
        return None


def _has_rows(values: Mapping[str, Any]) -> bool:
    """Return True if sums and counts show that their group has rows."""
    return any(values.values())


def _has_sums(values: Mapping[str, Any], sums: Collection[str]) -> bool:
    """Return True if no sum can be NULL. No count is below 0 either: the old values are those of the query."""
    return all(value != 0 if column in sums else value >= 0 for column, value in values.items())


def _is_exact(natural: pa.DataType, kept: pa.DataType) -> bool:
    """Return True if a column of the view keeps each value of a sum or count."""
    scale = 0 if pa.types.is_integer(natural) else natural.scale if pa.types.is_decimal(natural) else None
    if scale is None:
        return False
    return (scale == 0 and pa.types.is_integer(kept)) or (pa.types.is_decimal(kept) and kept.scale >= scale)


def _is_comparable(kind: pa.DataType) -> bool:
    """Return True if Python compares values of a type as the engines do."""
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_date32, pa.types.is_decimal)
    return any(check(kind) for check in kinds)
