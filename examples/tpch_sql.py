"""The views of tpch_views.py in SQL, in Spark's dialect. Their refreshes are derived from the queries.

`q3` and `q10` take the first rows of an aggregate, which is a view itself, as in tpch_views.py. The queries cast their
results to the types of those views, so that both can be compared digit for digit.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

import epochlog as el

VOLUME = "l_extendedprice * (1 - l_discount)"


@dataclass(frozen=True, slots=True)
class SqlView:
    """Definition of a view."""

    name: str
    beside: str
    """View of tpch_views.py with equal rows."""
    key: tuple[str, ...]
    sql: str


SQL_VIEWS = {
    view.name: view
    for view in (
        SqlView(
            "sql_q1",
            "q1",
            ("l_returnflag", "l_linestatus"),
            f"""
            SELECT l_returnflag, l_linestatus,
                   CAST(SUM(l_quantity) AS DECIMAL(38, 2)) AS sum_qty,
                   CAST(SUM(l_extendedprice) AS DECIMAL(38, 2)) AS sum_base_price,
                   CAST(SUM({VOLUME}) AS DECIMAL(38, 4)) AS sum_disc_price,
                   CAST(SUM({VOLUME} * (1 + l_tax)) AS DECIMAL(38, 6)) AS sum_charge,
                   CAST(SUM(l_discount) AS DECIMAL(38, 2)) AS sum_disc,
                   CAST((SUM(l_quantity) * 1000000) DIV COUNT(*) * 0.000001 AS DECIMAL(38, 6)) AS avg_qty,
                   CAST((SUM(l_extendedprice) * 1000000) DIV COUNT(*) * 0.000001 AS DECIMAL(38, 6)) AS avg_price,
                   CAST((SUM(l_discount) * 1000000) DIV COUNT(*) * 0.000001 AS DECIMAL(38, 6)) AS avg_disc,
                   COUNT(*) AS count_order
            FROM lineitem
            WHERE l_shipdate <= DATE '1998-09-02'
            GROUP BY l_returnflag, l_linestatus
            """,
        ),
        SqlView(
            "sql_q6",
            "q6",
            ("year",),
            """
            SELECT CAST(1994 AS BIGINT) AS year,
                   CAST(SUM(l_extendedprice * l_discount) AS DECIMAL(38, 4)) AS revenue, COUNT(*) AS lines
            FROM lineitem
            WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
                AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24
            HAVING COUNT(*) > 0
            """,
        ),
        SqlView(
            "sql_q3_orders",
            "q3_orders",
            ("l_orderkey",),
            f"""
            SELECT l_orderkey, CAST(SUM({VOLUME}) AS DECIMAL(38, 4)) AS revenue, o_orderdate, o_shippriority
            FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
            WHERE c_mktsegment = 'BUILDING' AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
            GROUP BY l_orderkey, o_orderdate, o_shippriority
            """,
        ),
        SqlView(
            "sql_q3",
            "q3",
            ("place",),
            """
            SELECT place, l_orderkey, revenue, o_orderdate, o_shippriority
            FROM (
                SELECT *, CAST(ROW_NUMBER() OVER (ORDER BY revenue DESC, o_orderdate, l_orderkey) AS BIGINT) AS place
                FROM sql_q3_orders
            )
            WHERE place <= 10
            """,
        ),
        SqlView(
            "sql_q5",
            "q5",
            ("n_name",),
            f"""
            SELECT n_name, CAST(SUM({VOLUME}) AS DECIMAL(38, 4)) AS revenue, COUNT(*) AS lines
            FROM customer
            JOIN orders ON c_custkey = o_custkey
            JOIN lineitem ON l_orderkey = o_orderkey
            JOIN supplier ON l_suppkey = s_suppkey AND c_nationkey = s_nationkey
            JOIN nation ON s_nationkey = n_nationkey
            JOIN region ON n_regionkey = r_regionkey
            WHERE r_name = 'ASIA' AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'
            GROUP BY n_name
            """,
        ),
        SqlView(
            "sql_q10_customers",
            "q10_customers",
            ("c_custkey",),
            f"""
            SELECT o_custkey AS c_custkey, CAST(SUM({VOLUME}) AS DECIMAL(38, 4)) AS revenue, COUNT(*) AS lines
            FROM orders JOIN lineitem ON l_orderkey = o_orderkey
            WHERE o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1994-01-01' AND l_returnflag = 'R'
            GROUP BY o_custkey
            """,
        ),
        SqlView(
            "sql_q10",
            "q10",
            ("place",),
            """
            SELECT place, c_custkey, c_name, revenue, c_acctbal, n_name, c_address, c_phone, c_comment
            FROM (
                SELECT CAST(ROW_NUMBER() OVER (ORDER BY q.revenue DESC, c.c_custkey) AS BIGINT) AS place,
                       c.c_custkey, c_name, q.revenue, c_acctbal, n_name, c_address, c_phone, c_comment
                FROM sql_q10_customers q
                JOIN customer c ON q.c_custkey = c.c_custkey
                JOIN nation ON c_nationkey = n_nationkey
            )
            WHERE place <= 20
            """,
        ),
    )
}


def create_views(store: el.Store, spark: SparkSession) -> dict[str, el.View]:
    """Create the views, upstreams first. Decimals need Spark: DuckDB's products have other numbers of digits."""
    return {view.name: store.create_view(view.name, view.sql, view.key, spark=spark) for view in SQL_VIEWS.values()}
