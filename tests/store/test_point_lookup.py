"""Looking up single keys: against a whole read, over levels of every kind, with blocks kept and let go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import epochlog as el
from epochlog.checkpoint.job.row_groups import belonging
from epochlog.store.env.lru_cache import LRUCache
from epochlog.store.scan import point_lookup
from epochlog.store.sst.merge import Rows
from epochlog.store.sst.sorted_run import row_group_rows

pytestmark = pytest.mark.local_only

SCHEMA_K = pa.field("k", pa.int64(), nullable=False)
SCHEMAS = {
    "int": (pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64()), ("w", pa.string())]), ["k"]),
    "short": (pa.schema([pa.field("k", pa.int16(), nullable=False), ("v", pa.int64()), ("w", pa.string())]), ["k"]),
    "text": (pa.schema([pa.field("k", pa.string(), nullable=False), ("v", pa.int64()), ("w", pa.string())]), ["k"]),
    "two": (
        pa.schema([SCHEMA_K, pa.field("w", pa.string(), nullable=False), ("v", pa.int64())]),
        ["k", "w"],
    ),
}  # fmt: skip


def rows(schema: pa.Schema, ids: np.ndarray, salt: int) -> pa.Table:
    texts = pa.array([f"w{n % 7}" for n in ids], pa.string())
    keys = pa.array(ids).cast(schema.field("k").type)
    return pa.table({"k": keys, "v": pa.array(ids + salt), "w": texts}).select(schema.names).cast(schema)


def keys(schema: pa.Schema, primary: list[str], ids: np.ndarray) -> pa.Table:
    return rows(schema, ids, 0).select(primary)


@pytest.mark.medium
@pytest.mark.parametrize("kind", SCHEMAS)
@pytest.mark.parametrize("kept_bytes, direct_columns, together", [(0, 8, 8), (1 << 20, 8, 1 << 19), (1 << 20, 0, 16)])
def test_get_finds_what_a_whole_read_holds(
    tmp_path: Path, kind: str, kept_bytes: int, direct_columns: int, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(point_lookup, "DIRECT_COLUMNS", direct_columns)
    monkeypatch.setattr(point_lookup, "TOGETHER_ROWS", together)
    monkeypatch.setattr(point_lookup, "WIDE_ROWS", 16 if kept_bytes else 1 << 18)
    monkeypatch.setattr(point_lookup, "SIEVED_NEEDLES", 2 if kept_bytes else 1 << 10)
    monkeypatch.setattr(point_lookup, "BUNDLED", 2)
    monkeypatch.setattr("epochlog.store.sst.segment.BATCH_ROWS", 8)
    monkeypatch.setattr("epochlog.store.sst.sorted_run.ROW_GROUP_ROWS", 8)
    cache = LRUCache(kept_bytes, point_lookup._size_of)
    monkeypatch.setattr(point_lookup, "_blocks", cache)
    schema, primary = SCHEMAS[kind]
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    chance = np.random.default_rng(seed)
    with el.open(tmp_path, durability="os") as store:
        table = store.create_table("t", schema, primary_key=primary)
        epochs = []
        for step in range(8):
            ids = chance.choice(120, 1 + 60 // (step + 1), replace=False)
            if step % 3 == 2:
                epochs.append(table.delete(keys(schema, primary, ids)))
            else:
                epochs.append(table.upsert(rows(schema, ids, 1000 * step)))
            if step == 4:
                store.compact("t", full=True)
        for epoch in (None, *epochs):
            there = {tuple(row[name] for name in primary): row for row in table.to_arrow(epoch=epoch).to_pylist()}
            for count in (*[1] * 12, 5, 100):
                asked = keys(schema, primary, chance.integers(-5, 130, count))
                wanted = [there[key] for row in asked.to_pylist() if (key := tuple(row.values())) in there]
                result = table.get(asked, epoch=epoch)
                assert result.schema == schema
                assert result.to_pylist() == wanted
                assert table.get(asked, epoch=epoch, columns=["v"]).to_pylist() == [{"v": row["v"]} for row in wanted]
    assert cache.bytes <= kept_bytes
    assert (cache.bytes > 0) == (kept_bytes > 0)


NAMES = [f"w{number}" for number in range(7)]
GROUPED = {
    "int": (pa.int16(), list(range(-4, 5))),
    "greatest": (pa.uint8(), [0, 1, 254, 255]),
    "text": (pa.string(), ["", "a", "a\0", "a\0\0b", "ab", "b", "\uffff"]),
    "bytes": (pa.binary(), [b"", b"\0", b"\0\xff", b"\xff", b"\xff\xff", b"\xff\0"]),
    "float": (pa.float64(), [-1.5, 0.0, 1.0, 1e300, float("inf"), float("nan")]),
}


OF_GROUPS = [*((kind, 1 << 20, 8) for kind in GROUPED), ("text", 0, 8), ("bytes", 1 << 20, 0)]


@pytest.mark.medium
@pytest.mark.parametrize(("kind", "kept_bytes", "direct_columns"), OF_GROUPS)
def test_rows_of_groups_are_those_of_a_whole_read(
    tmp_path: Path, kind: str, kept_bytes: int, direct_columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(point_lookup, "DIRECT_COLUMNS", direct_columns)
    monkeypatch.setattr(point_lookup, "TOGETHER_ROWS", 16)
    monkeypatch.setattr(point_lookup, "WIDE_ROWS", 16 if kept_bytes else 1 << 18)
    monkeypatch.setattr(point_lookup, "BUNDLED", 2)
    monkeypatch.setattr("epochlog.store.sst.segment.BATCH_ROWS", 8)
    monkeypatch.setattr("epochlog.store.sst.sorted_run.ROW_GROUP_ROWS", 8)
    cache = LRUCache(kept_bytes, point_lookup._size_of)
    monkeypatch.setattr(point_lookup, "_blocks", cache)
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    chance = np.random.default_rng(seed)
    first, values = GROUPED[kind]
    key = [pa.field("a", first, nullable=False), pa.field("b", pa.int8(), nullable=False), pa.field("c", pa.string())]
    schema = pa.schema([pa.field("v", pa.int64()), key[2].with_nullable(False), key[1], key[0]])
    with el.open(tmp_path, durability="os") as store:
        table = store.create_table("t", schema, primary_key=["a", "b", "c"])
        epochs = []
        for step in range(9):
            count = 1 + 60 // (step + 1)
            batch = {
                "a": pa.array([values[place] for place in chance.integers(0, len(values), count)], first),
                "b": pa.array(chance.choice([-128, -1, 0, 1, 127], count), pa.int8()),
                "c": pa.array(chance.choice(["", "x", "\0"], count), pa.string()),
            }
            if step % 3 == 2:
                epochs.append(table.delete(pa.table(batch)))
            else:
                epochs.append(table.upsert(pa.table({**batch, "v": pa.array([step] * count)})))
            if step in (2, 5):
                store.compact("t", full=True)
        for epoch in (None, *epochs):
            there = table.to_arrow(epoch=epoch)
            at = {"t": table.info.max_committed_epoch if epoch is None else epoch}
            with store.snapshot(["t"], consistency="exact", epochs_or_token=at) as moment:
                plan = moment["t"].plan
            for width in (1, 2):
                for count in (0, 1, 3, 20):
                    places = chance.integers(0, len(values), count)
                    groups = pa.table(
                        {
                            "a": pa.array([values[place] for place in places], first),
                            "b": pa.array(chance.choice([-128, -1, 2, 127], count), pa.int8()),
                        }
                    ).select(range(width))
                    rows = plan.rows_among(store._handle.files, groups, ["v", "c", "a", "b"])
                    wanted = there.filter(pa.array(belonging(there, groups))).select(rows.column_names)
                    assert rows.schema == wanted.schema and repr(rows.to_pylist()) == repr(wanted.to_pylist())


@pytest.mark.medium
def test_a_lookup_in_a_large_table_decodes_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten keys of a bulk load of 1.2 M rows: at most ten blocks of 8,192 rows, before and after a compaction."""
    schema, primary = SCHEMAS["int"]
    decoded: list[int] = []
    read = point_lookup.PointReader._read

    def counted(*arguments: Any) -> list[Rows]:
        blocks = read(*arguments)
        decoded.extend(map(len, blocks))
        return blocks

    monkeypatch.setattr(point_lookup.PointReader, "_read", counted)
    monkeypatch.setattr("epochlog.store.sst.segment.LARGE_ROWS", 1_000_000)
    with el.open(tmp_path, durability="os") as store:
        table = store.create_table("t", schema, primary_key=primary)
        table.upsert(rows(schema, np.arange(1_200_000), 0))
        asked = np.arange(10) * 120_000 + 7
        for compacted in (False, True):
            if compacted:
                store.compact("t", full=True)
            assert table.get(keys(schema, primary, asked))["v"].to_pylist() == asked.tolist()
            assert len(decoded) == 10 and sum(decoded) <= 10 * 8192
            decoded.clear()


@pytest.mark.medium
def test_rows_of_few_groups_in_a_large_table_decode_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh takes the rows of ten of 120,000 groups, before and after a compaction: at most two blocks for each."""
    schema, primary = SCHEMAS["two"]
    decoded: list[int] = []
    read = point_lookup.PointReader._read

    def counted(*arguments: Any) -> list[Rows]:
        blocks = read(*arguments)
        decoded.extend(map(len, blocks))
        return blocks

    monkeypatch.setattr(point_lookup.PointReader, "_read", counted)
    monkeypatch.setattr("epochlog.store.sst.segment.LARGE_ROWS", 100_000)
    asked = pa.table({"k": pa.array(np.arange(10) * 12_000 + 7)})
    with el.open(tmp_path, durability="os") as store:
        table = store.create_table("t", schema, primary_key=primary)
        table.upsert(rows(schema, np.arange(840_000) // 7, 0).set_column(1, schema.field("w"), [NAMES * 120_000]))
        job = store.create_job("j", ["t"], {"o": (schema, primary)})
        for compacted in (False, True):
            if compacted:
                store.compact("t", full=True)
                table.upsert([{"k": 7, "w": "w9", "v": 1}])
            store.checkpoint()
            decoded.clear()
            job.step_local(lambda ctx: ctx.upsert("o", ctx.table("t", among=asked)))
            assert store.table("o").count() == 70 + compacted
            assert 10 <= len(decoded) <= 21 and sum(decoded) <= 21 * 8192


def test_lookups_of_other_columns_share_what_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight views that looked up other columns of one table kept each column up to eight times."""
    schema, primary = SCHEMAS["int"]
    decoded: list[tuple[str, ...]] = []
    read = point_lookup.PointReader._read

    def noted(reader: Any, file: Any, blocks: Any, columns: Any, wide: int) -> list[Rows]:
        decoded.append(tuple(columns))
        return read(reader, file, blocks, columns, wide)

    monkeypatch.setattr(point_lookup.PointReader, "_read", noted)
    with el.open(tmp_path, durability="os") as store:
        table = store.create_table("t", schema, primary_key=primary)
        table.upsert(rows(schema, np.arange(40), 0))
        table.delete([{"k": 7}, {"k": 100}])
        asked = keys(schema, primary, np.arange(50))
        for choice in (["v"], ["w", "v"], ["k", "w"], ["v", "w"], ["w"], ["k", "v", "w"]):
            assert table.get(asked, columns=choice).equals(table.to_arrow(columns=choice))
        assert sorted(decoded) == [("k",), ("k",), ("v",), ("v",), ("w",), ("w",)]  # of two segments


def small_commits(store: el.Store, chance: np.random.Generator, commits: int) -> list[int]:
    """Upsert and delete some of 60 rows in so many commits; return their epochs."""
    schema, primary = SCHEMAS["int"]
    table = store.table("t")
    epochs: list[int] = []
    for commit in range(commits):
        ids = np.sort(chance.choice(60, 12, replace=False))
        if commit % 4 == 3:
            epochs.append(table.delete(keys(schema, primary, ids)))
        else:
            epochs.append(table.upsert(rows(schema, ids, 1000 * commit)))
    return epochs


def check_small_commits(root: Path, seed: int) -> None:
    schema, primary = SCHEMAS["int"]
    with el.open(root, durability="os") as store:
        table = store.create_table("t", schema, primary_key=primary)
        epochs = small_commits(store, np.random.default_rng(seed), 20)
        asked = keys(schema, primary, np.arange(60))
        for _ in range(3):  # the blocks are decoded, then bundled, then looked up in bundles
            for epoch in (None, *epochs):
                assert table.get(asked, epoch=epoch).equals(table.to_arrow(epoch=epoch))
        store.compact("t", full=True)
        assert table.get(asked).equals(table.to_arrow())
        small_commits(store, np.random.default_rng(seed + 1), 9)
        assert table.get(asked).equals(table.to_arrow())


@pytest.mark.medium
def test_segments_of_few_rows_are_looked_up_in_bundles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[object] = []
    real = point_lookup.PointReader._in_level
    monkeypatch.setattr(
        point_lookup.PointReader,
        "_in_level",
        lambda reader, level, part: levels.append(level) or real(reader, level, part),
    )
    schema, primary = SCHEMAS["int"]
    with el.open(tmp_path, durability="os") as store:
        table = store.create_table("t", schema, primary_key=primary)
        small_commits(store, np.random.default_rng(1), 20)
        asked = [keys(schema, primary, np.arange(60))] * 3
        counts = []
        for needles in asked:
            levels.clear()
            table.get(needles)
            counts.append(len(levels))
        assert counts == [20, 6, 6]
    check_small_commits(tmp_path / "checked", 7)


@pytest.mark.planted
def test_bundles_in_which_the_oldest_row_wins_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = point_lookup.newest_wins
    monkeypatch.setattr(point_lookup, "newest_wins", lambda parts: real(parts[::-1]))
    with pytest.raises(AssertionError):
        check_small_commits(tmp_path, 7)


@pytest.mark.parametrize(
    "columns, wanted", [(1, 8192), (8, 8192), (9, 16384), (24, 32768), (32, 32768), (33, 65536), (5000, 65536)]
)
def test_the_rows_of_a_row_group_follow_the_columns(columns: int, wanted: int) -> None:
    assert row_group_rows(columns) == wanted


def test_the_least_recently_used_entry_is_evicted_first() -> None:
    cache = LRUCache[bytes](10, len)
    for name in (b"aaaa", b"bbb", b"ccc"):
        cache.put((name,), name)
    assert cache.get((b"aaaa",)) == b"aaaa"
    cache.put((b"ddd",), b"ddd")
    assert [cache.get((name,)) for name in (b"aaaa", b"bbb", b"ccc", b"ddd")] == [b"aaaa", None, b"ccc", b"ddd"]
    cache.put(("too large",), b"12345678901")
    assert cache.get(("too large",)) is None
    assert cache.bytes == 10


def test_spare_entries_are_evicted_before_all_others() -> None:
    cache = LRUCache[bytes](10, len)
    cache.put((1,), b"aaa")
    for number in (2, 3):
        cache.put((number,), b"bbb", spare=True)
    assert cache.get((2,)) == b"bbb"
    cache.put((4,), b"ccc")
    assert [cache.get((number,)) for number in (1, 2, 3, 4)] == [b"aaa", b"bbb", None, b"ccc"]
    cache.put((5,), b"dddddd", spare=True)
    assert [cache.get((number,)) for number in (1, 2, 4, 5)] == [b"aaa", b"bbb", b"ccc", None]  # 5 does not fit
    cache.put((4,), b"cc", spare=True)
    assert cache.get((4,)) == b"cc" and cache.bytes == 8
    cache.put((4,), b"a value above the bound")
    assert cache.get((4,)) is None and cache.bytes == 6
    cache.clear()
    assert cache.get((1,)) is None and cache.get((4,)) is None and cache.bytes == 0


def test_blocks_that_were_verified_are_answered_from_memory(tmp_path: Path) -> None:
    schema, primary = SCHEMAS["int"]
    with el.open(tmp_path, durability="os") as store:
        table = store.create_table("t", schema, primary_key=primary)
        table.upsert(rows(schema, np.arange(50), 0))
        asked = keys(schema, primary, np.array([7]))
        (segment,) = tmp_path.rglob("*.arrow")
        whole = segment.read_bytes()
        segment.write_bytes(whole[:-9])
        with pytest.raises(el.Corrupt):
            table.get(asked)
        segment.write_bytes(whole)
        wanted = table.get(asked)
        segment.write_bytes(whole[:-9])
        assert table.get(asked).equals(wanted)
        with pytest.raises(el.Corrupt):
            table.to_arrow()
        segment.write_bytes(whole)


def test_a_forked_child_begins_with_nothing_kept() -> None:
    cache = LRUCache[bytes](10, len)
    cache.put(("a",), b"aaaa")
    with cache._lock:  # as another thread may hold it just then
        child = os.fork()
        if not child:
            os._exit(0 if cache.get(("a",)) is None and cache.bytes == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache.get(("a",)) == b"aaaa"


@pytest.mark.medium
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_neighbouring_blocks_that_are_searched_as_one_give_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: pa.DataType
) -> None:
    monkeypatch.setattr(point_lookup, "WIDE_ROWS", 16_384)
    monkeypatch.setattr(point_lookup, "WIDE_TOUCHED", 4)
    widths: list[int] = []
    real = point_lookup.PointReader._width
    monkeypatch.setattr(point_lookup.PointReader, "_width", lambda *args: widths.append(real(*args)) or widths[-1])
    chance, schema = np.random.default_rng(5), pa.schema([pa.field("k", kind, nullable=False), ("v", pa.int64())])

    def rows(ids: np.ndarray, v: int) -> pa.Table:
        keys = pa.array([f"{n:07}" for n in ids] if pa.types.is_string(kind) else ids, kind)
        return pa.table({"k": keys, "v": pa.array(ids + v)}, schema)

    with el.open(tmp_path / "s") as store:
        table = store.create_table("t", schema, ["k"])
        table.upsert(rows(np.arange(0, 90_000, 2), 0))
        store.compact("t", full=True)
        table.upsert(rows(np.arange(0, 90_000, 30), 1))
        store.compact("t")
        gone = rows(np.arange(0, 90_000, 14), 0)
        table.delete(gone.select(["k"]))
        for count in (1, 3, 50, 5_000):
            ids = np.sort(chance.choice(91_000, count, replace=False))
            there = ids[(ids < 90_000) & (ids % 2 == 0) & (ids % 14 != 0)]
            wanted = pa.table({"k": rows(there, 0)["k"], "v": pa.array(there + (there % 30 == 0))}, schema)
            assert table.get(rows(ids, 0).select(["k"])).equals(wanted)
    assert set(widths) == {1, 2}
