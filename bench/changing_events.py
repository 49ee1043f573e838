"""Events of Nexmark, some of whose bids are later updated or deleted: batches for a store, and files for its peers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
from nexmark_data import SCHEMAS, Events

SHARE = 20
"""Of so many events of a mixed batch one more bid is updated, and one more deleted."""
SIGN = "_sign"
"""Column of the files for pathway: 1 for a row that comes, -1 for one that goes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes of one step: new rows by table; bids that are updated, as they were and are; deleted bids."""

    rows: Mapping[str, pa.Table]
    before: pa.Table
    after: pa.Table
    deleted: pa.Table

    def upserts(self, table: str) -> pa.Table:
        return pa.concat_tables([self.rows[table], self.after]) if table == "bid" else self.rows[table]

    def signed(self, table: str) -> pa.Table:
        """Return the rows that come and go, in an order in which no row goes before it has come."""
        new = self.rows[table]
        parts = [(new, 1), *([(self.before, -1), (self.after, 1), (self.deleted, -1)] if table == "bid" else [])]
        signs = [pa.array(np.full(len(part), sign, np.int8)) for part, sign in parts]
        rows = plain(pa.concat_tables([part for part, _ in parts]))
        return rows.append_column(SIGN, pa.chunked_array(signs)).combine_chunks()


class ChangingEvents:
    """Generator of batches; it knows which bids are there. The same seeds give the same batches."""

    def __init__(self, seed: int = 1) -> None:
        self._events, self._chance, self._count = Events(seed), np.random.default_rng(seed + 27), 0
        self._bids = SCHEMAS["bid"].empty_table()
        self._there = np.zeros(0, bool)

    def batch(self, events: int, *, mixed: bool = False) -> Batch:
        """Return the next events; mixed: also updates of a twentieth as many bids, and deletes of as many others."""
        (rows,) = self._events.batches(self._count, events, events)
        self._count += events
        chosen = self._choose(events // SHARE) if mixed else np.zeros((2, 0), np.int64)
        before, deleted = (self._bids.take(pa.array(places)) for places in chosen)
        place = before.column_names.index("price")
        prices = pa.array(self._chance.integers(100, 10_000_000, len(before)))
        after = before.set_column(place, SCHEMAS["bid"].field("price"), [prices])
        self._there[chosen.ravel()] = False
        self._bids = pa.concat_tables([self._bids, rows["bid"], after])
        if self._bids["price"].num_chunks > 40:
            self._bids = self._bids.combine_chunks()
        self._there = np.concatenate([self._there, np.ones(len(rows["bid"]) + len(after), bool)])
        return Batch(rows, before, after, deleted)

    def _choose(self, count: int) -> np.ndarray:
        """Return the places of bids to update, and of as many others to delete."""
        chosen = self._chance.choice(np.flatnonzero(self._there), 2 * count, replace=False)
        return chosen.reshape(2, count)


def plain(rows: pa.Table) -> pa.Table:
    """Return the rows with instants as integers of microseconds, which cost each peer the least."""
    fields = [
        field.with_type(pa.int64()) if pa.types.is_timestamp(field.type) else field for field in rows.schema
    ]  # fmt: skip
    return rows.cast(pa.schema(fields))


def write_arrow(folder: Path, batches: Iterable[Batch]) -> None:
    """Write for each table a stream of Arrow record batches, one for each step."""
    folder.mkdir(parents=True)
    schemas = {
        name: plain(schema.empty_table()).schema.append(pa.field(SIGN, pa.int8())) for name, schema in SCHEMAS.items()
    }
    writers = {name: pa.ipc.new_stream(str(folder / f"{name}.arrows"), schema) for name, schema in schemas.items()}
    for batch in batches:
        for name, writer in writers.items():
            rows = batch.signed(name)
            writer.write_batch(
                pa.RecordBatch.from_arrays([each.combine_chunks() for each in rows.columns], schema=schemas[name])
            )
    for writer in writers.values():
        writer.close()


def write_texts(arrow: Path, folder: Path, *, mixed: bool) -> None:
    """Write the streams of Arrow as one text file for each table: CSV, or with `mixed` lines of debezium-json."""
    folder.mkdir(parents=True)
    for name in SCHEMAS:
        with pa.OSFile(str(arrow / f"{name}.arrows")) as file:
            rows = pa.ipc.open_stream(file).read_all()
        if mixed:
            write_debezium(rows, folder / name)
        else:
            options = arrow_csv.WriteOptions(include_header=False)
            arrow_csv.write_csv(rows.drop_columns([SIGN]), str(folder / name), options)


def write_debezium(rows: pa.Table, path: Path) -> None:
    """Write a line for each row that comes or goes: Flink takes an update also as a delete and an insert."""
    columns = [name for name in rows.column_names if name != SIGN]
    image = "{" + ", ".join(f"'{name}': {name}" for name in columns) + "}"
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1; SET preserve_insertion_order = true")
        connection.register("rows", rows)
        connection.execute(
            f"""COPY (
                SELECT CASE WHEN {SIGN} < 0 THEN {image} END AS before, CASE WHEN {SIGN} > 0 THEN {image} END AS after,
                       CASE WHEN {SIGN} < 0 THEN 'd' ELSE 'c' END AS op
                FROM rows
            ) TO '{path}' (FORMAT json)"""
        )
