"""Altered tables at the doors of a server: no batch spans an alter, and a reader that begins again misses nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
import plain_flight as plain
from epochlog.exchange.flight import put as put_handler
from epochlog.exchange.flight.planner import Check, Chosen
from epochlog.exchange.flight.service import FlightDesk
from epochlog.exchange.server import Server
from subscription_fixture import BreakingConnections, served
from wait_until import wait_until

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.float64()), ("name", pa.string())])
RENAMED = {"v": "w"}


def alter_epoch(table: el.Table) -> int:
    return table.history(1)["epoch"][0].as_py()


def rows(ids: Any) -> pa.Table:
    keys = list(ids)
    return pa.table([keys, [key / 7 for key in keys], [f"name {key}" for key in keys]], schema=SCHEMA)


def put(table: el.Table, *ids: int, **values: Any) -> int:
    return table.upsert([{"id": key, **values} for key in ids])


# ---- subscriptions -----------------------------------------------------------------------------------------------


@pytest.mark.rule("7.8")
def test_a_subscription_ends_before_an_alter_and_the_next_one_goes_on(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving):
        put(table, 1, v=1)
        with serving.subscribe() as sub:
            assert next(sub)["v"].to_pylist() == [1]
            table.alter(add=[pa.field("c", pa.int8())])
            put(table, 2, v=2, c=2)
            batch = next(sub)
            assert batch.schema.names[:2] == ["id", "v"]  # what was added is left out until it begins again
            assert batch["v"].to_pylist() == [2]
            table.alter(rename=RENAMED)
            altered = alter_epoch(table)
            put(table, 3, w=3, c=3)
            with pytest.raises(el.SchemaChanged) as changed:
                next(sub)
            assert changed.value.epoch == altered
            assert sub.epoch in (altered - 1, altered)  # it has all changes before
        with serving.subscribe(after=sub.epoch) as again:
            batch = next(again)
            assert batch.schema.names[:3] == ["id", "w", "c"]
            assert batch.select(["id", "w", "c"]).to_pylist() == [{"id": 3, "w": 3, "c": 3}]


@pytest.mark.rule("7.8")
def test_a_subscriber_that_was_cut_off_keeps_its_columns(tmp_path: Path) -> None:
    """The connection breaks, the table is altered, and the server answers the same subscription again."""
    with served(tmp_path) as (_, table, serving):
        put(table, 1, v=1)
        with serving.subscribe(after=table.info.max_committed_epoch) as sub:
            put(table, 2, v=2)
            assert next(sub)["v"].to_pylist() == [2]
            serving.stop()
            put(table, 3, v=3)
            table.alter(add=[pa.field("c", pa.int8())])
            put(table, 4, v=4, c=4)
            table.alter(rename={"v": "c", "c": "v"})
            put(table, 5, c=5, v=55)
            serving.start()
            taken = [next(sub), next(sub)]
            assert [batch.schema.names[:2] for batch in taken] == [["id", "v"]] * 2
            assert [batch["v"].to_pylist() for batch in taken] == [[3], [4]]
            with pytest.raises(el.SchemaChanged):
                next(sub)


@pytest.mark.rule("7.8")
def test_a_consumer_goes_on_past_an_alter(tmp_path: Path) -> None:
    with served(tmp_path) as (_, table, serving):
        put(table, 1, v=1)
        seen: list[dict[str, Any]] = []

        def follow(through: int) -> int | None:
            with serving.subscribe(consumer="c") as sub:
                try:
                    while sub.epoch is None or sub.epoch < through:
                        batch = sub.poll(30)
                        assert batch is not None
                        seen.extend({k: v for k, v in row.items() if k[0] != "_"} for row in batch.to_pylist())
                        sub.ack()
                except el.SchemaChanged as changed:
                    return changed.epoch
                return None

        assert follow(table.info.max_committed_epoch) is None
        put(table, 2, v=2)
        table.alter(rename=RENAMED)
        first = alter_epoch(table)
        put(table, 3, w=3)
        table.alter(drop=["w"])
        second = alter_epoch(table)
        last = put(table, 4)
        assert [follow(last), follow(last), follow(last)] == [first, second, None]
        assert seen == [{"id": 1, "v": 1}, {"id": 2, "v": 2}, {"id": 3, "w": 3}, {"id": 4}]


@pytest.mark.rule("7.8")
def test_a_consumer_acknowledges_what_came_before_an_alter(tmp_path: Path) -> None:
    """Also when the server has ended the feed before the acknowledgement; else it would never come past the alter."""
    with served(tmp_path) as (_, table, serving):
        with serving.subscribe(consumer="c") as sub:
            sub.poll(0)
            before = put(table, 1, v=1)
            table.alter(rename=RENAMED)
            put(table, 2, w=2)
            while sub.epoch != before:
                sub.poll(30)
            wait_until(lambda: sub._error is not None)
            sub.ack()
            with pytest.raises(el.SchemaChanged):
                sub.poll(30)
        with serving.subscribe(consumer="c") as again:
            assert next(again)["w"].to_pylist() == [2]


def test_breaking_connections_while_a_table_is_altered(tmp_path: Path) -> None:
    """A replica that begins again after each SchemaChanged ends with the table's rows."""
    from epochlog.exchange.subscription.client import Subscription
    from epochlog.exchange.subscription.messages import Request

    with served(tmp_path) as (_, table, serving):
        put(table, *range(10), v=0)

        def write() -> None:
            for turn in range(6):
                put(table, turn, 10 + turn, **{table.schema.names[1]: turn})
                table.alter(rename={table.schema.names[1]: f"v{turn}"})
                put(table, 20 + turn, **{table.schema.names[1]: turn})

        writer = threading.Thread(target=write)
        writer.start()
        state: dict[int, int] = {}
        after: int | None = None
        done = False
        while not done:
            opened = BreakingConnections(serving, [3, 5, 2])
            sub = Subscription(opened, serving.location, Request("t", after=after), 30.0, 30.0)
            try:
                while True:
                    batch = sub.poll(0.2)
                    if batch is None:
                        done = not writer.is_alive() and sub.epoch == table.info.max_committed_epoch
                        if done:
                            break
                        continue
                    for row in batch.to_pylist():
                        key, value, *_ = row.values()
                        state[key] = value
            except el.SchemaChanged:
                after = sub.epoch
            finally:
                sub.close()
        writer.join()
        name = table.to_arrow().schema.names[1]
        assert state == {row["id"]: row[name] for row in table.to_arrow().to_pylist()}


# ---- flights -----------------------------------------------------------------------------------------------------


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[tuple[el.Table, flight.FlightClient]]:
    with el.open(tmp_path / "s", durability="os") as store:
        table = store.create_table("t", SCHEMA, ["id"])

        def choose(name: str, consistency: str, options: Any, check: Check) -> Chosen:
            snapshot = store.snapshot([name], consistency=consistency, **options)
            return Chosen(snapshot[name].plan, snapshot.close)

        flights = FlightDesk(store._handle, choose)
        server = Server("grpc://127.0.0.1:0", token=None, flights=flights, actions=flights.actions)
        with plain.connected(server.location) as (client, _):
            yield table, client
        server.shutdown(5)
        flights.close()


@pytest.mark.rule("7.2", "7.8")
def test_flights_have_the_columns_of_their_epochs(desk: tuple[el.Table, flight.FlightClient]) -> None:
    table, client = desk
    first = table.upsert(rows(range(20_000)))
    table.alter(rename={"value": "name", "name": "value"}, add=[pa.field("c", pa.int8())])
    altered = alter_epoch(table)
    second = table.upsert([{"id": 1, "name": 0.5, "value": "new", "c": 1}])
    for epoch in (first, second):
        descriptor = plain.command(read="t", epoch=epoch)
        assert plain.read(client, descriptor) == table.to_arrow(epoch=epoch)
        assert client.get_schema(descriptor).schema == table.schema_at(epoch)
    whole = plain.command(changes="t", after=0)
    info = client.get_flight_info(whole)
    assert info.schema.names[:3] == ["id", "value", "name"] == client.get_schema(whole).schema.names[:3]
    parts = [client.do_get(endpoint.ticket) for endpoint in info.endpoints]
    assert pa.concat_tables([part.read_all() for part in parts[:-1]])["id"].to_pylist() == list(range(20_000))
    with pytest.raises(flight.FlightServerError, match=f"SchemaChanged.*altered at epoch {altered}"):
        parts[-1].read_all()
    rest = plain.read(client, plain.command(changes="t", after=first))
    assert rest.select(["id", "name", "value", "c"]).to_pylist() == [{"id": 1, "name": 0.5, "value": "new", "c": 1}]
    net = plain.read(client, plain.command(changes="t", after=0, mode="net"))
    assert net.schema.names[:4] == ["id", "name", "value", "c"]
    assert net["name"].to_pylist()[2] == 2 / 7


def test_a_put_adapts_to_an_alter_that_came_in_between(
    desk: tuple[el.Table, flight.FlightClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    table, client = desk
    begun, real = threading.Event(), put_handler._RowWriter.take

    def take(self: Any, batch: pa.RecordBatch) -> None:
        real(self, batch)
        begun.set()

    monkeypatch.setattr(put_handler._RowWriter, "take", take)
    descriptor = flight.FlightDescriptor.for_path("t")
    writer, answers = client.do_put(descriptor, rows([1]).schema)
    writer.write_table(rows([1]))
    wait_until(begun.is_set)
    table.alter(add=[pa.field("c", pa.int8())])
    writer.write_table(rows([2]))
    writer.done_writing()
    answers.read()
    writer.close()
    assert table.to_arrow().select(["id", "c"]).to_pylist() == [{"id": 1, "c": None}, {"id": 2, "c": None}]
