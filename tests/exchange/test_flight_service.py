"""Flights as a plain pyarrow client sees them: what is listed, asked for, got, renewed and cancelled."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
import plain_flight as plain
from epochlog.exchange.flight import planner
from epochlog.exchange.flight.leases import FlightLeases, FlightPart, LeasedFlight
from epochlog.exchange.flight.planner import Check, Chosen
from epochlog.exchange.flight.service import FlightDesk
from epochlog.exchange.server import Server
from epochlog.exchange.transport.admission import AdmissionLimits
from epochlog.store.changelog import raw_replay
from epochlog.store.changelog.footprint import Footprint
from epochlog.store.retention.holds import all_holds

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.float64()), ("name", pa.string())])


class HandClock:
    """Unix milliseconds that pass when told to."""

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


def rows(ids: Any) -> pa.Table:
    keys = np.asarray(ids)
    return pa.table([keys, keys / 7, [f"name {key}" for key in keys.tolist()]], schema=SCHEMA)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[el.Store]:
    """Orders in five commits, one of them large enough to be replayed as it lies, with updates and deletes."""
    with el.open(tmp_path_factory.mktemp("flights") / "s", durability="os") as store:
        orders = store.create_table("orders", SCHEMA, ["id"])
        orders.upsert(rows(range(20_000)))
        orders.upsert(rows(range(50, 60)))
        orders.delete(pa.table({"id": [3, 4]}))
        orders.upsert(rows(range(10, 30_000, 3)))
        with store.transaction() as tx:
            tx.delete("orders", pa.table({"id": list(range(0, 40_000, 2))}))
            tx.upsert("orders", rows([1, 40_001]))
        store.create_table("empty", SCHEMA, ["id"])
        yield store


@pytest.fixture(scope="module")
def client(store: el.Store) -> Iterator[flight.FlightClient]:
    with el.serve(store) as server, plain.connected(server.location) as (client, _):
        yield client


def epochs(store: el.Store) -> list[int]:
    return sorted(store.table("orders").history().column("epoch").to_pylist())


def test_each_table_is_listed_with_its_columns_and_newest_epoch(store: el.Store, client: flight.FlightClient) -> None:
    infos = {info.descriptor.path[0].decode(): info for info in client.list_flights()}
    assert list(infos) == ["empty", "orders"]
    assert infos["orders"].schema == store.table("orders").schema
    assert json.loads(infos["orders"].app_metadata) == {"epoch": epochs(store)[-1]}
    assert infos["orders"].endpoints == [] and infos["orders"].total_records == -1
    assert [info.descriptor.path for info in client.list_flights(b"or")] == [[b"orders"]]
    with pytest.raises(flight.FlightError, match="64 bytes"):
        list(client.list_flights(b"x" * 65))


def test_a_path_is_the_newest_state(store: el.Store, client: flight.FlightClient) -> None:
    info = client.get_flight_info(plain.path("orders"))
    assert info.descriptor == plain.path("orders") and info.ordered
    assert plain.read(client, plain.path("orders")).equals(store.table("orders").to_arrow())
    assert plain.read(client, plain.path("empty")).equals(SCHEMA.empty_table().cast(store.table("empty").schema))
    assert client.get_flight_info(plain.path("empty")).total_records == 0


@pytest.mark.parametrize("columns", [None, ["name"], ["value", "id"]])
def test_a_read_at_every_epoch(store: el.Store, client: flight.FlightClient, columns: list[str] | None) -> None:
    for epoch in epochs(store):
        result = plain.read(client, plain.command(read="orders", epoch=epoch, columns=columns))
        assert result.equals(store.table("orders").to_arrow(epoch=epoch, columns=columns))


def test_reads_by_policy(store: el.Store, client: flight.FlightClient) -> None:
    first, *_, last = epochs(store)
    token = store.snapshot(["orders"], consistency="exact", epochs_or_token={"orders": first}).token
    for keys, epoch in (
        ({"consistency": "latest"}, last),
        ({"consistency": "exact", "options": {"epochs_or_token": token}}, first),
        ({"consistency": "at_least", "options": {"epoch": first, "timeout": 1}}, last),
    ):
        info = client.get_flight_info(plain.command(read="orders", **keys))
        assert json.loads(info.app_metadata)["epoch"] >= epoch
        result = client.do_get(info.endpoints[0].ticket).read_all()
        assert result.equals(store.table("orders").to_arrow(epoch=epoch))


@pytest.mark.medium
@pytest.mark.parametrize("mode", ["epochs", "net"])
@pytest.mark.parametrize("pre_images", [False, True])
@pytest.mark.parametrize(("columns", "parts"), [(None, 1), (["name"], 3), ([], 100)])
def test_the_log_in_all_modes_over_all_ranges(
    store: el.Store,
    client: flight.FlightClient,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    pre_images: bool,
    columns: list[str] | None,
    parts: int,
) -> None:
    monkeypatch.setattr(planner, "PART_ROWS", 50_000 // parts)
    monkeypatch.setattr(raw_replay, "WORTH_ROWS", 2_000)
    table, ends = store.table("orders"), [0, *epochs(store)]
    pairs = [(0, None), *((a, b) for place, a in enumerate(ends) for b in ends[place:])] if parts == 3 else [(0, None)]
    for after, until in pairs:
        asked = {"mode": mode, "pre_images": pre_images, "columns": columns}
        descriptor = plain.command(changes="orders", after=after, until=until, **asked)
        info = client.get_flight_info(descriptor)
        changes = plain.read(client, descriptor)
        assert changes.equals(table.changes(after, until, **asked).read_all())
        assert info.total_records in (-1, changes.num_rows)
        assert client.get_schema(descriptor).schema == info.schema == changes.schema
        assert parts == 1 or (after, until) != (0, None) or len(info.endpoints) > 1
        plain.cancel(client, info)


def test_parts_by_key_range_are_in_key_order(
    store: el.Store, client: flight.FlightClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "PART_ROWS", 4_000)
    info = client.get_flight_info(plain.path("orders"))
    parts = [client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints]
    assert len(parts) > 3 and sum(part.num_rows > 0 for part in parts) > 3
    assert pa.concat_tables(parts).equals(store.table("orders").to_arrow())
    monkeypatch.setattr(planner, "PART_ROWS", 1)
    assert len(client.get_flight_info(plain.path("orders")).endpoints) <= planner.MAX_PARTS


BAD = [
    (flight.FlightDescriptor.for_path("a", "b"), "one table"),
    (flight.FlightDescriptor.for_path("ünbekannt"), "ASCII"),
    (flight.FlightDescriptor.for_path("nope"), "TableNotFound"),
    (flight.FlightDescriptor.for_command(b""), "JSON"),
    (flight.FlightDescriptor.for_command(b"[" * 60_000), "JSON"),
    (flight.FlightDescriptor.for_command(b" " * 65_537), "65536 bytes"),
    (flight.FlightDescriptor.for_command(b'{"read": "orders", "read": "orders"}'), "twice"),
    (flight.FlightDescriptor.for_command(b"\xff\xfe"), "JSON"),
    (plain.command(), "'read' or 'changes'"),
    (plain.command(read="orders", after=1), "no key 'after'"),
    (plain.command(read="orders", epoch=-1), "'epoch'"),
    (plain.command(read="orders", epoch=True), "'epoch'"),
    (plain.command(read="orders", epoch=1, consistency="latest"), "leave out"),
    (plain.command(read=["orders"]), "'read'"),
    (plain.command(read="orders", columns="id"), "'columns'"),
    (plain.command(read="orders", columns=["nope"]), "no column"),
    (plain.command(changes="orders"), "'after'"),
    (plain.command(changes="orders", after=0, mode="x"), "'mode'"),
    (plain.command(changes="orders", after=0, pre_images=1), "'pre_images'"),
    (plain.command(changes="../orders", after=0), "TableNotFound"),
    (plain.command(write="orders"), "'read' or 'changes'"),
]
OF_INFO_ONLY = [
    (plain.command(read="orders", consistency="nope"), "unknown consistency policy"),
    (plain.command(read="orders", options={"x": 1}), "its default, aligned, takes no x"),
    (plain.command(read="orders", consistency="at_least", options={"epoch": 1, "timeout": 31}), "30 s"),
    (plain.command(changes="orders", after=5, until=4), "inverted"),
    (plain.command(read="orders", epoch=1 << 52), "EpochNotCommitted"),
]


@pytest.mark.parametrize(("descriptor", "says"), [*BAD, *OF_INFO_ONLY])
def test_what_cannot_be_asked_for(client: flight.FlightClient, descriptor: flight.FlightDescriptor, says: str) -> None:
    calls: list[Callable[[], Any]] = [lambda: client.get_flight_info(descriptor)]
    if (descriptor, says) in BAD:
        calls.append(lambda: client.get_schema(descriptor))
    for call in calls:
        with pytest.raises((flight.FlightError, pa.ArrowException)) as error:
            call()
        assert says in str(error.value)
        assert "Traceback" not in str(error.value) and ".py" not in str(error.value)


def test_what_an_endpoint_reads_stays_until_it_is_cancelled(tmp_path: Path) -> None:
    with el.open(tmp_path / "s", durability="os") as store, el.serve(store) as server:
        options = el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0))
        table = store.create_table("t", SCHEMA, ["id"], options=options)
        table.upsert(rows(range(100)))
        with plain.connected(server.location) as (client, _):
            old, log = table.to_arrow(), table.changes(0).read_all()
            infos = [client.get_flight_info(d) for d in (plain.path("t"), plain.command(changes="t", after=0))]
            for _ in range(3):
                table.upsert(rows(range(50)))
                store.compact("t", full=True)
                store.vacuum(grace=0)
            for info, wanted in zip(infos, (old, log), strict=True):
                assert client.do_get(info.endpoints[0].ticket).read_all().equals(wanted)
            assert not store.vacuum(grace=0, dry_run=True).deleted
            for info in infos:
                assert plain.cancel(client, info) == b"\x08\x01"  # CANCELLED
                assert plain.cancel(client, info) == b"\x08\x03"  # there is nothing left to cancel
                with pytest.raises(flight.FlightError, match="TicketRefused"):
                    client.do_get(info.endpoints[0].ticket).read_all()
            assert held_by_flights(store) == 0
            store.compact("t", full=True)
            assert store.vacuum(grace=0).deleted


def held_by_flights(store: el.Store) -> int:
    holders = store._handle.catalog.read(lambda view: [hold.holder for _, hold in all_holds(view)])
    return sum(holder.startswith(("flight:", "snapshot:")) for holder in holders)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[tuple[el.Store, FlightDesk, HandClock, Server]]:
    """A server whose flights last ten virtual seconds, three at most."""
    clock = HandClock()
    with el.open(tmp_path / "s", durability="os") as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(rows(range(10)))

        def choose(table: str, consistency: str, options: Any, check: Check) -> Chosen:
            snapshot = store.snapshot([table], consistency=consistency, **options)
            return Chosen(snapshot[table].plan, snapshot.close)

        flights = FlightDesk(store._handle, choose, AdmissionLimits(flights=3, flight_s=10), clock)
        server = Server("grpc://127.0.0.1:0", token=None, flights=flights, actions=flights.actions)
        yield store, flights, clock, server
        server.shutdown(5)
        flights.close()
        assert held_by_flights(store) == 0


def test_flights_expire_unless_they_are_renewed(
    desk: tuple[el.Store, FlightDesk, HandClock, Server],
) -> None:
    store, flights, clock, server = desk
    with plain.connected(server.location) as (client, _):
        short, long = (client.get_flight_info(plain.path("t")).endpoints[0] for _ in range(2))
        assert short.expiration_time.value // 10**6 - clock() == 10_000
        clock.advance(9_000)
        renewed = plain.renew(client, long)
        assert renewed.expiration_time.value - long.expiration_time.value == 9 * 10**9
        clock.advance(1_000)
        flights.leases.sweep()
        assert len(flights.leases) == held_by_flights(store) == 1
        for old in (short, long):
            with pytest.raises(flight.FlightError, match="TicketExpired"):
                client.do_get(old.ticket).read_all()
            with pytest.raises(flight.FlightError, match="TicketExpired"):
                plain.renew(client, old)
        assert client.do_get(renewed.ticket).read_all().num_rows == 10
        clock.advance(9_000)
        flights.leases.sweep()
        assert len(flights.leases) == held_by_flights(store) == 0


def test_the_number_of_flights_is_bounded(desk: tuple[el.Store, FlightDesk, HandClock, Server]) -> None:
    store, flights, clock, server = desk
    with plain.connected(server.location) as (client, _):
        infos = [client.get_flight_info(plain.path("t")) for _ in range(2)]
        infos.append(client.get_flight_info(plain.command(changes="t", after=0)))
        with pytest.raises(flight.FlightError, match="LimitExceeded"):
            client.get_flight_info(plain.path("t"))
        assert held_by_flights(store) == 3
        with pytest.raises(flight.FlightError, match="TableNotFound|LimitExceeded"):
            client.get_flight_info(plain.path("nope"))
        plain.cancel(client, infos[0])
        with pytest.raises(flight.FlightError, match="TableNotFound"):
            client.get_flight_info(plain.path("nope"))  # and it counts for nothing
        client.get_flight_info(plain.path("t"))
        clock.advance(10_000)
        client.get_flight_info(plain.path("t"))  # those that have expired make room by themselves
        assert len(flights.leases) == held_by_flights(store) == 1


def test_readers_leave_flights_to_those_who_may_write(store: el.Store) -> None:
    pins, plan = FlightLeases(4, HandClock()), LeasedFlight(SCHEMA, (), lambda: None, 1, None)

    def add(name: str, *, may_write: bool) -> None:
        pins.add(name.encode(), lambda _: plan, 1_000, may_write=may_write)

    waiting = replace(plan, parts=(FlightPart(lambda: iter(()), Footprint(1, 1)),))  # nobody has read it
    for name in "abc":
        pins.add(name.encode(), lambda _: waiting, 1_000, may_write=False)
    with pytest.raises(el.LimitExceeded):
        add("d", may_write=False)
    add("owner", may_write=True)
    with pytest.raises(el.LimitExceeded):
        add("e", may_write=False)  # the owner's has been read to its end, and stays
    assert pins.schema(b"owner") == SCHEMA and len(pins) == 4
    pins.cancel(b"a")
    add("e", may_write=False)
    pins.close()


def test_a_ticket_of_another_server_is_refused(store: el.Store, client: flight.FlightClient) -> None:
    ticket = client.get_flight_info(plain.path("orders")).endpoints[0].ticket
    with el.serve(store) as other, plain.connected(other.location) as (second, _):
        with pytest.raises(flight.FlightError, match=r"TicketRefused.*get_flight_info"):
            second.do_get(ticket).read_all()
        for wrong in (b"", b"x" * 2_000, ticket.ticket[:-1], ticket.ticket + b"x"):
            with pytest.raises(flight.FlightError, match="TicketRefused"):
                client.do_get(flight.Ticket(wrong)).read_all()


@pytest.mark.parametrize("kind", ["RenewFlightEndpoint", "CancelFlightInfo"])
@pytest.mark.parametrize(
    "body", [b"", b"\x0a", b"\x0a\xff\xff\xff\xff\x7f", b"\x0a\x05abc", b"\x12\x00", b"\x0a\x03\xff\xff\xff"]
)
def test_actions_refuse_what_is_no_message_of_theirs(client: flight.FlightClient, kind: str, body: bytes) -> None:
    with pytest.raises(flight.FlightError, match="BadMessage|TicketRefused"):
        list(client.do_action((kind, body)))


def test_the_actions_are_told(client: flight.FlightClient) -> None:
    assert {"RenewFlightEndpoint", "CancelFlightInfo"} <= {action.type for action in client.list_actions()}
