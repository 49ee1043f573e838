"""Rows of a view's state tables: lookups and writes, and the merging of their segments."""

from __future__ import annotations

import math
import random

import pyarrow as pa
import pytest

from epochlog.checkpoint.job import state_rows
from epochlog.checkpoint.job.state_rows import MOST_SEGMENTS, StateRows, first_to_merge
from epochlog.store.env.memory_files import InMemoryFiles
from epochlog.store.metadata.state_tables import StateTable
from epochlog.store.sst.segment_writer import WriteTarget
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.schema import TableSchema
from seeds import seeds

SCHEMA = TableSchema("groups", pa.schema([pa.field("g", pa.int64(), nullable=False), ("n", pa.int64())]), ("g",))
KEYS = 40


class StateTableModel:
    """State table that steps write one after another, beside a plain dictionary of its rows."""

    def __init__(self) -> None:
        self._files = InMemoryFiles()
        self._target = WriteTarget(self._files, "f", 7, SCHEMA, "i" * 32)
        self.table = StateTable(SCHEMA)
        self.wanted: dict[int, int] = {}

    def write(self, rows: dict[int, int], gone: list[int]) -> StateRows:
        """Put rows, and delete others, in one step."""
        step = StateRows(self._files, self._target, self.table)
        keys = [*rows, *gone]
        table = pa.table([keys, [*rows.values(), *[0] * len(gone)]], schema=SCHEMA.schema)
        step.write(table, pa.array([False] * len(rows) + [True] * len(gone), pa.bool_()))
        self.table = step.table
        self.wanted = {key: value for key, value in {**self.wanted, **rows}.items() if key not in gone}
        return step

    def check(self) -> None:
        """Compare the rows of all keys, in random order, with the dictionary."""
        keys = random.sample(range(KEYS), KEYS)
        step = StateRows(self._files, self._target, self.table)
        encoded = KeyCodec(SCHEMA.schema, ("g",)).encode(pa.table({"g": pa.array(keys, pa.int64())}))
        rows = step.find(encoded, ["n", "g"])
        assert rows["n"].to_pylist() == [self.wanted.get(key) for key in keys]
        assert rows["g"].to_pylist() == [key if key in self.wanted else None for key in keys]
        assert self.table.rows_at_most >= len(self.wanted)


def most_segments(rows: int) -> int:
    """Return how many segments a table of that many rows may have."""
    return max(MOST_SEGMENTS, 2 + math.ceil(math.log(rows, 3)))


@pytest.mark.medium
@pytest.mark.parametrize("seed", seeds(range(12)))
def test_rows_are_the_last_that_were_written(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print("seed", seed)
    chance, rows = random.Random(seed), StateTableModel()
    monkeypatch.setattr(state_rows, "MOST_SEGMENTS", chance.choice([1, 2, 3, 8]))
    for _ in range(40):
        some = chance.sample(range(KEYS), chance.choice([1, 2, 2, 3, 15]))
        gone = [key for key in some if chance.random() < 0.4]
        rows.write({key: chance.randrange(100) for key in some if key not in gone}, gone)
        assert len(rows.table.segments) <= most_segments(KEYS)
        rows.check()


def test_a_delete_outlives_a_merge_of_newer_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = StateTableModel()
    rows.write({key: key for key in range(KEYS)}, [])
    monkeypatch.setattr(state_rows, "MOST_SEGMENTS", 2)
    rows.write({1: 11}, [])
    rows.write({}, [1, 2])
    rows.write({3: 13}, [])
    assert [segment.deletes for segment in rows.table.segments] == [0, 2]
    rows.check()


def test_a_table_without_rows_has_no_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_rows, "MOST_SEGMENTS", 1)
    rows = StateTableModel()
    rows.write({1: 1, 2: 2}, [])
    step = rows.write({}, [1, 2])
    assert rows.table.segments == () and len(step.written) == 1
    rows.check()
    rows.write({}, [])
    assert rows.table.segments == ()
    rows.check()


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("seed", seeds(range(20)))
def test_a_row_is_merged_few_times(seed: int, most: int) -> None:
    """Count the writes of each of many rows: they grow with the logarithm of the number of rows."""
    print("seed", seed)
    chance, sizes, written, rows = random.Random(seed), list[int](), 0, 0
    for _ in range(3000):
        size = chance.randrange(1, most + 1)
        sizes.append(size)
        written, rows = written + size, rows + size
        first = first_to_merge(sizes)
        if first is not None:
            assert 0 <= first <= len(sizes) - 2
            sizes[first:] = [sum(sizes[first:])]
            written += sizes[-1]
        assert len(sizes) <= most_segments(rows)
    assert written <= rows * 16, (written, rows)


def test_few_segments_are_left_alone() -> None:
    assert first_to_merge([]) is None
    assert first_to_merge([1] * MOST_SEGMENTS) is None
    assert first_to_merge([1000, *[1] * MOST_SEGMENTS]) == 1
    assert first_to_merge([10 ** (12 - place) for place in range(MOST_SEGMENTS + 1)]) is None
    assert first_to_merge([8, 7000, *[1] * MOST_SEGMENTS]) == 0
