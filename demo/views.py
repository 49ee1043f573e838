"""Views of the demo: each with its query, in Spark's dialect, and the same query for DuckDB.

The query for DuckDB reads root tables alone, so that a view on a view is compared with its whole derivation, and shares
no text with the other. All figures are counts, sums and quotients of integers, or copied values, so that both engines
must agree exactly. examples/python_refreshes.py has the same four views with refreshes written by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

LATE_MIN = 15
WORST = 10
WORST_MIN_FLIGHTS = 5


@dataclass(frozen=True, slots=True)
class DemoView:
    """Definition of a view."""

    name: str
    key: tuple[str, ...]
    query: str
    """Query in Spark's dialect."""
    expected: str
    """Query for DuckDB, with the same columns."""


# ---- route_delays: flights per origin and destination -------------------------------------------------------------

ROUTE_DELAYS = DemoView(
    "route_delays",
    ("origin", "dest"),
    f"""
    SELECT origin, dest,
           COUNT(*) AS flights,
           COUNT(arr_delay) AS arrived,
           SUM(arr_delay) AS delay_min,
           COUNT_IF(arr_delay > {LATE_MIN}) AS late,
           SUM(arr_delay) * 60 DIV COUNT(arr_delay) AS mean_delay_s
    FROM flights
    GROUP BY origin, dest
    """,
    f"""
    SELECT origin, dest,
           count(*) AS flights,
           count(arr_delay) AS arrived,
           sum(arr_delay)::BIGINT AS delay_min,
           count(*) FILTER (WHERE arr_delay > {LATE_MIN}) AS late,
           (sum(arr_delay) * 60 // count(arr_delay))::BIGINT AS mean_delay_s
    FROM flights
    GROUP BY origin, dest
    """,
)

# ---- worst_routes: of each origin the ten with the longest mean delay; a view on a view ----------------------------

WORST_ROUTES = DemoView(
    "worst_routes",
    ("origin", "dest"),
    f"""
    SELECT origin, dest, rank, mean_delay_s, flights
    FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY origin ORDER BY mean_delay_s DESC, dest) AS rank
          FROM route_delays
          WHERE arrived >= {WORST_MIN_FLIGHTS})
    WHERE rank <= {WORST}
    """,
    f"""
    WITH route_delays AS ({ROUTE_DELAYS.expected})
    SELECT origin, dest, rank, mean_delay_s, flights
    FROM (SELECT *, row_number() OVER (PARTITION BY origin ORDER BY mean_delay_s DESC, dest) AS rank
          FROM route_delays
          WHERE arrived >= {WORST_MIN_FLIGHTS})
    WHERE rank <= {WORST}
    """,
)

# ---- weather_impact: flights joined with weather, per origin and hour ----------------------------------------------

WEATHER_IMPACT = DemoView(
    "weather_impact",
    ("origin", "time_hour"),
    f"""
    SELECT origin, time_hour,
           COUNT(*) AS flights,
           COUNT(*) - COUNT(dep_time) AS cancelled,
           SUM(dep_delay) AS delay_min,
           COUNT_IF(dep_delay > {LATE_MIN}) AS late,
           temp, wind_speed, precip, visib
    FROM flights JOIN weather USING (origin, time_hour)
    GROUP BY origin, time_hour, temp, wind_speed, precip, visib
    """,
    f"""
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
    """,
)

# ---- carrier_scoreboard: flights per carrier, joined with airlines -------------------------------------------------

CARRIER_SCOREBOARD = DemoView(
    "carrier_scoreboard",
    ("carrier",),
    f"""
    SELECT carrier, name,
           COUNT(*) AS flights,
           COUNT(*) - COUNT(dep_time) AS cancelled,
           COUNT_IF(arr_delay <= {LATE_MIN}) * 1000 DIV COUNT(*) AS on_time_permille,
           SUM(arr_delay) AS delay_min,
           SUM(distance) AS miles
    FROM flights JOIN airlines USING (carrier)
    GROUP BY carrier, name
    """,
    f"""
    SELECT carrier, name,
           count(*) AS flights,
           count(*) - count(dep_time) AS cancelled,
           count(*) FILTER (WHERE arr_delay <= {LATE_MIN}) * 1000 // count(*) AS on_time_permille,
           sum(arr_delay)::BIGINT AS delay_min,
           sum(distance)::BIGINT AS miles
    FROM flights JOIN airlines USING (carrier)
    GROUP BY carrier, name
    """,
)

VIEWS = {view.name: view for view in (ROUTE_DELAYS, WORST_ROUTES, WEATHER_IMPACT, CARRIER_SCOREBOARD)}
