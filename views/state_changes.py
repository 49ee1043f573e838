"""Changes of a view's state, and the values of its aggregates, in Arrow columns (a part of R12, pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from epochlog.store.types.arrays import from_numpy, to_numpy
from epochlog.store.types.key_codec import KeyCodec, contiguous
from epochlog.store.types.schema import TableSchema

from .aggregate_state import Aggregate
from .state_tables import Layout, ValueTable, substitute
from .table_names import IS_NEW

EXACT = 2**53
"""Sums of absolute values below it are exact as DOUBLE, in any order."""
Column = Any
"""Arrow array, or a chunked one."""


class Disagreement(Exception):
    """Error of changes that do not fit the state."""


@dataclass(frozen=True, slots=True)
class Coded:
    """Rows by key: each key once, in the order of its first row."""

    codes: np.ndarray
    """Int64[rows]: place of each row's key."""
    keys: pa.Array
    """Encoded keys."""
    columns: pa.Table
    """Columns of these keys."""

    def __len__(self) -> int:
        return len(self.keys)

    def places(self, schema: TableSchema, rows: pa.Table) -> np.ndarray:
        """Return the places of the keys of these rows, which are among the keys. schema: of the state table."""
        encoded = KeyCodec(schema.schema, schema.primary_key).encode(rows.select(list(schema.primary_key)))
        return to_numpy(pc.index_in(encoded, self.keys)).astype(np.int64)


def coded(schema: TableSchema, rows: pa.Table) -> Coded:
    """Return rows, which have the columns of a state table's key, by key."""
    key = rows.select(list(schema.primary_key))
    encoded = contiguous(KeyCodec(schema.schema, schema.primary_key).encode(key)).dictionary_encode()
    codes = to_numpy(encoded.indices).astype(np.int64)
    first = np.zeros(len(encoded.dictionary), np.int64)
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    return Coded(codes, encoded.dictionary, key.take(from_numpy(first)))


def key_columns(layout: Layout, inputs: pa.Table) -> pa.Table:
    """Return the key of each row's group."""
    if not layout.kept.groups:
        return pa.table({"g0": pa.repeat(pa.scalar(0, pa.int8()), inputs.num_rows)})
    columns: dict[str, Column] = {}
    for number, name in enumerate(layout.kept.groups):
        column = inputs.column(name)
        columns[f"n{number}"] = pc.is_null(column)
        columns[f"g{number}"] = pc.fill_null(column, substitute(layout.types[name]))
    return pa.table(columns)


def value_rows(layout: Layout, table: ValueTable, inputs: pa.Table, key: pa.Table) -> pa.Table:
    """Return the rows of the inputs that have a value: their key in the table of values, their group, and as `c0`, …
    +1 or -1 in those that the conditions pass, else 0.
    """
    present = None
    for name in table.inputs:
        valid = pc.is_valid(inputs.column(name))
        present = valid if present is None else pc.and_(present, valid)
    rows = key
    for column, name in zip(table.columns, table.inputs, strict=True):
        rows = rows.append_column(column, inputs.column(name))
    sign = signs(inputs)
    for column, condition in zip(table.counts, table.conditions, strict=True):
        rows = rows.append_column(column, sign if condition is None else _where(inputs.column(condition), sign))
    return rows.filter(present)


@dataclass(frozen=True, slots=True)
class Values:
    """Values of a DISTINCT argument whose numbers of rows change."""

    columns: pa.Table
    """Their keys in the table of values, and the new numbers `c0`, …"""
    appeared: Mapping[str, pa.Array]
    """By number, +1 for a value that the group gets, and -1 for one that it loses, else 0."""


def values_after(table: ValueTable, rows: pa.Table, by_value: Coded, before: Mapping[str, pa.Array]) -> Values:
    """Return the values with their new numbers. before: the old ones of each value. Raises Disagreement."""
    changes = sums(by_value, {name: rows.column(name) for name in table.counts})
    after = {name: pc.add(before[name], changes[name]) for name in table.counts}
    require_counts(after, "c0")
    appeared = {name: _appeared(before[name], after[name]) for name in table.counts}
    columns = by_value.columns
    for name, numbers in after.items():
        columns = columns.append_column(name, numbers)
    return Values(columns, appeared)


def group_changes(
    layout: Layout, inputs: pa.Table, groups: Coded, values: Sequence[tuple[Values, np.ndarray]]
) -> dict[str, pa.Array]:
    """Return what the numbers and sums of each group change by, by column of the table of groups. Those of MIN and MAX
    are the least (greatest) values that the group gains (a<n>i) and loses (a<n>d).

    values: of each table of values its changes, and the group of each.
    """
    sign = signs(inputs)
    added: dict[str, Column] = {"n": sign}
    changes: dict[str, pa.Array] = {}
    for number, aggregate in enumerate(layout.kept.aggregates):
        prefix = f"a{number}"
        if aggregate.distinct:
            place = [table.inputs for table in layout.values].index(aggregate.inputs)
            changes.update(_distinct_changes(layout, aggregate, prefix, place, values[place], len(groups)))
        else:
            added.update(_linear(layout, aggregate, prefix, inputs, sign))
            if aggregate.is_extreme:
                changes.update(_extremes(aggregate, prefix, inputs, groups, sign))
    return {**sums(groups, added), **changes}


def _linear(layout: Layout, aggregate: Aggregate, prefix: str, inputs: pa.Table, sign: Column) -> dict[str, Column]:
    """Return what each row adds to the numbers and sums of an aggregate without DISTINCT."""
    if aggregate.kind == "rows":
        return {f"{prefix}n": sign}
    value = inputs.column(aggregate.inputs[0])
    if aggregate.kind == "true":
        return {f"{prefix}n": _where(value, sign)}
    added = {f"{prefix}n": _where(pc.is_valid(value), sign)}
    if aggregate.kind in ("all_true", "any_true"):
        added[f"{prefix}t"] = _where(value, sign)
    if aggregate.kind in ("sum", "average"):
        number = value.cast(layout.sum_type(aggregate))
        added[f"{prefix}s"] = _signed(number, inputs)
        if aggregate.kind == "average":
            added[f"{prefix}b"] = _signed(pc.abs(number), inputs)
    return added


def _signed(values: Column, inputs: pa.Table) -> Column:
    return pc.if_else(inputs.column(IS_NEW), values, pc.negate(values))


def _distinct_changes(
    layout: Layout, aggregate: Aggregate, prefix: str, place: int, values: tuple[Values, np.ndarray], size: int
) -> dict[str, pa.Array]:
    table, (changed, codes) = layout.values[place], values
    appeared = changed.appeared[table.counts[table.conditions.index(aggregate.condition)]]
    added: dict[str, Column] = {f"{prefix}n": appeared}
    if aggregate.kind == "sum":
        number = changed.columns.column("v0").cast(layout.sum_type(aggregate))
        zero = pa.scalar(0, pa.int64()).cast(number.type)
        signed = pc.if_else(pc.greater(appeared, 0), number, pc.negate(number))
        added[f"{prefix}s"] = pc.if_else(pc.equal(appeared, 0), zero, signed)
    return _summed(codes, size, added)


def _extremes(aggregate: Aggregate, prefix: str, inputs: pa.Table, groups: Coded, sign: Column) -> dict[str, pa.Array]:
    """Return the least (greatest) values that each group gains and loses. A value that as many rows lose as gain is
    neither: a delta join has rows that neither join has.
    """
    value = inputs.column(aggregate.inputs[0])
    rows = pa.table({"k": from_numpy(groups.codes), "v": value, "s": sign}).filter(pc.is_valid(value))
    net = rows.group_by(["k", "v"], use_threads=False).aggregate([("s", "sum")])
    order = "ascending" if aggregate.kind == "least" else "descending"
    net = net.sort_by([("k", "ascending"), ("v", order)])
    extremes: dict[str, pa.Array] = {}
    for name, test in ((f"{prefix}i", pc.greater), (f"{prefix}d", pc.less)):
        some = net.filter(test(net.column("s_sum"), 0))
        codes = to_numpy(contiguous(some.column("k")))
        is_first = np.append(True, codes[1:] != codes[:-1])[: len(codes)]
        extremes[name] = scattered(some.column("v").filter(from_numpy(is_first)), codes[is_first], len(groups))
    return extremes


def scattered(values: Column, codes: np.ndarray, size: int) -> pa.Array:
    """Return the values at their places; NULL elsewhere."""
    places = np.full(size, -1, np.int64)
    places[codes] = np.arange(len(codes))
    return (
        contiguous(values).take(from_numpy(np.maximum(places, 0), places < 0))
        if len(codes)
        else pa.nulls(size, values.type)
    )


def groups_after(layout: Layout, before: Mapping[str, pa.Array], changes: Mapping[str, pa.Array]) -> ChangedGroups:
    """Return the groups with their new numbers, sums and values. before: the old ones, with NULL in a group that there
    was not. Raises Disagreement.
    """
    columns: dict[str, pa.Array] = {}
    for name in layout.schemas[0].schema.names:
        if name in layout.schemas[0].primary_key or name.endswith("m"):
            continue
        columns[name] = _added(before[name], changes[name])
    require_counts({name: numbers for name, numbers in columns.items() if name[-1] in "nt"}, "n")
    size = len(columns["n"])
    redone = inexact = from_numpy(np.zeros(size, np.bool_))
    for number, aggregate in enumerate(layout.kept.aggregates):
        prefix = f"a{number}"
        if aggregate.is_extreme:
            columns[f"{prefix}m"], unknown = _extreme_after(aggregate, prefix, before, changes, columns[f"{prefix}n"])
            redone = pc.or_(redone, unknown)
        if aggregate.kind == "average":
            limit = pa.scalar(EXACT, pa.int64()).cast(pa.decimal128(38, 0))
            inexact = pc.or_(inexact, pc.greater_equal(columns[f"{prefix}b"], limit))
    return ChangedGroups(columns, redone, inexact)


@dataclass(frozen=True, slots=True)
class ChangedGroups:
    """Groups that a barrier changes, by column of the table of groups."""

    columns: Mapping[str, pa.Array]
    redone: pa.Array
    """True for a group whose least or greatest value does not follow from the state."""
    inexact: pa.Array
    """True for a group with an average that does not."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """Change of a block's state by the inputs of a barrier."""

    keys: Coded
    """Groups of the inputs."""
    before: Mapping[str, pa.Array]
    """Their old numbers, sums and values, by column; NULL in a group that there was not."""
    groups: ChangedGroups
    values: Sequence[Values]
    """Of each table of values, those of the inputs."""

    def rows(self, layout: Layout) -> list[tuple[pa.Table, pa.Array | None]]:
        """Return of each state table the rows that change, and which of them leave it; None for none."""
        keys, names = self.keys.columns, layout.schemas[0].schema.names
        others = [self.groups.columns[name] for name in names[keys.num_columns :]]
        own = pa.table([*keys.columns, *others], names=names)
        leaves = pc.equal(self.groups.columns["n"], 0) if layout.kept.groups else None
        of_values = [(value.columns, pc.equal(value.columns.column("c0"), 0)) for value in self.values]
        return [(own, leaves), *of_values]


Find = Callable[[pa.Array, Sequence[str]], Mapping[str, pa.Array]]
"""Function that returns columns of the rows of a state table with these encoded keys, with NULL where there is none."""


def state_change(layout: Layout, inputs: pa.Table, finds: Sequence[Find]) -> StateChange:
    """Return what the inputs change of a state. finds: of each state table. Raises Disagreement."""
    find_groups, *find_values = finds
    own, *of_values = layout.schemas
    key = key_columns(layout, inputs)
    groups = _groups_of(layout, own, key)
    values: list[tuple[Values, np.ndarray]] = []
    for table, schema, find in zip(layout.values, of_values, find_values, strict=True):
        given = value_rows(layout, table, inputs, key)
        by_value = coded(schema, given)
        before = {name: pc.fill_null(column, 0) for name, column in find(by_value.keys, table.counts).items()}
        values.append((values_after(table, given, by_value, before), groups.places(own, by_value.columns)))
    changes = group_changes(layout, inputs, groups, values)
    names = [name for name in own.schema.names if name not in own.primary_key]
    before_groups = find_groups(groups.keys, names)
    after = groups_after(layout, before_groups, changes)
    return StateChange(groups, before_groups, after, [changed for changed, _ in values])


def _groups_of(layout: Layout, schema: TableSchema, key: pa.Table) -> Coded:
    """Return the groups of rows with these keys. An aggregate of all rows has its group without rows too."""
    if layout.kept.groups or key.num_rows:
        return coded(schema, key)
    group = coded(schema, pa.table({"g0": pa.array([0], pa.int8())}))
    return replace(group, codes=group.codes[:0])


def no_rows(schema: TableSchema) -> Find:
    """Return the function that finds rows of an empty state table."""

    def find(keys: pa.Array, columns: Sequence[str]) -> dict[str, pa.Array]:
        return {name: pa.nulls(len(keys), schema.schema.field(name).type) for name in columns}

    return find


def named_groups(layout: Layout, keys: pa.Table) -> pa.Table:
    """Return the groups of keys by output, with NULL where they have it."""
    columns = {
        name: pc.if_else(keys.column(f"n{number}"), pa.scalar(None, layout.types[name]), keys.column(f"g{number}"))
        for number, name in enumerate(layout.kept.groups)
    }
    return pa.table(columns)


def _added(before: pa.Array, change: pa.Array) -> pa.Array:
    """Return the sum of two columns in their type. The difference of their digits is that of a sum of many."""
    if not pt.is_decimal(change.type):
        return pc.add(pc.fill_null(before, 0), change)
    rows = pa.table(
        {
            "k": np.concatenate([np.arange(len(change)), np.arange(len(change))]),
            "v": pa.concat_arrays([before, change]),
        }
    )
    return contiguous(rows.group_by("k", use_threads=False).aggregate([("v", "sum")]).column("v_sum"))


def _extreme_after(
    aggregate: Aggregate, prefix: str, before: Mapping[str, pa.Array], changes: Mapping[str, pa.Array], count: pa.Array
) -> tuple[pa.Array, pa.Array]:
    """Return the groups' new least (greatest) values, and which of them do not follow."""
    old, gained, lost = before[f"{prefix}m"], changes[f"{prefix}i"], changes[f"{prefix}d"]
    below = pc.less if aggregate.kind == "least" else pc.greater
    is_empty = pc.equal(count, 0)
    is_first = pc.equal(pc.fill_null(before[f"{prefix}n"], 0), 0)
    stays = pc.or_(pc.is_null(lost), pc.fill_null(below(old, lost), False))
    is_better = pc.fill_null(below(gained, old), False)
    replaced = pc.and_(pc.is_valid(gained), pc.invert(pc.fill_null(below(old, gained), True)))
    value = pc.if_else(stays, pc.if_else(is_better, gained, old), gained)
    value = pc.if_else(is_first, gained, value)
    known = pc.or_(pc.or_(is_empty, is_first), pc.or_(stays, replaced))
    nothing = pa.scalar(None, value.type)
    return pc.if_else(pc.or_(is_empty, pc.invert(known)), nothing, value), pc.invert(known)


def extremes_of_rows(layout: Layout, inputs: pa.Table, groups: Coded) -> dict[str, pa.Array]:
    """Return the least and greatest values of groups of which the inputs have all rows."""
    return {
        f"a{number}m": _extremes(aggregate, f"a{number}", inputs, groups, signs(inputs))[f"a{number}i"]
        for number, aggregate in enumerate(layout.kept.aggregates)
        if aggregate.is_extreme
    }


def aggregate_values(layout: Layout, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Return the values of the aggregates, by their column in the table FOLDED. That of an average that does not follow
    from the state is any. Raises pa.ArrowInvalid for a sum that does not fit its type.
    """
    values: dict[str, pa.Array] = {}
    for number, aggregate in enumerate(layout.kept.aggregates):
        prefix = f"a{number}"
        count = columns[f"{prefix}n"]
        value = columns[f"{prefix}m"] if aggregate.is_extreme else count
        some = pc.greater(count, 0)
        if aggregate.kind == "sum":
            is_integer = pt.is_integer(layout.types[aggregate.inputs[0]])
            value = columns[f"{prefix}s"].cast(pa.int64()) if is_integer else columns[f"{prefix}s"]
        elif aggregate.kind == "average":
            value = pc.divide(columns[f"{prefix}s"].cast(pa.float64()), count.cast(pa.float64()))
        elif aggregate.kind in ("all_true", "any_true"):
            true = columns[f"{prefix}t"]
            value = pc.equal(true, count) if aggregate.kind == "all_true" else pc.greater(true, 0)
        if aggregate.kind in ("sum", "average", "all_true", "any_true"):
            value = pc.if_else(some, value, pa.scalar(None, value.type))
        values[aggregate.name] = value
    return values


def folded_groups(layout: Layout, keys: pa.Table, columns: Mapping[str, pa.Array], *, is_new: bool = True) -> pa.Table:
    """Return groups with the values of their aggregates, and IS_NEW: the table FOLDED. columns: numbers, sums and
    values by column of the table of groups. Raises pa.ArrowInvalid for a sum that does not fit its type.
    """
    known, values = named_groups(layout, keys), aggregate_values(layout, columns)
    marks = pa.repeat(pa.scalar(is_new), keys.num_rows)
    return pa.table([*known.columns, *values.values(), marks], names=[*known.column_names, *values, IS_NEW])


def no_groups(layout: Layout) -> pa.Table:
    """Return the table FOLDED without groups."""
    return stored_groups(layout, layout.schemas[0].schema.empty_table())


def stored_groups(layout: Layout, rows: pa.Table) -> pa.Table:
    """Return rows of the table of groups with the values of their aggregates: the table FOLDED. Raises pa.ArrowInvalid
    for a sum that does not fit its type.
    """
    return folded_groups(layout, rows, {name: contiguous(rows.column(name)) for name in rows.column_names})


def handed_on(layout: Layout, change: StateChange) -> pa.Table:
    """Return the changed groups with their old values and with their new ones: the table FOLDED of the block above.
    Raises pa.ArrowInvalid for a sum that does not fit its type.
    """
    keys, before, after = change.keys.columns, change.before, change.groups.columns
    was_there, is_there = pc.is_valid(before["n"]), pc.greater(after["n"], 0)
    if not layout.kept.groups:
        is_there = pc.is_valid(after["n"])
    differs = pc.not_equal(was_there, is_there)
    for name, values in before.items():
        same = pc.or_(
            pc.fill_null(pc.equal(values, after[name]), False), pc.and_(*map(pc.is_null, (values, after[name])))
        )
        differs = pc.or_(differs, pc.invert(same))
    old = folded_groups(layout, keys, before, is_new=False).filter(pc.and_(was_there, differs))
    new = folded_groups(layout, keys, after).filter(pc.and_(is_there, differs))
    return pa.concat_tables([old, new])


def signs(inputs: pa.Table) -> Column:
    """Return +1 for a row that the join gains, and -1 for one that it loses."""
    return pc.if_else(inputs.column(IS_NEW), pa.scalar(1, pa.int64()), pa.scalar(-1, pa.int64()))


def sums(by: Coded, columns: Mapping[str, Column]) -> dict[str, pa.Array]:
    """Return the sums of columns over the rows of each key; 0 where all are NULL."""
    return _summed(by.codes, len(by), columns)


def _summed(codes: np.ndarray, size: int, columns: Mapping[str, Column]) -> dict[str, pa.Array]:
    names = [f"c{place}" for place in range(len(columns))]
    rows = pa.table([from_numpy(codes), *columns.values()], names=["k", *names])
    result = rows.group_by("k", use_threads=False).aggregate([(name, "sum") for name in names])
    places = to_numpy(contiguous(result.column("k")))
    summed: dict[str, pa.Array] = {}
    for name, own in zip(names, columns, strict=True):
        values = scattered(result.column(f"{name}_sum"), places, size)
        summed[own] = pc.fill_null(values, pa.scalar(0, pa.int64()).cast(values.type))
    return summed


def require_counts(columns: Mapping[str, pa.Array], total: str) -> None:
    """Raise Disagreement if a number of rows is below 0, or above that of all rows."""
    for name, numbers in columns.items():
        if pc.any(pc.less(numbers, 0)).as_py():
            raise Disagreement(f"a number of rows ({name}) would be {pc.min(numbers)}")
        if pc.any(pc.greater(numbers, columns[total])).as_py():
            raise Disagreement(f"a number of rows ({name}) would be above that of all rows")


def _where(condition: Column, values: Column) -> Column:
    return pc.if_else(pc.fill_null(condition, False), values, pa.scalar(0, pa.int64()))


def _appeared(before: pa.Array, after: pa.Array) -> pa.Array:
    """Return +1 for a number that is above 0 now alone, -1 for one that was before alone, else 0."""
    return pc.subtract(*(pc.greater(numbers, 0).cast(pa.int64()) for numbers in (after, before)))
