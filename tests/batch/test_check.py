"""job.check compares outputs with their query at the job's own epoch, and shows each kind of difference."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from lab import START_MS

ORDERS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("cents", pa.int64()), ("share", pa.float64())])
VIEW = pa.schema([("day", pa.string()), ("cents", pa.int64()), ("share", pa.float64())])
SQL = "SELECT day, sum(cents) AS cents, sum(share) AS share FROM orders GROUP BY day"
NAN = float("nan")


class Shop:
    """Orders, and a job whose one output is whatever its refresh is told to write."""

    def __init__(self, root: Path) -> None:
        self.store = el.open(root, durability="os", clock=lambda: START_MS)
        self.orders = self.store.create_table("orders", ORDERS, ["id"])
        self.job = self.store.create_job("revenue", ["orders"], {"revenue": (VIEW, ["day"])})

    def put(self, *rows: tuple[int, str | None, int | None, float | None]) -> None:
        self.orders.upsert(pa.Table.from_pylist([dict(zip(ORDERS.names, row, strict=True)) for row in rows], ORDERS))

    def show(self, *rows: tuple[str, int | None, float | None]) -> int:
        """Commit an output of exactly these rows."""
        made = pa.Table.from_pylist([dict(zip(VIEW.names, row, strict=True)) for row in rows], VIEW)
        self.store.checkpoint()
        epoch = self.job.step_local(lambda ctx: ctx.recompute("revenue", by=[], from_=made))
        assert epoch
        return epoch


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "store")


def test_equal_outputs_are_told_so(shop: Shop) -> None:
    shop.put((1, "mon", 500, 0.5), (2, "mon", 200, 0.25), (3, "tue", None, None))
    epoch = shop.show(("mon", 700, 0.75), ("tue", None, None))
    report = shop.job.check(SQL)
    assert report.ok and (report.job, report.epoch) == ("revenue", epoch)
    assert str(report).startswith(f"job revenue at epoch {epoch} (") and "equal to its query\n" in str(report)
    assert str(report.outputs["revenue"]) == "revenue: 2 rows, as the query gives"


def test_differences_are_told_by_kind(shop: Shop) -> None:
    shop.put((1, "mon", 500, 0.5), (2, "tue", 200, 0.25), (3, "wed", 1, 1.0))
    shop.show(("mon", 7, 0.5), ("tue", 200, 0.25), ("thu", 9, None))
    difference = shop.job.check(SQL).outputs["revenue"]
    assert (difference.missing, difference.extra, difference.different) == (1, 1, 1)
    assert (difference.rows, difference.expected_rows) == (3, 3)
    assert difference.missing_rows.to_pylist() == [{"day": "wed", "cents": 1, "share": 1.0}]
    assert difference.extra_rows.to_pylist() == [{"day": "thu", "cents": 9, "share": None}]
    assert difference.different_rows.to_pylist() == [{"day": "mon", "cents": 7, "cents_expected": 500}]
    assert not difference.ok
    assert str(difference).splitlines() == [
        "revenue: 3 rows, the query gives 3",
        "1 are missing:",
        "  day    cents  share",
        "  'wed'  1      1.0  ",
        "1 are too many:",
        "  day    cents  share",
        "  'thu'  9      null ",
        "1 have other values:",
        "  day    cents  cents_expected",
        "  'mon'  7      500           ",
    ]


def test_both_are_read_at_the_jobs_epoch(shop: Shop) -> None:
    """Changes after the job's epoch do not count as a difference, even after compaction."""
    shop.put((1, "mon", 500, 0.5))
    shop.show(("mon", 500, 0.5))
    shop.put((2, "mon", 1, 0.5), (3, "tue", 1, 0.5))
    shop.store.compact(full=True)
    assert shop.job.check(SQL).ok


def test_a_job_that_moves_on_is_pinned_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its epoch was let go of between the choice and the pin."""
    from epochlog.batch import check

    shop.put((1, "mon", 500, 0.5))
    shop.show(("mon", 500, 0.5))
    take, pending = check.take_snapshot, [True]

    def overtaken(handle: Any, policy: Any, tables: Any) -> Any:
        if pending and pending.pop():
            shop.put((1, "mon", 600, 0.5))
            shop.show(("mon", 600, 0.5))
            raise el.EpochExpired("let go of")
        return take(handle, policy, tables)

    monkeypatch.setattr(check, "take_snapshot", overtaken)
    report = shop.job.check(SQL)
    assert report.ok and report.epoch == shop.job.info.committed_epoch

    def gone(*_: Any) -> Any:
        raise el.EpochExpired("let go of")

    monkeypatch.setattr(check, "take_snapshot", gone)
    with pytest.raises(el.EpochExpired):
        shop.job.check(SQL)


def test_nothing_is_held_afterwards(shop: Shop) -> None:
    shop.put((1, "mon", 500, 0.5))
    shop.show(("mon", 500, 0.5))
    shop.job.check(SQL)
    with pytest.raises(el.InvalidInput):
        shop.job.check("SELECT nope FROM orders")
    assert shop.store._handle.leases.count("snapshot") == 0


@pytest.mark.parametrize(("ours", "theirs", "tolerance", "equal"), [
    (NAN, NAN, 0.0, True),
    (NAN, 1.0, 0.5, False),
    (None, NAN, 0.5, False),
    (None, None, 0.0, True),
    (-0.0, 0.0, 0.0, True),
    (0.1 + 0.2, 0.3, 0.0, False),
    (0.1 + 0.2, 0.3, 1e-12, True),
    (1e9, 1e9 + 1, 1e-8, True),
    (1e9, 1e9 + 100, 1e-8, False),
    (float("inf"), float("inf"), 0.0, True),
    (float("inf"), float("-inf"), 0.5, False),
    (float("inf"), 1.0, 0.5, False),
])  # fmt: skip
def test_when_floats_are_equal(shop: Shop, ours: Any, theirs: Any, tolerance: float, equal: bool) -> None:
    shop.put((1, "mon", 1, 0.0))
    shop.show(("mon", 1, ours))
    wanted = pa.table({"share": pa.array([theirs], pa.float64()), "day": ["mon"], "cents": [1]})
    assert shop.job.check(lambda ctx: wanted, tolerance=tolerance).ok is equal


def test_a_function_reads_tables(shop: Shop) -> None:
    shop.put((1, "mon", 500, 0.5), (2, "mon", 700, 0.5))
    epoch = shop.show(("mon", 1200, 1.0))

    def sums(ctx: el.CheckContext) -> pa.Table:
        assert ctx.epoch == epoch
        with pytest.raises(el.InvalidInput, match="no table 'revenue'"):
            ctx.table("revenue")
        sums = ctx.table("orders").group_by("day").aggregate([("cents", "sum"), ("share", "sum")])
        return sums.rename_columns(["day", "cents", "share"])

    assert shop.job.check(sums).ok
    assert shop.job.check(lambda ctx: {"revenue": sums(ctx).to_pandas()}).ok


def test_several_outputs_are_named(tmp_path: Path) -> None:
    with el.open(tmp_path / "store", durability="os") as store:
        rows = pa.schema([("id", pa.int64())])
        numbers = store.create_table("numbers", rows, ["id"])
        job = store.create_job("halves", ["numbers"], {"even": (rows, ["id"]), "odd": (rows, ["id"])})
        numbers.upsert(pa.table({"id": range(5)}))
        store.checkpoint()

        def refresh(ctx: el.LocalRefreshContext) -> None:
            ctx.upsert("even", pa.table({"id": [0, 2, 4]}))
            ctx.upsert("odd", pa.table({"id": [1, 5]}))

        job.step_local(refresh)
        even, odd = (f"SELECT id FROM numbers WHERE id % 2 = {remainder}" for remainder in (0, 1))
        report = job.check({"even": even, "odd": odd})
        assert not report.ok and report.outputs["even"].ok
        assert report.outputs["odd"].missing_rows["id"].to_pylist() == [3]
        assert job.check({"even": even}).ok
        with pytest.raises(el.InvalidInput, match="has several outputs"):
            job.check(even)
        with pytest.raises(el.InvalidInput, match="no output 'numbers'"):
            job.check({"numbers": even})
        with pytest.raises(el.InvalidInput, match="has no output"):
            job.check({})


def test_a_sample_is_kept_of_many(shop: Shop) -> None:
    shop.put(*((number, f"d{number:02}", 1, 1.0) for number in range(30)))
    shop.show(("d00", 2, 1.0))
    difference = shop.job.check(SQL, sample=3).outputs["revenue"]
    assert (difference.missing, difference.missing_rows.num_rows, difference.different) == (29, 3, 1)
    assert "29 are missing, the first 3:" in str(difference)


@pytest.mark.parametrize(("query", "error", "match"), [
    ("SELECT nope FROM orders", el.InvalidInput, "query of 'revenue' failed: .*nope"),
    ("SELECT * FROM revenue", el.InvalidInput, "failed: .*revenue"),
    ("SELECT * FROM '/etc/passwd'", el.InvalidInput, "query of 'revenue' failed"),
    ("CREATE TABLE x (a int)", el.InvalidInput, None),
    ("", el.InvalidInput, None),
    ("SELECT day FROM orders", el.InvalidInput, r"has the columns \['day'\]"),
    ("SELECT day, cents, share FROM orders", el.InvalidInput, "several rows with the key {'day': 'mon'}"),
    ("SELECT 'x' AS day, 0.5 AS cents, 0.5 AS share", el.SchemaMismatch, "column 'cents' .*cast it"),
    ("SELECT 'x' AS day, 'y' AS cents, 0.5 AS share", el.SchemaMismatch, "column 'cents' .*cast it"),
    ("SELECT NULL AS day, 1 AS cents, 1.5::DOUBLE AS share", el.SchemaMismatch, "'day'"),
    ("SELECT 'x' AS day, 2::HUGEINT ** 70 AS cents, 1::DOUBLE AS share", el.SchemaMismatch, "'cents'"),
    (7, el.InvalidInput, "takes a SELECT"),
    ({"revenue": 7}, el.InvalidInput, "the text of a SELECT"),
    (lambda ctx: 7, el.InvalidInput, "int is not tabular"),
])  # fmt: skip
def test_queries_that_are_refused(shop: Shop, query: Any, error: type[Exception], match: str | None) -> None:
    shop.put((1, "mon", 500, 0.5), (2, "mon", 700, 0.25))
    shop.show(("mon", 1200, 0.75))
    with pytest.raises(error, match=match):
        shop.job.check(query)


@pytest.mark.parametrize(
    "options", [{"tolerance": -1}, {"tolerance": NAN}, {"tolerance": True}, {"sample": 0}, {"sample": "1"}]
)
def test_options_that_are_refused(shop: Shop, options: dict[str, Any]) -> None:
    shop.put((1, "mon", 500, 0.5))
    shop.show(("mon", 500, 0.5))
    with pytest.raises(el.InvalidInput, match=next(iter(options))):
        shop.job.check(SQL, **options)


def test_a_job_that_has_not_committed_has_nothing_to_check(shop: Shop) -> None:
    with pytest.raises(el.InvalidInput, match="has not committed yet"):
        shop.job.check(SQL)


def test_without_duckdb_it_says_what_to_install(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.put((1, "mon", 500, 0.5))
    shop.show(("mon", 500, 0.5))
    load: Callable[..., Any] = builtins.__import__

    def without(name: str, *args: Any, **more: Any) -> Any:
        if name == "duckdb":
            raise ModuleNotFoundError("No module named 'duckdb'", name="duckdb")
        return load(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(el.DependencyMissing, match="pip install duckdb"):
        shop.job.check(SQL)
    assert shop.job.check(lambda ctx: shop.store.table("revenue").to_arrow()).ok


def test_types_of_a_query_are_cast_where_they_are_exact(tmp_path: Path) -> None:
    with el.open(tmp_path / "store", durability="os") as store:
        store.create_table("orders", ORDERS, ["id"]).upsert(
            pa.Table.from_pylist([{"id": 1, "day": "mon", "cents": 5, "share": 0.5}], ORDERS)
        )
        fields = {
            "id": pa.int32(),
            "tiny": pa.uint8(),
            "money": pa.decimal128(20, 2),
            "half": pa.float32(),
            "big": pa.decimal256(50, 3),
        }
        job = store.create_job("odd", ["orders"], {"odd": (pa.schema(list(fields.items())), ["id"])})
        store.checkpoint()
        row = {"id": 1, "tiny": 5, "money": Decimal("0.50"), "half": 0.5, "big": Decimal("5.000")}
        made = pa.Table.from_pylist([row], pa.schema(list(fields.items())))
        job.step_local(lambda ctx: ctx.upsert("odd", made))
        sql = "SELECT id, sum(cents) tiny, sum(share) money, sum(share) half, sum(cents) big FROM orders GROUP BY id"
        assert job.check(sql).ok
        with pytest.raises(el.SchemaMismatch, match="'money'"):
            job.check(sql.replace("sum(share) money", "sum(share) / 3 money"))
