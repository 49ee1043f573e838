"""State of a view on Spark: tasks read the tables, and make the state of all rows; changes are added in the driver.

The texts over rows that the driver has run with DuckDB, as in a step without Spark. So a state is the same on both
engines, and steps of both go on with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from epochlog.errors import InvalidInput, LimitExceeded
from epochlog.store.catalog.records import pack, unpack
from epochlog.store.metadata.state_tables import StateTable
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import WriteTarget
from epochlog.store.types.retyping import as_schema
from epochlog.store.types.schema import TableSchema
from epochlog.views.compiled_plan import CompiledPlan, CompiledQuery
from epochlog.views.duckdb_engine import conformed, require_few, rows_of, schema_of
from epochlog.views.state_step import BlockState, EngineFailed, NewBlock
from epochlog.views.state_tables import Layout

from .column_names import columns_named
from .errors import find_epochlog_error
from .live_session import is_session_lost
from .task_writer import gather_batches
from .worker_gc import freeze_loaded_objects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_CHANGES = 1 << 20
"""Most changed rows that a step adds to a state in the driver. A step of more leaves the view without one."""
_RECORD = b"segment"
_RESULT = "part int, inputs long, segment binary, is_kept boolean"
_RESULT_ARROW = pa.schema(
    [("part", pa.int32()), ("inputs", pa.int64()), ("segment", pa.binary()), ("is_kept", pa.bool_())]
)


class TaskEngine(Protocol):
    """Engine whose tasks run the queries of a plan in one step."""

    @property
    def makes_state(self) -> bool:
        """Return True if the step reads all rows of the tables: for the view's rows, or for its state."""
        ...

    def task_target(self, target: WriteTarget) -> WriteTarget:
        """Return the target for tasks that write files."""
        ...

    def run(self, query: CompiledQuery, known: Mapping[str, pa.Table] | None = None) -> DataFrame:
        """Return the rows of a query of the plan. Raises InvalidInput."""
        ...


class SparkStateSQL:
    """Engine of the queries of a state in a step on Spark. It is a `StateSQL`."""

    def __init__(self, engine: TaskEngine, here: CompiledPlan) -> None:
        self._engine = engine
        self.here = here

    @property
    def most_changes(self) -> int | None:
        return MOST_CHANGES

    def run(self, query: CompiledQuery, known: Mapping[str, pa.Table] | None = None) -> pa.Table:
        return self._collected(self._engine.run(query, known))

    def run_here(self, query: CompiledQuery, known: Mapping[str, pa.Table]) -> pa.Table:
        return rows_of(query, known)

    def inputs(
        self, query: CompiledQuery, layout: Layout, known: Mapping[str, pa.Table] | None = None, *, most: int
    ) -> pa.Table:
        rows = self._collected(self._engine.run(query, known).limit(most + 1))
        return require_few(_typed(layout, rows), most)

    def may_read_all(self, query: CompiledQuery) -> bool:
        del query
        return self._engine.makes_state

    def make_block(self, query: CompiledQuery, layout: Layout, target: WriteTarget) -> NewBlock | None:
        frame = self._engine.run(query)
        names, groups = frame.columns, list(layout.kept.groups)
        # all rows of a group, and so of its values, come to one task
        frame = frame.repartition(*columns_named(groups)) if groups else frame.coalesce(1)
        frame = frame.toDF(*(f"column_{number}" for number in range(len(names))))
        task = partial(_make_part, self._engine.task_target(target), layout, names)
        results = self._collected(frame.mapInArrow(task, _RESULT)).to_pylist()
        if not results and not groups:
            return None  # an aggregate of no rows has a state
        kept: list[list[Segment]] = [[] for _ in layout.schemas]
        written: list[list[Segment]] = [[] for _ in layout.schemas]
        for result in results:
            if result["segment"] is not None:
                segment = Segment.from_record(unpack(_RECORD, result["segment"]))
                written[result["part"]].append(segment)
                if result["is_kept"]:
                    kept[result["part"]].append(segment)
        tables = [StateTable(schema, tuple(segments)) for schema, segments in zip(layout.schemas, kept, strict=True)]
        return NewBlock(sum(result["inputs"] for result in results), tables, written)

    def _collected(self, frame: DataFrame) -> pa.Table:
        """Return the rows of a frame. Raises InvalidInput and LimitExceeded for what is in the rows, EngineFailed for a
        failure of Spark that may not come again, and the error of a task or a lost session.
        """
        from pyspark import errors

        try:
            return frame.toArrow()
        except Exception as error:
            typed = find_epochlog_error(error)
            if isinstance(typed, InvalidInput | LimitExceeded):
                raise typed from error
            if typed is not None or is_session_lost(frame.sparkSession):
                raise
            reason = str(error).partition("\n")[0]
            of_rows = (errors.ArithmeticException, errors.NumberFormatException, errors.DateTimeException)
            if isinstance(error, (*of_rows, errors.IllegalArgumentException, errors.SparkRuntimeException)):
                raise InvalidInput(f"Spark cannot compute a query of the view: {reason}") from error
            raise EngineFailed(f"Spark could not make or read the state: {reason}") from error

    def schema_of(self, query: CompiledQuery, known: Mapping[str, pa.Table]) -> pa.Schema:
        return schema_of(self.here, query, known)

    def conform(self, output: TableSchema, rows: pa.Table) -> pa.Table:
        return conformed(output, rows)


def _typed(layout: Layout, rows: pa.Table) -> pa.Table:
    """Return Spark's rows of the first block in DuckDB's types, which those of the state come of."""
    try:
        return as_schema(rows.select(layout.inputs.names), layout.inputs)
    except pa.ArrowInvalid as error:
        raise InvalidInput(f"a value of the view's rows does not fit its state: {error}") from error


def _make_part(
    target: WriteTarget, layout: Layout, names: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Make the state of the groups of a task, and yield its segments."""
    freeze_loaded_objects()
    block, inputs = BlockState.empty(target, layout), 0
    for rows in gather_batches(batches):
        block.add(_typed(layout, rows.rename_columns(names)))
        inputs += rows.num_rows
    if not inputs:
        return
    results = [(0, inputs, None, False)]
    for part, rows in enumerate(block.rows):
        kept = {segment.path for segment in rows.table.segments}
        results += [(part, 0, pack(_RECORD, new.to_record()), new.path in kept) for new in rows.written]
    rows_of_result = [dict(zip(_RESULT_ARROW.names, result, strict=True)) for result in results]
    yield pa.RecordBatch.from_pylist(rows_of_result, schema=_RESULT_ARROW)
