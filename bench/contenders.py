"""epochlog and the lakes it is measured beside, behind one small face: load, commit, read, compact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import lance
import pyarrow as pa
from data import PLAIN, Shape
from deltalake import DeltaTable, write_deltalake

import epochlog as el


@contextmanager
def result_cache(limit_bytes: int) -> Iterator[int]:
    """Let the result cache keep so many bytes in the block, and yield its earlier limit. With 0 each read begins with
    the files.
    """
    before_bytes = el.set_result_cache_bytes(limit_bytes)
    try:
        yield before_bytes
    finally:
        el.set_result_cache_bytes(before_bytes)


class Contender(Protocol):
    """One table. What `prepare`, `load` and `as_arrow` do is never timed; `commit` and `read` are."""

    name: str

    def load(self, base: pa.Table) -> None: ...
    def prepare(self, rows: pa.Table) -> Any:
        """The rows as the library takes them."""

    def commit(self, prepared: Any) -> Any:
        """Upsert the rows, durable on return."""

    def read(self) -> Any:
        """All rows of the newest commit, in memory, as the library gives them."""

    def as_arrow(self, result: Any) -> pa.Table:
        """Convert the result of `read` to an Arrow table in key order."""

    def compact(self) -> None: ...
    def close(self) -> None: ...


class Epochlog:
    name = "epochlog"

    def __init__(self, folder: Path, shape: Shape = PLAIN) -> None:
        self.store = el.open(folder)
        self.table = self.store.create_table("rows", shape.schema, primary_key=list(shape.primary_key))
        self._epochs: list[int] = []

    def load(self, base: pa.Table) -> None:
        self._epochs.append(self.table.upsert(base))

    def prepare(self, rows: pa.Table) -> pa.Table:
        return rows

    def commit(self, prepared: pa.Table) -> None:
        self._epochs.append(self.table.upsert(prepared))

    def read(self) -> pa.Table:
        return self.table.to_arrow()

    def read_at(self, commit: int) -> pa.Table:
        """All rows as they were after that commit; the load is commit 0."""
        return self.table.to_arrow(epoch=self._epochs[commit])

    def keys(self, rows: pa.Table) -> pa.Table:
        return rows

    def get(self, keys: pa.Table) -> pa.Table:
        return self.table.get(keys)

    def as_arrow(self, result: pa.Table) -> pa.Table:
        return result

    def compact(self) -> None:
        self.store.compact("rows", full=True)

    def close(self) -> None:
        self.store.close()


class Delta:
    """deltalake: a MERGE with the two usual clauses; the handle stays open and catches up with the log first."""

    name = "deltalake"

    def __init__(self, folder: Path, shape: Shape = PLAIN, *, change_feed: bool = False) -> None:
        self._folder, self._shape = str(folder), shape
        self._same_key = " AND ".join(f"t.{name} = s.{name}" for name in shape.primary_key)
        self._configuration = {"delta.enableChangeDataFeed": "true"} if change_feed else None
        self._versions: list[int] = []

    def load(self, base: pa.Table) -> None:
        write_deltalake(self._folder, base, configuration=self._configuration)
        self._table = DeltaTable(self._folder)
        self._past = DeltaTable(self._folder)
        self._versions.append(self._table.version())

    def prepare(self, rows: pa.Table) -> pa.Table:
        return rows

    def commit(self, prepared: pa.Table) -> None:
        merger = self._table.merge(prepared, self._same_key, source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()
        self._versions.append(self._table.version())

    def read(self) -> pa.Table:
        self._table.update_incremental()
        return self._table.to_pyarrow_table()

    def read_at(self, commit: int) -> pa.Table:
        self._past.load_as_version(self._versions[commit])
        return self._past.to_pyarrow_table()

    def changes(self) -> pa.Table:
        """The change feed of all commits after the load, with the images of updates."""
        return pa.table(self._table.load_cdf(starting_version=self._versions[0] + 1).read_all())

    def as_arrow(self, result: pa.Table) -> pa.Table:
        return self._shape.in_key_order(result)

    def compact(self) -> None:
        self._table.optimize.compact()

    def close(self) -> None: ...


class Lance:
    """pylance: merge_insert with the two usual clauses, no index (it asks for none); the handle moves with commits."""

    name = "lance"

    def __init__(self, folder: Path, shape: Shape = PLAIN) -> None:
        self._folder, self._shape = folder, shape
        self._versions: list[int] = []

    def load(self, base: pa.Table) -> None:
        self._data = lance.write_dataset(base, self._folder)
        self._versions.append(self._data.version)

    def prepare(self, rows: pa.Table) -> pa.Table:
        return rows

    def commit(self, prepared: pa.Table) -> None:
        merger = self._data.merge_insert(list(self._shape.primary_key))
        merger.when_matched_update_all().when_not_matched_insert_all().execute(prepared)
        self._versions.append(self._data.version)

    def read(self) -> pa.Table:
        self._data.checkout_latest()
        return self._data.to_table()

    def read_at(self, commit: int) -> pa.Table:
        return self._data.checkout_version(self._versions[commit]).to_table()

    def keys(self, rows: pa.Table) -> str:
        """The filter for these keys."""
        names = self._shape.primary_key
        if len(names) == 1:
            return f"{names[0]} IN ({', '.join(_literal(key) for key in rows.column(names[0]).to_pylist())})"
        keys = (" AND ".join(f"{name} = {_literal(row[name])}" for name in names) for row in rows.to_pylist())
        return " OR ".join(f"({key})" for key in keys)

    def get(self, keys: str) -> pa.Table:
        return self._data.to_table(filter=keys)

    def as_arrow(self, result: pa.Table) -> pa.Table:
        return self._shape.in_key_order(result)

    def compact(self) -> None:
        self._data.optimize.compact_files()

    def close(self) -> None: ...


def _literal(key: Any) -> str:
    if isinstance(key, int):
        return str(key)
    return f"'{key}'" if isinstance(key, str) else f"timestamp '{key:%Y-%m-%d %H:%M:%S+00:00}'"


def same_rows(table: pa.Table, wanted: pa.Table) -> bool:
    """Return True if both tables have equal rows in equal order. Ignore nullability and chunks."""
    if table.column_names != wanted.column_names or table.num_rows != wanted.num_rows:
        return False
    return all(table.column(field.name).cast(field.type) == wanted.column(field.name) for field in wanted.schema)
