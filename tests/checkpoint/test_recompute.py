"""touched, among and recompute: groups that a change touches are made anew, and those that vanish are deleted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.checkpoint.worker.row_partitioning import PartRefreshContext
from epochlog.store.sst import sorted_run as runs
from lab import START_MS

ORDERS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("who", pa.string()), ("cents", pa.int64())])
BY_DAY = pa.schema([("day", pa.string()), ("cents", pa.int64())])


def orders_of(*rows: tuple[int, str | None, str | None, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(ORDERS.names, row, strict=True)) for row in rows], schema=ORDERS)


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def revenue(ctx: el.LocalRefreshContext) -> None:
    days = ctx.touched("orders", "day")
    sums = ctx.table("orders", among=days).group_by("day").aggregate([("cents", "sum")])
    ctx.recompute("revenue", by="day", from_=sums.rename_columns(["day", "cents"]))


class Shop:
    """A table of orders and jobs over it."""

    def __init__(self, root: Path) -> None:
        self.store = el.open(root, durability="os", clock=lambda: START_MS)
        self.orders = self.store.create_table("orders", ORDERS, ["id"])

    def job(
        self, name: str, schema: pa.Schema, key: list[str], upstreams: tuple[str, ...] = ("orders",), **options: Any
    ) -> el.Job:
        return self.store.create_job(name, upstreams, {name: (schema, key)}, **options)

    def step(self, job: el.Job, refresh: Callable[[Any], None]) -> list[dict[str, Any]]:
        self.store.checkpoint()
        while job.step_local(refresh) is not None:
            pass
        return self.store.table(job.name).to_arrow().to_pylist()

    def seen(self, job: el.Job, look: Callable[[Any], Any]) -> Any:
        """Call `look` with the context of the next barrier and return its result; the barrier commits no rows."""
        results: list[Any] = []
        self.step(job, lambda ctx: results.append(look(ctx)))
        return results[0]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "store")


@pytest.mark.rule("5.13")
def test_a_day_without_orders_goes_and_a_moved_order_touches_both_days(shop: Shop) -> None:
    job = shop.job("revenue", BY_DAY, ["day"])
    shop.orders.upsert(orders_of((1, "mon", "a", 5), (2, "tue", "a", 7)))
    assert shop.step(job, revenue) == [{"day": "mon", "cents": 5}, {"day": "tue", "cents": 7}]
    shop.orders.delete(ids(1))
    assert shop.step(job, revenue) == [{"day": "tue", "cents": 7}]
    shop.orders.upsert(orders_of((2, "wed", "a", 7)))
    assert shop.step(job, revenue) == [{"day": "wed", "cents": 7}]


@pytest.mark.rule("5.13")
def test_touched_are_the_values_before_and_after(shop: Shop) -> None:
    job = shop.job("revenue", BY_DAY, ["day"])
    shop.orders.upsert(orders_of((1, "mon", "a", 5), (2, "tue", "b", 7), (3, None, "b", 1)))

    def look(ctx: el.LocalRefreshContext) -> list[set[tuple[Any, ...]]]:
        tables = [ctx.touched("orders", "day"), ctx.touched("orders", ["who", "day"])]
        groups = [[tuple(row.values()) for row in table.to_pylist()] for table in tables]
        assert [len(set(each)) for each in groups] == [len(each) for each in groups]
        return [set(each) for each in groups]

    days, both = shop.seen(job, look)
    assert days == {("mon",), ("tue",), (None,)}  # in a backfill: of all rows
    assert both == {("a", "mon"), ("b", "tue"), ("b", None)}
    shop.orders.upsert(orders_of((1, "wed", "a", 5), (4, "thu", "c", 1)))
    shop.orders.delete(ids(3))
    shop.orders.delete(ids(4))
    shop.orders.upsert(orders_of((2, "tue", "b", 7)))  # as it was
    days, both = shop.seen(job, look)
    assert days == {("mon",), ("wed",), (None,)}
    assert both == {("a", "mon"), ("a", "wed"), ("b", None)}


def test_among_reads_the_rows_of_groups(shop: Shop) -> None:
    job = shop.job("revenue", BY_DAY, ["day"])
    shop.orders.upsert(orders_of((1, "mon", "a", 5), (2, "tue", None, 7), (3, None, "b", 1), (4, None, None, 2)))

    def look(ctx: el.LocalRefreshContext) -> None:
        def group_ids(groups: Any, **options: Any) -> list[int]:
            return ctx.table("orders", columns=["id"], among=groups, **options)["id"].to_pylist()

        days = pa.array(["mon", None], pa.string())
        assert group_ids(pa.table({"day": days})) == [1, 3, 4]
        assert group_ids(pa.table({"day": days, "who": pa.array(["b", None], pa.string())})) == [4]
        assert group_ids(pa.table({"day": days, "who": pa.array([None, None], pa.string())})) == [4]
        assert group_ids(pa.table({"day": days}), filter=pa.compute.field("id") > 1) == [3, 4]
        assert group_ids(pa.table({"day": pa.array([], pa.string())})) == []
        assert group_ids(ids(4, 9, 1)) == [1, 4]  # by key
        assert group_ids([{"day": "mon"}, {"day": None}]) == [1, 3, 4]
        assert ctx.table("orders", columns=[], among=ids(4, 9, 1)).num_rows == 2
        assert ctx.table("orders", columns=[], among=pa.table({"day": days})).num_rows == 3
        assert ctx.table("orders", among=ids(2)).schema == ORDERS.set(0, ORDERS.field("id").with_nullable(False))
        assert ctx.previous("orders", among=ids(1)).num_rows == 0
        with pytest.raises(el.InvalidInput, match="no column 'dax' to group by"):
            ctx.table("orders", among=pa.table({"dax": ["mon"]}))
        with pytest.raises(el.SchemaMismatch, match="'day'"):
            ctx.table("orders", among=pa.table({"day": [1]}))
        with pytest.raises(el.InvalidInput, match="grouped by column names"):
            ctx.touched("orders", [])
        for strange in ([1, 2], [], "mon", 5, pa.chunked_array([[1]])):
            with pytest.raises(el.InvalidInput, match="groups of table 'orders' are a table of some of its columns"):
                ctx.table("orders", among=strange)

    shop.seen(job, look)


def copy_of_days(ctx: el.LocalRefreshContext) -> None:
    """A copy of the orders of a hundred cents at least, made anew by day: which is no key, and may be null."""
    days = ctx.touched("orders", "day")
    ctx.recompute("dear", by="day", from_=ctx.table("orders", among=days, filter=pa.compute.field("cents") >= 100))


@pytest.mark.rule("5.13")
def test_groups_may_be_null_and_need_not_be_of_the_key(shop: Shop) -> None:
    job = shop.job("dear", ORDERS, ["id"])
    shop.orders.upsert(orders_of((1, None, "a", 500), (2, None, "a", 700), (3, "mon", "a", 700), (4, "mon", "a", 7)))
    assert [row["id"] for row in shop.step(job, copy_of_days)] == [1, 2, 3]
    shop.orders.upsert(orders_of((1, None, "a", 5), (3, None, "a", 800)))
    assert [(row["id"], row["day"]) for row in shop.step(job, copy_of_days)] == [(2, None), (3, None)]
    shop.orders.delete(ids(2, 3))
    assert shop.step(job, copy_of_days) == []


@pytest.mark.rule("5.13")
def test_rows_of_a_group_that_was_not_touched_are_refused(shop: Shop) -> None:
    job = shop.job("revenue", BY_DAY, ["day"])
    shop.orders.upsert(orders_of((1, "mon", "a", 5), (2, "tue", "a", 7)))
    shop.step(job, revenue)
    shop.orders.upsert(orders_of((1, "mon", "a", 6)))

    def all_days(ctx: el.LocalRefreshContext) -> None:
        sums = ctx.table("orders").group_by("day").aggregate([("cents", "sum")]).rename_columns(["day", "cents"])
        ctx.recompute("revenue", by="day", from_=sums)

    with pytest.raises(el.InvalidInput, match=r"the group {'day': 'tue'}, which is not among the touched"):
        shop.step(job, all_days)
    assert shop.step(job, revenue) == [{"day": "mon", "cents": 6}, {"day": "tue", "cents": 7}]


def test_the_whole_output_is_one_group(shop: Shop) -> None:
    job = shop.job("revenue", BY_DAY, ["day"])

    def best(ctx: el.LocalRefreshContext) -> None:
        sums = ctx.table("orders").group_by("day").aggregate([("cents", "sum")]).rename_columns(["day", "cents"])
        ctx.recompute("revenue", by=[], from_=sums.sort_by([("cents", "descending")]).slice(0, 1))

    shop.orders.upsert(orders_of((1, "mon", "a", 5), (2, "tue", "a", 7)))
    assert shop.step(job, best) == [{"day": "tue", "cents": 7}]
    shop.orders.upsert(orders_of((1, "mon", "a", 9)))
    assert shop.step(job, best) == [{"day": "mon", "cents": 9}]
    shop.orders.delete(ids(1, 2))
    assert shop.step(job, best) == []


def test_where_changes_of_several_tables_touch_a_group_they_must_be_named(shop: Shop) -> None:
    people = shop.store.create_table("people", pa.schema([("who", pa.string()), ("town", pa.string())]), ["who"])
    view = pa.schema([("town", pa.string()), ("cents", pa.int64())])
    job = shop.job("towns", view, ["town"], ("orders", "people"))
    shop.orders.upsert(orders_of((1, "mon", "ann", 5)))
    with pytest.raises(el.InvalidInput, match=r"\['orders', 'people'\].*touched=groups"):
        shop.step(job, lambda ctx: ctx.recompute("towns", by="town", from_=view.empty_table()))

    def towns(ctx: el.LocalRefreshContext) -> None:
        buyers = ctx.touched("orders", "who")  # their towns are those of now and of before
        homes = [read("people", columns=["town"], among=buyers) for read in (ctx.table, ctx.previous)]
        touched = pa.concat_tables([ctx.touched("people", "town"), *homes])
        who = ctx.table("people", among=touched)
        sums = ctx.table("orders").join(who, "who", join_type="inner").group_by("town").aggregate([("cents", "sum")])
        ctx.recompute("towns", by="town", touched=touched, from_=sums.rename_columns(["town", "cents"]))

    people.upsert(pa.table({"who": ["ann", "bob"], "town": ["york", "ulm"]}))
    shop.orders.upsert(orders_of((1, "mon", "ann", 5), (2, "mon", "bob", 7)))
    assert shop.step(job, towns) == [{"town": "ulm", "cents": 7}, {"town": "york", "cents": 5}]
    people.upsert(pa.table({"who": ["bob"], "town": ["york"]}))
    assert shop.step(job, towns) == [{"town": "york", "cents": 12}]


def test_what_cannot_be_recomputed_is_told(shop: Shop) -> None:
    job = shop.job("totals", pa.schema([("place", pa.string()), ("cents", pa.int64())]), ["place"])
    rows = pa.table({"place": ["a"], "cents": [1]})
    shop.orders.upsert(orders_of((1, "mon", "a", 5)))

    def refused(how: str, **arguments: Any) -> None:
        with pytest.raises(el.EpochlogError, match=how):
            shop.step(job, lambda ctx: ctx.recompute("totals", **{"by": "place", "from_": rows, **arguments}))

    refused("upstream 'orders' has no column 'place'.*touched=")
    refused("no column 'plac' to group by", by="plac")
    refused("named twice", by=["place", "place"])
    refused("grouped by column names", by=7)
    refused("leave out `touched`", by=[], touched=rows)
    refused("unknown column 'day' in the groups; the columns are 'place'", touched=pa.table({"day": ["a"]}))
    refused("unknown column 'x'", from_=pa.table({"x": [1]}))
    assert job.info.committed_epoch == 0


@pytest.mark.parametrize("by", ["day", []])
def test_an_output_is_recomputed_once_and_before_it_is_written(shop: Shop, by: Any) -> None:
    """It replaces what the output had before the barrier: rows that were written since would stay in their group."""
    job = shop.job("revenue", BY_DAY, ["day"])
    shop.orders.upsert(orders_of((1, "mon", "a", 5)))
    row = pa.table({"day": ["mon"], "cents": [5]})
    other = pa.table({"day": ["x"], "cents": [1]})

    def refresh(ctx: el.LocalRefreshContext) -> None:
        ctx.recompute("revenue", by=by, from_=row)
        with pytest.raises(el.InvalidInput, match="once for an output, with all its groups"):
            ctx.recompute("revenue", by=by, from_=row)
        ctx.upsert("revenue", other)

    assert shop.step(job, refresh) == [{"day": "mon", "cents": 5}, {"day": "x", "cents": 1}]
    shop.orders.upsert(orders_of((1, "mon", "a", 6)))

    def written(ctx: el.LocalRefreshContext) -> None:
        ctx.upsert("revenue", other)
        ctx.recompute("revenue", by=by, from_=row)

    with pytest.raises(el.InvalidInput, match="has written 'revenue' already"):
        shop.step(job, written)
    assert shop.store.table("revenue").count() == 2


@pytest.mark.rule("5.13")
@pytest.mark.parametrize("rows_a_piece", [1, 2, 3])
def test_a_backfill_in_pieces_is_right(shop: Shop, rows_a_piece: int) -> None:
    job = shop.job("revenue", BY_DAY, ["day"], snapshot_rows=rows_a_piece)
    order_rows = [(number, "mon" if number % 3 else "tue", "a", number) for number in range(7)]
    shop.orders.upsert(orders_of(*order_rows))
    calls: list[int] = []

    def counted(ctx: el.LocalRefreshContext) -> None:
        calls.append(ctx.touched("orders", "day").num_rows)
        revenue(ctx)

    assert shop.step(job, counted) == [{"day": "mon", "cents": 12}, {"day": "tue", "cents": 9}]
    assert len(calls) == -(-7 // rows_a_piece) and max(calls) <= 2
    shop.orders.delete(ids(0, 3, 6))
    assert shop.step(job, revenue) == [{"day": "mon", "cents": 12}]


@pytest.mark.rule("5.13")
def test_a_rebuild_is_right(shop: Shop) -> None:
    job = shop.job("revenue", BY_DAY, ["day"])
    shop.orders.upsert(orders_of((1, "mon", "a", 5), (2, "tue", "a", 7)))
    shop.step(job, revenue)
    job.rebuild()
    shop.orders.delete(ids(1))
    assert shop.step(job, revenue) == [{"day": "tue", "cents": 7}]


@pytest.mark.rule("5.13")
def test_each_part_writes_its_share_of_the_groups(shop: Shop) -> None:
    job = shop.job("revenue", BY_DAY, ["day"])
    days = [f"d{number}" for number in range(20)]
    shop.orders.upsert(orders_of(*((number, day, "a", number) for number, day in enumerate(days))))
    shop.step(job, revenue)
    shop.orders.delete(ids(*range(10)))
    shop.orders.upsert(orders_of(*((number, days[number], "a", 0) for number in range(10, 20))))
    shop.store.checkpoint()
    run = job._runner.begin()
    assert run is not None
    parts = [PartRefreshContext(shop.store._handle, run, part, 3) for part in range(3)]
    with pytest.raises(el.InvalidInput, match="3 parts"):
        parts[0].recompute("revenue", by=[], from_=BY_DAY.empty_table())
    for context in parts:
        revenue(context)
    written = [context._finish()["revenue"] for context in parts]
    assert sum(segment.rows for segments in written for segment in segments) == 20
    job._runner.commit(run, {"revenue": [segment for segments in written for segment in segments]})
    assert shop.store.table("revenue").to_arrow().to_pylist() == [{"day": day, "cents": 0} for day in sorted(days[10:])]


def test_a_null_in_a_key_names_the_job_the_table_and_the_row(shop: Shop) -> None:
    job = shop.job("revenue", BY_DAY, ["day"])
    message = r"^job 'revenue': table revenue, primary-key column 'day': 1 of its values are null, the first in row 1; "

    def refused(refresh: Callable[[el.LocalRefreshContext], None]) -> None:
        with pytest.raises(el.SchemaMismatch, match=message):
            shop.step(job, refresh)
        assert "SchemaMismatch: job 'revenue': table revenue, primary-key" in (job.info.last_error or "")

    shop.orders.upsert(orders_of((1, "mon", "ann", 5), (2, None, "bob", 7)))
    days = pa.table({"day": ["mon", None], "cents": [5, 7]})
    refused(revenue)
    refused(lambda ctx: ctx.upsert("revenue", days))
    refused(lambda ctx: ctx.delete("revenue", days.select(["day"])))
    refused(lambda ctx: ctx.recompute("revenue", by=[], from_=days))
    assert shop.store.table("revenue").count(0) == 0


@pytest.mark.rule("5.13")
def test_recompute_takes_each_key_once(shop: Shop) -> None:
    """Of two rows with one key only one could stay, and nothing tells which."""
    job = shop.job("dear", ORDERS, ["day", "id"])
    shop.orders.upsert(orders_of((1, "mon", "ann", 5)))
    message = r"recompute\('dear'\) was given several rows with the key {'day': 'mon', 'id': 2}; .*once"
    for by, others in (([], ()), ("who", ((1, "mon", "bob", 5),)), (["id", "day"], ())):
        rows = orders_of(
            (1, "mon", "ann", 5), (2, "mon", "ann", 6), (3, "tue", "ann", 6), (2, "mon", "bob", 6), *others
        )
        touched = {"touched": rows.select([by] if isinstance(by, str) else by)} if by else {}

        def refresh(
            ctx: el.LocalRefreshContext, by: Any = by, rows: pa.Table = rows, touched: dict[str, Any] = touched
        ) -> None:
            ctx.recompute("dear", by=by, from_=rows, **touched)

        with pytest.raises(el.InvalidInput, match=message.replace("2}", "1}") if others else message):
            shop.step(job, refresh)
    assert shop.store.table("dear").count(0) == 0
    assert len(shop.step(job, lambda ctx: ctx.recompute("dear", by=[], from_=ctx.table("orders")))) == 1


def test_a_context_that_is_over_takes_nothing(shop: Shop) -> None:
    job = shop.job("revenue", BY_DAY, ["day"])
    contexts: list[el.LocalRefreshContext] = []
    shop.step(job, contexts.append)
    with pytest.raises(el.InvalidInput, match="is over"):
        contexts[0].recompute("revenue", by="day", from_=BY_DAY.empty_table())


@pytest.mark.parametrize("by", [["who"], ["who", "id"]])
def test_the_cost_follows_the_touched_groups(shop: Shop, monkeypatch: pytest.MonkeyPatch, by: list[str]) -> None:
    """Of an output that has been folded little is decoded beside the touched groups, which begin its key."""
    monkeypatch.setattr(runs, "ROW_GROUP_ROWS", 50)
    job = shop.job("copies", ORDERS, ["who", "id"])
    shop.orders.upsert(orders_of(*((number, "mon", f"w{number // 10:03}", 1) for number in range(2000))))
    everything = shop.store.table("orders").to_arrow()
    shop.step(job, lambda ctx: ctx.recompute("copies", by=[], from_=everything))
    shop.store.compact("copies", full=True)
    decoded: list[int] = []
    read = runs.Footer.read

    def counted(footer: runs.Footer, *arguments: Any) -> pa.Table:
        rows = read(footer, *arguments)
        decoded.append(len(rows))
        return rows

    monkeypatch.setattr(runs.Footer, "read", counted)

    def some(ctx: el.LocalRefreshContext) -> None:
        decoded.clear()
        groups = ctx.touched("orders", by)
        assert groups.num_rows == (1 if by == ["who"] else 2)
        ctx.recompute("copies", by=by, touched=groups, from_=everything.slice(1235, 1))
        assert 0 < sum(decoded) <= 2 * 50

    shop.orders.delete(ids(1234))
    shop.orders.upsert(orders_of((1235, "mon", "w123", 2)))
    assert len(shop.step(job, some)) == (1991 if by == ["who"] else 1999)
