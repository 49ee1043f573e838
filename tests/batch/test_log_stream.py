"""Stream source without a session: the changes that it skips are logged, and a batch holds its files to its end."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition

import epochlog as el
from epochlog.spark.options import StoreLocation, Tasks
from epochlog.spark.stream_offsets import BatchLimits, Offset
from epochlog.spark.stream_source import LogStreamReader, StreamRead
from epochlog.store.changelog.log_plan import LogPlan
from epochlog.store.retention.holds import all_holds
from logged_events import logged
from stand_in_packer import pack

pytestmark = pytest.mark.local_only
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


@pytest.mark.logs("changes_lost")
def test_changes_that_a_stream_may_skip_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with el.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        first, _, last = (table.upsert(pa.table({"id": [n], "v": [n]}, schema=SCHEMA)) for n in range(3))
        table.truncate_log(last)
        definition, place = table._table, StoreLocation(store.root, None, "t")
        limits, tasks = BatchLimits(None, None, None), Tasks.from_options({})
        read = StreamRead(place, definition.id, definition.schema, first, limits, None, False, False, tasks)
        reader = LogStreamReader(read, SCHEMA)
        with closing(reader._handle()) as handle:
            assert handle.catalog.read(lambda view: reader._require_log(view, definition, first)) == last
        (lost,) = logged(caplog, "changes_lost")
        assert (lost["table"], lost["after"]) == ("t", first) and lost["commits"] >= 1


@pytest.mark.parametrize("read_only", [False, True])
def test_the_advice_to_a_stream_whose_log_was_truncated_can_be_followed_there(tmp_path: Path, read_only: bool) -> None:
    """A store that is opened read-only holds no log, so a process that may write keeps it longer."""
    clock = [1_767_225_600_000]
    with el.open(tmp_path / "s", clock=lambda: clock[0]) as store:
        table = store.create_table("t", SCHEMA, ["id"], options=el.TableOptions(log_retention=timedelta(0)))
        definition, place = table._table, StoreLocation(store.root, None, "t", read_only=read_only)
        limits, tasks = BatchLimits(None, None, None), Tasks.from_options({})

        def end_of_log(after: int, consumer: str | None = None) -> int:
            read = StreamRead(place, definition.id, definition.schema, after, limits, consumer, False, True, tasks)
            reader = LogStreamReader(read, SCHEMA)
            with closing(reader._handle()) as handle:
                reader._consumer()
                return handle.catalog.read(lambda view: reader._require_log(view, definition, after))

        def go_on() -> int:
            """Truncate the log as far as retention does, and return the first epoch."""
            epochs = []
            for n in range(3):
                epochs.append(table.upsert(pa.table({"id": [n], "v": [n]}, schema=SCHEMA)))
                clock[0] += 3_600_001
            store.checkpoint()
            store.compact("t", full=True)
            store.vacuum(grace=0)
            return epochs[0]

        with pytest.raises(el.LogTruncated) as ended:
            end_of_log(go_on())
        assert ("consumerId" in str(ended.value)) != read_only
        if read_only:
            assert "log_retention=…) where the store may be written" in str(ended.value)
            with pytest.raises(el.StoreReadOnly):
                end_of_log(0, "c")
            table.alter(options=el.TableOptions(log_retention=timedelta(days=9)))
            first = go_on()
            assert end_of_log(first) == first


# ---- the lease of a batch ----------------------------------------------------------------------------------------


def stream_of(store: el.Store, table: el.Table, start: str | int, *, pre_images: bool = False) -> LogStreamReader:
    definition, place = table._table, StoreLocation(store.root, None, "t")
    limits, tasks = BatchLimits(None, None, None), Tasks.from_options({})
    read = StreamRead(place, definition.id, definition.schema, start, limits, None, pre_images, True, tasks)
    return LogStreamReader(read, pa.schema([*SCHEMA, ("_change_type", pa.string())]))


def rows_of(reader: LogStreamReader, tasks: Sequence[InputPartition]) -> list[tuple[int, int, str]]:
    """Read tasks as Spark does, from pickled partitions; return the rows."""
    batches = [batch for task in pickle.loads(pickle.dumps(tasks)) for batch in reader.read(task)]
    return [(row["id"], row["v"], row["_change_type"]) for batch in batches for row in batch.to_pylist()]


def late_tasks(folder: Path, start: str | int, *, pre_images: bool) -> None:
    """Check that the tasks of two plans of one batch find their files, however the log is packed until its commit."""
    with el.open(folder / "s") as store, closing_stream(store, start, pre_images=pre_images) as (table, reader):
        for n in range(6):
            table.upsert(pa.table({"id": [n % 4], "v": [n]}, schema=SCHEMA))
        begin = reader.initialOffset()
        end = reader.latestOffset(begin)
        first = reader.partitions(begin, end)
        expected = rows_of(reader, first)
        assert len(expected) >= 4
        assert pack(store, "t") == 0
        second = reader.partitions(begin, end)  # Spark plans a batch anew for each action on it
        store.compact("t", full=True)
        assert pack(store, "t") == 0
        assert rows_of(reader, first) == rows_of(reader, second) == expected
        for turn, done in enumerate(
            (reader.commit, reader.latestOffset)
        ):  # Spark commits a batch only when it begins the next one
            done(end)
            store.checkpoint()
            assert pack(store, "t") > 0 and not list(all_holders(store))
            table.upsert(pa.table({"id": [9 + turn], "v": [9]}, schema=SCHEMA))
            begin, end = end, reader.latestOffset(end)
            assert len(rows_of(reader, reader.partitions(begin, end))) == 1
            assert pack(store, "t") == 0


@contextmanager
def closing_stream(
    store: el.Store, start: str | int, *, pre_images: bool
) -> Iterator[tuple[el.Table, LogStreamReader]]:
    table = store.create_table("t", SCHEMA, ["id"], options=el.TableOptions(history_retention=timedelta(0)))
    reader = stream_of(store, table, start, pre_images=pre_images)
    yield table, reader
    reader.stop()
    assert not list(all_holders(store))


def all_holders(store: el.Store) -> list[str]:
    return store._handle.catalog.read(lambda view: [hold.holder for _, hold in all_holds(view)])


@pytest.mark.rule("4.19")
@pytest.mark.parametrize(("start", "pre_images"), [("earliest", False), (0, True), ("snapshot", False)])
def test_tasks_that_start_late_find_the_files_of_their_batch(
    tmp_path: Path, start: str | int, pre_images: bool
) -> None:
    late_tasks(tmp_path, start, pre_images=pre_images)


def no_lease(reader: LogStreamReader, begin: Offset, until: int) -> tuple[str, int]:
    """Bug: a batch is planned without a lease."""
    return "none", begin.epoch


def lease_after_the_plan(reader: LogStreamReader, begin: Offset, until: int) -> LogPlan:
    """Bug: each plan of a batch takes the lease anew, so that it no longer pins the files of an earlier plan."""
    plan = PLAN_LEASED(reader, begin, until)
    reader._end_leases(until)
    reader._leases[begin, until] = reader._lease(begin, until)
    return plan


PLAN_LEASED = LogStreamReader._plan_leased


@pytest.mark.planted
@pytest.mark.parametrize(("name", "bug"), [("_lease", no_lease), ("_plan_leased", lease_after_the_plan)])
def test_a_batch_without_its_lease_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, bug: Callable[..., Any]
) -> None:
    monkeypatch.setattr(LogStreamReader, name, bug)
    with pytest.raises((AssertionError, el.SnapshotExpired)):
        late_tasks(tmp_path, 0, pre_images=False)


def test_a_batch_that_cannot_be_leased_leaves_no_lease(tmp_path: Path) -> None:
    with el.open(tmp_path / "s") as store, closing_stream(store, 0, pre_images=False) as (table, reader):
        first, _, last = (table.upsert(pa.table({"id": [n], "v": [n]}, schema=SCHEMA)) for n in range(3))
        begin = reader.initialOffset()
        end = reader.latestOffset(begin)
        table.truncate_log(last)
        with pytest.raises(el.LogTruncated):
            reader.partitions(begin, end)
        assert not all_holders(store)
        assert first < end["epoch"]
