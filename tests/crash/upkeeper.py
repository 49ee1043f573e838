"""One of several processes on one store, for so many seconds: a writer, a reader, a spark-like writer or a vacuum.

Arguments: root, role, seconds, name. It says `ready`, waits for a line, works, and says `done <rounds>`. Every commit
writes one number into all rows, so whoever sees two numbers at once has seen half a commit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

import epochlog as el
from epochlog.store.commit.change import TableChange
from epochlog.store.commit.root_commit import RootCommit
from epochlog.store.commit.transaction import commit_changes
from epochlog.store.metadata.lookups import find_table
from epochlog.store.session.write_intents import SEALED_MS
from epochlog.store.sst.segment_writer import SegmentWriter

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
ROWS = 40


def rows_of(number: int) -> pa.Table:
    return pa.table({"id": range(ROWS), "n": [number] * ROWS}, schema=SCHEMA)


def write(store: el.Store, table: el.Table, number: int, name: str) -> None:
    """Commits of each kind; each leaves the files before it for garbage."""
    if number % 3 == 0:
        table.upsert(rows_of(number), txn=(name, number))
    elif number % 3 == 1:
        writer = table.writer()
        writer.upsert(rows_of(number))
        store.commit({table.name: writer.seal(store.last_epoch + 1)}, txn=(name, number))
    else:
        with store.transaction((name, number)) as tx:
            tx.upsert(table.name, rows_of(number))
    store.compact(table.name, full=number % 2 == 0)


def write_as_spark(store: el.Store, table: el.Table, number: int, name: str) -> None:
    """Under an intent of its own, which ends with the commit."""
    handle = store._handle
    record = handle.catalog.read(lambda view: find_table(view, table.name))
    intent = handle.intents.register("spark", SEALED_MS)
    writer = SegmentWriter(handle.write_target(record, intent))
    writer.upsert(rows_of(number))
    commit_changes(
        handle, [TableChange(record, tuple(writer.finish()))], RootCommit(txn=(name, number), ending=[intent])
    )
    handle.intents.release(intent)


def read(store: el.Store, table: el.Table, number: int, name: str) -> None:
    with store.snapshot([table.name], consistency="latest") as snapshot:
        first = snapshot[table.name].to_arrow()
        for _ in range(3):
            assert snapshot[table.name].to_arrow() == first, "a snapshot changed"
    assert first.num_rows in (0, ROWS) and len(set(first["n"].to_pylist())) <= 1, first
    with suppress(el.SnapshotExpired):  # it holds nothing, and vacuum gives no grace
        rows = table.to_arrow()
        assert len(set(rows["n"].to_pylist())) <= 1


def clear_away(store: el.Store, table: el.Table, number: int, name: str) -> None:
    report = store.vacuum(grace=0)
    assert not report.foreign and not any("report" in file.reason for file in report.kept), report


ROLES: dict[str, Callable[[el.Store, el.Table, int, str], None]] = {
    "writer": write,
    "spark": write_as_spark,
    "reader": read,
    "vacuum": clear_away,
}


def main(root: str, role: str, seconds: float, name: str) -> None:
    with el.open(root, durability="os", maintenance=name == "maintained") as store:
        table = store.table("t")
        print("ready")
        sys.stdin.readline()
        rounds, end = 0, time.monotonic() + seconds
        while not rounds or time.monotonic() < end:
            ROLES[role](store, table, rounds, name)
            rounds += 1
    print(f"done {rounds}")  # the store is closed: a process that is killed before leaves a write intent


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4])
