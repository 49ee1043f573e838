"""DataFrame of a snapshot's table: its Parquet files, or a load by the snapshot's token; a small table has a broadcast
hint.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from epochlog.store.changelog.plan_ranges import bytes_to_read
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle
from epochlog.store.types.predicate import parse_predicate
from epochlog.store.types.read_options import ReadOptions

from .live_session import require_live
from .options import location_options
from .parquet_files import parquet_frame
from .types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load_frame(
    handle: Handle, plan: ScanPlan, token: str, session: SparkSession, columns: Sequence[str] | None, filter: str | None
) -> DataFrame:
    """Return the table's rows: Spark reads its Parquet files itself, or loads the table by this token, and then the
    session's processes plan the read again. Raises InvalidInput for a wrong column or filter, SparkLost for a session
    that was stopped.

    Spark takes a Python source for unbounded, since it never asks for its size, and would sort both sides of a join.
    So a table below the session's broadcast limit gets a hint, which hints of the user override.
    """
    from .versions import ROWS_WITHOUT_COLUMNS

    require_live(session, "snapshot.spark")
    names = plan.schema(columns).names
    if not names and not ROWS_WITHOUT_COLUMNS:
        return load_frame(handle, plan, token, session, plan.table.primary_key, filter).select()
    predicate = None if filter is None else parse_predicate(filter, plan.table.schema)
    frame = None
    if filter is None:  # Spark compares NaN in its own way, so a filter is for our reader
        schema = spark_schema(plan.table.name, plan.schema(columns), plan.table.primary_key)
        frame = parquet_frame(session, handle.files, plan, schema)
    if frame is None:
        reader = session.read.format("epochlog").options(**location_options(handle)).option("table", plan.table.name)
        if columns is not None:
            reader = reader.option("columns", json.dumps(names))
        if filter is not None:
            reader = reader.option("filter", filter)
        frame = reader.option("snapshot", token).load()
    spark_session: Any = session._jsparkSession
    limit = spark_session.sessionState().conf().autoBroadcastJoinThreshold()  # -1: never
    return frame.hint("broadcast") if bytes_to_read(plan, ReadOptions(names, predicate)) <= limit else frame
