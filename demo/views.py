"""Views of the demo, each with its columns, its SQL (DuckDB, over whole tables) and its refresh (Spark, over changes).

Each SQL reads root tables alone, so that a view on a view is compared with its whole derivation. A refresh never
recomputes a whole view: it collects the keys that the barrier's changes touch, recomputes them from the aligned
upstreams, and replaces their rows. All figures are counts, sums and quotients of integers, or copied values, so that
both engines must agree exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from epochlog.spark.refresh_context import SparkRefreshContext

from .data import HOUR

LATE_MIN = 15
WORST = 10
WORST_MIN_FLIGHTS = 5


@dataclass(frozen=True, slots=True)
class DemoView:
    """Definition of a job with one output table of its name."""

    name: str
    upstreams: tuple[str, ...]
    key: tuple[str, ...]
    schema: pa.Schema
    sql: str
    refresh: Callable[[SparkRefreshContext], None]


def layout(key: dict[str, pa.DataType], values: dict[str, pa.DataType]) -> pa.Schema:
    return pa.schema([*(pa.field(name, kind, nullable=False) for name, kind in key.items()), *values.items()])


def exprs(**by_name: str) -> list[Any]:
    return [F.expr(text).alias(name) for name, text in by_name.items()]


def touched(ctx: SparkRefreshContext, upstreams: Iterable[str], key: Sequence[str]) -> pa.Table:
    """Return the distinct keys that the barrier's changes touch. Each upstream has the columns `key`."""
    return reduce(DataFrame.unionByName, (ctx.touched(name, key) for name in upstreams)).toArrow()


# ---- route_delays: flights per origin and destination -------------------------------------------------------------

ROUTE = ["origin", "dest"]
ROUTE_DELAYS = f"""
    SELECT origin, dest,
           count(*) AS flights,
           count(arr_delay) AS arrived,
           sum(arr_delay)::BIGINT AS delay_min,
           count(*) FILTER (WHERE arr_delay > {LATE_MIN}) AS late,
           (sum(arr_delay) * 60 // count(arr_delay))::BIGINT AS mean_delay_s
    FROM flights
    GROUP BY origin, dest
"""


def route_delays(ctx: SparkRefreshContext) -> None:
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


# ---- worst_routes: of each origin the ten with the longest mean delay; a view on a view ----------------------------

WORST_ROUTES = f"""
    WITH route_delays AS ({ROUTE_DELAYS})
    SELECT origin, dest, rank, mean_delay_s, flights
    FROM (SELECT *, row_number() OVER (PARTITION BY origin ORDER BY mean_delay_s DESC, dest) AS rank
          FROM route_delays
          WHERE arrived >= {WORST_MIN_FLIGHTS})
    WHERE rank <= {WORST}
"""


def worst_routes(ctx: SparkRefreshContext) -> None:
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


# ---- weather_impact: flights joined with weather, per origin and hour ----------------------------------------------

AIR = ["origin", "time_hour"]
WEATHER_IMPACT = f"""
    SELECT origin, time_hour,
           count(*) AS flights,
           count(*) - count(dep_time) AS cancelled,
           sum(dep_delay)::BIGINT AS delay_min,
           count(*) FILTER (WHERE dep_delay > {LATE_MIN}) AS late,
           any_value(temp) AS temp,
           any_value(wind_speed) AS wind_speed,
           any_value(precip) AS precip,
           any_value(visib) AS visib
    FROM flights JOIN weather USING (origin, time_hour)
    GROUP BY origin, time_hour
"""


def weather_impact(ctx: SparkRefreshContext) -> None:
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


# ---- carrier_scoreboard: flights per carrier, joined with airlines -------------------------------------------------

CARRIER_SCOREBOARD = f"""
    SELECT carrier, name,
           count(*) AS flights,
           count(*) - count(dep_time) AS cancelled,
           count(*) FILTER (WHERE arr_delay <= {LATE_MIN}) * 1000 // count(*) AS on_time_permille,
           sum(arr_delay)::BIGINT AS delay_min,
           sum(distance)::BIGINT AS miles
    FROM flights JOIN airlines USING (carrier)
    GROUP BY carrier, name
"""


def carrier_scoreboard(ctx: SparkRefreshContext) -> None:
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


INT, TEXT, REAL = pa.int64(), pa.string(), pa.float64()
VIEWS = {
    view.name: view
    for view in (
        DemoView(
            "route_delays",
            ("flights",),
            ("origin", "dest"),
            layout(
                {"origin": TEXT, "dest": TEXT},
                {"flights": INT, "arrived": INT, "delay_min": INT, "late": INT, "mean_delay_s": INT},
            ),
            ROUTE_DELAYS,
            route_delays,
        ),
        DemoView(
            "worst_routes",
            ("route_delays",),
            ("origin", "dest"),
            layout({"origin": TEXT, "dest": TEXT}, {"rank": INT, "mean_delay_s": INT, "flights": INT}),
            WORST_ROUTES,
            worst_routes,
        ),
        DemoView(
            "weather_impact",
            ("flights", "weather"),
            ("origin", "time_hour"),
            layout(
                {"origin": TEXT, "time_hour": HOUR},
                {"flights": INT, "cancelled": INT, "delay_min": INT, "late": INT}
                | {"temp": REAL, "wind_speed": REAL, "precip": REAL, "visib": REAL},
            ),
            WEATHER_IMPACT,
            weather_impact,
        ),
        DemoView(
            "carrier_scoreboard",
            ("flights", "airlines"),
            ("carrier",),
            layout(
                {"carrier": TEXT},
                {"name": TEXT, "flights": INT, "cancelled": INT, "on_time_permille": INT, "delay_min": INT}
                | {"miles": INT},
            ),
            CARRIER_SCOREBOARD,
            carrier_scoreboard,
        ),
    )
}
