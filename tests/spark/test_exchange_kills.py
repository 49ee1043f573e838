"""A join between two Spark applications whose executors, drivers and server are killed equals DuckDB's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import duckdb
import pytest

import epochlog as el
from epochlog.exchange import ExchangeClient
from epochlog.exchange.staged.transactions import find_query
from exchange_server import TOKEN, ServerProcess
from s3_server import S3Server
from stores import servers
from wait_until import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.local_only, pytest.mark.long]

CITIES, FLIGHTS = 4_000, 40_000
PROGRAM = Path(__file__).with_name("exchange_driver.py")
EXPECTED = f"""
    SELECT flight, name FROM (SELECT range % 6000 city, range flight FROM range({FLIGHTS}))
    JOIN (SELECT range city, repeat('city ', 40) || range AS name FROM range({CITIES})) USING (city)"""


class Application:
    """A Spark application in processes of its own."""

    def __init__(self, role: str, options: dict[str, str], notes: Path, master: str) -> None:
        settings = {"options": options, "notes": str(notes), "master": master, "cities": CITIES, "flights": FLIGHTS}
        self._log = (notes / f"{role}.log").open("ab")
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), role, json.dumps(settings)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        )

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def finish(self) -> None:
        assert self._process.wait() == 0, Path(self._log.name).read_text("utf-8", "replace")[-4_000:]

    def kill(self) -> None:
        """SIGKILL the driver with its JVMs; workers in Python end with these."""
        if self.runs:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


@contextmanager
def application(role: str, options: dict[str, str], notes: Path, master: str) -> Iterator[Application]:
    started = Application(role, options, notes, master)
    try:
        yield started
    finally:
        started.kill()


def wait_for(notes: Path, name: str, *applications: Application) -> None:
    """Wait for a note. Spark takes its time to start: wait as long as the applications run."""
    pause = threading.Event()
    while not (notes / name).exists():
        assert all(started.runs for started in applications), [
            path.read_text("utf-8", "replace")[-4_000:] for path in notes.glob("*.log")
        ]
        pause.wait(0.05)


def join_with_kills(notes: Path, first: ServerProcess, restarted: Callable[[], ServerProcess], master: str) -> None:
    """Kill producer, consumer and server while the consumer has rows of a stage that has not passed; run all again."""
    layout = {"token": TOKEN, "query": "q", "stages": "-1,0", "channels": "4", "consumers": "2"}
    before = {**layout, "location": first.location}
    with (
        application("push", before, notes, master) as producer,
        application("join", before, notes, "local[2]") as consumer,
    ):
        for name in ("killed", "waits", "received"):
            wait_for(notes, name, producer, consumer)
        with ExchangeClient(first.location, token=TOKEN, query="q") as client:
            assert client.stage == -1 and not (notes / "result").exists()
            wait_until(lambda: sum(channel.next for channel in client.progress.values() if channel.stage == -1) > 2)
        producer.kill()
        consumer.kill()
    first.kill()
    (notes / "go").touch()
    after = {**layout, "location": restarted().location}
    with (
        application("join", after, notes, "local[2]") as consumer,
        application("push", after, notes, master) as producer,
    ):
        producer.finish()
        consumer.finish()
    result = duckdb.read_parquet(str(notes / "result"))
    assert result.order("ALL").fetchall() == duckdb.execute(f"{EXPECTED} ORDER BY ALL").fetchall()
    with ExchangeClient(after["location"], token=TOKEN, query="q") as client:
        assert client.stage == 1 and all(channel.passed for channel in client.progress.values())


def test_a_join_with_killed_executors_drivers_and_server_equals_duckdb(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    with ServerProcess(tmp_path / "store") as server:

        def restarted() -> ServerProcess:
            server.start()
            return server

        join_with_kills(notes, server, restarted, "local-cluster[2,1,1024]")


@pytest.mark.redis
def test_a_consumer_goes_on_at_another_server_of_the_store(tmp_path: Path, s3: S3Server) -> None:
    """Files on S3, catalog in Redis: nothing of the first server's machine is needed."""
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "killed").touch()  # no executor dies
    root, redis = s3.uri(f"{s3.new_bucket()}/lake"), servers.redis
    with ExitStack() as stack:

        def started() -> ServerProcess:
            return stack.enter_context(ServerProcess(root, redis.url()))

        first = started()
        join_with_kills(notes, first, started, "local[2]")
        with el.open(root, redis.url(), create=False) as store:
            assert store._handle.catalog.read(lambda view: find_query(view, "q")).stage == 1
