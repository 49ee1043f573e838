"""Streams that are opened again: backoff, final losses, defects, silent servers, and the end in any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, cast

import pytest

from epochlog.errors import AccessDenied, EpochlogError, ServerUnavailable
from epochlog.exchange.transport import reconnecting_stream
from epochlog.exchange.transport.duplex import ClientStream, Frame
from epochlog.exchange.transport.reconnecting_stream import ReconnectingStream
from epochlog.store.env.backoff import Backoff
from wait_until import wait_until

pytestmark = pytest.mark.local_only

SHORT = Backoff(first_s=0.001, limit_s=0.002)
NEVER_S = 1e5


class Line:
    """Stream whose server says what the test puts in; None ends it."""

    def __init__(self, *said: bytes | None) -> None:
        self.peer, self.reason = "grpc://nowhere:1", None
        self.aborted = self.closed = False
        self._said: SimpleQueue[bytes | None] = SimpleQueue()
        for message in said:
            self._said.put(message)

    def read_frame(self) -> Frame | None:
        message = self._said.get()
        return None if message is None else Frame(None, message)

    def abort(self) -> None:
        self.aborted = True
        self._said.put(None)

    def close(self) -> None:
        self.closed = True


class LineUser:
    """Records everything that its stream says; a message `welcome` is an acceptance, `defect` raises."""

    def __init__(self, *lines: Line | EpochlogError, backoff: Backoff = SHORT) -> None:
        self.lines, self.heard, self.losses = list(lines), list[bytes](), list[EpochlogError]()
        self.opened: list[Line] = []
        self.is_wanted = True
        self.on_message: Callable[[], None] = lambda: None
        self.is_final: Callable[[EpochlogError], bool] = lambda error: isinstance(error, AccessDenied)
        self.link = ReconnectingStream(
            "test-stream", backoff, self._connect, self._handle, self._lose, wanted=lambda: self.is_wanted
        )

    def _connect(self) -> ClientStream:
        line = self.lines.pop(0) if self.lines else Line()
        if isinstance(line, EpochlogError):
            raise line
        self.opened.append(line)
        return cast("ClientStream", line)

    def _handle(self, _: ClientStream, frame: Frame) -> bool:
        if frame.message == b"defect":
            raise ZeroDivisionError
        self.heard.append(frame.message or b"")
        self.on_message()
        return frame.message == b"welcome"

    def _lose(self, error: EpochlogError) -> bool:
        self.losses.append(error)
        return self.is_final(error)

    @property
    def alive(self) -> bool:
        return self.link._thread.is_alive()


@contextmanager
def started(client: LineUser) -> Iterator[LineUser]:
    client.link.start()
    try:
        yield client
    finally:
        client.link.close()
        assert not client.alive and all(line.closed for line in client.opened)


def test_it_is_opened_again_after_each_loss_until_a_final_one() -> None:
    refused = AccessDenied("no")
    client = LineUser(Line(b"a", None), ServerUnavailable("away"), Line(b"b", b"c", None), refused, Line(b"d"))
    with started(client):
        wait_until(lambda: not client.alive)
        assert client.heard == [b"a", b"b", b"c"]
        assert [type(loss) for loss in client.losses] == [ServerUnavailable] * 3 + [AccessDenied]
        assert "grpc://nowhere:1 has ended the stream" in str(client.losses[0])
        assert client.link.stream is None


def delays(monkeypatch: pytest.MonkeyPatch, *lines: Line | EpochlogError) -> list[int]:
    """Number of failures in a row after each loss, as the backoff is asked for its delay."""
    counts: list[int] = []
    monkeypatch.setattr(Backoff, "delay_s", lambda _, count: counts.append(count) or 0.0)
    with started(LineUser(*lines, AccessDenied("no"))) as client:
        wait_until(lambda: not client.alive)
    return counts


def counted_from_the_last_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    away = ServerUnavailable("away")
    counts = delays(monkeypatch, away, Line(b"a", None), Line(b"welcome", b"a", None), away)
    assert counts == [1, 2, 1, 2], "a message that is no welcome is no success"


def test_the_backoff_counts_from_the_last_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    counted_from_the_last_acceptance(monkeypatch)


@pytest.mark.planted
@pytest.mark.parametrize("accepted", [False, True])
def test_the_check_of_the_backoff_is_not_blind(monkeypatch: pytest.MonkeyPatch, accepted: bool) -> None:
    """It sees a stream that counts on after an acceptance, and one that takes every opening for one."""
    real = ReconnectingStream._read_stream
    monkeypatch.setattr(ReconnectingStream, "_read_stream", lambda self: (accepted, real(self)[1]))
    with pytest.raises(AssertionError):
        counted_from_the_last_acceptance(monkeypatch)


def test_a_defect_is_a_loss_that_the_client_hears_of() -> None:
    with started(LineUser(Line(b"defect"), Line(b"a"))) as client:
        wait_until(lambda: client.heard == [b"a"])
        assert [type(loss) for loss in client.losses] == [EpochlogError]
        assert isinstance(client.losses[0].__cause__, ZeroDivisionError)


def test_it_is_opened_only_once_it_is_wanted() -> None:
    client = LineUser(Line(b"a"))
    client.is_wanted = False
    with started(client):
        with client.link.changed:
            assert not client.link.changed.wait(0.05) and not client.opened
            client.is_wanted = True
            client.link.changed.notify_all()
        wait_until(lambda: client.heard == [b"a"])


def test_a_close_ends_any_wait() -> None:
    unwanted, waiting = LineUser(), LineUser(ServerUnavailable("away"), backoff=Backoff(NEVER_S, NEVER_S))
    unwanted.is_wanted = False
    reading = LineUser(Line(b"a"))
    with started(unwanted), started(waiting), started(reading):
        wait_until(lambda: waiting.losses and reading.heard)
    assert reading.opened[0].aborted


def test_a_stream_that_opens_after_the_close_is_aborted() -> None:
    client, going = LineUser(Line()), threading.Event()
    plainly = client.link._connect

    def slow() -> Any:
        going.wait()
        return plainly()

    client.link._connect = slow
    with started(client):
        closing = threading.Thread(target=client.link.close)
        closing.start()
        wait_until(lambda: client.link.closed)
        going.set()
        closing.join()
        assert client.opened[0].aborted


def test_it_may_be_closed_by_its_own_thread() -> None:
    client = LineUser(Line(b"a"))
    client.on_message = client.link.close
    with started(client):
        wait_until(lambda: not client.alive)
        assert client.opened[0].aborted and len(client.opened) == 1


def test_a_silent_stream_is_aborted_by_the_time_of_its_last_message(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 10.0
    monkeypatch.setattr(reconnecting_stream, "monotonic_s", lambda: now_s)
    line = Line(b"a")
    with started(LineUser(line)) as client:
        wait_until(lambda: client.heard)
        now_s = 14.0
        line._said.put(b"b")
        wait_until(lambda: len(client.heard) == 2)
        now_s = 19.0
        with client.link.changed:
            client.link.abort_if_silent(5.0)
            assert not line.aborted
            client.link.abort_if_silent(4.9)
        wait_until(lambda: line.closed)
        assert line.aborted
