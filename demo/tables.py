"""Makes the demo's root tables and jobs, and loads the three tables that never change."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from .data import KEYS, schema_of
from .views import VIEWS

LOADED_ONCE = ("airlines", "airports", "planes")


def create(store: Any, tables: dict[str, pa.Table]) -> int:
    """Root tables with the given tables' columns, one job per view; the epoch of the last load."""
    epoch = 0
    for name, table in tables.items():
        made = store.create_table(name, schema_of(table, KEYS[name]), primary_key=KEYS[name])
        if name in LOADED_ONCE:
            epoch = made.upsert(table)
    for view in VIEWS.values():
        outputs = {view.name: (view.schema, list(view.key))}
        store.create_job(view.name, upstreams=list(view.upstreams), outputs=outputs, backfill="log")
    return epoch
