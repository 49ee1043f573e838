"""A table of a snapshot as a Spark DataFrame: with the snapshot's token, and with a hint where it is small."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..exchange.pieces import bytes_to_read
from ..exchange.spark_options import place_options
from ..store.handle import Handle
from ..store.scan import ScanPlan
from .predicate import parse_predicate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame_of(
    handle: Handle, plan: ScanPlan, token: str, session: SparkSession, columns: Sequence[str] | None, filter: str | None
) -> DataFrame:
    """A load by this token, planned anew in the session's processes. InvalidInput for a wrong column or filter.

    Spark asks no Python source for its size and takes it for endless, so it would sort both sides of a join. What it
    would broadcast if it knew carries a hint; whatever else it is told about the frame comes on top of that.
    """
    names = plan.schema(columns).names
    predicate = None if filter is None else parse_predicate(filter, plan.table.schema)
    reader = session.read.format("epochlog").options(**place_options(handle)).option("table", plan.table.name)
    if columns is not None:
        reader = reader.option("columns", json.dumps(names))
    if filter is not None:
        reader = reader.option("filter", filter)
    frame = reader.option("snapshot", token).load()
    state: Any = session._jsparkSession
    limit = state.sessionState().conf().autoBroadcastJoinThreshold()  # as the session says, -1 for never
    return frame.hint("broadcast") if bytes_to_read(plan, names, predicate) <= limit else frame
