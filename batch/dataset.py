"""`pyarrow.dataset.Dataset` of a table at one epoch, for tools that scan datasets."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from epochlog.errors import InvalidInput
from epochlog.store.scan.pruning import binds, check_filter, needed_columns
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.types.retyping import as_schema

BATCH_ROWS = 1 << 17
"""Most rows of a batch by default, as in pyarrow."""


class ReadableTable(Protocol):
    """Protocol of a table at one epoch, with the methods that datasets and polars use to read it."""

    plan: ScanPlan

    @property
    def epoch(self) -> int: ...
    @property
    def schema(self) -> pa.Schema: ...
    def count(self) -> int: ...
    def scan(
        self, *, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> pa.RecordBatchReader: ...
    def scan_unfiltered(
        self, *, columns: Sequence[str] | None = None, skip: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]: ...


class _Unreadable(io.RawIOBase):
    """File that raises on read, with advice, for code in Arrow that reads datasets without their scanner.

    Only `read` raises. Arrow would keep an error of another method, and with it the frames of its callers.
    """

    def __init__(self, table: str) -> None:
        self._table = table
        self._at = 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = BATCH_ROWS if whence == io.SEEK_END else offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, *_: Any) -> NoReturn:
        raise _cannot(f"table {self._table!r} as a dataset can be read only by its own scanner:")


def _cannot(reason: str) -> InvalidInput:
    return InvalidInput(f"{reason} scan it, or take it into memory with to_table()")


Columns = Sequence[str] | Mapping[str, pc.Expression]
_READER_OPTIONS = ("filter", "batch_size")


class TableDataset(ds.UnionDataset):
    """Dataset that reads only the named columns, and the files and row groups that can pass the filter.

    `scanner`, `to_table`, `to_batches`, `head`, `take`, `count_rows` and `filter` work as for any dataset, with rows in
    key order and one epoch for all reads; a scanner is read once. There are no fragments, and Arrow's own engine cannot
    read it (`join`, `sort_by`, unions): that raises InvalidInput. DuckDB and polars can.
    """

    def __init__(
        self, table: ReadableTable, filter: pc.Expression | None = None, schema: pa.Schema | None = None
    ) -> None:
        """Open the dataset. schema: the table's columns in the types of the tool that scans it."""
        tool_schema: pa.Schema = table.schema if schema is None else schema
        form, name = ds.IpcFileFormat(), table.plan.table.name
        # Code in Arrow that does not use the scanner below reads this fragment; without one it follows a null pointer.
        fragment = form.make_fragment(pa.PythonFile(_Unreadable(name), mode="r"))
        super().__init__(tool_schema, [ds.FileSystemDataset([fragment], tool_schema, form)])
        self._name = name
        self._table = table
        self._filter = filter
        self._plain = pa.schema([field for field in tool_schema if table.schema.field(field.name).equals(field)])

    def __repr__(self) -> str:
        condition = "" if self._filter is None else f" where {self._filter}"
        return f"<TableDataset {self._name} at {self._table.epoch}{condition}>"

    def scanner(
        self,
        columns: Columns | None = None,
        filter: pc.Expression | None = None,
        batch_size: int = BATCH_ROWS,
        **options: Any,
    ) -> ds.Scanner:
        """Return a scanner. columns: names, or a dict from names to expressions. Other options of pyarrow have no
        effect.

        A scanner reads ahead, up to about 256 MiB. Raises SnapshotExpired, InvalidInput.
        """
        if not isinstance(columns, Mapping):
            return ds.Scanner.from_batches(self.reader(columns, filter, batch_size))
        return ds.Scanner.from_batches(
            self.reader(self._needed_columns(columns), filter, batch_size), columns=dict(columns)
        )

    def reader(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, batch_size: int = BATCH_ROWS
    ) -> pa.RecordBatchReader:
        """Return a RecordBatchReader of these columns of the rows that pass the filter, without reading ahead."""
        schema = pa.schema([self.schema.field(name) for name in self._table.plan.schema(columns).names])
        return pa.RecordBatchReader.from_batches(
            schema, _at_most(self._scan(schema, self._combined(filter)), batch_size)
        )

    def to_batches(self, columns: Columns | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """Return the rows in record batches. With columns by name there is no reading ahead."""
        if isinstance(columns, Mapping):
            return self.scanner(columns, **options).to_batches()
        return iter(self.reader(columns, **{name: options[name] for name in options if name in _READER_OPTIONS}))

    def head(self, num_rows: int, columns: Columns | None = None, **options: Any) -> pa.Table:
        """Return the first rows by key. With columns by name, only these rows are read."""
        if isinstance(columns, Mapping):
            return self.scanner(columns, **options).head(num_rows)
        reader = self.reader(columns, **{name: options[name] for name in options if name in _READER_OPTIONS})
        batches, remaining = [], num_rows
        while remaining > 0 and (batch := next(reader, None)) is not None:
            batches.append(batch.slice(0, remaining))
            remaining -= batches[-1].num_rows
        return pa.Table.from_batches(batches, reader.schema)

    def _scan(self, schema: pa.Schema, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the rows that pass the filter, which sees columns in the types of `schema`."""
        if filter is not None:
            check_filter(filter)
        if filter is None or binds(self._plain, filter):
            batches = self._table.scan(columns=schema.names, filter=filter)
            return (as_schema(batch, schema) for batch in batches)
        needed = pa.schema(
            [self.schema.field(name) for name in needed_columns(self._name, self.schema, schema.names, filter)]
        )
        batches = self._table.scan(columns=needed.names)
        return (as_schema(batch, needed).filter(filter).select(schema.names) for batch in batches)

    def filter(self, expression: pc.Expression) -> Self:
        """Return the dataset of the rows that pass this filter and the earlier ones."""
        needed_columns(self._name, self.schema, (), expression)
        return type(self)(self._table, self._combined(expression), self.schema)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Count the rows from keys and the filter's columns; read nothing if the number is known."""
        combined = self._combined(filter)
        if combined is None:
            return self._table.count()
        return sum(batch.num_rows for batch in self._scan(pa.schema([]), combined))

    def get_fragments(self, filter: pc.Expression | None = None) -> NoReturn:
        raise self._has_no("fragments")

    @property
    def children(self) -> NoReturn:
        raise self._has_no("children")

    def __reduce__(self) -> NoReturn:
        raise _cannot(f"table {self._name!r} as a dataset cannot be sent to another process: send snapshot.token,")

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def _has_no(self, feature: str) -> InvalidInput:
        return _cannot(f"table {self._name!r} as a dataset has no {feature}:")

    def _combined(self, filter: pc.Expression | None) -> pc.Expression | None:
        if filter is None or self._filter is None:
            return self._filter if filter is None else filter
        return self._filter & filter

    def _needed_columns(self, expressions: Mapping[str, pc.Expression]) -> list[str]:
        """Return the columns that the expressions need, in the table's order."""
        named = {
            name
            for expression in expressions.values()
            for name in needed_columns(self._name, self.schema, (), expression.is_valid())
        }
        return [name for name in self.schema.names if name in named]


class Relation(TableDataset):
    """Dataset for DuckDB, which only asks its scanner for a reader; rows beyond a LIMIT are not read ahead."""

    def scanner(self, *args: Any, **options: Any) -> Any:
        return _ReaderScanner(self.reader(*args, **options))


class _ReaderScanner:
    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def to_reader(self) -> pa.RecordBatchReader:
        return self._reader


def _at_most(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise InvalidInput(f"batch_size must be a number of rows > 0, not {rows!r}")
    return (batch.slice(start, rows) for batch in batches for start in range(0, batch.num_rows, rows))
