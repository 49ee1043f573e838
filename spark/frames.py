"""DataFrames out of plans and segments out of DataFrames, without a data source and without a catalog in any task.

The driver has the plan already, so a frame is a range of piece numbers mapped by a function that reads the pieces. The
range is as long as the plan has rows (all but one number per piece are filtered away): that is what Spark estimates
sizes from, so small frames are broadcast and large ones are not, which it cannot know of a Python data source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from epochlog.errors import SchemaMismatch
from epochlog.store.catalog.records import pack, unpack
from epochlog.store.changelog.apply_changes import take_rows
from epochlog.store.changelog.change_rows import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from epochlog.store.changelog.plan_ranges import source_of
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import SegmentWriter, WriteTarget, remove_segments
from epochlog.store.types.schema import TableSchema

from .errors import typed
from .options import Tasks
from .partitions import ReadPartition, cut
from .task_writer import gathered
from .types import accepts, arrow_schema, from_spark
from .worker_gc import settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SMALL_BYTES = 1 << 20
"""A task whose rows are fewer bytes than this hands them to the driver, which writes those of all tasks into one
segment; of many tasks the later ones hand over less.
"""
_WHOLE_TASKS = 64
_RECORD = b"segment"
_RESULT = "segment binary, rows binary"
_RESULT_ARROW = pa.schema([("segment", pa.binary()), ("rows", pa.binary())])


def read_frame(session: SparkSession, piece: ReadPartition, schema: StructType) -> DataFrame:
    """Return the piece's rows as a DataFrame of this schema (the one `piece.wanted` was made of), read when Spark asks
    for them.
    """
    pieces = cut(piece, Tasks(session.sparkContext.defaultParallelism))
    if not pieces:
        return session.createDataFrame(piece.wanted.empty_table(), schema)
    rows = source_of(piece.plan).rows_at_most
    stride = max(1, -(-rows // len(pieces)))
    numbers = session.range(0, stride * len(pieces), 1, len(pieces)).where(f"id % {stride} = 0")
    return numbers.mapInArrow(partial(_read_pieces, pieces, stride), schema)


def _read_pieces(
    pieces: Sequence[ReadPartition], stride: int, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from pieces[number // stride].read()


# ---- writing -----------------------------------------------------------------------------------------------------


class FrameWriter:
    """Writer that collects the segments of one table out of DataFrames; of rows with one key the later call, partition
    and row wins.
    """

    def __init__(self, target: WriteTarget) -> None:
        self._target = target
        self._writer = SegmentWriter(target)
        self._segments: list[Segment] = []

    def write(self, frame: DataFrame | object, *, deletes: bool = False) -> None:
        """Run the frame and keep its rows, or with `deletes` its keys. A task's error is raised with its own type.

        Other values (an Arrow table, a list of dicts, keys) are written by this process.
        """
        from pyspark.sql import DataFrame

        if not isinstance(frame, DataFrame):
            (self._writer.delete if deletes else self._writer.upsert)(frame)
            return
        check_frame(self._target.schema, frame.schema, deletes=deletes)
        try:
            found = frame.mapInArrow(partial(_write_task, self._target, deletes), _RESULT).collect()
        except Exception as error:
            known = typed(error)
            if known is None:
                raise
            raise known from error
        for segment, rows in found:
            if rows is not None:
                take_rows(
                    self._writer,
                    self._target.schema,
                    pa.ipc.open_stream(bytes(rows)).read_all(),
                    deletes=deletes,
                    cast=from_spark,
                )
            else:
                self._segments += [*self._writer.finish(), Segment.from_record(unpack(_RECORD, bytes(segment)))]

    def finish(self) -> list[Segment]:
        """Finish and return all segments, in the order in which later wins."""
        segments, self._segments = [*self._segments, *self._writer.finish()], []
        return segments

    def discard(self) -> None:
        """Drop all rows, and remove the segments that hold them already."""
        self._writer.discard()
        remove_segments(self._target.files, self._segments)
        self._segments = []


def small_bytes(place: int) -> int:
    """Return the most bytes that the task of partition `place` may hand over to the driver. All of 100,000 tasks
    together stay below 512 MiB: Spark fails a job whose results are larger than spark.driver.maxResultSize, 1 GiB
    unless set.
    """
    return SMALL_BYTES // (1 + place // _WHOLE_TASKS)


def _write_task(target: WriteTarget, deletes: bool, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    settle()
    writer = SegmentWriter(target)
    tables = gathered(batches)
    first, second = next(tables, None), next(tables, None)
    context = TaskContext.get()
    place = 0 if context is None else context.partitionId()
    if first is not None and second is None and first.nbytes < small_bytes(place):
        yield _result([None], [_ipc(first)])
        return
    for table in (first, second, *tables):
        if table is not None:
            take_rows(writer, target.schema, table, deletes=deletes, cast=from_spark)
    records = [pack(_RECORD, segment.to_record()) for segment in writer.finish()]
    yield _result(records, [None] * len(records))


def _result(segments: Sequence[bytes | None], rows: Sequence[bytes | None]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(segments, pa.binary()), pa.array(rows, pa.binary())], schema=_RESULT_ARROW)


def _ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def check_frame(table: TableSchema, given: StructType, *, deletes: bool = False) -> None:
    """Raise SchemaMismatch, before any task runs, if a frame of this schema cannot be written to the table (or be its
    keys).
    """
    wanted = table.key_schema if deletes else table.schema
    change_columns = () if deletes else (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
    changes = not deletes and CHANGE_TYPE in given.names
    if changes and given[CHANGE_TYPE].dataType.typeName() != "string":
        raise SchemaMismatch(
            f"table {table.name}: column {CHANGE_TYPE!r} must be a string, not "
            f"{given[CHANGE_TYPE].dataType.simpleString()}"
        )
    unknown = [name for name in given.names if name not in wanted.names and not (changes and name in change_columns)]
    if unknown:
        raise SchemaMismatch(f"table {table.name}: unknown column {unknown[0]!r}; it takes {', '.join(wanted.names)}")
    missing = [name for name in wanted.names if name not in given.names]
    if missing:
        raise SchemaMismatch(
            f"table {table.name}: column {missing[0]!r} is missing; it takes {', '.join(wanted.names)}"
        )
    if len(set(given.names)) < len(given.names):
        raise SchemaMismatch(f"table {table.name}: a column name is there twice: {', '.join(given.names)}")
    for field in arrow_schema(given):
        if field.name in wanted.names and not accepts(field.type, wanted.field(field.name).type):
            raise SchemaMismatch(
                f"table {table.name}, column {field.name!r}: type {given[field.name].dataType.simpleString()} "
                "does not fit "
                f"{wanted.field(field.name).type}; cast it first"
            )
