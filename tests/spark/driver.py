"""A Spark driver that runs jobs of a store, told line by line what to do: `driver.py ROOT CATALOG NAME...`.

Each job NAME copies the table it reads into NAME. It says `ready JVM_PID`, and then takes on standard input: `idle`
(run the jobs as a pipeline until they are idle; says each one's state, epoch and restarts), `hang` (step the first job;
its refresh writes its output, says so and waits for a line before it lets the commit go on), and `step` (step the first
job). Both say `committed EPOCH`, or `failed ERROR`.
"""

from __future__ import annotations

import sys
from typing import Any

import epochlog as el
from spark_limits import raise_connect_limit


def say(*words: object) -> None:
    print(*words, flush=True)


def copy(name: str) -> Any:
    def refresh(ctx: Any) -> None:
        source = next(iter(ctx.plan.upstreams))
        ctx.upsert(name, ctx.changes(source).select("id", "amount"))

    return refresh


def hanging(name: str) -> Any:
    def refresh(ctx: Any) -> None:
        copy(name)(ctx)  # its segments are durable now
        say("hanging", ctx.barrier.prev, ctx.barrier.curr)
        sys.stdin.readline()

    return refresh


def step(job: el.Job, spark: Any, refresh: Any) -> None:
    try:
        say("committed", job.step(spark, refresh))
    except Exception as error:
        say("failed", type(error).__name__)


def main(root: str, catalog: str, *names: str) -> None:
    spark = el.spark("driver", master="local[1]")
    raise_connect_limit(spark)
    spark.sparkContext.setLogLevel("OFF")
    with el.open(root, catalog, create=False) as store:
        jobs = {name: store.job(name) for name in names}
        pipe = el.Pipeline(store, spark)
        for name, job in jobs.items():
            pipe.add(job, copy(name))
        gateway: Any = spark.sparkContext._gateway
        say("ready", gateway.proc.pid)
        for line in iter(sys.stdin.readline, ""):
            if line.strip() == "idle":
                pipe.run(until="idle")
                say("idle", *(f"{row.state}/{row.committed_epoch}/{row.restarts}" for row in pipe.status()))
            else:
                step(jobs[names[0]], spark, (hanging if line.strip() == "hang" else copy)(names[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
