"""Every door reads timestamps in any time zone that a table takes: offsets, and all names of the time zone database."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.batch import arrow_compat
from epochlog.store.types import time_zones
from epochlog.store.types.column_types import refusal
from epochlog.store.types.time_zones import batch_in_common_zones, in_common_zones, in_known_zones, unknown_zone
from plain_flight import connected, path, read

pytestmark = pytest.mark.local_only

MOMENT = dt.datetime(2024, 2, 29, 23, 30, tzinfo=dt.UTC)
ZONES = ["+05:30", "-23:59", "+14:00", "-00:00", "asia/tokyo", "Asia/Kathmandu", "UTC"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path, durability="os") as store:
        yield store


def zoned(store: el.Store, zone: str) -> el.Table:
    kind = pa.timestamp("us", zone)
    schema = pa.schema([("id", pa.int64()), ("at", kind), ("seen", pa.list_(kind)), ("n", pa.int8())])
    table = store.create_table("t", schema, ["id"])
    rows = [{"id": 1, "at": MOMENT, "seen": [MOMENT, None], "n": 7}, {"id": 2, "at": None, "seen": None, "n": 8}]
    table.upsert(pa.Table.from_pylist(rows, schema=schema))
    return table


def through_duckdb(table: el.Table, store: el.Store) -> list[Any]:
    with store.snapshot(["t"]) as moment, moment.duckdb() as connection:
        return connection.execute('SELECT "at" FROM t WHERE "at" IS NULL OR year("at") > 2000 ORDER BY id').fetchall()


def through_flight(table: el.Table, store: el.Store) -> list[Any]:
    with el.serve(store) as server, connected(server.location) as (client, _):
        return read(client, path("t"))["at"].to_pylist()


def of_client(read: Callable[[el.Client], Any]) -> Callable[[el.Table, el.Store], list[Any]]:
    """Return the door of a client's call, which returns a stream or a batch; polars reads it."""

    def door(_: el.Table, store: el.Store) -> list[Any]:
        with el.serve(store) as server, el.connect(server.location) as client:
            return pl.DataFrame(read(client))["at"].to_list()

    return door


def subscribed(client: el.Client) -> pa.RecordBatch:
    with client.subscribe("t") as subscription:
        return next(subscription)


IN_UTC = pl.col("at").dt.convert_time_zone("UTC")
DOORS: dict[str, Callable[[el.Table, el.Store], list[Any]]] = {
    "arrow": lambda t, _: t.to_arrow()["at"].to_pylist(),
    "arrow filter": lambda t, _: t.to_arrow(filter=pc.field("at") == pa.scalar(MOMENT))["at"].to_pylist(),
    "stream": lambda t, _: pa.table(t)["at"].to_pylist(),
    "pandas": lambda t, _: t.to_pandas()["at"].astype(object).tolist(),
    "pandas by Arrow": lambda t, _: t.to_pandas(dtype_backend="pyarrow")["at"].tolist(),
    "polars": lambda t, _: t.to_polars()["at"].to_list(),
    "polars, inside": lambda t, _: t.to_polars()["seen"].to_list()[0],
    "polars, another column": lambda t, _: t.lazy().filter(pl.col("n") == 7).collect()["at"].to_list(),
    "polars, lazy": lambda t, _: t.lazy().collect()["at"].to_list(),
    "polars, filter": lambda t, _: t.lazy().filter(IN_UTC >= MOMENT).collect()["at"].to_list(),
    "polars, of the table": lambda t, _: pl.DataFrame(t)["at"].to_list(),
    "polars, of the dataset": lambda t, _: pl.scan_pyarrow_dataset(t.dataset()).collect()["at"].to_list(),
    "duckdb": through_duckdb,
    "duckdb of the dataset": lambda t, _: duckdb.from_arrow(t.dataset()).project('"at"').fetchall(),
    "dataset": lambda t, _: t.dataset().to_table(filter=pc.field("at").is_valid())["at"].to_pylist(),
    "flight": through_flight,
    "scan": lambda t, _: pl.DataFrame(t.scan())["at"].to_list(),
    "scan, some columns": lambda t, _: pl.DataFrame(t.scan(columns=["at", "n"]))["at"].to_list(),
    "scan of a snapshot": lambda t, store: pl.DataFrame(store.snapshot(["t"])["t"].scan())["at"].to_list(),
    "changes": lambda t, _: pl.DataFrame(t.changes(0))["at"].to_list(),
    "changes, inside": lambda t, _: pl.DataFrame(t.changes(0, columns=["seen"]))["seen"].to_list()[0],
    "net changes": lambda t, _: pl.DataFrame(t.changes(0, mode="net"))["at"].to_list(),
    "changes, images": lambda t, _: pl.DataFrame(t.changes(0, pre_images=True))["at"].to_list(),
    "changes by batches": lambda t, _: [v for b in t.changes(0) for v in pl.DataFrame(b)["at"].to_list()],
    "client": of_client(lambda client: client.snapshot("t")),
    "client, changes": of_client(lambda client: client.changes("t", 0)),
    "subscription": of_client(subscribed),
}  # fmt: skip


@pytest.mark.rule("1.31")
@pytest.mark.parametrize("zone", ZONES)
def test_every_door_reads_every_zone(store: el.Store, zone: str) -> None:
    if zone == "asia/tokyo" and find_spec("pytz") is None:  # which pyarrow takes first, and pandas 3 does not need
        with pytest.raises(el.InvalidSchema, match="'asia/tokyo' is no time zone"):
            zoned(store, zone)
        return
    table = zoned(store, zone)
    assert table.schema.field("at").type == pa.timestamp("us", zone)
    for name, door in DOORS.items():
        values = [value[0] if isinstance(value, tuple) else value for value in door(table, store)]
        instants = [value for value in values if value is not None and value is not pd.NaT and value is not pd.NA]
        assert instants == [MOMENT], name
    for frame in (table.to_polars(), table.to_pandas(), table, table.lazy().collect(), table.scan().read_all()):
        before = table.to_arrow()
        table.upsert(frame)
        assert table.to_arrow() == before


@pytest.mark.rule("1.31")
def test_a_zone_that_no_tool_knows_is_refused(store: el.Store) -> None:
    for place, zone in enumerate(["+0530", "+05", "Z", "Mars/Olympus", "UTC+3", "+24:00", "+05:60"]):
        schema = pa.schema([("id", pa.int64()), ("at", pa.list_(pa.timestamp("us", zone)))])
        with pytest.raises(el.InvalidSchema, match=r"column 'at': .* is no time zone; write a name such as"):
            store.create_table(f"t{place}", schema, ["id"])
    table = store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
    with pytest.raises(el.InvalidSchema, match="column 'at': 'Z' is no time zone"):
        table.alter(add=[pa.field("at", pa.timestamp("us", "Z"))])


def test_a_table_that_has_such_a_zone_is_read(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier releases took any text for a zone."""
    monkeypatch.setattr("epochlog.store.commit.type_trial.unknown_zone", lambda kind: None)
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "Z"))])
    table = store.create_table("t", schema, ["id"])
    table.upsert(pa.table({"id": [1], "at": pa.array([MOMENT], pa.timestamp("us", "Z"))}))
    assert table.to_polars()["at"].to_list() == table.to_pandas()["at"].tolist() == [MOMENT]
    assert pl.DataFrame(table)["at"].to_list() == [MOMENT]


def offsets() -> Iterator[str]:
    for minutes in range(-(24 * 60 - 1), 24 * 60):
        hours, rest = divmod(abs(minutes), 60)
        yield f"{'-' if minutes < 0 else '+'}{hours:02}:{rest:02}"


@pytest.mark.medium
def test_all_zones_of_the_database_and_all_offsets() -> None:
    """polars and pandas read each of them, and no zone that polars reads is taken from it."""
    # These are files of a machine, and no zones of the database; pyarrow before 26 asks pytz alone, which lacks them.
    files = {"localtime", "Factory"} if int(pa.__version__.partition(".")[0]) < 26 else set[str]()
    names = available_timezones() - files
    for zone in (*names, *offsets()):
        kind = pa.list_(pa.timestamp("ms", zone))
        assert refusal(kind) is None and unknown_zone(kind) is None and in_known_zones(kind) == kind
        common = in_common_zones(kind)
        pl.from_arrow(pa.array([], common))
        assert common == kind or zone in ("localtime", "Factory") or zone[0] in "+-"


def test_batches_stay_as_they_are_where_all_tools_read_them(store: el.Store) -> None:
    table = zoned(store, "Asia/Kathmandu")
    assert table.scan().schema == table.schema
    assert table.changes(0).schema.field("seen").type == pa.list_(pa.timestamp("us", "Asia/Kathmandu"))
    batch = next(table.scan())
    assert batch_in_common_zones(batch) is batch


@pytest.mark.planted
def test_a_stream_that_gives_polars_an_offset_is_found(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_zones, "schema_in_common_zones", lambda schema: schema)
    for stream in (zoned(store, "+05:30").changes(0), store.table("t").scan()):
        with pytest.raises(pl.exceptions.ComputeError):
            pl.DataFrame(stream)


@pytest.mark.planted
def test_a_door_that_gives_polars_an_offset_is_found(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_compat, "in_common_zones", lambda kind: kind)
    with pytest.raises(pl.exceptions.ComputeError):
        zoned(store, "+05:30").to_polars()
