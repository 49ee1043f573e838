"""Merges of sorted rows against a dict: newest wins, order stays, tombstones stay or go as asked."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochlog.store.sst import merge as kernels
from epochlog.store.sst.merge import Rows, lookup, merge_data, merge_sources, newest_wins, sorted_unique
from epochlog.store.types.key_codec import is_sorted_unique, search
from row_sets import KEYED, WIDE, Keyed, wide_rows

pytestmark = pytest.mark.local_only

CHANGES = st.lists(st.tuples(st.integers(0, 40), st.none() | st.integers(0, 1000)), max_size=30)
SOURCES = st.lists(CHANGES, min_size=1, max_size=5)
kinds = pytest.mark.parametrize("keyed", KEYED.values(), ids=KEYED.keys())


def model(keyed: Keyed, *sources: list[tuple[int, int | None]]) -> dict[Any, int | None]:
    return dict(sorted({keyed.encoded(n): v for source in sources for n, v in source}.items()))


def live(state: dict[Any, int | None]) -> list[tuple[Any, int | None]]:
    return [(key, value) for key, value in state.items() if value is not None]


def check(keyed: Keyed, rows: Rows, expected: list[tuple[Any, int | None]]) -> None:
    rows.data.validate(full=True)
    assert is_sorted_unique(rows.keys)
    assert keyed.plain(rows) == expected
    assert rows.deleted is None or rows.deleted.any()


@pytest.fixture(autouse=True, params=[3, 1 << 16], ids=["pieces of 3", "one piece"])
def piece_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SPLIT_ROWS", request.param)
    monkeypatch.setattr("epochlog.store.env.parallel.WORTH_ROWS", 20)


@kinds
def test_newest_wins_and_sorts(keyed: Keyed) -> None:
    @settings(max_examples=12)
    @given(SOURCES)
    def run(sources: list[list[tuple[int, int | None]]]) -> None:
        rows = [keyed.rows(source) for source in sources]
        for source, changes in zip(rows, sources, strict=True):
            check(keyed, source, list(model(keyed, changes).items()))
        check(keyed, newest_wins(rows), list(model(keyed, *sources).items()))

    run()


@kinds
def test_merge_either_side_large(keyed: Keyed) -> None:
    @settings(max_examples=25)
    @given(CHANGES, CHANGES)
    def run(old: list[tuple[int, int | None]], new: list[tuple[int, int | None]]) -> None:
        base, delta, state = keyed.rows(old), keyed.rows(new), model(keyed, old, new)
        check(keyed, merge_sources((base, delta)), live(state))
        check(keyed, merge_sources((base, delta), keep_tombstones=True), list(state.items()))

    run()


@kinds
@pytest.mark.parametrize("min_chunk_rows", [1, 1 << 12], ids=["tiny chunks kept", "tiny chunks joined"])
def test_merge_takes_any_chunks(keyed: Keyed, min_chunk_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_MIN_CHUNK_ROWS", min_chunk_rows)

    @settings(max_examples=12)
    @given(CHANGES, CHANGES, st.lists(st.integers(0, 30), max_size=3))
    def run(old: list[tuple[int, int | None]], new: list[tuple[int, int | None]], cuts: list[int]) -> None:
        base, delta = keyed.rows(old), keyed.rows(new)
        edges = [0, *sorted(min(cut, len(base)) for cut in cuts), len(base)]
        parts = [base.data.slice(a, b - a) for a, b in itertools.pairwise(edges)]
        chunked = Rows(base.keys, pa.concat_tables(parts), base.deleted)
        check(keyed, merge_sources((chunked, delta)), live(model(keyed, old, new)))
        check(keyed, merge_sources((delta, chunked)), live(model(keyed, new, old)))

    run()


@kinds
def test_lookup(keyed: Keyed) -> None:
    @settings(max_examples=12)
    @given(CHANGES, st.lists(st.integers(0, 45), max_size=20))
    def run(changes: list[tuple[int, int | None]], asked: list[int]) -> None:
        rows = keyed.rows(changes)
        places = {key: place for place, key in enumerate(rows.keys.to_pylist())}
        needles = [keyed.encoded(n) for n in asked]
        positions = lookup(rows.keys, keyed.codec.array(needles))
        assert positions.dtype == np.int64
        assert positions.tolist() == [places.get(key, -1) for key in needles]

    run()


def test_every_type_of_column_survives() -> None:
    base, delta = wide_rows(list(range(0, 40, 2))), wide_rows([3, 4, 10, 37, 50], salt=1000)
    codec_keys = [table["id"].combine_chunks() for table in (base, delta)]
    marks = np.array([False, False, True, False, False])
    merged = merge_sources((Rows(codec_keys[0], base), Rows(codec_keys[1], delta, marks)))
    merged.data.validate(full=True)
    by_id = {row["id"]: row for row in base.to_pylist()} | {row["id"]: row for row in delta.to_pylist()}
    del by_id[10]
    assert merged.data.to_pylist() == [by_id[key] for key in sorted(by_id)]
    assert merged.data.schema == WIDE.schema
    again = newest_wins([Rows(codec_keys[0], base), Rows(codec_keys[1], delta, marks)])
    assert again.data.schema == WIDE.schema
    by_id[10] = delta.to_pylist()[2]
    assert again.data.to_pylist() == [by_id[key] for key in sorted(by_id)]


def test_updates_in_place_share_the_keys() -> None:
    keyed = KEYED["int64"]
    base, delta = keyed.rows([(n, n) for n in range(30)]), keyed.rows([(3, 100), (29, 200), (0, 300)])
    merged = merge_sources((base, delta))
    assert merged.keys is base.keys
    check(keyed, merged, live(model(keyed, [(n, n) for n in range(30)], [(3, 100), (29, 200), (0, 300)])))


def test_untouched_pieces_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "SPLIT_ROWS", 4)
    keyed = KEYED["int64"]
    base = keyed.rows([(n, n) for n in range(16)])
    merged = merge_sources((base, keyed.rows([(5, None), (6, 1)])))
    here = base.data["v"].chunk(0).buffers()[1].address
    shared = [chunk.buffers()[1].address == here for chunk in merged.data["v"].chunks]
    assert shared == [True, False, True, True]


def test_small_chunks_share_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge the batches of a bulk load, 8,192 rows each, together: a piece for each took three times as long."""
    monkeypatch.setattr(kernels, "SPLIT_ROWS", 10)
    monkeypatch.setattr(kernels, "_MIN_CHUNK_ROWS", 1)
    keyed = KEYED["int64"]
    base = keyed.rows([(n, n) for n in range(70)])
    parts, low = [], 0
    for rows in (4, 4, 4, 25, 3, 8, 2, 10, 10):
        parts.append(base.data.slice(low, rows))
        low += rows
    chunked = Rows(base.keys, pa.concat_tables(parts))
    merged = merge_sources((chunked, keyed.rows([(n, -n) for n in range(0, 70, 7)])))
    assert [len(chunk) for chunk in merged.data["v"].chunks] == [8, 4, 8, 8, 9, 3, 10, 10, 10]
    check(keyed, merged, [(n, -n if n % 7 == 0 else n) for n in range(70)])


@pytest.mark.medium
@kinds
def test_sources_of_key_ranges_that_lie_apart_are_put_side_by_side(keyed: Keyed) -> None:
    """Sources with disjoint key ranges, in any order, need no merge; overlapping ones are merged, newest wins."""

    @settings(max_examples=40)
    @given(st.lists(st.tuples(st.integers(0, 8), CHANGES), min_size=1, max_size=8))
    def run(placed: list[tuple[int, list[tuple[int, int | None]]]]) -> None:
        sources = [[(place * 5 + n % 5, value) for n, value in changes] for place, changes in placed]
        rows = [keyed.rows(source) for source in sources]
        state = model(keyed, *sources)
        check(keyed, merge_sources(rows, keep_tombstones=True), list(state.items()))
        check(keyed, merge_sources(rows), live(state))
        assert keyed.plain(Rows(merge_sources(rows).keys, merge_data(rows))) == live(state)

    run()


def test_appended_sources_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = KEYED["int64"]
    monkeypatch.setattr(kernels, "_merge_splits", None)
    monkeypatch.setattr(kernels, "_MIN_CHUNK_ROWS", 3)
    parts = [keyed.rows([(n, n) for n in range(at, at + 3)]) for at in (10, 0, 20, 3)]
    data = merge_data(parts)
    assert data["v"].to_pylist() == [0, 1, 2, 3, 4, 5, 10, 11, 12, 20, 21, 22]
    assert data["v"].chunk(0).buffers()[1].address == parts[1].data["v"].chunk(0).buffers()[1].address
    monkeypatch.setattr(kernels, "_MIN_CHUNK_ROWS", 4)
    assert merge_data(parts)["v"].num_chunks == 1  # tiny ones would be a batch each, down to whoever reads them


def test_one_side_empty() -> None:
    keyed = KEYED["string"]
    empty, some = keyed.rows([]), keyed.rows([(1, 1), (2, None)])
    check(keyed, merge_sources((empty, some)), live(model(keyed, [(1, 1)])))
    check(keyed, merge_sources((some, empty)), live(model(keyed, [(1, 1)])))
    check(keyed, merge_sources((empty, some), keep_tombstones=True), list(model(keyed, [(1, 1), (2, None)]).items()))
    check(keyed, merge_sources((empty, empty)), [])
    check(keyed, newest_wins([empty, empty]), [])
    check(keyed, merge_sources((keyed.rows([(1, None)]), keyed.rows([(1, None)]))), [])
    assert lookup(empty.keys, some.keys).tolist() == [-1, -1]


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_keys_at_the_ends_of_their_type(bits: int) -> None:
    kind = pa.int8() if bits == 8 else {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[bits]
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    old, new = pa.array([low, 0, high], kind), pa.array([low, high - 1, high], kind)
    merged = merge_sources((Rows(old, pa.table({"k": old})), Rows(new, pa.table({"k": new}))))
    assert merged.keys.to_pylist() == [low, 0, high - 1, high]


def test_no_columns() -> None:
    keyed = KEYED["int64"]
    base, delta = keyed.rows([(n, n) for n in range(30)]), keyed.rows([(3, None), (99, 1)])
    bare = [Rows(rows.keys, rows.data.select([]), rows.deleted) for rows in (base, delta)]
    merged = merge_sources(bare)
    assert merged.keys.to_pylist() == [*range(3), *range(4, 30), 99]
    assert len(newest_wins(bare)) == 31
    assert len(merge_sources((bare[0].__class__(base.keys.slice(0, 0), bare[0].data), bare[1]))) == 1


def test_nullability_of_tombstones_does_not_get_in_the_way() -> None:
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64(), nullable=False)])
    loose = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.int64())])
    base = pa.table([[1, 2, 3], [1, 2, 3]], schema=strict)
    delta = pa.table([[2, 3], [None, 30]], schema=loose)
    keys = [table["id"].combine_chunks() for table in (base, delta)]
    sources = [Rows(keys[0], base), Rows(keys[1], delta, np.array([True, False]))]
    for merged in (merge_sources(sources, keep_tombstones=True), newest_wins(sources)):
        merged.data.validate(full=True)
        assert merged.data["v"].to_pylist() == [1, None, 30]
    gone = merge_sources(sources)
    gone.data.validate(full=True)
    assert gone.data.to_pydict() == {"id": [1, 3], "v": [1, 30]}


def test_sorted_unique_of_sorted_rows_copies_nothing() -> None:
    table = pa.table({"k": [1, 2, 3]})
    rows = sorted_unique(table["k"].chunk(0), table, deleted=False)
    assert rows.data is table
    assert rows.deleted is None


@pytest.mark.medium
def test_a_larger_random_case(request: pytest.FixtureRequest) -> None:
    seed = int(np.random.SeedSequence().entropy) % 2**32
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    state: dict[int, int] = {}
    base = Rows(pa.array([], pa.int64()), pa.schema([("k", pa.int64()), ("v", pa.int64())]).empty_table())
    for step in range(6):
        ids = np.unique(rng.integers(0, 20_000, 5_000 if step % 2 else 300))
        values = rng.integers(0, 10**6, len(ids))
        dead = rng.random(len(ids)) < 0.2
        table = pa.table({"k": ids, "v": pa.array(values, mask=dead)})
        base = merge_sources((base, Rows(table["k"].chunk(0), table, dead)))
        for key, value, gone in zip(ids.tolist(), values.tolist(), dead.tolist(), strict=True):
            if gone:
                state.pop(key, None)
            else:
                state[key] = value
    assert base.data.to_pydict() == {"k": sorted(state), "v": [state[key] for key in sorted(state)]}
    assert search(base.keys, base.keys).tolist() == list(range(len(state)))
