"""The rows that every figure is measured on, in several shapes: a base and commits of upserts spread over its keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from report import BASE, COMPOSITE, STRING, WIDE

COMMITS = 20
NEW_KEYS = 0.1
"""The share of a commit's keys that the base does not hold; the others replace rows."""
_KEY_STEP = 64
_DEVICE_ROWS = 2_000
_START_US = 1_767_225_600_000_000
_MINUTE_US = 60_000_000
_HASH = np.uint64(0x9E3779B97F4A7C15)
_MORE_COLUMNS = (("count", 8), ("big", 8), ("real", 16), ("kind", 10), ("at", 7))  # and the key: 50

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.float64()), ("name", pa.string())])
_NAMED = pa.schema([pa.field("key", pa.string(), nullable=False), ("value", pa.float64()), ("name", pa.string())])
_TIMED = pa.schema(
    [
        pa.field("device", pa.string(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
        ("value", pa.float64()),
        ("name", pa.string()),
    ]
)
_KINDS = {"count": pa.int64(), "big": pa.int64(), "real": pa.float64(), "kind": pa.string()}
_WIDE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        *((f"{kind}{i}", _KINDS.get(kind, pa.timestamp("us"))) for kind, many in _MORE_COLUMNS for i in range(many)),
    ]
)


def make_rows(keys: np.ndarray, chance: np.random.Generator) -> pa.Table:
    """Keys, random floats, and strings of ten characters, nearly all different."""
    return pa.table([pa.array(keys), *_payload(len(keys), chance)], schema=SCHEMA)


def _named_rows(keys: np.ndarray, chance: np.random.Generator) -> pa.Table:
    """Keys of sixteen hexadecimal digits that look like chance."""
    digits = (keys.astype(np.uint64) * _HASH).byteswap().tobytes().hex().encode()
    ends = pa.py_buffer(np.arange(0, 16 * len(keys) + 1, 16, dtype=np.int32))
    names = pa.Array.from_buffers(pa.string(), len(keys), [None, ends, pa.py_buffer(digits)])
    return pa.table([names, *_payload(len(keys), chance)], schema=_NAMED)


def _timed_rows(keys: np.ndarray, chance: np.random.Generator) -> pa.Table:
    """A measurement a minute of each device, two thousand of them."""
    place, second = np.divmod(keys, _KEY_STEP)
    device, minute = np.divmod(place, _DEVICE_ROWS)
    names = pc.binary_join_element_wise("device", pc.utf8_lpad(pa.array(device).cast(pa.string()), 6, "0"), "-")  # pyright: ignore[reportCallIssue, reportArgumentType]
    at = pa.array(_START_US + minute * _MINUTE_US + second * 900_000).cast(pa.timestamp("us", "UTC"))
    return pa.table([names, at, *_payload(len(keys), chance)], schema=_TIMED)


def _wide_rows(keys: np.ndarray, chance: np.random.Generator) -> pa.Table:
    """Small and large integers, floats, strings of sixteen values, and instants of one month."""
    count = len(keys)
    words = pa.array([f"kind of thing {place}" for place in range(16)])
    make: dict[str, Callable[[], pa.Array]] = {
        "count": lambda: pa.array(chance.integers(0, 1000, count)),
        "big": lambda: pa.array(chance.integers(0, 2**62, count)),
        "real": lambda: pa.array(chance.random(count)),
        "kind": lambda: words.take(pa.array(chance.integers(0, len(words), count))),
        "at": lambda: pa.array(_START_US + chance.integers(0, 43_200, count) * _MINUTE_US).cast(pa.timestamp("us")),
    }
    return pa.table([pa.array(keys), *(make[kind]() for kind, many in _MORE_COLUMNS for _ in range(many))], _WIDE)


def _payload(count: int, chance: np.random.Generator) -> tuple[pa.Array, pa.Array]:
    return pa.array(chance.random(count)), pa.array(chance.integers(10**9, 10**10, count)).cast(pa.string())


@dataclass(frozen=True, slots=True)
class Shape:
    """Schema, keys, random rows and full size of a benchmark table.

    make: rows with keys for these integers, different ones for different integers.
    few: columns of strings that repeat. random: columns that do not shrink.
    """

    name: str
    schema: pa.Schema
    primary_key: tuple[str, ...]
    make: Callable[[np.ndarray, np.random.Generator], pa.Table]
    few: tuple[str, ...] = ()
    random: tuple[str, ...] = ("value",)
    base_rows: int = 2_000_000
    commit_rows: int = 20_000

    def in_key_order(self, table: pa.Table) -> pa.Table:
        return table.take(self._order(table))

    def newest(self, table: pa.Table) -> pa.Table:
        """The last row of each key, in key order."""
        order = self._order(table)
        keys = table.select(list(self.primary_key)).take(order)
        last = np.zeros(len(order), bool)
        last[-1:] = True
        for key in keys.columns:
            last[:-1] |= pc.not_equal(key[1:], key[:-1]).to_numpy()
        return table.take(order.filter(pa.array(last)))

    def _order(self, table: pa.Table) -> pa.Array:
        """Rows of one key stay in their order."""
        return pc.sort_indices(table.select(list(self.primary_key)), [(name, "ascending") for name in self.primary_key])


PLAIN = Shape(BASE, SCHEMA, ("id",), make_rows)
NAMED = Shape(STRING, _NAMED, ("key",), _named_rows, base_rows=1_000_000, commit_rows=10_000)
TIMED = Shape(
    COMPOSITE,
    _TIMED,
    ("device", "at"),
    _timed_rows,
    few=("device",),
    base_rows=1_000_000,
    commit_rows=10_000,
)
BROAD = Shape(
    WIDE,
    _WIDE,
    ("id",),
    _wide_rows,
    few=tuple(name for name in _WIDE.names if name.startswith("kind")),
    random=tuple(name for name in _WIDE.names if name.startswith(("big", "real"))),
    base_rows=200_000,  # 103 MB in memory
    commit_rows=2_000,
)
OTHERS = (NAMED, TIMED, BROAD)


@dataclass(frozen=True, slots=True)
class Workload:
    """A base in key order without gaps worth a word, and commits whose rows come in random order, each key once."""

    base: pa.Table
    commits: tuple[pa.Table, ...]
    shape: Shape = field(default=PLAIN)


def make_workload(scale: float, commits: int = COMMITS, seed: int = 1, shape: Shape = PLAIN) -> Workload:
    """`scale` 1 is the full size."""
    chance = np.random.default_rng(seed)
    rows, upserts = max(100, round(shape.base_rows * scale)), max(10, round(shape.commit_rows * scale))
    base = shape.in_key_order(shape.make(np.arange(rows) * _KEY_STEP, chance))
    return Workload(base, tuple(make_commit(rows, upserts, n, chance, shape) for n in range(commits)), shape)


def make_commit(rows: int, upserts: int, place: int, chance: np.random.Generator, shape: Shape = PLAIN) -> pa.Table:
    """Upserts to a base of so many rows; commits of different places bring different new keys."""
    fresh = round(upserts * NEW_KEYS)
    keys = chance.choice(rows, upserts, replace=False) * _KEY_STEP
    keys[:fresh] += 1 + place % (_KEY_STEP - 1)
    return shape.make(chance.permutation(keys), chance)


def expected(base: pa.Table, commits: tuple[pa.Table, ...], shape: Shape = PLAIN) -> pa.Table:
    """The rows that any contender must return, in key order; worked out without the library."""
    return shape.newest(pa.concat_tables([base, *commits]).combine_chunks())
