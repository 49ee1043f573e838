"""A peer that reads nothing while messages wait for it: what waits is bounded, and it is cut off or read no more."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

import epochlog as el
from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.coordinator import worker_connection as session_module
from epochlog.checkpoint.coordinator.worker_connection import FRAME, WorkerConnection, memory_bytes
from epochlog.checkpoint.worker.worker import CONTROL
from epochlog.exchange.staged import messages as staged
from epochlog.exchange.staged import push_handler as push_handler_module
from epochlog.exchange.staged.batch_file import encode_batch
from epochlog.exchange.staged.push_handler import PushHandler
from epochlog.exchange.transport.duplex import ClientStream, DuplexStream, Frame
from staged_fixture import TOKEN, batch, served
from wait_until import WAIT_LIMIT_S, wait_until

PART = wire.PartName("load", "l", 0)


class Deaf(DuplexStream):
    """A peer whose connection is full: a send waits until the line is cut."""

    def __init__(self) -> None:
        self.cut, self.sending = threading.Event(), threading.Event()
        super().__init__(None, None, self.cut.set, "peer")

    def send(self, message: bytes) -> bool:
        self.sending.set()
        return not self.cut.wait()


@pytest.mark.medium
def test_messages_for_a_worker_are_bounded_while_a_send_is_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MOST_WAITING", 1 << 20)
    line = Deaf()
    session = WorkerConnection(line, "w")
    session.send(wire.Pong(0))
    line.sending.wait()
    most = 0
    for number in range(2_000):
        session.send(wire.Started(PART, number, b"s" * 1_000, False))
        most = max(most, sum(map(memory_bytes, session._queue)))
    assert most <= 1 << 20 and not session._queue
    assert line.cut.wait(WAIT_LIMIT_S), "it is cut"
    session.join(WAIT_LIMIT_S)
    assert not session._thread.is_alive()


def test_what_was_sent_is_counted_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that reads is never cut, however much is sent to it."""
    monkeypatch.setattr(session_module, "MOST_WAITING", 1 << 16)
    sent: list[bytes] = []
    line = Deaf()
    monkeypatch.setattr(line, "send", lambda frame: (sent.append(frame), True)[1])
    session = WorkerConnection(line, "w")
    for number in range(20):
        for _ in range(50):
            session.send(wire.Pong(number))
        wait_until(lambda: not session._queue and session._bytes == 0)
    assert sum(len(wire.decode(frame)) for frame in sent) == 1_000 and not line.cut.is_set()
    session.join(WAIT_LIMIT_S)


@pytest.mark.medium
def test_a_worker_that_asks_and_does_not_read_is_cut_off(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a real socket: pings, and nobody takes the pongs."""
    monkeypatch.setattr(session_module, "MOST_WAITING", 1 << 20)
    seen: list[int] = []
    plainly = WorkerConnection.send

    def send(self: WorkerConnection, message: wire.Message) -> None:
        plainly(self, message)
        seen.append(self._bytes)

    monkeypatch.setattr(WorkerConnection, "send", send)
    with served(tmp_path) as (_, server):
        line = ClientStream(server.location, CONTROL, token=TOKEN, tls_roots=None)
        line.send(wire.encode([wire.Hello(wire.VERSION, "w")]))
        frame = wire.encode([wire.Ping(1)] * wire.MAX_FRAME)
        while line.send(frame):
            pass
        line.close()
        wait_until(lambda: server.coordinator.workers == 0)
        assert max(seen) <= (1 << 20) + 1_024
    assert len(seen) > FRAME


class Pushes(Deaf):
    """A producer that pushes for ever, and reads no answer."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.read_count = 0
        self._most = most
        self.data = encode_batch(batch("c", 0))

    def read_frame(self) -> Frame | None:
        self.read_count += 1
        if self.read_count > self._most or self.cut.is_set():
            return None
        fields = {"channel": "c", "stage": 0, "seq": 0, "attempt": 0, "wait_ms": 0, "crc32": zlib.crc32(self.data)}
        return Frame(staged.rows_from_file(self.data), staged.pack(id=self.read_count, **fields))


@pytest.fixture
def store(tmp_path: Any) -> Iterator[el.StoreServer]:
    with served(tmp_path) as (_, server):
        yield server


@pytest.mark.medium
def test_a_producer_that_reads_no_answers_is_read_no_further(
    store: el.StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_handler_module, "MAX_ANSWERS", 20)
    line = Pushes(most=100_000)
    handler = PushHandler(store._staged, line, "none")
    serving = threading.Thread(target=handler.serve)
    serving.start()
    wait_until(lambda: handler._answers.qsize() >= 20 and not handler._unanswered_bytes)
    read, answered = line.read_count, handler._answers.qsize() + 1  # the sender holds one answer
    assert read <= answered + 1, "one more push is read, and waits"
    line.cut.set()
    serving.join(WAIT_LIMIT_S)
    assert not serving.is_alive() and line.read_count <= read + 1
