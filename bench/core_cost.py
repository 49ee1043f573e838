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
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import duckdb
import msgpack
import pyarrow as pa
import pyarrow.compute as pc

import epochlog as el
from epochlog.store.scan.result_cache import set_result_cache_bytes

RECORD = Path(__file__).parent / "of_record" / "core.json"
ROUNDS = 12
MOST = 1.6
"""Largest ratio to the record. A comparison that exceeds it is made once more: noise passes, a regression stays."""
ROWS, CHANGED = 100_000, 100

Work = Callable[[], float]
"""Function that does one round of an operation and returns its CPU seconds."""


def rows(first: int, count: int) -> pa.Table:
    """Return rows of the measured table with ids from `first` on."""
    ids = pa.array(range(first, first + count), pa.int64())
    return pa.table({"id": ids, "day": pc.bit_wise_and(ids, 63), "cents": pc.multiply(ids, 7)})


def spent(work: Callable[[], object], times: int = 1) -> float:
    """Return the CPU seconds of all threads of this process for some calls, for each call."""
    before = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - before) / times


class CoreOperations:
    """Store with a table and a view, and one round of each core operation on it."""

    def __init__(self, root: str) -> None:
        self._store = el.open(root)
        schema = pa.schema([("id", pa.int64()), ("day", pa.int64()), ("cents", pa.int64())])
        self._orders = self._store.create_table("orders", schema, ["id"])
        self._orders.upsert(rows(0, ROWS))
        self._store.compact("orders", full=True)
        for number in range(5):
            self._orders.upsert(rows(number * 50, CHANGED))
        query = "SELECT day, SUM(cents) AS cents, COUNT(*) AS orders FROM orders GROUP BY day"
        self._revenue = self._store.create_view("revenue", query, primary_key=["day"])
        self._store.checkpoint()
        self._revenue.step()
        self._changed = self._store.create_table("changed", schema, ["id"])
        self._next = 0

    def commit(self) -> float:
        def upsert() -> None:
            self._next += CHANGED
            self._changed.upsert(rows(self._next, CHANGED))

        return spent(upsert, 4)

    def step(self) -> float:
        self._next += CHANGED
        self._orders.upsert(rows(self._next % ROWS, CHANGED))
        self._store.checkpoint()
        return spent(self._revenue.step)

    def read(self) -> float:
        return spent(self._orders.to_arrow)

    def get(self) -> float:
        return spent(lambda: self._orders.get([{"id": 77}]), 20)

    def close(self) -> None:
        self._store.close()


class Yardstick:
    """Fixed work that uses none of this library: interpreted code, kernels of pyarrow, a query, and a synced file."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._table = rows(0, ROWS)
        self._connection = duckdb.connect()

    def measure(self) -> float:
        return spent(self._work)

    def _work(self) -> None:
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


@contextlib.contextmanager
def prepared() -> Iterator[Mapping[str, Work]]:
    """Yield the operations and the yardstick (by an empty name), over a new store and without the result cache."""
    before = set_result_cache_bytes(0)
    try:
        with tempfile.TemporaryDirectory(prefix="epochlog-core-") as folder:
            core = CoreOperations(os.path.join(folder, "lake"))
            yield {
                "commit": core.commit,
                "step": core.step,
                "read": core.read,
                "get": core.get,
                "": Yardstick(folder).measure,
            }
            core.close()
    finally:
        set_result_cache_bytes(before)


def measure() -> dict[str, float]:
    """Return the cost of each core operation in units of the yardstick."""
    with prepared() as work:
        least = {name: min(once(), once()) for name, once in work.items()}  # warms up, too
        for _ in range(ROUNDS):
            least = {name: min(least[name], once()) for name, once in work.items()}
    unit = least.pop("")
    return {name: seconds / unit for name, seconds in least.items()}


def compare(costs: Mapping[str, float], record: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Return a table of costs beside their record, and a message for each operation that costs too much."""
    lines, wrong = [f"{'operation':10} {'cost':>8} {'record':>8} {'ratio':>6}"], list[str]()
    for name, cost in costs.items():
        ratio = cost / record[name]
        lines.append(f"{name:10} {cost:8.4f} {record[name]:8.4f} {ratio:6.2f}")
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
        RECORD.write_text(json.dumps({name: round(cost, 4) for name, cost in measure().items()}, indent=1) + "\n")
        return 0
    record, failed = json.loads(RECORD.read_text("utf-8")), False
    for _ in range(chosen.noise):
        lines, wrong = compare(measure(), record)
        if wrong:
            lines, wrong = compare(measure(), record)
        print("\n".join([*lines, *wrong]), flush=True)
        failed = failed or bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
