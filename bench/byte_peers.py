"""Key-value stores: rows come and go as pairs of bytes, made before the clock starts.

What their users need besides (rows to bytes, bytes to columns) is left out of their time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from data import PLAIN, Shape
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

Pair = tuple[bytes, bytes]


class Packing:
    """Rows as pairs of bytes: of the key's columns and of the others, each what has a fixed width and the strings.

    Keys sort as their columns do: strings come first there, end with a zero byte, and numbers have their highest byte
    first. (Numbers of keys are not negative here.)
    """

    def __init__(self, shape: Shape) -> None:
        self._schema = shape.schema
        key = [shape.schema.field(name) for name in shape.primary_key]
        value = [each for each in shape.schema if each.name not in shape.primary_key]
        self._key, self._value = _Half(key, ">"), _Half(value, "<")

    def pairs(self, rows: pa.Table) -> list[Pair]:
        return list(zip(self.keys(rows), (own + text for own, text in self._value.split(rows)), strict=True))

    def keys(self, rows: pa.Table) -> list[bytes]:
        return [text + b"\0" + own if text else own for own, text in self._key.split(rows)]

    def table(self, pairs: list[Pair]) -> pa.Table:
        width = self._key.width
        at = -width or None  # the numbers of a key are its last bytes
        columns = self._key.join([key[-width:] if width else b"" for key, _ in pairs], [key[:at] for key, _ in pairs])
        width = self._value.width
        columns |= self._value.join([value[:width] for _, value in pairs], [value[width:] for _, value in pairs])
        return pa.table([columns[name] for name in self._schema.names], schema=self._schema)


class _Half:
    def __init__(self, fields: list[pa.Field], order: str) -> None:
        self._texts = [each for each in fields if pa.types.is_string(each.type)]
        self._fixed = [each for each in fields if not pa.types.is_string(each.type)]
        kinds = {each.name: "f8" if pa.types.is_floating(each.type) else "i8" for each in self._fixed}
        self._record = np.dtype([(name, order + kind) for name, kind in kinds.items()])
        self.width = self._record.itemsize

    def split(self, rows: pa.Table) -> list[Pair]:
        """The numbers and the strings of each row."""
        fixed = np.empty(rows.num_rows, self._record)
        for each in self._fixed:
            column = rows.column(each.name)
            fixed[each.name] = (
                column.to_numpy() if pa.types.is_floating(each.type) else column.cast(pa.int64()).to_numpy()
            )
        nothing = [b""] * rows.num_rows
        numbers = fixed.view(f"V{self.width}").tolist() if self.width else nothing
        texts = [rows.column(each.name) for each in self._texts]
        joined = pc.binary_join_element_wise(*texts, "\0").cast(pa.binary()).to_pylist() if texts else nothing
        return list(zip(numbers, joined, strict=True))

    def join(self, numbers: list[bytes], texts: list[bytes]) -> dict[str, pa.Array]:
        fixed = np.frombuffer(b"".join(numbers), self._record) if self.width else np.empty(0)
        columns = {}
        for each in self._fixed:
            native = fixed[each.name].astype(self._record[each.name].newbyteorder("="))
            columns[each.name] = pa.array(native).cast(each.type)
        rows = pc.split_pattern(pa.array(texts, pa.string()), "\0") if self._texts else None
        for place, each in enumerate(self._texts):
            columns[each.name] = pc.list_element(rows, place)
        return columns


class Rocks:
    """rocksdict in raw mode, the faster of its two; a write batch with a synced write-ahead log."""

    name = "rocksdict"
    _LOAD_ROWS = 100_000

    def __init__(self, folder: Path, shape: Shape = PLAIN) -> None:
        self._packing = Packing(shape)
        self._db = Rdict(str(folder), Options(raw_mode=True))
        self._synced = WriteOptions()
        self._synced.sync = True

    def load(self, base: pa.Table) -> None:
        for start in range(0, base.num_rows, self._LOAD_ROWS):
            self.commit(self.prepare(base.slice(start, self._LOAD_ROWS)))
        self.compact()  # else its background work would fall into everybody's samples

    def prepare(self, rows: pa.Table) -> list[Pair]:
        return self._packing.pairs(rows)

    def commit(self, prepared: list[Pair]) -> None:
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for key, value in prepared:
            put(key, value)
        self._db.write(batch, self._synced)

    def read(self) -> list[tuple[Any, Any]]:
        return list(self._db.items())

    def keys(self, rows: pa.Table) -> list[bytes]:
        return self._packing.keys(rows)

    def get(self, keys: list[bytes]) -> list[Any]:
        """One by one: its way to be asked for many keys at once is slower."""
        get = self._db.get
        return [get(key) for key in keys]

    def as_arrow(self, result: list[tuple[Any, Any]]) -> pa.Table:
        return self._packing.table(result)

    def compact(self) -> None:
        self._db.flush()
        self._db.compact_range(None, None)

    def close(self) -> None:
        self._db.close()


class Lmdb:
    """LMDB itself: a commit is one synced write transaction of puts. It has nothing to compact."""

    name = "lmdb"
    _LARGEST = 16 << 30  # of address space, not of disk

    def __init__(self, folder: Path, shape: Shape = PLAIN) -> None:
        self._packing = Packing(shape)
        self._db = lmdb.open(str(folder), map_size=self._LARGEST)

    def load(self, base: pa.Table) -> None:
        self.commit(self.prepare(base))

    def prepare(self, rows: pa.Table) -> list[Pair]:
        return self._packing.pairs(rows)

    def commit(self, prepared: list[Pair]) -> None:
        with self._db.begin(write=True) as transaction:
            put = transaction.put
            for key, value in prepared:
                put(key, value)

    def read(self) -> list[tuple[bytes, bytes]]:
        with self._db.begin() as transaction:
            return list(transaction.cursor())

    def keys(self, rows: pa.Table) -> list[bytes]:
        return self._packing.keys(rows)

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        with self._db.begin() as transaction:
            get = transaction.get
            return [get(key) for key in keys]

    def as_arrow(self, result: list[Pair]) -> pa.Table:
        return self._packing.table(result)

    def compact(self) -> None: ...

    def close(self) -> None:
        self._db.close()
