"""Spark sessions of the demo, with settings for two minutes on a small machine, and the start of jobs on them."""

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


def start_job(job: Any, session: SparkSession, refresh: Callable[[Any], None]) -> StreamingQuery:
    """Start a job and wait until its first refresh begins, or its first micro-batch ends without one.

    Spark gives the process of a Python source ten seconds to start, which can be too short for several at once on two
    cores. So jobs start one by one, and a failed start is repeated.
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
