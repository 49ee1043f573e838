"""The comparison finds what is wrong in a view: a wrong value, a row too many, a row that is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import duckdb
import pyarrow.parquet as pq
import pytest

from epochlog.demo import compare, data
from epochlog.demo.views import VIEWS

pytestmark = pytest.mark.slow


class DuckDBTables:
    """Real tables in DuckDB, as a snapshot's connection has them."""

    def __init__(self) -> None:
        self.connection = duckdb.connect()
        flights, weather = data.read("flights").slice(0, 20_000), data.read("weather")
        for name, table in (("flights", flights), ("weather", weather), ("airlines", data.read("airlines"))):
            self.connection.register("incoming", table)
            self.connection.execute(f"CREATE TABLE {name} AS FROM incoming")
        for name, view in VIEWS.items():
            self.connection.execute(f"CREATE TABLE {name} AS {view.expected}")

    def duckdb(self) -> Any:
        return self.connection.cursor()


@pytest.fixture
def snapshot() -> Iterator[DuckDBTables]:
    made = DuckDBTables()
    yield made
    made.connection.close()


def test_equal_views_differ_nowhere(snapshot: DuckDBTables) -> None:
    by_view = compare.findings(snapshot)
    assert set(by_view) == set(VIEWS)
    assert all(finding.differing == 0 and finding.rows > 10 for finding in by_view.values())


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("damage, keys", [
    ("UPDATE {view} SET flights = flights + 1 WHERE rowid < 3", 3),
    ("UPDATE {view} SET flights = NULL WHERE rowid = 0", 1),
    ("DELETE FROM {view} WHERE rowid < 2", 2),
    ("INSERT INTO {view} FROM {view} WHERE rowid = 4", 1),
])  # fmt: skip
def test_every_damage_is_counted_by_key(snapshot: DuckDBTables, view: str, damage: str, keys: int) -> None:
    snapshot.connection.execute(damage.format(view=view))
    by_view = compare.findings(snapshot)
    assert {name: finding.differing for name, finding in by_view.items()} == dict.fromkeys(VIEWS, 0) | {view: keys}


def test_a_missing_flight_shows_in_every_view_that_counts_it(snapshot: DuckDBTables) -> None:
    snapshot.connection.execute("DELETE FROM flights WHERE rowid = 0")
    by_view = compare.findings(snapshot)
    assert by_view["route_delays"].differing == by_view["weather_impact"].differing == 1
    assert by_view["carrier_scoreboard"].differing == 1


def test_root_tables_are_held_against_the_files(tmp_path: Path) -> None:
    days = data.arrivals(data.read("flights"), data.read("weather"), days=12, delay_days=3)
    inboxes = {"flights": tmp_path / "flights", "weather": tmp_path / "weather"}
    for name, folder in inboxes.items():
        folder.mkdir()
        for number, day in enumerate(days):
            pq.write_table(getattr(day, name), folder / f"{number:03d}.parquet")
    connection = duckdb.connect()
    key = ", ".join(data.KEYS["flights"])
    connection.execute(f"""
        CREATE TABLE flights AS SELECT * EXCLUDE (file, _change_type)
        FROM (FROM read_parquet('{inboxes["flights"]}/*.parquet', filename = 'file')
              QUALIFY row_number() OVER (PARTITION BY {key} ORDER BY file DESC) = 1)
        WHERE _change_type = 'upsert'
    """)
    connection.execute(f"CREATE TABLE weather AS FROM read_parquet('{inboxes['weather']}/*.parquet')")
    store: Any = SimpleNamespace(snapshot=lambda tables, consistency: Held(connection))
    assert compare.keys_unlike_feed(store, inboxes) == {"flights": 0, "weather": 0}
    connection.execute("DELETE FROM flights WHERE rowid < 5")
    connection.execute("UPDATE weather SET temp = 0 WHERE rowid = 7")
    assert compare.keys_unlike_feed(store, inboxes) == {"flights": 5, "weather": 1}


class Held:
    """A snapshot whose connection is given."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def duckdb(self) -> Any:
        return self._connection.cursor()
