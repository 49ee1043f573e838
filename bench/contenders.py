"""epochlog and the peers it is measured beside, behind one small face: load, commit, read, compact."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from data import SCHEMA
from deltalake import DeltaTable, write_deltalake
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

import epochlog as el


class Contender(Protocol):
    """One table. What `prepare`, `load` and `as_arrow` do is never timed; `commit` and `read` are."""

    name: str

    def load(self, base: pa.Table) -> None: ...
    def prepare(self, rows: pa.Table) -> Any:
        """The rows as the library takes them."""

    def commit(self, prepared: Any) -> None:
        """Upsert the rows, durable on return."""

    def read(self) -> Any:
        """All rows of the newest commit, in memory, as the library gives them."""

    def as_arrow(self, result: Any) -> pa.Table:
        """What `read` returned, as an Arrow table in key order."""

    def compact(self) -> None: ...
    def close(self) -> None: ...


class Epochlog:
    name = "epochlog"

    def __init__(self, folder: Path) -> None:
        self._store = el.open(folder)
        self._table = self._store.create_table("rows", SCHEMA, primary_key=["id"])
        self._epochs: list[int] = []

    def load(self, base: pa.Table) -> None:
        self._epochs.append(self._table.upsert(base))

    def prepare(self, rows: pa.Table) -> pa.Table:
        return rows

    def commit(self, prepared: pa.Table) -> None:
        self._epochs.append(self._table.upsert(prepared))

    def read(self) -> pa.Table:
        return self._table.to_arrow()

    def read_at(self, commit: int) -> pa.Table:
        """All rows as they were after that commit; the load is commit 0."""
        return self._table.to_arrow(epoch=self._epochs[commit])

    def get(self, keys: pa.Table) -> pa.Table:
        return self._table.get(keys)

    def as_arrow(self, result: pa.Table) -> pa.Table:
        return result

    def compact(self) -> None:
        self._store.compact("rows", full=True)

    def close(self) -> None:
        self._store.close()


class Delta:
    """deltalake: a MERGE with the two usual clauses; the handle stays open and catches up with the log first."""

    name = "deltalake"

    def __init__(self, folder: Path, *, change_feed: bool = False) -> None:
        self._folder = str(folder)
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
        merger = self._table.merge(prepared, "t.id = s.id", source_alias="s", target_alias="t")
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
        return in_key_order(result)

    def compact(self) -> None:
        self._table.optimize.compact()

    def close(self) -> None: ...


class Rocks:
    """rocksdict in raw mode, the faster of its two: rows come and go as pairs of bytes, made before the clock starts.

    What its users need besides (rows to bytes, bytes to columns) is left out of its time.
    """

    name = "rocksdict"
    _LOAD_ROWS = 100_000

    def __init__(self, folder: Path) -> None:
        self._db = Rdict(str(folder), Options(raw_mode=True))
        self._synced = WriteOptions()
        self._synced.sync = True

    def load(self, base: pa.Table) -> None:
        for start in range(0, base.num_rows, self._LOAD_ROWS):
            self.commit(self.prepare(base.slice(start, self._LOAD_ROWS)))
        self.compact()  # else its background work would fall into everybody's samples

    def prepare(self, rows: pa.Table) -> list[tuple[bytes, bytes]]:
        key, value = struct.Struct(">Q").pack, struct.Struct("<d").pack
        columns = (rows.column(name).to_pylist() for name in SCHEMA.names)
        return [(key(k), value(v) + name.encode()) for k, v, name in zip(*columns, strict=True)]

    def commit(self, prepared: list[tuple[bytes, bytes]]) -> None:
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for key, value in prepared:
            put(key, value)
        self._db.write(batch, self._synced)

    def read(self) -> list[tuple[Any, Any]]:
        return list(self._db.items())

    def get(self, keys: list[bytes]) -> list[Any]:
        """One by one: its way to be asked for many keys at once is slower."""
        get = self._db.get
        return [get(key) for key in keys]

    def as_arrow(self, result: list[tuple[Any, Any]]) -> pa.Table:
        keys = np.frombuffer(b"".join(key for key, _ in result), ">i8").astype(np.int64)
        values = np.frombuffer(b"".join(value[:8] for _, value in result), "<f8")
        return pa.table([keys, values, [value[8:].decode() for _, value in result]], schema=SCHEMA)

    def compact(self) -> None:
        self._db.flush()
        self._db.compact_range(None, None)

    def close(self) -> None:
        self._db.close()


class ParquetFile:
    """One Parquet file of the same rows: what reading costs where there is nothing to merge.

    tuned: encoded as a run's parts are (delta-packed key, random numbers as they are, strings plain with lz4), the
    fastest known here; else as pyarrow writes by default.
    """

    def __init__(self, folder: Path, *, tuned: bool) -> None:
        self.name = "parquet" if tuned else "parquet (defaults)"
        self._path = folder.with_suffix(".parquet")
        self._tuned = tuned

    def write(self, rows: pa.Table) -> None:
        options: dict[str, Any] = {}
        if self._tuned:
            options = {"compression": {"id": "none", "value": "none", "name": "lz4"}, "use_dictionary": False}
            options |= {"column_encoding": {"id": "DELTA_BINARY_PACKED"}, "row_group_size": 65_536}
        pq.write_table(rows, self._path, **options)

    def read(self) -> pa.Table:
        return pq.read_table(self._path)


def in_key_order(table: pa.Table) -> pa.Table:
    return table.take(pa.array(np.argsort(table.column("id").to_numpy(), kind="stable")))


def same_rows(found: pa.Table, wanted: pa.Table) -> bool:
    """Whether both hold the same rows in the same order; nullability and chunks do not matter."""
    if found.column_names != wanted.column_names or found.num_rows != wanted.num_rows:
        return False
    return all(found.column(name).cast(wanted.schema.field(name).type) == wanted.column(name) for name in SCHEMA.names)
