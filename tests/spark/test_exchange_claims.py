"""Streams of `format("epochlog.exchange")` fence their predecessors: one that wakes up late acknowledges nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import epochlog as el
from epochlog.exchange import ExchangeClient
from epochlog.exchange.staged import state
from epochlog.exchange.staged.service import StagedExchange
from epochlog.exchange.transport.message_fields import MAX_NUMBER
from epochlog.spark.exchange_format import ExchangeSource
from epochlog.spark.exchange_stream import ExchangeStreamReader
from epochlog.testing.tcp_proxy import TcpProxy
from wait_until import WAIT_LIMIT_S, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.local_only]

PROGRAM = Path(__file__).with_name("exchange_driver.py")
TOKEN, FORMAT = "the-token", "epochlog.exchange"
LAYOUT = {"stages": "0", "channels": "1", "consumers": "2"}
SCHEMA = StructType([StructField("id", LongType())])
Patch = pytest.MonkeyPatch


@pytest.fixture
def server(tmp_path: Path) -> Iterator[el.StoreServer]:
    with el.open(tmp_path / "store", durability="os") as store, el.serve(store, token=TOKEN) as server:
        yield server


def client_of(server: el.StoreServer, location: str = "") -> ExchangeClient:
    return ExchangeClient(location or server.location, token=TOKEN, query="q", timeout=WAIT_LIMIT_S)


def push(ex: ExchangeClient, seq: int) -> set[int]:
    """Push one row to each of the two consumers."""
    for consumer in range(2):
        ex.push(f"s0.p0.c{consumer}of2", 0, seq, pa.record_batch({"id": [10 * seq + consumer]}))
    return {10 * seq, 10 * seq + 1}


class Stream:
    """The stream reader of a driver, called as Spark calls it."""

    def __init__(self, server: el.StoreServer, checkpoint: dict[str, int] | None) -> None:
        """Begin at a checkpoint; None: without one."""
        options = {"location": server.location, "token": TOKEN, "query": "q", **LAYOUT}
        reader: Any = ExchangeSource(options).streamReader(SCHEMA)
        self._reader: ExchangeStreamReader = reader
        self.at = reader.initialOffset() if checkpoint is None else checkpoint
        self._end = reader.latestOffset(self.at)

    def read(self) -> set[int]:
        """Read the rows of a micro-batch with all that is there; each of its tasks runs twice."""
        self._end = self._reader.latestOffset(self.at)
        rows: set[int] = set()
        for _ in range(2):
            tasks = self._reader.partitions(self.at, self._end)
            rows = {row for task in tasks for batch in self._reader.read(task) for row in batch["id"].to_pylist()}
        return rows

    def commit(self) -> dict[str, int]:
        self._reader.commit(self._end)
        self.at = self._end
        return self.at


def check_an_old_driver_is_fenced(server: el.StoreServer) -> None:
    """It wakes up and has a batch that its successor has not: the batch stays for the successor, twice over."""
    with client_of(server) as ex:
        old = Stream(server, None)
        assert old.read() == set()
        first, checkpoint = push(ex, 0), {}
        for generation in range(2):
            assert old.read() == first
            checkpoint = old.commit()
            new = Stream(server, checkpoint)
            missing = push(ex, 2 * generation + 1)
            assert old.read() == missing
            with pytest.raises(el.Fenced):
                old.commit()
            assert new.read() == missing
            new.commit()
            old, first = new, push(ex, 2 * generation + 2)
        assert old.read() == first


@pytest.mark.rule("6.15")
def test_an_old_driver_is_fenced_and_its_successor_has_all_rows(server: el.StoreServer) -> None:
    check_an_old_driver_is_fenced(server)


class StreamProcess:
    """A driver of a stream, in a process group of its own with its JVM and its workers."""

    def __init__(self, server: el.StoreServer, checkpoint: Path, notes: Path, *, once: bool) -> None:
        notes.mkdir(exist_ok=True)
        options = {"location": server.location, "token": TOKEN, "query": "q", **LAYOUT}
        settings = {"options": options, "notes": str(notes), "checkpoint": str(checkpoint), "once": once}
        settings["master"] = "local[1]"
        self._notes = notes
        command = [sys.executable, str(PROGRAM), "stream", json.dumps(settings)]
        self.process = subprocess.Popen(command, start_new_session=True)

    def rows(self) -> list[int]:
        file = self._notes / "rows"
        return sorted(map(int, file.read_text().split())) if file.exists() else []

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def error(self) -> str | None:
        file = self._notes / "error"
        return file.read_text() if file.exists() else None


@pytest.mark.rule("6.15")
@pytest.mark.medium
def test_a_driver_that_slept_is_fenced_by_the_next_one(server: el.StoreServer, tmp_path: Path) -> None:
    """It is stopped with its JVM and replaced by a driver with a copy of its checkpoint; then it wakes up."""
    with client_of(server) as ex:
        for consumer in range(2):
            ex.declare(str(consumer), {0: [f"s0.p0.c{consumer}of2"]})
        rows = push(ex, 0)
        old = StreamProcess(server, tmp_path / "old", tmp_path / "by the old one", once=False)
        try:
            wait_until(lambda: set(old.rows()) == rows or old.process.poll() is not None)
            old.signal(signal.SIGSTOP)
            shutil.copytree(tmp_path / "old", tmp_path / "new")
            rows |= push(ex, 1)
            new = StreamProcess(server, tmp_path / "new", tmp_path / "by the new one", once=True)
            assert new.process.wait() == 0 and new.error() is None
            old.signal(signal.SIGCONT)
            push(ex, 2)
            assert old.process.wait() == 0 and old.error() == "Fenced"
        finally:
            with suppress(ProcessLookupError):
                old.signal(signal.SIGKILL)
        last = StreamProcess(server, tmp_path / "new", tmp_path / "by the new one", once=True)
        assert last.process.wait() == 0 and last.error() is None
        assert {10, 11, 20, 21} <= set(last.rows()) <= {0, 1, 10, 11, 20, 21}
        assert len(last.rows()) == len(set(last.rows()))


# ---- the claim -------------------------------------------------------------------------------------------------------


def check_a_repeated_claim_is_one(server: el.StoreServer) -> None:
    """Its answer is lost; the repeated call gets the number of the first."""
    proxy = TcpProxy(int(server.location.rpartition(":")[2]))
    try:
        with client_of(server) as ex, client_of(server, f"grpc://127.0.0.1:{proxy.port}") as far:
            for consumer in ("a", "b"):
                ex.declare(consumer, {0: ["c"]})
            assert ex.claim(["a", "b"]) == {"a": 0, "b": 0}
            ex.consume("a", incarnation=7).close()
            far.declare("a", {0: ["c"]})
            proxy.cut_answer(b"staged.claim")
            assert far.claim(["a", "b"]) == {"a": 8, "b": 1}
            assert proxy.fired.is_set()
            far.acknowledge("a", 8, {})
            for earlier in (0, 7):
                with pytest.raises(el.Fenced):
                    far.acknowledge("a", earlier, {})
    finally:
        proxy.stop()


@pytest.mark.rule("6.15")
def test_a_repeated_claim_gets_the_number_of_the_first(server: el.StoreServer) -> None:
    check_a_repeated_claim_is_one(server)


@pytest.mark.rule("6.15")
def test_a_claim_takes_all_consumers_or_none(server: el.StoreServer) -> None:
    with client_of(server) as ex:
        with pytest.raises(el.QueryNotFound):
            ex.claim(["a"])
        ex.declare("a", {0: ["c"]})
        with pytest.raises(el.InvalidInput, match="has no consumer 'b'"):
            ex.claim(["a", "b"])
        for wrong in ([], ["a", "a"], ["not a name"], [1], "a"):
            with pytest.raises(el.InvalidInput):
                ex.claim(wrong)  # pyright: ignore[reportArgumentType]
        assert ex.claim(["a"]) == {"a": 0}
        ex.consume("a", incarnation=MAX_NUMBER).close()
        with pytest.raises(el.LimitExceeded, match="no incarnation is left"):
            ex.claim(["a"])


def test_a_server_of_an_earlier_version_says_that_it_knows_no_claim(tmp_path: Path, monkeypatch: Patch) -> None:
    """Consumers that bring a number go on: those of an earlier client, and those at an earlier server."""
    actions: Any = StagedExchange.actions
    earlier = property(lambda service: {k: v for k, v in actions.fget(service).items() if k != "staged.claim"})
    with el.open(tmp_path / "store", durability="os") as store:
        with monkeypatch.context() as patch:
            patch.setattr(StagedExchange, "actions", earlier)
            with el.serve(store, token=TOKEN) as server, client_of(server) as ex:
                with pytest.raises(el.InvalidInput, match="no action 'staged.claim'"):
                    Stream(server, None)
                push(ex, 0)
                ex.consume("0", incarnation=0).close()
                ex.acknowledge("0", 0, {"s0.p0.c0of2": 1})
        with el.serve(store, token=TOKEN) as server, client_of(server) as ex:
            ex.acknowledge("0", 0, {"s0.p0.c0of2": 1})
            assert Stream(server, {"s0.p0.c0of2": 1}).read() == {1}
            with pytest.raises(el.Fenced):
                ex.acknowledge("0", 0, {"s0.p0.c0of2": 1})


# ---- planted bugs ----------------------------------------------------------------------------------------------------


def streams_of_one_incarnation(patch: Patch) -> None:
    """As an earlier version: every stream is incarnation 0."""

    def claim(reader: Any) -> dict[str, int]:
        if reader._incarnations is None:
            for consumer in "01":
                reader._client().consume(consumer, 0).close()
            reader._incarnations = {"0": 0, "1": 0}
        return reader._incarnations

    patch.setattr(ExchangeStreamReader, "_claim", claim)


def a_claim_at_the_commit(patch: Patch) -> None:
    """The old stream claims anew with each batch."""
    claim = ExchangeStreamReader._claim

    def claim_again(reader: Any) -> dict[str, int]:
        reader._incarnations = None
        return claim(reader)

    patch.setattr(ExchangeStreamReader, "_claim", claim_again)


def acknowledgements_that_fence_nobody(patch: Patch) -> None:
    plainly = state.with_acknowledgement

    def unfenced(consumer: Any, incarnation: int, cursor: Any, channels: Any) -> Any:
        return plainly(consumer, consumer.incarnation, cursor, channels)

    patch.setattr("epochlog.exchange.staged.transactions.with_acknowledgement", unfenced)


def claims_without_a_claimant(patch: Patch) -> None:
    plainly = state.with_next_claim

    def always(consumer: Any, claimant: str, channels: Any) -> Any:
        return plainly(consumer, claimant + str(consumer.incarnation), channels)

    patch.setattr("epochlog.exchange.staged.transactions.with_next_claim", always)


@pytest.mark.planted
@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (streams_of_one_incarnation, check_an_old_driver_is_fenced),
        (a_claim_at_the_commit, check_an_old_driver_is_fenced),
        (acknowledgements_that_fence_nobody, check_an_old_driver_is_fenced),
        (claims_without_a_claimant, check_a_repeated_claim_is_one),
    ],
)
def test_a_stream_that_is_not_fenced_is_found(
    plant: Callable[[Patch], None],
    check: Callable[[el.StoreServer], None],
    server: el.StoreServer,
    monkeypatch: Patch,
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(server)
