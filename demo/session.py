"""Spark sessions of the demo, with settings for two minutes on a small machine, and the start of views on them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from epochlog.errors import EpochlogError
from epochlog.spark.job_query import start
from epochlog.spark.local_session import spark
from epochlog.view import View

SETTINGS = {
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": 1,
    # The optimising compiler costs half of the processor time of a run of two minutes.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
}
POLL = "300 milliseconds"
TRIES = 3
LOOK_S = 0.1


def session(app_name: str, log: Path) -> SparkSession:
    """Start a local session. The standard error of Spark and its workers goes to the log."""
    sys.stderr.flush()
    saved_stderr = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        return spark(app_name=app_name, **SETTINGS)
    finally:
        os.dup2(saved_stderr, 2)
        os.close(saved_stderr)


def start_view(view: View, session: SparkSession, refresh: Callable[[Any], None]) -> StreamingQuery:
    """Start a view and wait until its first refresh begins, or its first micro-batch ends without one.

    refresh: the view's, or a function around it. Spark gives the process of a Python source ten seconds to start, which
    can be too short for several at once on two cores. So views start one by one, and a failed start is repeated.
    """
    begun = threading.Event()

    def run(ctx: Any) -> None:
        begun.set()
        refresh(ctx)

    reason = None
    for _ in range(TRIES):
        query = start(view._runner, session, run, poll=POLL)
        while query.isActive and not begun.is_set() and query.lastProgress is None:
            begun.wait(LOOK_S)
        if query.isActive:
            return query
        reason = query.exception()
    raise EpochlogError(f"view {view.name} did not start: {reason}")
