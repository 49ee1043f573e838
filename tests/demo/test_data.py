"""The data set: the keys are keys, the days add up, and no key is corrected twice."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from epochlog.demo import data


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    return {name: data.read(name) for name in data.KEYS}


ROWS = {"flights": 336_776, "weather": 26_115, "airlines": 16, "airports": 1_458, "planes": 3_322}


@pytest.mark.medium
@pytest.mark.parametrize("name", data.KEYS)
def test_rows_and_keys(tables: dict[str, pa.Table], name: str) -> None:
    rows, key = tables[name], ", ".join(data.KEYS[name])
    assert rows.num_rows == ROWS[name]
    distinct = duckdb.execute(f"SELECT count(DISTINCT ({key})) FROM rows").fetchall()
    assert distinct == [(ROWS[name],)]
    assert all(rows[column].null_count == 0 for column in data.KEYS[name])
    nullable = {field.name for field in data.schema_of(rows, data.KEYS[name]) if not field.nullable}
    assert nullable == set(data.KEYS[name])


@pytest.mark.medium
def test_days_hold_every_row_once(tables: dict[str, pa.Table]) -> None:
    days = data.arrivals(tables["flights"], tables["weather"])
    assert len(days) == 365
    rows = sum(day.flights.num_rows - day.corrected - day.deleted for day in days)
    assert (rows, sum(day.weather.num_rows for day in days)) == (ROWS["flights"], ROWS["weather"])
    assert all(day.flights.num_rows > 600 for day in days)
    assert sum(day.corrected for day in days) > 5_000
    assert sum(day.deleted for day in days) > 3_000


@pytest.mark.medium
def test_corrections_come_later_and_touch_a_key_once(tables: dict[str, pa.Table]) -> None:
    days = data.arrivals(tables["flights"], tables["weather"], days=60, delay_days=7)
    numbered = [
        day.flights.append_column("number", pa.array([number] * day.flights.num_rows))
        for number, day in enumerate(days)
    ]
    fed = pa.concat_tables(numbered)
    assert fed.num_rows
    key = ", ".join(data.KEYS["flights"])
    per_key = f"SELECT count(*) AS n, min(number) AS first, max(number) AS last FROM fed GROUP BY {key}"
    spread = duckdb.execute(f"SELECT n, last - first AS later, count(*) FROM ({per_key}) GROUP BY ALL").fetchall()
    assert {(n, later) for n, later, _ in spread} == {(1, 0), (2, 7)}


def test_whole_routes_vanish(tables: dict[str, pa.Table]) -> None:
    days = data.arrivals(tables["flights"], tables["weather"], days=40, delay_days=5)
    fed = pa.concat_tables([day.flights for day in days])
    assert fed.num_rows
    remaining = duckdb.execute("""
        SELECT origin, dest FROM fed GROUP BY ALL
        HAVING count(*) FILTER (WHERE _change_type = 'delete') * 2 = count(*)
    """).fetchall()
    assert len(remaining) >= 3


def test_a_missing_data_set_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "find_spec", lambda name: None)
    with pytest.raises(data.EpochlogError, match=r"pip install 'epochlog\[demo\]'"):
        data.folder()
