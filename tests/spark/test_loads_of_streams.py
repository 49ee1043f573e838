"""`el.sink(…).load`: a bounded stream finishes its tables at its end; one that failed or was stopped does not."""

from __future__ import annotations

import socket
import threading

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader

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


def stop_query(lake, stopped: threading.Event) -> None:
    """Stop the only query; set `stopped` while its stop still waits for the micro-batch, and wait for the stop."""
    (query,) = lake.spark._jsparkSession.streams().active()
    ending = threading.Thread(target=query.stop)
    ending.start()
    wait_until(lambda: not query.isActive())
    stopped.set()
    ending.join()


def load_and_stop(lake, folder) -> None:
    """Load, and stop the query from another thread during a micro-batch."""
    began, stopped = threading.Event(), threading.Event()

    def waiting(frame):
        began.set()
        stopped.wait()
        return frame

    def stop() -> None:
        began.wait()
        stop_query(lake, stopped)

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


def load_and_stop_after_a_batch(lake, folder, monkeypatch) -> None:
    """Load, and stop the query when its first micro-batch is committed, so that the stop interrupts no call."""
    real = foreach_sink._write_batch
    written, stopped = threading.Event(), threading.Event()

    def write(*args) -> None:
        real(*args)
        written.set()
        stopped.wait()

    def stop() -> None:
        written.wait()
        stop_query(lake, stopped)

    monkeypatch.setattr(foreach_sink, "_write_batch", write)
    stopper = threading.Thread(target=stop)
    stopper.start()
    try:
        sink_of(lake).load(writer_of(lake, folder))
    finally:
        stopper.join()


def test_a_load_that_is_stopped_between_two_batches_is_cancelled(lake, folder, monkeypatch) -> None:
    with pytest.raises(el.Cancelled, match="stopped before its source had ended"):
        load_and_stop_after_a_batch(lake, folder, monkeypatch)
    assert lake.orders.info.state != "finished"


@pytest.mark.planted
def test_a_load_that_takes_a_stop_for_the_end_is_found(lake, folder, monkeypatch) -> None:
    monkeypatch.setattr(foreach_sink, "_has_ended", lambda execution: True)
    load_and_stop_after_a_batch(lake, folder, monkeypatch)
    assert lake.orders.info.state == "finished" and lake.orders.count() < 30, "the bug leaves rows out"


@pytest.mark.rule("5.42")
def test_a_file_that_comes_during_a_load_is_not_taken_in(lake, folder) -> None:
    def arriving(frame):
        pq.write_table(rows(30, 10), folder / "late.parquet")
        return frame

    sink_of(lake, arriving).load(writer_of(lake, folder))
    assert (lake.orders.info.state, lake.orders.count()) == ("finished", 30)


COLUMNS = "value AS id", "'mon' AS day", "1.0D AS amount"


def endless(lake, source: str, **options):
    return lake.spark.readStream.format(source).options(**options).load()


def loaded(lake, frame, checkpoint: str = "ck") -> None:
    sink_of(lake).load(frame.writeStream.option("checkpointLocation", str(lake.scratch / checkpoint)))


@pytest.mark.rule("5.42")
@pytest.mark.parametrize("emulated", ["false", "true"])
@pytest.mark.parametrize(
    ("source", "options", "name"),
    [
        ("rate", {"rowsPerSecond": 50}, "RateStream"),
        ("rate-micro-batch", {"rowsPerBatch": 5}, "RatePerMicroBatchStream"),
    ],
)
def test_a_stream_without_an_end_is_refused_before_it_writes(lake, folder, source, options, name, emulated) -> None:
    """Else the first moment without new rows, or Spark's own end of the run, would end the table for good."""
    lake.spark.conf.set("spark.sql.streaming.triggerAvailableNowWrapper.enabled", emulated)
    try:
        frame = endless(lake, source, **options).selectExpr(*COLUMNS)
        with pytest.raises(el.InvalidInput, match=rf"{name}.* has no end.*finish\(\)"):
            loaded(lake, frame)
        files = lake.spark.readStream.schema("id long, day string, amount double").parquet(str(folder))
        with pytest.raises(el.InvalidInput, match=f"{name}.* has no end"):
            loaded(lake, files.union(frame), "another")
    finally:
        lake.spark.conf.unset("spark.sql.streaming.triggerAvailableNowWrapper.enabled")
    assert (lake.orders.info.state == "finished", lake.orders.count()) == (False, 0)
    assert not lake.spark.streams.active


@pytest.mark.rule("5.42")
def test_a_socket_has_no_end(lake) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        frame = endless(lake, "socket", host="127.0.0.1", port=server.getsockname()[1])
        with pytest.raises(el.InvalidInput, match="TextSocket.* has no end"):
            loaded(lake, frame.selectExpr("1L AS id", "value AS day", "1.0D AS amount"))
    assert lake.orders.info.state != "finished"


@pytest.mark.rule("5.42")
def test_a_source_in_python_that_does_not_support_available_now_has_no_end(lake) -> None:
    lake.spark.dataSource.register(Endless)
    with pytest.raises(el.InvalidInput, match="Python.* has no end"):
        loaded(lake, endless(lake, "endless").selectExpr(*COLUMNS))
    assert (lake.orders.info.state == "finished", lake.orders.count()) == (False, 0)


class Endless(DataSource):
    @classmethod
    def name(cls):
        return "endless"

    def schema(self):
        return "value long"

    def simpleStreamReader(self, schema):
        return EndlessReader()


class EndlessReader(SimpleDataSourceStreamReader):
    def initialOffset(self):
        return {"at": 0}

    def read(self, start):
        return iter([(start["at"],)]), {"at": start["at"] + 1}

    def readBetweenOffsets(self, start, end):
        return iter([(at,) for at in range(start["at"], end["at"])])


@pytest.mark.rule("5.42")
@pytest.mark.needs("limits")
def test_the_changes_of_a_table_have_an_end(lake) -> None:
    """The library's own source supports availableNow."""
    source = lake.store.create_table("source", lake.orders.schema, ["id"])
    source.upsert(rows(0, 10))
    lake.store.checkpoint()
    frame = endless(lake, "epochlog", path=lake.root, table="source").select("id", "day", "amount")
    loaded(lake, frame)
    assert (lake.orders.info.state, lake.orders.count()) == ("finished", 10)


def test_a_load_of_anything_but_a_streams_writer_is_refused(lake) -> None:
    frame = lake.spark.range(3)
    for wrong in (frame, frame.write, None, "stream"):
        with pytest.raises(el.InvalidInput, match="writeStream"):
            sink_of(lake).load(wrong)
    assert repr(sink_of(lake)) == "<epochlog.Sink of stream 'load' into orders>"


@pytest.mark.planted
def test_a_load_that_asks_no_source_for_its_end_is_found(lake, monkeypatch) -> None:
    monkeypatch.setattr(foreach_sink, "refuse_unbounded", lambda session, query=None: None)
    loaded(lake, endless(lake, "rate-micro-batch", rowsPerBatch=5).selectExpr(*COLUMNS))
    assert (lake.orders.info.state, lake.orders.count()) == ("finished", 5), "the bug ends the table"
