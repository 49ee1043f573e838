"""Rows put by a plain pyarrow client: all of a stream or nothing, once, whatever happens to the client on the way."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
import plain_flight as plain
from epochlog.exchange.flight import put
from epochlog.testing.tcp_proxy import TcpProxy
from wait_until import WAIT_LIMIT_S, wait_until

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
CLIENT_ERRORS = (flight.FlightError, pa.ArrowException, OSError)


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table([ids, [f"name {key}" for key in ids]], schema=SCHEMA)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os") as store:
        store.create_table("orders", SCHEMA, ["id"])
        yield store


@pytest.fixture
def server(store: el.Store) -> Iterator[el.StoreServer]:
    with el.serve(store) as server:
        yield server


@pytest.fixture
def client(server: el.StoreServer) -> Iterator[flight.FlightClient]:
    with plain.connected(server.location) as (client, _):
        yield client


def content(store: el.Store) -> list[int]:
    return store.table("orders").to_arrow(columns=["id"]).column("id").to_pylist()


def files(store: el.Store) -> list[Path]:
    return list(Path(store.root).rglob("*.arrow"))


def idle(server: el.StoreServer) -> bool:
    return server._flights.admission.calls == 0


def test_rows_are_upserted_and_deleted(store: el.Store, client: flight.FlightClient) -> None:
    epoch = plain.put(client, plain.path("orders"), rows(0, 5))
    assert content(store) == [0, 1, 2, 3, 4]
    assert store.table("orders").history().column("epoch").to_pylist() == [epoch]
    keys = pa.table({"id": pa.array([1, 3], pa.int64())})
    assert plain.put(client, plain.command(write="orders", operation="delete"), keys) > epoch
    assert content(store) == [0, 2, 4]
    kinds = pa.array(["delete", "insert", "update_preimage", "update_postimage", "upsert"])
    changes = rows(0, 5).append_column("_change_type", kinds)
    plain.put(client, plain.path("orders"), changes)
    assert content(store) == [1, 2, 3, 4]


@pytest.mark.rule("1.8")
def test_later_batches_win_and_rows_come_in_segments_of_bounded_size(
    store: el.Store, client: flight.FlightClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(put, "GATHERED_BYTES", 100_000)
    writer, answers = client.do_put(plain.path("orders"), SCHEMA)
    for start in range(0, 50_000, 5_000):
        writer.write_table(rows(start // 2, 5_000).set_column(1, "name", pa.array([str(start)] * 5_000)))
    writer.done_writing()
    assert answers.read() is not None
    writer.close()
    assert store.table("orders").history().column("segments").to_pylist()[0] > 5
    columns = store.table("orders").to_arrow().to_pydict()
    assert columns == {
        "id": list(range(27_500)),
        "name": [str(min(key // 2_500, 9) * 5_000) for key in range(27_500)],
    }


@pytest.mark.rule("1.7")
def test_the_same_transaction_twice_lands_once(store: el.Store, client: flight.FlightClient) -> None:
    asked = plain.command(write="orders", txn=["app", 1])
    first = plain.put(client, asked, rows(0, 5))
    assert (
        plain.put(client, asked, rows(100, 50_000)) == first
    )  # a repeat has the same rows; these tell that none is taken
    assert content(store) == [0, 1, 2, 3, 4]
    assert plain.put(client, plain.command(write="orders", txn=["app", 2]), rows(5, 1)) > first
    assert len(files(store)) == 2


@pytest.mark.rule("1.7")
def test_after_a_lost_answer_a_retry_is_told_the_first_epoch(store: el.Store, server: el.StoreServer) -> None:
    proxy = TcpProxy(int(server.location.rpartition(":")[2]))
    asked = plain.command(write="orders", txn=["app", 7])
    with plain.connected(f"grpc://127.0.0.1:{proxy.port}") as (client, _):
        list(client.list_flights())
        proxy.mute(True)
        epochs: list[int] = []

        def lose() -> None:
            with suppress(*CLIENT_ERRORS):
                epochs.append(plain.put(client, asked, rows(0, 5)))

        lost = threading.Thread(target=lose)
        lost.start()
        wait_until(lambda: store.table("orders").history().num_rows == 1)  # delivered and done
        proxy.refuse(True)
        lost.join(WAIT_LIMIT_S)
        assert not lost.is_alive() and not epochs
    proxy.stop()
    first = store.table("orders").history().column("epoch").to_pylist()
    with plain.connected(server.location) as (client, _):
        assert [plain.put(client, asked, rows(0, 5))] == first
    assert store.table("orders").history().num_rows == 1
    assert len(files(store)) == 1


HALF_WAY = """
import sys
import pyarrow as pa
from pyarrow import flight
client = flight.connect(sys.argv[1])
rows = pa.table({"id": pa.array(range(20_000), pa.int64()), "name": ["x"] * 20_000})
writer, answers = client.do_put(flight.FlightDescriptor.for_path("orders"), rows.schema)
writer.write_table(rows)
writer.write_table(rows)
print("half way", flush=True)
while sys.argv[2] == "busy":
    writer.write_table(rows)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["busy", "waiting"])
def test_a_client_killed_half_way_leaves_nothing(
    store: el.Store, server: el.StoreServer, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(put, "GATHERED_BYTES", 200_000)
    child = subprocess.Popen(
        [sys.executable, "-c", HALF_WAY, server.location, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None and child.stdout.readline() == "half way\n"
    wait_until(lambda: bool(files(store)))  # so some of its rows are in a file already
    child.kill()
    child.communicate()
    wait_until(lambda: idle(server))
    assert content(store) == [] and store.table("orders").history().num_rows == 0
    assert not files(store)


def test_a_put_past_its_deadline_leaves_nothing(store: el.Store, server: el.StoreServer) -> None:
    with plain.connected(server.location) as (client, _), pytest.raises(CLIENT_ERRORS):  # noqa: PT012  at any call
        writer, _ = client.do_put(plain.path("orders"), SCHEMA, flight.FlightCallOptions(timeout=1.0))
        writer.write_table(rows(0, 5))
        wait_until(lambda: server._flights.admission.calls == 1)
        wait_until(lambda: idle(server))
        writer.close()
    assert content(store) == [] and not files(store)


def test_a_put_in_the_middle_of_which_the_server_ends_leaves_nothing(store: el.Store) -> None:
    server = el.serve(store)
    with plain.connected(server.location) as (client, _):
        writer, _ = client.do_put(plain.path("orders"), SCHEMA)
        writer.write_table(rows(0, 5))
        wait_until(lambda: server._flights.admission.calls == 1)
        server.shutdown(0.2)
        assert idle(server)
        with pytest.raises(CLIENT_ERRORS):
            writer.close()
    assert content(store) == [] and not files(store)


def test_rows_that_were_announced_must_all_come(store: el.Store, client: flight.FlightClient) -> None:
    """pyarrow closes a writer well on the way out of a failure: only their number tells that rows are missing."""
    asked = plain.command(write="orders", rows=10)
    with pytest.raises(CLIENT_ERRORS, match="10 rows were announced, and 5 came"):
        fail_half_way(client, asked)
    with pytest.raises(CLIENT_ERRORS, match="10 rows were announced, and more came"):
        put_raising(client, asked, rows(0, 11))
    assert content(store) == [] and not files(store)
    plain.put(client, asked, rows(0, 10))
    assert content(store) == list(range(10))


def fail_half_way(client: flight.FlightClient, asked: flight.FlightDescriptor) -> None:
    writer, _ = client.do_put(asked, SCHEMA)
    with writer:
        writer.write_table(rows(0, 5))
        raise ZeroDivisionError


def put_raising(client: flight.FlightClient, asked: flight.FlightDescriptor, table: pa.Table) -> None:
    """Put, and raise the server's reason where pyarrow tells it: at the close."""
    writer, answers = client.do_put(asked, table.schema)
    with suppress(*CLIENT_ERRORS):
        writer.write_table(table)
        writer.done_writing()
    answer = answers.read()
    writer.close()
    raise AssertionError(f"it was taken: {answer}")


WRONG = [
    ({"write": "nope"}, rows(0, 1), "TableNotFound"),
    ({"write": "orders", "epoch": 1}, rows(0, 1), "no key 'epoch'"),
    ({"write": "orders", "txn": "x"}, rows(0, 1), "'txn'"),
    ({"write": "orders", "txn": ["x", -1]}, rows(0, 1), "'txn'"),
    ({"write": "orders", "txn": ["", 1]}, rows(0, 1), "application name"),
    ({"write": "orders", "operation": "drop"}, rows(0, 1), "'operation'"),
    ({"write": "orders", "rows": "5"}, rows(0, 1), "'rows'"),
    ({"read": "orders"}, rows(0, 1), "'write'"),
    ({"write": "orders"}, pa.table({"id": ["x"], "name": ["y"]}), "SchemaMismatch.*'id'"),
    ({"write": "orders"}, pa.table({"id": [1]}), "'name' is missing"),
    ({"write": "orders"}, pa.table({"id": pa.array([None], pa.int64()), "name": ["y"]}), "null"),
    ({"write": "orders"}, rows(0, 1).append_column("more", pa.array([1])), "unknown column 'more'"),
    ({"write": "orders"}, rows(0, 1).append_column("_change_type", pa.array(["x"])), "is not a type of change"),
    ({"write": "orders", "operation": "delete"}, rows(0, 1), "unknown column 'name'"),
    ({"write": "orders"}, rows(0, 0).select([]), "missing"),
]


@pytest.mark.parametrize(("keys", "table", "says"), WRONG)
def test_what_cannot_be_put(
    store: el.Store, client: flight.FlightClient, keys: dict[str, object], table: pa.Table, says: str
) -> None:
    with pytest.raises(CLIENT_ERRORS, match=says) as error:
        put_raising(client, plain.command(**keys), table)
    assert "Traceback" not in str(error.value)
    assert content(store) == [] and not files(store)


def test_a_batch_that_is_unsound_is_refused(store: el.Store, client: flight.FlightClient) -> None:
    offsets = pa.py_buffer(np.array([0, 5_000_000, 3], np.int32).tobytes())
    broken = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"abc")])
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), broken], schema=SCHEMA)
    writer, answers = client.do_put(plain.path("orders"), SCHEMA)
    with suppress(*CLIENT_ERRORS):
        writer.write_table(rows(0, 5))
        writer.write_batch(batch)
        writer.done_writing()
    answers.read()
    with pytest.raises(CLIENT_ERRORS, match="BadMessage"):
        writer.close()
    assert content(store) == [] and not files(store)


def test_the_answer_is_the_epoch_and_nothing_else(client: flight.FlightClient) -> None:
    writer, answers = client.do_put(plain.path("orders"), SCHEMA)
    writer.write_table(rows(0, 5))
    writer.done_writing()
    assert set(json.loads(answers.read().to_pybytes())) == {"epoch"}
    assert answers.read() is None
    writer.close()
