"""`el.connect`: rows and logs of a served store as streams, over connections that are good and bad."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import epochlog as el
from epochlog.exchange.flight import client as flight_reader
from epochlog.exchange.flight import planner
from epochlog.store.retention.holds import all_holds
from epochlog.testing.tcp_proxy import TcpProxy
from subscription_fixture import SCHEMA, TOKEN, rows
from wait_until import WAIT_LIMIT_S, wait_until

TROUBLES = {"cut": TcpProxy.hold, "black hole": TcpProxy.swallow, "cut after delivery": TcpProxy.cut_answer}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[tuple[el.Store, el.Table, str]]:
    """A served store with the table `t`, and where it is served."""
    with el.open(tmp_path / "store", durability="os") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        with el.serve(store, token=TOKEN, read_token="only-reads") as server:
            yield store, table, server.location


def connect(location: str, token: str = "only-reads", timeout: float = WAIT_LIMIT_S) -> el.Client:
    return el.connect(location, token=token, timeout=timeout)


@contextmanager
def proxied(location: str) -> Iterator[tuple[TcpProxy, str]]:
    proxy = TcpProxy(int(location.rpartition(":")[2]))
    try:
        yield proxy, f"grpc://127.0.0.1:{proxy.port}"
    finally:
        proxy.stop()


def many(count: int) -> pa.Table:
    """Rows that do not compress, a megabyte for each 65,536."""
    values = np.random.default_rng(count).integers(0, 1 << 62, count)
    return pa.table({"id": np.arange(count), "v": values}, schema=SCHEMA)


def drained(reader: Iterable[pa.RecordBatch]) -> tuple[int, Exception | None]:
    """The rows that come yet, and what they end with."""
    count = 0
    try:
        for batch in reader:
            count += batch.num_rows
    except Exception as error:
        return count, error
    return count, None


def holds(store: el.Store) -> list[str]:
    return store._handle.catalog.read(lambda view: [hold.holder for _, hold in all_holds(view)])


def test_a_snapshot_and_the_changes_are_those_of_the_table(lake: tuple[el.Store, el.Table, str]) -> None:
    store, table, location = lake
    store.create_table("empty", SCHEMA, ["id"])
    first = table.upsert(rows(1, 2, 3))
    second = table.upsert(rows(2, v=5))
    third = table.delete(rows(1).select(["id"]))
    with connect(location) as client:
        assert client.snapshot("t").read_all().equals(table.to_arrow())
        assert (
            client.snapshot("t", epoch=first, columns=["v"])
            .read_all()
            .equals(table.to_arrow(epoch=first, columns=["v"]))
        )
        as_of = client.snapshot("t", consistency="as_of", epoch=second)
        assert as_of.read_all().equals(table.to_arrow(epoch=second))
        late = client.snapshot("t", consistency="at_least", epoch=third, timeout=timedelta(seconds=5))
        assert late.read_all().equals(table.to_arrow())
        for options in (
            {"after": 0},
            {"after": first, "until": second, "pre_images": True},
            {"after": 0, "mode": "net", "columns": ["v"]},
            {"after": third},
        ):
            assert client.changes("t", **options).read_all().equals(table.changes(**options).read_all())
        assert client.snapshot("empty").read_all().equals(store.table("empty").to_arrow())
        assert [(info.name, info.schema, info.epoch) for info in client.tables()] == [
            ("empty", store.table("empty").schema, 0),
            ("t", table.schema, third),
        ]
    wait_until(lambda: not holds(store))


@pytest.mark.medium
def test_rows_arrive_before_the_last_is_read(
    lake: tuple[el.Store, el.Table, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many endpoints, each read when those before it were taken; and what is not read to its end holds nothing."""
    monkeypatch.setattr(planner, "PART_ROWS", 50_000)
    store, table, location = lake
    table.upsert(many(400_000))
    with connect(location) as client:
        reader = client.snapshot("t")
        first = reader.read_next_batch()
        assert first["id"][0].as_py() == 0 and first.num_rows < 100_000
        assert reader.read_all().num_rows == 400_000 - first.num_rows
        wait_until(lambda: not holds(store))
        left = client.snapshot("t")
        left.read_next_batch()
        assert holds(store)
        del left
        wait_until(lambda: not holds(store))


@pytest.mark.parametrize("end", ["forgotten", "closed", "left"])
def test_a_reader_that_was_never_read_holds_nothing(
    lake: tuple[el.Store, el.Table, str], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(planner, "PART_ROWS", 50_000)
    store, table, location = lake
    table.upsert(many(400_000))
    with connect(location) as client:
        reader = client.snapshot("t")
        assert holds(store)
        if end == "closed":
            reader.close()
        elif end == "left":
            with reader:
                pass
        del reader
        wait_until(lambda: not holds(store))


def test_a_long_reading_is_renewed(lake: tuple[el.Store, el.Table, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "PART_ROWS", 1_000)
    monkeypatch.setattr(flight_reader, "RENEW_S", 0.0)
    _, table, location = lake
    table.upsert(many(200_000))
    renewed = []
    real = flight_reader.FlightReader._run_action

    def counted(self: Any, kind: str, message: bytes) -> None:
        renewed.append(kind)
        real(self, kind, message)

    monkeypatch.setattr(flight_reader.FlightReader, "_run_action", counted)
    with connect(location) as client:
        assert client.snapshot("t").read_all().num_rows == 200_000
    wait_until(lambda: renewed[-1:] == ["CancelFlightInfo"])
    assert renewed.count("RenewFlightEndpoint") >= 3


def test_what_goes_wrong_is_told_by_its_name(lake: tuple[el.Store, el.Table, str]) -> None:
    _, table, location = lake
    first = table.upsert(rows(1))
    table.truncate_log(table.upsert(rows(2)))
    with connect(location) as client:
        for call, error in (
            (lambda: client.snapshot("nothing"), el.TableNotFound),
            (lambda: client.snapshot("t", columns=["w"]), el.InvalidInput),
            (lambda: client.snapshot("t", columns="v"), el.InvalidInput),
            (lambda: client.snapshot("t", consistency="newest"), el.InvalidInput),
            (lambda: client.snapshot("t", consistency="aligned", colour="red"), el.InvalidInput),
            (lambda: client.snapshot("t", consistency="aligned", colour=object()), el.InvalidInput),
            (lambda: client.snapshot("t", epoch=first + (1 << 40)), el.EpochNotCommitted),
            (lambda: client.changes("t", 0), el.LogTruncated),
            (lambda: client.changes("t", first, first - 1), el.InvalidInput),
            (lambda: client.changes("t", first, mode="gross"), el.InvalidInput),
            (lambda: client.changes("t", -1), el.InvalidInput),
        ):
            with pytest.raises(error):
                call()
    for closed in (client.tables, lambda: client.snapshot("t"), lambda: client.changes("t", 0)):
        with pytest.raises(el.StoreClosed):
            closed()
    for wrong in ({"token": ""}, {"timeout": -1}, {"location": "http://127.0.0.1:5"}):
        with pytest.raises(el.InvalidInput):
            el.connect(**{"location": location, **wrong})
    with connect(location, token="x") as stranger, pytest.raises(el.AccessDenied):
        stranger.tables()
    with connect(location, token="x") as stranger, pytest.raises(el.AccessDenied):
        stranger.snapshot("t")


def asked(client: el.Client, call: str) -> int:
    if call == "tables":
        return len(client.tables())
    reader = client.snapshot("t") if call == "snapshot" else client.changes("t", 0)
    return reader.read_all().num_rows


@pytest.mark.parametrize("call", ["snapshot", "changes", "tables"])
@pytest.mark.parametrize("trouble", [*TROUBLES, "late", "refused"])
def test_a_call_over_a_bad_connection_says_so_and_may_be_made_again(
    lake: tuple[el.Store, el.Table, str], call: str, trouble: str
) -> None:
    _, table, location = lake
    table.upsert(rows(1))
    with proxied(location) as (proxy, through), connect(through) as patient:
        if trouble == "late":
            proxy.slow(0.02)
            assert asked(patient, call) == 1
            return
        if trouble == "refused":
            proxy.refuse(True)
        else:
            TROUBLES[trouble](proxy, b"ListFlights" if call == "tables" else b"GetFlightInfo")
        with connect(through, timeout=0.3) as hasty, pytest.raises(el.ServerUnavailable):
            asked(hasty, call)
        assert trouble == "refused" or proxy.fired.wait(WAIT_LIMIT_S)
        proxy.refuse(False)
        assert asked(patient, call) == 1


@pytest.mark.medium
@pytest.mark.parametrize("command", [b'{"read": "t"}', b'{"changes": "t", "after": 0}'])
@pytest.mark.parametrize("trouble", ["cut", "black hole"])
def test_a_reading_that_breaks_in_the_middle_never_looks_like_an_end(
    lake: tuple[el.Store, el.Table, str], monkeypatch: pytest.MonkeyPatch, command: bytes, trouble: str
) -> None:
    monkeypatch.setattr(planner, "PART_ROWS", 100_000)
    _, table, location = lake
    table.upsert(many(1_500_000))
    with proxied(location) as (proxy, through):
        reader = flight_reader.FlightReader(through, command, token=TOKEN, tls_roots=None, timeout_s=WAIT_LIMIT_S)
        batches = reader.batches()
        count = next(batches).num_rows
        if trouble == "cut":
            proxy.refuse(True)
        else:
            proxy.mute(True)
            reader._timeout_s = 0.2
        more, error = drained(batches)
        assert isinstance(error, el.ServerUnavailable) and 0 < count + more < 1_500_000
        proxy.refuse(True)


@pytest.mark.medium
def test_a_server_that_is_shut_down_in_the_middle_never_looks_like_an_end(tmp_path: Path) -> None:
    with el.open(tmp_path / "store", durability="os") as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(many(1_500_000))
        server = el.serve(store)
        with el.connect(server.location, timeout=WAIT_LIMIT_S) as client:
            reader = client.snapshot("t")
            count = reader.read_next_batch().num_rows
            ending = threading.Thread(target=server.shutdown)
            ending.start()
            more, error = drained(reader)
            ending.join()
        assert isinstance(error, el.ServerUnavailable) or (error is None and count + more == 1_500_000)
