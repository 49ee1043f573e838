"""Commits to a store without end and says so: `intent <n>` before, `done <n> <epoch>` after. Tests kill it.

Arguments: root, seed, first number. Commit n writes ROWS rows with value n to one table or to both: readers can tell
what a commit that is there half would look like.
"""

from __future__ import annotations

import random
import sys

import pyarrow as pa

import epochlog as el

ROWS = 20
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64())])


def rows_of(number: int) -> pa.Table:
    """The rows of one commit: its own keys."""
    return pa.table({"id": [number * ROWS + i for i in range(ROWS)], "n": [number] * ROWS})


def tables_of(number: int) -> list[str]:
    """List the tables that a commit writes: every third commit writes both."""
    return [["a"], ["b"], ["a", "b"]][number % 3]


def main(root: str, seed: int, first: int) -> None:
    dice = random.Random(seed)
    store = el.open(root)
    for number in range(first, first + 100_000):
        print(f"intent {number}")
        with store.transaction(("child", number)) as tx:
            for table in tables_of(number):
                tx.upsert(table, rows_of(number))
        print(f"done {number} {tx.epoch}")
        upkeep(store, dice)


def upkeep(store: el.Store, dice: random.Random) -> None:
    chance = dice.random()
    if chance < 0.1:
        store.compact(dice.choice("ab"), full=True)
    elif chance < 0.3:
        with store.snapshot(consistency="aligned") as moment:
            assert moment["a"].count() % ROWS == 0
    elif chance < 0.4:
        store.checkpoint()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
