"""Makes the golden store of the present format version: `python tests/formats/golden.py` writes it anew.

Only who raises the format version runs it, for the new version's folder; what older versions wrote is never touched.
The root is kept as a zip, with an export of its catalog and, as JSON, all that can be read from it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import epochlog as el
from epochlog.store.metadata.definitions import FORMAT_VERSION

GOLDEN = Path(__file__).parent / "golden"
START_MS = 1_800_000_000_000
LONG = el.TableOptions(history_retention=timedelta(days=3650), log_retention=timedelta(days=3650))
PLAIN = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.float64()), ("s", pa.string())])
WIDE = pa.schema(
    [
        pa.field("day", pa.date32(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        ("flag", pa.bool_()),
        ("small", pa.int8()),
        ("money", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("raw", pa.binary()),
        ("many", pa.list_(pa.int32())),
        ("pair", pa.struct([("a", pa.int64()), ("b", pa.string())])),
    ]
)
FLOATS = pa.schema([pa.field("x", pa.float64(), nullable=False), ("n", pa.int32())])


class Clock:
    """Unix ms; each look is a little later."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def tick(self) -> None:
        self.now_ms += 1_000


def plain(first: int, count: int, v: float = 0.5) -> pa.Table:
    ids = list(range(first, first + count))
    return pa.table({"id": ids, "v": [v] * count, "s": [f"row {i}" if i % 3 else None for i in ids]}, schema=PLAIN)


def wide(names: list[str], small: int) -> pa.Table:
    rows = [
        {
            "day": date(2027, 1, 1 + i % 28),
            "name": name,
            "flag": bool(i % 2),
            "small": small,
            "money": Decimal(f"{i}.25"),
            "at": datetime.fromisoformat("2027-01-01T00:00:00.000001+00:00"),
            "raw": bytes([i, 0, 255]),
            "many": [i, None],
            "pair": {"a": i, "b": None},
        }
        for i, name in enumerate(names)
    ]
    return pa.Table.from_pylist(rows, schema=WIDE)


def fill(store: el.Store, clock: Clock) -> None:
    """Some of everything that a store can hold."""
    orders = store.create_table("orders", PLAIN, ["id"], options=LONG)
    full = store.create_table("full", PLAIN, ["id"], changelog="full", options=LONG)
    people = store.create_table("people", WIDE, ["day", "name"], options=LONG)
    floats = store.create_table("floats", FLOATS, ["x"], options=LONG)
    job = store.create_job("copy", ["orders"], {"copied": (PLAIN, ["id"])}, backfill="log")

    def copy(ctx: Any) -> None:
        changes = ctx.changes("orders", mode="net")
        ctx.upsert("copied", changes.filter(pa.compute.equal(changes["_change_type"], "upsert")).select(PLAIN.names))

    for n in range(6):
        clock.tick()
        orders.upsert(plain(n * 7, 20, n))
        full.upsert(plain(n, 5, n))
        people.upsert(wide([f"n{i}\0{n % 2}" for i in range(n, n + 4)], n))
        floats.upsert(pa.table({"x": [-0.0, float("nan"), 1.5 * n, float("-inf")], "n": [n] * 4}, schema=FLOATS))
        if n == 2:
            store.compact("orders")
        if n == 3:
            clock.tick()
            orders.delete(pa.table({"id": [1, 22, 999]}))
            full.delete(pa.table({"id": [3]}))
            store.checkpoint()
            job.step_local(copy)
    store.compact("people")
    store.compact("floats", full=True)
    clock.tick()
    with store.transaction(txn=("golden", 7)) as tx:
        tx.upsert("orders", plain(500, 3, 9))
        tx.delete("full", pa.table({"id": [4]}))
    writer = orders.writer()
    clock.tick()
    labels = [store.last_epoch + 10, store.last_epoch + 20]
    segments = []
    for label in labels:
        writer.upsert(plain(label % 50, 4, -1.0))
        segments += writer.seal(label)
    store.commit({"orders": segments}, epoch=labels[-1] + 5)
    clock.tick()
    store.checkpoint()
    job.step_local(copy)
    orders.truncate_log(orders.history().column("epoch").to_pylist()[-2])
    floats.finish()


def readings(store: el.Store) -> dict[str, Any]:
    """Return all that can be read, as JSON takes it: each table at each epoch, its changes, and what is told of it."""
    readings: dict[str, Any] = {"resolved": store.resolve(("golden", 7))}
    for info in store.tables():
        table = store.table(info.name)
        mark = info.log_start_epoch
        epochs = [epoch for epoch in table.history()["epoch"].to_pylist() if epoch >= info.safe_epoch]
        readings[info.name] = {
            "info": [info.state, info.job, info.primary_key, info.max_committed_epoch, mark, info.runs],
            "schema": str(info.schema),
            "states": {str(epoch): rows(table.to_arrow(epoch=epoch)) for epoch in epochs},
            "changes": rows(table.changes(mark).read_all()),
            "images": rows(table.changes(mark, mode="net", pre_images=True).read_all()),
            "history": rows(table.history().drop_columns(["engine"])),
        }
    readings["jobs"] = [[job.name, job.state, job.committed_epoch] for job in store.jobs()]
    return json.loads(json.dumps(readings))


def rows(table: pa.Table) -> list[str]:
    """Each row as text that tells types apart, NaN and -0.0 too."""
    return [repr(row) for row in table.to_pylist()]


def pack(root: Path, target: Path) -> None:
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in members(root):
            archive.write(path, path.relative_to(root))


def members(root: Path) -> Iterator[Path]:
    return (path for path in sorted(root.rglob("*")) if path.is_file() and path.name != "lock.mdb")


def write(folder: Path, fill: Callable[[el.Store, Clock], None], readings: Callable[[el.Store], Any]) -> None:
    """Write the golden store that `fill` makes: its root, an export of its catalog, and its readings."""
    if folder.exists() and "--again" not in sys.argv:
        raise SystemExit(f"{folder} is there; what a version wrote stays. --again writes an unreleased one anew")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        root, clock = Path(scratch) / "store", Clock()
        with el.open(root, clock=clock) as store:
            fill(store, clock)
            store.export_catalog(str(folder / "catalog.dump"))
            (folder / "readings.json").write_text(json.dumps(readings(store), indent=1) + "\n")
            assert store.verify().ok
        pack(root, folder / "root.zip")


if __name__ == "__main__":
    write(GOLDEN / f"v{FORMAT_VERSION}", fill, readings)
