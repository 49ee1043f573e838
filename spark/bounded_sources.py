"""Sources of a streaming query that have an end: those that Spark bounds at the start of an availableNow query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epochlog.errors import InvalidInput

from .micro_batch import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOUNDED = "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow"
EMULATED = "AvailableNowMicroBatchStreamWrapper", "AvailableNowSourceWrapper"
"""Classes with which Spark bounds any other source, if the session's configuration asks for it."""
GENERATED = "RatePerMicroBatchStream"
"""Class of `rate-micro-batch`, which makes one more batch of rows in each run, and counts as bounded in Spark."""


def find_unbounded(session: SparkSession, query: Any) -> str | None:
    """Return the description of a source without an end; None if each has one. query: that of the JVM, after it has
    made its sources.
    """
    inner: Any = session
    bounded = inner._jvm.java.lang.Class.forName(BOUNDED)
    sources = query.uniqueSources().keys().iterator()
    while sources.hasNext():
        source = sources.next()
        name = source.getClass().getSimpleName()
        if name in EMULATED:
            return str(source.delegate().toString())
        if name == GENERATED or not bounded.isInstance(source):
            return str(source.toString())
    return None


def refuse_unbounded(session: SparkSession, query: Any = None) -> None:
    """Raise InvalidInput if a source of the query has no end. query: that of the JVM; None for the query whose
    micro-batch this thread runs.
    """
    if query is None:
        inner: Any = session
        query_id = inner._jvm.java.util.UUID.fromString(inner.sparkContext.getLocalProperty(QUERY_ID))
        query = inner._jsparkSession.sharedState().activeStreamingQueries().get(query_id)
    source = find_unbounded(session, query)
    if source is not None:
        raise unbounded_error(f"its source {source} has no end")


def unbounded_error(reason: str) -> InvalidInput:
    """Return the error of a load that is refused, with the way to end the data."""
    return InvalidInput(
        f"load runs a bounded stream to its end, and {reason}, so no table would be finished at the right moment. "
        "Run it with foreachBatch(sink) and stop it, then call `store.table(NAME).finish()`, or type "
        "`epochlog finish STORE NAME`"
    )
