"""Conditions that Spark passes to a table of a catalog: that of a DELETE, and the filters of a read.

Spark's own translation makes an expression of a predicate again, so Spark evaluates it. Beside it, comparisons of plain
columns with literals become a filter that prunes the read; a row that passes the condition passes the filter.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import reduce
from operator import and_, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column

from epochlog.spark.delete_where import RowCondition
from epochlog.store.types.predicate import compare, one_of
from epochlog.store.types.schema import TableSchema

from .advice import unknown_condition
from .jvm import Jvm

_SIGNS = {"=": "equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
READ_VALUES = 100
"""Values of a list up to which it prunes a read: each takes several calls of the JVM, also where nothing is pruned."""
DELETE_VALUES = 300
"""Values of a list up to which it prunes a DELETE, which else hands the rows of the whole table to Spark.

A value takes 0.4 ms. On a table of 2 million rows, 300 values take as long to ask for as they save.
"""
_FLIPPED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def read_condition(jvm: Jvm, label: str, table: TableSchema, predicates: Sequence[Any]) -> RowCondition:
    """Return the condition that all of Java's predicates hold. Raises InvalidInput for one that has no expression.

    label: the table's name in the catalog.
    """
    schema = table.schema
    columns = [Column(_expression_column(jvm, label, table, predicate)) for predicate in predicates]
    names = {str(reference.fieldNames()[0]) for predicate in predicates for reference in predicate.references()}
    return RowCondition(
        column=reduce(and_, columns),
        columns=tuple(name for name in schema.names if name in names),
        filter=read_filter(schema, predicates, DELETE_VALUES),
    )


def require_expressions(jvm: Jvm, label: str, table: TableSchema, predicates: Sequence[Any]) -> None:
    """Raise InvalidInput if one of Java's predicates has no expression. label: the table's name in the catalog."""
    for predicate in predicates:
        _expression_column(jvm, label, table, predicate)


def read_filter(schema: pa.Schema, predicates: Sequence[Any], most_values: int) -> pc.Expression | None:
    """Return a filter that each row passes for which all of Java's predicates are true; None if there is none but true.

    schema: of the table. The filter has comparisons of plain columns, with lists of up to `most_values` values.
    """
    filters = [_filter(schema, predicate, most_values) for predicate in predicates]
    return _joined([part for part in filters if part is not None], and_)


def _expression_column(jvm: Jvm, label: str, table: TableSchema, predicate: Any) -> Any:
    """Return Java's column of a predicate."""
    expression = jvm.spark.catalyst.expressions.V2ExpressionUtils.toCatalyst(predicate)
    if expression.isEmpty():
        raise unknown_condition(label, table, predicate.toString())
    return jvm.spark.classic.ExpressionUtils.column(expression.get())


def _joined(parts: Sequence[pc.Expression], join: Any) -> pc.Expression | None:
    return reduce(join, parts) if parts else None


def _filter(schema: pa.Schema, predicate: Any, most_values: int) -> pc.Expression | None:
    """Return a filter that each row passes for which the predicate is true; None if there is none but true."""
    name, array = str(predicate.name()), predicate.children()
    if name == "IN" and len(array) > most_values + 1:  # Asking for the elements takes a call for each.
        return None
    children = list(array)
    if name in ("AND", "OR"):
        parts = [_filter(schema, child, most_values) for child in children]
        known = [part for part in parts if part is not None]
        return None if name == "OR" and len(known) < len(parts) else _joined(known, and_ if name == "AND" else or_)
    if name in _SIGNS and _is_literal(children[0]):
        name, children = _FLIPPED[name], children[::-1]
    if not (name in _SIGNS or name == "IN") or not all(_is_literal(child) for child in children[1:]):
        return None
    field = _plain_field(schema, children[0])
    if field is None:
        return None
    values = [_value(field.type, child.value()) for child in children[1:]]
    if any(value is None for value in values) and name != "IN":
        return pc.scalar(False)  # A comparison with NULL is true for no row.
    values = [value for value in values if value is not None]
    if isinstance(field.type, pa.TimestampType) or pa.types.is_date32(field.type):
        return _compare_times(field, name, values)
    return one_of(field, values) if name == "IN" else compare(_SIGNS[name], field, values[0])


def _is_literal(expression: Any) -> bool:
    return "LiteralValue" in expression.getClass().getName()


def _plain_field(schema: pa.Schema, expression: Any) -> pa.Field | None:
    """Return the field of a column whose values Arrow and Spark compare alike; None for any other expression."""
    if "FieldReference" not in expression.getClass().getName():
        return None
    path = list(expression.fieldNames())
    if len(path) != 1 or path[0] not in schema.names:
        return None
    field = schema.field(path[0])
    kind = field.type
    plain = pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_decimal128(kind)
    times = pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us")
    return field if plain or times else None


def _value(kind: pa.DataType, value: Any) -> Any:
    """Return the value of Java's literal: days of a date, microseconds of a timestamp, a Decimal, or a text."""
    if value is None or pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return value
    text = value.toString() if hasattr(value, "toString") else value
    return str(text) if pa.types.is_string(kind) else Decimal(str(text))


def _compare_times(field: pa.Field, name: str, steps: list[int]) -> pc.Expression:
    """Return the comparison of a date in days, or of a timestamp in microseconds."""
    integers = pa.int32() if pa.types.is_date32(field.type) else pa.int64()
    scalars = pa.array(steps, integers).cast(field.type)
    column = pc.field(field.name)
    return pc.is_in(column, scalars) if name == "IN" else getattr(pc, _SIGNS[name])(column, scalars[0])
