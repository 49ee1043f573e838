"""Three views of one table, kept up to date in a process of their own: with queries of Spark, or by a pipeline.

`python freshness_driver.py spark|pipeline STORE` runs until its standard input ends.
"""

from __future__ import annotations

import sys
import threading

import epochlog as el

VIEWS = {
    "by_day": ("SELECT day, SUM(cents) AS cents, COUNT(*) AS n, MAX(cents) AS most FROM orders GROUP BY day", ["day"]),
    "buyers": ("SELECT day, COUNT(DISTINCT customer) AS buyers FROM orders GROUP BY day", ["day"]),
    "large": ("SELECT id, customer, cents FROM orders WHERE cents >= 9000", ["id"]),
}


def with_spark(store: el.Store) -> None:
    session = el.spark(app_name="bench")
    queries = [store.view(name).start(session) for name in VIEWS]
    sys.stdin.read()
    for query in queries:
        query.stop()
    session.stop()


def with_pipeline(store: el.Store) -> None:
    pipeline = el.Pipeline(store)
    for name in VIEWS:
        pipeline.add(store.view(name))
    threading.Thread(target=lambda: (sys.stdin.read(), pipeline.stop())).start()
    pipeline.run()


if __name__ == "__main__":
    kind, root = sys.argv[1:]
    with el.open(root) as opened:
        {"spark": with_spark, "pipeline": with_pipeline}[kind](opened)
