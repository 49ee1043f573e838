"""Frame of a snapshot's table on Spark: a load by the snapshot's token, with a broadcast hint where the table
is small.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from epochlog.batch.predicate import parse_predicate
from epochlog.store.changelog.plan_ranges import bytes_to_read
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle
from epochlog.store.types.read_options import ReadOptions

from .options import place_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame_of(
    handle: Handle, plan: ScanPlan, token: str, session: SparkSession, columns: Sequence[str] | None, filter: str | None
) -> DataFrame:
    """Load the table by this token, planned anew in the session's processes. Raises InvalidInput for a wrong column or
    filter.

    Spark asks no Python source for its size and takes it for endless, so it would sort both sides of a join. So a table
    that is small enough for the session's broadcast limit carries a hint; hints of the user come on top of it.
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
    return frame.hint("broadcast") if bytes_to_read(plan, ReadOptions(names, predicate)) <= limit else frame
