"""Streams: each micro-batch once whatever is replayed, whole epochs within limits, and typed refusals."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.functions import count

import epochlog as el
from epochlog.store.catalog.keys import HOLD_PREFIX, INTENT_PREFIX, LEASE_PREFIX
from epochlog.store.catalog.protocol import Txn, scan_prefix
from epochlog.store.changelog.consumers import open_consumer
from epochlog.store.compaction import packing
from epochlog.store.env.clock import SystemClock
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters
from epochlog.store.session.leases import LEASE_MS
from spark_store import SCHEMA, rows
from stand_in_packer import pack
from wait_until import wait_until

pytestmark = pytest.mark.spark
LIMITS = pytest.mark.needs("limits")


@pytest.fixture
def files(lake):
    """A folder that a file stream reads, one file a micro-batch, and a function that adds files."""
    folder = lake.scratch / "files"
    folder.mkdir()

    def add(name: str, table: pa.Table) -> None:
        pq.write_table(table, folder / f"{name}.parquet")

    def stream():
        reader = lake.spark.readStream.schema("id long, day string, amount double").option("maxFilesPerTrigger", "1")
        return reader.parquet(str(folder))

    return add, stream


def test_a_file_stream_lands_once_when_its_last_commit_is_forgotten(lake, files) -> None:
    add, stream = files
    for part in range(3):
        add(f"f{part}", rows(part * 10, 10))
    lake.into(stream(), "orders", "ck")
    before = lake.orders.history()
    assert lake.orders.count() == 30
    assert before.num_rows == 3
    lake.forget_last_commit("ck")
    add("f9", rows(90, 10))
    lake.into(stream(), "orders", "ck")
    assert lake.orders.count() == 40
    assert lake.orders.history().num_rows == 4
    assert lake.orders.history().slice(1).equals(before)
    assert lake.store.verify().ok


def test_an_empty_micro_batch_commits_nothing(lake, files) -> None:
    add, stream = files
    add("f0", rows(0, 10))
    lake.into(stream().where("id < 0"), "orders", "ck")
    assert lake.orders.history().num_rows == 0


def test_complete_mode_replaces(lake, files) -> None:
    add, stream = files
    totals = lake.store.create_table("totals", pa.schema([("day", pa.string()), ("n", pa.int64())]), ["day"])
    query = stream().groupBy("day").agg(count("*").alias("n"))
    for part in range(2):
        add(f"f{part}", rows(part * 9, 9))
        writer = query.writeStream.outputMode("complete").format("epochlog").options(**lake.options("totals"))
        lake.drain(writer.option("checkpointLocation", str(lake.scratch / "ck")))
        assert totals.to_arrow().to_pydict() == {"day": ["d0", "d1", "d2"], "n": [3 * (part + 1)] * 3}


def test_async_progress_is_refused(lake, files) -> None:
    add, stream = files
    add("f0", rows(0, 1))
    writer = stream().writeStream.format("epochlog").options(**lake.options("orders"))
    writer = writer.option("checkpointLocation", str(lake.scratch / "ck")).option(
        "asyncProgressTrackingEnabled", "true"
    )
    with pytest.raises(Exception, match=r"(?i)async"):
        writer.trigger(processingTime="10 milliseconds").start().awaitTermination()
    assert lake.orders.count() == 0


# ---- the source ----------------------------------------------------------------------------------------------------


@LIMITS
def test_a_table_streamed_into_another_is_equal_and_goes_on_from_its_checkpoint(lake) -> None:
    copy = lake.store.create_table("copy", SCHEMA, ["id"])
    lake.orders.upsert(rows(0, 10))
    lake.orders.upsert(rows(5, 10, amount=2.0))
    lake.into(lake.stream(), "copy", "ck")
    assert copy.to_arrow().equals(lake.orders.to_arrow())
    assert copy.history().num_rows == 1  # the snapshot, whole
    lake.orders.delete(pa.table({"id": [0, 3]}))
    lake.orders.upsert(rows(40, 2))
    lake.into(lake.stream(maxEpochsPerTrigger=1), "copy", "ck")
    assert copy.to_arrow().equals(lake.orders.to_arrow())
    assert copy.history().num_rows == 3
    lake.forget_last_commit("ck")
    lake.into(lake.stream(maxEpochsPerTrigger=1), "copy", "ck")
    assert copy.to_arrow().equals(lake.orders.to_arrow())
    assert copy.history().num_rows == 3


def test_a_replay_of_the_first_batch_reads_the_same_snapshot(lake) -> None:
    copy = lake.store.create_table("copy", SCHEMA, ["id"])
    lake.orders.upsert(rows(0, 10))
    lake.into(lake.stream(consumerId="c"), "copy", "ck")
    lake.forget_last_commit("ck")
    lake.orders.upsert(rows(10, 10))
    query = lake.catch_up(lake.stream(consumerId="c"), "copy", "ck")
    assert copy.to_arrow().equals(lake.orders.to_arrow())
    assert query.exception() is None


@pytest.mark.parametrize(
    ("limit", "batches"),
    [
        pytest.param({"maxEpochsPerTrigger": 2}, 3, marks=LIMITS),
        pytest.param({"maxRowsPerTrigger": 10}, 5, marks=LIMITS),
        pytest.param({"maxRowsPerTrigger": 1}, 5, marks=LIMITS),
        ({}, 1),
    ],
)
def test_limits_never_split_an_epoch(lake, limit: dict[str, int], batches: int) -> None:
    for part in range(5):
        lake.orders.upsert(rows(part * 10, 10))
    seen: list[list[int]] = []

    def note(frame, _batch: int) -> None:
        seen.append(sorted(row._commit_version for row in frame.select("_commit_version").distinct().collect()))

    writer = lake.stream(startingVersion="earliest", **limit).writeStream.foreachBatch(note)
    lake.drain(writer.option("checkpointLocation", str(lake.scratch / "ck")))
    assert len(seen) == batches
    assert [epoch for batch in seen for epoch in batch] == sorted(lake.orders.history()["epoch"].to_pylist())


def test_starting_versions(lake) -> None:
    lake.orders.upsert(rows(0, 1))
    second = lake.orders.upsert(rows(1, 1))
    streamed: dict[str, list[tuple[int, str]]] = {}

    def run(start: str) -> None:
        def note(frame, _batch: int) -> None:
            streamed.setdefault(start, []).extend(sorted((row.id, row._change_type) for row in frame.collect()))

        writer = lake.stream(startingVersion=start).writeStream.foreachBatch(note)
        lake.drain(writer.option("checkpointLocation", str(lake.scratch / f"ck-{start}")))

    for start in ("earliest", "latest", "snapshot", str(second)):
        run(start)
    assert streamed.pop("latest", []) == []
    lake.orders.upsert(rows(2, 1))
    run("latest")
    assert streamed == {
        "earliest": [(0, "upsert"), (1, "upsert")],
        "snapshot": [(0, "insert"), (1, "insert")],
        str(second): [(1, "upsert")],
        "latest": [(2, "upsert")],
    }


def test_pre_images_in_a_stream(lake) -> None:
    lake.orders.upsert(rows(0, 2))
    second = lake.orders.upsert(rows(1, 1, amount=7.0))
    streamed: list[tuple[str, float]] = []
    writer = lake.stream(startingVersion=second, preImages=True).writeStream.foreachBatch(
        lambda frame, _batch: streamed.extend(sorted((row._change_type, row.amount) for row in frame.collect()))
    )
    lake.drain(writer)
    assert streamed == [("update_postimage", 7.0), ("update_preimage", 1.0)]


def test_a_truncated_log_is_told_or_let_pass(lake) -> None:
    copy = lake.store.create_table("copy", SCHEMA, ["id"])
    first = lake.orders.upsert(rows(0, 10))
    lake.into(lake.stream(startingVersion=first), "copy", "ck")
    lake.orders.upsert(rows(10, 10))
    last = lake.orders.upsert(rows(20, 10))
    lake.orders.truncate_log(last)
    with pytest.raises(Exception, match=r"LogTruncated: the log of 'orders' begins after epoch"):
        lake.into(lake.stream(startingVersion=first), "copy", "ck")
    lake.orders.upsert(rows(30, 10))
    lake.into(lake.stream(startingVersion=first, failOnDataLoss=False), "copy", "ck")
    assert copy.count() == 20


@pytest.mark.rule("4.19")
def test_tasks_that_start_late_find_the_files_of_their_batch(lake) -> None:
    """The log is packed after a batch was planned, and before its tasks start."""
    lake.orders.upsert(rows(0, 10))
    lake.orders.upsert(rows(5, 10, amount=2.0))
    read: list[int] = []

    def packed_before_it_is_read(frame, _batch) -> None:
        planned = frame.rdd
        assert planned.getNumPartitions()
        assert pack(lake.store, "orders") == 0
        read.extend(row["id"] for row in planned.collect())

    writer = lake.stream(startingVersion="earliest").writeStream.foreachBatch(packed_before_it_is_read)
    lake.drain(writer.option("checkpointLocation", str(lake.scratch / "ck")))
    assert sorted(read) == sorted([*range(10), *range(5, 15)])
    # The query has ended. Spark ends its reader a little later, or kills it, so that its lease ends by time.
    wait_until(lambda: extend_leases(lake.store, -LEASE_MS, HOLD_PREFIX) >= 0 and lake.store.vacuum(grace=0).deleted)


def extend_leases(store: el.Store, ms: int, *prefixes: bytes) -> int:
    """Extend leases, as their owners do who live on, or shorten them; return their number."""

    def body(tx: Txn) -> int:
        leased = [(key, record) for prefix in prefixes for key, record in scan_prefix(tx, prefix)]
        leased = [(key, record) for key, record in leased if record["expires_ms"] is not None]
        for key, record in leased:
            tx.put(key, {**record, "expires_ms": record["expires_ms"] + ms})
        move_counters(tx, Counters.read(tx))
        return len(leased)

    return store._handle.catalog.transact(body)


@pytest.mark.rule("4.19")
def test_tasks_that_start_twenty_minutes_late_find_the_files_that_packs_replaced(
    lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of a batch is packed by a process whose clock is 20 minutes on, as are the leases of the driver."""
    for name, size in {"LEAST_COMMITS": 2, "MOST_COMMITS": 4, "MERGED": 2}.items():
        monkeypatch.setattr(packing, name, size)
    for number in range(9):
        lake.orders.upsert(rows(number, 3, amount=float(number)))
    expected = sorted((row["id"], row["amount"]) for row in lake.orders.changes(0).read_all().to_pylist())
    read: list[tuple[int, float]] = []
    late_ms = SystemClock()() + 20 * 60 * 1000

    def late(frame, _batch) -> None:
        planned = frame.rdd
        assert planned.getNumPartitions()
        assert extend_leases(lake.store, 20 * 60 * 1000, HOLD_PREFIX, LEASE_PREFIX, INTENT_PREFIX)
        with el.open(lake.root, clock=lambda: late_ms) as other:
            other.compact("orders", full=True)
            assert other.table("orders").info.log_segments < 6
            assert other.vacuum(grace=0).deleted == ()
        read.extend((row["id"], row["amount"]) for row in planned.collect())

    writer = lake.stream(startingVersion="earliest").writeStream.foreachBatch(late)
    lake.drain(writer.option("checkpointLocation", str(lake.scratch / "ck")))
    assert sorted(read) == expected


@pytest.mark.rule("4.20")
@pytest.mark.parametrize("limits", [{}, pytest.param({"maxRowsPerTrigger": "7"}, marks=LIMITS)], ids=["all", "limited"])
def test_a_packed_log_streams_as_its_commits_did(lake, monkeypatch: pytest.MonkeyPatch, limits: dict[str, str]) -> None:
    for name, size in {"LEAST_COMMITS": 2, "MOST_COMMITS": 4, "MERGED": 2}.items():
        monkeypatch.setattr(packing, name, size)
    lake.store.create_table("copy", SCHEMA, ["id"])
    epochs = [lake.orders.upsert(rows(number, 3, amount=float(number))) for number in range(12)]
    expected = lake.orders.changes(0).read_all()
    lake.store.compact("orders", full=True)
    assert lake.orders.info.log_segments < 6
    seen: list[tuple[int, int, float]] = []

    def collect(frame, _batch) -> None:
        columns = frame.select("_commit_version", "id", "amount").collect()
        seen.extend((row["_commit_version"], row["id"], row["amount"]) for row in columns)

    stream = lake.stream(startingVersion="earliest", **limits).select("*", "_commit_version")
    lake.drain(stream.writeStream.foreachBatch(collect).option("checkpointLocation", str(lake.scratch / "seen")))
    wanted = zip(*(expected[name].to_pylist() for name in ("_commit_version", "id", "amount")), strict=True)
    assert sorted(seen) == sorted(wanted) and {epoch for epoch, *_ in seen} == set(epochs)
    lake.into(lake.stream(startingVersion=epochs[2], **limits), "copy", "ck")  # from within a pack
    assert lake.store.table("copy").to_arrow().equals(lake.orders.to_arrow().slice(2))


@pytest.mark.rule("4.17")
def test_a_consumer_holds_the_log(lake) -> None:
    lake.store.create_table("copy", SCHEMA, ["id"])
    first = lake.orders.upsert(rows(0, 10))
    lake.into(lake.stream(startingVersion=first, consumerId="dash"), "copy", "ck")
    lake.orders.upsert(rows(10, 10))
    last = lake.orders.upsert(rows(20, 10))
    with pytest.raises(el.EpochlogError, match="consumer:dash"):
        lake.orders.truncate_log(last)
    lake.into(lake.stream(startingVersion=first, consumerId="dash"), "copy", "ck")
    lake.orders.upsert(rows(30, 10))
    lake.into(lake.stream(startingVersion=first, consumerId="dash"), "copy", "ck")
    lake.orders.truncate_log(last)  # the consumer has passed it


def test_a_table_made_anew_under_the_old_name_is_told_apart(lake) -> None:
    lake.store.create_table("copy", SCHEMA, ["id"])
    lake.orders.upsert(rows(0, 3))
    lake.into(lake.stream(), "copy", "ck")
    lake.store.drop_table("orders")
    lake.store.create_table("orders", SCHEMA, ["id"]).upsert(rows(0, 3))
    with pytest.raises(Exception, match=r"TableDropped: the query's checkpoint belongs to an earlier table 'orders'"):
        lake.into(lake.stream(), "copy", "ck")


def test_a_stream_with_the_users_schema(lake) -> None:
    lake.orders.upsert(rows(0, 3))
    streamed: list[tuple] = []
    reader = lake.spark.readStream.schema("_change_type string, id long").format("epochlog")
    writer = reader.options(**lake.options("orders")).load().writeStream
    lake.drain(writer.foreachBatch(lambda frame, _batch: streamed.extend(tuple(row) for row in frame.collect())))
    assert sorted(streamed) == [("insert", 0), ("insert", 1), ("insert", 2)]
    without = lake.spark.readStream.schema("id long").format("epochlog").options(**lake.options("orders"))
    images = without.option("preImages", "true").load().writeStream
    with pytest.raises(Exception, match="InvalidInput.*preImages.*_change_type"):
        lake.drain(images.format("noop"))


def test_a_stream_of_some_keys_and_columns(lake) -> None:
    lake.orders.upsert(rows(0, 10))
    streamed: list[tuple] = []
    stream = lake.stream(filter="id IN (2, 5)", columns="id")
    lake.drain(
        stream.writeStream.foreachBatch(
            lambda frame, _batch: streamed.extend(tuple(row)[:2] for row in frame.collect())
        )
    )
    assert sorted(streamed) == [(2, "insert"), (5, "insert")]


# ---- el.sink -------------------------------------------------------------------------------------------------------


def test_sink_takes_update_mode_and_keeps_state_over_a_replay(lake, files) -> None:
    add, stream = files
    totals = lake.store.create_table("totals", pa.schema([("day", pa.string()), ("n", pa.int64())]), ["day"])
    query = stream().groupBy("day").agg(count("*").alias("n"))

    def run() -> None:
        function = el.sink({"totals": None}, app_id="counts", path=lake.root)
        writer = query.writeStream.outputMode("update").foreachBatch(function)
        lake.drain(writer.option("checkpointLocation", str(lake.scratch / "ck")))

    add("f0", rows(0, 9))
    run()
    add("f1", rows(9, 2))
    run()
    assert totals.to_arrow().to_pydict()["n"] == [4, 4, 3]
    commits = totals.history().num_rows
    lake.forget_last_commit("ck")
    run()
    assert totals.history().num_rows == commits
    add("f2", rows(11, 1))
    run()
    assert totals.to_arrow().to_pydict()["n"] == [4, 4, 4]


def test_sink_writes_several_tables_in_one_transaction(lake, files) -> None:
    add, stream = files
    days = lake.store.create_table("days", pa.schema([("day", pa.string())]), ["day"])
    function = el.sink(
        {"orders": None, "days": lambda frame: frame.select("day").distinct()}, app_id="two", path=lake.root
    )
    add("f0", rows(0, 9))
    lake.drain(stream().writeStream.foreachBatch(function).option("checkpointLocation", str(lake.scratch / "ck")))
    assert (lake.orders.count(), days.count()) == (9, 3)
    assert lake.orders.info.max_committed_epoch == days.info.max_committed_epoch


def test_sink_refuses_at_once_and_tells_typed_errors(lake) -> None:
    with pytest.raises(el.TableNotFound):
        el.sink({"missing": None}, app_id="x", path=lake.root)
    with pytest.raises(el.InvalidInput):
        el.sink({}, app_id="x", path=lake.root)
    with pytest.raises(el.StoreNotFound):
        el.sink({"orders": None}, app_id="x", path=str(lake.scratch / "nowhere"))
    function = el.sink({"orders": lambda frame: frame.drop("day")}, app_id="x", path=lake.root)
    with pytest.raises(el.SchemaMismatch, match="column 'day' is missing"):
        function(lake.spark.createDataFrame(rows(0, 1)), 0)
    assert lake.orders.count() == 0


def test_offsets_are_small_json(lake) -> None:
    lake.store.create_table("copy", SCHEMA, ["id"])
    epoch = lake.orders.upsert(rows(0, 1))
    lake.into(lake.stream(), "copy", "ck")
    text = (lake.scratch / "ck" / "offsets" / "0").read_text().splitlines()[-1]
    assert json.loads(text) == {"table": 1, "epoch": epoch}


@pytest.mark.rule("4.11", "4.17")
def test_a_consumer_is_the_same_for_spark_and_for_everybody_else(lake) -> None:
    """Each run is an incarnation; it is seen, and reset, as any other consumer; a new query under its name goes on."""
    for name in ("copy", "more"):
        lake.store.create_table(name, SCHEMA, ["id"])
    lake.orders.upsert(rows(0, 10))
    for run in (1, 2):
        lake.into(lake.stream(consumerId="dash"), "copy", "ck")
        (info,) = lake.store.consumers()
        assert (info.name, info.tables, info.incarnation) == ("dash", ("orders",), run)
        lake.orders.upsert(rows(10 * run, 10))
    assert info.position is not None and info.lag_commits
    lake.store.reset_consumer("dash", "latest")
    lake.orders.upsert(rows(50, 7))
    lake.into(lake.stream(consumerId="dash"), "more", "another")
    assert lake.store.table("more").to_arrow()["id"].to_pylist() == list(range(50, 57))


@pytest.mark.rule("4.17")
def test_a_query_whose_consumer_was_taken_over_is_fenced_and_can_be_started_again(lake) -> None:
    copy = lake.store.create_table("copy", SCHEMA, ["id"])
    lake.orders.upsert(rows(0, 10))
    lake.into(lake.stream(consumerId="dash"), "copy", "ck")
    frame = lake.stream(consumerId="dash").writeStream.format("epochlog").options(**lake.options("copy"))
    query = (
        frame.option("checkpointLocation", str(lake.scratch / "ck")).trigger(processingTime="50 milliseconds").start()
    )
    try:
        lake.orders.upsert(rows(10, 10))
        query.processAllAvailable()
        assert lake.store.consumers()[0].state == "open"
        taken = open_consumer(lake.store._handle, "dash", ["orders"])
        lake.orders.upsert(rows(20, 10))
        with pytest.raises(Exception, match="Fenced"):
            query.awaitTermination()
        taken.check()
    finally:
        query.stop()
    lake.into(lake.stream(consumerId="dash"), "copy", "ck")
    assert copy.to_arrow().equals(lake.orders.to_arrow())
    with pytest.raises(el.Fenced):
        taken.check()


# ---- options -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("versionAsOf", "chooses one epoch, .* set startingVersion to the first epoch to read"),
        ("timestampAsOf", "chooses one epoch, .* set startingVersion to the first epoch to read"),
        ("snapshot", "chooses one epoch, .* set startingVersion to the first epoch to read"),
        ("endingVersion", "is for a batch read of changes"),
        ("changeMode", "is for a batch read of changes"),
        ("foo", "it takes path, .*, failOnDataLoss"),
    ],
)
def test_an_option_that_a_stream_does_not_take_is_refused(lake, option: str, advice: str) -> None:
    epoch = lake.orders.upsert(rows(0, 2))
    value = {"timestampAsOf": "2999-01-01", "changeMode": "net", "snapshot": lake.store.snapshot(["orders"]).token}

    def run() -> None:
        writer = lake.stream(**{option: value.get(option, epoch)}).writeStream.format("noop")
        lake.drain(writer.option("checkpointLocation", str(lake.scratch / "refused")))

    with pytest.raises(Exception, match=f"(?i)InvalidInput: .*{option};? {advice}"):
        run()


def test_an_option_that_nobody_knows_is_refused_by_each_write(lake, files) -> None:
    add, stream = files
    add("f0", rows(0, 1))
    with pytest.raises(Exception, match=r"InvalidInput: a write of .* takes no option foo; it takes path, .*txnAppId"):
        lake.into(stream(), "orders", "refused", foo=1)
    with pytest.raises(
        Exception, match=r"(?i)InvalidInput: a write of .* takes no option snapshotToken; it takes path"
    ):
        lake.write(lake.spark.sql("SELECT 1L id, 'd' day, 1D amount"), snapshotToken="x")
    assert lake.orders.history().num_rows == 0


def test_the_options_that_spark_adds_to_a_stream_pass(lake, files) -> None:
    add, stream = files
    add("f0", rows(0, 1))
    checkpoint = str(lake.scratch / "named")
    writer = stream().writeStream.queryName("named").outputMode("append").options(**lake.options("orders"))
    writer = writer.trigger(availableNow=True).partitionBy("day")
    writer.start(format="epochlog", checkpointLocation=checkpoint).awaitTermination()
    assert lake.orders.count() == 1
