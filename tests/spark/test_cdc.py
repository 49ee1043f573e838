"""A stream of late, repeated and reordered change events through Spark into a table with a sequence, under kills."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import epochlog as el
from cdc import SCHEMA, CdcEvent, contents, expected, replayed
from stores import servers

DRIVER = Path(__file__).with_name("cdc_driver.py")
FAILPOINTS = (
    *("segment:written", "commit:segments-written", "commit:before-transaction:2", "commit:after-transaction"),
    *("write:half:3", "kept:merged"),
)


def some_events(chance: random.Random, files: int, folder: Path) -> list[CdcEvent]:
    """Write files of events of few keys, many of them late, repeated or deletes; return all events."""
    folder.mkdir()
    history = [CdcEvent(chance.randrange(12), at, chance.random() < 0.3) for at in range(60 * files)]
    late = sorted(history, key=lambda event: event.at + chance.randint(0, 120 * files // 2))
    arrived: list[CdcEvent] = []
    for number in range(files):
        batch = [*late[number::files], *chance.sample(history, 20)]
        chance.shuffle(batch)
        lines = [
            json.dumps({"k": e.k, "v": None if e.deleted else e.v, "at": e.at, "op": "d" if e.deleted else "u"})
            for e in batch
        ]
        (folder / f"{number:03}.json").write_text("\n".join(lines))
        arrived += batch
    return arrived


def start(store: el.Store, tmp_path: Path, kill_at: str | None = None) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **({"EPOCHLOG_KILL_AT": kill_at} if kill_at else {})}
    arguments = [store.root, str(tmp_path / "events"), str(tmp_path / "checkpoint")]
    return subprocess.Popen(
        [sys.executable, str(DRIVER), *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.rule("1.12")
@pytest.mark.parametrize("seed", [0])
def test_a_stream_of_events_under_kills_gives_the_table_of_its_events(
    tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    chance = random.Random(seed)
    arrived = some_events(chance, 8, tmp_path / "events")
    with el.open(tmp_path / "store") as store:
        table = store.create_table("t", SCHEMA, ["k"], sequence_by="at")
        for kill_at in chance.sample(FAILPOINTS, 2):
            assert start(store, tmp_path, kill_at).wait() != 0
        driver = start(store, tmp_path)
        landed = table.history().num_rows
        pause = threading.Event()
        while table.history().num_rows == landed and driver.poll() is None:  # the start of a JVM has no limit here
            pause.wait(0.05)
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        assert start(store, tmp_path).wait() == 0
        assert contents(table) == expected(arrived)
        assert replayed(table) == contents(table)
        assert store.verify().ok


@pytest.mark.spark
@pytest.mark.redis
@pytest.mark.medium
def test_events_in_batches_of_spark_and_a_catalog_in_redis(tmp_path: Path, spark: SparkSession) -> None:
    arrived = some_events(random.Random(7), 3, tmp_path / "events")
    with el.open(tmp_path / "store", servers.redis.url()) as store:
        table = store.create_table("t", SCHEMA, ["k"], sequence_by="at")
        where = {"path": store.root, "catalog": str(store._handle.catalog_url), "table": "t"}
        for file in sorted((tmp_path / "events").iterdir(), reverse=True):
            frame = spark.read.schema("k BIGINT, v STRING, at BIGINT, op STRING").json(str(file))
            options = {"applyAsDeletes": "op = 'd'", "exceptColumnList": "op"}
            frame.repartition(3).write.format("epochlog").mode("append").options(**where, **options).save()
        assert contents(table) == expected(arrived)
        assert replayed(table) == contents(table)


@pytest.mark.spark
@pytest.mark.medium
def test_a_table_with_a_sequence_of_a_catalog(tmp_path: Path, spark: SparkSession) -> None:
    with el.open(tmp_path / "store") as store:
        el.catalog(spark, store)
        spark.sql(
            "CREATE TABLE lake.t (k BIGINT, v STRING, at BIGINT) TBLPROPERTIES (primary_key='k', sequence_by='at')"
        )
        table = store.table("t")
        assert table.sequence_by == "at"
        spark.sql("INSERT INTO lake.t VALUES (1, 'new', 5), (1, 'old', 4), (2, 'x', 1), (3, 'y', 7)")
        spark.sql("INSERT INTO lake.t VALUES (1, 'late', 3)")
        assert contents(table) == {1: ("new", 5), 2: ("x", 1), 3: ("y", 7)}
        spark.sql("DELETE FROM lake.t WHERE k = 3")  # with the row's own sequence
        spark.sql("INSERT INTO lake.t VALUES (3, 'again', 7), (2, 'y', 2)")
        assert contents(table) == {1: ("new", 5), 2: ("y", 2)}
        spark.sql("INSERT OVERWRITE lake.t VALUES (1, 'older', 1)")
        assert contents(table) == {1: ("older", 1)}
        spark.sql("TRUNCATE TABLE lake.t")
        assert contents(table) == {}
        spark.sql("USE spark_catalog.default")
