"""Sieves of keys, and lookups of many keys that ask them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.scan import point_lookup
from epochlog.store.types.key_sieve import Sieve, hashed

KINDS = [pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_sieve_passes_all_of_its_keys(kind: pa.DataType) -> None:
    bounds = np.iinfo(kind.to_pandas_dtype())
    extremes = np.array([bounds.min, bounds.max, 0, 1], kind.to_pandas_dtype())
    first, second = pa.array(extremes[:2]), pa.array(extremes[2:])
    sieve = Sieve.of([first, second])
    for part in (first, second):
        assert sieve.may_hold(hashed(part)).all()


@pytest.mark.parametrize("stride", [1, 2, 7, 1 << 20, 1 << 32, (1 << 40) + 1])
def test_a_sieve_stops_most_other_keys_whatever_their_stride(stride: int) -> None:
    keys = np.arange(40_000, dtype=np.int64) * stride
    sieve = Sieve.of([pa.array(keys[::2])])
    others = sieve.may_hold(hashed(pa.array(keys[1::2])))
    assert others.mean() < 0.15
    assert Sieve.of([]).may_hold(hashed(pa.array(keys))).sum() == 0


def test_binary_keys_have_no_sieve() -> None:
    assert hashed(pa.array([b"a"])) is None


def found_in_ten_commits(folder: Path) -> tuple[list[int], list[int]]:
    """Return the ids that `get` finds of all even ones after ten commits that delete and insert, and those it should
    find.
    """
    schema, there = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())]), set(range(0, 9_000, 3))
    with el.open(folder, durability="os") as store:
        table = store.create_table("t", schema, ["id"])
        table.upsert(pa.table({"id": sorted(there), "v": [0] * len(there)}, schema))
        for commit in range(1, 10):
            gone = {id_ for id_ in there if id_ % 11 == commit}
            new = set(range(commit, 9_000, 13))
            table.delete(sorted(gone))
            table.upsert(pa.table({"id": sorted(new), "v": [commit] * len(new)}, schema))
            there = (there - gone) | new
        wanted = list(range(0, 9_000, 2))
        return table.get(wanted)["id"].to_pylist(), [id_ for id_ in wanted if id_ in there]


def test_many_keys_are_found_in_many_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = Sieve.may_hold
    monkeypatch.setattr(Sieve, "may_hold", lambda sieve, hashes: asked.append(len(hashes)) or real(sieve, hashes))
    ids, expected = found_in_ten_commits(tmp_path)
    assert ids == expected
    assert len(asked) >= 10


@pytest.mark.planted
def test_a_sieve_that_stops_its_own_keys_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sieve, "may_hold", lambda _, hashes: np.arange(len(hashes)) % 100 > 0)
    ids, expected = found_in_ten_commits(tmp_path)
    assert ids != expected


def test_sieves_are_for_many_keys_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(point_lookup, "SIEVED_NEEDLES", 1 << 20)
    monkeypatch.setattr(Sieve, "of", lambda *_: pytest.fail("a sieve was made for few keys"))
    ids, expected = found_in_ten_commits(tmp_path)
    assert ids == expected
