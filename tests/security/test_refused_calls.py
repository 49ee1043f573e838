"""Refused calls leave a line in the log and a count in the metrics, and a flood of them leaves few lines."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from endpoints import READ_TOKEN, TOKEN, Stranger, bearer, error_of
from epochlog.exchange.transport import refusals
from epochlog.exchange.transport.refusals import LINE_EVERY_S, MOST_HOSTS, Refusals
from logged_events import logged

pytestmark = pytest.mark.local_only


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "store") as store:
        yield store


@pytest.fixture
def server(store: el.Store) -> Iterator[el.StoreServer]:
    store.create_table("t", pa.schema([pa.field("id", pa.int64(), nullable=False)]), ["id"])
    with el.serve(store, "grpc://127.0.0.1:0", token=TOKEN, read_token=READ_TOKEN, ui="127.0.0.1:0") as server:
        yield server


def status(url: str, form: dict[str, str] | None = None) -> int:
    data = None if form is None else urllib.parse.urlencode(form).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.logs("call_refused")
def test_each_refusal_is_counted_and_logged(server: el.StoreServer, caplog: pytest.LogCaptureFixture) -> None:
    with Stranger(server.location, bearer("another")) as stranger:
        assert error_of(stranger.list) and error_of(stranger.list)
    with Stranger(server.location, bearer(READ_TOKEN)) as reader:
        assert error_of(reader.put)
        assert error_of(reader.list) is None
    assert server.ui_location is not None
    assert status(f"{server.ui_location}status.json") == 401
    assert status(f"{server.ui_location}sign-in", {"token": "another"}) == 403
    counts = {
        line.partition("{")[2].partition("}")[0]: float(line.rpartition(" ")[2])
        for line in server.metrics().splitlines()
        if line.startswith("epochlog_calls_refused_total{")
    }
    assert counts == {
        'door="flight",reason="token"': 2,
        'door="flight",reason="role"': 1,
        'door="page",reason="session"': 1,
        'door="page",reason="token"': 1,
    }
    events = [(event["door"], event["reason"], event["host"]) for event in logged(caplog, "call_refused")]
    assert sorted(events) == [
        ("flight", "role", "127.0.0.1"),
        ("flight", "token", "unknown"),
        ("page", "session", "127.0.0.1"),
        ("page", "token", "127.0.0.1"),
    ], "one line a minute"
    assert not any(secret in caplog.text for secret in (TOKEN, READ_TOKEN, "another"))


def test_a_limit_is_a_refusal(store: el.Store, caplog: pytest.LogCaptureFixture) -> None:
    noted = Refusals(store._handle)
    noted.note_error(el.LimitExceeded("too many calls"), "10.0.0.1")
    noted.note_error(el.TableNotFound("t"), "10.0.0.1")
    assert [(event["reason"], event["host"]) for event in logged(caplog, "call_refused")] == [("limit", "10.0.0.1")]


def test_a_flood_leaves_one_line_a_minute_and_little_memory(store: el.Store, caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    noted = Refusals(store._handle, lambda: now_s)
    for _ in range(500):
        noted.note("page", "token", "10.0.0.1")
    now_s = LINE_EVERY_S
    noted.note("page", "token", "10.0.0.1")
    assert [event["calls"] for event in logged(caplog, "call_refused")] == [1, 500]
    for host in range(2 * MOST_HOSTS):
        noted.note("page", "token", f"10.0.{host}.1")
    assert len(noted._lines) <= MOST_HOSTS


@pytest.mark.planted
def test_planted_error_of_silence_is_found(
    server: el.StoreServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals.Refusals, "note_error", lambda self, error, host: None)
    with pytest.raises(AssertionError):
        test_each_refusal_is_counted_and_logged(server, caplog)
