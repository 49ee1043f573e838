"""The demo's four views with refreshes written by hand, compared with their queries after each of three days.

    python examples/python_refreshes.py

A refresh never recomputes a whole view: it collects the keys that the barrier's changes touch, recomputes them from the
aligned upstreams, and replaces their rows. A view in SQL derives just that from its query. What SQL cannot say is
written as here. Needs `pip install 'epochlog[demo]'` and Java for Spark.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

import epochlog as el
from epochlog.demo import data
from epochlog.demo.compare import findings
from epochlog.demo.views import LATE_MIN, WORST, WORST_MIN_FLIGHTS
from epochlog.demo.views import VIEWS as DEMO_VIEWS

ROUTE, AIR = ["origin", "dest"], ["origin", "time_hour"]
DAYS = 3


def exprs(**by_name: str) -> list[Any]:
    return [F.expr(text).alias(name) for name, text in by_name.items()]


def touched(ctx: el.SparkRefreshContext, upstreams: Iterable[str], key: Sequence[str]) -> pa.Table:
    """Return the distinct keys that the barrier's changes touch. Each upstream has the columns `key`."""
    return reduce(DataFrame.unionByName, (ctx.touched(name, key) for name in upstreams)).toArrow()


def route_delays(ctx: el.SparkRefreshContext) -> None:
    keys = touched(ctx, ["flights"], ROUTE)
    flights = ctx.table("flights", columns=[*ROUTE, "arr_delay"], among=keys)
    figures = exprs(
        flights="count(*)",
        arrived="count(arr_delay)",
        delay_min="sum(arr_delay)",
        late=f"count_if(arr_delay > {LATE_MIN})",
        mean_delay_s="sum(arr_delay) * 60 div count(arr_delay)",
    )
    ctx.recompute("route_delays", by=ROUTE, touched=keys, from_=flights.groupBy(*ROUTE).agg(*figures))


def worst_routes(ctx: el.SparkRefreshContext) -> None:
    origins = touched(ctx, ["route_delays"], ["origin"])
    ranking = Window.partitionBy("origin").orderBy(F.desc("mean_delay_s"), "dest")
    answer = (
        ctx.table("route_delays", among=origins)
        .where(f"arrived >= {WORST_MIN_FLIGHTS}")
        .withColumn("rank", F.row_number().over(ranking).cast("long"))
        .where(f"rank <= {WORST}")
        .select("origin", "dest", "rank", "mean_delay_s", "flights")
    )
    ctx.recompute("worst_routes", by="origin", touched=origins, from_=answer)


def weather_impact(ctx: el.SparkRefreshContext) -> None:
    keys = touched(ctx, ["flights", "weather"], AIR)
    flights = ctx.table("flights", columns=[*AIR, "dep_time", "dep_delay"], among=keys)
    figures = exprs(
        flights="count(*)",
        cancelled="count(*) - count(dep_time)",
        delay_min="sum(dep_delay)",
        late=f"count_if(dep_delay > {LATE_MIN})",
    )
    air = ctx.table("weather", columns=[*AIR, "temp", "wind_speed", "precip", "visib"], among=keys)
    answer = flights.groupBy(*AIR).agg(*figures).join(air.hint("broadcast"), AIR)
    ctx.recompute("weather_impact", by=AIR, touched=keys, from_=answer)


def carrier_scoreboard(ctx: el.SparkRefreshContext) -> None:
    keys = touched(ctx, ["flights", "airlines"], ["carrier"])
    columns = ["carrier", "dep_time", "arr_delay", "distance"]
    flights = ctx.table("flights", columns=columns, among=keys)
    figures = exprs(
        flights="count(*)",
        cancelled="count(*) - count(dep_time)",
        on_time_permille=f"count_if(arr_delay <= {LATE_MIN}) * 1000 div count(*)",
        delay_min="sum(arr_delay)",
        miles="sum(distance)",
    )
    answer = flights.groupBy("carrier").agg(*figures).join(ctx.table("airlines").hint("broadcast"), "carrier")
    ctx.recompute("carrier_scoreboard", by="carrier", touched=keys, from_=answer)


def layout(key: dict[str, pa.DataType], values: dict[str, pa.DataType]) -> pa.Schema:
    return pa.schema([*(pa.field(name, kind, nullable=False) for name, kind in key.items()), *values.items()])


INT, TEXT, REAL = pa.int64(), pa.string(), pa.float64()
FIGURES = {"flights": INT, "arrived": INT, "delay_min": INT, "late": INT, "mean_delay_s": INT}
WEATHER = {"temp": REAL, "wind_speed": REAL, "precip": REAL, "visib": REAL}
OF_WEATHER = {"flights": INT, "cancelled": INT, "delay_min": INT, "late": INT, **WEATHER}
OF_CARRIER = {
    "name": TEXT, "flights": INT, "cancelled": INT, "on_time_permille": INT, "delay_min": INT, "miles": INT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FlightView:
    """View of flights: a job with one output table of its name, and the query for DuckDB that it has to equal."""

    name: str
    upstreams: tuple[str, ...]
    schema: pa.Schema
    refresh: Callable[[el.SparkRefreshContext], None]

    @property
    def key(self) -> tuple[str, ...]:
        return DEMO_VIEWS[self.name].key

    @property
    def sql(self) -> str:
        return DEMO_VIEWS[self.name].expected


VIEWS = {
    view.name: view
    for view in (
        FlightView("route_delays", ("flights",), layout({"origin": TEXT, "dest": TEXT}, FIGURES), route_delays),
        FlightView(
            "worst_routes",
            ("route_delays",),
            layout({"origin": TEXT, "dest": TEXT}, {"rank": INT, "mean_delay_s": INT, "flights": INT}),
            worst_routes,
        ),
        FlightView(
            "weather_impact",
            ("flights", "weather"),
            layout({"origin": TEXT, "time_hour": data.HOUR}, OF_WEATHER),
            weather_impact,
        ),
        FlightView(
            "carrier_scoreboard", ("flights", "airlines"), layout({"carrier": TEXT}, OF_CARRIER), carrier_scoreboard
        ),
    )
}


def main() -> int:
    rows = {name: data.read(name) for name in ("flights", "weather", "airlines")}
    spark = el.spark(app_name="python refreshes", **{"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": 1})
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, el.open(Path(folder) / "lake") as store:
        for name, table in rows.items():
            store.create_table(name, data.schema_of(table, data.KEYS[name]), data.KEYS[name])
        for view in VIEWS.values():
            store.create_job(view.name, view.upstreams, {view.name: (view.schema, view.key)})
        store.table("weather").upsert(rows["weather"])
        store.table("airlines").upsert(rows["airlines"])
        print("day  view                 rows  equal to its query")
        for day in range(1, DAYS + 1):
            of_day = pc.and_(pc.equal(rows["flights"]["month"], 1), pc.equal(rows["flights"]["day"], day))
            store.table("flights").upsert(rows["flights"].filter(of_day))
            for name, view in VIEWS.items():
                store.checkpoint()
                store.job(name).step(spark, view.refresh)
            with store.snapshot([*rows, *VIEWS], consistency="aligned") as snapshot:
                by_view = findings(snapshot)
            for name, result in by_view.items():
                wrong += result.differing
                print(f"{day:>3}  {name:18} {result.rows:>6,}  {'no' if result.differing else 'yes'}")
    spark.stop()
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
