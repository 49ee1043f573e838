"""A table as of one epoch in polars: a DataFrame, or a LazyFrame that reads what its query needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from polars.io.plugins import register_io_source

from epochlog.errors import InvalidInput
from epochlog.store.scan.pruning import filter_columns
from epochlog.store.types.column_types import has_fixed_size_lists
from epochlog.store.types.retyping import as_schema

from .arrow_compat import compatible_schema, in_polars
from .dataset import ReadableTable


def frame_of(table: pa.Table) -> pl.DataFrame:
    """Return the rows as a polars DataFrame; decimals of more than 38 digits become text, and time zones UTC, where
    polars lacks them.
    """
    table = as_schema(table, compatible_schema(table.schema, in_polars))
    if any(has_fixed_size_lists(kind) for kind in table.schema.types):
        table = pa.Table.from_batches(map(_without_sliced_lists, table.to_batches()), table.schema)
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _without_sliced_lists(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy the batch's columns of fixed-size lists: polars fails on slices of these that hold nulls."""
    rows = pa.array(np.arange(batch.num_rows))
    columns = [column.take(rows) if has_fixed_size_lists(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def lazy_frame(table: ReadableTable) -> pl.LazyFrame:
    """Return a polars LazyFrame of the table; rows are read when it is collected.

    polars applies its predicates itself, so they have polars' meaning (NaN equals NaN, for example). The part of a
    predicate that Arrow can express only prunes row groups.
    """

    def read(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        skip = None if predicate is None or n_rows is not None else _arrow_filter(table, predicate)
        remaining = n_rows
        for batch in table.scan_unfiltered(columns=with_columns, skip=skip):
            frame = frame_of(pa.Table.from_batches([batch if remaining is None else batch.slice(0, remaining)]))
            remaining = None if remaining is None else remaining - frame.height
            yield frame if predicate is None else frame.filter(predicate)
            if remaining == 0:
                return

    return register_io_source(read, schema=frame_of(table.schema.empty_table()).schema, is_pure=True)


class _FilterProbe(ds.Dataset):
    """Empty dataset that records the filter with which polars scans it: a predicate in Arrow's terms."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self.filter: pc.Expression | None = None

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def to_batches(self, filter: pc.Expression | None = None, **options: object) -> Iterator[pa.RecordBatch]:
        self.filter = filter
        return iter(())


def _arrow_filter(table: ReadableTable, predicate: pl.Expr) -> pc.Expression | None:
    """Return an Arrow filter that every row passing the predicate passes; None when polars cannot translate the
    predicate.

    Float columns give None, because polars compares floats differently: NaN is a number, and a float32 may equal 0.1.
    """
    schema = compatible_schema(table.schema, in_polars)
    probe = _FilterProbe(schema)
    try:
        pl.scan_pyarrow_dataset(probe).filter(predicate).collect()
        named = filter_columns(table.plan.table, (), probe.filter)
    except (pl.exceptions.PolarsError, InvalidInput):  # a comparison that Arrow lacks, or a user's function
        return None
    kinds = {name: schema.field(name).type for name in named}
    if any(pa.types.is_floating(kind) or kind != table.schema.field(name).type for name, kind in kinds.items()):
        return None
    return probe.filter
