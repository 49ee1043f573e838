"""CPU time of the core operations beside their record: a gate of `make check` against slow regressions.

    python bench/core_cost.py            # compare with bench/of_record/core.json; exit code 1 if one costs more
    python bench/core_cost.py --record   # write the record
    python bench/core_cost.py --noise 9  # compare nine times, to see how far unchanged code strays

The cost of an operation is in units of a yardstick: fixed work of the interpreter, pyarrow, DuckDB and the file system,
measured in turns with it. Both are the least CPU time of many rounds. So another machine, or other work on this one,
changes both alike.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import duckdb
import msgpack
import pyarrow.compute as pc
from core_operations import ROWS, Operation, prepared, rows

RECORD = Path(__file__).parent / "of_record" / "core.json"
ROUNDS, ROUND_S, RECORDED = 12, 0.004, 5
"""Rounds of a measurement, the CPU seconds that a round of short calls has at least, and the measurements of which a
record has the medians.
"""
MOST = 1.6
"""Largest ratio to the record. Costs that exceed it are measured once more, and the lower ones count: noise passes, a
regression stays.
"""


def spent(operation: Operation, times: int = 1) -> float:
    """Return the CPU seconds of all threads of this process for some calls of an operation, for each call."""
    if operation.prepare is not None:
        operation.prepare()
    before = time.process_time()
    for _ in range(times):
        operation.call()
    return (time.process_time() - before) / times


class Yardstick:
    """Fixed work that uses none of this library: interpreted code, kernels of pyarrow, a query, and a synced file."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._table = rows(0, ROWS)
        self._connection = duckdb.connect()

    def work(self) -> None:
        for number in range(3_000):
            msgpack.unpackb(msgpack.packb({"id": number, "name": str(number), "parts": [number] * 5}))
        order = pc.sort_indices(self._table, sort_keys=[("day", "ascending"), ("cents", "descending")])
        taken = self._table.take(order)
        self._connection.execute("SELECT day, SUM(cents), COUNT(*) FROM taken GROUP BY day").fetchall()
        path = os.path.join(self._folder, "yardstick")
        for _ in range(5):
            with open(path, "wb") as file:
                file.write(bytes(10_000))
                file.flush()
                os.fsync(file.fileno())
        assert taken.num_rows == ROWS


def measure() -> dict[str, float]:
    """Return the cost of each core operation in units of the yardstick."""
    with prepared() as operations, tempfile.TemporaryDirectory(prefix="epochlog-core-") as folder:
        work = {**operations, "": Operation(Yardstick(folder).work)}
        least = {name: min(spent(each), spent(each)) for name, each in work.items()}  # warms up, too
        times = {name: 1 if work[name].prepare else math.ceil(ROUND_S / least[name]) for name in work}
        for _ in range(ROUNDS):
            least = {name: min(least[name], spent(each, times[name])) for name, each in work.items()}
    unit = least.pop("")
    return {name: seconds / unit for name, seconds in least.items()}


def compare(costs: Mapping[str, float], record: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Return a table of costs beside their record, and a message for each operation that costs too much."""
    lines, wrong = [f"{'operation':16} {'cost':>8} {'record':>8} {'ratio':>6}"], list[str]()
    for name, cost in costs.items():
        ratio = cost / record[name]
        lines.append(f"{name:16} {cost:8.4f} {record[name]:8.4f} {ratio:6.2f}")
        if ratio > MOST:
            wrong.append(
                f"{name} takes {ratio:.2f} times its CPU time of record (limit {MOST}). Profile it beside the last "
                "revision; if the cost is meant, write a new record: .venv/bin/python bench/core_cost.py --record"
            )
    return lines, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the record instead")
    parser.add_argument("--noise", type=int, default=1, help="compare this many times")
    chosen = parser.parse_args()
    if chosen.record:
        runs = [measure() for _ in range(RECORDED)]
        costs = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        RECORD.write_text(json.dumps({name: float(f"{cost:.4g}") for name, cost in costs.items()}, indent=1) + "\n")
        return 0
    record, failed = json.loads(RECORD.read_text("utf-8")), False
    for _ in range(chosen.noise):
        costs = measure()
        lines, wrong = compare(costs, record)
        if wrong:
            again = measure()
            lines, wrong = compare({name: min(cost, again[name]) for name, cost in costs.items()}, record)
        print("\n".join([*lines, *wrong]), flush=True)
        failed = failed or bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
