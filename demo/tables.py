"""Creation of the demo's root tables and jobs, and the load of the three constant tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from .data import KEYS, schema_of
from .views import VIEWS

LOADED_ONCE = ("airlines", "airports", "planes")


def create(store: Any, tables: dict[str, pa.Table]) -> int:
    """Create root tables with the columns of `tables`, and one job per view. Return the epoch of the last load."""
    epoch = 0
    for name, rows in tables.items():
        table = store.create_table(name, schema_of(rows, KEYS[name]), primary_key=KEYS[name])
        if name in LOADED_ONCE:
            epoch = table.upsert(rows)
    for view in VIEWS.values():
        outputs = {view.name: (view.schema, list(view.key))}
        store.create_job(view.name, upstreams=list(view.upstreams), outputs=outputs, backfill="log")
    return epoch
