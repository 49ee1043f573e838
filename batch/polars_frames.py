"""A table as of one epoch in polars: a DataFrame, or a LazyFrame that reads what its query needs."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from polars.io.plugins import register_io_source

from epochlog.errors import InvalidInput
from epochlog.store.scan.pruning import filter_columns

from .arrow_compat import in_polars, shown
from .dataset import ReadableTable


def frame_of(table: pa.Table) -> pl.DataFrame:
    """Return the rows as a polars DataFrame; decimals of more than 38 digits, which polars lacks, become text."""
    frame = pl.from_arrow(table.cast(shown(table.schema, in_polars)))
    assert isinstance(frame, pl.DataFrame)
    return frame


def lazy_frame(table: ReadableTable) -> pl.LazyFrame:
    """Return a polars LazyFrame of the table; no rows are read before it is collected.

    polars applies its predicates itself, so that they mean what they mean in polars (NaN equals NaN there, say). What
    of them can be said in Arrow's terms only decides which row groups are not read.
    """

    def read(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        skip = None if predicate is None or n_rows is not None else _arrow_filter(table, predicate)
        left = n_rows
        for batch in table.scan_unfiltered(columns=with_columns, skip=skip):
            frame = frame_of(pa.Table.from_batches([batch if left is None else batch.slice(0, left)]))
            left = None if left is None else left - frame.height
            yield frame if predicate is None else frame.filter(predicate)
            if left == 0:
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
    """Return an Arrow filter that every row passing the predicate passes; None when polars can give none.

    Never of floats, where polars compares in other ways: NaN is a number, and a float32 may equal 0.1.
    """
    schema = shown(table.schema, in_polars)
    asked = _FilterProbe(schema)
    try:
        pl.scan_pyarrow_dataset(asked).filter(predicate).collect()
        named = filter_columns(table.plan.table, (), asked.filter)
    except (pl.exceptions.PolarsError, InvalidInput):  # a comparison that Arrow has not, or a function of the user's
        return None
    kinds = {name: schema.field(name).type for name in named}
    if any(pa.types.is_floating(kind) or kind != table.schema.field(name).type for name, kind in kinds.items()):
        return None
    return asked.filter
