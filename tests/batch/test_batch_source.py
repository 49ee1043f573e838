"""The batch source without a session: what its readers plan, and what of the files they read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import LongType, StringType, StructField, StructType

import epochlog as el
from epochlog.batch import policy_registry
from epochlog.spark import session_time
from epochlog.spark.batch_source import make_reader, resolve_load
from epochlog.spark.partitions import ReadPartition
from epochlog.store.epochs.view import EpochView
from epochlog.store.sst import segment, sorted_run
from epochlog.store.sst.data_file import FileMissing
from epochlog.store.types.epoch import to_unix_ms

pytestmark = pytest.mark.local_only

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("flag", pa.bool_()), ("n", pa.int32())])
ROWS, GROUP = 4_000, 250


def rows(first: int, count: int) -> pa.Table:
    ids = list(range(first, first + count))
    days = [None if i % 7 == 0 else f"d{i // 1000}" for i in ids]
    return pa.table([ids, days, [i % 3 == 0 for i in ids], [i % 11 for i in ids]], schema=SCHEMA)


class Decoded:
    """Counts the row groups of parts and the record batches of segments that are decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.groups = self.segments = 0
        plain_groups, plain_read = sorted_run.Footer.read, segment.SegmentReader.read

        def read_groups(footer: sorted_run.Footer, data: pa.Buffer, groups: list[int], names: list[str]) -> pa.Table:
            self.groups += len(groups)
            return plain_groups(footer, data, groups, names)

        def read(reader, *args, **more):
            self.segments += 1
            return plain_read(reader, *args, **more)

        monkeypatch.setattr(sorted_run.Footer, "read", read_groups)
        monkeypatch.setattr(segment.SegmentReader, "read", read)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The options of a table with a run of 16 row groups and a few newer commits, some way into its keys."""
    monkeypatch.setattr(sorted_run, "ROW_GROUP_ROWS", GROUP)
    with el.open(tmp_path / "store") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(rows(0, ROWS))
        store.compact("t", full=True)
        for first in (100, 2_000, 3_000):
            table.upsert(rows(first, 10))
        yield {"path": store.root, "table": "t"}


def read(options: dict[str, str], filter_text: str | None = None) -> pa.Table:
    """The rows of all tasks."""
    load = resolve_load({**options, **({"filter": filter_text} if filter_text else {})})
    reader = make_reader(load, load.spark_schema(), {})
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches) if batches else SCHEMA.empty_table()


def test_a_filter_skips_row_groups_and_segments(place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = Decoded(monkeypatch)
    assert read(place, "id >= 1000 AND id < 1100")["id"].to_pylist() == list(range(1_000, 1_100))
    assert (decoded.groups, decoded.segments) == (1, 0)
    assert read(place, "id = 2005").num_rows == 1
    assert (decoded.groups, decoded.segments) == (2, 1)
    assert read(place).num_rows == ROWS
    assert (decoded.groups, decoded.segments) == (2 + ROWS // GROUP, 4)


def test_a_filter_on_other_columns_skips_only_what_hides_nothing(
    place: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = Decoded(monkeypatch)
    assert read(place, "flag AND day = 'd3'").num_rows == sum(1 for i in range(3_000, 4_000) if i % 7 and i % 3 == 0)
    assert decoded.groups <= 5  # those with that day
    assert decoded.segments == 3  # each may hide older rows that would pass


def test_what_a_filter_rules_out_is_no_work_for_tasks(place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = Decoded(monkeypatch)
    load = resolve_load({**place, "filter": "id > 1000000", "minPartitions": "4"})
    assert len(make_reader(load, load.spark_schema(), {}).partitions()) == 1  # the one that there must be
    assert (decoded.groups, decoded.segments) == (0, 0)


def test_readers_take_no_filters_of_sparks(place: dict[str, str]) -> None:
    """See TableReader: Spark would give the rows that pass one use of a frame to its other uses."""
    load = resolve_load(place)
    assert type(make_reader(load, load.spark_schema(), {})).pushFilters is DataSourceReader.pushFilters


def test_a_schema_may_not_say_that_there_are_no_nulls(place: dict[str, str]) -> None:
    """Spark drops `day IS NULL` where it is told that there are none, and gave 0 rows for 571."""
    load = resolve_load(place)
    fields = [StructField("id", LongType(), False), StructField("day", StringType(), False)]
    with pytest.raises(el.SchemaMismatch, match="column 'day': it may hold nulls"):
        make_reader(load, StructType(fields), {})
    assert make_reader(load, StructType(fields[:1]), {})  # a key holds none


def test_a_time_of_eight_digits_is_a_day(place: dict[str, str]) -> None:
    zoned = {**place, "sessionTimeZone": "UTC"}
    assert resolve_load({**zoned, "timestampAsOf": "29990131"}).epoch == resolve_load(place).epoch
    with pytest.raises(el.InvalidInput, match="option timestampAsOf"):
        resolve_load({**zoned, "timestampAsOf": "2026"})


def test_a_time_without_an_offset_is_of_the_sessions_zone(place: dict[str, str]) -> None:
    """`timestampAsOf` was in UTC, and TIMESTAMP AS OF of the catalog in the session's zone."""
    epoch = resolve_load(place).epoch
    moment = datetime.fromtimestamp((to_unix_ms(epoch) + 60_000) / 1000, UTC).replace(tzinfo=None)
    times = [{"timestampAsOf": ""}, {"consistency": "as_of", "timestamp": ""}]
    for form in times:
        name = list(form)[-1]
        for zone, hours in {"UTC": 0, "+02:00": 2, "GMT-9": -9, "Asia/Tokyo": 9}.items():
            text = (moment + timedelta(hours=hours)).isoformat(sep=" ")
            assert resolve_load({**place, **form, name: text, "sessionTimeZone": zone}).epoch == epoch
            early = (moment + timedelta(hours=hours - 1)).isoformat()
            with pytest.raises((el.EpochNotCommitted, el.EpochExpired)):
                resolve_load({**place, **form, name: early, "sessionTimeZone": zone})
        text = moment.isoformat()
        assert resolve_load({**place, **form, name: f"{text}+00:00"}).epoch == epoch
        for zone in ({}, {"sessionTimeZone": "Nowhere/There"}):
            with pytest.raises(el.InvalidInput, match=rf"option {name}: .* add one, as in {re.escape(text)}\+00:00"):
                resolve_load({**place, **form, name: text, **zone})


@pytest.mark.planted
def test_times_that_are_read_in_utc_are_found(place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_time, "_find_zone", lambda _zone: UTC)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test_a_time_without_an_offset_is_of_the_sessions_zone(place)


def test_a_policy_that_waits_is_waited_for(place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    epochs: list[int] = []

    class Patient:
        timeout = 60.0

        def choose(self, view: EpochView, tables: Sequence[str]) -> dict[str, int]:
            epochs.append(view.last_epoch)
            if len(epochs) < 2:
                raise el.NoConsistentEpoch("not yet")
            return {name: view.table(name).position for name in tables}

    named = policy_registry._named
    monkeypatch.setattr(policy_registry, "_named", lambda name: Patient if name == "patient" else named(name))
    assert resolve_load({**place, "consistency": "patient"}).epoch == resolve_load(place).epoch
    assert len(epochs) == 2


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FileMissing("p", "the file is missing"), el.SnapshotExpired),
        (el.Corrupt("p", "column 'gone' is damaged"), el.Corrupt),
    ],
)
def test_only_a_missing_file_means_that_the_lease_expired(
    place: dict[str, str], monkeypatch: pytest.MonkeyPatch, error: el.Corrupt, expected: type[el.EpochlogError]
) -> None:
    """A read of a damaged file raises Corrupt even if the message contains the word "gone"."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(ReadPartition, "_batches", fail)
    with pytest.raises(expected):
        read(place)
