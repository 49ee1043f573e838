"""The part of the story that expiry plays: rows of one time expire together or not at all, and no others do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa

import epochlog as el

TABLE = "timed"
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("ms"))])
OLD_MS = 1_700_000_000_000
OLD, TIMELESS = {1, 2, 3}, {4}


def run_expiry(store: el.Store, attempt: Callable[[Callable[[], Any]], Any]) -> None:
    attempt(lambda: make(store))
    attempt(lambda: store.table(TABLE).upsert(rows(), txn=("expiry", 1)))
    attempt(lambda: store.compact(TABLE))
    assert store.table(TABLE).to_arrow()["id"].to_pylist() == sorted(TIMELESS)


def make(store: el.Store) -> None:
    options = el.TableOptions(ttl=timedelta(days=1), ttl_column="at")
    store.create_table(TABLE, SCHEMA, ["id"], options=options, exist_ok=True)


def rows() -> pa.Table:
    times = pa.array([OLD_MS] * len(OLD) + [None] * len(TIMELESS), pa.int64()).cast(SCHEMA.field("at").type)
    return pa.table([pa.array([*sorted(OLD), *sorted(TIMELESS)], pa.int64()), times], schema=SCHEMA)


def check_expiry(store: el.Store) -> None:
    if TABLE not in {info.name for info in store.tables()}:
        return
    ids = set(store.table(TABLE).to_arrow()["id"].to_pylist())
    history = [row["operation"] for row in store.table(TABLE).history().to_pylist()][::-1]
    expected = {(): set(), ("upsert",): OLD | TIMELESS, ("upsert", "expire"): TIMELESS}
    assert ids == expected[tuple(history)], (ids, history)
