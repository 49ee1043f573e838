"""Comparison of each view of a snapshot with its SQL over the root tables of that snapshot, row by row, in DuckDB."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .data import KEYS
from .views import VIEWS, DemoView

ROOTS = ("flights", "weather", "airlines", "airports", "planes")
TABLES = (*ROOTS, *VIEWS)


@dataclass(frozen=True, slots=True)
class Finding:
    """Result for one view in one snapshot: its rows, and the number of keys that are missing, extra or different."""

    rows: int
    differing: int


@dataclass(frozen=True, slots=True)
class ComparedMoment:
    """Results of all views at one moment, under `aligned` and under `latest`. Times are seconds since the run began."""

    number: int
    at_s: float
    day: int
    during: str
    epoch_s: float
    lag_ms: int
    aligned: Mapping[str, Finding]
    latest: Mapping[str, Finding]

    @property
    def equal(self) -> bool:
        return all(finding.differing == 0 for finding in self.aligned.values())


def compare(connection: Any, view: DemoView) -> Finding:
    """Compare the stored view with its SQL; `connection` has the tables of one snapshot as relations."""
    key = ", ".join(view.key)
    counts = connection.execute(f"""
        WITH actual AS MATERIALIZED (FROM {view.name}),
             expected AS MATERIALIZED ({view.expected}),
             differing AS ((FROM actual EXCEPT ALL FROM expected) UNION ALL (FROM expected EXCEPT ALL FROM actual))
        SELECT (SELECT count(*) FROM actual), (SELECT count(DISTINCT ({key})) FROM differing)
    """).fetchall()
    return Finding(*counts[0])


def findings(snapshot: Any) -> dict[str, Finding]:
    """Compare all views of an open snapshot."""
    connection = snapshot.duckdb()
    try:
        return {name: compare(connection, view) for name, view in VIEWS.items()}
    finally:
        connection.close()


def keys_unlike_feed(store: Any, inboxes: Mapping[str, Path]) -> dict[str, int]:
    """Count the keys of each root table that differ from the newest row of the key in the day files."""
    with store.snapshot(list(inboxes), consistency="latest") as snapshot:
        connection = snapshot.duckdb()
        try:
            return {name: _keys_unlike_files(connection, name, folder) for name, folder in inboxes.items()}
        finally:
            connection.close()


def _keys_unlike_files(connection: Any, table: str, folder: Path) -> int:
    key = ", ".join(KEYS[table])
    kind = "_change_type" if table == "flights" else "'upsert'"
    hidden = "number, file" + (", _change_type" if table == "flights" else "")
    files = f"read_parquet('{folder}/*.parquet', filename = 'file')"
    counts = connection.execute(f"""
        WITH fed AS (SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY file DESC) AS number FROM {files}),
             expected AS MATERIALIZED (SELECT * EXCLUDE ({hidden}) FROM fed WHERE number = 1 AND {kind} <> 'delete'),
             actual AS MATERIALIZED (FROM {table}),
             differing AS ((FROM actual EXCEPT ALL FROM expected) UNION ALL (FROM expected EXCEPT ALL FROM actual))
        SELECT count(DISTINCT ({key})) FROM differing
    """).fetchall()
    return counts[0][0]
