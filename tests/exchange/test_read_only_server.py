"""A server of a store that is opened read-only: it serves reads, and refuses writes by name."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
import plain_flight as plain

pytestmark = pytest.mark.local_only
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])


@pytest.mark.medium
@pytest.mark.rule("1.70")
def test_reads_are_served_and_writes_are_refused(tmp_path: Path) -> None:
    with el.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(pa.table({"id": [1, 2], "v": [10, 20]}, schema=SCHEMA))
        table.upsert(pa.table({"id": [2], "v": [21]}, schema=SCHEMA))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")}
    with (
        el.open(tmp_path / "s", read_only=True) as store,
        el.serve(store, metrics="127.0.0.1:0", ui="127.0.0.1:0") as server,
        plain.connected(server.location) as (client, _),
        el.connect(server.location) as remote,
    ):
        assert [served.name for served in remote.tables()] == ["t"]
        assert plain.read(client, plain.path("t")).sort_by("id")["v"].to_pylist() == [10, 21]
        assert remote.changes("t", after=0).read_all().num_rows == 3
        with remote.subscribe("t") as subscription:
            assert subscription.poll(10.0) is not None
        for address in (server.metrics_location, server.ui_location):
            with urllib.request.urlopen(str(address)) as answer:
                assert answer.status == 200
        with pytest.raises(flight.FlightError, match="opened read-only"):
            plain.put(client, plain.path("t"), pa.table({"id": [3], "v": [30]}, schema=SCHEMA))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "s").rglob("*")} == before
