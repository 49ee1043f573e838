"""Five queries of TPC-H as views, each with its columns, its SQL (DuckDB, over whole tables) and its refresh (Spark).

No refresh recomputes a view from the whole tables. There are three kinds of refresh:

- *by rows* (`q1`, `q6`, over one table): the refresh subtracts old rows from the sums and adds new rows, from the
  changes alone. A count next to the sums shows that a group has no row left.
- *by keys* (`q3_orders`, `q5`, `q10_customers`, over joins): the refresh joins the orders again that a change touches,
  in their current state and, for sums, in their previous state.
- *by rank* (`q3`, `q10`): the refresh takes the first ten or twenty rows of an aggregate, which is a view itself.

All sums are exact decimals, so that both engines must agree on every digit. Means are truncated after six digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

import epochlog as el

VOLUME = "l_extendedprice * (1 - l_discount)"


@dataclass(frozen=True, slots=True)
class TpchView:
    """Definition of a job with one output table of its name. `sql` reads root tables alone."""

    name: str
    upstreams: tuple[str, ...]
    schema: pa.Schema
    sql: str
    refresh: Callable[[el.SparkRefreshContext], None]

    @property
    def key(self) -> list[str]:
        return [field.name for field in self.schema if not field.nullable]


def layout(key: dict[str, pa.DataType], values: dict[str, pa.DataType]) -> pa.Schema:
    """Return a view's schema: the key columns, without nulls, then the others."""
    return pa.schema([*(pa.field(name, kind, nullable=False) for name, kind in key.items()), *values.items()])


INT, TEXT, DAY = pa.int64(), pa.string(), pa.date32()
SUM2, SUM4, SUM6 = (pa.decimal128(38, scale) for scale in (2, 4, 6))


# ---- by rows -------------------------------------------------------------------------------------------------------


def signed(changes: DataFrame) -> DataFrame:
    """Add `sign` to changes with pre-images: 1 for new rows, -1 for old rows."""
    is_old = F.col("_change_type").isin("delete", "update_preimage")
    return changes.withColumn("sign", F.when(is_old, -1).otherwise(1))


def fold(
    ctx: el.SparkRefreshContext,
    view: str,
    deltas: DataFrame,
    count: str,
    means: dict[str, str] | None = None,
    *,
    anew: bool = False,
) -> None:
    """Add the deltas to the view's sums; delete the groups with a count of 0.

    `means`: expressions, by column, over the sums. `anew`: the deltas are the sums, and old rows do not count.
    """
    key = VIEWS[view].key
    sums = [name for name in deltas.columns if name not in key]
    so_far = ctx.output(view).limit(0) if anew else ctx.output(view)
    before = so_far.select(*key, *(F.col(name).alias(f"was_{name}") for name in sums))
    added = [F.expr(f"{name} + coalesce(was_{name}, 0) AS {name}") for name in sums]
    rows = deltas.join(before, key, "left").select(*key, *added)
    for name, text in (means or {}).items():
        rows = rows.withColumn(name, F.when(F.col(count) > 0, F.expr(text)))
    ctx.upsert(view, rows.withColumn("_change_type", F.when(F.col(count) > 0, "upsert").otherwise("delete")))


Q1 = f"""
    SELECT l_returnflag, l_linestatus,
           sum(l_quantity) AS sum_qty,
           sum(l_extendedprice) AS sum_base_price,
           sum({VOLUME}) AS sum_disc_price,
           sum({VOLUME} * (1 + l_tax)) AS sum_charge,
           sum(l_discount) AS sum_disc,
           (sum(l_quantity) * 1000000)::HUGEINT // count(*) * 0.000001 AS avg_qty,
           (sum(l_extendedprice) * 1000000)::HUGEINT // count(*) * 0.000001 AS avg_price,
           (sum(l_discount) * 1000000)::HUGEINT // count(*) * 0.000001 AS avg_disc,
           count(*) AS count_order
    FROM lineitem
    WHERE l_shipdate <= DATE '1998-09-02'
    GROUP BY l_returnflag, l_linestatus
"""
Q1_COLUMNS = ["l_returnflag", "l_linestatus", "l_quantity", "l_extendedprice", "l_discount", "l_tax", "l_shipdate"]
Q1_MEANS = {
    "avg_qty": "(sum_qty * 1000000) div count_order * 0.000001",
    "avg_price": "(sum_base_price * 1000000) div count_order * 0.000001",
    "avg_disc": "(sum_disc * 1000000) div count_order * 0.000001",
}


def q1(ctx: el.SparkRefreshContext) -> None:
    lines = signed(ctx.changes("lineitem", pre_images=True, columns=Q1_COLUMNS)).where("l_shipdate <= '1998-09-02'")
    deltas = lines.groupBy("l_returnflag", "l_linestatus").agg(
        F.expr("sum(sign * l_quantity) AS sum_qty"),
        F.expr("sum(sign * l_extendedprice) AS sum_base_price"),
        F.expr(f"sum(sign * {VOLUME}) AS sum_disc_price"),
        F.expr(f"sum(sign * {VOLUME} * (1 + l_tax)) AS sum_charge"),
        F.expr("sum(sign * l_discount) AS sum_disc"),
        F.expr("sum(sign) AS count_order"),
    )
    fold(ctx, "q1", deltas, "count_order", Q1_MEANS)


Q6_WHERE = """
    l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01' AND l_discount BETWEEN 0.05 AND 0.07
    AND l_quantity < 24
"""
Q6 = f"""
    SELECT 1994 AS year, sum(l_extendedprice * l_discount) AS revenue, count(*) AS lines
    FROM lineitem
    WHERE {Q6_WHERE}
    HAVING count(*) > 0
"""


def q6(ctx: el.SparkRefreshContext) -> None:
    columns = ["l_quantity", "l_extendedprice", "l_discount", "l_shipdate"]
    lines = signed(ctx.changes("lineitem", pre_images=True, columns=columns)).where(Q6_WHERE)
    deltas = lines.groupBy(F.lit(1994).cast("long").alias("year")).agg(
        F.expr("sum(sign * l_extendedprice * l_discount) AS revenue"), F.expr("sum(sign) AS lines")
    )
    fold(ctx, "q6", deltas, "lines")


# ---- by keys -------------------------------------------------------------------------------------------------------

ORDERS = ["o_orderkey", "o_custkey", "o_orderdate", "o_shippriority"]
LINES = ["l_orderkey", "l_suppkey", "l_extendedprice", "l_discount", "l_returnflag", "l_shipdate"]


def touched(ctx: el.SparkRefreshContext, *, customers: bool = False, suppliers: bool = False) -> pa.Table | None:
    """Return the keys of the orders that the barrier's changes touch, directly or in a line; None for all orders, in
    the first barrier.

    With `customers`, a change of an order's customer touches it too. With `suppliers`, so does a change of the
    supplier, the nation or the region of one of its lines.
    """
    if ctx.barrier.prev == 0:
        return None
    no_keys = pa.table({"key": pa.array([], pa.int64())})
    buyers = keys_pointing_at(ctx, "customer", "c_custkey", "c_nationkey", no_keys) if customers else no_keys
    sellers = no_keys
    if suppliers:
        regions = keys_pointing_at(ctx, "region", "r_regionkey", "r_regionkey", no_keys)
        nations = keys_pointing_at(ctx, "nation", "n_nationkey", "n_regionkey", regions)
        sellers = keys_pointing_at(ctx, "supplier", "s_suppkey", "s_nationkey", nations)
    orders = keys_pointing_at(ctx, "orders", "o_orderkey", "o_custkey", buyers)
    return pa.concat_tables([orders, keys_pointing_at(ctx, "lineitem", "l_orderkey", "l_suppkey", sellers)])


def keys_pointing_at(ctx: el.SparkRefreshContext, table: str, key: str, foreign: str, keys: pa.Table) -> pa.Table:
    """Return the `key`s of the changed rows of a table, and of the rows with a `foreign` in `keys`."""
    key_sets = [ctx.touched(table, key).toArrow()]
    if keys.num_rows:
        key_sets.append(ctx.table(table, columns=[key], among=keys.rename_columns([foreign])).toArrow())
    return pa.concat_tables(each.rename_columns(["key"]).cast(pa.schema([("key", INT)])) for each in key_sets)


def as_column(column: str, keys: pa.Table | None) -> pa.Table | None:
    """Name the column of the keys; None stays None (all keys)."""
    return None if keys is None else keys.rename_columns([column])


def lines_of_orders(
    read: Callable[..., DataFrame], keys: pa.Table | None, *, orders: str = "true", lines: str = "true"
) -> DataFrame:
    """Join the lines of these orders with their orders. read: ctx.table for current rows, ctx.previous for old ones."""
    line_rows = read("lineitem", columns=LINES, among=as_column("l_orderkey", keys)).where(lines)
    order_rows = read("orders", columns=ORDERS, among=as_column("o_orderkey", keys)).where(orders)
    if keys is not None:
        order_rows = F.broadcast(order_rows)
    return line_rows.join(order_rows, F.col("l_orderkey") == F.col("o_orderkey"))


def now_and_before(ctx: el.SparkRefreshContext, rows: Callable[[Callable[..., DataFrame]], DataFrame]) -> DataFrame:
    """Return the union of `rows(ctx.table)` with `sign` 1 and `rows(ctx.previous)` with `sign` -1."""
    return rows(ctx.table).withColumn("sign", F.lit(1)).unionByName(rows(ctx.previous).withColumn("sign", F.lit(-1)))


Q3_ORDERS = f"""
    SELECT l_orderkey, sum({VOLUME}) AS revenue, o_orderdate, o_shippriority
    FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
    WHERE c_mktsegment = 'BUILDING' AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
    GROUP BY l_orderkey, o_orderdate, o_shippriority
"""


def q3_orders(ctx: el.SparkRefreshContext) -> None:
    keys = touched(ctx, customers=True)
    lines = lines_of_orders(ctx.table, keys, orders="o_orderdate < '1995-03-15'", lines="l_shipdate > '1995-03-15'")
    builders = ctx.table("customer", columns=["c_custkey", "c_mktsegment"]).where("c_mktsegment = 'BUILDING'")
    answer = (
        lines.join(builders, F.col("c_custkey") == F.col("o_custkey"))
        .groupBy("l_orderkey", "o_orderdate", "o_shippriority")
        .agg(F.expr(f"sum({VOLUME}) AS revenue"))
    )
    if keys is None:
        ctx.upsert("q3_orders", answer)
    else:
        ctx.recompute("q3_orders", by="l_orderkey", touched=as_column("l_orderkey", keys), from_=answer)


Q5 = f"""
    SELECT n_name, sum({VOLUME}) AS revenue, count(*) AS lines
    FROM customer
    JOIN orders ON c_custkey = o_custkey
    JOIN lineitem ON l_orderkey = o_orderkey
    JOIN supplier ON l_suppkey = s_suppkey AND c_nationkey = s_nationkey
    JOIN nation ON s_nationkey = n_nationkey
    JOIN region ON n_regionkey = r_regionkey
    WHERE r_name = 'ASIA' AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'
    GROUP BY n_name
"""


def q5(ctx: el.SparkRefreshContext) -> None:
    keys = touched(ctx, customers=True, suppliers=True)

    def lines(read: Callable[..., DataFrame]) -> DataFrame:
        nations = read("nation").join(read("region"), F.expr("n_regionkey = r_regionkey AND r_name = 'ASIA'"))
        suppliers = read("supplier", columns=["s_suppkey", "s_nationkey"])
        customers = read("customer", columns=["c_custkey", "c_nationkey"])
        return (
            lines_of_orders(read, keys, orders="o_orderdate >= '1994-01-01' AND o_orderdate < '1995-01-01'")
            .join(suppliers.join(nations, F.expr("s_nationkey = n_nationkey")), F.expr("l_suppkey = s_suppkey"))
            .join(customers, F.expr("o_custkey = c_custkey AND c_nationkey = s_nationkey"))
            .select("n_name", "l_extendedprice", "l_discount")
        )

    deltas = (
        now_and_before(ctx, lines)
        .groupBy("n_name")
        .agg(F.expr(f"sum(sign * {VOLUME}) AS revenue"), F.expr("sum(sign) AS lines"))
    )
    fold(ctx, "q5", deltas, "lines", anew=keys is None)


Q10_CUSTOMERS = f"""
    SELECT o_custkey AS c_custkey, sum({VOLUME}) AS revenue, count(*) AS lines
    FROM orders JOIN lineitem ON l_orderkey = o_orderkey
    WHERE o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1994-01-01' AND l_returnflag = 'R'
    GROUP BY o_custkey
"""


def q10_customers(ctx: el.SparkRefreshContext) -> None:
    keys = touched(ctx)
    quarter = "o_orderdate >= '1993-10-01' AND o_orderdate < '1994-01-01'"
    lines = now_and_before(ctx, lambda read: lines_of_orders(read, keys, orders=quarter, lines="l_returnflag = 'R'"))
    deltas = lines.groupBy(F.col("o_custkey").alias("c_custkey")).agg(
        F.expr(f"sum(sign * {VOLUME}) AS revenue"), F.expr("sum(sign) AS lines")
    )
    fold(ctx, "q10_customers", deltas, "lines", anew=keys is None)


# ---- by rank -------------------------------------------------------------------------------------------------------

Q3 = f"""
    SELECT row_number() OVER (ORDER BY revenue DESC, o_orderdate, l_orderkey) AS place, *
    FROM ({Q3_ORDERS})
    QUALIFY place <= 10
"""


def q3(ctx: el.SparkRefreshContext) -> None:
    order = [F.desc("revenue"), "o_orderdate", "l_orderkey"]
    best = ctx.table("q3_orders").orderBy(*order).limit(10)
    ctx.recompute("q3", by=[], from_=best.withColumn("place", place(order)))


def place(order: Sequence[Any]) -> Any:
    """Return the row number in this order. One task numbers all rows, so the frame must be small."""
    return F.row_number().over(Window.orderBy(*order)).cast("long")


Q10 = f"""
    SELECT row_number() OVER (ORDER BY revenue DESC, c_custkey) AS place,
           c_custkey, c_name, revenue, c_acctbal, n_name, c_address, c_phone, c_comment
    FROM ({Q10_CUSTOMERS}) JOIN customer USING (c_custkey) JOIN nation ON c_nationkey = n_nationkey
    QUALIFY place <= 20
"""


def q10(ctx: el.SparkRefreshContext) -> None:
    order = [F.desc("revenue"), "c_custkey"]
    customers = ctx.table("customer").join(ctx.table("nation"), F.expr("c_nationkey = n_nationkey"))
    best = ctx.table("q10_customers").join(customers, "c_custkey").orderBy(*order).limit(20)
    answer = best.withColumn("place", place(order))
    ctx.recompute("q10", by=[], from_=answer.select(VIEWS["q10"].schema.names))


VIEWS = {
    view.name: view
    for view in (
        TpchView(
            "q1",
            ("lineitem",),
            layout(
                {"l_returnflag": TEXT, "l_linestatus": TEXT},
                {"sum_qty": SUM2, "sum_base_price": SUM2, "sum_disc_price": SUM4, "sum_charge": SUM6, "sum_disc": SUM2}
                | {"avg_qty": SUM6, "avg_price": SUM6, "avg_disc": SUM6, "count_order": INT},
            ),
            Q1,
            q1,
        ),
        TpchView("q6", ("lineitem",), layout({"year": INT}, {"revenue": SUM4, "lines": INT}), Q6, q6),
        TpchView(
            "q3_orders",
            ("customer", "orders", "lineitem"),
            layout({"l_orderkey": INT}, {"revenue": SUM4, "o_orderdate": DAY, "o_shippriority": pa.int32()}),
            Q3_ORDERS,
            q3_orders,
        ),
        TpchView(
            "q3",
            ("q3_orders",),
            layout(
                {"place": INT},
                {"l_orderkey": INT, "revenue": SUM4, "o_orderdate": DAY, "o_shippriority": pa.int32()},
            ),
            Q3,
            q3,
        ),
        TpchView(
            "q5",
            ("customer", "orders", "lineitem", "supplier", "nation", "region"),
            layout({"n_name": TEXT}, {"revenue": SUM4, "lines": INT}),
            Q5,
            q5,
        ),
        TpchView(
            "q10_customers",
            ("orders", "lineitem"),
            layout({"c_custkey": INT}, {"revenue": SUM4, "lines": INT}),
            Q10_CUSTOMERS,
            q10_customers,
        ),
        TpchView(
            "q10",
            ("q10_customers", "customer", "nation"),
            layout(
                {"place": INT},
                {"c_custkey": INT, "c_name": TEXT, "revenue": SUM4, "c_acctbal": pa.decimal128(15, 2), "n_name": TEXT}
                | {"c_address": TEXT, "c_phone": TEXT, "c_comment": TEXT},
            ),
            Q10,
            q10,
        ),
    )
}
