"""What a filter needs and what it rules out: the columns to read for it, and the files whose keys cannot pass it.

Only statistics of key columns may rule out an L0 file: a row that fails a filter on other columns must still be read,
for it may replace an older row that would pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs

from ..errors import InvalidInput
from .schema import TableSchema

Stats = Mapping[str, tuple[Any, Any]]


def filter_columns(table: TableSchema, columns: Sequence[str], filter: pc.Expression | None) -> list[str]:
    """`columns`, and after them those that the filter names beside them."""
    if filter is None:
        return list(columns)
    if not isinstance(filter, pc.Expression):
        raise InvalidInput(f"filter must be a pyarrow.compute.Expression, such as pc.field('x') > 1, not {filter!r}")
    _bind(table, table.schema, filter)
    needed, wanted = [], list(columns)
    if _binds(pa.schema([table.schema.field(name) for name in wanted]), filter):
        return wanted
    for field in table.schema:
        if field.name in wanted:
            continue
        without = pa.schema([other for other in table.schema if other.name != field.name])
        if not _binds(without, filter):
            needed.append(field.name)
    return wanted + needed


def _bind(table: TableSchema, schema: pa.Schema, filter: pc.Expression) -> None:
    try:
        schema.empty_table().filter(filter)
    except (pa.ArrowException, KeyError, TypeError) as error:
        raise InvalidInput(f"the filter does not fit table {table.name!r}: {error}") from error


def _binds(schema: pa.Schema, filter: pc.Expression) -> bool:
    try:
        schema.empty_table().filter(filter)
    except (pa.ArrowException, KeyError, TypeError):
        return False
    return True


def key_prunes(table: TableSchema, filter: pc.Expression | None) -> Callable[[Stats], bool]:
    """A test of a file's key statistics: True when no row of the file can pass the filter."""
    if filter is None:
        return lambda _: False
    schema = table.schema
    form = ds.IpcFileFormat()
    filesystem = pa.fs.LocalFileSystem()

    def ruled_out(stats: Stats) -> bool:
        guarantee = key_guarantee(schema, stats)
        if guarantee is None:
            return False
        fragment = form.make_fragment("none", filesystem, partition_expression=guarantee)
        dataset = ds.FileSystemDataset([fragment], schema, form, filesystem=filesystem)
        return next(iter(dataset.get_fragments(filter)), None) is None

    return ruled_out


def key_guarantee(schema: pa.Schema, stats: Stats) -> pc.Expression | None:
    """What the statistics of key columns say of every row, as an expression; None when they say nothing."""
    guarantee = None
    for name, (low, high) in stats.items():
        kind = schema.field(name).type
        bounds = (pc.field(name) >= _scalar(low, kind)) & (pc.field(name) <= _scalar(high, kind))
        guarantee = bounds if guarantee is None else guarantee & bounds
    return guarantee


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """A statistic's plain value (an int for times and dates) as a scalar of its column's type."""
    if pa.types.is_temporal(kind) and isinstance(value, int):
        storage = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array([value], storage).view(kind)[0]
    return pa.scalar(value, kind)
