"""The rows that every figure is measured on: a base table and commits of upserts spread over its keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

BASE_ROWS = 2_000_000
COMMIT_ROWS = 20_000
COMMITS = 20
NEW_KEYS = 0.1
"""The share of a commit's keys that the base does not hold; the others replace rows."""
_KEY_STEP = 64

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.float64()), ("name", pa.string())])


@dataclass(frozen=True, slots=True)
class Workload:
    """A base in key order without gaps worth a word, and commits whose rows come in random order, each key once."""

    base: pa.Table
    commits: tuple[pa.Table, ...]


def make_workload(scale: float, commits: int = COMMITS, seed: int = 1) -> Workload:
    """`scale` 1 is the full size: 2 M rows and commits of 20,000."""
    chance = np.random.default_rng(seed)
    rows, upserts = max(100, round(BASE_ROWS * scale)), max(10, round(COMMIT_ROWS * scale))
    base = make_rows(np.arange(rows) * _KEY_STEP, chance)
    return Workload(base, tuple(_commit(rows, upserts, place, chance) for place in range(commits)))


def _commit(rows: int, upserts: int, place: int, chance: np.random.Generator) -> pa.Table:
    fresh = round(upserts * NEW_KEYS)
    keys = chance.choice(rows, upserts, replace=False) * _KEY_STEP
    keys[:fresh] += 1 + place % (_KEY_STEP - 1)
    return make_rows(chance.permutation(keys), chance)


def make_rows(keys: np.ndarray, chance: np.random.Generator) -> pa.Table:
    """Keys, random floats, and strings of ten characters, nearly all different."""
    names = pa.array(chance.integers(10**9, 10**10, len(keys))).cast(pa.string())
    return pa.table([pa.array(keys), pa.array(chance.random(len(keys))), names], schema=SCHEMA)


def expected(base: pa.Table, commits: tuple[pa.Table, ...]) -> pa.Table:
    """The rows that any contender must return, in key order; worked out without the library."""
    table = pa.concat_tables([base, *commits]).combine_chunks()
    keys = table.column("id").to_numpy()
    order = np.argsort(keys, kind="stable")
    last = np.append(keys[order][1:] != keys[order][:-1], True)
    return table.take(pa.array(order[last]))
