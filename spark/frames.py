"""DataFrames read from plans, and segments written from DataFrames, without a data source or a catalog in any task.

Spark reads whole Parquet files itself (parquet_files.py). For all else the driver has the plan already, so a frame is a
range of partition numbers, mapped by a function that reads the partitions. The range is as long as the plan has rows,
and a filter keeps one number per partition. Spark estimates sizes from the length of the range, and so broadcasts small
frames only. It has no estimate for a Python data source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from epochlog.errors import SchemaMismatch
from epochlog.store.catalog.records import pack, unpack
from epochlog.store.changelog.apply_changes import take_rows
from epochlog.store.changelog.change_rows import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from epochlog.store.changelog.event_shape import WHOLE_ROWS, EventShape
from epochlog.store.changelog.plan_ranges import source_of
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import SegmentWriter, WriteTarget, remove_segments
from epochlog.store.types.key_range import ALL_KEYS
from epochlog.store.types.schema import TableSchema

from .column_names import is_plain
from .errors import find_epochlog_error
from .options import Tasks
from .parquet_files import parquet_frame
from .partitions import ReadPartition, cut
from .task_writer import gather_batches
from .types import accepts, arrow_schema, from_spark
from .worker_gc import freeze_loaded_objects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

SMALL_BYTES = 1 << 20
"""Size below which a task sends its rows to the driver, which writes the rows of all tasks into one segment. The limit
is lower for later tasks of many.
"""
_FULL_SIZE_TASKS = 64
_RECORD = b"segment"
_RESULT = "segment binary, rows binary"
_RESULT_ARROW = pa.schema([("segment", pa.binary()), ("rows", pa.binary())])


def read_frame(session: SparkSession, partition: ReadPartition, schema: StructType) -> DataFrame:
    """Return the partition's rows as a lazy DataFrame, which Spark reads itself if they are whole Parquet files.
    schema: the Spark schema from which `partition.schema` was made.
    """
    plan, options = partition.plan, partition.options
    if isinstance(plan, ScanPlan) and options.filter is None and options.key_range == ALL_KEYS:
        frame = parquet_frame(session, partition.files, plan, schema)
        if frame is not None:
            return frame
    partitions = cut(partition, Tasks(session.sparkContext.defaultParallelism))
    if not partitions:
        return session.createDataFrame(partition.schema.empty_table(), schema)
    rows = source_of(partition.plan).rows_at_most
    stride = max(1, -(-rows // len(partitions)))
    numbers = session.range(0, stride * len(partitions), 1, len(partitions)).where(f"id % {stride} = 0")
    return numbers.mapInArrow(partial(_read_partitions, partitions, stride), schema)


def _read_partitions(
    partitions: Sequence[ReadPartition], stride: int, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from partitions[number // stride].read()


# ---- writing -----------------------------------------------------------------------------------------------------


class FrameWriter:
    """Writer of DataFrames into segments of one table. Of rows with one key the later call, partition and row wins."""

    def __init__(self, target: WriteTarget, shape: EventShape = WHOLE_ROWS) -> None:
        self._target = target
        self._shape = shape
        self._writer = SegmentWriter(target)
        self._segments: list[Segment] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self.discard()

    def upsert(self, data: DataFrame | object) -> None:
        self.write(data)

    def delete(self, keys: DataFrame | object) -> None:
        self.write(keys, deletes=True)

    def write(self, frame: DataFrame | object, *, deletes: bool = False) -> None:
        """Run the frame and write its rows, or with `deletes` its keys. Raises the error of a task with its own type.

        This process writes other values: an Arrow table, a list of dicts, keys.
        """
        from pyspark.sql import DataFrame

        if not isinstance(frame, DataFrame):
            (self._writer.delete if deletes else self._writer.upsert)(frame)
            return
        check_frame(self._target.schema, frame.schema, deletes=deletes, shape=self._shape)
        names = None
        if not is_plain(frame.columns):  # mapInArrow asks for each column by its name as a text
            names = frame.columns
            frame = frame.toDF(*(f"column_{number}" for number in range(len(names))))
        task = partial(_write_task, self._target, deletes, self._shape, names)
        try:
            results = frame.mapInArrow(task, _RESULT).collect()
        except Exception as error:
            typed_error = find_epochlog_error(error)
            if typed_error is None:
                raise
            raise typed_error from error
        for segment, rows in results:
            if rows is not None:
                take_rows(
                    self._writer,
                    self._target.schema,
                    pa.ipc.open_stream(bytes(rows)).read_all(),
                    deletes=deletes,
                    cast=from_spark,
                    shape=self._shape,
                )
            else:
                self._segments += [*self._writer.finish(), Segment.from_record(unpack(_RECORD, bytes(segment)))]

    def finish(self) -> list[Segment]:
        """Finish and return all segments, oldest first: of two rows with one key the later wins."""
        segments, self._segments = [*self._segments, *self._writer.finish()], []
        return segments

    def discard(self) -> None:
        """Drop all rows, and remove the segments written so far."""
        self._writer.discard()
        remove_segments(self._target.files, self._segments)
        self._segments = []


def small_bytes(partition_id: int) -> int:
    """Return the largest number of bytes that the task of a partition may send to the driver. The sum over 100,000
    tasks stays below 512 MiB: Spark fails a job with results larger than spark.driver.maxResultSize, by default 1 GiB.
    """
    return SMALL_BYTES // (1 + partition_id // _FULL_SIZE_TASKS)


def _write_task(
    target: WriteTarget,
    deletes: bool,
    shape: EventShape,
    names: Sequence[str] | None,
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a task. names: of the columns; None if the batches have them."""
    from pyspark import TaskContext

    freeze_loaded_objects()
    if names is not None:
        batches = (batch.rename_columns(names) for batch in batches)
    writer = SegmentWriter(target)
    tables = gather_batches(batches)
    first, second = next(tables, None), next(tables, None)
    context = TaskContext.get()
    partition_id = 0 if context is None else context.partitionId()
    if first is not None and second is None and first.nbytes < small_bytes(partition_id):
        yield _result([None], [_encode_table(first)])
        return
    for table in (first, second, *tables):
        if table is not None:
            take_rows(writer, target.schema, table, deletes=deletes, cast=from_spark, shape=shape)
    records = [pack(_RECORD, segment.to_record()) for segment in writer.finish()]
    yield _result(records, [None] * len(records))


def _result(segments: Sequence[bytes | None], encoded_rows: Sequence[bytes | None]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(segments, pa.binary()), pa.array(encoded_rows, pa.binary())], schema=_RESULT_ARROW)


def _encode_table(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def check_frame(
    table: TableSchema,
    frame_schema: StructType,
    *,
    deletes: bool = False,
    shape: EventShape = WHOLE_ROWS,
    filled: bool = False,
) -> None:
    """Raise SchemaMismatch, before any task runs, if a frame of this schema cannot be written to the table; with
    `deletes`, if it does not have the table's keys, and their sequences. filled: missing nullable columns are filled
    with nulls.
    """
    target_schema = pa.schema([table.schema.field(name) for name in table.delete_columns]) if deletes else table.schema
    change_columns = () if deletes else (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)
    changes = not deletes and CHANGE_TYPE in frame_schema.names
    if changes and frame_schema[CHANGE_TYPE].dataType.typeName() != "string":
        raise SchemaMismatch(
            f"table {table.name}: column {CHANGE_TYPE!r} must be a string, not "
            f"{frame_schema[CHANGE_TYPE].dataType.simpleString()}"
        )
    names, known = shape.written(frame_schema.names), {field.name: field.type for field in target_schema}
    unknown = [name for name in names if name not in known and not (changes and name in change_columns)]
    if unknown:
        raise SchemaMismatch(
            f"table {table.name}: unknown column {unknown[0]!r}; it takes {', '.join(target_schema.names)}"
        )
    required = [
        field.name
        for field in target_schema
        if field.name in table.primary_key or not (shape.partial or (filled and field.nullable))
    ]
    written = set(names)
    missing = [name for name in required if name not in written]
    if missing:
        raise SchemaMismatch(
            f"table {table.name}: column {missing[0]!r} is missing; it takes {', '.join(target_schema.names)}"
        )
    if len(set(frame_schema.names)) < len(frame_schema.names):
        raise SchemaMismatch(f"table {table.name}: a column name occurs twice: {', '.join(frame_schema.names)}")
    for field in arrow_schema(frame_schema):
        if field.name in written and field.name in known and not accepts(field.type, known[field.name]):
            raise SchemaMismatch(
                f"table {table.name}, column {field.name!r}: type {frame_schema[field.name].dataType.simpleString()} "
                f"does not fit {known[field.name]}; cast it first"
            )
