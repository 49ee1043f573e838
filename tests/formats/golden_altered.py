"""Makes the golden store of altered tables (format 2 of a table): `python tests/formats/golden_altered.py` writes it.

Only who raises that format runs it. The root is kept as a zip, with an export of its catalog and, as JSON, all that can
be read from it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

import epochlog as el
from formats.golden import LONG, Clock, rows, write

FOLDER = Path(__file__).parent / "golden_altered"
COLUMNS = pa.schema([("id", pa.int64()), ("a", pa.int8()), ("b", pa.string()), ("f", pa.float32())])


def fill(store: el.Store, clock: Clock) -> None:
    """Every kind of alter, among commits and compactions, with files of each version."""
    for name, changelog in (("plain", "upsert"), ("full", "full")):
        table = store.create_table(name, COLUMNS, ["id"], changelog=changelog, options=LONG)
        table.upsert([{"id": key, "a": key, "b": f"b{key}", "f": key / 2} for key in range(9)])
        clock.tick()
        store.compact(name, full=True)
        table.alter(rename={"a": "b", "b": "a"}, widen={"a": pa.int32(), "f": pa.float64()})
        clock.tick()
        table.upsert([{"id": 1, "b": 70_000, "a": "new", "f": 1e300}])
        table.alter(drop=["a"], add=[pa.field("l", pa.list_(pa.int8()))])
        clock.tick()
        table.upsert([{"id": 2, "b": 2, "f": None, "l": [1, None]}])
        if name == "plain":
            store.compact(name, full=True)
        table.alter(add=[pa.field("a", pa.bool_())])
        clock.tick()
        table.upsert([{"id": 3, "b": 3, "f": 0.5, "l": None, "a": True}])
        table.delete([4])
        clock.tick()
    table = store.create_table("keys", pa.schema([("x", pa.int64()), ("y", pa.string())]), ["x", "y"], options=LONG)
    table.upsert([{"x": key, "y": f"y{key}"} for key in range(3)])
    clock.tick()
    table.alter(rename={"x": "y", "y": "x"})


def readings(store: el.Store) -> dict[str, Any]:
    """Return all that can be read, as JSON takes it."""
    readings: dict[str, Any] = {}
    for info in store.tables():
        table = store.table(info.name)
        epochs = sorted(epoch for epoch in table.history()["epoch"].to_pylist() if epoch >= info.safe_epoch)
        readings[info.name] = {
            "schemas": {str(epoch): str(table.schema_at(epoch)) for epoch in epochs},
            "states": {str(epoch): rows(table.to_arrow(epoch=epoch)) for epoch in epochs},
            "net": {
                str(epoch): rows(table.changes(0, epoch, mode="net", pre_images=True).read_all()) for epoch in epochs
            },
            "history": rows(table.history().drop_columns(["engine"])),
        }
    return json.loads(json.dumps(readings))


if __name__ == "__main__":
    write(FOLDER, fill, readings)
