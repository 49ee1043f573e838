"""Bad input of every kind: a typed error that names table and column, and nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.store.types.epoch import from_unix_ms

NOW_MS = 1_767_225_600_000
SCHEMA = pa.schema([
    pa.field("id", pa.int64()), pa.field("day", pa.string()), pa.field("amount", pa.float64()),
    pa.field("need", pa.int32(), nullable=False),
])  # fmt: skip
GOOD: dict[str, list[Any]] = {"id": [1], "day": ["mon"], "amount": [1.0], "need": [1]}


class Clock:
    """A clock that stands until it is moved."""

    now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os", clock=clock) as opened:
        opened.create_table("orders", SCHEMA, ["id", "day"])
        opened.create_table("other", SCHEMA, ["id"])
        yield opened


def rows(**columns: Any) -> pa.Table:
    merged = {**GOOD, **columns}
    fields = [field for field in SCHEMA if field.name in merged]
    named = {field.name: pa.array(merged[field.name], field.type) for field in fields if field.name not in columns}
    return pa.table({**named, **columns})


@contextmanager
def nothing_left(store: el.Store, error: type[Exception], match: str | None = None) -> Iterator[None]:
    """The body raises that error, and the store is afterwards as it was: epochs, tables, histories, files on disk."""

    def look() -> tuple[Any, ...]:
        report, root = store.verify(), Path(store.root)
        files = {path for path in root.rglob("*") if path.is_file() and path.suffix in (".arrow", ".parquet")}
        return store.last_epoch, store.tables(), [len(store.table(info.name).history()) for info in store.tables()], \
            report, files  # fmt: skip

    before = look()
    with pytest.raises(error, match=match) as caught:
        yield
    assert isinstance(caught.value, el.EpochlogError)
    assert look() == before


# ---- rows --------------------------------------------------------------------------------------------------------

BAD_ROWS: dict[str, tuple[Any, str]] = {
    "missing key column": (rows().drop_columns(["id"]), "orders.*'id'.*missing"),
    "missing column": (rows().drop_columns(["amount"]), "orders.*'amount'.*missing"),
    "null in a key": (rows(day=pa.array([None], pa.string())), "orders.*'day'.*null"),
    "null where none may be": (rows(need=pa.array([None], pa.int32())), "orders.*'need'.*null"),
    "string for a number": (rows(amount=["much"]), "orders.*'amount'.*string"),
    "number that does not fit": (rows(need=pa.array([1 << 40], pa.int64())), "orders.*'need'"),
    "fraction for an integer": (rows(id=[1.5]), "orders.*'id'"),
    "unknown column": (rows().append_column("extra", pa.array([1])), "orders.*'extra'"),
    "column twice": (rows().append_column("day", pa.array(["tue"])), "orders.*'day'.*twice"),
    "no table at all": ([1, 2], "orders"),
    "text": ("id,day", "orders"),
}


@pytest.mark.parametrize("data, match", BAD_ROWS.values(), ids=list(BAD_ROWS))
def test_bad_rows_are_named_and_leave_nothing(store: el.Store, data: Any, match: str) -> None:
    with nothing_left(store, el.InvalidInput, match):
        store.table("orders").upsert(data)
    with nothing_left(store, el.InvalidInput, match), store.transaction() as tx:
        tx.upsert("other", rows())
        tx.upsert("orders", data)
    writer = store.table("orders").writer()
    with nothing_left(store, el.InvalidInput, match):
        writer.upsert(data)


BAD_KEYS: dict[str, tuple[Any, str]] = {
    "missing key column": (pa.table({"id": [1]}), "orders.*'day'.*missing"),
    "null key": (pa.table({"id": pa.array([None], pa.int64()), "day": ["mon"]}), "orders.*'id'.*null"),
    "wrong type": (pa.table({"id": ["x"], "day": ["mon"]}), "orders.*'id'"),
    "not a key column": (pa.table({"id": [1], "day": ["mon"], "amount": [1.0]}), "orders.*'amount'"),
}


@pytest.mark.parametrize("keys, match", BAD_KEYS.values(), ids=list(BAD_KEYS))
def test_bad_keys_are_named_and_leave_nothing(store: el.Store, keys: pa.Table, match: str) -> None:
    table = store.table("orders")
    for call in (table.delete, table.get, table.writer().delete):
        with nothing_left(store, el.SchemaMismatch, match):
            call(keys)


def test_rows_flushed_before_a_bad_one_leave_no_file(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction that has filled its memory has files already; they go when it fails."""
    monkeypatch.setattr("epochlog.store.sst.segment_writer.FLUSH_ROWS", 1)
    with nothing_left(store, el.SchemaMismatch, "orders"), store.transaction() as tx:
        tx.upsert("other", rows())
        tx.upsert("orders", rows())
        tx.upsert("orders", rows(id=["x"]))
    store.checkpoint()
    with nothing_left(store, el.EpochRegressed, "1"), store.transaction(epoch=1) as tx:
        tx.upsert("other", rows())
        tx.upsert("orders", rows())
    writer = store.table("orders").writer()
    writer.upsert(rows())
    writer.abort()
    assert store.verify().unreachable == ()


def fail() -> None:
    raise ZeroDivisionError


def test_an_error_of_the_users_own_in_a_transaction_leaves_nothing(store: el.Store) -> None:
    with suppress(ZeroDivisionError), store.transaction() as tx:
        tx.upsert("orders", rows())
        fail()
    with pytest.raises(el.InvalidInput):
        _ = tx.epoch
    assert store.verify().unreachable == () and store.last_epoch == 0


def test_a_transaction_is_written_inside_its_block_and_once(store: el.Store) -> None:
    tx = store.transaction()
    with nothing_left(store, el.InvalidInput, "with"):
        tx.upsert("orders", rows())
    with tx:
        tx.upsert("orders", rows())
    for late in (lambda: tx.upsert("orders", rows()), lambda: tx.delete("orders", None), tx.__enter__):
        with nothing_left(store, el.InvalidInput, "over"):
            late()


# ---- tables ------------------------------------------------------------------------------------------------------

BAD_NAMES = ["", "Orders", "1st", "_t", "a" * 64, "a b", "a/b", "../up", "é", "a\n", "\ud800", None, 7]


@pytest.mark.parametrize("name", BAD_NAMES, ids=ascii)
def test_bad_names(store: el.Store, name: Any) -> None:
    with nothing_left(store, el.InvalidName):
        store.create_table(name, SCHEMA, ["id"])
    for call in (
        store.table,
        store.drop_table,
        lambda name: store.commit({name: []}),
        store.compact if name else store.table,
    ):
        with nothing_left(store, el.TableNotFound):
            call(name)


BAD_SCHEMAS: dict[str, tuple[Any, Any, type[Exception], str]] = {
    "no key": (SCHEMA, [], el.InvalidSchema, "new"),
    "unknown key column": (SCHEMA, ["nope"], el.InvalidSchema, "new.*'nope'"),
    "key column twice": (SCHEMA, ["id", "id"], el.InvalidSchema, "new.*'id'.*twice"),
    "key as a string": (SCHEMA, "id", el.InvalidSchema, "new"),
    "hidden name": (pa.schema([("_key", pa.int64())]), ["_key"], el.InvalidSchema, "new.*'_key'"),
    "name with NUL": (pa.schema([("a\0b", pa.int64())]), ["a\0b"], el.InvalidSchema, r"new.*'a\\x00b'.*NUL"),
    "column twice": (pa.schema([("a", pa.int64()), ("a", pa.int64())]), ["a"], el.InvalidSchema, "new"),
    "key of lists": (pa.schema([("a", pa.list_(pa.int64()))]), ["a"], el.InvalidSchema, "new.*'a'"),
    "no schema": ({"a": "int64"}, ["a"], el.InvalidSchema, "new"),
    "too many columns": (pa.schema([(f"c{i}", pa.int8()) for i in range(2001)]), ["c0"], el.LimitExceeded, "new"),
}


@pytest.mark.parametrize("schema, key, error, match", BAD_SCHEMAS.values(), ids=list(BAD_SCHEMAS))
def test_bad_schemas(store: el.Store, schema: Any, key: Any, error: type[Exception], match: str) -> None:
    with nothing_left(store, error, match):
        store.create_table("new", schema, key)


def test_a_table_that_is_there_already(store: el.Store) -> None:
    with nothing_left(store, el.TableExists, "orders"):
        store.create_table("orders", SCHEMA, ["id"])


@pytest.mark.parametrize("options", [
    {"history_retention": 5}, {"history_retention": timedelta(-1)}, {"log_retention": None}, {"compact_segments": 0},
    {"compact_segments": "many"}, {"compact_segments": True},
])  # fmt: skip
def test_bad_table_options(options: dict[str, Any]) -> None:
    with pytest.raises(el.InvalidInput, match=next(iter(options))):
        el.TableOptions(**options)


def test_bad_arguments_of_create(store: el.Store) -> None:
    for arguments in ({"changelog": "none"}, {"options": {"history_retention": 1}}):
        with nothing_left(store, el.InvalidInput, "new"):
            store.create_table("new", SCHEMA, ["id"], **arguments)


# ---- epochs ------------------------------------------------------------------------------------------------------


@pytest.mark.rule("1.2", "1.5")
def test_an_epoch_that_regresses(store: el.Store) -> None:
    table = store.table("orders")
    newest = store.table("other").upsert(rows())
    for epoch in (1, newest - 1, newest):
        with nothing_left(store, el.EpochRegressed, str(newest)):
            table.upsert(rows(), epoch=epoch)
        with nothing_left(store, el.EpochRegressed, str(newest)):
            table.delete(pa.table({"id": [1], "day": ["mon"]}), epoch=epoch)
    sealed = store.checkpoint()
    with nothing_left(store, el.EpochRegressed):
        table.upsert(rows(), epoch=sealed)
    for epoch in (0, -1, True, "1", 1.5):
        with nothing_left(store, el.InvalidInput, "epoch"):
            table.upsert(rows(), epoch=epoch)


@pytest.mark.rule("1.2", "1.62")
def test_a_clock_that_is_ahead_or_was_set_back(store: el.Store, clock: Clock) -> None:
    table = store.table("orders")
    with nothing_left(store, el.ClockSkew):
        table.upsert(rows(), epoch=from_unix_ms(clock.now_ms + 10_000) + 1)
    assert table.upsert(rows(), epoch=from_unix_ms(clock.now_ms + 10_000)) == store.last_epoch
    clock.now_ms -= 86_400_000
    newest = store.last_epoch
    assert table.upsert(rows()) == newest + 1
    assert store.checkpoint() == newest + 1
    with nothing_left(store, el.ClockSkew):
        table.upsert(rows(), epoch=newest + 1 + (1 << 12) + 1)
    assert table.upsert(rows(), epoch=newest + 1 + (1 << 12)) == store.last_epoch
    assert table.finish() == newest + 2 + (1 << 12)


@pytest.mark.rule("2.6", "4.6")
def test_epochs_of_reads(store: el.Store, clock: Clock) -> None:
    table = store.create_table("short", SCHEMA, ["id"], options=el.TableOptions(history_retention=timedelta(0)))
    first = table.upsert(rows())
    clock.now_ms += 5
    newest = table.upsert(rows())
    for read in (
        lambda e: table.to_arrow(epoch=e),
        lambda e: table.scan(epoch=e),
        table.count,
        lambda e: table.get(KEY, epoch=e),
    ):
        with nothing_left(store, el.EpochNotCommitted, "short"):
            read(newest + 1)
        for bad in (-1, True, "x", 1.0):
            with nothing_left(store, el.InvalidInput):
                read(bad)
    store.compact("short")
    for read in (lambda: table.to_arrow(epoch=first), lambda: table.changes(first, pre_images=True)):
        with nothing_left(store, el.EpochExpired, "short"):
            read()
    assert table.changes(first).read_all().num_rows == 1, "the log does not end with the history"


KEY = pa.table({"id": [1]})


# ---- questions ---------------------------------------------------------------------------------------------------


def test_bad_questions_are_refused_when_they_are_asked(store: el.Store) -> None:
    """Not when the first batch is read."""
    table = store.table("orders")
    table.upsert(rows())
    questions: list[Callable[[], Any]] = [
        lambda: table.to_arrow(columns=["nope"]),
        lambda: table.to_arrow(columns=["id", "id"]),
        lambda: table.to_arrow(columns="id"),
        lambda: table.scan(columns=["nope"]),
        lambda: table.scan(filter=pc.field("nope") > 1),
        lambda: table.to_arrow(filter=pc.field("day") > 1),
        lambda: table.scan(filter=[True]),
        lambda: table.get(pa.table({"id": [1], "day": ["mon"]}), columns=["nope"]),
        lambda: table.changes(0, mode="all"),
        lambda: table.changes(0, columns=["nope"]),
        lambda: table.changes(0, filter=pc.field("amount") > 1),
        lambda: table.changes(0, filter=[True]),
        lambda: table.changes(-1),
        lambda: table.changes("0"),
        lambda: table.changes(0, True),
        lambda: table.next_epoch(-1),
        lambda: table.truncate_log(-1),
        lambda: table.truncate_log(store.last_epoch + 1),
        lambda: store.snapshot("orders"),
        lambda: store.snapshot([]),
    ]
    for question in questions:
        with nothing_left(store, el.InvalidInput):
            question()


# ---- transactions exactly once -----------------------------------------------------------------------------------


def test_a_filter_that_names_nan_rules_out_no_file(store: el.Store) -> None:
    """Arrow takes `not (x < NaN)` for false where it knows bounds of x; the rows of a float key were gone."""
    table = store.create_table("t", pa.schema([("k", pa.float32())]), ["k"])
    table.upsert(pa.table({"k": pa.array([0.5, 2.0], pa.float32())}))
    nan = pa.scalar(float("nan"), pa.float32())
    for _ in range(2):
        for where in (~(pc.field("k") < nan), ~(pc.field("k") >= nan), pc.field("k") != nan):
            assert table.to_arrow(filter=where).num_rows == 2
        store.compact("t", full=True)


def test_no_filter_makes_a_sound_file_pass_for_damaged(store: el.Store) -> None:
    """Arrow takes uint64 for int64 where it meets a plain number, and fails at values of 2**63 and more."""
    table = store.create_table("t", pa.schema([("k", pa.uint64()), ("v", pa.uint64())]), ["k"])
    values = pa.array([0, 1, 2**64 - 1], pa.uint64())
    table.upsert(pa.table({"k": values, "v": values}))
    zero = pa.scalar(0, pa.uint64())
    for _ in range(2):
        for name in ("k", "v"):
            assert table.to_arrow(filter=pc.field(name) == zero).num_rows == 1
            with pytest.raises(el.InvalidInput, match="give it in the column's: pa.scalar"):
                table.to_arrow(filter=pc.field(name) == 0)
            with store.snapshot(["t"]) as snapshot:
                assert snapshot["t"].lazy().filter(pl.col(name) == 0).collect().height == 1
        store.compact("t", full=True)


@pytest.mark.parametrize(
    "filter",
    [
        pc.divide(pc.field("id"), 0) == 1,
        pc.add_checked(pc.field("id"), pa.scalar(2**63 - 1)) == 1,
        pc.equal(pc.field("at"), pc.field("zoned")),
    ],
)
def test_a_filter_without_an_answer_for_a_row(store: el.Store, filter: pc.Expression) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("zoned", pa.timestamp("us", "UTC"))])
    table = store.create_table("t", schema, ["id"])
    table.upsert(pa.table({"id": [1], "at": [1], "zoned": [1]}, schema=schema))
    with store.snapshot(["t"]) as snapshot:
        for read in (table.to_arrow, snapshot["t"].to_arrow, lambda **args: table.scan(**args).read_all()):
            with pytest.raises(el.InvalidInput, match="filter .* of? ?table 't'|filter does not fit table 't'"):
                read(filter=filter)


@pytest.mark.parametrize("txn", [
    ("app",), ("app", -1), ("app", "1"), ("app", True), ("", 1), ("a\0b", 1), ("a" * 201, 1), ("\ud800", 1),
    ("app", 1 << 63), 5, "ab",
], ids=ascii)  # fmt: skip
def test_a_pair_that_is_none(store: el.Store, txn: Any) -> None:
    for call in (
        lambda: store.table("orders").upsert(rows(), txn=txn),
        lambda: store.transaction(txn),
        lambda: store.resolve(txn),
        lambda: store.commit({"orders": []}, txn=txn),
    ):
        with nothing_left(store, el.InvalidInput, "txn"):
            call()
    with nothing_left(store, el.InvalidInput, "txn"):
        store.resolve(None)


@pytest.mark.rule("1.7")
def test_a_pair_again(store: el.Store) -> None:
    orders, other = store.table("orders"), store.table("other")
    first = orders.upsert(rows(), txn=("app", 1))
    files = store.verify()
    assert orders.upsert(rows(amount=[2.0]), txn=("app", 1)) == first
    assert store.verify() == files and orders.to_arrow()["amount"].to_pylist() == [1.0]
    with nothing_left(store, el.TxnMismatch, "app"):
        other.upsert(rows(), txn=("app", 1))
    with nothing_left(store, el.TxnMismatch, "app"), store.transaction(("app", 1)) as tx:
        tx.upsert("orders", rows())
        tx.upsert("other", rows())
    assert store.resolve(("app", 1)) == first
    assert store.resolve(("app", 2)) is None
    with nothing_left(store, el.TxnAborted, "app"):
        orders.upsert(rows(), txn=("app", 2))


@pytest.mark.rule("1.7")
def test_a_pair_again_after_the_table_is_finished(store: el.Store) -> None:
    orders = store.table("orders")
    first = orders.upsert(rows(), txn=("app", 1))
    orders.finish()
    assert orders.upsert(rows(), txn=("app", 1)) == first
    with store.transaction(("app", 1)) as tx:
        tx.upsert("orders", rows())
    assert tx.epoch == first and store.verify().unreachable == ()


@pytest.mark.rule("1.7")
def test_outcomes_are_kept_for_a_thousand_commits(store: el.Store) -> None:
    orders = store.table("orders")
    first = orders.upsert(rows(), txn=("app", 0))
    for number in range(1, 1000):
        store.resolve(("app", number))
    assert orders.upsert(rows(), txn=("app", 0)) == first
    store.resolve(("app", 1000))
    with nothing_left(store, el.TxnOutcomeForgotten, "app"):
        orders.upsert(rows(), txn=("app", 0))
    with nothing_left(store, el.TxnOutcomeForgotten, "app"):
        store.resolve(("app", 0))
    assert orders.upsert(rows(), txn=("other app", 0)) > first


# ---- sealed segments ---------------------------------------------------------------------------------------------


@pytest.mark.rule("1.5")
@pytest.mark.local_only
def test_segments_that_no_commit_takes(store: el.Store, tmp_path: Path, clock: Clock) -> None:
    orders, label = store.table("orders"), from_unix_ms(clock.now_ms) + 5
    writer = orders.writer()
    writer.upsert(rows())
    sealed = writer.seal(label)
    for bad in (label, 0, True, "9"):
        with pytest.raises(el.InvalidInput, match="label"):
            writer.seal(bad)
    with nothing_left(store, el.SegmentUnknown, "other"):
        store.commit({"other": sealed})
    with nothing_left(store, el.SegmentUnknown, "twice"):
        store.commit({"orders": sealed * 2})
    with el.open(tmp_path / "second", durability="os", clock=clock) as second:
        second.create_table("orders", SCHEMA, ["id", "day"])
        with nothing_left(second, el.SegmentUnknown, "orders"):
            second.commit({"orders": sealed})
    for junk in ([1], None, "segments", {"a": 1}):
        with nothing_left(store, el.InvalidInput, "orders"):
            store.commit({"orders": junk})
    for junk in ({}, None, ["orders"]):
        with nothing_left(store, el.InvalidInput):
            store.commit(junk)
    at = store.commit({"orders": sealed}, txn=("app", 1))
    assert store.commit({"orders": sealed}, txn=("app", 1)) == at
    for pair in (None, ("app", 2)):
        with nothing_left(store, el.SegmentUnknown, "already"):
            store.commit({"orders": sealed}, txn=pair)
    writer.upsert(rows())
    (gone,) = writer.seal(label + 1)
    (Path(store.root) / gone.path).unlink()
    with nothing_left(store, el.SegmentUnknown, "gone"):
        store.commit({"orders": [gone]})


# ---- states of tables and stores ---------------------------------------------------------------------------------


@pytest.mark.rule("1.5")
def test_a_finished_table_takes_nothing(store: el.Store) -> None:
    orders = store.table("orders")
    writer = orders.writer()
    writer.upsert(rows())
    sealed = writer.seal(from_unix_ms(NOW_MS) + 1)
    orders.upsert(rows())
    end = orders.finish()
    assert orders.info.state == "finished" and orders.next_epoch(end - 1) == end
    for call in (
        lambda: orders.upsert(rows()),
        lambda: orders.delete(pa.table({"id": [1], "day": ["mon"]})),
        orders.finish,
        orders.writer,
        lambda: store.commit({"orders": sealed}),
    ):
        with nothing_left(store, el.TableFinished, "orders"):
            call()
    with nothing_left(store, el.TableFinished, "orders"), store.transaction() as tx:
        tx.upsert("other", rows())
        tx.upsert("orders", rows())
    assert orders.count() == 1


def test_a_dropped_table_is_dropped_though_another_has_its_name(store: el.Store) -> None:
    old = store.table("orders")
    old.upsert(rows())
    writer = old.writer()
    writer.upsert(rows())
    sealed = writer.seal(store.last_epoch + 1)
    store.drop_table("orders")
    store.create_table("orders", SCHEMA, ["id", "day"])
    calls: list[Callable[[], Any]] = [
        lambda: old.upsert(rows()), lambda: old.delete(pa.table({"id": [1], "day": ["mon"]})), old.finish, old.writer,
        old.to_arrow, old.scan, old.count, lambda: old.get(pa.table({"id": [1], "day": ["mon"]})), lambda: old.info,
        lambda: old.changes(0), lambda: old.next_epoch(0), lambda: old.truncate_log(1), old.history,
    ]  # fmt: skip
    for call in calls:
        with nothing_left(store, el.TableDropped, "orders"):
            call()
    with nothing_left(store, el.SegmentUnknown, "orders"):
        store.commit({"orders": sealed})
    assert store.table("orders").count() == 0 and store.table("orders").next_epoch(0) is None


def test_a_derived_table_is_written_by_its_job_alone(store: el.Store) -> None:
    store.create_job("sums", upstreams=["orders"], outputs={"sums": (SCHEMA, ["id"])})
    sums = store.table("sums")
    for call in (
        lambda: sums.upsert(rows()),
        lambda: sums.delete(KEY),
        sums.finish,
        sums.writer,
        lambda: store.commit({"sums": []}),
    ):
        with nothing_left(store, el.NotWritable, "sums"):
            call()
    with nothing_left(store, el.NotWritable, "sums"), store.transaction() as tx:
        tx.upsert("orders", rows())
        tx.upsert("sums", rows())
    for name in ("orders", "sums"):
        with nothing_left(store, el.TableInUse, "sums"):
            store.drop_table(name)


@pytest.mark.rule("4.10")
def test_a_log_that_is_truncated_or_held(store: el.Store) -> None:
    orders = store.table("orders")
    epochs = [orders.upsert(rows(id=[number])) for number in range(4)]
    orders.truncate_log(epochs[1])
    for call in (
        lambda: orders.changes(epochs[1] - 1),
        lambda: orders.next_epoch(epochs[0]),
        lambda: orders.changes(0),
    ):
        with nothing_left(store, el.LogTruncated, "orders"):
            call()
    assert orders.changes(epochs[1]).read_all()["id"].to_pylist() == [2, 3]
    assert orders.count() == 4, "what reads need stays"
    store.create_job("sums", upstreams=["other"], outputs={"sums": (SCHEMA, ["id"])}, backfill="log")
    at = store.table("other").upsert(rows())
    with nothing_left(store, el.LogHeld, "sums"):
        store.table("other").truncate_log(at)
    orders.truncate_log(epochs[0])
    assert orders.info.log_start_epoch == epochs[1], "the mark never falls"


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = el.open(tmp_path / "s")
    table = store.create_table("orders", SCHEMA, ["id"])
    sealing, filled = table.writer(), table.writer()
    filled.upsert(rows())
    tx = store.transaction()
    tx.__enter__()
    tx.upsert("orders", rows())
    store.close()
    store.close()
    for call in (
        lambda: table.upsert(rows()), table.to_arrow, lambda: table.changes(0), lambda: table.info, table.writer,
        lambda: store.last_epoch, store.tables, lambda: store.table("orders"), store.checkpoint, store.compact,
        store.snapshot, store.verify, lambda: store.create_table("x", SCHEMA, ["id"]), lambda: store.resolve(("a", 1)),
        lambda: store.commit({"orders": []}), lambda: tx.__exit__(None, None, None), table.finish, table.history,
    ):  # fmt: skip
        with pytest.raises(el.StoreClosed):
            call()
    assert sealing.seal(1) == []
    with el.open(tmp_path / "s") as again:
        assert again.last_epoch == 0 and again.verify().unreachable == ()
