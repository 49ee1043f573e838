"""Test cases of the refreshes in the documents: root tables with boundary values, and the query of each view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

import epochlog as el
import refresh_discovery
from refresh_world import CheckedView, Root, Story

INT, TEXT = pa.int64(), pa.string()
ORDERS = Root(
    ("id",),
    {
        "id": (INT, range(8)),
        "day": (TEXT, ["mon", "tue", "wed"]),
        "who": (TEXT, ["ann", "bob", "eve"]),
        "cents": (INT, [-1, 0, 5, 7]),
    },
)
BY_DAY, BY_WHO = (pa.schema([(column, TEXT), ("cents", INT)]) for column in ("day", "who"))
NUMBERED = pa.schema([("id", INT), ("cents", INT)])
SUMS = "SELECT {0}, sum(cents)::BIGINT AS cents FROM orders GROUP BY {0}"
TOTAL = "SELECT 0 AS id, coalesce(sum(cents), 0)::BIGINT AS cents FROM orders"
POLICIES = ("aligned", "as_of", "at_least", "bounded", "exact", "global", "latest")


@dataclass(frozen=True)
class Shown:
    """A view of a page: where its refresh stands, and what the page has around it."""

    where: str
    roots: Mapping[str, Root]
    name: str
    schema: pa.Schema
    key: tuple[str, ...]
    sql: str
    names: Mapping[str, Any] = field(default_factory=dict)


def of_orders(where: str, name: str, schema: pa.Schema, sql: str, **names: Any) -> Shown:
    return Shown(where, {"orders": ORDERS}, name, schema, (schema.names[0],), sql, names)


PEOPLE = Root(("who",), {"who": (TEXT, ["ann", "bob", "eve"]), "town": (TEXT, ["york", "ulm"])})
SECONDS = pa.timestamp("s")
MINUTES = [datetime(2026, 1, 1, 8, minute) for minute in (0, 9, 10, 35)]
AT_TIMES = Root(
    ("id",),
    {
        "id": (INT, range(8)),
        "at": (SECONDS, MINUTES),
        "came": (SECONDS, [*MINUTES, datetime(2026, 1, 1, 9, 9, 59), datetime(2026, 1, 1, 9, 10)]),
    },
)
PER_WINDOW = """
    SELECT time_bucket(INTERVAL 10 MINUTE, "at"::TIMESTAMP)::TIMESTAMP_S AS start, count(*) AS clicks
    FROM clicks
    WHERE {0}
    GROUP BY ALL
"""
SOLD = {"orders": ORDERS, "people": PEOPLE}
WINDOWS = pa.schema([("start", SECONDS), ("clicks", INT)])
COOKBOOK = "docs/guide/refreshes.md"
RECIPES = (
    of_orders("docs/guide/running-jobs.md:refresh", "large", NUMBERED, "SELECT id, cents FROM orders"),
    of_orders(f"{COOKBOOK}:revenue", "revenue", BY_DAY, SUMS.format("day")),
    Shown(
        f"{COOKBOOK}:addressed",
        SOLD,
        "addressed",
        pa.schema([("id", INT), ("town", TEXT), ("cents", INT)]),
        ("id",),
        "SELECT id, town, cents FROM orders JOIN people USING (who)",
    ),
    Shown(
        f"{COOKBOOK}:by_town",
        SOLD,
        "by_town",
        pa.schema([("town", TEXT), ("cents", INT)]),
        ("town",),
        "SELECT town, sum(cents)::BIGINT AS cents FROM orders JOIN people USING (who) GROUP BY town",
    ),
    Shown(
        f"{COOKBOOK}:best",
        {"orders": ORDERS},
        "best",
        pa.schema([("day", TEXT), ("place", INT), ("id", INT), ("cents", INT)]),
        ("day", "place"),
        "SELECT day, row_number() OVER (PARTITION BY day ORDER BY cents DESC, id) AS place, id, cents FROM orders "
        "QUALIFY place <= 2",
        {"duckdb": duckdb},
    ),
    *(
        Shown(f"{COOKBOOK}:{name}", {"clicks": AT_TIMES}, name, WINDOWS, ("start",), PER_WINDOW.format(where))
        for name, where in (("per_window", "true"), ("on_time", 'came - "at" < INTERVAL 1 HOUR'))
    ),
)
CLICKS = {"clicks": Root(("id",), {"id": (INT, range(6))})}
LOCAL = (
    *RECIPES,
    of_orders("docs/guide/choosing-a-policy.md:step.refresh", "by_who", BY_WHO, SUMS.format("who"), column="who"),
    of_orders("docs/guide/operating.md:refresh.function", "by_day", BY_DAY, SUMS.format("day"), column="day"),
    Shown(
        "docs/guide/operating.md:count",
        CLICKS,
        "seen",
        pa.schema([("n", INT)]),
        ("n",),
        "SELECT count(*) AS n FROM clicks",
    ),
)
OF_POLICIES = tuple(of_orders(f"docs/policies/{policy}.md:refresh", "revenue", NUMBERED, TOTAL) for policy in POLICIES)
ON_SPARK = (of_orders("docs/guide/first-view.md:refresh", "revenue", BY_DAY, SUMS.format("day")),)
IN_PROGRAMS = {
    "examples/pipeline.py:revenue",
    "examples/pipeline.py:Best.__call__",
    "examples/live_view.py:revenue",
    *(f"examples/tpch_views.py:{name}" for name in ("q1", "q6", "q3_orders", "q5", "q10_customers", "q3", "q10")),
    *(
        f"examples/python_refreshes.py:{name}"
        for name in ("route_delays", "worst_routes", "weather_impact", "carrier_scoreboard")
    ),
}
"""Those of the programs; the tests beside this module take them from there."""
NO_VIEWS = {
    f"{COOKBOOK}:forgetful": "it shows what a wrong refresh looks like",
    "docs/guide/operating.md:rates_are_down": "it shows what a failing refresh looks like",
    "examples/bank.py:Bank.arrivals": "it counts the transfers",
    "demo/acts.py:Slowdown.__call__": "it calls the refresh of a view, and waits",
    "demo/session.py:start_view.run": "it calls the refresh of a view",
    "demo/worker.py:holding.run": "it calls the refresh of a view",
}


def covered() -> set[str]:
    """Every refresh that is played, or known to be none."""
    return {shown.where for shown in (*LOCAL, *OF_POLICIES, *ON_SPARK)} | IN_PROGRAMS | set(NO_VIEWS)


def story_of(shown: Shown, folder: Path) -> Story:
    """The view of a page, with the refresh as it is printed there."""
    path = shown.where.partition(":")[0]
    function = refresh_discovery.refreshes_in(path, dict(refresh_discovery.sources())[path])[shown.where]
    assert function is not None
    around: dict[str, Any] = {"el": el, "pa": pa, "pc": pc, **shown.names}
    if shown in ON_SPARK:
        from pyspark.sql import functions

        around["F"] = functions
    refresh = refresh_discovery.made_of(function, folder, around)
    view = CheckedView(shown.name, tuple(shown.roots), shown.schema, shown.key, shown.sql, refresh)
    return Story(shown.roots, [view])
