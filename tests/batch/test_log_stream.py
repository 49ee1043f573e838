"""Stream source without a session: it says which changes it has skipped."""

from __future__ import annotations

from contextlib import closing
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
