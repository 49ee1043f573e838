"""One of several processes that commit to one store at once. Arguments: root, its name, how many commits.

It opens the store (perhaps creating it), says `ready`, waits for a line, commits, and says `done <n> <epoch>` for each.
"""

from __future__ import annotations

import sys

import epochlog as el
from crash.committer import SCHEMA, rows_of


def main(root: str, name: str, count: int) -> None:
    store = el.open(root)
    try:
        table = store.create_table("t", SCHEMA, ["id"])
    except el.TableExists:
        table = store.table("t")
    print(f"ready {store.root}")
    sys.stdin.readline()
    for number in range(count):
        epoch = table.upsert(rows_of(int(name) * 1_000_000 + number), txn=(name, number))
        print(f"done {number} {epoch}")
        if number % 5 == 4:
            store.compact("t")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
