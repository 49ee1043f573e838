"""Frames of many columns on their way between Spark and a store: no work grows faster than their number."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from epochlog.spark.frames import check_frame
from epochlog.spark.types import arrow_schema, filled_from_spark, spark_schema, to_spark, wire_schema
from epochlog.store.changelog.event_shape import EventShape
from epochlog.store.types.schema import TableSchema
from width_work import Meter, superlinear


def world(columns: int, meter: Meter) -> None:
    names = [f"c{at}" for at in range(columns)]
    table = TableSchema("t", pa.schema([("id", pa.int64()), *((name, pa.int64()) for name in names)]), ("id",))
    some = names[: columns // 2]
    frame = StructType([StructField(name, LongType(), name != "id") for name in ("id", *names)])
    less = StructType([StructField(name, LongType(), name != "id") for name in ("id", *some)])
    rows = pa.table([[1, 2], *([[3, 4]] * columns)], names=["id", *names])
    chosen = EventShape(deletes="id = 1", columns=("id", *some))
    without = EventShape(without=tuple(some), partial=True)
    meter("check a frame", lambda: check_frame(table, frame))
    meter("check a frame of few columns", lambda: check_frame(table, less, filled=True))
    for name, shape in (("chosen", chosen), ("others", without)):
        meter(f"check a frame: {name}", lambda shape=shape: check_frame(table, frame, shape=shape, filled=True))
        meter(f"shape: {name}", lambda shape=shape: shape.apply(rows))
    meter("rows from Spark", lambda: filled_from_spark(table, rows.select(["id", *some])))
    meter("schema for Spark", lambda: wire_schema("t", table.schema))
    meter("rows for Spark", lambda: to_spark("t", rows, arrow_schema(spark_schema("t", table.schema, ("id",)))))


@pytest.mark.local_only
def test_no_frame_makes_work_that_grows_faster_than_the_columns() -> None:
    assert superlinear(world, 16) == []
