"""Every refresh of a page, example or demo that is for Spark keeps its view equal to its query, whatever changes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import live_view
import pyarrow as pa
import pytest
import python_refreshes
import tpch_views
from pyspark.sql import SparkSession

import refresh_cases
from refresh_cases import INT, ORDERS, TEXT
from refresh_world import CheckedView, RefreshWorld, Root, Story

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROUNDS = 3
MONEY = pa.decimal128(15, 2)
SMALL = [Decimal(text) for text in ("0.05", "0.06", "0.10")]
PRICES = [Decimal(text) for text in ("100.00", "250.50", "999.99")]
ORDER_DAYS = [date(1993, 10, 5), date(1993, 12, 31), date(1994, 3, 1), date(1994, 12, 31), date(1995, 3, 20)]
SHIP_DAYS = [date(1994, 2, 1), date(1994, 12, 31), date(1995, 4, 1), date(1998, 10, 1)]
DAY, SHORT = pa.date32(), pa.int32()
TPCH = {
    "region": Root(("r_regionkey",), {"r_regionkey": (INT, [0, 1]), "r_name": (TEXT, ["ASIA", "ASIA", "EUROPE"])}),
    "nation": Root(
        ("n_nationkey",),
        {"n_nationkey": (INT, [0, 1, 2]), "n_name": (TEXT, ["CHINA", "INDIA"]), "n_regionkey": (INT, [0, 1])},
    ),
    "supplier": Root(("s_suppkey",), {"s_suppkey": (INT, range(3)), "s_nationkey": (INT, [0, 1, 2])}),
    "customer": Root(
        ("c_custkey",),
        {
            "c_custkey": (INT, range(4)),
            "c_nationkey": (INT, [0, 1, 2]),
            "c_mktsegment": (TEXT, ["BUILDING", "BUILDING", "AUTOMOBILE"]),
            "c_name": (TEXT, ["Ann", "Bob"]),
            "c_acctbal": (MONEY, PRICES),
            "c_address": (TEXT, ["York"]),
            "c_phone": (TEXT, ["7"]),
            "c_comment": (TEXT, ["", "none"]),
        },
    ),
    "orders": Root(
        ("o_orderkey",),
        {
            "o_orderkey": (INT, range(8)),
            "o_custkey": (INT, range(4)),
            "o_orderdate": (DAY, ORDER_DAYS),
            "o_shippriority": (SHORT, [0, 1]),
        },
    ),
    "lineitem": Root(
        ("l_orderkey", "l_linenumber"),
        {
            "l_orderkey": (INT, range(8)),
            "l_linenumber": (SHORT, [1, 2]),
            "l_suppkey": (INT, range(3)),
            "l_quantity": (MONEY, [Decimal(text) for text in ("1.00", "23.00", "30.00")]),
            "l_extendedprice": (MONEY, PRICES),
            "l_discount": (MONEY, SMALL),
            "l_tax": (MONEY, SMALL),
            "l_returnflag": (TEXT, ["R", "R", "A"]),
            "l_linestatus": (TEXT, ["F", "O"]),
            "l_shipdate": (DAY, SHIP_DAYS),
        },
    ),
}
HOURS = [datetime(2013, 1, 1, hour, tzinfo=UTC) for hour in (5, 6)]
HOUR = pa.timestamp("us", "UTC")
FLIGHTS = {
    "flights": Root(
        ("time_hour", "origin", "dest", "carrier", "flight"),
        {
            "time_hour": (HOUR, HOURS),
            "origin": (TEXT, ["EWR", "JFK"]),
            "dest": (TEXT, ["ATL", "ORD"]),
            "carrier": (TEXT, ["AA", "UA"]),
            "flight": (INT, range(4)),
            "dep_time": (INT, [None, 517]),
            "dep_delay": (INT, [None, -2, 20]),
            "arr_delay": (INT, [None, -7, 11, 33]),
            "distance": (INT, [700, 1400]),
        },
    ),
    "weather": Root(
        ("origin", "time_hour"),
        {
            "origin": (TEXT, ["EWR", "JFK"]),
            "time_hour": (HOUR, HOURS),
            **{name: (pa.float64(), [None, 0.5]) for name in ("temp", "wind_speed", "precip", "visib")},
        },
    ),
    "airlines": Root(("carrier",), {"carrier": (TEXT, ["AA", "UA"]), "name": (TEXT, ["American", "United", None])}),
}
LIVE = "SELECT day, sum(cents)::BIGINT AS cents, count(*) AS orders FROM orders GROUP BY day"


def views_of(views: Mapping[str, Any], *names: str) -> list[CheckedView]:
    chosen = [views[name] for name in names]
    return [
        CheckedView(case.name, case.upstreams, case.schema, tuple(case.key), case.sql, case.refresh) for case in chosen
    ]


def of_program(name: str, folder: Path) -> Story:
    if name == "live_view":
        revenue = CheckedView("revenue", ("orders",), live_view.REVENUE, ("day",), LIVE, live_view.revenue)
        return Story({"orders": ORDERS}, [revenue])
    if name == "first_view":
        return refresh_cases.story_of(refresh_cases.ON_SPARK[0], folder)
    views, roots = (tpch_views.VIEWS, TPCH) if name[0] == "q" else (python_refreshes.VIEWS, FLIGHTS)
    chosen = views_of(views, *name.split("+"))
    read = {upstream for view in chosen for upstream in view.upstreams} & set(roots)
    return Story({root: roots[root] for root in roots if root in read}, chosen, rows=24)


MORE_PROGRAMS = ("live_view", "q1", "q6", "q5", "q10_customers+q10", "route_delays+worst_routes", "carrier_scoreboard")


@pytest.mark.rule("2.5")
@pytest.mark.parametrize(
    "name",
    [
        "first_view",
        "q3_orders+q3",
        "weather_impact",
        *(pytest.param(name, marks=pytest.mark.long) for name in MORE_PROGRAMS),
    ],
)
def test_a_refresh_on_spark_keeps_the_law(name: str, tmp_path: Path, spark: SparkSession) -> None:
    world = RefreshWorld(
        of_program(name, tmp_path), 0, tmp_path / "store", lambda job, refresh: job.step(spark, refresh)
    )
    world.play(ROUNDS)
    assert world.commits >= ROUNDS // 2, "nothing was held against DuckDB"


def test_all_of_the_programs_are_played() -> None:
    assert {*tpch_views.VIEWS, *python_refreshes.VIEWS} <= {
        where.partition(":")[2] for where in refresh_cases.IN_PROGRAMS
    }
