"""Small row sets of every kind for the tests of merges and files, with a plain dict beside each as the model."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from epochlog.store.env.memory_files import InMemoryFiles
from epochlog.store.sst.merge import Rows, sorted_unique
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.schema import TableSchema

STRUCT = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))])

# A column of each kind, with a value made from a number; every third value is null.
KINDS: dict[str, tuple[pa.DataType, Any]] = {
    "i8": (pa.int8(), lambda n: n % 100),
    "u64": (pa.uint64(), lambda n: n + 2**63),
    "f16": (pa.float16(), lambda n: np.float16(n % 50)),
    "f64": (pa.float64(), lambda n: n / 3),
    "b": (pa.bool_(), lambda n: n % 2 == 0),
    "s": (pa.string(), lambda n: f"s{n}" * (n % 4)),
    "ls": (pa.large_string(), lambda n: f"long {n}"),
    "bin": (pa.binary(), lambda n: bytes([n % 256, 0])),
    "lbin": (pa.large_binary(), lambda n: b"\0" * (n % 3)),
    "fix": (pa.binary(3), lambda n: n.to_bytes(3, "big")),
    "dec": (pa.decimal128(20, 2), Decimal),
    "dec256": (pa.decimal256(50, 2), Decimal),
    "d32": (pa.date32(), lambda n: dt.date(2020, 1, 1) + dt.timedelta(days=n)),
    "d64": (pa.date64(), lambda n: dt.date(2020, 1, 1) + dt.timedelta(days=n)),
    "t32": (pa.time32("s"), lambda n: dt.time(n % 24)),
    "t64": (pa.time64("ns"), lambda n: dt.time(n % 24, 1)),
    "ts": (pa.timestamp("s"), lambda n: n),
    "tus": (pa.timestamp("us", "UTC"), lambda n: n),
    "tns": (pa.timestamp("ns", "Europe/Paris"), lambda n: n),
    "dur": (pa.duration("s"), lambda n: n),
    "l": (pa.list_(pa.int64()), lambda n: list(range(n % 4))),
    "ll": (pa.large_list(pa.string()), lambda n: ["x", None, str(n)]),
    "fsl": (pa.list_(pa.int32(), 2), lambda n: [n, None]),
    "st": (STRUCT, lambda n: {"a": n % 100, "b": ["y"] * (n % 3)}),
    "m": (pa.map_(pa.string(), pa.int64()), lambda n: [(f"k{i}", i) for i in range(n % 3)]),
}

WIDE = TableSchema("wide", pa.schema([("id", pa.int64()), *((n, k) for n, (k, _) in KINDS.items())]), ("id",))


def wide_rows(ids: list[int], salt: int = 0) -> pa.Table:
    """One row for each id, its other columns made from id and salt."""
    columns: dict[str, pa.Array] = {"id": pa.array(ids, pa.int64())}
    for name, (kind, make) in KINDS.items():
        values = [None if (i + salt) % 3 == 0 else make(i + salt) for i in ids]
        columns[name] = pa.array(values, kind)
    return WIDE.conform(pa.table(columns))


class MemoryFiles(InMemoryFiles):
    """Files in memory that can be damaged: quick enough to damage every byte in turn."""

    def replace(self, path: str, data: bytes) -> None:
        self.delete(path)
        self.write(path, data)

    def stamp(self, path: str) -> tuple[str | int, ...]:
        """Stamp the content too: damaged bytes have the size of those before."""
        return *super().stamp(path), hash(self.read(path).to_pybytes())


@dataclass(frozen=True, slots=True)
class Keyed:
    """A schema of a key column and one value, of a kind of key."""

    schema: TableSchema
    key: Any  # from an int to the key columns' values

    @property
    def codec(self) -> KeyCodec:
        return KeyCodec(self.schema.schema, self.schema.primary_key)

    def rows(self, changes: list[tuple[int, int | None]]) -> Rows:
        """(key number, value or None for a delete), any order: the later wins."""
        names = self.schema.primary_key
        table = pa.table(
            {
                **{
                    name: pa.array([self.key(n)[i] for n, _ in changes], self.schema.schema.field(name).type)
                    for i, name in enumerate(names)
                },
                "v": pa.array([v for _, v in changes], pa.int64()),
                "w": pa.array([None if v is None else f"w{v}" for _, v in changes], pa.string()),
            }
        )
        deleted = np.array([v is None for _, v in changes], np.bool_)
        table = self.schema.conform(table)
        return sorted_unique(self.codec.encode(table), table, deleted)

    def plain(self, rows: Rows) -> list[tuple[Any, int | None]]:
        """(encoded key, value or None for a tombstone) in order; checks that key columns and keys agree."""
        assert self.codec.encode(rows.data).equals(rows.keys)
        values, words = rows.data["v"].to_pylist(), rows.data["w"].to_pylist()
        marks = [False] * len(rows) if rows.deleted is None else rows.deleted.tolist()
        assert all((v is None) == mark for v, mark in zip(values, marks, strict=True))
        assert words == [None if v is None else f"w{v}" for v in values]
        return list(zip(rows.keys.to_pylist(), values, strict=True))

    def encoded(self, number: int) -> Any:
        return self.codec.prefix(self.key(number))


def _keyed(key: Any, **kinds: pa.DataType) -> Keyed:
    fields = [*kinds.items(), ("v", pa.int64()), ("w", pa.string())]
    return Keyed(TableSchema("t", pa.schema(fields), tuple(kinds)), key)


KEYED = {
    "int64": _keyed(lambda n: (n,), id=pa.int64()),
    "uint8": _keyed(lambda n: (n % 256,), id=pa.uint8()),
    "float64": _keyed(lambda n: (float("nan") if n == 7 else n / 4,), id=pa.float64()),
    "string": _keyed(lambda n: ("\0" * (n % 3) + f"{n:03d}",), id=pa.string()),
    "date": _keyed(lambda n: (dt.date(2020, 1, 1) + dt.timedelta(days=n),), id=pa.date32()),
    "bool+binary": _keyed(lambda n: (n % 2 == 0, bytes([n // 2 % 256])), flag=pa.bool_(), id=pa.binary()),
    "decimal": _keyed(lambda n: (Decimal(n) - 5,), id=pa.decimal128(10, 2)),
}
