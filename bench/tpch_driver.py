"""A Spark driver that keeps the example's views of TPC-H: `python tpch_driver.py FOLDER SCALE ROUNDS`.

Prints what it took as one line of JSON, {"what": [ms, ...]}: after a refresh, every view by its changes, and its twin
in SQL in turns with it; then, once, all of them side by side; and every view made anew, as `job.rebuild()` does it. The
views are held against DuckDB at the end.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import tpch
import tpch_data
from pairs import timed
from tpch_sql import SQL_VIEWS, create_views
from tpch_views import VIEWS

import epochlog as el

SEED = 1


def step_views(views: Iterable[el.View], spark: Any) -> None:
    """Step views until they have caught up."""
    for view in views:
        while view.step(spark) is not None:
            pass


def in_turns(
    pairs: Sequence[tuple[str, str]],
    by_hand: Callable[[str], None],
    in_sql: Callable[[str], None],
    *,
    sql_first: bool,
) -> tuple[dict[str, float], dict[str, float]]:
    """Time both refreshes of each view one right after the other; every second pair begins with the other one."""
    hand: dict[str, float] = {}
    sql: dict[str, float] = {}
    for place, (name, twin) in enumerate(pairs):
        if (place % 2 == 1) == sql_first:
            hand[name] = timed(lambda name=name: by_hand(name))
        sql[name] = timed(lambda twin=twin: in_sql(twin))
        if name not in hand:
            hand[name] = timed(lambda name=name: by_hand(name))
    return hand, sql


def run(folder: Path, scale: float, rounds: int) -> dict[str, list[float]]:
    tpch_data.generate(folder / "files", scale)
    spark = el.spark("bench")
    spark.sparkContext.setLogLevel("ERROR")
    took: dict[str, list[float]] = defaultdict(list)
    with el.open(folder / "store") as store:
        tpch_data.load(store, folder / "files")
        jobs, pipe = tpch.create_jobs(store), el.Pipeline(store, spark)
        for name, job in jobs.items():
            pipe.add(job, VIEWS[name].refresh)
        views = create_views(store, spark)
        pipe.run(until="idle")
        step_views(views.values(), spark)

        def step(name: str) -> None:
            while jobs[name].step(spark, VIEWS[name].refresh) is not None:
                pass

        for number in range(-1 if rounds > 1 else 0, rounds):  # the first of several rounds warms up
            tpch_data.refresh(store, SEED, number + 2)
            store.checkpoint()
            changes, in_sql = in_turns(
                [(name, f"sql_{name}") for name in VIEWS],
                step,
                lambda name: step_views([views[name]], spark),
                sql_first=number % 2 == 1,
            )
            if number >= 0:
                for name in VIEWS:
                    took[f"{name}, by changes"].append(changes[name])
                    took[f"{name}, in SQL"].append(in_sql[name])
        tpch_data.refresh(store, SEED, rounds + 2)
        took["all seven, by changes, side by side"].append(timed(lambda: pipe.run(until="idle")))
        step_views(views.values(), spark)
        for name, job in jobs.items():
            job.rebuild()
            took[f"{name}, made anew"].append(timed(lambda name=name: step(name)))
        with store.snapshot(consistency="aligned") as moment:
            wrong = {name: count for name, count in tpch.differing(moment, [*VIEWS, *SQL_VIEWS]).items() if count}
            assert not wrong and moment.epochs["orders"] >= store.table("orders").info.max_committed_epoch, wrong
    spark.stop()
    return took


def main() -> None:
    folder, scale, rounds = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Spark prints goes to standard error
    print(json.dumps(run(Path(folder), float(scale), int(rounds))), file=answers, flush=True)


if __name__ == "__main__":
    main()
