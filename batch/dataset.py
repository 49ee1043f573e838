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

BATCH_ROWS = 1 << 17
"""Of a batch at most, unless another number is asked for; as pyarrow has it."""


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
    """A file for the part of Arrow that reads datasets without asking their scanner: it is told what to do instead.

    Nothing fails before it is read: an error that Arrow meets while it is only shown the file would be kept by it, and
    with it what its callers' frames hold.
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
        raise _cannot(f"table {self._table!r} as a dataset is read by its own scanner only:")


def _cannot(why: str) -> InvalidInput:
    return InvalidInput(f"{why} scan it, or take it into memory with to_table()")


Columns = Sequence[str] | Mapping[str, pc.Expression]
_READER_OPTIONS = ("filter", "batch_size")


class TableDataset(ds.UnionDataset):
    """Dataset that reads only the columns named, and the files and row groups that can pass the filter.

    `scanner`, `to_table`, `to_batches`, `head`, `take`, `count_rows` and `filter` do what they do of any dataset, with
    rows in key order and the same epoch each time; a scanner is read once. There are no fragments, and Arrow's own
    engine cannot read it (`join`, `sort_by`, unions): that raises InvalidInput. DuckDB and polars can.
    """

    def __init__(
        self, table: ReadableTable, filter: pc.Expression | None = None, schema: pa.Schema | None = None
    ) -> None:
        """Open the dataset. schema: the table's columns in the types of the tool that is to scan it."""
        told: pa.Schema = table.schema if schema is None else schema
        form, name = ds.IpcFileFormat(), table.plan.table.name
        # what Arrow finds when it does not ask the scanner below: without it, it would follow a null pointer
        nothing = form.make_fragment(pa.PythonFile(_Unreadable(name), mode="r"))
        super().__init__(told, [ds.FileSystemDataset([nothing], told, form)])
        self._name = name
        self._table = table
        self._filter = filter
        self._plain = pa.schema([field for field in told if table.schema.field(field.name).equals(field)])

    def __repr__(self) -> str:
        where = "" if self._filter is None else f" where {self._filter}"
        return f"<TableDataset {self._name} at {self._table.epoch}{where}>"

    def scanner(
        self,
        columns: Columns | None = None,
        filter: pc.Expression | None = None,
        batch_size: int = BATCH_ROWS,
        **options: Any,
    ) -> ds.Scanner:
        """Return a scanner. columns: names, or a dict from names to expressions; other options of pyarrow's have no
        effect.

        A scanner reads ahead, up to some 256 MiB. Raises SnapshotExpired, InvalidInput.
        """
        if not isinstance(columns, Mapping):
            return ds.Scanner.from_batches(self.reader(columns, filter, batch_size))
        return ds.Scanner.from_batches(self.reader(self._needed(columns), filter, batch_size), columns=dict(columns))

    def reader(
        self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, batch_size: int = BATCH_ROWS
    ) -> pa.RecordBatchReader:
        """Return a RecordBatchReader of these columns of the rows that pass the filter; nothing is read ahead."""
        schema = pa.schema([self.schema.field(name) for name in self._table.plan.schema(columns).names])
        return pa.RecordBatchReader.from_batches(schema, _at_most(self._scan(schema, self._both(filter)), batch_size))

    def to_batches(self, columns: Columns | None = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """Return the rows in record batches; with columns by name, nothing is read ahead."""
        if isinstance(columns, Mapping):
            return self.scanner(columns, **options).to_batches()
        return iter(self.reader(columns, **{name: options[name] for name in options if name in _READER_OPTIONS}))

    def head(self, num_rows: int, columns: Columns | None = None, **options: Any) -> pa.Table:
        """Return the first rows by key; with columns by name, no rows beyond them are read."""
        if isinstance(columns, Mapping):
            return self.scanner(columns, **options).head(num_rows)
        reader = self.reader(columns, **{name: options[name] for name in options if name in _READER_OPTIONS})
        found, left = [], num_rows
        while left > 0 and (batch := next(reader, None)) is not None:
            found.append(batch.slice(0, left))
            left -= found[-1].num_rows
        return pa.Table.from_batches(found, reader.schema)

    def _scan(self, schema: pa.Schema, filter: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        """Yield these columns of the rows that pass the filter, which sees columns in the types of `schema`."""
        if filter is not None:
            check_filter(filter)
        if filter is None or binds(self._plain, filter):
            found = self._table.scan(columns=schema.names, filter=filter)
            return (batch.cast(schema) if schema.names else batch for batch in found)
        wanted = pa.schema(
            [self.schema.field(name) for name in needed_columns(self._name, self.schema, schema.names, filter)]
        )
        every = self._table.scan(columns=wanted.names)
        return (batch.cast(wanted).filter(filter).select(schema.names) for batch in every)

    def filter(self, expression: pc.Expression) -> Self:
        """Return the dataset of the rows that pass this filter and the earlier ones."""
        needed_columns(self._name, self.schema, (), expression)
        return type(self)(self._table, self._both(expression), self.schema)

    def count_rows(self, filter: pc.Expression | None = None, **options: Any) -> int:
        """Count the rows from keys and the filter's columns; read nothing where the number is known."""
        both = self._both(filter)
        if both is None:
            return self._table.count()
        return sum(batch.num_rows for batch in self._scan(pa.schema([]), both))

    def get_fragments(self, filter: pc.Expression | None = None) -> NoReturn:
        raise self._has_no("fragments")

    @property
    def children(self) -> NoReturn:
        raise self._has_no("children")

    def __reduce__(self) -> NoReturn:
        raise _cannot(f"table {self._name!r} as a dataset is of this process: pass others snapshot.token, or")

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.reader().__arrow_c_stream__(requested_schema)

    def _has_no(self, what: str) -> InvalidInput:
        return _cannot(f"table {self._name!r} as a dataset has no {what}:")

    def _both(self, filter: pc.Expression | None) -> pc.Expression | None:
        if filter is None or self._filter is None:
            return self._filter if filter is None else filter
        return self._filter & filter

    def _needed(self, made: Mapping[str, pc.Expression]) -> list[str]:
        """Return the columns that the expressions need, in the table's order."""
        named = {name for one in made.values() for name in needed_columns(self._name, self.schema, (), one.is_valid())}
        return [name for name in self.schema.names if name in named]


class Relation(TableDataset):
    """Dataset for DuckDB, which asks its scanner for a reader only; rows beyond a LIMIT are not read ahead."""

    def scanner(self, *args: Any, **options: Any) -> Any:
        return _Reading(self.reader(*args, **options))


class _Reading:
    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def to_reader(self) -> pa.RecordBatchReader:
        return self._reader


def _at_most(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise InvalidInput(f"batch_size is a number of rows > 0, not {rows!r}")
    return (batch.slice(start, rows) for batch in batches for start in range(0, batch.num_rows, rows))
