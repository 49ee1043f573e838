"""Five queries of TPC-H as views that follow changes of orders: `python examples/tpch.py`.

The TPC-H tables are loaded once. Then refreshes of orders and their lines are committed, one after another, and Spark
refreshes the views, each by itself: those of tpch_views.py, whose refreshes are written by hand, and those of
tpch_sql.py, whose refreshes are derived from their queries. After each refresh all views are read from one snapshot and
compared, to the last digit, with DuckDB's answers over the root tables of that snapshot.

    --scale 0.01    TPC-H's scale factor: 1 is 6 million lines
    --refreshes 4   number of refreshes
    --seed 1        seed of the refreshes
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tpch_data
from tpch_sql import SQL_VIEWS, create_views
from tpch_views import VIEWS, TpchView

import epochlog as el


def create_jobs(store: el.Store) -> dict[str, el.Job]:
    """Create a job for each view, upstreams first."""
    return {
        view.name: store.create_job(view.name, view.upstreams, {view.name: (view.schema, view.key)})
        for view in VIEWS.values()
    }


def differing(snapshot: el.Snapshot, views: Sequence[str] = tuple(VIEWS)) -> dict[str, int]:
    """Count for each view the rows by which it differs from DuckDB's answer over the snapshot's root tables."""
    with snapshot.duckdb() as connection:
        return {name: compare(connection, VIEWS.get(name) or VIEWS[SQL_VIEWS[name].beside], name) for name in views}


def compare(connection: Any, view: TpchView, table: str) -> int:
    """Count the rows by which a table differs from the view's SQL."""
    columns = ", ".join(view.schema.names)
    (count,) = connection.execute(f"""
        WITH actual AS MATERIALIZED (SELECT {columns} FROM {table}),
             expected AS MATERIALIZED (SELECT {columns} FROM ({view.sql}))
        SELECT count(*)
        FROM ((FROM actual EXCEPT ALL FROM expected) UNION ALL (FROM expected EXCEPT ALL FROM actual))
    """).fetchone()
    return count


def show(label: str, took_s: float, store: el.Store) -> None:
    with store.snapshot(consistency="aligned") as moment:
        differences = differing(moment, [*VIEWS, *SQL_VIEWS])
        rows = ", ".join(f"{name} {moment[name].count()}" for name in VIEWS)
        equal = "equal to DuckDB's" if not any(differences.values()) else f"NOT equal to DuckDB's: {differences}"
    print(f"{label}: views in {took_s:.1f} s; rows {rows}; {equal}", flush=True)


def main(folder: Path, scale: float, refreshes: int, seed: int) -> None:
    tpch_data.generate(folder / "files", scale)
    spark = el.spark("TPC-H")
    spark.sparkContext.setLogLevel("ERROR")
    with el.open(folder / "store") as store:
        tpch_data.load(store, folder / "files")
        pipe = el.Pipeline(store, spark)
        for name, job in create_jobs(store).items():
            pipe.add(job, VIEWS[name].refresh)
        for view in create_views(store, spark).values():
            pipe.add(view)
        for number in range(refreshes + 1):
            if number:
                tpch_data.refresh(store, seed, number)
            began = time.monotonic()
            pipe.run(until="idle")
            show(f"refresh {number} of {refreshes}" if number else "loaded", time.monotonic() - began, store)
        print(store.table("q3").to_pandas().to_string(index=False))
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--refreshes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder), **vars(parser.parse_args()))
