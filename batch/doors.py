"""One table as of one epoch, and every way to read it: Arrow, pandas, polars, DuckDB and what else scans datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ..store.expiry import told, told_each
from ..store.handle import Handle
from ..store.one_process import OneProcess
from ..store.scan import ScanPlan

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from .dataset import TableDataset


class TableSnapshot(OneProcess):
    """A table as of `epoch`, the same rows for as long as it can be read; in key order through every door but SQL.

    Of a `Snapshot`, it can be read until that is closed; of a `Table`, until what it reads is let go of and vacuumed.
    Then every door raises SnapshotExpired, in the middle of a scan too; DuckDB, and whoever took the C stream before,
    say so in an error of their own.

    `filter` is a pyarrow.compute.Expression: what it says of the first key column decides which files and row groups
    are read at all.
    """

    _instead = (
        "send store.root and the token of a snapshot: epochlog.open(root).snapshot(consistency=epochlog.Exact(token))"
    )

    def __init__(self, handle: Handle, plan: ScanPlan, check: Callable[[], None] = lambda: None) -> None:
        self._handle = handle
        self._check = check
        self.plan = plan

    def __repr__(self) -> str:
        return f"<TableSnapshot {self.plan.table.name} at {self.epoch}>"

    @property
    def epoch(self) -> int:
        return self.plan.epoch

    @property
    def schema(self) -> pa.Schema:
        return self.plan.table.schema

    def to_arrow(self, *, columns: Sequence[str] | None = None, filter: pc.Expression | None = None) -> pa.Table:
        """All rows."""
        self._check()
        return told(self._handle, lambda: self.plan.read(self._handle.files, columns, filter))

    def scan(
        self, *, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> pa.RecordBatchReader:
        """The same in record batches, a bounded number of rows at a time."""
        self._check()
        batches = self._each(self.plan.batches(self._handle.files, columns, filter))
        return pa.RecordBatchReader.from_batches(self.plan.schema(columns), batches)

    def scan_unfiltered(
        self, *, columns: Sequence[str] | None = None, skip: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """For readers that filter by themselves: rows that fail `skip` may be among these, and old versions of such."""
        self._check()
        return self._each(self.plan.batches(self._handle.files, columns, skip, applied=False))

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        return self.to_arrow(**options).to_pandas()

    def to_polars(self, **options: Any) -> pl.DataFrame:
        """Decimals of more than 38 digits come as text: polars has none."""
        from .polars_frames import frame_of

        return frame_of(self.to_arrow(**options))

    def lazy(self) -> pl.LazyFrame:
        """A polars LazyFrame, read when it is collected: the columns that the query names, the row groups that may
        pass its filters, no more batches than its `head` needs.
        """
        self._check()
        from .polars_frames import lazy_frame

        return lazy_frame(self)

    def dataset(self) -> TableDataset:
        """A `pyarrow.dataset.Dataset`, for what scans datasets: DuckDB (`duckdb.from_arrow`), polars, pyarrow."""
        self._check()
        from .dataset import TableDataset

        return TableDataset(self)

    def get(self, keys: object, *, columns: Sequence[str] | None = None) -> pa.Table:
        """One row for each key found, in the order asked; `keys` has exactly the primary-key columns."""
        self._check()
        return told(self._handle, lambda: self.plan.lookup(self._handle.files, keys, columns))

    def count(self) -> int:
        self._check()
        return told(self._handle, lambda: self.plan.count(self._handle.files))

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """All rows for whatever takes Arrow streams (`pyarrow.table`, `polars.DataFrame`, `Table.upsert`, …), in other
        types of the same columns where the consumer asks for them.
        """
        return self.scan().__arrow_c_stream__(requested_schema)

    def _each(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in told_each(self._handle, batches):
            self._check()
            yield batch
