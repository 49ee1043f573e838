"""Columns of a view's state tables (a part of R12, pure).

A key of a state has no NULL: a column of it is two, one that is true for NULL, and one with the value, or another where
that is NULL. The table of groups has of the n-th aggregate the columns

    a<n>n   number of rows that count for it; of a DISTINCT one, of values
    a<n>t   of BOOL_AND and BOOL_OR, the number of those that are true
    a<n>s   of a sum or average, the sum
    a<n>b   of an average, the sum of absolute values
    a<n>m   of MIN and MAX, the value

beside `n`, the number of all rows. A table of values has a number of rows, c0, and one for each condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from epochlog.store.types.column_types import stored_type
from epochlog.store.types.schema import TableSchema

from .aggregate_state import Aggregate, Aggregates

SUM_DIGITS = 28
"""Most digits of a decimal that is summed: 10 billion of them fit the sum's 38 digits."""


@dataclass(frozen=True, slots=True)
class ValueTable:
    """State table of the values of DISTINCT aggregates with equal arguments."""

    inputs: tuple[str, ...]
    """Columns of the inputs with the values, none of which is NULL."""
    conditions: tuple[str | None, ...]
    """Columns of the inputs with conditions; None for all rows, which comes first."""

    @property
    def columns(self) -> list[str]:
        return [f"v{place}" for place in range(len(self.inputs))]

    @property
    def counts(self) -> list[str]:
        return [f"c{place}" for place in range(len(self.conditions))]


@dataclass(frozen=True)
class Layout:
    """Columns of the state of a block."""

    kept: Aggregates
    types: Mapping[str, pa.DataType]
    """Types of the columns of the inputs."""
    place: int = 0
    """Place of the block among those with a state; 0: the one over tables."""

    @cached_property
    def values(self) -> tuple[ValueTable, ...]:
        conditions: dict[tuple[str, ...], list[str | None]] = {}
        for aggregate in self.kept.aggregates:
            if aggregate.distinct:
                own = conditions.setdefault(aggregate.inputs, [None])
                if aggregate.condition not in own:
                    own.append(aggregate.condition)
        return tuple(ValueTable(inputs, tuple(own)) for inputs, own in conditions.items())

    @cached_property
    def schemas(self) -> tuple[TableSchema, ...]:
        """Return the schemas of the state tables: of the groups, and of the values of each DISTINCT argument."""
        prefix = f"block_{self.place}_" if self.place else ""
        of_values = [
            _schema(
                f"{prefix}values_{number}",
                {**self._key, **{c: self.types[name] for c, name in zip(table.columns, table.inputs, strict=True)}},
                dict.fromkeys(table.counts, pa.int64()),
            )
            for number, table in enumerate(self.values)
        ]
        return (_schema(f"{prefix}groups", self._key, self._components), *of_values)

    @property
    def _key(self) -> dict[str, pa.DataType]:
        """Return the columns of the key of a group."""
        if not self.kept.groups:
            return {"g0": pa.int8()}
        return {
            column: kind
            for number, name in enumerate(self.kept.groups)
            for column, kind in ((f"n{number}", pa.bool_()), (f"g{number}", self.types[name]))
        }

    @property
    def _components(self) -> dict[str, pa.DataType]:
        """Return the columns of the table of groups beside the key."""
        columns = {"n": pa.int64()}
        for number, aggregate in enumerate(self.kept.aggregates):
            columns[f"a{number}n"] = pa.int64()
            if aggregate.kind in ("all_true", "any_true"):
                columns[f"a{number}t"] = pa.int64()
            if aggregate.kind in ("sum", "average"):
                columns[f"a{number}s"] = self.sum_type(aggregate)
            if aggregate.kind == "average":
                columns[f"a{number}b"] = pa.decimal128(38, 0)
            if aggregate.is_extreme:
                columns[f"a{number}m"] = self.types[aggregate.inputs[0]]
        return columns

    @property
    def inputs(self) -> pa.Schema:
        """Return the columns of the rows that the block takes."""
        return pa.schema(list(self.types.items()))

    def sum_type(self, aggregate: Aggregate) -> pa.DataType:
        """Return the type in which values of a sum or average are added."""
        kind = self.types[aggregate.inputs[0]]
        return pa.decimal128(38, kind.scale if pt.is_decimal(kind) else 0)


def layout_of(kept: Aggregates, inputs: pa.Schema, place: int = 0) -> Layout | None:
    """Return the layout of a block's state; None if a value of these types cannot be a part of one."""
    layout = Layout(kept, {field.name: stored_type(field.type) for field in inputs}, place)
    kinds = [layout.types[name] for name in (*kept.groups, *(name for table in layout.values for name in table.inputs))]
    if any(substitute(kind) is None for kind in kinds):
        return None
    return layout if all(_is_kept(layout, aggregate) for aggregate in kept.aggregates) else None


def _is_kept(layout: Layout, aggregate: Aggregate) -> bool:
    kind = layout.types[aggregate.inputs[0]] if aggregate.inputs else pa.int64()
    if aggregate.kind == "sum":
        return pt.is_signed_integer(kind) or (pt.is_decimal128(kind) and kind.precision <= SUM_DIGITS)
    if aggregate.kind == "average":
        return pt.is_signed_integer(kind)
    if aggregate.kind in ("true", "all_true", "any_true"):
        return pt.is_boolean(kind)
    return substitute(kind) is not None if aggregate.is_extreme else True


def substitute(kind: pa.DataType) -> pa.Scalar[Any] | None:
    """Return the value that stands in a key where it is NULL; None for a type that cannot be in a key."""
    if pt.is_decimal128(kind):
        return pa.scalar(Decimal(0), kind)
    if pt.is_signed_integer(kind) or pt.is_date32(kind) or pt.is_timestamp(kind):
        return pa.scalar(0, pa.int32() if pt.is_date32(kind) else pa.int64()).cast(kind)
    if pt.is_string(kind):
        return pa.scalar("", kind)
    return pa.scalar(False, kind) if pt.is_boolean(kind) else None


def _schema(name: str, key: Mapping[str, pa.DataType], others: Mapping[str, pa.DataType]) -> TableSchema:
    fields = [pa.field(column, kind, nullable=False) for column, kind in key.items()]
    fields += [pa.field(column, kind) for column, kind in others.items()]
    return TableSchema(name, pa.schema(fields), tuple(key))
