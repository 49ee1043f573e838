"""Makes the golden store of views that keep a state: `python tests/formats/golden_states.py` writes it.

Only who changes the record of a state or its tables runs it. Its files are those of `golden_altered.py`.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa

import epochlog as el
from formats.golden import Clock, rows, write
from view_states import CASES, TABLES, random_row

FOLDER = Path(__file__).parent / "golden_states"
VIEWS = {
    "every_kind": CASES["all kinds"],
    "of_all_rows": CASES["all kinds of all rows"],
    "null_groups": CASES["groups that are NULL"],
    "other_keys": CASES["keys of other types"],
    "two_tables": CASES["two tables"],
    "three_blocks": CASES["three blocks"],
}


def change(store: el.Store, chance: random.Random) -> None:
    """Upsert and delete some rows of both tables in one transaction."""
    with store.transaction() as tx:
        for name, schema in TABLES.items():
            some = chance.sample(range(14), 5)
            tx.upsert(
                name, pa.Table.from_pylist([random_row(chance, name, number) for number in some[:3]], schema=schema)
            )
            tx.delete(name, pa.table({"id": some[3:]}))


def step_all(store: el.Store) -> None:
    """Step all views until they have all."""
    store.checkpoint()
    for name in VIEWS:
        while store.view(name).step() is not None:
            continue


def fill(store: el.Store, clock: Clock) -> None:
    chance = random.Random(40)
    for name, schema in TABLES.items():
        store.create_table(name, schema, ["id"])
    for name, case in VIEWS.items():
        store.create_view(name, case.sql, list(case.key))
    for _ in range(12):
        change(store, chance)
        clock.tick()
        step_all(store)


def readings(store: el.Store) -> dict[str, Any]:
    """Return the rows of all tables, as JSON takes them."""
    return json.loads(json.dumps({name: rows(store.table(name).to_arrow()) for name in (*TABLES, *VIEWS)}))


if __name__ == "__main__":
    write(FOLDER, fill, readings)
