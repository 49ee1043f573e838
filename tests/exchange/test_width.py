"""Flights and subscriptions of tables of many columns: no work grows faster than their number."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
import plain_flight as plain
from epochlog.exchange.flight import put as put_handler
from epochlog.exchange.flight import service
from epochlog.exchange.server import _FlightServer
from subscription_fixture import TOKEN
from width_work import Meter, joining, superlinear

_STREAM = flight.GeneratorStream
CALLS = ("do_exchange", "do_get", "do_put", "get_flight_info", "get_schema", "list_flights")


def joined_stream(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> flight.FlightDataStream:
    """Return a stream whose batches are counted in the threads that ask for them."""
    following = joining(lambda: next(batches, None))
    return _STREAM(schema, iter(following, None))


def world(root: Path, columns: int, meter: Meter) -> None:
    schema = pa.schema([("id", pa.int64()), *((f"c{at}", pa.int64()) for at in range(columns))])
    rows = pa.table([[1, 2, 3], *([[4, 5, 6]] * columns)], schema=schema)
    path = root / f"{columns}-{len(list(root.iterdir()))}"
    with el.open(path, durability="os") as store, el.serve(store, "grpc://127.0.0.1:0", token=TOKEN) as server:
        table = store.create_table("t", schema, ["id"])
        with plain.connected(server.location, TOKEN) as (client, options):
            meter("put", lambda: _put(client, options, rows))
        with el.connect(server.location, token=TOKEN) as client:
            meter("tables", client.tables)
            meter("snapshot", lambda: client.snapshot("t").read_all())
            meter("snapshot of columns", lambda: client.snapshot("t", columns=schema.names[1:]).read_all())
            meter("changes", lambda: client.changes("t", 0).read_all())
            with client.subscribe("t") as feed:
                meter("feed: begin", lambda: next(feed))
                table.upsert(rows[:2])
                meter("feed: change", lambda: next(feed))


def _put(client: flight.FlightClient, options: flight.FlightCallOptions, rows: pa.Table) -> None:
    writer, answers = client.do_put(plain.path("t"), rows.schema, options)
    writer.write_table(rows)
    writer.done_writing()
    answers.read()
    writer.close()


@pytest.fixture
def joined_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CALLS:
        monkeypatch.setattr(_FlightServer, name, joining(getattr(_FlightServer, name)))
    monkeypatch.setattr(service.flight, "GeneratorStream", joined_stream)


@pytest.mark.slow
@pytest.mark.local_only
@pytest.mark.usefixtures("joined_calls")
def test_no_door_does_work_that_grows_faster_than_the_columns(tmp_path: Path) -> None:
    growing = superlinear(lambda columns, meter: world(tmp_path, columns, meter), 16, kinds=["columns"])
    assert growing == []


@pytest.mark.slow
@pytest.mark.local_only
@pytest.mark.usefixtures("joined_calls")
def test_a_put_that_asks_each_name_anew_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = put_handler.take_rows

    def taken(*args: Any, **options: Any) -> Any:
        rows = next(value for value in args if isinstance(value, pa.Table | pa.RecordBatch))
        assert all(field.name in rows.schema.names for field in rows.schema)
        return real(*args, **options)

    monkeypatch.setattr(put_handler, "take_rows", taken)
    growing = superlinear(
        lambda columns, meter: world(tmp_path, columns, meter), 16, also=[__file__], kinds=["columns"]
    )
    assert [line.partition(":")[0] for line in growing] == ["put"]
