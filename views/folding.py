"""Sums and counts of a view that a refresh keeps by adding changes (rule R9, pure).

Theorem: let a query be one block over an inner join of tables, or over one table, whose outputs are its GROUP BY
expressions, sums and counts of exact numbers, and functions of these. A sum or count of a group is linear in the rows
of the join, so that its new value is its old one, and that over the rows that the join gains, less that over those that
it loses (`delta_join.py`). A group of which one of these values is not 0 has rows, and one of which COUNT(*) is 0 has
none. A sum that is not 0 is not NULL. Nothing follows for other groups: a refresh computes them again.

Sums of floats are no part of it: they depend on the order of the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, localcontext
from typing import Any

import pyarrow as pa
from sqlglot import exp

from . import syntax
from .delta_join import delta_join, is_inner_join
from .stability import grouped_by, has_grouping_sets, windows_of
from .table_names import IS_NEW

FOLDED = "epochlog_folded"
"""Name of the table of groups with their new sums and counts."""
MOST_GROUPS = 10_000
"""Largest number of groups whose sums a refresh keeps by adding changes."""
_VALUE = "epochlog_value_"
_ARGUMENT = "epochlog_argument_"
_ALIAS = "epochlog_folded_row"
_CHANGES = "epochlog_delta"


@dataclass(frozen=True, slots=True)
class Fold:
    """Plan of a refresh that adds changes."""

    block: exp.Select
    tables: Mapping[str, str]
    """Table of each occurrence, by alias."""
    groups: Mapping[str, exp.Expr]
    """Expressions of GROUP BY, by output; none for an aggregate of all rows."""
    values: Mapping[str, exp.Expr]
    """Sums and counts that are kept, by column of the table FOLDED."""
    holders: Mapping[str, str]
    """Output of the view that is this sum or count, by column of the table FOLDED."""
    rows: exp.Select
    """Query of the view's rows, over the table FOLDED."""

    @property
    def sums(self) -> frozenset[str]:
        """Return the columns of the table FOLDED that are sums."""
        return frozenset(name for name, value in self.values.items() if isinstance(value, exp.Sum))

    @property
    def row_count(self) -> str | None:
        """Return the column of the table FOLDED that counts the rows of a group; None without."""
        return next((name for name, value in self.values.items() if _is_count_of_rows(value)), None)

    def deltas(self, changed: Collection[str]) -> exp.Select:
        """Return the query of the groups' changes in a barrier in which these tables have changed.

        It reads tables SIGNED, NOW and OLD.
        """
        arguments = {
            name.replace(_VALUE, _ARGUMENT): value.this
            for name, value in self.values.items()
            if not _is_count_of_rows(value)
        }
        rows = delta_join(self.block, {**self.groups, **arguments}, self.tables, changed)
        groups = [syntax.column(_CHANGES, name) for name in self.groups]
        query = syntax.select(
            [
                *(syntax.named(column, column.name) for column in groups),
                *(syntax.named(_change_of(value, name), name) for name, value in self.values.items()),
            ]
        )
        syntax.put_from(query, syntax.derived(rows, _CHANGES))
        if groups:
            query.set("group", exp.Group(expressions=groups))
        return query


def fold_of(query: exp.Query, tables: Mapping[str, str], primary_key: Sequence[str]) -> Fold | None:
    """Return the plan that adds changes to the sums of a query in normal form; None if the query is of another kind.

    tables: by alias of an occurrence.
    """
    block = syntax.unwrapped(query)
    if not isinstance(block, exp.Select) or not is_plain(block) or not _keeps_all_groups(block):
        return None
    keys = set(grouped_by(block))
    groups = {o.alias: o.this for o in block.expressions if o.this in keys}
    aggregates = [node for node in block.find_all(exp.AggFunc) if node.parent_select is block]
    distinct = list(dict.fromkeys(node for o in block.expressions for node in o.find_all(exp.AggFunc)))
    outputs_by_value = _outputs_by_value(block)
    holders = {f"{_VALUE}{number}": outputs_by_value.get(node) for number, node in enumerate(distinct)}
    if not distinct or len(groups) != len(keys) or (block.args.get("group") and set(groups) != set(primary_key)):
        return None
    if not all(map(_is_additive, aggregates)) or None in holders.values():
        return None
    names = dict(zip(distinct, holders, strict=True))
    group_names = {expression: name for name, expression in reversed(groups.items())}
    outputs = [_rewritten(output.this, group_names, names) for output in block.expressions]
    if any(column.table != _ALIAS for output in outputs for column in output.find_all(exp.Column)):
        return None
    rows = syntax.select(syntax.named(o, own.alias) for o, own in zip(outputs, block.expressions, strict=True))
    syntax.put_from(rows, syntax.table(FOLDED, _ALIAS))
    held = {column: holder for column, holder in holders.items() if holder is not None}
    values = {name: value for value, name in names.items()}
    return Fold(block, dict(tables), groups, values, held, rows)


def is_plain(block: exp.Select) -> bool:
    """Return True for a block over an inner join of tables, without clauses whose rows depend on others."""
    return (
        is_inner_join(block)
        and not block.args.get("distinct")
        and not block.args.get("qualify")
        and not block.args.get("laterals")
        and not syntax.is_limited(block)
        and not windows_of(block)
        and not has_grouping_sets(block)
        and len(list(block.find_all(exp.Query))) == 1
    )


def _keeps_all_groups(block: exp.Select) -> bool:
    """Return True if no group fails HAVING."""
    having = syntax.condition_of(block, "having")
    return having is None or _is_positive_count(having)


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


def _outputs_by_value(block: exp.Select) -> dict[exp.Expr, str]:
    """Return the first output of each value, perhaps cast."""
    outputs: dict[exp.Expr, str] = {}
    for output in block.expressions:
        value = output.this.unnest()
        if isinstance(value, exp.Cast) and not value.args.get("safe"):
            value = value.this.unnest()
        outputs.setdefault(value, output.alias)
    return outputs


def _rewritten(output: exp.Expr, groups: Mapping[exp.Expr, str], names: Mapping[exp.Expr, str]) -> exp.Expr:
    """Return an output over the table FOLDED. groups: names by GROUP BY expression. Columns that stay are of none."""

    def visit(node: exp.Expr) -> exp.Expr:
        if node in groups:
            return syntax.column(_ALIAS, groups[node])
        return syntax.column(_ALIAS, names[node]) if node in names else node

    return output.copy().transform(visit, copy=False)


def _change_of(value: exp.Expr, name: str) -> exp.Expr:
    """Return the sum or count of this name over the rows that the join gains, less that over those that it loses."""
    is_new, argument = syntax.column(_CHANGES, IS_NEW), syntax.column(_CHANGES, name.replace(_VALUE, _ARGUMENT))
    plus: exp.Expr = argument if isinstance(value, exp.Sum) else exp.Literal.number(1)
    signed: exp.Expr = exp.Case(ifs=[exp.If(this=is_new, true=plus)], default=exp.Neg(this=plus.copy()))
    if isinstance(value, exp.Count) and not _is_count_of_rows(value):
        present = exp.Not(this=exp.Is(this=argument, expression=exp.Null()))
        signed = exp.Case(ifs=[exp.If(this=present, true=signed)], default=exp.Literal.number(0))
    return exp.Sum(this=signed)


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


@dataclass(frozen=True, slots=True)
class Folded:
    """Groups of the changes: those with their new sums and counts (`rows`), those that have no rows any more
    (`emptied`), and those of which the theorem gives no values (`unknown`).
    """

    rows: pa.Table
    emptied: pa.Table
    unknown: pa.Table

    @property
    def groups(self) -> pa.Table:
        """Return all these groups."""
        names = self.emptied.column_names
        return pa.concat_tables([self.rows.select(names), self.emptied, self.unknown])


def folded(fold: Fold, groups: pa.Table, deltas: pa.Table, before: pa.Table) -> Folded | None:
    """Return the groups that the changes alter; None if their values do not fit their types.

    groups: of the changes. deltas: rows of `fold.deltas`, in the order of the groups. before: the view's rows of them.
    """
    types = {column: deltas.schema.field(column).type for column in fold.holders}
    known = {tuple(row[name] for name in fold.groups): row for row in before.to_pylist()}
    rows: list[dict[str, Any]] = []
    emptied: list[dict[str, Any]] = []
    unknown: list[dict[str, Any]] = []
    with localcontext(Context(prec=100)):
        keys: list[dict[str, Any]] = groups.to_pylist() if fold.groups else [{}] * len(deltas)
        for group, change in zip(keys, deltas.to_pylist(), strict=True):
            row = known.get(tuple(group.values()))
            old = {column: 0 if row is None else row[holder] for column, holder in fold.holders.items()}
            new = {column: (value or 0) + (change[column] or 0) for column, value in old.items()}
            if fold.groups and _is_empty(new, fold.row_count):
                emptied += [group] if row is not None else []
            elif not _has_rows(new) or not _has_sums(new, fold.sums):
                unknown.append(group)
            elif new != old:
                rows.append({**group, **new})
    if unknown and not fold.groups:
        return None
    try:
        of_groups = [pa.Table.from_pylist(some, schema=groups.schema) for some in (emptied, unknown)]
        return Folded(pa.Table.from_pylist(rows, schema=pa.schema([*groups.schema, *types.items()])), *of_groups)
    except pa.ArrowInvalid:
        return None


def _is_empty(values: Mapping[str, Any], row_count: str | None) -> bool:
    """Return True if the count of a group's rows is known, and 0."""
    return row_count is not None and values[row_count] == 0


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
