"""Run parts give back what was written at any epoch they cover, prune without losing rows, and report damage."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochlog.errors import Corrupt
from epochlog.store.env.arrow_files import ArrowFiles
from epochlog.store.env.files import Files
from epochlog.store.env.local_folder import LocalFiles
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst import sorted_run as runs
from epochlog.store.sst.merge import Rows
from epochlog.store.sst.sorted_run import RunFile, SortedRun, read_part, write_part
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from epochlog.store.types.read_options import ReadOptions
from row_sets import KEYED, WIDE, Keyed, MemoryFiles, wide_rows

pytestmark = pytest.mark.local_only

PATH = "s/t00000001/x.parquet"
kinds = pytest.mark.parametrize("keyed", KEYED.values(), ids=KEYED.keys())


def with_epochs(rows: Rows, epochs: list[int], until: list[int] | None = None) -> Rows:
    data = rows.data.append_column("_epoch", pa.array(epochs, pa.int64()))
    if until is not None:
        data = data.append_column("_until", pa.array(until, pa.int64()))
    return Rows(rows.keys, data, rows.deleted)


def written(
    files: Files, keyed: Keyed, changes: list[tuple[int, int | None]], path: str = PATH
) -> tuple[RunFile, Rows]:
    rows = keyed.rows(changes)
    stamped = with_epochs(rows, list(range(len(rows))))
    return write_part(files, path, keyed.schema, keyed.codec, stamped), rows


def read(
    files: Files,
    part: RunFile,
    keyed: Keyed,
    columns: list[str] | None = None,
    key_range: KeyRange = ALL_KEYS,
    **how: Any,
) -> Rows:
    return read_part(files, part, keyed.schema, keyed.codec, ReadOptions(columns, None, key_range), **how)


@kinds
def test_what_was_written_is_read(tmp_path: Path, keyed: Keyed) -> None:
    files = LocalFiles(str(tmp_path))
    part, rows = written(files, keyed, [(n, None if n % 5 == 0 else n) for n in range(20)])
    back = read(files, part, keyed)
    assert keyed.plain(back) == keyed.plain(rows)
    assert (part.rows, part.bytes, part.history) == (20, files.size(PATH), False)
    assert (part.key_min, part.key_max) == (rows.keys[0].as_py(), rows.keys[19].as_py())
    assert read(files, part, keyed, ["_epoch"]).data["_epoch"].to_pylist() == list(range(20))


@kinds
def test_key_ranges_and_columns(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, keyed: Keyed
) -> None:
    monkeypatch.setattr(runs, "ROW_GROUP_ROWS", 4)
    files = LocalFiles(str(tmp_path_factory.mktemp("runs")))
    names = iter(f"{n}.parquet" for n in range(10**6))

    @settings(max_examples=12)
    @given(
        st.lists(st.tuples(st.integers(0, 40), st.integers(0, 99)), min_size=1, max_size=30),
        st.none() | st.integers(0, 45),
        st.none() | st.integers(0, 45),
        st.sampled_from([None, [], ["v"], ["w", "_epoch", "v"], list(keyed.schema.primary_key)]),
        st.none() | st.integers(0, 30),
    )
    def run(
        changes: list[tuple[int, int | None]],
        low: int | None,
        high: int | None,
        columns: list[str] | None,
        at: int | None,
    ) -> None:
        part, rows = written(files, keyed, changes, next(names))
        lo, hi = (None if n is None else keyed.encoded(n) for n in (low, high))
        back = read(files, part, keyed, columns, key_range=KeyRange(lo, hi), at=at)
        whole = [
            (key, {**row, "_epoch": epoch})
            for epoch, (key, row) in enumerate(zip(rows.keys.to_pylist(), rows.data.to_pylist(), strict=True))
            if (lo is None or key >= lo) and (hi is None or key < hi) and (at is None or epoch <= at)
        ]
        assert back.keys.to_pylist() == [key for key, _ in whole]
        expected = keyed.schema.schema.names if columns is None else columns
        assert back.data.column_names == expected
        if expected:
            assert repr(back.data.to_pylist()) == repr([{name: row[name] for name in expected} for _, row in whole])

    run()


def test_history_repeats_keys_across_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "ROW_GROUP_ROWS", 2)
    keyed, files = KEYED["int64"], LocalFiles(str(tmp_path))
    ids, epochs, until = [1, 2, 2, 2, 2, 2, 3], [1, 1, 2, 3, 4, 6, 1], [9, 2, 3, 4, 5, 7, 2]
    data = pa.table({"id": ids, "v": epochs, "w": [f"w{e}" for e in epochs]})
    rows = with_epochs(Rows(keyed.codec.encode(data), data), epochs, until)
    part = write_part(files, PATH, keyed.schema, keyed.codec, rows, history=True)
    assert part.history
    assert part.blocks == (1, 2, 2, 3)
    assert read(files, part, keyed, ["v"], key_range=KeyRange(2, 3)).data["v"].to_pylist() == [1, 2, 3, 4, 6]
    for epoch, seen in [
        (0, []),
        (1, [(1, 1), (2, 1), (3, 1)]),
        (3, [(1, 1), (2, 3)]),
        (5, [(1, 1)]),
        (6, [(1, 1), (2, 6)]),
    ]:
        back = read(files, part, keyed, ["v"], at=epoch)
        assert list(zip(back.keys.to_pylist(), back.data["v"].to_pylist(), strict=True)) == seen


def test_every_type_of_column_keeps_its_type(tmp_path: Path) -> None:
    files, table = LocalFiles(str(tmp_path)), wide_rows(list(range(50)))
    codec = KeyCodec(WIDE.schema, WIDE.primary_key)
    part = write_part(files, PATH, WIDE, codec, with_epochs(Rows(codec.encode(table), table), [1] * 50))
    back = read_part(files, part, WIDE, codec)
    back.data.validate(full=True)
    assert back.data.schema == WIDE.schema
    assert back.data.to_pylist() == table.to_pylist()
    for name in WIDE.schema.names:
        assert read_part(files, part, WIDE, codec, ReadOptions([name])).data.schema == pa.schema(
            [WIDE.schema.field(name)]
        )


def test_filters_prune_row_groups_and_lose_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "ROW_GROUP_ROWS", 4)
    monkeypatch.setattr(runs, "MOST_ROW_GROUP_ROWS", 4)
    files, table = LocalFiles(str(tmp_path)), wide_rows(list(range(60)))
    codec = KeyCodec(WIDE.schema, WIDE.primary_key)
    part = write_part(files, PATH, WIDE, codec, with_epochs(Rows(codec.encode(table), table), [1] * 60))
    seconds = pa.scalar(30, pa.int64()).cast(pa.timestamp("s"))
    micros = pa.scalar(34, pa.int64()).cast(pa.timestamp("us", "UTC"))
    filters = {
        "id": (pc.field("id") > 30) & (pc.field("id") < 35),
        "seconds": pc.field("ts") > seconds,
        "micros": pc.field("tus") > micros,
        "null": pc.field("u64").is_null(),
        "valid": pc.field("tus").is_valid(),
        "float": ~(pc.field("f64") > 5),
        "in": pc.field("id").isin([3, 59]),
        "none": pc.field("id") > 1000,
        "string": pc.field("ls") == "long 20",
    }
    for name, wanted in filters.items():
        back = read_part(files, part, WIDE, codec, ReadOptions(filter=wanted)).data
        assert back.filter(wanted).to_pylist() == table.filter(wanted).to_pylist(), name
    assert len(read_part(files, part, WIDE, codec, ReadOptions(["id"], filters["id"]))) == 8
    assert len(read_part(files, part, WIDE, codec, ReadOptions(["id"], filters["none"]))) == 0


def test_not_a_number_is_never_pruned(tmp_path: Path) -> None:
    keyed, files = KEYED["float64"], LocalFiles(str(tmp_path))
    part, _ = written(files, keyed, [(40, 1), (7, 2)])
    for wanted in (~(pc.field("id") > 5), pc.field("id") != 10.0, pc.is_nan(pc.field("id"))):
        back = read_part(files, part, keyed.schema, keyed.codec, ReadOptions(["id", "v"], wanted)).data
        assert back.filter(wanted)["v"].to_pylist() == [2]


def test_descriptors_travel(tmp_path: Path) -> None:
    for name, keyed in KEYED.items():
        part, _ = written(LocalFiles(str(tmp_path)), keyed, [(n, n) for n in range(9)], f"{name}.parquet")
        run = SortedRun(3, 9, (part,), (part, part))
        assert SortedRun.from_record(msgpack.unpackb(msgpack.packb(run.to_record()))) == run
        assert pickle.loads(pickle.dumps(run)) == run
        assert run.bytes == 3 * part.bytes


def test_the_files_are_plain_parquet(tmp_path: Path) -> None:
    keyed, files = KEYED["int64"], LocalFiles(str(tmp_path))
    written(files, keyed, [(n, n) for n in range(1000)])
    path = str(tmp_path / PATH)
    assert duckdb.connect().execute("select count(*), sum(v) from read_parquet(?)", [path]).fetchall() == [
        (1000, 499_500)
    ]
    meta = pq.ParquetFile(path).metadata.row_group(0)
    columns = {meta.column(i).path_in_schema: meta.column(i) for i in range(meta.num_columns)}
    assert "DELTA_BINARY_PACKED" in columns["id"].encodings
    assert "DELTA_BINARY_PACKED" in columns["_epoch"].encodings
    assert (columns["w"].compression, "DELTA_LENGTH_BYTE_ARRAY" in columns["w"].encodings) == ("LZ4", False)


def test_what_crosses_a_network_is_written_small_and_what_does_not_to_be_read_fast(tmp_path: Path) -> None:
    keyed = KEYED["int64"]
    far = ArrowFiles(pafs.LocalFileSystem(), str(tmp_path / "far"))
    near = LocalFiles(str(tmp_path / "near"))
    for writer, codec, by_length in ((far, "ZSTD", True), (near, "LZ4", False)):
        part, rows = written(writer, keyed, [(n, n) for n in range(1000)])
        column = pq.ParquetFile(pa.BufferReader(writer.read(PATH))).metadata.row_group(0).column(2)
        assert (column.compression, "DELTA_LENGTH_BYTE_ARRAY" in column.encodings) == (codec, by_length)
        for reader in (far, near):  # a store may be copied from the one to the other
            if reader is not writer:
                reader.write(f"copy-of-{PATH}", writer.read(PATH))
                copied = RunFile.from_record({**part.to_record(), "path": f"copy-of-{PATH}"})
                assert keyed.plain(read(reader, copied, keyed)) == keyed.plain(rows)


def test_history_is_written_small_on_a_local_disk_too(tmp_path: Path) -> None:
    keyed, files = KEYED["int64"], LocalFiles(str(tmp_path))
    rows = keyed.rows([(n, n) for n in range(1000)])
    stamped = with_epochs(rows, [1] * 1000, [2] * 1000)
    write_part(files, PATH, keyed.schema, keyed.codec, stamped, history=True)
    assert pq.ParquetFile(files.read(PATH)).metadata.row_group(0).column(2).compression == "ZSTD"


def test_repeated_strings_get_a_dictionary(tmp_path: Path) -> None:
    keyed, files = KEYED["int64"], LocalFiles(str(tmp_path))
    data = pa.table({"id": range(1000), "v": range(1000), "w": ["a" if n % 2 else "b" for n in range(1000)]})
    write_part(files, PATH, keyed.schema, keyed.codec, with_epochs(Rows(keyed.codec.encode(data), data), [1] * 1000))
    meta = pq.ParquetFile(tmp_path / PATH).metadata.row_group(0)
    assert meta.column(2).has_dictionary_page
    assert not meta.column(0).has_dictionary_page


@pytest.mark.parametrize("name", ["int64", "bool+binary"])
def test_every_cut_and_every_flipped_byte_is_reported(name: str) -> None:
    keyed, files = KEYED[name], MemoryFiles()
    part, rows = written(files, keyed, [(1, 1), (2, 2)])
    good = files.read(PATH).to_pybytes()
    assert keyed.plain(read(files, part, keyed)) == keyed.plain(rows)

    def must_be_reported(data: bytes) -> None:
        files.replace(PATH, data)
        with pytest.raises(Corrupt) as caught:
            read(files, part, keyed, ["v"])
        assert caught.value.path == PATH

    for length in range(len(good)):
        must_be_reported(good[:length])
    for place in range(len(good)):
        must_be_reported(good[:place] + bytes([good[place] ^ (1 << place % 8)]) + good[place + 1 :])
    files.delete(PATH)
    with pytest.raises(Corrupt, match="gone"):
        read(files, part, keyed)


def test_a_part_of_another_table_is_corrupt(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    part, _ = written(files, KEYED["int64"], [(1, 1)])
    with pytest.raises(Corrupt, match="is missing"):
        read(files, part, KEYED["bool+binary"])
    with pytest.raises(Corrupt, match="row groups"):
        read(files, RunFile.from_record({**part.to_record(), "blocks": [1, 2], "sizes": {}}), KEYED["int64"])


def test_a_larger_part(tmp_path: Path) -> None:
    keyed, files, rows = KEYED["int64"], LocalFiles(str(tmp_path)), 300_000
    ids = np.arange(rows) * 2
    data = pa.table({"id": ids, "v": ids, "w": pc.cast(pa.array(ids), pa.string())})
    part = write_part(
        files, PATH, keyed.schema, keyed.codec, with_epochs(Rows(keyed.codec.encode(data), data), [1] * rows)
    )
    assert part.blocks == tuple(range(0, 2 * rows, 2 * 8192))
    assert read(files, part, keyed, ["v"], key_range=KeyRange(262_143, 262_149)).data["v"].to_pylist() == [
        262_144,
        262_146,
        262_148,
    ]
    assert read(files, part, keyed).data.equals(data.cast(keyed.schema.schema))


def test_a_row_that_came_after_the_epoch_hides_none_of_an_older_run(tmp_path: Path) -> None:
    """Of the oldest run it is merged as a tombstone; of another it must not be there at all."""
    keyed, files = KEYED["int64"], LocalFiles(str(tmp_path))

    def part(name: str, rows: dict[int, int]) -> RunFile:
        data = pa.table({"id": list(rows), "v": list(rows.values()), "w": [f"w{v}" for v in rows.values()]})
        held = with_epochs(Rows(keyed.codec.encode(data), data), list(rows.values()))
        return write_part(files, f"{name}.parquet", keyed.schema, keyed.codec, held)

    lower, upper = part("lower", {1: 1, 2: 1, 4: 3}), part("upper", {1: 6, 3: 8})
    plan = ScanPlan(keyed.schema, 9, (SortedRun(0, 4, (lower,)), SortedRun(4, 9, (upper,))))
    for epoch, seen in [
        (2, {1: 1, 2: 1}),
        (5, {1: 1, 2: 1, 4: 3}),
        (6, {1: 6, 2: 1, 4: 3}),
        (7, {1: 6, 2: 1, 4: 3}),
        (8, {1: 6, 2: 1, 3: 8, 4: 3}),
    ]:
        at = replace(plan, epoch=epoch)
        result = at.read(files, ReadOptions(["id", "v"]))
        assert dict(zip(result["id"].to_pylist(), result["v"].to_pylist(), strict=True)) == seen, epoch
        assert at.lookup(files, pa.table({"id": [4, 3, 2, 1]}), ["v"])["v"].to_pylist() == [
            seen[key] for key in (4, 3, 2, 1) if key in seen
        ]
        assert at.count(files) == len(seen)
