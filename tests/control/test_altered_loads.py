"""Loads whose tables are altered: parts run on with their columns, and begin again where one was dropped."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from control_fixture import attach, ids, open_worker, rows, served
from wait_until import wait_until


@pytest.mark.rule("7.6")
def test_a_part_runs_on_and_begins_again_when_its_column_is_dropped(tmp_path: Path) -> None:
    with served(tmp_path) as (store, server), open_worker(server, store) as worker:
        part, table = attach(worker), store.table("clicks")
        part.writer("clicks").upsert(rows(1))
        part.poll(state=b"one")
        wait_until(lambda: ids(store) == [1], part)
        table.alter(add=[pa.field("c", pa.int8())], rename={"v": "w"})
        part.writer("clicks").upsert(rows(2, v=2))
        part.poll(state=b"two")
        wait_until(lambda: ids(store) == [1, 2], part)
        assert table.to_arrow().to_pylist()[1] == {"id": 2, "w": 2, "c": None}
        part.writer("clicks").upsert(rows(3, v=3))
        table.alter(drop=["w"])
        part.poll(state=b"three")

        def rolled_back() -> bool:
            try:
                part.poll()
            except el.RolledBack:
                return True
            return False

        wait_until(rolled_back)
        assert part.state == b"two"
        with pytest.raises(el.SchemaMismatch):
            part.writer("clicks").upsert(rows(3))
        part.writer("clicks").upsert([{"id": 3, "c": 3}])
        part.poll(state=b"three")
        wait_until(lambda: ids(store) == [1, 2, 3], part)
        assert table.to_arrow().to_pylist()[2] == {"id": 3, "c": 3}
