"""Makes the golden store of tables with a packed log: `python tests/formats/golden_packed.py` writes it.

Only who changes the record or the files of a pack runs it. Its files are those of `golden_altered.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

import epochlog as el
from epochlog.store.compaction import packing
from formats.golden import LONG, Clock, rows, write

FOLDER = Path(__file__).parent / "golden_packed"
COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.float64()), ("s", pa.string())])
SIZES = {"LEAST_COMMITS": 4, "MOST_COMMITS": 8, "MERGED": 2}
"""Sizes of packs, so that a short log has packs of both kinds."""


def small_packs(patch: Any) -> None:
    for name, size in SIZES.items():
        patch.setattr(packing, name, size)


def commit(table: el.Table, number: int) -> None:
    """Commit new rows, replaced rows, deletes, or nothing."""
    if number % 5 == 4:
        table.delete([number % 3, 900 + number])
    elif number % 7 == 6:
        table.delete([])
    else:
        more = {"n": number} if "n" in table.schema.names else {}
        keys = range(number, number + 1 + number % 3)
        table.upsert([{"id": key % 7, "v": number / 4, "s": f"s{number}", **more} for key in keys])


def fill(store: el.Store, clock: Clock) -> None:
    """Both kinds of changelog, each with a pack of packs, a pack of commits, and single commits; and a view of one."""
    for name, value in SIZES.items():
        setattr(packing, name, value)
    for name, changelog in (("plain", "upsert"), ("full", "full")):
        table = store.create_table(name, COLUMNS, ["id"], changelog=changelog, options=LONG)
        for number in range(21):
            commit(table, number)
            clock.tick()
        store.compact(name, full=True)
        table.alter(add=[pa.field("n", pa.int32())])
        clock.tick()
        for number in range(21, 32):
            commit(table, number)
            clock.tick()
        store.compact(name, full=True)
        if name == "plain":
            table.truncate_log(table.history()["epoch"].to_pylist()[-4])
    store.create_view("sums", "SELECT s, SUM(v) AS v FROM full GROUP BY s", ["s"])
    store.checkpoint()
    store.view("sums").step()


def readings(store: el.Store) -> dict[str, Any]:
    """Return all that can be read, as JSON takes it."""
    readings: dict[str, Any] = {}
    for info in store.tables():
        table = store.table(info.name)
        mark = info.log_start_epoch
        epochs = sorted(epoch for epoch in table.history()["epoch"].to_pylist() if epoch >= info.safe_epoch)
        altered = [epoch for epoch in epochs if table.schema_at(epoch) != table.schema]
        parts = [(mark, altered[-1]), (altered[-1], None)] if altered else [(mark, None)]
        readings[info.name] = {
            "mark": mark,
            "states": {str(epoch): rows(table.to_arrow(epoch=epoch)) for epoch in epochs},
            "changes": [rows(table.changes(after, until).read_all()) for after, until in parts],
            "images": [rows(table.changes(after, until, pre_images=True).read_all()) for after, until in parts],
            "net": [
                rows(table.changes(after, until, mode="net", pre_images=True).read_all()) for after, until in parts
            ],
            "history": rows(table.history().drop_columns(["engine"])),
        }
    return json.loads(json.dumps(readings))


if __name__ == "__main__":
    write(FOLDER, fill, readings)
