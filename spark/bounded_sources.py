"""Sources of a streaming query that have an end: those that Spark bounds at the start of an availableNow query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epochlog.errors import InvalidInput

from .micro_batch import QUERY_ID
from .versions import STREAM_LIMITS, needed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOUNDED = "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow"
EMULATED = "AvailableNowMicroBatchStreamWrapper", "AvailableNowSourceWrapper"
"""Classes with which Spark bounds any other source, if the session's configuration asks for it."""
GENERATED = "RatePerMicroBatchStream"
"""Class of `rate-micro-batch`, which makes one more batch of rows in each run, and counts as bounded in Spark."""
PYTHON = "PythonMicroBatchStream"
"""Class of a source in Python that does not support availableNow, which before Spark 4.2 none of them does."""


def find_unbounded(session: SparkSession, query: Any) -> str | None:
    """Return the reason for which a source has no end; None if each has one. query: that of the JVM, after it has made
    its sources.
    """
    inner: Any = session
    bounded = inner._jvm.java.lang.Class.forName(BOUNDED)
    sources = query.uniqueSources().keys().iterator()
    while sources.hasNext():
        source = sources.next()
        name = source.getClass().getSimpleName()
        if name in EMULATED:
            source = source.delegate()
            return f"its source {source.toString()} has no end"
        if name == GENERATED or not bounded.isInstance(source):
            later = "" if STREAM_LIMITS or name != PYTHON else f" ({needed('the end of a source in Python', '4.2')})"
            return f"its source {source.toString()} has no end{later}"
    return None


def refuse_unbounded(session: SparkSession, query: Any = None) -> None:
    """Raise InvalidInput if a source of the query has no end. query: that of the JVM; None for the query whose
    micro-batch this thread runs.
    """
    if query is None:
        inner: Any = session
        query_id = inner._jvm.java.util.UUID.fromString(inner.sparkContext.getLocalProperty(QUERY_ID))
        query = inner._jsparkSession.sharedState().activeStreamingQueries().get(query_id)
    reason = find_unbounded(session, query)
    if reason is not None:
        raise unbounded_error(reason)


def unbounded_error(reason: str) -> InvalidInput:
    """Return the error of a load that is refused, with the way to end the data."""
    return InvalidInput(
        f"load runs a bounded stream to its end, and {reason}, so no table would be finished at the right moment. "
        "Run it with foreachBatch(sink) and stop it, then call `store.table(NAME).finish()`, or type "
        "`epochlog finish STORE NAME`"
    )
