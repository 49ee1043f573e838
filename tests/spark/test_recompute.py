"""touched, among and recompute on Spark: the same groups as without it, in one write, with typed errors."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

import epochlog as el
from epochlog.spark import refresh_context

pytestmark = pytest.mark.spark

ORDERS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("who", pa.int32()), ("cents", pa.float64())])
BY_DAY = pa.schema([("day", pa.string()), ("cents", pa.float64())])


def orders_of(*rows: tuple[int, str | None, int | None, float]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(ORDERS.names, row, strict=True)) for row in rows], schema=ORDERS)


def revenue(ctx: el.SparkRefreshContext) -> None:
    days = ctx.touched("sales", "day")
    sums = ctx.table("sales", among=days).groupBy("day").agg(F.sum("cents").alias("cents"))
    ctx.recompute("revenue", by="day", from_=sums)


def step(lake: Any, job: el.Job, refresh: Any) -> list[dict[str, Any]]:
    lake.store.checkpoint()
    while job.step(lake.spark, refresh) is not None:
        pass
    return lake.store.table(job.name).to_arrow().to_pylist()


@pytest.mark.parametrize("read_here", [refresh_context.LOCAL_TOUCHED_ROWS, 0])
def test_groups_that_vanish_go(lake: Any, monkeypatch: pytest.MonkeyPatch, read_here: int) -> None:
    monkeypatch.setattr(refresh_context, "LOCAL_TOUCHED_ROWS", read_here)
    sales = lake.store.create_table("sales", ORDERS, ["id"])
    job = lake.store.create_job("revenue", ["sales"], {"revenue": (BY_DAY, ["day"])})
    sales.upsert(orders_of((1, "mon", 1, 5.0), (2, "tue", None, 7.0)))
    assert step(lake, job, revenue) == [{"day": "mon", "cents": 5.0}, {"day": "tue", "cents": 7.0}]
    sales.upsert(orders_of((2, "wed", 2, 7.0)))
    sales.delete(pa.table({"id": [1]}))
    assert step(lake, job, revenue) == [{"day": "wed", "cents": 7.0}]


def test_what_a_refresh_reads_and_is_refused(lake: Any) -> None:
    """A copy by a column that is no key and may be null; then the errors, which commit nothing."""
    sales = lake.store.create_table("sales", ORDERS, ["id"])
    job = lake.store.create_job("dear", ["sales"], {"dear": (ORDERS, ["id"])})
    sales.upsert(orders_of((1, None, 1, 500.0), (2, None, None, 700.0), (3, "mon", 1, 700.0), (4, "mon", None, 7.0)))

    def dear(ctx: el.SparkRefreshContext) -> None:
        groups = ctx.touched("sales", ["who", "day"])
        ctx.recompute("dear", by=["who", "day"], from_=ctx.table("sales", among=groups.toArrow()).where("cents >= 100"))

    assert [row["id"] for row in step(lake, job, dear)] == [1, 2, 3]
    sales.upsert(orders_of((1, None, 1, 5.0), (2, "tue", None, 800.0)))

    def look(ctx: el.SparkRefreshContext) -> None:
        def ids(groups: Any) -> list[int]:
            return sorted(ctx.table("sales", columns=["id"], among=groups).toArrow()["id"].to_pylist())

        touched = {tuple(row) for row in ctx.touched("sales", ["who", "day"]).collect()}
        assert touched == {(1, None), (None, None), (None, "tue")}
        assert ids(ctx.touched("sales", "day")) == [1, 2]
        assert ids(pa.table({"day": pa.array([None, "mon"], pa.string()), "who": pa.array([1, None], pa.int32())})) == [
            1,
            4,
        ]
        assert ids(pa.table({"id": [4, 9]})) == [4]
        tue = ctx.table("sales").where("day = 'tue'")
        with pytest.raises(el.InvalidInput, match=r'the group {"day":"tue"}, which is not among the touched'):
            ctx.recompute("dear", by="day", from_=tue, touched=pa.table({"day": ["mon"]}))
        with pytest.raises(el.InvalidInput, match=r'the group {"who":null,"day":"tue"}'):
            ctx.recompute(
                "dear", by=["who", "day"], from_=tue, touched=ctx.touched("sales", ["who", "day"]).where("day is null")
            )
        with pytest.raises(el.InvalidInput, match="have no column 'day'"):
            ctx.recompute("dear", by="day", from_=tue, touched=pa.table({"who": [1]}))
        with pytest.raises(el.SchemaMismatch, match="'day' is missing"):
            ctx.recompute("dear", by="day", from_=tue.drop("day"))
        with pytest.raises(el.SchemaMismatch, match="without the column '_change_type'"):
            ctx.recompute("dear", by="day", from_=ctx.changes("sales"))
        with pytest.raises(el.InvalidInput, match="leave out `touched`"):
            ctx.recompute("dear", by=[], from_=tue, touched=tue)
        with pytest.raises(el.InvalidInput, match="no column 'dax'"):
            ctx.touched("sales", "dax")
        with pytest.raises(el.InvalidInput, match="groups of table 'sales' are a table of some of its columns"):
            ctx.table("sales", among=["mon"])
        with pytest.raises(el.InvalidInput, match="groups of table 'dear' are a table of some of its columns"):
            ctx.recompute("dear", by="day", from_=tue, touched=[{"day": "tue"}])
        twice = tue.unionAll(tue.withColumn("cents", F.lit(1.0)))
        with pytest.raises(
            el.InvalidInput, match=r"recompute\('dear'\) was given several rows with the key {\"id\":2}; "
        ):
            ctx.recompute("dear", by=[], from_=twice)
        with pytest.raises(el.InvalidInput, match=r"several rows with the key {\"id\":2}"):
            ctx.recompute("dear", by="day", from_=twice, touched=pa.table({"day": ["tue"]}))
        with pytest.raises(el.SchemaMismatch, match="job 'dear': table dear, primary-key column 'id': 2 of its values"):
            ctx.recompute("dear", by=[], from_=twice.withColumn("id", F.lit(None).cast("bigint")))
        ctx.recompute("dear", by=[], from_=tue)
        with pytest.raises(el.InvalidInput, match="once for an output, with all its groups"):
            ctx.recompute("dear", by=[], from_=tue)

    assert [(row["id"], row["day"]) for row in step(lake, job, look)] == [(2, "tue")]


@pytest.mark.parametrize("first", [True, False])
def test_recompute_takes_each_key_once(lake: Any, first: bool) -> None:
    """Over an output without rows and over one with rows; of two zeros and of two NaNs the key is one."""
    schema = pa.schema([("x", pa.float64()), ("day", pa.string()), ("n", pa.int64())])
    sales = lake.store.create_table("sales", schema, ["x", "day"])
    job = lake.store.create_job("copy", ["sales"], {"copy": (schema, ["x", "day"])})
    sales.upsert([{"x": 1.0, "day": "mon", "n": 1}, {"x": 2.0, "day": "mon", "n": 1}])
    if not first:
        step(lake, job, lambda ctx: ctx.recompute("copy", by=[], from_=ctx.table("sales")))
        sales.upsert([{"x": 2.0, "day": "tue", "n": 1}])
        assert lake.store.table("copy").count() == 2

    def refuse(ctx: el.SparkRefreshContext) -> None:
        for pair in ("(0.0D, 'mon', 1L), (-0.0D, 'mon', 2L)", "(double('NaN'), 'a', 1L), (double('NaN'), 'a', 1L)"):
            rows = ctx.spark.sql(f"SELECT * FROM VALUES (1D, 'mon', 1L), {pair} AS v (x, day, n)")
            with pytest.raises(el.InvalidInput, match="several rows with the key"):
                ctx.recompute("copy", by=[], from_=rows)
        ctx.recompute("copy", by=[], from_=rows.distinct())

    assert len(step(lake, job, refuse)) == 2


def test_a_backfill_in_pieces_is_right(lake: Any) -> None:
    sales = lake.store.create_table("sales", ORDERS, ["id"])
    job = lake.store.create_job("revenue", ["sales"], {"revenue": (BY_DAY, ["day"])}, snapshot_rows=2)
    sales.upsert(orders_of(*((number, "mon" if number % 2 else "tue", 1, 1.0) for number in range(4))))
    assert step(lake, job, revenue) == [{"day": "mon", "cents": 2.0}, {"day": "tue", "cents": 2.0}]


KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tiny": (pa.uint8(), [None, 0, 255]),
    "price": (pa.decimal128(10, 2), [None, Decimal("1.50"), Decimal("-1.50")]),
    "share": (pa.float64(), [None, float("nan"), 0.0]),
    "day": (pa.date32(), [None, date(2026, 1, 1), date(1969, 12, 31)]),
    "at": (pa.timestamp("s"), [None, datetime(2026, 1, 1), datetime(1969, 12, 31)]),
    "raw": (pa.large_binary(), [None, b"", b"\xff"]),
}


@pytest.mark.rule("5.13")
def test_groups_of_every_kind_of_column(lake: Any) -> None:
    """As Spark sees them these types are others; a view that copies rows by all of these columns follows them."""
    schema = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in KINDS.items())])
    first = pa.table(
        {"id": [0, 1, 2], **{name: pa.array(values, kind) for name, (kind, values) in KINDS.items()}}, schema
    )
    source = lake.store.create_table("source", schema, ["id"])
    job = lake.store.create_job("copy", ["source"], {"copy": (schema, ["id"])})

    def copy(ctx: el.SparkRefreshContext) -> None:
        groups = ctx.touched("source", list(KINDS))
        ctx.recompute("copy", by=list(KINDS), from_=ctx.table("source", among=groups))

    def one_by_one(ctx: el.SparkRefreshContext) -> None:
        for name in KINDS:
            for groups in (ctx.touched("source", name), ctx.touched("source", name).toArrow()):
                assert {row.id for row in ctx.table("source", columns=["id"], among=groups).collect()} == {0, 2}, name
        copy(ctx)

    source.upsert(first)
    step(lake, job, copy)
    assert job.check("FROM source").ok
    source.upsert(first.slice(0, 1).set_column(0, "id", pa.array([2], pa.int64())).cast(source.schema))
    step(lake, job, one_by_one)
    assert job.check("FROM source").ok
