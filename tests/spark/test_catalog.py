"""A store as a Spark catalog: one query reads its tables at one epoch, and what SQL names is what the store has."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

import epochlog as el
from epochlog.batch.policy import Policy
from epochlog.batch.policy_registry import resolve_policy
from epochlog.spark.catalog.jvm import Jvm
from epochlog.spark.catalog.planned_query import PlannedQueries, PlannedQuery
from epochlog.spark.catalog.query_epochs import CatalogTables
from epochlog.spark.catalog.query_group import QueryGroups
from epochlog.spark.errors import find_epochlog_error
from spark_needs import cases, has

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("text", pa.string())])
KEYS = 4
DRIVER = Path(__file__).with_name("catalog_driver.py")


class Pairs:
    """A store with the tables `a` and `b`: every commit gives all rows of both the same new number."""

    def __init__(self, root: Path) -> None:
        self.store = el.open(root)
        self.number = 0
        self.lock = threading.Lock()
        for name in ("a", "b"):
            self.store.create_table(name, SCHEMA, ["id"])
        self.commit()

    def commit(self) -> int:
        with self.lock, self.store.transaction() as tx:
            self.number += 1
            for name in ("a", "b"):
                tx.upsert(name, [{"id": key, "n": self.number, "text": name} for key in range(KEYS)])
            return self.number


@pytest.fixture
def pairs(tmp_path: Path, spark: SparkSession) -> Iterator[Pairs]:
    made = Pairs(tmp_path / "store")
    el.catalog(spark, made.store)
    yield made
    spark.sql("USE spark_catalog.default")
    made.store.close()


@pytest.fixture
def restless(pairs: Pairs, monkeypatch: pytest.MonkeyPatch) -> Pairs:
    """Pairs that are committed anew after every load and before every scan of a table, so between any two."""
    load = CatalogTables.load

    def load_and_commit(self: CatalogTables, *args: Any) -> Any:
        loaded = load(self, *args)
        pairs.commit()
        return loaded

    def scan_and_commit(self: PlannedQueries) -> PlannedQuery:
        query = current(self)
        pairs.commit()
        return query

    current = PlannedQueries.current
    monkeypatch.setattr(CatalogTables, "load", load_and_commit)
    monkeypatch.setattr(PlannedQueries, "current", scan_and_commit)
    return pairs


def rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in spark.sql(query).collect()]


def typed(spark: SparkSession, query: str) -> el.EpochlogError:
    with pytest.raises(PySparkException) as caught:
        spark.sql(query).collect()
    error = find_epochlog_error(caught.value)
    assert error is not None, caught.value
    return error


# ---- one query, one epoch --------------------------------------------------------------------------------------------

JOIN = "SELECT x.n, y.n FROM lake.a x JOIN lake.b y USING (id)"
EVER = "CHANGES FROM TIMESTAMP '2020-01-01'"
FORMS: dict[str, str] = {
    "join": JOIN,
    "full join": "SELECT x.n, y.n FROM lake.a x FULL JOIN lake.b y ON x.id = y.id AND x.n = y.n",
    "subqueries": "SELECT (SELECT max(n) FROM lake.a), (SELECT max(n) FROM lake.b)",
    "correlated": "SELECT n, (SELECT max(y.n) FROM lake.b y WHERE y.id = x.id) FROM lake.a x",
    "exists": "SELECT x.n, 0 FROM lake.a x WHERE NOT EXISTS (SELECT 1 FROM lake.b y WHERE y.n = x.n)",
    "not in": "SELECT n, 0 FROM lake.b WHERE n NOT IN (SELECT n FROM lake.a)",
    "cte": "WITH x AS (SELECT max(n) n FROM lake.a), y AS (SELECT max(n) n FROM lake.b) SELECT x.n, y.n FROM x, y",
    "union": "SELECT min(n), max(n) FROM (SELECT n FROM lake.a UNION ALL SELECT n FROM lake.b)",
    "self join": "SELECT x.n, y.n FROM lake.a x JOIN lake.a y USING (id)",
    "set operation": "SELECT n, 0 FROM lake.a EXCEPT SELECT n, 0 FROM lake.b",
    "temporary view": "SELECT * FROM joined",
    "view and table": "SELECT j.m, y.n FROM joined j JOIN lake.b y ON true",
    "stored view": "SELECT * FROM stored_pairs",
    "changes in a subquery": f"SELECT (SELECT max(n) FROM lake.a {EVER}), max(n) FROM lake.b",
    "changes in a subquery of a table": f"SELECT (SELECT max(n) FROM lake.a {EVER}), max(n) FROM lake.a",
    "table in a subquery of changes": f"SELECT (SELECT max(n) FROM lake.b), max(n) FROM lake.a {EVER}",
    "changes at the right": f"SELECT x.n, y.n FROM lake.b x JOIN (SELECT max(n) n FROM lake.a {EVER}) y",
    "changes at the left": f"SELECT y.n, x.n FROM (SELECT max(n) n FROM lake.a {EVER}) y JOIN lake.b x",
    "changes of both": f"SELECT (SELECT max(n) FROM lake.a {EVER}), (SELECT max(n) FROM lake.b {EVER})",
    "changes of itself": f"SELECT (SELECT max(n) FROM lake.a {EVER}), (SELECT max(n) n FROM lake.a {EVER} x)",
    "changes and their table": f"SELECT x.n, max(y.n) FROM lake.a x JOIN lake.a {EVER} y USING (id) GROUP BY ALL",
    "table and its changes": f"SELECT max(y.n), x.n FROM lake.a {EVER} y JOIN lake.a x USING (id) GROUP BY ALL",
    "union of changes": "SELECT max(n), min(n) FROM (SELECT n FROM lake.b UNION ALL SELECT max(n) n FROM lake.a "
    f"{EVER})",
    "changes twice": f"WITH c AS (SELECT max(n) n FROM lake.a {EVER}) SELECT c.n, x.n FROM c, lake.b x, c d "
    "WHERE c.n = d.n",
    "changes to the future": "SELECT (SELECT max(n) FROM lake.a CHANGES FROM TIMESTAMP '2020-01-01' TO TIMESTAMP "
    "'2099-01-01'), max(n) FROM lake.b",
    "exclusive future": "SELECT (SELECT max(n) FROM lake.a CHANGES FROM TIMESTAMP '2020-01-01' EXCLUSIVE TO TIMESTAMP "
    "'2099-01-01' EXCLUSIVE), max(n) FROM lake.b",
    "changes of a version": "SELECT (SELECT max(n) FROM lake.a CHANGES FROM VERSION 0), max(n) FROM lake.b",
    "view of changes": "SELECT (SELECT max(n) FROM changed), max(n) FROM lake.b",
    "stored view of changes": "SELECT c.n, x.n FROM lake.b x JOIN stored_changes c",
    "times to come": "SELECT x.n, y.n FROM lake.a TIMESTAMP AS OF '2099-01-01' x JOIN lake.b TIMESTAMP AS OF "
    "'2099-01-01' y USING (id)",
    "now": "SELECT x.n, y.n FROM lake.a TIMESTAMP AS OF current_timestamp() x JOIN lake.b TIMESTAMP AS OF "
    "current_timestamp() y USING (id)",
    "now and a time to come": "SELECT (SELECT max(n) FROM lake.a TIMESTAMP AS OF now()), max(n) FROM lake.b TIMESTAMP "
    "AS OF '2099-01-01'",
    "two looks at a time": "SELECT x.n, y.n FROM lake.a TIMESTAMP AS OF '2099-01-01' x JOIN lake.a TIMESTAMP AS OF "
    "'2099-01-01' y USING (id)",
}
TAGGED: dict[str, str] = {
    "version": "SELECT x.n, y.n FROM lake.a VERSION AS OF 'pair' x JOIN lake.b VERSION AS OF 'pair' y USING (id)",
    "namespace": "SELECT x.n, y.n FROM lake.pair.a x JOIN lake.pair.b y USING (id)",
    "both": "SELECT x.n, y.n FROM lake.a VERSION AS OF 'pair' x JOIN lake.pair.b y USING (id)",
    "subquery": "SELECT (SELECT max(n) FROM lake.pair.a), max(n) FROM lake.b VERSION AS OF 'pair'",
    "itself": "SELECT x.n, y.n FROM lake.pair.a x JOIN lake.a VERSION AS OF 'pair' y USING (id)",
}
WITHOUT_ROWS = ("exists", "not in", "set operation")


def reads_changes(query: str) -> bool:
    """Return True for a form that Spark cannot parse without the feature `changes`."""
    return any(name in query for name in ("CHANGES", "changed", "stored_changes"))


def torn(pairs_read: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [row for row in pairs_read if row[0] != row[1]]


@pytest.fixture
def views(spark: SparkSession, pairs: Pairs) -> Iterator[None]:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW joined AS SELECT x.n AS m, y.n FROM ({JOIN}) AS t(m, n), lake.a x, lake.b y"
    )
    spark.sql("CREATE OR REPLACE VIEW stored_pairs AS SELECT x.n AS m, y.n FROM lake.a x JOIN lake.b y USING (id)")
    if has("changes"):
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW changed AS SELECT n FROM lake.a {EVER}")
        spark.sql(f"CREATE OR REPLACE VIEW stored_changes AS SELECT max(n) AS n FROM lake.a {EVER}")
    yield
    spark.sql("DROP VIEW IF EXISTS changed")
    spark.sql("DROP VIEW IF EXISTS stored_changes")
    spark.sql("DROP VIEW joined")
    spark.sql("DROP VIEW stored_pairs")


@pytest.mark.usefixtures("views", "restless")
@pytest.mark.parametrize("form", cases(FORMS, "changes", of=reads_changes))
def test_all_tables_of_one_query_are_read_at_one_epoch(spark: SparkSession, form: str) -> None:
    result = rows(spark, FORMS[form])
    assert torn(result) == []
    assert result or form in WITHOUT_ROWS


@pytest.mark.parametrize("form", TAGGED)
def test_a_tag_that_is_made_again_meanwhile_is_one_moment(
    spark: SparkSession, pairs: Pairs, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    load = CatalogTables.load

    def load_and_tag(self: CatalogTables, *args: Any) -> Any:
        loaded = load(self, *args)
        pairs.commit()
        pairs.store.drop_tag("pair")
        pairs.store.snapshot().tag("pair")
        return loaded

    pairs.store.snapshot().tag("pair")
    monkeypatch.setattr(CatalogTables, "load", load_and_tag)
    result = rows(spark, TAGGED[form])
    assert result
    assert torn(result) == []


def test_frames_at_one_time_are_read_at_one_epoch(spark: SparkSession, restless: Pairs) -> None:
    reader = spark.read.option("timestampAsOf", "2099-01-01")
    later, latest = reader.table("lake.a"), reader.table("lake.b")
    restless.commit()
    assert torn(collected(pair(later, latest))) == []
    assert torn(collected(pair(latest, later))) == []


def test_two_times_of_one_query_are_two_moments(spark: SparkSession, pairs: Pairs) -> None:
    first = pairs.number
    times = pairs.store.table("a").history()["timestamp"].to_pylist()
    while len(set(times)) < 3:
        pairs.commit()
        times = sorted(pairs.store.table("a").history()["timestamp"].to_pylist())
    query = "SELECT max(x.n), max(y.n), max(z.n) FROM lake.a TIMESTAMP AS OF '{}' x, lake.b TIMESTAMP AS OF '{}' y, "
    query += "lake.b {} z"
    past, now = times[0].isoformat(), "TIMESTAMP AS OF current_timestamp()"
    assert rows(spark, query.format(past, "2099-01-01", now)) == [(first, pairs.number, pairs.number)]
    assert rows(spark, query.format("2099-01-01", past, now)) == [(pairs.number, first, pairs.number)]


LOADED_TWICE = {form: FORMS[form] for form in ("join", "self join", "changes and their table", "table and its changes")}


@pytest.mark.usefixtures("pairs")
@pytest.mark.parametrize("form", cases(LOADED_TWICE, "changes", of=reads_changes))
def test_a_query_chooses_its_epochs_once_for_each_time_that_spark_loads_its_tables(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    choices: list[Policy] = []
    choose = CatalogTables._choose

    def counted(self: CatalogTables, policy: Policy) -> Any:
        choices.append(policy)
        return choose(self, policy)

    monkeypatch.setattr(CatalogTables, "_choose", counted)
    assert torn(rows(spark, FORMS[form])) == []
    assert len(choices) == 2, "one in analysis, one before the optimiser"


@pytest.mark.planted
@pytest.mark.needs("changes")
@pytest.mark.usefixtures("restless")
def test_changes_that_do_not_take_in_the_tables_are_noticed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlannedQuery, "take", lambda self, table: table)
    assert torn(rows(spark, FORMS["changes in a subquery"]))


@pytest.mark.planted
@pytest.mark.needs("refresh")
@pytest.mark.usefixtures("restless")
def test_a_load_that_chooses_its_own_epoch_is_noticed(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueryGroups, "epochs", lambda self, _: self._choose())
    assert torn(rows(spark, JOIN))


def test_frames_of_several_tables_are_read_at_one_epoch(spark: SparkSession, restless: Pairs) -> None:
    frames = spark.table("lake.a"), spark.table("lake.b")
    joined = frames[0].alias("x").join(frames[1].alias("y"), "id").select("x.n", "y.n")
    first = [tuple(row) for row in joined.collect()]
    assert torn(first) == []
    again = frames[1].alias("y").join(frames[0].alias("x"), "id").select("x.n", "y.n").collect()
    assert torn([tuple(row) for row in again]) == []
    assert again[0][0] > first[0][0], "a new action reads the newest rows"
    cached = spark.sql(JOIN).cache()
    try:
        assert torn([tuple(row) for row in cached.collect()]) == []
        assert cached.collect() == cached.collect()
    finally:
        cached.unpersist()


def greatest(frame: DataFrame) -> DataFrame:
    return frame.groupBy().agg(F.max("n").alias("n"))


def pair(left: DataFrame, right: DataFrame) -> DataFrame:
    return greatest(left).alias("x").crossJoin(greatest(right).alias("y")).select("x.n", "y.n")


def collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    result = [tuple(row) for row in frame.collect()]
    assert result
    return result


@pytest.mark.needs("changes")
def test_frames_of_changes_end_at_the_epoch_of_the_tables(spark: SparkSession, restless: Pairs) -> None:
    reader = spark.read.option("startingVersion", "0")
    a, b = reader.changes("lake.a"), reader.changes("lake.b")
    restless.commit()
    tables = spark.table("lake.a"), spark.table("lake.b")
    for left in (a, tables[0]):
        for right in (b, tables[1], a):
            frame = pair(left, right)
            restless.commit()
            tables[0].count()  # another query on the thread
            assert torn(collected(frame)) == []
            assert torn(collected(pair(right, left))) == []
    joined = pair(a, tables[1])
    first, again = collected(joined), collected(joined)
    assert first == again
    newer = collected(joined.where("true"))
    assert torn(newer) == []
    assert newer[0][0] > first[0][0], "a frame made of it reads the newest changes"


@pytest.mark.needs("changes")
def test_frames_that_are_refreshed_long_before_their_scans_are_built(spark: SparkSession, restless: Pairs) -> None:
    changes, table = spark.read.option("startingVersion", "0").changes("lake.a"), spark.table("lake.b")
    for frame in (pair(changes, table), pair(table, changes)):
        frame.cache()  # Spark loads the tables of the frame itself, too, but builds no scans
        frame.unpersist()
        number = restless.commit()
        changes.count()
        table.count()
        assert torn(collected(frame)) == []
        cached = frame.where("true").cache()
        try:
            assert torn(collected(cached)) == []
            assert collected(cached)[0][0] >= number
        finally:
            cached.unpersist()


@pytest.mark.needs("changes")
def test_changes_written_with_a_table_end_at_its_epoch(spark: SparkSession, restless: Pairs) -> None:
    made = "SELECT 1 id, (SELECT max(n) FROM lake.a CHANGES FROM VERSION 0) m, max(n) n FROM lake.b"
    spark.sql(f"CREATE TABLE lake.c TBLPROPERTIES (primary_key = 'id') AS {made}")
    assert torn(rows(spark, "SELECT m, n FROM lake.c")) == []
    spark.sql(f"INSERT INTO lake.c {made}")
    assert torn(rows(spark, "SELECT m, n FROM lake.c")) == []
    spark.sql(f"INSERT OVERWRITE lake.c {made}")
    frames = pair(spark.read.option("startingVersion", "0").changes("lake.a"), spark.table("lake.b")).toDF("m", "n")
    frames.selectExpr("2 id", "m", "n").writeTo("lake.c").append()
    frames.selectExpr("1 id", "m", "n").writeTo("lake.d").tableProperty("primary_key", "id").create()
    read = rows(spark, "SELECT m, n FROM lake.c UNION ALL SELECT m, n FROM lake.d")
    assert len(read) == 3
    assert torn(read) == []


@pytest.mark.needs("changes")
def test_changes_without_an_end_beside_tables_of_two_moments_are_refused(spark: SparkSession, pairs: Pairs) -> None:
    tables = CatalogTables(pairs.store._handle, resolve_policy("global"))
    query = PlannedQuery(Jvm(spark, "lake"), tables)
    query.take(tables.load("a", tables.newest()))
    pairs.commit()
    query.take(tables.load("b", tables.newest()))
    with pytest.raises(el.InvalidInput, match="TO VERSION"):
        query.newest()


@pytest.mark.needs("changes")
def test_the_changes_of_a_table_that_was_made_again_are_not_read(spark: SparkSession, pairs: Pairs) -> None:
    changes = spark.read.option("startingVersion", "0").changes("lake.b")
    pairs.store.drop_table("b")
    pairs.store.create_table("b", SCHEMA, ["id"])
    with pytest.raises(PySparkException, match="TableNotFound.*dropped after the query was analysed"):
        changes.collect()


def test_a_cached_table_keeps_its_epoch_as_the_page_says(spark: SparkSession, pairs: Pairs) -> None:
    first = pairs.number
    spark.sql("CACHE TABLE lake.a")
    try:
        second = pairs.commit()
        pinned = first if has("refresh") else second  # Spark 4.0 takes no other version of a table from its cache
        assert set(rows(spark, JOIN)) == {(pinned, second)}, (
            "Spark asks for a cached table no more: change docs/SPARK.md"
        )
        spark.sql("REFRESH TABLE lake.a")
        assert torn(rows(spark, JOIN)) == []
    finally:
        spark.sql("UNCACHE TABLE lake.a")
    result = spark.sql(JOIN).cache()
    try:
        assert result.count() == KEYS
        pairs.commit()
        assert {tuple(row) for row in result.collect()} == {(second, second)}
    finally:
        result.unpersist()


def test_a_query_reads_the_newest_commits(spark: SparkSession, pairs: Pairs) -> None:
    for query in ("SELECT n FROM lake.a WHERE false", "SELECT n FROM lake.b WHERE 1 = 0", JOIN):
        rows(spark, query)
        spark.sql(query).explain()
        number = pairs.commit()
        assert set(rows(spark, "SELECT n FROM lake.a")) == {(number,)}
        assert set(rows(spark, JOIN)) == {(number, number)}


def _query_while_two_write(spark: SparkSession, pairs: Pairs, times: int) -> list[str]:
    """Run all forms in two threads while two others commit pairs; return the torn results."""
    done, wrong = threading.Event(), list[str]()
    forms = {form: text for form, text in FORMS.items() if has("changes") or not reads_changes(text)}

    def write() -> None:
        while not done.is_set():
            pairs.commit()

    def query() -> None:
        for _ in range(times):
            for form, text in forms.items():
                bad = torn(rows(spark, text))
                wrong.extend(f"{form}: {row}" for row in bad)

    writers = [threading.Thread(target=write) for _ in range(2)]
    readers = [threading.Thread(target=_noting(query, wrong)) for _ in range(2)]
    for thread in (*writers, *readers):
        thread.start()
    for thread in readers:
        thread.join()
    done.set()
    for thread in writers:
        thread.join()
    return wrong


def _noting(work: Callable[[], None], errors: list[str]) -> Callable[[], None]:
    def run() -> None:
        try:
            work()
        except Exception as error:
            errors.append(repr(error))

    return run


@pytest.mark.long
@pytest.mark.usefixtures("views")
def test_queries_in_threads_beside_two_writers_are_never_torn(spark: SparkSession, pairs: Pairs) -> None:
    assert _query_while_two_write(spark, pairs, 3) == []


@pytest.mark.long
def test_a_stream_joins_two_tables_at_one_epoch_in_foreach_batch(
    spark: SparkSession, restless: Pairs, tmp_path: Path
) -> None:
    results: list[list[tuple[Any, ...]]] = []

    def query(frame: DataFrame, _: int) -> None:
        el.catalog(frame.sparkSession, restless.store)
        results.append(rows(frame.sparkSession, JOIN))

    stream = spark.readStream.format("epochlog").option("path", restless.store.root).option("table", "a").load()
    writer = stream.writeStream.foreachBatch(query).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert results
    assert all(len(result) == KEYS and not torn(result) for result in results)


# ---- reading ---------------------------------------------------------------------------------------------------------


def test_select_reads_what_the_store_has(spark: SparkSession, pairs: Pairs) -> None:
    pairs.store.table("a").upsert([{"id": 9, "n": None, "text": "nine"}])
    assert rows(spark, "SELECT count(*) FROM lake.a") == [(KEYS + 1,)]
    assert rows(spark, "SELECT text, n FROM lake.a WHERE id = 9") == [("nine", None)]
    assert rows(
        spark, "SELECT id FROM lake.a x WHERE EXISTS (SELECT 1 FROM lake.b y WHERE x.id = y.id) ORDER BY id"
    ) == [(key,) for key in range(KEYS)]
    pairs.store.create_table("empty", SCHEMA, ["id"])
    assert rows(spark, "SELECT count(*), max(n) FROM lake.empty") == [(0, None)]


def test_a_scan_reads_only_its_columns_and_has_statistics(spark: SparkSession, pairs: Pairs) -> None:
    pairs.store.table("a").upsert([{"id": key, "n": key, "text": "x" * 1_000} for key in range(20_000)])
    joined: Any = spark.sql("SELECT x.n FROM lake.a x JOIN lake.b y USING (id)")
    plan = joined._jdf.queryExecution().toString()
    assert "[id, n]" in plan
    assert "BroadcastHashJoin" in plan, "b is small"
    texts: Any = spark.sql("SELECT text FROM lake.a")
    assert 20_000_000 < texts._jdf.queryExecution().optimizedPlan().stats().sizeInBytes() < 40_000_000


def test_sql_lists_and_describes_the_tables(spark: SparkSession, pairs: Pairs) -> None:
    assert [row[1] for row in rows(spark, "SHOW TABLES IN lake")] == ["a", "b"]
    assert rows(spark, "SHOW COLUMNS IN lake.a") == [("id",), ("n",), ("text",)]
    described = {row[0]: row[1] for row in rows(spark, "DESCRIBE TABLE EXTENDED lake.a")}
    assert (described["id"], described["n"]) == ("bigint", "bigint")
    assert ("primary_key", "id") in rows(spark, "SHOW TBLPROPERTIES lake.a")
    spark.sql("USE lake")
    assert rows(spark, "SELECT max(n) FROM a") == [(pairs.number,)]
    assert spark.catalog.tableExists("lake.a")
    assert not spark.catalog.tableExists("lake.c")
    for query, text in {
        "SELECT * FROM lake.c": "TABLE_OR_VIEW_NOT_FOUND",
        "SELECT * FROM lake.nightly.a": "TABLE_OR_VIEW_NOT_FOUND",
        "SHOW TABLES IN lake.nightly": "SCHEMA_NOT_FOUND",
    }.items():
        with pytest.raises(PySparkException, match=text):
            rows(spark, query)


def test_time_travel_reads_versions_times_tokens_and_tags(spark: SparkSession, pairs: Pairs) -> None:
    first = pairs.number
    with pairs.store.snapshot() as snapshot:
        snapshot.tag("nightly", timedelta(hours=1))
        epoch, token = snapshot.epochs["a"], snapshot.token
    pairs.commit()
    for source in (f"lake.a VERSION AS OF {epoch}", f"lake.a VERSION AS OF '{token}'", "lake.nightly.a"):
        assert set(rows(spark, f"SELECT n FROM {source}")) == {(first,)}
    both = "SELECT x.n, y.n FROM lake.a VERSION AS OF 'nightly' x JOIN lake.b VERSION AS OF 'nightly' y USING (id)"
    assert set(rows(spark, both)) == {(first, first)}
    assert set(rows(spark, "SELECT n FROM lake.a TIMESTAMP AS OF current_timestamp()")) <= {(first,), (pairs.number,)}
    changed = "SELECT x.n, y.n FROM lake.a x JOIN lake.nightly.a y USING (id)"
    assert set(rows(spark, changed)) == {(pairs.number, first)}
    assert ("nightly",) in rows(spark, "SHOW NAMESPACES IN lake")
    spark.sql("USE lake.nightly")
    assert [row[1] for row in rows(spark, "SHOW TABLES")] == ["a", "b"]
    assert set(rows(spark, "SELECT n FROM a")) == {(first,)}


def test_a_tag_of_a_quarter_is_read_by_every_door_below_the_safe_epoch(spark: SparkSession, pairs: Pairs) -> None:
    first, store = pairs.number, pairs.store
    store.tag("2026-q3")
    for name in ("a", "b"):
        store.table(name).alter(options=el.TableOptions(history_retention=timedelta(0)))
    for _ in range(2):
        pairs.commit()
        store.compact(full=True)
    assert store.table("a").info.safe_epoch > store.tags()[0].epochs["a"]
    load = spark.read.format("epochlog").option("path", store.root).option("table", "a")
    assert {row.n for row in load.option("snapshot", "2026-q3").load().collect()} == {first}
    for source in ("lake.`2026-q3`.a", "lake.a VERSION AS OF '2026-q3'"):
        assert set(rows(spark, f"SELECT n FROM {source}")) == {(first,)}
    both = "SELECT x.n, y.n FROM lake.`2026-q3`.a x JOIN lake.`2026-q3`.b y USING (id)"
    assert set(rows(spark, both)) == {(first, first)}


def test_time_travel_to_nowhere_says_why(spark: SparkSession, pairs: Pairs) -> None:
    assert isinstance(typed(spark, "SELECT * FROM lake.a VERSION AS OF 1"), el.EpochNotCommitted)
    assert isinstance(typed(spark, f"SELECT * FROM lake.a VERSION AS OF {1 << 52}"), el.EpochNotCommitted)
    assert isinstance(typed(spark, "SELECT * FROM lake.a VERSION AS OF 'nobody'"), el.InvalidInput)
    early = typed(spark, "SELECT * FROM lake.a TIMESTAMP AS OF '2025-06-01'")
    assert isinstance(early, el.EpochNotCommitted), early
    pairs.store.snapshot().tag("nightly", timedelta(hours=1))
    assert "leave out VERSION" in str(typed(spark, "SELECT * FROM lake.nightly.a VERSION AS OF 1"))


# ---- policies --------------------------------------------------------------------------------------------------------


def test_the_catalog_reads_by_its_policy(spark: SparkSession, pairs: Pairs) -> None:
    first, epoch = pairs.number, pairs.store.last_epoch
    second = pairs.commit()
    with pytest.raises(el.InvalidInput, match=r"tables=\['orders', 'revenue'\]"):
        el.catalog(spark, pairs.store, consistency="aligned")
    policies: dict[str, tuple[dict[str, Any], int]] = {
        "as_of": ({"epoch": epoch}, first),
        "at_least": ({"epoch": epoch + 1}, second),
        "bounded": ({"max_lag": 60}, second),
        "latest": ({}, second),
        "exact": ({"epochs_or_token": {"a": epoch, "b": epoch}}, first),
        "aligned": ({"tables": ["a", "b"]}, second),
    }
    for consistency, (options, number) in policies.items():
        el.catalog(spark, pairs.store, "p", consistency, **options)
        assert set(rows(spark, "SELECT x.n, y.n FROM p.a x JOIN p.b y USING (id)")) == {(number, number)}, consistency
    el.catalog(spark, pairs.store, "p", "at_least", epoch=1 << 52, timeout=0)
    assert isinstance(typed(spark, "SELECT * FROM p.a"), el.NoConsistentEpoch)
    el.catalog(spark, pairs.store, "p", tables=["b"])
    assert [row[1] for row in rows(spark, "SHOW TABLES IN p")] == ["b"]
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        rows(spark, "SELECT * FROM p.a")


def test_as_of_leaves_out_tables_that_began_later(spark: SparkSession, pairs: Pairs) -> None:
    epoch = pairs.store.last_epoch
    pairs.store.create_table("late", SCHEMA, ["id"])
    el.catalog(spark, pairs.store, "p", "as_of", epoch=epoch)
    assert set(rows(spark, "SELECT n FROM p.a")) == {(pairs.number,)}
    assert isinstance(typed(spark, "SELECT * FROM p.late"), el.TableNotReadable)


def test_a_view_is_read_at_the_epoch_of_its_upstream(spark: SparkSession, pairs: Pairs) -> None:
    job = pairs.store.create_job("copy", ["a"], {"copied": (SCHEMA, ["id"])})
    pairs.store.checkpoint()
    job.step_local(lambda ctx: ctx.upsert("copied", ctx.table("a")))
    seen = pairs.number
    pairs.commit()
    query = "SELECT x.n, y.n FROM lake.a x JOIN lake.copied y USING (id)"
    assert set(rows(spark, query)) == {(seen, seen)}, "the view has not caught up with the newest commit"


# ---- writing ---------------------------------------------------------------------------------------------------------


def test_insert_upserts_and_overwrite_replaces(spark: SparkSession, pairs: Pairs) -> None:
    spark.sql("INSERT INTO lake.a VALUES (0, 100, 'new'), (50, 101, 'more')")
    few = "(text, id) VALUES ('no number', 51)" if has("few columns") else "VALUES (51, NULL, 'no number')"
    spark.sql(f"INSERT INTO lake.a {few}")
    by_key = {row[0]: row[1:] for row in rows(spark, "SELECT * FROM lake.a")}
    assert (by_key[0], by_key[50], by_key[51], len(by_key)) == ((100, "new"), (101, "more"), (None, "no number"), 6)
    before = pairs.store.last_epoch
    spark.sql("INSERT OVERWRITE lake.b SELECT id, n, text FROM lake.a WHERE id >= 50")
    assert pairs.store.table("b").to_arrow()["id"].to_pylist() == [50, 51]
    assert pairs.store.table("b").to_arrow(epoch=before).num_rows == KEYS
    for _ in range(2):
        frame = spark.createDataFrame([(7, 7, "once")], "id long, n long, text string")
        frame.writeTo("lake.b").option("txnAppId", "app").option("txnVersion", "1").append()
        pairs.store.table("b").delete([{"id": 7}])
    assert rows(spark, "SELECT count(*) FROM lake.b WHERE id = 7") == [(0,)], "one transaction lands once"
    spark.sql("TRUNCATE TABLE lake.b")
    spark.sql("TRUNCATE TABLE lake.b")
    assert rows(spark, "SELECT count(*) FROM lake.b") == [(0,)]
    assert rows(spark, "SELECT count(*) FROM lake.a") == [(6,)]


def test_create_table_makes_a_root_table(spark: SparkSession, pairs: Pairs) -> None:
    properties = "TBLPROPERTIES (primary_key = 'id, day', changelog = 'full')"
    spark.sql(f"CREATE TABLE lake.c (id BIGINT, day STRING, price DECIMAL(10, 2)) {properties}")
    table = pairs.store.table("c")
    assert (table.schema.names, table.primary_key) == (["id", "day", "price"], ["id", "day"])
    assert table.info.changelog == "full"
    spark.sql(f"CREATE TABLE IF NOT EXISTS lake.c (id BIGINT) {properties}")
    spark.sql("INSERT INTO lake.c VALUES (1, 'mon', 1.5)")
    spark.sql("CREATE TABLE lake.d TBLPROPERTIES (primary_key = 'id') AS SELECT id, price FROM lake.c")
    assert [float(row[1]) for row in rows(spark, "SELECT * FROM lake.d")] == [1.5]
    failing = "CREATE TABLE lake.f TBLPROPERTIES (primary_key = 'id') AS SELECT CAST(raise_error('no') AS BIGINT) AS id"
    with pytest.raises(Exception, match="no"):
        spark.sql(failing)
    assert [info.name for info in pairs.store.tables()] == ["a", "b", "c", "d"]
    spark.sql("DROP TABLE lake.d")
    spark.sql("DROP TABLE IF EXISTS lake.d")
    assert [info.name for info in pairs.store.tables()] == ["a", "b", "c"]


REFUSED = {
    "DELETE FROM lake.nightly.a WHERE id = 1": "the past",
    "UPDATE lake.a SET n = 1": "INSERT INTO lake.a",
    "MERGE INTO lake.a x USING lake.b y ON x.id = y.id WHEN MATCHED THEN UPDATE SET n = 1": "INSERT INTO lake.a",
    "INSERT INTO lake.nightly.a VALUES (1, 1, 'x')": "the past",
    "TRUNCATE TABLE lake.nightly.a": "the past",
    "CREATE TABLE lake.c (id BIGINT)": "TBLPROPERTIES",
    "CREATE TABLE lake.c (id BIGINT) USING parquet TBLPROPERTIES (primary_key = 'id')": "leave out USING",
    "CREATE TABLE lake.c (id BIGINT) PARTITIONED BY (id) TBLPROPERTIES (primary_key = 'id')": "PARTITIONED BY",
    "CREATE TABLE lake.c (id BIGINT) TBLPROPERTIES (primary_key = 'id', retention = '3')": "'retention'",
    "CREATE TABLE lake.nightly.c (id BIGINT) TBLPROPERTIES (primary_key = 'id')": "is a tag",
    "CREATE TABLE lake.c LIKE lake.a": "primary key",
    "CREATE OR REPLACE TABLE lake.a (id BIGINT) TBLPROPERTIES (primary_key = 'id')": "INSERT OVERWRITE lake.a",
    "CREATE OR REPLACE TABLE lake.a TBLPROPERTIES (primary_key = 'id') AS SELECT 1 AS id": "INSERT OVERWRITE lake.a",
    "ALTER TABLE lake.a RENAME TO lake.c": "keeps its name",
    "DROP TABLE lake.nightly.a": "is a tag",
    "CREATE NAMESPACE lake.weekly": "store.tag",
    "DROP NAMESPACE lake.nightly": "drop_tag",
}


def test_what_a_store_does_not_do_is_refused_and_named(spark: SparkSession, pairs: Pairs) -> None:
    pairs.store.snapshot().tag("nightly", timedelta(hours=1))
    before = pairs.store.last_epoch
    for query, advice in REFUSED.items():
        error = typed(spark, query)
        assert isinstance(error, el.InvalidInput)
        assert advice in str(error), query
    with pytest.raises(Exception, match="NotWritable"):
        spark.sql("ALTER TABLE lake.nightly.a ADD COLUMNS (z INT)")
    assert pairs.store.last_epoch == before
    assert [info.name for info in pairs.store.tables()] == ["a", "b"]


def test_options_that_a_table_of_a_catalog_would_ignore_are_refused(
    spark: SparkSession, pairs: Pairs, tmp_path: Path
) -> None:
    other = el.open(tmp_path / "other")
    other.create_table("a", SCHEMA, ["id"])
    first, token = pairs.store.last_epoch, pairs.store.snapshot().token
    for name, value in {"snapshot": token, "consistency": "latest", "Filter": "n = 1", "columns": "id"}.items():
        with pytest.raises(PySparkException, match=f"(?i)no option {name}"):
            spark.read.option(name, value).table("lake.a").collect()
    frame = spark.createDataFrame([(7, 7, "x")], "id long, n long, text string")
    for name, value in {"PATH": other.root, "table": "b", "columns": "id"}.items():
        with pytest.raises(PySparkException, match=f"(?i)no option {name}"):
            frame.writeTo("lake.a").option(name, value).append()
    assert (pairs.store.table("a").to_arrow().num_rows, other.table("a").to_arrow().num_rows) == (KEYS, 0)
    pairs.commit()
    read = spark.read.option("versionAsOf", str(first)).table("lake.a").collect()
    assert {row.n for row in read} == {pairs.number - 1}
    other.close()


def test_the_view_of_a_job_is_not_written(spark: SparkSession, pairs: Pairs) -> None:
    job = pairs.store.create_job("copy", ["a"], {"copied": (SCHEMA, ["id"])})
    pairs.store.checkpoint()
    job.step_local(lambda ctx: ctx.upsert("copied", ctx.table("a")))
    assert isinstance(typed(spark, "TRUNCATE TABLE lake.copied"), el.NotWritable)
    assert isinstance(typed(spark, "DROP TABLE lake.a"), el.TableInUse)
    with pytest.raises(Exception, match="NotWritable"):
        spark.sql("INSERT INTO lake.copied VALUES (1, 1, 'x')")
    assert rows(spark, "SELECT count(*) FROM lake.copied") == [(KEYS,)]


# ---- sessions --------------------------------------------------------------------------------------------------------


def test_a_cell_may_run_twice_and_each_session_has_its_own_catalog(spark: SparkSession, pairs: Pairs) -> None:
    old = spark.table("lake.a")
    el.catalog(spark, pairs.store)
    el.catalog(spark, pairs.store.root)
    assert set(rows(spark, JOIN)) == {(pairs.number, pairs.number)}
    assert old.count() == KEYS
    clone = spark.newSession()
    with pytest.raises(PySparkException):
        rows(clone, JOIN)
    el.catalog(clone, pairs.store)
    assert set(rows(clone, JOIN)) == {(pairs.number, pairs.number)}
    assert set(rows(spark, JOIN)) == {(pairs.number, pairs.number)}


def _drive(root: str, **environment: str) -> str:
    command = [sys.executable, str(DRIVER), root]
    result = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.long
def test_a_session_may_be_stopped_and_made_again(pairs: Pairs) -> None:
    lines = _drive(pairs.store.root).splitlines()
    assert [line for line in lines if line.startswith("sum")] == ["sum 4", "sum 13"]
    lost = [line.removeprefix("lost: ") for line in lines if line.startswith("lost")]
    subjects = ["catalog", "register", "snapshot.spark", 'format("epochlog")', 'format("epochlog")']
    assert [line.split(": the Spark session is lost: it was stopped. Make a new one")[0] for line in lost] == [
        *subjects, *subjects
    ]  # fmt: skip


@pytest.mark.long
def test_a_session_without_pinned_threads_is_refused(pairs: Pairs) -> None:
    said = _drive(pairs.store.root, PYSPARK_PIN_THREAD="false")
    assert "PYSPARK_PIN_THREAD" in said
    assert 'format("epochlog")' in said


def test_a_dropped_table_is_gone_and_its_successor_is_another(spark: SparkSession, pairs: Pairs) -> None:
    before = spark.table("lake.b")
    pairs.store.drop_table("b")
    with pytest.raises(PySparkException, match="TABLE_OR_VIEW_NOT_FOUND"):
        rows(spark, "SELECT * FROM lake.b")
    pairs.store.create_table("b", pa.schema([("id", pa.int64()), ("w", pa.string())]), ["id"]).upsert(
        [{"id": 1, "w": "new"}]
    )
    assert rows(spark, "SELECT w FROM lake.b") == [("new",)]
    with pytest.raises(PySparkException):
        before.collect()


def test_wrong_arguments_are_refused(spark: SparkSession, pairs: Pairs, tmp_path: Path) -> None:
    connect: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("Spark Connect", lambda: el.catalog(connect, pairs.store)),
        ("a Spark session", lambda: el.catalog("spark", pairs.store)),  # pyright: ignore[reportArgumentType]
        ("cannot be named", lambda: el.catalog(spark, pairs.store, "my lake")),
        ("Spark's own", lambda: el.catalog(spark, pairs.store, "spark_catalog")),
        ("an open store", lambda: el.catalog(spark, 3)),  # pyright: ignore[reportArgumentType]
        ("list of table names", lambda: el.catalog(spark, pairs.store, tables="a")),
        ("unknown consistency policy", lambda: el.catalog(spark, pairs.store, consistency="newest")),
        ("takes no lag", lambda: el.catalog(spark, pairs.store, consistency="bounded", max_lag=1, lag=3)),
    ]
    for text, call in wrong:
        with pytest.raises(el.InvalidInput, match=text):
            call()
    with pytest.raises(el.StoreNotFound):
        el.catalog(spark, tmp_path / "nowhere")


def test_the_reads_of_a_query_are_counted_in_the_driver(spark: SparkSession, pairs: Pairs) -> None:
    assert len(spark.sql("SELECT a.n FROM lake.a JOIN lake.b ON a.id = b.id").collect()) == KEYS
    assert 'epochlog_reads_total{door="spark"} 2.0\n' in pairs.store.metrics()
