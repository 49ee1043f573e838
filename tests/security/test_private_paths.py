"""Readers are not told where anything lies at the server: whatever is damaged, gone or refused there, no message,
descriptor or metadata names its root, its folders or its files; the server's own log does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
from control_fixture import attach, open_worker, rows, served
from endpoints import READ_TOKEN, ROWS, TOKEN, Stranger, bearer, error_of, every_method, every_service
from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.coordinator import coordinator, managed_jobs
from epochlog.checkpoint.coordinator.worker_connection import WorkerConnection
from epochlog.exchange import ExchangeClient
from epochlog.exchange.transport.errors import MAX_ERROR_TEXT, encode_error
from epochlog.store.env.local_folder import LocalFiles
from epochlog.store.sst import data_file
from wait_until import WAIT_LIMIT_S, wait_until

pytestmark = pytest.mark.local_only
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
Fault = Callable[[Path, pytest.MonkeyPatch], object]


def spoil(root: Path, _: pytest.MonkeyPatch) -> None:
    for file in root.rglob("*.arrow"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 255
        file.unlink()
        file.write_bytes(data)


def remove(root: Path, _: pytest.MonkeyPatch) -> None:
    for file in root.rglob("*.arrow"):
        file.unlink()


def cut_short(root: Path, _: pytest.MonkeyPatch) -> None:
    for file in root.rglob("*.arrow"):
        data = file.read_bytes()
        file.unlink()
        file.write_bytes(data[: len(data) // 2])


def refuse(root: Path, patch: pytest.MonkeyPatch) -> None:
    """As a full table of open files does."""

    def refused(self: LocalFiles, path: str) -> Any:
        raise el.ReadFailed(f"{root}/{path} cannot be read: too many open files")

    for name in ("read", "stamp"):
        patch.setattr(LocalFiles, name, refused)


def fail(root: Path, patch: pytest.MonkeyPatch) -> None:
    """A defect, whose text would name everything."""

    def failed(self: LocalFiles, path: str) -> Any:
        raise ZeroDivisionError(f"{root}/{path}")

    patch.setattr(LocalFiles, "read", failed)


def nothing(root: Path, _: pytest.MonkeyPatch) -> None:
    pass


DAMAGES = [pytest.param(fault, marks=pytest.mark.damages_store) for fault in (spoil, remove, cut_short)]
FAULTS = [nothing, *DAMAGES, refuse, fail]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "a_secret_place", durability="os") as store:
        store.create_table("orders", SCHEMA, ["id"]).upsert(ROWS)
        yield store
        data_file._verified.clear()


def words(store: el.Store) -> list[str]:
    """List the words that no reader may see: the root, the store's id, and the names of its files."""
    files = [path.name for path in Path(store.root).rglob("*.arrow")]
    return ["a_secret_place", store._handle.store_id, "/t0000", *files]


def heard(server: el.StoreServer, token: str) -> Iterator[tuple[str, str]]:
    """All that somebody with this token is told, by what he asked for."""
    with Stranger(server.location, bearer(token), timeout_s=20) as stranger:
        asked: dict[str, Callable[[], Any]] = {**every_method(stranger), **every_service(stranger, server)}
        for command in (b'{"read": "orders"}', b'{"changes": "orders", "after": 0}', b'{"read": "a_table_of_none"}'):
            about = flight.FlightDescriptor.for_command(command)

            def get(about: flight.FlightDescriptor = about) -> str:
                info = stranger.info(about)
                rows = [error_of(stranger.get, each.ticket.ticket) for each in info.endpoints]
                tickets = [each.serialize() for each in info.endpoints]
                return f"{info} {info.serialize()!r} {tickets} {rows}"

            asked[f"get {command.decode()}"] = get
            asked[f"schema {command.decode()}"] = lambda about=about: stranger.schema(about)
        for name, call in asked.items():
            yield name, repr(error_of(call)) if name not in asked or "get {" not in name else outcome_of(call)
    with el.connect(server.location, token=token) as client:
        for name, call in {
            "client.tables": lambda: list(client.tables()),
            "client.snapshot": lambda: client.snapshot("orders").read_all(),
            "client.changes": lambda: client.changes("orders", 0).read_all(),
            "client.subscribe": lambda: first(client.subscribe("orders", reconnect=0.1)),
        }.items():
            yield name, outcome_of(call)


def first(sub: Any) -> Any:
    with closing(sub):
        return next(iter(sub))


def outcome_of(call: Callable[[], Any]) -> str:
    try:
        return str(call())
    except Exception as error:
        return f"{type(error).__name__} {error} {error.__cause__!r} {error.__context__!r}"


@pytest.mark.medium
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_no_reader_is_told_a_place(
    store: el.Store, fault: Fault, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = words(store)
    with el.serve(store, token=TOKEN, read_token=READ_TOKEN) as server:
        data_file._verified.clear()
        with monkeypatch.context() as patch:
            fault(Path(store.root), patch)
            failed = 0
            for token in (READ_TOKEN, TOKEN):
                for name, text in heard(server, token):
                    shown = [word for word in secret if word in text]
                    assert not shown, f"{name} tells {shown}: {text}"
                    failed += "damaged" in text or "failed" in text
            assert (failed > 0) == (fault is not nothing), "the fault was not met"
    assert fault in (nothing, fail) or "a_secret_place" in caplog.text or "/t0000" in caplog.text, "its log tells"


@pytest.mark.medium
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_no_consumer_of_a_staged_query_is_told_a_place(
    store: el.Store, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        el.serve(store, token=TOKEN) as server,
        ExchangeClient(server.location, token=TOKEN, query="q", timeout=20) as ex,
    ):
        ex.declare("c", {0: ["only"]})
        ex.push("only", 0, 0, pa.record_batch({"a": [1]}))
        ex.end("only", 0)
        secret = words(store)
        with monkeypatch.context() as patch:
            fault(Path(store.root), patch)
            with ex.consume("c", incarnation=0) as mail:
                text = outcome_of(lambda: mail.poll(2 if fault in (refuse, fail) else WAIT_LIMIT_S))
        assert not [word for word in secret if word in text], text
        assert fault in (nothing, refuse, fail) or "sequence 0 of channel 'only' is damaged" in text, text


PATH = f"/srv/lake/{'0' * 32}/t00000001/{'1' * 32}-{'2' * 32}.arrow"


@pytest.mark.parametrize(
    "error", [el.SegmentUnknown(f"segment {PATH} is gone"), el.Corrupt(PATH, "odd"), el.WriteFailed(f"{PATH}: no")]
)
def test_whatever_the_error_no_path_is_told(error: el.EpochlogError) -> None:
    name, text = encode_error(error)
    assert name == type(error).__name__ and "t0000" not in text and "srv" not in text


def attach_fails(patch: pytest.MonkeyPatch, fail: Callable[..., Any]) -> None:
    patch.setattr(coordinator, "make_managed_job", fail)


def state_fails(patch: pytest.MonkeyPatch, fail: Callable[..., Any]) -> None:
    patch.setattr(managed_jobs.LoadTask, "state", fail)


def commit_fails(patch: pytest.MonkeyPatch, fail: Callable[..., Any]) -> None:
    patch.setattr(managed_jobs.LoadTask, "commit", fail)


def decision_fails(patch: pytest.MonkeyPatch, fail: Callable[..., Any]) -> None:
    patch.setattr(managed_jobs.LoadTask, "decide", fail)


@pytest.mark.parametrize(
    ("where", "error"),
    [
        (attach_fails, el.ReadFailed(f"{PATH} cannot be read: too many open files")),
        (attach_fails, el.InvalidInput(f"{PATH} is odd")),
        (state_fails, el.CatalogUnavailable("redis://user@10.0.0.7/t0000 does not answer")),
        (commit_fails, el.CatalogUnavailable("/srv/lake/t0000: disk full")),
        (commit_fails, el.SegmentUnknown(f"segment {PATH} is gone")),
        (decision_fails, el.Fenced(f"{PATH} is another's")),
        (commit_fails, el.TableFinished(f"{PATH} ended")),
    ],
)
def test_no_worker_is_told_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Callable[..., None], error: el.EpochlogError
) -> None:
    """A coordinator's messages on the control connection are redacted like errors of calls."""
    shown: list[str] = []
    send = WorkerConnection.send

    def sent(self: WorkerConnection, message: wire.Message) -> None:
        shown.append(str(getattr(message, "reason", "")))
        send(self, message)

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(WorkerConnection, "send", sent)
    with served(tmp_path) as (store, server), open_worker(server, store) as client:
        where(monkeypatch, fail)
        with suppress(el.EpochlogError):
            part = attach(client)
            part.writer("clicks").upsert(rows(1))
            wait_until(lambda: any(shown), part)
        wait_until(lambda: any(shown))
        reasons = [text for text in shown if text]
        assert not [text for text in reasons if "srv" in text or "t0000" in text or "10.0.0.7" in text], reasons


def test_what_is_no_path_is_told_as_it_is() -> None:
    text = "table 'orders': a/b is no column; there are id, v"
    assert encode_error(el.InvalidInput(text)) == ("InvalidInput", text)


def test_a_long_text_costs_what_its_length_does() -> None:
    """A stranger sends such a name of a policy; this was quadratic, and would not end today."""
    text = "x" * 3_000_000
    assert encode_error(el.InvalidInput(text)) == ("InvalidInput", text[:MAX_ERROR_TEXT])
    assert encode_error(el.InvalidInput(f"{text} {PATH}: {PATH}"[-500:]))[1].endswith(" a file: a file")


@pytest.mark.logs("call_failed")
def test_a_call_that_meets_a_broken_disk_is_logged(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with el.serve(store, token=TOKEN) as server, el.connect(server.location, token=TOKEN) as client:
        data_file._verified.clear()
        with monkeypatch.context() as patch:
            refuse(Path(store.root), patch)
            with pytest.raises(el.EpochlogError, match="own log"):
                client.snapshot("orders").read_all()
