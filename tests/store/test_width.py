"""Calls on tables of many columns: no work grows faster than their number."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.store.commit import merged_updates, type_trial
from epochlog.store.env import lru_cache
from lab import Lab
from width_work import Meter, superlinear

KINDS = (pa.int32(), pa.string(), pa.float64())
VALUES = (1, "x", 0.5)
LONG = el.TableOptions(history_retention=timedelta(days=30), log_retention=timedelta(days=30))


def wide_schema(columns: int) -> pa.Schema:
    return pa.schema([("id", pa.int64()), *((f"c{at}", KINDS[at % 3]) for at in range(columns))])


def wide_rows(columns: int) -> list[dict[str, Any]]:
    values = {f"c{at}": VALUES[at % 3] for at in range(columns)}
    return [{"id": key, **values} for key in range(5)]


def writes(store: el.Store, columns: int, meter: Meter) -> None:
    schema, rows = wide_schema(columns), wide_rows(columns)
    arrow = pa.Table.from_pylist(rows, schema=schema)
    names, some = schema.names[1:], ["id", *schema.names[1 : 1 + columns // 2]]
    frame, polars = arrow.to_pandas(), pl.from_arrow(arrow)
    table = meter("create", lambda: store.create_table("t", schema, ["id"], options=LONG))
    meter("create again", lambda: store.create_table("t", schema, ["id"], options=LONG, exist_ok=True))
    meter("upsert", lambda: table.upsert(arrow))
    meter("upsert rows", lambda: table.upsert(rows))
    meter("upsert pandas", lambda: table.upsert(frame))
    meter("upsert empty pandas", lambda: table.upsert(pd.DataFrame(frame[:0])))
    meter("upsert polars", lambda: table.upsert(polars))
    meter("update", lambda: table.update(arrow.select(some)))
    meter("update all", lambda: table.update(arrow, ignore_nulls=True))
    meter("delete", lambda: table.delete([1]))
    with store.transaction() as tx:
        meter("write in a transaction", lambda: tx.upsert("t", arrow))
    full = store.create_table("full", schema, ["id"], changelog="full", options=LONG)
    meter("upsert full", lambda: full.upsert(arrow))
    meter("update full", lambda: full.update(arrow.select(some)))
    meter("delete full", lambda: full.delete([1]))
    late = store.create_table("late", schema, ["id"], sequence_by=names[0], options=LONG)
    meter("upsert by sequence", lambda: late.upsert(arrow))
    meter("delete by sequence", lambda: late.delete([(1, 5)]))
    meter("upsert again by sequence", lambda: late.upsert(arrow))


def reads(store: el.Store, meter: Meter, when: str) -> None:
    table, full = store.table("t"), store.table("full")
    names = table.schema.names[1:]
    first = table.history()["epoch"].to_pylist()[-1]
    meter(f"get {when}", lambda: table.get([2, 3], columns=names))
    meter(f"scan {when}", lambda: table.scan().read_all())
    meter(f"scan columns {when}", lambda: table.scan(columns=names).read_all())
    meter(f"to_arrow {when}", table.to_arrow)
    meter(f"to_arrow past {when}", lambda: table.to_arrow(epoch=first))
    meter(f"filter {when}", lambda: table.to_arrow(columns=names[2:], filter=pc.field(names[1]) == "x"))
    meter(f"dataset {when}", lambda: table.dataset().to_table(filter=pc.field(names[0]) == 1, columns=names[1:]))
    meter(f"to_pandas {when}", table.to_pandas)
    meter(f"lazy {when}", lambda: table.lazy().collect())
    meter(f"net changes {when}", lambda: table.changes(first, mode="net", pre_images=True).read_all())
    meter(f"changes {when}", lambda: list(_changes(full)))
    meter(f"get full {when}", lambda: full.get([2, 3]))
    meter(f"to_arrow full {when}", lambda: full.to_arrow(columns=full.schema.names[1:]))
    meter(f"info {when}", lambda: [info.rows for info in store.tables()])
    meter(f"verify {when}", store.verify)
    with store.snapshot(["t", "full"], consistency="latest") as snapshot:
        meter(f"snapshot {when}", snapshot["t"].to_arrow)
    meter(f"clone {when}", lambda: store.clone("t", f"clone_{len(store.tables())}").to_arrow())
    meter(f"clone past {when}", lambda: store.clone("t", f"clone_{len(store.tables())}", as_of=first).to_arrow())


def _changes(table: el.Table) -> Any:
    position = 0
    while True:
        try:
            yield table.changes(position, pre_images=True).read_all()
        except el.SchemaChanged as changed:
            position = changed.epoch
        else:
            return


def alters(table: el.Table, meter: Meter) -> None:
    names = table.schema.names[1:]
    half = names[: len(names) // 2]
    changes: dict[str, dict[str, Any]] = {
        "widen": {"widen": {name: pa.int64() for name in names if table.schema.field(name).type == pa.int32()}},
        "drop": {"drop": half},
        "add": {"add": [pa.field(f"{name}_added", pa.string()) for name in half]},
        "rename": {"rename": {name: f"{name}_renamed" for name in names[len(half) :]}},
    }
    for name, change in changes.items():
        meter(f"alter: {name}", lambda change=change: table.alter(**change))
        meter(f"alter again: {name}", lambda change=change: table.alter(**change))
    added = [f"{name}_added" for name in half]
    turned = dict(zip(added, [*added[1:], added[0]], strict=True))
    meter("alter: turn names", lambda: table.alter(rename=turned))
    meter("alter: turn names with a txn", lambda: table.alter(rename=turned, txn=("deploy", 1)))


def upkeep(store: el.Store, meter: Meter, when: str) -> None:
    for name in ("t", "full", "late"):
        meter(f"compact {name} {when}", lambda name=name: store.compact(name, full=True))


def world(root: Path, columns: int, meter: Meter) -> None:
    lab = Lab(root / str(columns) / str(len(list(root.glob(f"{columns}/*")))))
    store = lab.store
    with store:
        writes(store, columns, meter)
        table = store.table("t")
        first = table.history()["epoch"].to_pylist()[-1]
        reads(store, meter, "of the log")
        store.compact(full=True)
        meter("restore", lambda: table.restore(first))
        table.upsert(table.to_arrow())
        alters(table, meter)
        rows = table.to_arrow()
        meter("upsert altered", lambda: table.upsert(rows))
        meter("update altered", lambda: table.update(rows.select(table.schema.names[: 1 + columns // 2])))
        upkeep(store, meter, "after alters")
        reads(store, meter, "of runs after alters")
        meter("restore before alters", lambda: table.restore(first))
        meter("checks", lambda: table.alter(checks={"positive": "id >= 0"}))


@pytest.mark.slow
@pytest.mark.local_only
def test_no_call_does_work_that_grows_faster_than_the_columns(tmp_path: Path) -> None:
    assert superlinear(lambda columns, meter: world(tmp_path, columns, meter)) == []


def updates(root: Path, columns: int, meter: Meter) -> None:
    with Lab(root / f"{columns}-{len(list(root.iterdir()))}").store as store:
        table = store.create_table("t", wide_schema(columns), ["id"])
        table.upsert(wide_rows(columns))
        rows = table.to_arrow().select(["id", "c0", "c1"])
        meter("update", lambda: table.update(rows))


@pytest.mark.local_only
@pytest.mark.medium
def test_names_that_are_made_anew_for_each_column_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert superlinear(lambda columns, meter: updates(tmp_path, columns, meter)) == []

    def padded(table: Any, data: pa.Table) -> pa.Table:
        schema = pa.schema([field.with_nullable(True) for field in table.schema])
        columns = [
            data.column(field.name) if field.name in data.column_names else pa.nulls(data.num_rows, field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    monkeypatch.setattr(merged_updates, "_padded", padded)
    (growing,) = superlinear(lambda columns, meter: updates(tmp_path, columns, meter), also=[__file__])
    assert "columns in" in growing
    assert Path(__file__).name in growing


@pytest.mark.local_only
@pytest.mark.medium
def test_a_sweep_of_the_caches_is_no_work_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes at some call, by the clock: here in the widest of the runs."""
    put = lru_cache.LRUCache.put

    def put_late(*args: Any, **options: Any) -> None:
        lru_cache._sweeps._swept_s -= 10_000 if runs == [12, 12, 24, 36] else 0
        put(*args, **options)

    def world(columns: int, meter: Meter) -> None:
        runs.append(columns)
        updates(tmp_path, columns, meter)

    runs: list[int] = []
    monkeypatch.setattr(lru_cache.LRUCache, "put", put_late)
    assert superlinear(world) == []


def nested_columns(root: Path, columns: int, meter: Meter) -> None:
    """Half of the columns are structs, each of a shape of its own."""
    type_trial._returned.clear()
    shapes = [pa.struct([(f"f{at}", KINDS[at % 3]), ("g", pa.list_(KINDS[at % 2]))]) for at in range(columns // 2)]
    texts = [(f"t{at}", pa.string()) for at in range(columns // 2)]
    schema = pa.schema([("id", pa.int64()), *((f"s{at}", shape) for at, shape in enumerate(shapes)), *texts])
    values = {f"s{at}": {f"f{at}": VALUES[at % 3], "g": [VALUES[at % 2]]} for at in range(columns // 2)}
    rows = pa.Table.from_pylist([{"id": key, **values, "t0": "x"} for key in range(5)], schema=schema)
    with Lab(root / f"{columns}-{len(list(root.iterdir()))}").store as store:
        table = meter("create", lambda: store.create_table("t", schema, ["id"]))
        meter("upsert", lambda: table.upsert(rows))
        meter("update", lambda: table.update(rows.select(schema.names[: columns // 2])))
        meter("compact", lambda: store.compact("t", full=True))
        meter("to_arrow", table.to_arrow)
        meter("filter", lambda: table.to_arrow(filter=pc.field("t0") == "x"))
        late = store.create_table("late", pa.schema([("id", pa.int64())]), ["id"])
        type_trial._returned.clear()
        meter("add", lambda: late.alter(add=list(schema)[1:]))


@pytest.mark.local_only
@pytest.mark.slow
def test_nested_columns_take_work_like_their_number(tmp_path: Path) -> None:
    """A run file asked of each column if its name is below each nested one."""
    assert superlinear(lambda columns, meter: nested_columns(tmp_path, columns, meter)) == []
