"""Jobs and views over tables of many columns: no work grows faster than their number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochlog.views import aggregate_state
from lab import Lab
from width_work import Meter, superlinear

SQL = "SELECT g, COUNT(*) AS n, {} FROM t GROUP BY g"


def world(root: Path, columns: int, meter: Meter) -> None:
    lab = Lab(root / f"{columns}-{len(list(root.iterdir()))}")
    names = [f"c{at}" for at in range(columns)]
    schema = pa.schema([("id", pa.int64()), ("g", pa.int64()), *((name, pa.int64()) for name in names)])
    # one group: DuckDB returns several in any order, and only those out of order are sorted, which is work of its own
    rows = pa.table([[1, 2, 3], [0, 0, 0], *([[1, 2, 3]] * columns)], schema=schema)
    with lab.store as store:
        table = store.create_table("t", schema, ["id"], changelog="full")
        every = meter("view: create", lambda: store.create_view("every", "SELECT * FROM t WHERE c0 > 0", ["id"]))
        sums = SQL.format(", ".join(f"SUM({name}) AS {name}" for name in names))
        grouped = meter("view: create sums", lambda: store.create_view("sums", sums, ["g"]))
        job = meter("job: create", lambda: store.create_job("j", ["t"], {"out": (schema, ["id"])}))
        for turn in ("fill", "first change", "second change"):
            table.upsert(rows[len(turn) % 3 :])
            store.checkpoint()
            lab.tick()
            meter(f"view: {turn}", every.step)
            meter(f"sums: {turn}", grouped.step)
            meter(f"job: {turn}", lambda: job.step_local(_copied))
        meter("view: sql", lambda: every.sql)
        meter("view: explain", every.explain)
        table.alter(rename={"c1": "renamed"}, drop=[])
        meter("view: sql after a rename", lambda: every.sql)


def _copied(ctx: Any) -> None:
    ctx.upsert("out", ctx.table("t"))


@pytest.mark.slow
@pytest.mark.local_only
def test_no_view_does_work_that_grows_faster_than_the_columns(tmp_path: Path) -> None:
    assert superlinear(lambda columns, meter: world(tmp_path, columns, meter), 8) == []


def sums_alone(root: Path, columns: int, meter: Meter) -> None:
    with Lab(root / f"{columns}-{len(list(root.iterdir()))}").store as store:
        names = [f"c{at}" for at in range(columns)]
        store.create_table("t", pa.schema([("g", pa.int64()), *((name, pa.int64()) for name in names)]), ["g"])
        sums = SQL.format(", ".join(f"SUM({name}) AS {name}" for name in names))
        meter("create", lambda: store.create_view("sums", sums, ["g"]))


@pytest.mark.medium
@pytest.mark.local_only
def test_a_search_of_each_sum_among_all_outputs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert superlinear(lambda columns, meter: sums_alone(tmp_path, columns, meter), 8) == []

    class Searched(dict[Any, str]):
        def __contains__(self, value: object) -> bool:
            return any(key == value for key in self)

    real = aggregate_state._rows
    monkeypatch.setattr(
        aggregate_state, "_rows", lambda block, groups, aggregates: real(block, groups, Searched(aggregates))
    )
    growing = superlinear(lambda columns, meter: sums_alone(tmp_path, columns, meter), 8, also=[__file__])
    assert growing
    assert all("instructions in" in line and Path(__file__).name in line for line in growing)
