"""Creation of the demo's root tables and views, and the load of the three constant tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from .data import KEYS, schema_of
from .views import VIEWS

LOADED_ONCE = ("airlines", "airports", "planes")


def create(store: Any, spark: SparkSession, tables: dict[str, pa.Table]) -> int:
    """Create root tables with the columns of `tables`, and the views. Return the epoch of the last load."""
    for name, rows in tables.items():
        store.create_table(name, schema_of(rows, KEYS[name]), primary_key=KEYS[name])
    for view in VIEWS.values():
        store.create_view(view.name, view.query, view.key, spark=spark)
    return max(store.table(name).upsert(tables[name]) for name in LOADED_ONCE)
