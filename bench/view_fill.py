"""Memory and CPU time of the backfill of a view: in one step, and by chunks.

    python bench/view_fill.py FOLDER --rows 20000000 --chunk 2000000

FOLDER is on a disk, with 3 GB of room for 20 M rows; the store that it gets is kept for the next call. Each fill runs
in a process of its own: the sums of a join by group, and the join itself. The output is a line of JSON for each: the
most anonymous memory above that of the open store in MiB, the CPU time and the time in s, and the number of chunks.
DuckDB has EPOCHLOG_VIEWS_MEMORY, here 1 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import pyarrow as pa
from memory_driver import Watch

import epochlog as el

ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("day", pa.int32()), ("cents", pa.int64())])
CUSTOMERS = pa.schema([("id", pa.int64()), ("region", pa.string())])
CUSTOMERS_OF_SHOP, DAYS, AT_ONCE = 10_000, 365, 1_000_000
VIEWS = {
    "sums": (
        """SELECT c.region, o.day, SUM(o.cents) AS cents, COUNT(*) AS n, MAX(o.cents) AS most
        FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.region, o.day""",
        ["region", "day"],
    ),
    "joined": ("SELECT o.id, o.cents, c.region FROM orders o LEFT JOIN customers c ON c.id = o.customer", ["id"]),
}


def load(root: Path, rows: int) -> None:
    """Make a store with these orders, unless there is one."""
    if root.exists():
        return
    rng = np.random.default_rng(0)
    with el.open(root, durability="os") as store:
        orders = store.create_table("orders", ORDERS, ["id"])
        ids = np.arange(CUSTOMERS_OF_SHOP)
        customers = store.create_table("customers", CUSTOMERS, ["id"])
        customers.upsert(pa.table([ids, [f"region-{number % 7}" for number in ids]], schema=CUSTOMERS))
        for first in range(0, rows, AT_ONCE):
            count = min(AT_ONCE, rows - first)
            columns = [np.arange(first, first + count), rng.integers(0, CUSTOMERS_OF_SHOP, count)]
            columns += [rng.integers(0, DAYS, count).astype("int32"), rng.integers(0, 10_000, count)]
            orders.upsert(pa.table(columns, schema=ORDERS))
        store.checkpoint()


def fill(root: Path, name: str, chunk: int) -> dict[str, object]:
    """Fill a new view by chunks of this number of rows; return what it took."""
    with el.open(root, durability="os") as store:
        if name in [job.name for job in store.jobs()]:
            store.drop_view(name)
        view, steps = store.create_view(name, *VIEWS[name], snapshot_rows=chunk), 0
        began, began_cpu = perf_counter(), process_time()
        with Watch() as watch:
            while view._runner.step_local(view.refresh) == 0:
                steps += 1
        taken = {"s": round(perf_counter() - began, 1), "cpu_s": round(process_time() - began_cpu, 1)}
        return {"view": name, "chunks": steps, "mib": round(watch.peak[0] - watch.start[0]), **taken}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--chunk", type=int, default=2_000_000)
    parser.add_argument("--fill", choices=list(VIEWS), help="fill one view in this process")
    asked = parser.parse_args(arguments)
    root = asked.folder / f"fill-{asked.rows}"
    if asked.fill:
        print(json.dumps(fill(root, asked.fill, asked.chunk)), flush=True)
        return
    load(root, asked.rows)
    environment = {"EPOCHLOG_VIEWS_MEMORY": "1GB", **os.environ}
    for name in VIEWS:
        for chunk in (asked.chunk, 2 * asked.rows):
            own = ["--rows", str(asked.rows), "--chunk", str(chunk), "--fill", name]
            subprocess.run([sys.executable, __file__, str(asked.folder), *own], env=environment, check=False)


if __name__ == "__main__":
    main(sys.argv[1:])
