"""A process that runs one job of a store until it is killed: `job_driver.py ROOT MODE` prints an event a line.

The job keeps, per group, how many rows there are and the sum of their values, from changes alone: what is lost or taken
twice shows. Modes: `run` steps on and on; `hang` writes its output, says so and then waits for a line on standard input
before it lets the commit go on.
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa

import epochlog as el


def say(*words: object) -> None:
    print(*words, flush=True)


def refresh(ctx: Any) -> None:
    groups = {row["g"]: [row["n"], row["v"]] for row in ctx.output("totals").to_pylist()}
    signs = {"insert": 1, "update_postimage": 1, "update_preimage": -1, "delete": -1}
    for row in ctx.changes("r", pre_images=True).to_pylist():
        group = groups.setdefault(row["g"], [0, 0])
        group[0] += signs[row["_change_type"]]
        group[1] += signs[row["_change_type"]] * row["v"]
    rows = [{"g": g, "n": n, "v": v} for g, (n, v) in groups.items()]
    ctx.upsert("totals", pa.Table.from_pylist(rows, schema=ctx.output("totals").schema))


def hanging(ctx: Any) -> None:
    refresh(ctx)
    for writer in ctx._writers.values():  # the segments are on disk before the commit
        writer._flushed = writer.finish()
    say("hanging", ctx.barrier.prev, ctx.barrier.curr)
    sys.stdin.readline()


def main(root: str, mode: str) -> None:
    with el.open(root, create=False, durability="os") as store:
        job = store.job("j")
        say("ready")
        while True:
            try:
                epoch = job.step_local(hanging if mode == "hang" else refresh)
            except el.Fenced as error:
                say("fenced", type(error).__name__)
                return
            if epoch is not None:
                say("committed", epoch)
            elif mode == "hang":
                say("idle")
                if not sys.stdin.readline():
                    return


if __name__ == "__main__":
    main(*sys.argv[1:])
