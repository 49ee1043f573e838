"""Catalogs that every session of a Spark application has, and the Java class behind them."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import epochlog as el
from epochlog.spark import java_class
from epochlog.spark.catalog import session_catalogs
from epochlog.spark.catalog.session_catalogs import CLASS, JavaMethod, class_source
from spark_store import Lake, forget_catalog, refusal, rows

pytestmark = pytest.mark.spark

HOST = Path(__file__).with_name("connect_host.py")
SETTING = "spark.sql.catalog.pond"


@pytest.fixture
def pond(lake: Lake) -> Iterator[Lake]:
    """Return the store of `lake` with rows, as the catalog `pond` of all sessions to come."""
    lake.orders.upsert(rows(0, 6))
    lake.store.checkpoint()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        el.catalog(lake.spark, lake.store, "pond", all_sessions=True)
    yield lake
    forget_catalog(lake.spark, "pond")


def count(session: SparkSession, table: str = "pond.orders") -> int:
    return session.sql(f"SELECT count(*) FROM {table}").collect()[0][0]


def test_a_new_session_reads_and_writes(pond: Lake) -> None:
    session = pond.spark.newSession()
    assert count(session) == 6
    assert [row["tableName"] for row in session.sql("SHOW TABLES IN pond").collect()] == ["orders"]
    epoch = pond.store.snapshot(["orders"]).epochs["orders"]
    session.sql("INSERT INTO pond.orders VALUES (7, 'd9', 1.5)")
    session.sql("DELETE FROM pond.orders WHERE day = 'd0' AND id < 3")
    session.sql("CREATE TABLE pond.made (id BIGINT, n INT) TBLPROPERTIES (primary_key = 'id')")
    session.sql("INSERT INTO pond.made SELECT id, 1 FROM pond.orders")
    assert pond.store.table("made").count() == count(pond.spark) == count(session) == 6
    assert count(session, f"pond.orders VERSION AS OF {epoch}") == 6
    session.sql("USE pond")
    assert session.sql("SELECT sum(n) FROM made").collect()[0][0] == 6
    assert pond.spark.catalog.currentCatalog() == "spark_catalog"


def test_a_cloned_session_and_that_of_a_micro_batch_have_it(pond: Lake) -> None:
    inner: Any = pond.spark
    clone = SparkSession(pond.spark.sparkContext, inner._jsparkSession.cloneSession())
    assert count(clone) == 6
    seen: list[int] = []

    def look(frame: DataFrame, _: int) -> None:
        seen.append(frame.join(frame.sparkSession.table("pond.orders"), "id").count())

    stream = pond.spark.newSession().readStream.table("pond.orders").writeStream.foreachBatch(look)
    pond.drain(stream.option("checkpointLocation", str(pond.scratch / "ck")))
    assert seen == [6]


def test_sessions_in_threads_read_at_the_same_time(pond: Lake) -> None:
    counted: list[int] = []
    sessions = [pond.spark.newSession() for _ in range(4)]
    threads = [threading.Thread(target=lambda session=session: counted.append(count(session))) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted == [6] * 4


def test_large_parquet_files_are_read_with_the_settings_of_the_session_of_the_query(lake: Lake) -> None:
    """Spark reads large runs itself, and a query of another session with that one's settings."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    table = lake.store.create_table("wide", schema, ["id"])
    table.upsert(pa.table({"id": range(60_000), "text": [f"{number:0100}" for number in range(60_000)]}))
    lake.store.checkpoint()
    lake.store.compact("wide")
    el.catalog(lake.spark, lake.store, "pond", all_sessions=True)
    session = lake.spark.newSession()
    session.conf.set("spark.sql.files.maxPartitionBytes", 100_000)
    try:
        few = lake.spark.sql("SELECT sum(length(text)) AS n FROM pond.wide WHERE id >= 0")
        many = session.sql("SELECT sum(length(text)) AS n FROM pond.wide WHERE id >= 0")
        assert few.collect() == many.collect() == [(6_000_000,)]
        assert session.table("pond.wide").rdd.getNumPartitions() >= lake.spark.table("pond.wide").rdd.getNumPartitions()
    finally:
        forget_catalog(lake.spark, "pond")


def test_a_second_call_replaces_the_catalog_in_all_sessions(pond: Lake, tmp_path: Path) -> None:
    session = pond.spark.newSession()
    assert count(session) == 6
    with el.open(tmp_path / "other") as other:
        other.create_table("orders", pond.orders.schema, ["id"]).upsert(rows(0, 2))
        other.checkpoint()
        el.catalog(session, other, "pond", all_sessions=True)
        assert count(session) == count(pond.spark) == count(pond.spark.newSession()) == 2
        with pytest.raises(el.InvalidInput, match="one of all sessions: replace it in all of them"):
            el.catalog(session, pond.store, "pond")  # else a clone of the session, and its streams, would read `other`
        assert count(session) == 2
    assert "the store of the catalog 'pond' was closed" in refusal(lambda: count(pond.spark))


def test_a_catalog_of_one_session_goes_before_that_of_all(lake: Lake, tmp_path: Path) -> None:
    """A session that had a catalog of its own keeps it, also in the frames of its micro-batches."""
    lake.orders.upsert(rows(0, 6))
    lake.store.checkpoint()
    session = lake.spark.newSession()
    el.catalog(session, lake.store, "pond")
    with el.open(tmp_path / "other") as other:
        other.create_table("orders", lake.orders.schema, ["id"]).upsert(rows(0, 2))
        other.checkpoint()
        el.catalog(lake.spark, other, "pond", all_sessions=True)
        try:
            seen: list[int] = []
            stream = session.readStream.table("pond.orders").writeStream
            stream = stream.foreachBatch(lambda frame, _: seen.append(count(frame.sparkSession)))
            lake.drain(stream.option("checkpointLocation", str(tmp_path / "ck")))
            assert (count(session), seen, count(lake.spark)) == (6, [6], 2)
        finally:
            forget_catalog(lake.spark, "pond")


def test_the_session_that_installs_it_lists_it(pond: Lake) -> None:
    assert ("pond",) in pond.spark.sql("SHOW CATALOGS").collect()


def test_the_name_of_another_catalog_is_refused(lake: Lake) -> None:
    lake.spark.conf.set(SETTING, "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog")
    try:
        for all_sessions in (False, True):
            with pytest.raises(el.InvalidInput, match=r"spark\.sql\.catalog\.pond is set to org\..*JDBCTableCatalog"):
                el.catalog(lake.spark, lake.store, "pond", all_sessions=all_sessions)
    finally:
        lake.spark.conf.unset(SETTING)


def installed_for_all(lake: Lake, session: SparkSession, name: str) -> None:
    """Assert that the session, its sessions to come and its refusals know the catalog, and forget it."""
    try:
        assert count(session, f"{name}.orders") == count(lake.spark.newSession(), f"{name}.orders") == 3
        assert (name,) in session.sql("SHOW CATALOGS").collect()
        text = refusal(lambda: session.sql(f"DELETE FROM {name}.orders WHERE id IN (SELECT 1)"))
        assert "InvalidInput" in text
    finally:
        forget_catalog(session, name)


def test_a_session_that_is_not_the_active_one_installs_it(lake: Lake) -> None:
    """Spark finds a catalog by the settings of the thread's active session, whichever session is asked for it."""
    lake.orders.upsert(rows(0, 3))
    lake.store.checkpoint()
    session = lake.spark.newSession()
    lake.spark.sql("SELECT 1").collect()
    for _ in range(2):
        el.catalog(session, lake.store, "aside", all_sessions=True)
    installed_for_all(lake, session, "aside")


def test_another_thread_installs_it(lake: Lake) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.store.checkpoint()
    errors: list[BaseException] = []

    def install() -> None:
        try:
            el.catalog(lake.spark, lake.store, "afar", all_sessions=True)
            el.spark(catalogs={"near": lake.store})
        except BaseException as error:  # shown below
            errors.append(error)

    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert not errors
    installed_for_all(lake, lake.spark, "afar")
    installed_for_all(lake, lake.spark, "near")


def test_the_name_of_another_sessions_catalog_is_refused_whole(lake: Lake) -> None:
    """The sessions that can be known are the active one of the thread and the first one of the application."""
    session = lake.spark.newSession()
    inner: Any = lake.spark.sparkContext
    lake.spark.conf.set(SETTING, "com.example.Cat")
    try:
        with pytest.raises(el.InvalidInput, match=r"spark\.sql\.catalog\.pond is set to com\.example\.Cat in another"):
            el.catalog(session, lake.store, "pond", all_sessions=True)
    finally:
        lake.spark.conf.unset(SETTING)
    assert session.conf.get(SETTING, None) is None
    assert not inner._jsc.sc().conf().contains(SETTING)
    el.catalog(session, lake.store, "pond", all_sessions=True)
    forget_catalog(session, "pond")


def test_a_closed_store_says_a_call_that_installs_it_again(lake: Lake, tmp_path: Path) -> None:
    with el.open(tmp_path / "other") as other:
        other.create_table("orders", lake.orders.schema, ["id"])
        el.catalog(lake.spark, other, "pond", all_sessions=True)
        el.catalog(lake.spark, other, "puddle")
    try:
        lake.orders.upsert(rows(0, 3))
        lake.store.checkpoint()
        for name in ("pond", "puddle"):
            text = refusal(lambda name=name: count(lake.spark, f"{name}.orders"))
            (arguments,) = re.findall(r"el\.catalog\(spark, store, (.*?)\)", text)
            call: Any = ast.parse(f"dict({arguments})", mode="eval").body
            el.catalog(lake.spark, lake.store, **{each.arg: ast.literal_eval(each.value) for each in call.keywords})
            assert count(lake.spark, f"{name}.orders") == 3
    finally:
        forget_catalog(lake.spark, "pond")


def test_wrong_arguments_are_refused(lake: Lake) -> None:
    with pytest.raises(el.InvalidInput, match="all_sessions must be True or False, not 'no'"):
        el.catalog(lake.spark, lake.store, "pond", all_sessions="no")
    for wrong in (["lake"], "lake", 7):
        with pytest.raises(el.InvalidInput, match="catalogs must map names to stores"):
            el.spark(catalogs=wrong)


def test_a_store_as_a_setting_is_refused(lake: Lake) -> None:
    for wrong in ({"catalog": {"lake": lake.store}}, {"catalogue": {"lake": lake.root}}, {"lake": lake.store}):
        (name,) = wrong
        with pytest.raises(el.InvalidInput, match=rf"{name!r} is no setting .* write catalogs="):
            el.spark(**wrong)
        assert lake.spark.conf.get(name, None) is None


def test_a_search_for_sources_imports_nothing_of_epochlog() -> None:
    """Each Spark application of a machine that has epochlog imports these modules."""
    seen = "[name for name in sys.modules if name.startswith('epochlog')]"
    code = f"import pyspark_epochlog, pyspark_epochlog_exchange, sys; print({seen})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_errors_and_advice_reach_every_session(pond: Lake) -> None:
    session = pond.spark.newSession()
    assert "NotWritable" in refusal(lambda: session.sql("ALTER TABLE pond.orders RENAME TO pond.x"))
    merge = "MERGE INTO pond.orders t USING (SELECT 1 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE"
    assert "NotWritable" in refusal(lambda: session.sql(merge))
    assert "InvalidInput" in refusal(lambda: session.sql("DELETE FROM pond.orders WHERE id IN (SELECT 1)"))


def test_a_session_is_made_with_its_catalogs(pond: Lake) -> None:
    """`el.spark` returns the session that there is, with the catalogs in it."""
    session = el.spark(catalogs={"pond": pond.store, "other": pond.root})
    try:
        assert count(session, "other.orders") == count(session.newSession(), "other.orders") == 6
    finally:
        forget_catalog(session, "other")


def test_the_sources_are_known_in_every_session(lake: Lake) -> None:
    lake.orders.upsert(rows(0, 3))
    lake.store.checkpoint()
    session = lake.spark.newSession()
    assert session.read.format("epochlog").options(**lake.options("orders")).load().count() == 3
    with pytest.raises(Exception, match="columns of all stages"):
        session.read.format("epochlog.exchange").load()


def test_a_catalog_without_its_driver_says_what_to_do(pond: Lake) -> None:
    session = pond.spark.newSession()
    session.conf.set("spark.sql.catalog.lost", CLASS)
    with pytest.raises(Exception, match=r"no store as the catalog lost: install one, el\.catalog\(spark, store"):
        session.sql("SELECT * FROM lost.orders")


def test_without_a_class_the_catalog_is_in_this_session_and_says_so(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's compiler refuses a class that is no Java, as it would any that it cannot make."""
    lake.orders.upsert(rows(0, 6))
    lake.store.checkpoint()
    monkeypatch.setattr(session_catalogs, "NAME", "EpochlogCatalogOfATest")
    monkeypatch.setattr(session_catalogs, "class_source", lambda *_: "this is no Java")
    for install in (
        lambda: el.catalog(lake.spark, lake.store, "pond", all_sessions=True),
        lambda: el.spark(catalogs={"pond": lake.store}),
    ):
        with pytest.warns(RuntimeWarning, match="the catalog 'pond' is in this session alone") as warned:
            install()
        assert [each.filename for each in warned if "pond" in str(each.message)] == [__file__]
    assert count(lake.spark) == 6
    with pytest.raises(Exception, match="pond"):
        count(lake.spark.newSession())


def test_a_client_of_spark_connect_has_the_catalog_of_the_driver_of_its_server(pond: Lake) -> None:
    done = subprocess.run(
        [sys.executable, HOST, pond.root],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen == {"tables": ["orders"], "count": 6, "after": 6, "made": 6, "source": 6, "modules": []}
    assert pond.store.table("made").count() == 6


# ---- the class -------------------------------------------------------------------------------------------------------

PACKAGE = "org.apache.spark.sql.connector.catalog"


def test_a_method_is_read_from_the_text_of_javas_reflection() -> None:
    text = (
        f"public default {PACKAGE}.Table {PACKAGE}.TableCatalog.createTable({PACKAGE}.Identifier,"
        f"{PACKAGE}.Outer$Inner[],java.util.Map) throws org.a.NoSuchTableException,org.b.Other"
    )
    method = JavaMethod.parse(text)
    assert method is not None
    assert method.parameters == (f"{PACKAGE}.Identifier", f"{PACKAGE}.Outer.Inner[]", "java.util.Map")
    assert (method.name, method.returns) == ("createTable", f"{PACKAGE}.Table")
    assert method.source().strip() == (
        f"public {PACKAGE}.Table createTable({PACKAGE}.Identifier a0, {PACKAGE}.Outer.Inner[] a1, java.util.Map a2) "
        f"throws org.a.NoSuchTableException,org.b.Other {{ return (({PACKAGE}.TableCatalog) delegate())"
        ".createTable(a0, a1, a2); }"
    )


@pytest.mark.parametrize("modifiers", ["public static ", "public default volatile "])
def test_methods_that_no_object_answers_are_left_out(modifiers: str) -> None:
    assert JavaMethod.parse(f"{modifiers}void a.B.c()") is None


def test_a_text_that_is_no_method_is_an_error() -> None:
    with pytest.raises(ValueError, match="no method of Java"):
        JavaMethod.parse("class a.B")


def test_the_class_has_what_the_object_answers_once() -> None:
    first = ["public abstract void a.B.drop(int)", "public default int a.B.more()", "public abstract void a.B.name()"]
    source = class_source([*first, "public abstract void a.C.drop(int)"], {"drop", "name"})
    assert source.count("void drop(int a0) { ((a.B) delegate()).drop(a0); }") == source.count(" drop(") == 1
    assert "more" not in source
    assert source.count("name()") == 1


def test_the_class_is_made_once(pond: Lake) -> None:
    jvm: Any = pond.spark.sparkContext
    again = java_class.java_class(jvm._jvm, session_catalogs.NAME, lambda _loader: pytest.fail("made twice"))
    assert again.getName() == CLASS
