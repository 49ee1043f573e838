"""Stream source without a session: it says which changes it has skipped."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.spark.options import StoreLocation, Tasks
from epochlog.spark.stream_offsets import BatchLimits
from epochlog.spark.stream_source import LogStreamReader, StreamRead
from logged_events import logged

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
