"""DELETE … WHERE through a catalog: the rows that Spark's WHERE chooses, in one commit, beside other writers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, ArithmeticException, PySparkException
from pyspark.sql import SparkSession

import epochlog as el
from epochlog.spark import delete_where
from epochlog.spark.errors import find_epochlog_error

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("text", pa.string())])
NAN = float("nan")
Rows = dict[int, tuple[int | None, str | None]]


@pytest.fixture
def store(tmp_path: Path, spark: SparkSession) -> Iterator[el.Store]:
    with el.open(tmp_path / "store") as store:
        store.create_table("t", SCHEMA, ["id"])
        el.catalog(spark, store)
        yield store
        spark.sql("USE spark_catalog.default")


def put(store: el.Store, rows: Rows) -> int:
    return store.table("t").upsert([{"id": key, "n": n, "text": text} for key, (n, text) in rows.items()])


def content(store: el.Store, epoch: int | None = None) -> Rows:
    return {row["id"]: (row["n"], row["text"]) for row in store.table("t").to_arrow(epoch=epoch).to_pylist()}


def failed(spark: SparkSession, query: str) -> el.EpochlogError:
    with pytest.raises(PySparkException) as caught:
        spark.sql(query)
    error = find_epochlog_error(caught.value)
    assert error is not None, caught.value
    return error


def refused(spark: SparkSession, query: str) -> str | None:
    """Run the statement; return Spark's error if it refuses it."""
    try:
        spark.sql(query)
    except AnalysisException as error:
        return str(error)
    return None


# ---- the rows that WHERE chooses -------------------------------------------------------------------------------------

KINDS: dict[str, tuple[pa.DataType, list[Any], list[str]]] = {
    "small": (pa.int8(), [-128, -1, 0, 3, 127], ["-128", "3", "0", "127", "300"]),
    "wide": (pa.uint64(), [0, 7, 2**64 - 1], ["7", "18446744073709551615", "0"]),
    "single": (pa.float32(), [0.0, -0.0, 0.1, NAN, float("inf")], ["float('NaN')", "0.1F", "-0.0F", "0.1D"]),
    "double": (pa.float64(), [0.0, -0.0, -2.5, NAN, float("-inf")], ["double('NaN')", "0.0D", "-2.5D", "1"]),
    "text": (pa.string(), ["", "a", "a'b\\%", "é", "10"], ["''", "'a'", "'a\\'b\\\\%'", "'é'", "'10'"]),
    "bytes": (pa.binary(), [b"", b"\x00", b"\xff\x01"], ["X''", "X'00'", "X'FF01'"]),
    "day": (pa.date32(), [date(1969, 12, 31), date(2026, 3, 29)], ["DATE'2026-03-29'", "DATE'1969-12-31'"]),
    "time": (
        pa.timestamp("us", "UTC"),
        [datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
        ["TIMESTAMP'2026-03-29 03:00:00'", "TIMESTAMP'1900-01-01 00:00:00.000001Z'"],
    ),
    "local": (pa.timestamp("us"), [datetime(2026, 3, 29, 2, 30)], ["TIMESTAMP_NTZ'2026-03-29 02:30:00'"]),
    "money": (pa.decimal128(9, 2), [Decimal("0.00"), Decimal("-3.50")], ["-3.5", "0.00", "3.505"]),
    "flag": (pa.bool_(), [True, False], ["true", "false"]),
}
NESTED = {"inner.x": (["1", "2"]), "inner.y": (["double('NaN')", "0.5D"])}
TYPED = pa.schema(
    [
        ("id", pa.int64()),
        *((name, kind) for name, (kind, _, _) in KINDS.items()),
        ("inner", pa.struct([("x", pa.int32()), ("y", pa.float64())])),
    ]
)
PAGE = [  # conditions that a random choice may miss, each with a NULL, a NaN or a type that Arrow compares otherwise
    "double = double('NaN') OR small = 3 AND double > 1e300",
    "NOT (double < 0)",
    "single IN (float('NaN'), -0.0F)",
    "text NOT IN ('a', NULL)",
    "text LIKE '%''b%' OR text LIKE '%0'",
    "NOT (inner.y >= 0.5D) AND wide > 7",
    "CAST(small AS STRING) = '3' OR money * 2 = -7",
    "time BETWEEN TIMESTAMP'1900-01-01 00:00:00Z' AND current_timestamp()",
    "inner = named_struct('x', 1, 'y', double('NaN'))",
    "CASE WHEN flag THEN small > 0 ELSE double IS NULL END",
    "(flag AND text <=> NULL) OR id < 3",
]


def typed_rows(rng: random.Random) -> list[dict[str, Any]]:
    rows = []
    for key in range(24):
        row: dict[str, Any] = {"id": key}
        for name, (_, values, _) in KINDS.items():
            row[name] = rng.choice([None, *values])
        row["inner"] = rng.choice([None, {"x": rng.choice([None, 1, 2]), "y": rng.choice([None, 0.5, NAN])}])
        rows.append(row)
    return rows


def condition(rng: random.Random, depth: int = 3) -> str:
    if depth and rng.random() < 0.6:
        left, right = condition(rng, depth - 1), condition(rng, depth - 1)
        return rng.choice([f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"])
    literals = {**{name: kind[2] for name, kind in KINDS.items()}, **NESTED, "id": ["3", "17"]}
    name = rng.choice(list(literals))
    first, second = rng.choice([*literals[name], "NULL"]), rng.choice(literals[name])
    likes, pattern = rng.choice(["LIKE", "NOT LIKE"]), rng.choice(["'a%'", "'%b%'", "'%0'"])
    sign = rng.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])
    return rng.choice(
        [
            f"{name} {sign} {second}",
            f"{second} {sign} {name}",
            f"{name} IS NULL",
            f"{name} IN ({first}, {second})",
            f"{name} NOT IN ({first}, {second})",
            f"{name} BETWEEN {first} AND {second}",
            f"coalesce({name}, {second}) {sign} {second}",
            f"text {likes} {pattern}",
            f"single {sign} double",
            "flag",
        ]
    )


def delete_as_select_chooses(store: el.Store, spark: SparkSession, rng: random.Random, conditions: list[str]) -> int:
    """Run each condition over new rows, as SELECT and as DELETE; return the number of those that Spark translates."""
    table, translated = store.create_table("typed", TYPED, ["id"]), 0
    for where in conditions:
        table.upsert(typed_rows(rng))
        if rng.random() < 0.3:
            store.compact("typed", full=True)
        kept = {row.id for row in spark.sql(f"SELECT id FROM lake.typed WHERE NOT coalesce({where}, false)").collect()}
        before = table.to_arrow()["id"].to_pylist()
        refusal = refused(spark, f"DELETE FROM lake.typed WHERE {where}")
        if refusal is None:
            translated += 1
        else:
            kept = set(before)
            assert "cannot translate expression to source filter" in refusal, where
        assert set(table.to_arrow()["id"].to_pylist()) == kept, where
    return translated


def test_delete_where_chooses_the_rows_that_select_chooses(store: el.Store, spark: SparkSession) -> None:
    assert delete_as_select_chooses(store, spark, random.Random(1), PAGE) == len(PAGE)


@pytest.mark.long
def test_random_conditions_choose_the_rows_that_select_chooses(store: el.Store, spark: SparkSession) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    conditions = [condition(rng) for _ in range(36)]
    assert delete_as_select_chooses(store, spark, rng, conditions) > 18


# ---- one commit ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changelog", ["upsert", "full"])
def test_the_log_has_the_deletes_of_one_commit(store: el.Store, spark: SparkSession, changelog: str) -> None:
    spark.sql(f"CREATE TABLE lake.c (id INT, n INT) TBLPROPERTIES (primary_key = 'id', changelog = '{changelog}')")
    spark.sql("INSERT INTO lake.c SELECT id, id % 3 FROM range(30)")
    table, before = store.table("c"), store.last_epoch
    spark.sql("DELETE FROM lake.c WHERE n = 1 AND id > 9")
    commit = table.history(1).to_pylist()[0]
    deleted = [key for key in range(30) if key % 3 == 1 and key > 9]
    assert (commit["operation"], commit["rows_deleted"]) == ("delete", len(deleted))
    changes = table.changes(before, pre_images=True).read_all()
    assert changes["id"].to_pylist() == deleted
    assert set(changes["_change_type"].to_pylist()) == {"delete"}
    assert set(changes["_commit_version"].to_pylist()) == {commit["epoch"]}
    spark.sql("DELETE FROM lake.c WHERE n = 1 AND id > 9")  # No row passes, so nothing is committed.
    assert table.history(1).to_pylist()[0] == commit
    spark.sql("DELETE FROM lake.c")
    assert table.count() == 0
    assert len(table.changes(commit["epoch"]).read_all()) == 30 - len(deleted)


def listed(count: int) -> str:
    return f"n IN ({', '.join(map(str, range(1000, 1000 + count)))})"


@pytest.mark.parametrize(
    ("condition", "count", "pruned"),
    [
        ("n > 100 AND n < 103 AND NOT n = 200", 2, True),
        (listed(300), 300, True),  # a longer list than a read converts
        (listed(301), 301, False),
    ],
    ids=["range", "list", "longer list"],
)
def test_a_delete_reads_its_columns_and_prunes(
    store: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, condition: str, count: int, pruned: bool
) -> None:
    put(store, {key: (key, "x" * 50) for key in range(200_000)})
    store.compact("t", full=True)
    read: list[Any] = []
    read_frame = delete_where.read_frame

    def noted(session: SparkSession, partition: Any, schema: Any) -> Any:
        read.append(partition)
        return read_frame(session, partition, schema)

    monkeypatch.setattr(delete_where, "read_frame", noted)
    spark.sql(f"DELETE FROM lake.t WHERE {condition}")
    assert store.table("t").count() == 200_000 - count
    (partition,) = read
    assert partition.options.columns == ["id", "n"]
    # The filter prunes before Spark has the rows.
    assert sum(batch.num_rows for batch in partition.read()) == (count if pruned else 200_000)


# ---- beside other writers --------------------------------------------------------------------------------------------

START: Rows = {1: (1, "a"), 2: (2, "a"), 3: (1, "a"), 4: (2, "a"), 5: (1, "a")}


def before_commits(
    monkeypatch: pytest.MonkeyPatch, others: list[Callable[[], object]], *, forever: bool = False
) -> list[int]:
    """Let another writer commit before each of the first commits of a delete; return the epochs of the plans of all
    rows.
    """
    commit_changes, plan_all = delete_where.commit_changes, delete_where._Delete._plan_all  # pyright: ignore[reportPrivateUsage]
    plans: list[int] = []

    def late(*args: Any, **options: Any) -> Any:
        if others:
            (others[0] if forever else others.pop(0))()
        return commit_changes(*args, **options)

    def planned(self: Any) -> Any:
        plan = plan_all(self)
        plans.append(plan.epoch)
        return plan

    monkeypatch.setattr(delete_where, "commit_changes", late)
    monkeypatch.setattr(delete_where._Delete, "_plan_all", planned)  # pyright: ignore[reportPrivateUsage]
    return plans


def test_rows_that_change_meanwhile_are_chosen_anew(
    store: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, START)
    late = [
        lambda: put(store, {1: (2, "kept"), 2: (1, "deleted"), 6: (1, "deleted"), 7: (2, "kept")}),
        lambda: store.table("t").delete([{"id": 3}]),
        lambda: put(store, {3: (9, "back"), 6: (8, "kept"), 2: (1, "deleted still")}),
    ]
    plans = before_commits(monkeypatch, list(late))
    spark.sql("DELETE FROM lake.t WHERE n = 1")
    assert content(store) == {1: (2, "kept"), 3: (9, "back"), 4: (2, "a"), 6: (8, "kept"), 7: (2, "kept")}
    assert len(plans) == 1  # The rows that nobody changed were read once.
    assert store.table("t").history(1).to_pylist()[0]["rows_deleted"] == 2  # the keys 2 and 5


def test_a_log_that_is_cut_meanwhile_makes_the_delete_read_anew(
    store: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, START)

    def commit_and_truncate() -> None:
        store.table("t").truncate_log(put(store, {1: (2, "kept"), 4: (1, "deleted")}))

    plans = before_commits(monkeypatch, [commit_and_truncate])
    spark.sql("DELETE FROM lake.t WHERE n = 1")
    assert content(store) == {1: (2, "kept"), 2: (2, "a")}
    assert len(plans) == 2


def test_a_delete_ends_beside_a_writer_that_never_rests(
    store: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, START)
    monkeypatch.setattr(delete_where, "MOST_ATTEMPTS", 3)
    before_commits(monkeypatch, [lambda: put(store, {9: (3, "new")})], forever=True)
    error = failed(spark, "DELETE FROM lake.t WHERE n = 1")
    assert isinstance(error, el.DeleteConflict)
    assert "'t'" in str(error)
    assert content(store) == {**START, 9: (3, "new")}


@pytest.mark.long
def test_random_commits_between_read_and_commit_are_kept(
    store: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    put(store, {key: (key % 5, "start") for key in range(60)})

    def other() -> None:
        keys = rng.sample(range(70), rng.randrange(1, 20))
        if rng.random() < 0.3:
            store.table("t").delete([{"id": key} for key in keys])
        else:
            put(store, {key: (rng.choice([None, *range(5)]), "late") for key in keys})
        if rng.random() < 0.2:
            store.compact("t", full=True)

    for _ in range(20):
        number = rng.randrange(5)
        put(store, dict.fromkeys(rng.sample(range(70), 3), (number, "new")))
        with monkeypatch.context() as patch:
            before_commits(patch, [other] * rng.randrange(4))
            spark.sql(f"DELETE FROM lake.t WHERE n = {number} AND id >= 10")
        last, before = store.table("t").history(2).to_pylist()
        expected = content(store, before["epoch"])
        if last["operation"] == "delete":  # else nothing was left to delete
            assert content(store) == {key: row for key, row in expected.items() if not (row[0] == number and key >= 10)}
        assert not [key for key, row in content(store).items() if row[0] == number and key >= 10]


# ---- refusals --------------------------------------------------------------------------------------------------------


def test_a_condition_that_cannot_be_evaluated_is_named(store: el.Store, spark: SparkSession) -> None:
    epoch = put(store, START)
    error = failed(spark, "DELETE FROM lake.t WHERE upper(text) = 'A'")
    assert isinstance(error, el.InvalidInput)
    assert "UPPER(text) = 'A'" in str(error)
    with pytest.raises(AnalysisException, match="cannot translate expression"):
        spark.sql("DELETE FROM lake.t WHERE text RLIKE 'a'")
    with pytest.raises(AnalysisException, match="subquery is not supported"):
        spark.sql("DELETE FROM lake.t WHERE id IN (SELECT max(id) FROM lake.t)")
    with pytest.raises(AnalysisException, match="NON_DETERMINISTIC"):
        spark.sql("DELETE FROM lake.t WHERE rand() < 0.5")
    with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO"):
        spark.sql("DELETE FROM lake.t WHERE 1 / (n - 1) > 0")
    assert (store.last_epoch, content(store)) == (epoch, START)


def test_what_cannot_be_written_is_not_deleted_from(store: el.Store, spark: SparkSession) -> None:
    first = put(store, START)
    store.snapshot().tag("nightly", timedelta(hours=1))
    job = store.create_job("copy", ["t"], {"copied": (SCHEMA, ["id"])})
    store.checkpoint()
    job.step_local(lambda ctx: ctx.upsert("copied", ctx.table("t")))
    assert isinstance(failed(spark, "DELETE FROM lake.copied WHERE n = 1"), el.NotWritable)
    assert isinstance(failed(spark, "DELETE FROM lake.nightly.t WHERE n = 1"), el.NotWritable)
    store.table("t").finish()
    assert isinstance(failed(spark, "DELETE FROM lake.t WHERE n = 1"), el.TableFinished)
    assert content(store, first) == content(store) == START
