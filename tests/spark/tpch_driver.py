"""A Spark driver that keeps views of TPC-H in a pipeline: `tpch_driver.py ROOT NAME...`, told line by line what to do.

It says `ready JVM_PID`, and `begun NAME` whenever a refresh begins; it takes `raise NAME` and `hang NAME` on standard
input, and says `told NAME`: the next refresh of that view to write its rows then raises, or stands still for good, and
says `raised NAME` or `hanging NAME` before. It ends when all its jobs have, or its standard input does.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from tpch_views import VIEWS

import epochlog as el
from spark_limits import raise_connect_limit


class RequestedFailure(Exception):
    """Error that a refresh raises on request."""


def say(*words: object) -> None:
    print(*words, flush=True)


def obedient(name: str, orders: dict[str, str]) -> Callable[[Any], None]:
    """The view's refresh, which carries out an order once its rows are written."""

    def refresh(ctx: Any) -> None:
        say("begun", name)
        VIEWS[name].refresh(ctx)
        match orders.pop(name, None):
            case "raise":
                say("raised", name)
                raise RequestedFailure(f"{name} was requested to fail")
            case "hang":
                say("hanging", name)
                threading.Event().wait()

    return refresh


def listen(orders: dict[str, str]) -> None:
    for line in sys.stdin:
        word, name = line.split()
        orders[name] = word
        say("told", name)
    os._exit(0)


def main(root: str, *names: str) -> None:
    spark = el.spark("tpch", master="local[2]", **{"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
    raise_connect_limit(spark)
    spark.sparkContext.setLogLevel("OFF")
    orders: dict[str, str] = {}
    with el.open(root, create=False, durability="os") as store:
        pipe = el.Pipeline(store, spark)
        for name in names:
            pipe.add(store.job(name), obedient(name, orders))
        gateway: Any = spark.sparkContext._gateway
        say("ready", gateway.proc.pid)
        threading.Thread(target=listen, args=(orders,), daemon=True).start()
        pipe.run()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
