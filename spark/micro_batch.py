"""Micro-batch of a streaming query that a write belongs to: the query's id, the batch's id and the time of its plan."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from epochlog.errors import EpochlogError
from epochlog.store.env.local_folder import LocalFiles

from .live_session import is_connect
from .versions import offsets_metadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties that Spark sets on the thread, and so on the tasks, of a micro-batch."""


class MicroBatch(NamedTuple):
    """Micro-batch in which a write runs."""

    query: str
    batch: int
    planned_ms: int | None = None
    """Time at which Spark planned the batch; None if Spark does not tell it."""

    @classmethod
    def parse(cls, text: str | None) -> MicroBatch | None:
        """Return the micro-batch that `as_text` has written; None if there is none."""
        return None if text is None else cls(*json.loads(text))

    def as_text(self) -> str:
        return json.dumps(self)


def find_micro_batch(session: SparkSession, batch_id: int | None = None) -> MicroBatch | None:
    """Return the micro-batch whose foreachBatch is called, by the thread, and in other threads by the session, which
    is the query's own. batch_id: its id, which foreachBatch passes.

    None for a call outside of any, in Spark Connect, and in other threads after the query has ended.
    """
    if is_connect(session):
        return None
    inner: Any = session
    context: Any = inner.sparkContext
    active = inner._jsparkSession.sharedState().activeStreamingQueries()
    query_id, number = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if query_id is not None:
        query = active.get(context._jvm.java.util.UUID.fromString(query_id))
    else:
        own = (query for query in active.values() if query.sparkSessionForStream().equals(inner._jsparkSession))
        query = next(own, None)
        if query is None:
            return None
        query_id, number = query.id().toString(), query.getLatestExecutionContext().batchId()
    if batch_id is None:
        batch_id = int(number)
    planned = None if query is None else query.offsetLog().get(batch_id)  # None: a thread that outlived the query
    if planned is None or planned.isEmpty():
        return MicroBatch(query_id, batch_id)
    return MicroBatch(query_id, batch_id, offsets_metadata(planned.get()).get().batchTimestampMs())


def read_planned_ms(checkpoint: str | None, batch_id: int) -> int | None:
    """Return the time at which a batch was planned, of the checkpoint's log of offsets; None if it is no local folder.

    A sink of `format("epochlog")` commits in a process without a session, which can read no other file system of Spark.
    """
    place = urlsplit(checkpoint or "")
    if not place.path or place.scheme not in {"", "file"}:
        return None
    folder = unquote(place.path) if place.scheme else str(checkpoint)
    try:
        log = LocalFiles(os.path.join(folder, "offsets")).read(str(batch_id)).to_pybytes()
        return int(json.loads(log.splitlines()[1])["batchTimestampMs"])
    except (EpochlogError, OSError, ValueError, LookupError, TypeError):
        return None
