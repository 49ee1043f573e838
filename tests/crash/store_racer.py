"""One of several processes that commit to one store at once, through either catalog.

Arguments: root, catalog URL or "-", its name, seconds. It opens the store (perhaps creating it), says `ready`, waits
for a line, commits for so long, and says `done <n> <epoch>` for each commit and `end` at the end.
"""

from __future__ import annotations

import sys

import epochlog as el
from crash.committer import SCHEMA, rows_of
from epochlog.store.env.clock import Deadline

LEAST = 10
"""Commits of each process, on however slow a machine."""


def main(root: str, catalog: str, name: str, seconds: float) -> None:
    store = el.open(root, None if catalog == "-" else catalog, durability="os")
    try:
        table = store.create_table("t", SCHEMA, ["id"])
    except el.TableExists:
        table = store.table("t")
    print("ready")
    sys.stdin.readline()
    over, number = Deadline.after(seconds), 0
    while number < LEAST or not over.passed:
        epoch = table.upsert(rows_of(int(name) * 1_000_000 + number), txn=(name, number))
        print(f"done {number} {epoch}")
        number += 1
        if number % 20 == 0:
            store.compact("t")
    store.close()
    print("end")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
