"""Table snapshot: one table at one epoch, read as Arrow, pandas, polars, DuckDB or a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.store.env.metrics import READS
from epochlog.store.env.process_local import OneProcess
from epochlog.store.retention.stale_reads import stale_reads_translated, translate_stale_reads
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.time_zones import reader_in_common_zones, schema_in_common_zones

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from .dataset import TableDataset


class TableSnapshot(OneProcess):
    """Table at `epoch`, with constant rows while it can be read; in key order in all formats except SQL.

    A table of a `Snapshot` can be read until the snapshot is closed; a read of a `Table` until vacuum deletes its
    files. Then every method raises SnapshotExpired, also in the middle of a scan; DuckDB, and consumers of an earlier C
    stream, raise an error of their own.

    `filter` is a pyarrow.compute.Expression; its bounds on the first key column decide which files and row groups are
    read.
    """

    _instead = (
        "send store.root and the token of a snapshot: epochlog.open(root).snapshot(consistency=epochlog.Exact(token))"
    )

    def __init__(
        self, handle: Handle, plan: ScanPlan, check: Callable[[], None] = lambda: None, way: str | None = None
    ) -> None:
        self._handle = handle
        self._check = check
        self._way = way
        self.plan = plan

    def through(self, way: str) -> TableSnapshot:
        """Return the same snapshot, whose reads the metrics count as reads of this way."""
        return TableSnapshot(self._handle, self.plan, self._check, way)

    def __repr__(self) -> str:
        return f"<TableSnapshot {self.plan.table.name} at {self.epoch}>"

    @property
    def epoch(self) -> int:
        return self.plan.epoch

    @property
    def schema(self) -> pa.Schema:
        return self.plan.table.schema

    def to_arrow(self, *, columns: Sequence[str] | None = None, filter: pc.Expression | None = None) -> pa.Table:
        """Return the rows that pass the filter (None: all), in key order."""
        self._begin("arrow")
        with stale_reads_translated(self._handle):
            return self.plan.read(self._handle.files, ReadOptions(columns, filter))

    def scan(
        self, *, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> pa.RecordBatchReader:
        """Return the rows that pass the filter (None: all) in record batches, a bounded number of rows at a time. Times
        are in UTC where the table's zone is one that polars lacks (an offset such as +05:30).
        """
        self._begin("scan")
        batches = self._checked_batches(self.plan.batches(self._handle.files, ReadOptions(columns, filter)))
        return reader_in_common_zones(self.plan.schema(columns), batches)

    def scan_unfiltered(
        self, *, columns: Sequence[str] | None = None, skip: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches for readers that filter by themselves. They may contain rows that fail `skip`, and old versions
        of such rows.
        """
        self._begin("scan")
        return self._checked_batches(self.plan.batches(self._handle.files, ReadOptions(columns, skip), applied=False))

    def to_pandas(
        self,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        dtype_backend: str | None = None,
        types_mapper: Callable[[pa.DataType], Any] | None = None,
    ) -> pd.DataFrame:
        """Return the rows that pass the filter (None: all) as a pandas DataFrame, in key order.

        The frame holds all values, and can be written back. dtype_backend: "pyarrow" for Arrow-backed columns;
        "numpy_nullable" for pandas' nullable types, and Arrow-backed ones for a NaN or where pandas has none; None for
        pandas' default types. There a NaN is a null, so columns with values that numpy cannot hold get a nullable or an
        Arrow-backed type: those with a NaN of their own, with integers from 2**53 on beside nulls, or with times that
        Python lacks. types_mapper: a function from an Arrow type to a pandas type or None, as of pyarrow's `to_pandas`,
        in place of dtype_backend.
        """
        from .pandas_frames import frame_of

        rows = self.through("pandas").to_arrow(columns=columns, filter=filter)
        return frame_of(rows, dtype_backend, types_mapper)

    def to_polars(self, **options: Any) -> pl.DataFrame:
        """Return all rows as a polars DataFrame. Decimals of more than 38 digits become text, and time zones UTC, where
        polars lacks them (offsets such as +05:30).
        """
        from .polars_frames import frame_of

        return frame_of(self.through("polars").to_arrow(**options))

    def lazy(self) -> pl.LazyFrame:
        """Return a polars LazyFrame that is read when it is collected: only the columns that the query names, the row
        groups that may pass its filters, and the batches that its `head` needs.
        """
        self._check()
        from .polars_frames import lazy_frame

        return lazy_frame(self.through("polars"))

    def dataset(self) -> TableDataset:
        """Return a `pyarrow.dataset.Dataset` for DuckDB (`duckdb.from_arrow`), polars and pyarrow to scan. Its times
        are in UTC where the table's zone is none that all of them read (an offset such as +05:30).
        """
        self._check()
        from .dataset import TableDataset

        return TableDataset(self.through("dataset"), schema=schema_in_common_zones(self.schema))

    def get(self, keys: object, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return one row for each key found, in the order of `keys`, which has exactly the primary-key columns."""
        self._begin("get")
        with stale_reads_translated(self._handle):
            return self.plan.lookup(self._handle.files, keys, columns)

    def count(self) -> int:
        self._begin("count")
        with stale_reads_translated(self._handle):
            return self.plan.count(self._handle.files)

    def __arrow_c_schema__(self) -> object:
        return schema_in_common_zones(self.schema).__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export all rows as an Arrow stream (for `pyarrow.table`, `polars.DataFrame`, `Table.upsert`, …), in the types
        that the consumer requests. Without a request, time zones that polars lacks become UTC.
        """
        return self.scan().__arrow_c_stream__(requested_schema)

    def _begin(self, way: str) -> None:
        """Raise if the snapshot cannot be read; count the read under its way of reading."""
        self._check()
        self._handle.recorder.add(READS, self._way or way)

    def _checked_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in translate_stale_reads(self._handle, batches):
            self._check()
            yield batch
