"""Compaction by Spark tasks: its result is that of one process, while tasks and drivers die, and beside others."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

import epochlog as el
import lossy_writer
from epochlog.spark import compaction
from epochlog.store.compaction import rewriter, subcompactions
from epochlog.store.compaction.claim import CLAIM_MS
from epochlog.store.compaction.task_record import Work, read_work
from epochlog.store.compaction.trace import read_traces
from epochlog.store.metadata.lookups import find_table, get_runs
from epochlog.store.session.leases import LEASE_MS
from epochlog.store.sst.sorted_run import SortedRun
from lossy_writer import NESTED, nested_rows
from s3_server import S3Server
from sink_simulation import DAY_MS, GRACE_MS, Later, spark_intents
from spark_driver import SPECULATIVE, driver, vacuumed
from stores import servers
from wait_until import wait_until

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("amount", pa.float64())])
KEYS = pa.schema([SCHEMA.field("id")])
FOREVER = el.TableOptions(history_retention=timedelta(days=1000))
MANY, PIECE_ROWS = 300_000, 60_000

States = dict[int, pa.Table]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subcompactions, "SUBCOMPACTION_ROWS", 300)
    monkeypatch.setattr("epochlog.store.sst.segment.BATCH_ROWS", 100)


def rows(ids: list[int], amount: float) -> pa.Table:
    return pa.table({"id": ids, "amount": [amount + number for number in ids]}, schema=SCHEMA)


def create_tables(store: el.Store, *names: str) -> None:
    for name in names:
        store.create_table(name, SCHEMA, ["id"], options=FOREVER)


def commit(store: el.Store, rng: random.Random, count: int, amount: float, *names: str) -> int:
    """Write and delete some of `count` keys in all of these tables, in one transaction."""
    ids = rng.sample(range(count), count // 2)
    with store.transaction() as tx:
        for name in names:
            tx.upsert(name, rows(ids[: count // 3], amount))
            tx.delete(name, pa.table({"id": ids[count // 3 :]}, schema=KEYS))
    return store.table(names[0]).info.max_committed_epoch


def states(store: el.Store, name: str, epochs: list[int]) -> States:
    return {epoch: store.table(name).to_arrow(epoch=epoch) for epoch in epochs}


def runs_of(store: el.Store, name: str) -> tuple[SortedRun, ...]:
    """Return the runs of a table, but for the names of their files."""
    runs = store._handle.catalog.read(lambda view: get_runs(view, find_table(view, name).id))
    return tuple(
        replace(
            run,
            parts=tuple(replace(part, path="") for part in run.parts),
            history=tuple(replace(part, path="") for part in run.history),
        )
        for run in runs
    )


def work_of(store: el.Store, name: str) -> Work | None:
    return store._handle.catalog.read(lambda view: read_work(view, find_table(view, name).id))


def pieces_of(store: el.Store, name: str) -> list[int]:
    traces = store._handle.catalog.read(lambda view: read_traces(view, find_table(view, name).id))
    return [trace.pieces for trace in traces]


# ---- the result of one process ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_pieces")
def test_every_epoch_and_every_file_equal_those_of_one_process(store: el.Store, spark: SparkSession) -> None:
    rng, epochs = random.Random(7), list[int]()
    create_tables(store, "here", "tasks")
    for turn in range(2):
        for n in range(3):
            epochs.append(commit(store, rng, 2_000, 10.0 * turn + n, "here", "tasks"))
        expected = states(store, "tasks", epochs)
        store.compact("here", full=turn == 1)
        store.compact("tasks", full=turn == 1, spark=spark)
        assert states(store, "tasks", epochs) == expected == states(store, "here", epochs)
        assert runs_of(store, "tasks") == runs_of(store, "here") != ()
        assert pieces_of(store, "tasks") == pieces_of(store, "here") and min(pieces_of(store, "tasks")) > 1
    assert max(pieces_of(store, "tasks")) > 8  # more than one Spark job
    store.vacuum(grace=0)
    assert spark_intents(store) == 0 and not store.verify().unreachable


def test_a_small_table_needs_no_task_and_a_bad_session_is_refused(
    store: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables(store, "t", "u")
    for name in ("t", "u"):
        store.table(name).upsert(rows([1, 2], 0.0))
    with pytest.raises(el.InvalidInput, match="spark must be a classic SparkSession"):
        store.compact("t", spark="local[2]")  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(compaction, "_run_tasks", None)
    store.compact(full=True, spark=spark)
    assert [store.table(name).info.runs for name in ("t", "u")] == [1, 1]
    with pytest.raises(el.TableNotFound):
        store.compact("v", spark=spark)


@pytest.mark.local_only
@pytest.mark.usefixtures("small_pieces")
def test_a_damaged_input_is_named_and_the_next_compaction_works(store: el.Store, spark: SparkSession) -> None:
    create_tables(store, "t")
    epoch = store.table("t").upsert(rows(list(range(2_000)), 0.0))
    expected = store.table("t").to_arrow()
    (info,) = [info for info in store._handle.files.list(store._handle.store_id) if info.path.endswith(".arrow")]
    path = Path(store.root) / info.path
    intact = path.read_bytes()
    path.write_bytes(intact[:500] + bytes([intact[500] ^ 1]) + intact[501:])
    with pytest.raises(el.Corrupt, match=info.path):
        store.compact("t", spark=spark)
    path.write_bytes(intact)
    assert store.table("t").info.runs == 0
    away = path.rename(path.with_suffix(".away"))
    with pytest.raises(el.Corrupt, match=f"{info.path}.*gone"):
        store.compact("t", spark=spark)
    away.rename(path)
    store.compact("t", spark=spark)
    assert store.table("t").info.runs == 1 and store.table("t").to_arrow(epoch=epoch) == expected


@pytest.mark.planted
@pytest.mark.usefixtures("small_pieces")
def test_a_task_whose_file_lost_a_value_is_named_and_the_inputs_stay(
    store: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = store.create_table("t", NESTED, ["id"], options=FOREVER)
    table.upsert(nested_rows(2_000))
    expected = table.to_arrow()
    with monkeypatch.context() as patch:
        patch.setattr(compaction, "_rewrite_task", lossy_writer.rewrite_task)
        with pytest.raises(el.ReadBackFailed, match="table 't'.*row 7 of column 'v'"):
            store.compact("t", spark=spark)
    assert table.info.runs == 0 and table.to_arrow() == expected
    assert 'epochlog_compaction_check_failures_total{table="t"} 1' in store.metrics()
    store.compact("t", spark=spark)
    assert table.info.runs == 1 and table.to_arrow() == expected
    assert 'epochlog_compaction_checked_rows_total{table="t"} 2000' in store.metrics()


# ---- two compactors --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_pieces")
def test_another_compactor_and_vacuum_leave_a_claimed_table_alone(
    store: el.Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables(store, "t")
    epochs = [commit(store, random.Random(1), 3_000, 1.0 * n, "t") for n in range(3)]
    expected, real, seen = states(store, "t", epochs), compaction._run_tasks, list[int]()

    def beside(*arguments: Any) -> Any:
        with el.open(store.root, store._handle.catalog_url) as other:
            other.compact("t", full=True)
            seen.append(other.table("t").info.runs)
            results = real(*arguments)
            assert not other.vacuum(grace=0).deleted  # of files that are not recorded yet
        return results

    monkeypatch.setattr(compaction, "_run_tasks", beside)
    store.compact("t", spark=spark)
    assert seen and set(seen) == {0} and store.table("t").info.runs == 1
    assert states(store, "t", epochs) == expected


@pytest.mark.usefixtures("small_pieces")
def test_a_compactor_that_stood_still_commits_nothing(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, real = Later(), compaction._run_tasks
    with el.open(tmp_path / "late", clock=clock) as store:
        create_tables(store, "t")
        epochs = [commit(store, random.Random(2), 3_000, 1.0 * n, "t") for n in range(3)]
        expected = states(store, "t", epochs)

        def late(*arguments: Any) -> Any:
            results = real(*arguments)
            owner = arguments[1].work.owner
            for leases in (store._handle.runners, store._handle.leases):
                leases.forget(owner)
            clock.added_ms += LEASE_MS
            monkeypatch.setattr(compaction, "_run_tasks", real)
            with el.open(store.root, store._handle.catalog_url, clock=clock) as other:
                other.compact("t", full=True)
                assert other.table("t").info.runs == 1
            return results

        monkeypatch.setattr(compaction, "_run_tasks", late)
        store.compact("t", spark=spark)
        (run,) = runs_of(store, "t")
        assert len(pieces_of(store, "t")) == 1 and states(store, "t", epochs) == expected
        clock.added_ms += DAY_MS
        store.vacuum(grace=0)
        assert not store.verify().unreachable and runs_of(store, "t") == (run,)
        assert states(store, "t", epochs) == expected


@pytest.mark.usefixtures("small_pieces")
def test_the_claim_is_renewed_while_tasks_wait_for_cores(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, real, renewed = Later(), compaction._run_tasks, list[bool]()
    with el.open(tmp_path / "late", clock=clock) as store:
        create_tables(store, "t")
        epochs = [commit(store, random.Random(2), 3_000, 1.0 * n, "t") for n in range(3)]
        expected = states(store, "t", epochs)

        def waiting(*arguments: Any) -> Any:
            clock.added_ms += CLAIM_MS  # and no piece is recorded meanwhile
            store._handle.runners.renew()
            work = work_of(store, "t")
            renewed.append(work is not None and work.expires_ms > clock())
            return real(*arguments)

        monkeypatch.setattr(compaction, "_run_tasks", waiting)
        store.compact("t", spark=spark)
        assert renewed and all(renewed) and store.table("t").info.runs == 1 and states(store, "t", epochs) == expected


@pytest.mark.long
@pytest.mark.usefixtures("small_pieces")
def test_compactors_with_and_without_spark_race_with_writers(store: el.Store, spark: SparkSession) -> None:
    create_tables(store, "t")
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng, epochs, errors, expected = random.Random(seed), list[int](), list[BaseException](), States()

    def compact(**options: Any) -> None:
        try:
            with el.open(store.root, store._handle.catalog_url) as other:
                for _ in range(4):
                    other.compact("t", **options)
        except BaseException as error:
            errors.append(error)

    for turn in range(3):
        epochs += [commit(store, rng, 2_000, 10.0 * turn + n, "t") for n in range(4)]
        expected = states(store, "t", epochs)
        threads = [
            threading.Thread(target=compact, kwargs=options)
            for options in ({"spark": spark}, {"full": True}, {"full": True, "spark": spark})
        ]
        for thread in threads:
            thread.start()
        epochs.append(commit(store, rng, 2_000, 10.0 * turn + 9, "t"))
        expected[epochs[-1]] = store.table("t").to_arrow(epoch=epochs[-1])
        for thread in threads:
            thread.join()
        assert not errors and states(store, "t", epochs) == expected
    store.compact("t", full=True, spark=spark)
    assert states(store, "t", epochs) == expected and spark_intents(store) == 0 and work_of(store, "t") is None


# ---- deaths ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_tasks_and_drivers_die(tmp_path: Path, store: el.Store) -> None:
    create_tables(store, "here", "tasks")
    rng, epochs = random.Random(5), list[int]()

    def grow() -> States:
        epochs.extend(commit(store, rng, MANY, 1.0 * len(epochs), "here", "tasks") for _ in range(2))
        store.compact("here", full=True)
        return states(store, "here", epochs)

    with driver(store, tmp_path / "notes", master="local[2,4]") as spark_driver:
        for mood in ("task-dies", "task-fails"):
            expected = grow()
            attempts = spark_driver.order("compact", "tasks", mood, MANY, piece_rows=PIECE_ROWS)
            assert len(attempts.counted(store)) >= 3 and attempts.lost(store) == {attempts.sick}
            assert states(store, "tasks", epochs) == expected and store.table("tasks").info.runs == 1
            assert spark_intents(store) == 0 and work_of(store, "tasks") is None
            assert vacuumed(store, GRACE_MS) >= 1 and not store.verify().unreachable
        expected = grow()
        attempts = spark_driver.order("compact", "tasks", "tasks-done", MANY, piece_rows=PIECE_ROWS)
    assert attempts.paths and attempts.counted(store) == []
    assert states(store, "tasks", epochs) == expected and store.table("tasks").info.runs == 1
    store.compact("tasks", full=True)  # its process is known to be dead
    assert states(store, "tasks", epochs) == expected and work_of(store, "tasks") is None
    vacuumed(store, DAY_MS)
    assert vacuumed(store, DAY_MS + GRACE_MS) == 0 and not store.verify().unreachable
    assert not {path for paths in attempts.paths.values() for path in paths if store._handle.files.exists(path)}
    assert states(store, "tasks", epochs) == expected


@pytest.mark.long
@pytest.mark.parametrize("mood", ["jvm-dies", "stopped"])
def test_a_lost_session_is_named_and_other_compactors_continue_at_once(
    tmp_path: Path, store: el.Store, mood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochlog.store.sst.segment.BATCH_ROWS", 10_000)
    create_tables(store, "t")
    epochs = [commit(store, random.Random(8), MANY, 1.0, "t")]
    expected = states(store, "t", epochs)
    error = "SparkLost: the Spark session of table 't' is lost"
    with driver(store, tmp_path / "notes", master="local[1]") as spark_driver:
        for _ in range(2):  # the session is lost between two jobs, and before the first
            spark_driver.order("compact", "t", mood, MANY, error, piece_rows=20_000)
            work = work_of(store, "t")
            assert work is not None and len(work.done) == 4 < len(work.subcompactions) and spark_intents(store) == 0
        store.compact("t", full=True)  # the driver's process lives
    assert store.table("t").info.runs == 1 and min(pieces_of(store, "t")) > 4
    assert states(store, "t", epochs) == expected


@pytest.mark.long
@pytest.mark.parametrize("mood", ["recorded", "after"])
def test_a_driver_dies_between_its_transactions(
    tmp_path: Path, store: el.Store, mood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochlog.store.sst.segment.BATCH_ROWS", 20_000)
    create_tables(store, "here", "tasks")
    rng = random.Random(9)
    epochs = [commit(store, rng, MANY, 1.0 * n, "here", "tasks") for n in range(2)]
    expected = states(store, "tasks", epochs)
    with driver(store, tmp_path / "notes", master="local[2]") as spark_driver:
        attempts = spark_driver.order("compact", "tasks", mood, MANY, piece_rows=PIECE_ROWS)
    work = work_of(store, "tasks")
    if mood == "recorded":
        assert work is not None and len(work.done) == 1 < len(attempts.paths) == len(work.subcompactions)
    assert store.table("tasks").info.runs == (mood == "after") and states(store, "tasks", epochs) == expected
    assert (vacuumed(store, DAY_MS) > 0) == (mood == "recorded") and not store.verify().unreachable
    assert states(store, "tasks", epochs) == expected
    store.compact("tasks", full=True)
    assert states(store, "tasks", epochs) == expected and work_of(store, "tasks") is None
    assert pieces_of(store, "tasks") == [len(attempts.paths)] and store.table("tasks").info.runs == 1


@pytest.mark.long
def test_a_cancelled_compaction_is_continued_at_once(
    store: el.Store, spark: SparkSession, small_pieces: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    create_tables(store, "t")
    epoch = commit(store, random.Random(4), 3_000, 1.0, "t")
    expected, written, real = states(store, "t", [epoch]), tmp_path / "written", compaction._rewrite_task

    def endless(*arguments: Any) -> Iterator[Any]:
        yield from list(real(*arguments))[:0]
        written.touch()
        threading.Event().wait()

    def cancel() -> None:
        wait_until(written.exists)
        spark.sparkContext.cancelAllJobs()

    thread = threading.Thread(target=cancel)
    thread.start()
    monkeypatch.setattr(compaction, "_rewrite_task", endless)
    with pytest.raises(Py4JJavaError, match="cancelled"):
        store.compact("t", spark=spark)
    thread.join()
    assert work_of(store, "t") is not None and spark_intents(store) == 0
    monkeypatch.setattr(compaction, "_rewrite_task", real)
    store.compact("t", spark=spark)
    assert store.table("t").info.runs == 1 and states(store, "t", [epoch]) == expected
    assert vacuumed(store, GRACE_MS) >= 1 and not store.verify().unreachable


@pytest.mark.long
@pytest.mark.redis
def test_tasks_run_twice_and_executors_and_a_driver_die_on_a_cluster(
    tmp_path: Path, spark: SparkSession, s3: S3Server
) -> None:
    """Executors of their own, files on S3, the catalog in Redis."""
    with el.open(s3.uri(f"{s3.new_bucket()}/lake"), servers.redis.url()) as store:
        create_tables(store, "here", "tasks")
        rng = random.Random(6)
        epochs = [commit(store, rng, MANY, 1.0 * n, "here", "tasks") for n in range(2)]
        expected = states(store, "here", epochs)
        store.compact("here", full=True)
        with driver(store, tmp_path / "notes", master="two hosts", **SPECULATIVE) as spark_driver:
            attempts = spark_driver.order("compact", "tasks", "executor-dies", MANY, piece_rows=PIECE_ROWS)
            assert len(attempts.counted(store)) >= 3 and attempts.sick in attempts.lost(store)
            assert states(store, "tasks", epochs) == expected == states(store, "here", epochs)
            assert store.table("tasks").info.runs == 1 and spark_intents(store) == 0
            epochs.append(commit(store, rng, MANY, 8.0, "here", "tasks"))
            expected = states(store, "here", epochs)
            attempts = spark_driver.order("compact", "tasks", "slow", MANY, piece_rows=PIECE_ROWS)
            assert len([name for name in attempts.paths if name.startswith("1-")]) > 1 and attempts.lost(store)
            assert states(store, "tasks", epochs) == expected and store.table("tasks").info.runs == 1
            epochs.append(commit(store, rng, MANY, 9.0, "here", "tasks"))
            expected = states(store, "here", epochs)
            attempts = spark_driver.order("compact", "tasks", "before", MANY, piece_rows=PIECE_ROWS)
        work = work_of(store, "tasks")
        assert work is not None and len(work.done) == len(work.subcompactions) and store.table("tasks").info.runs == 1
        assert states(store, "tasks", epochs) == expected
        store.compact("tasks", full=True, spark=spark)
        assert states(store, "tasks", epochs) == expected and work_of(store, "tasks") is None
        assert vacuumed(store, DAY_MS + 2 * GRACE_MS) >= 0 and store.verify().ok
        assert states(store, "tasks", epochs) == expected


def test_the_rewriter_is_that_of_one_process(
    store: el.Store, spark: SparkSession, small_pieces: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver rewrites nothing of a table of several pieces."""
    create_tables(store, "t")
    commit(store, random.Random(3), 3_000, 1.0, "t")
    expected = store.table("t").to_arrow()
    monkeypatch.setattr(rewriter.Rewriter, "rewrite", None)
    store.compact("t", spark=spark)
    assert store.table("t").to_arrow() == expected and store.table("t").info.runs == 1
