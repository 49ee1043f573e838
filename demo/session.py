"""The demo's Spark sessions and the starting of jobs on them: settings for two minutes on a small, busy machine."""

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
from epochlog.spark.session import spark

SETTINGS = {
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": 1,
    # In two minutes the optimising compiler never earns back what it costs: half of all processor time with it.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
}
POLL = "300 milliseconds"
TRIES = 3
LOOK_S = 0.1


def session(app_name: str, log: Path) -> SparkSession:
    """A local session of its own process; what Spark and its workers write to standard error goes to the log."""
    sys.stderr.flush()
    ours = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        return spark(app_name=app_name, **SETTINGS)
    finally:
        os.dup2(ours, 2)
        os.close(ours)


def start_job(job: Any, session: SparkSession, refresh: Callable[[Any], None]) -> StreamingQuery:
    """Start a job and wait until its first refresh has begun, or its first look has found nothing to do.

    Spark gives the process of a Python source ten seconds to come up. Where many start at once on two cores that can be
    too short, so jobs are started one by one, and one that did not come up is started again.
    """
    begun = threading.Event()

    def run(ctx: Any) -> None:
        begun.set()
        refresh(ctx)

    reason = None
    for _ in range(TRIES):
        query = job.start(session, run, poll=POLL)
        while query.isActive and not begun.is_set() and query.lastProgress is None:
            begun.wait(LOOK_S)
        if query.isActive:
            return query
        reason = query.exception()
    raise EpochlogError(f"job {job.name} did not start: {reason}")
