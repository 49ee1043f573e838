"""`el.sink(…).load`: a bounded stream finishes its tables at its end; one that failed or was stopped does not."""

from __future__ import annotations

import threading

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

import epochlog as el
from epochlog.spark import foreach_sink
from spark_store import rows
from wait_until import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def folder(lake):
    folder = lake.scratch / "files"
    folder.mkdir()
    for part in range(3):
        pq.write_table(rows(part * 10, 10), folder / f"f{part}.parquet")
    return folder


def writer_of(lake, folder, checkpoint: str = "ck"):
    reader = lake.spark.readStream.schema("id long, day string, amount double").option("maxFilesPerTrigger", "1")
    return reader.parquet(str(folder)).writeStream.option("checkpointLocation", str(lake.scratch / checkpoint))


def sink_of(lake, shape=None) -> el.Sink:
    return el.sink({"orders": shape}, app_id="load", path=lake.root)


@pytest.mark.rule("5.42")
def test_a_load_ends_its_table_and_comes_again_without_effect(lake, folder) -> None:
    epoch = sink_of(lake).load(writer_of(lake, folder))
    info = lake.orders.info
    assert (info.state, info.max_committed_epoch, lake.orders.count()) == ("finished", epoch, 30)
    assert not lake.spark.streams.active
    commits = lake.orders.history().num_rows
    pq.write_table(rows(30, 10), folder / "late.parquet")
    assert sink_of(lake).load(writer_of(lake, folder)) == epoch
    assert sink_of(lake).load(writer_of(lake, folder, "another")) == epoch
    assert lake.orders.history().num_rows == commits
    with pytest.raises(el.TableFinished):
        el.sink({"orders": None}, app_id="another stream", path=lake.root)
    assert lake.store.verify().ok


@pytest.mark.rule("5.42")
def test_a_load_that_failed_or_was_stopped_ends_nothing_and_goes_on(lake, folder) -> None:
    def failing(frame):
        if lake.orders.count() == 10:
            raise ZeroDivisionError("a defect of the user")
        return frame

    with pytest.raises(Exception, match="a defect of the user"):
        sink_of(lake, failing).load(writer_of(lake, folder))
    assert (lake.orders.info.state == "finished", lake.orders.count()) == (False, 10)

    with pytest.raises(
        (el.Cancelled, StreamingQueryException)
    ):  # a stop may interrupt a call of Python, which is an error
        load_and_stop(lake, folder)
    assert lake.orders.info.state != "finished" and lake.orders.count() < 30
    sink_of(lake).load(writer_of(lake, folder))
    assert (lake.orders.info.state, lake.orders.count()) == ("finished", 30)
    assert lake.store.verify().ok


def load_and_stop(lake, folder) -> None:
    """Load, and stop the query from another thread during a micro-batch."""
    began, stopped = threading.Event(), threading.Event()

    def waiting(frame):
        began.set()
        stopped.wait()
        return frame

    def stop() -> None:
        began.wait()
        (query,) = lake.spark._jsparkSession.streams().active()
        ending = threading.Thread(target=query.stop)
        ending.start()
        wait_until(lambda: not query.isActive())
        stopped.set()
        ending.join()

    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        sink_of(lake, waiting).load(writer_of(lake, folder))
    finally:
        stopper.join()


def test_a_load_that_died_before_its_end_is_recorded_only_ends_the_table(lake, folder, monkeypatch) -> None:
    with monkeypatch.context() as dying:
        dying.setattr(foreach_sink, "RootCommit", die_at_the_end(foreach_sink.RootCommit))
        with pytest.raises(KeyboardInterrupt):
            sink_of(lake).load(writer_of(lake, folder))
    assert (lake.orders.info.state == "finished", lake.orders.count()) == (False, 30)
    commits = lake.orders.history().num_rows
    assert sink_of(lake).load(writer_of(lake, folder)) == lake.orders.info.max_committed_epoch
    assert lake.orders.info.state == "finished" and lake.orders.history().num_rows == commits + 1


def die_at_the_end(real):
    def commit(**options):
        if options["txn"] == ("load#end", 0):
            raise KeyboardInterrupt
        return real(**options)

    return commit


def test_a_table_that_was_finished_otherwise_is_not_taken_for_loaded(lake, folder) -> None:
    sink = sink_of(lake)
    lake.orders.finish()
    with pytest.raises(Exception, match="was finished at epoch"):
        sink.load(writer_of(lake, folder))
    with pytest.raises(el.TableFinished):
        sink_of(lake)


def stop_after_the_first_batch(lake, monkeypatch) -> None:
    """The wait for all rows ends without an error, as it does when the query is stopped between two micro-batches."""

    def wait(query) -> None:
        wait_until(lambda: lake.orders.count() >= 10)
        query.stop()

    monkeypatch.setattr(StreamingQuery, "processAllAvailable", wait)


def test_a_load_that_is_stopped_between_two_batches_is_cancelled(lake, folder, monkeypatch) -> None:
    stop_after_the_first_batch(lake, monkeypatch)
    with pytest.raises(el.Cancelled, match="stopped before its source had ended"):
        sink_of(lake).load(writer_of(lake, folder))
    assert lake.orders.info.state != "finished"


@pytest.mark.planted
def test_a_load_that_takes_a_stop_for_the_end_is_found(lake, folder, monkeypatch) -> None:
    monkeypatch.setattr(StreamingQuery, "isActive", True)
    stop_after_the_first_batch(lake, monkeypatch)
    sink_of(lake).load(writer_of(lake, folder))
    assert lake.orders.info.state == "finished" and lake.orders.count() < 30, "the bug leaves rows out"
