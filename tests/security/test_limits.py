"""The stated limits of what is served, each at its last good value and one past it. Those of tables are tested beside
their rules (store/test_schema.py, batch/test_snapshot.py), those of one record batch in exchange/test_validation.py.
"""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
from endpoints import READ_TOKEN, ROWS, TOKEN, bearer, error_of
from epochlog.errors import BadMessage, InvalidInput, LimitExceeded
from epochlog.exchange import server as exchange_server
from epochlog.exchange.flight import service
from epochlog.exchange.server import MAX_ACTION, MAX_COMMAND
from epochlog.exchange.staged import messages, state
from epochlog.exchange.staged.batch_file import encode_batch
from epochlog.exchange.transport.admission import AdmissionLimits
from epochlog.exchange.transport.connections import ConnectionLimits
from epochlog.exchange.transport.duplex import MAX_MESSAGE, ClientStream, connect, run_action
from epochlog.exchange.transport.message_fields import MAX_NUMBER
from epochlog.store.changelog import consumers
from epochlog.store.changelog.consumers import open_consumer
from epochlog.store.types.coerce import MAX_BATCH_BYTES, conform_table
from wait_until import wait_until

pytestmark = pytest.mark.local_only
OF_ITS_OWN = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
"""Else all clients of a process share one connection, and a slow machine buffers whole streams in windows that grow."""


@pytest.mark.parametrize("what, longest", [("table", 63), ("query", 63)])
def test_names(tmp_path: Path, what: str, longest: int) -> None:
    def make(name: str) -> None:
        if what == "query":
            state.check_name("a query", name)
        else:
            with el.open(tmp_path / "s", durability="os") as store:
                store.create_table(name, pa.schema([("id", pa.int64())]), ["id"])

    make("a" * longest)
    for wrong in ("a" * (longest + 1), "", "a/b", "..", "a\0", "a b", "é"):
        with pytest.raises(InvalidInput):
            make(wrong)


def stages_of(count: int) -> dict[int, tuple[str, ...]]:
    return {0: tuple(f"ch{number}" for number in range(count))}


def test_channels_of_a_query() -> None:
    query = state.StagedQuery("q", {}, frozenset(), 1, 1, 1)
    most = state.StageConsumer("c", stages_of(state.MAX_CHANNELS))
    full = state.with_consumer(query, None, most, {})
    with pytest.raises(LimitExceeded):
        state.with_consumer(full, None, state.StageConsumer("d", {1: ("one_more",)}), {})
    assert messages.stages([[0, list(most.stages[0])]]) == most.stages
    with pytest.raises(BadMessage):
        messages.stages([[0, [*most.stages[0], "one_more"]]])


def test_sequences_behind_a_missing_one() -> None:
    channel = state.Channel("ch", 0, ahead=tuple(range(2, state.MAX_AHEAD + 1)))
    full = state.with_push(channel, 1, 1, 0)
    assert len(full.ahead) == state.MAX_AHEAD
    with pytest.raises(LimitExceeded, match="push 0 first"):
        state.with_push(full, state.MAX_AHEAD + 1, 1, 0)
    assert state.with_push(full, 0, 1, 0).next == state.MAX_AHEAD + 1


def test_numbers_of_a_staged_exchange() -> None:
    assert (
        messages.seq(state.MAX_SEQ) == state.MAX_SEQ
        and messages.number(MAX_NUMBER)
        and messages.stage(-messages.MAX_STAGE)
    )
    for check, wrong in (
        (messages.seq, state.MAX_SEQ + 1),
        (messages.number, MAX_NUMBER + 1),
        (messages.stage, -(1 << 31) - 1),
    ):
        with pytest.raises(BadMessage):
            check(wrong)


def test_bytes_of_a_pushed_batch() -> None:
    def batch(size: int) -> pa.RecordBatch:
        return pa.record_batch({"a": np.zeros(size, np.int8)})

    overhead = encode_batch(batch(64)).size - 64
    most = (messages.MAX_BATCH - overhead) // 64 * 64
    assert encode_batch(batch(most)).size <= messages.MAX_BATCH
    with pytest.raises(LimitExceeded, match="several"):
        encode_batch(batch(messages.MAX_BATCH - 63))


def test_consumers_that_readers_make_leave_a_quarter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are kept in the catalog for as long as a reader asks: with all of them taken no writer's job could read."""
    assert consumers.MOST_FOR_READERS == 750
    monkeypatch.setattr(consumers, "MOST_CONSUMERS", 4)
    monkeypatch.setattr(consumers, "MOST_FOR_READERS", 3)

    def subscribed(location: str, token: str, name: str) -> None:
        with el.connect(location, token=token) as client, client.subscribe("t", consumer=name, reconnect=0.1) as sub:
            next(iter(sub))

    with el.open(tmp_path / "s", durability="os") as store:
        store.create_table("t", ROWS.schema, ["id"]).upsert(ROWS)
        with el.serve(store, token=TOKEN, read_token=READ_TOKEN) as server:
            for name in ("a", "b", "c"):
                subscribed(server.location, READ_TOKEN, name)
            with pytest.raises(
                LimitExceeded, match=r"3 consumers already, and the last 1 places are for callers with write access"
            ):
                subscribed(server.location, READ_TOKEN, "d")
            subscribed(server.location, READ_TOKEN, "a")  # what is there is read on
            subscribed(server.location, TOKEN, "of_an_owner")
            with pytest.raises(LimitExceeded, match=r"there are 4 consumers already; drop one"):
                subscribed(server.location, TOKEN, "e")
        store.drop_consumer("a")
        open_consumer(store._handle, "of_the_store_itself", ["t"]).close()


@pytest.mark.medium
@pytest.mark.parametrize("token", [READ_TOKEN, TOKEN])
def test_gets_count_for_their_connection_until_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    """do_get returns at once; what it gives goes on for as long as the client likes."""
    monkeypatch.setattr(exchange_server, "ConnectionLimits", partial(ConnectionLimits, calls_of_one=3))
    unlimited = partial(AdmissionLimits, in_flight_bytes=1 << 30, stall_s=3600.0)  # no call waits for memory or ends
    monkeypatch.setattr(service, "AdmissionLimits", unlimited)
    wide = pa.table({"id": range(16_384), "v": [f"{client:08d}" * 512 for client in range(16_384)]})
    options, path = flight.FlightCallOptions(headers=bearer(token)), flight.FlightDescriptor.for_path("wide")
    with el.open(tmp_path / "s", durability="os") as store, ExitStack() as stack:
        store.create_table("wide", wide.schema, ["id"]).upsert(wide)
        server = stack.enter_context(el.serve(store, token=TOKEN, read_token=READ_TOKEN))
        client, other_client = (
            stack.enter_context(closing(flight.connect(server.location, generic_options=OF_ITS_OWN))) for _ in range(2)
        )
        ticket = client.get_flight_info(path, options).endpoints[0].ticket

        def count_rows(caller: flight.FlightClient) -> int:
            return caller.do_get(ticket, options).read_all().num_rows

        streams = [client.do_get(ticket, options) for _ in range(3)]
        for stream in streams:
            stream.read_chunk()
        with pytest.raises(flight.FlightError, match="LimitExceeded.*3 of them over this connection"):
            count_rows(client)
        with pytest.raises(flight.FlightError, match="LimitExceeded"):
            list(client.list_flights(options=options))
        assert count_rows(other_client) == wide.num_rows
        streams[0].read_all()
        wait_until(lambda: error_of(count_rows, client) is None)
        for stream in streams[1:]:
            stream.cancel()
        wait_until(lambda: not server._server.callers._calls)


def test_bytes_of_one_upsert() -> None:
    """Counted before anything is copied; the limit is that of one Arrow array."""
    assert np.iinfo(np.int32).max == MAX_BATCH_BYTES
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
    column = pa.chunked_array([pa.array(np.zeros(1 << 20, np.int64))] * 128)  # the same megabytes over and over
    whole = pa.table([column, column], schema=schema)
    assert whole.nbytes == MAX_BATCH_BYTES + 1
    with pytest.raises(LimitExceeded, match="several smaller batches"):
        conform_table("t", whole, schema, ["id"])


def test_bytes_of_actions_commands_and_messages(tmp_path: Path) -> None:
    with el.open(tmp_path / "s", durability="os") as store, el.serve(store) as server:

        def call(size: int) -> Exception:
            client = connect(server.location)
            try:
                run_action(client, server.location, "stop", bytes(size), token=None, timeout_s=300)
            except el.EpochlogError as error:
                return error
            finally:
                client.close()
            raise AssertionError

        assert "at most" not in str(call(MAX_ACTION))
        assert "at most" in str(call(MAX_ACTION + 1))
        for size, message in ((MAX_COMMAND, "subscription"), (MAX_COMMAND + 1, "no exchange")):
            line = ClientStream(server.location, b"subscribe:".ljust(size), token=None, tls_roots=None)
            assert line.read() is None
            assert message in str(line.reason)
            line.close()
        line = ClientStream(server.location, b"control", token=None, tls_roots=None, limit=2 * MAX_MESSAGE)
        line.send(bytes(MAX_MESSAGE + 1))
        assert line.read() is None
        assert isinstance(line.reason, BadMessage), line.reason
        line.close()


def test_open_snapshots(tmp_path: Path) -> None:
    with el.open(tmp_path / "s", durability="os") as store:
        store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
        taken = [store.snapshot(["t"], consistency="latest") for _ in range(1_000)]
        with pytest.raises(LimitExceeded, match="1,?000"):
            store.snapshot(["t"], consistency="latest")
        taken.pop().close()
        taken.append(store.snapshot(["t"], consistency="latest"))
        for snapshot in taken:
            snapshot.close()
