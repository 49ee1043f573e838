"""Three views in SQL under one coordinator, kept by two Spark drivers; one of them is killed, and the other goes on.

    python examples/two_drivers.py

This process serves a store, writes orders and reads. The server decides, times and commits the barriers of all jobs.
One driver, a process with a Spark session of its own, refreshes `revenue` and `best_day`, a view over it; the other
refreshes `customers_seen`. Each line shows views at one epoch, compared with DuckDB's answers over the orders of that
epoch. In round 3 the second driver is killed: `revenue` takes in the orders all the same, and the three are read
together again once a successor has started. Needs `pip install 'epochlog[sql]'` and Java for Spark.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile

import pyarrow as pa

import epochlog as el

ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("day", pa.int64()), ("cents", pa.int64())])
VIEWS = {
    "revenue": ("SELECT day, SUM(cents) AS cents, COUNT(*) AS orders FROM orders GROUP BY day", ["day"]),
    "best_day": ("SELECT orders, MAX(cents) AS cents FROM revenue GROUP BY orders", ["orders"]),
    "customers_seen": (
        "SELECT customer, MAX(day) AS newest, COUNT(*) AS n FROM orders GROUP BY customer",
        ["customer"],
    ),
}
DRIVERS = (("revenue", "best_day"), ("customers_seen",))
PATIENCE_S = 300


def drive(root: str, location: str, names: list[str]) -> None:
    """Refresh views under the coordinator at `location`, until the process is ended."""
    spark = el.spark("driver", master="local[1]", **{"spark.log.level": "OFF", "spark.sql.shuffle.partitions": 1})
    with el.open(root, create=False) as store, el.Worker(location, store, token=os.environ["STORE_TOKEN"]) as worker:
        pipe = el.Pipeline(store, spark, coordinator=worker)
        for name in names:
            pipe.add(store.view(name))
        pipe.run()


class Driver:
    """Process of a driver, with its JVM in one process group."""

    def __init__(self, root: str, location: str, token: str, names: tuple[str, ...]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, root, location, *names],
            env={**os.environ, "STORE_TOKEN": token},
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def write(store: el.Store, chance: random.Random) -> int:
    """Write 40 orders, new and changed ones; return their epoch."""
    rows = [
        {"id": number, "customer": number % 7, "day": chance.randrange(5), "cents": chance.randrange(1_000)}
        for number in chance.sample(range(200), 40)
    ]
    return store.table("orders").upsert(pa.Table.from_pylist(rows, schema=ORDERS))


def read(store: el.Store, names: list[str], epoch: int) -> str:
    """Read views and orders at one epoch that has the commit of `epoch`; return what they show."""
    with store.snapshot(["orders", *names], consistency="at_least", epoch=epoch, timeout=PATIENCE_S) as moment:
        connection = moment.duckdb()
        wrong = 0
        for name in names:
            sql = VIEWS[name][0].replace("FROM revenue", f"FROM ({VIEWS['revenue'][0]})")
            differing = f"(FROM {name} EXCEPT ALL ({sql})) UNION ALL (({sql}) EXCEPT ALL FROM {name})"
            wrong += connection.execute(f"SELECT count(*) FROM ({differing})").fetchall()[0][0]
        orders = moment["orders"].count()
    return f"{orders:>3} orders, {', '.join(names)}: {'equal to DuckDB' if not wrong else f'{wrong} rows differ'}"


def main() -> None:
    chance, token = random.Random(7), secrets.token_urlsafe()
    with tempfile.TemporaryDirectory() as root, el.open(root, checkpoint_interval_ms=100) as store:
        store.create_table("orders", ORDERS, ["id"])
        for name, (sql, key) in VIEWS.items():
            store.create_view(name, sql, key)
        with el.serve(store, token=token) as server:
            drivers = [Driver(root, server.location, token, names) for names in DRIVERS]
            try:
                for number in range(1, 6):
                    if number == 3:
                        drivers[1].kill()
                        print("round 3: the driver of customers_seen is killed")
                        print("round 3:", read(store, ["revenue", "best_day"], write(store, chance)))
                        drivers[1] = Driver(root, server.location, token, DRIVERS[1])
                    print(f"round {number}:", read(store, list(VIEWS), write(store, chance)))
            finally:
                for driver in drivers:
                    driver.kill()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        drive(sys.argv[1], sys.argv[2], sys.argv[3:])
    else:
        main()
