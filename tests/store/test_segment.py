"""Segment files give back what was written, only as much as is asked for, and report any damaged byte."""

from __future__ import annotations

import math
import pickle
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochlog.errors import Corrupt, WriteFailed
from epochlog.store.env.arrow_files import ArrowFiles
from epochlog.store.env.files import SMALL_BYTES, Files
from epochlog.store.env.local_folder import LocalFiles
from epochlog.store.sst import data_file
from epochlog.store.sst import segment as segments
from epochlog.store.sst.merge import Rows
from epochlog.store.sst.segment import Borders, Segment, SegmentReader, write_segment
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.schema import TableSchema
from row_sets import KEYED, WIDE, Keyed, MemoryFiles, wide_rows

pytestmark = pytest.mark.local_only

PATH = "s/t00000001/x.arrow"
kinds = pytest.mark.parametrize("keyed", KEYED.values(), ids=KEYED.keys())


def written(
    files: Files, keyed: Keyed, changes: list[tuple[int, int | None]], path: str = PATH
) -> tuple[Segment, Rows]:
    rows = keyed.rows(changes)
    return write_segment(files, path, 1, keyed.schema, keyed.codec, rows), rows


def reader(files: Files, segment: Segment, keyed: Keyed) -> SegmentReader:
    return SegmentReader(files, segment, keyed.schema, keyed.codec)


@kinds
@pytest.mark.parametrize("arrow", [False, True], ids=["local", "arrow"])
def test_what_was_written_is_read(tmp_path: Path, keyed: Keyed, arrow: bool) -> None:
    files: Files = ArrowFiles(pafs.LocalFileSystem(), str(tmp_path)) if arrow else LocalFiles(str(tmp_path))
    segment, rows = written(files, keyed, [(n, None if n % 5 == 0 else n) for n in range(20)])
    back = reader(files, segment, keyed).read()
    assert keyed.plain(back) == keyed.plain(rows)
    assert back.data.select(["v", "w"]).equals(rows.data.select(["v", "w"]))
    assert (segment.rows, segment.deletes, segment.bytes) == (20, 4, files.size(PATH))
    assert (segment.key_min, segment.key_max) == (rows.keys[0].as_py(), rows.keys[19].as_py())
    assert segment.blocks == (segment.key_min,)
    assert segment.label is None
    assert segment.labelled(7).label == 7


@kinds
def test_key_ranges_and_columns(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, keyed: Keyed
) -> None:
    monkeypatch.setattr(segments, "BATCH_ROWS", 4)
    files = LocalFiles(str(tmp_path_factory.mktemp("segments")))
    names = iter(f"{n}.arrow" for n in range(10**6))

    @settings(max_examples=25)
    @given(
        st.lists(st.tuples(st.integers(0, 40), st.none() | st.integers(0, 99)), min_size=1, max_size=30),
        st.none() | st.integers(0, 45),
        st.none() | st.integers(0, 45),
        st.sampled_from([None, [], ["v"], ["w", "v"], list(keyed.schema.primary_key)]),
    )
    def run(
        changes: list[tuple[int, int | None]], low: int | None, high: int | None, columns: list[str] | None
    ) -> None:
        segment, rows = written(files, keyed, changes, next(names))
        lo, hi = (None if n is None else keyed.encoded(n) for n in (low, high))
        back = reader(files, segment, keyed).read(columns, (lo, hi))
        whole = list(zip(rows.keys.to_pylist(), keyed.plain(rows), rows.data.to_pylist(), strict=True))
        inside = [item for item in whole if (lo is None or item[0] >= lo) and (hi is None or item[0] < hi)]
        assert back.keys.to_pylist() == [key for key, _, _ in inside]
        assert (back.deleted is not None) == any(plain[1] is None for _, plain, _ in inside)
        if back.deleted is not None:
            assert back.deleted.tolist() == [plain[1] is None for _, plain, _ in inside]
        expected = keyed.schema.schema.names if columns is None else columns
        assert back.data.column_names == expected
        if expected:
            wanted = [{name: row[name] for name in expected} for _, _, row in inside]
            assert repr(back.data.to_pylist()) == repr(wanted)  # NaN differs from itself

    run()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """Record the record batches that are decoded, with their columns."""
    decodes: list[tuple[int, list[str]]] = []
    real = pa.ipc.open_file

    def spy(source: Any, **options: Any) -> Any:
        file = real(source, **options)

        class Spy:
            schema = file.schema
            num_record_batches = file.num_record_batches

            def get_batch(self, place: int) -> pa.RecordBatch:
                decodes.append((place, file.schema.names))
                return file.get_batch(place)

        return Spy()

    monkeypatch.setattr(segments, "BATCH_ROWS", 100)
    monkeypatch.setattr(pa.ipc, "open_file", spy)
    return decodes


def test_only_what_is_asked_for_is_decoded(tmp_path: Path, decoded: list[tuple[int, list[str]]]) -> None:
    keyed, files = KEYED["int64"], LocalFiles(str(tmp_path))
    segment, _ = written(files, keyed, [(n, n) for n in range(1000)])
    rows = reader(files, segment, keyed).read(["v"], (250, 310))
    assert rows.data["v"].to_pylist() == list(range(250, 310))
    assert decoded == [(2, ["id", "v"]), (3, ["id", "v"])]
    assert len(segment.blocks) == 10


def test_ranges_that_follow_each_other_decode_a_batch_once(
    tmp_path: Path, decoded: list[tuple[int, list[str]]]
) -> None:
    keyed, files = KEYED["int64"], LocalFiles(str(tmp_path))
    segment, _ = written(files, keyed, [(n, n) for n in range(1000)])
    edges, values, borders = [None, 30, 99, 100, 250, 400, 640, 660, None], [], Borders()
    for span in pairwise(edges):
        values += reader(files, segment, keyed).read(["v"], span, borders=borders).data["v"].to_pylist()
    assert values == list(range(1000))
    assert [place for place, _ in decoded] == list(range(10))


def compressed(files: Files, path: str) -> str | None:
    """By the magic numbers of frames among the file's bytes."""
    data = files.read(path).to_pybytes()
    return next((codec for codec, magic in MAGIC.items() if magic in data), None)


MAGIC = {"lz4": b"\x04\x22\x4d\x18", "zstd": b"\x28\xb5\x2f\xfd"}


@pytest.mark.parametrize("count", [1, 100, 9_000])
def test_what_would_hardly_shrink_is_not_compressed_on_a_local_disk(tmp_path: Path, count: int) -> None:
    far, near = ArrowFiles(pafs.LocalFileSystem(), str(tmp_path / "far")), LocalFiles(str(tmp_path / "near"))
    schema = TableSchema("t", pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.float64())]), ("id",))
    codec, chance = KeyCodec(schema.schema, schema.primary_key), np.random.default_rng(1)
    keys = np.unique(chance.integers(0, 1 << 62, count))
    for name, values in (("random", chance.random(len(keys))), ("same", np.zeros(len(keys)))):
        data = pa.table([pa.array(keys), pa.array(values)], schema=schema.schema)
        for files in (near, far):
            segment = write_segment(files, f"{name}.arrow", 1, schema, codec, Rows(codec.encode(data), data))
            back = SegmentReader(files, segment, schema, codec).read()
            assert back.data.equals(data)
            local = "lz4" if name == "same" and count > 1 else None
            assert compressed(files, f"{name}.arrow") == ("zstd" if files is far else local)


def test_rows_that_were_read_do_not_change_with_the_file(tmp_path: Path) -> None:
    """Also where nothing is decoded: a page that the disk fails to give later would be the end of the process."""
    files, keyed = LocalFiles(str(tmp_path)), KEYED["int64"]
    chance = np.random.default_rng(2)
    segment, rows = written(files, keyed, [(int(n), n) for n in np.unique(chance.integers(0, 1 << 62, 500))])
    assert compressed(files, PATH) is None
    segment_reader = reader(files, segment, keyed)
    whole, block, batches = (
        segment_reader.read(),
        segment_reader.read_blocks(["v"], [0])[0],
        list(segment_reader.batches(["id", "v"])),
    )
    with (tmp_path / PATH).open("r+b") as file:
        file.write(b"\xff" * segment.bytes)
    assert whole.data.equals(rows.data.cast(whole.data.schema)) and block.data["v"].equals(rows.data["v"])
    assert pa.Table.from_batches(batches).select(["v"]).equals(rows.data.select(["v"]))


def test_every_type_of_column(tmp_path: Path) -> None:
    files, table = LocalFiles(str(tmp_path)), wide_rows(list(range(50)))
    codec = KeyCodec(WIDE.schema, WIDE.primary_key)
    segment = write_segment(files, PATH, 1, WIDE, codec, Rows(codec.encode(table), table))
    back = SegmentReader(files, segment, WIDE, codec).read()
    back.data.validate(full=True)
    assert back.data.schema == WIDE.schema
    assert back.data.to_pylist() == table.to_pylist()
    rows = SegmentReader(files, segment, WIDE, codec).read(["m", "st"])
    assert rows.data.to_pylist() == table.select(["m", "st"]).to_pylist()


def test_hidden_columns_are_there_only_when_needed(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    for name, changes, hidden in [
        ("int64", [(1, 1)], []),
        ("int64", [(1, None)], ["_op"]),
        ("bool+binary", [(1, 1)], ["_key"]),
        ("bool+binary", [(1, 1), (2, None)], ["_key", "_op"]),
    ]:
        keyed, path = KEYED[name], f"{name}{len(hidden)}{len(changes)}.arrow"
        written(files, keyed, changes, path)
        with pa.ipc.open_file(files.read(path)) as file:
            assert file.schema.names == [*keyed.schema.schema.names, *hidden]


def test_tombstones_of_non_nullable_columns(tmp_path: Path) -> None:
    schema = TableSchema("t", pa.schema([("id", pa.int64()), pa.field("v", pa.int64(), nullable=False)]), ("id",))
    codec, files = KeyCodec(schema.schema, schema.primary_key), LocalFiles(str(tmp_path))
    data = pa.table({"id": [1, 2], "v": pa.array([None, 5])})
    segment = write_segment(files, PATH, 1, schema, codec, Rows(codec.encode(data), data, np.array([True, False])))
    back = SegmentReader(files, segment, schema, codec).read()
    back.data.validate(full=True)
    assert back.data["v"].to_pylist() == [None, 5]


def test_chunks_and_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "BATCH_ROWS", 3)
    keyed, files = KEYED["string"], LocalFiles(str(tmp_path))
    rows = keyed.rows([(n, n) for n in range(10)])
    chunked = pa.concat_tables([rows.data.slice(n, 1) for n in range(10)])
    segment = write_segment(files, PATH, 1, keyed.schema, keyed.codec, Rows(rows.keys, chunked))
    assert segment.blocks == tuple(rows.keys[n].as_py() for n in (0, 3, 6, 9))
    assert reader(files, segment, keyed).read().data.equals(rows.data)


def test_descriptors_travel(tmp_path: Path) -> None:
    for name, keyed in KEYED.items():
        segment, _ = written(LocalFiles(str(tmp_path)), keyed, [(n, n or None) for n in range(9)], f"{name}.arrow")
        for original in (segment, segment.labelled(5)):
            assert Segment.from_record(msgpack.unpackb(msgpack.packb(original.to_record()))) == original
            assert pickle.loads(pickle.dumps(original)) == original


def test_statistics_are_those_of_key_columns(tmp_path: Path) -> None:
    def stats(name: str, numbers: list[int]) -> Any:
        path = f"{name}{len(numbers)}.arrow"
        return written(LocalFiles(str(tmp_path)), KEYED[name], [(n, n) for n in numbers], path)[0].stats

    assert stats("int64", [5, 1]) == {"id": (1, 5)}
    assert stats("float64", [4, 8]) == {"id": (1.0, 2.0)}
    assert stats("float64", [4, 8, 7]) == {}
    assert stats("string", [1, 3]) == {"id": ("\x00001", "003")}
    assert stats("date", [0, 1]) == {"id": (18262, 18263)}
    assert stats("bool+binary", [0, 3]) == {"flag": (False, True), "id": (b"\0", b"\1")}
    assert stats("decimal", [1]) == {}


def test_bounds_of_float_keys_order_nan_last(tmp_path: Path) -> None:
    keyed = KEYED["float64"]
    segment, _ = written(LocalFiles(str(tmp_path)), keyed, [(7, 1), (1000, 2)])
    assert segment.key_max == keyed.codec.prefix([math.nan])
    assert segment.key_min < segment.key_max  # pyright: ignore[reportOperatorIssue]


# ---- damage ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["int64", "bool+binary"])
def test_every_cut_and_every_flipped_byte_is_reported(name: str) -> None:
    keyed, files = KEYED[name], MemoryFiles()
    segment, rows = written(files, keyed, [(1, 1), (2, None)])
    good = files.read(PATH).to_pybytes()
    assert keyed.plain(reader(files, segment, keyed).read()) == keyed.plain(rows)  # damage after a good read counts too

    def must_be_reported(data: bytes) -> None:
        files.replace(PATH, data)
        with pytest.raises(Corrupt) as caught:
            reader(files, segment, keyed).read(["v"])
        assert caught.value.path == PATH

    for length in range(len(good)):
        must_be_reported(good[:length])
    must_be_reported(good + b"\0")
    for place in range(len(good)):
        must_be_reported(good[:place] + bytes([good[place] ^ (1 << place % 8)]) + good[place + 1 :])
    files.replace(PATH, good)
    assert keyed.plain(reader(files, segment, keyed).read()) == keyed.plain(rows)


def test_a_file_that_is_gone_or_another(tmp_path: Path) -> None:
    keyed, files = KEYED["int64"], LocalFiles(str(tmp_path))
    segment, _ = written(files, keyed, [(1, 1)])
    other, _ = written(files, KEYED["string"], [(1, 1)], "other.arrow")
    files.delete(PATH)
    with pytest.raises(Corrupt, match=r"x\.arrow is damaged: the file is gone"):
        reader(files, segment, keyed).read()
    with pytest.raises(Corrupt):
        reader(files, other, KEYED["bool+binary"]).read()
    (tmp_path / PATH).mkdir()
    with pytest.raises(Corrupt, match=r"x\.arrow"):
        reader(files, segment, keyed).read()


def test_a_descriptor_that_does_not_fit_its_file(tmp_path: Path) -> None:
    keyed, files = KEYED["int64"], LocalFiles(str(tmp_path))
    segment, _ = written(files, keyed, [(1, 1)])
    wrong = Segment.from_record({**segment.to_record(), "blocks": [1, 2], "sizes": {}})
    with pytest.raises(Corrupt, match="record batches"):
        reader(files, wrong, keyed).read()


@pytest.mark.parametrize("small", [False, True])
def test_the_checksum_is_computed_once_per_file_and_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    """Of a small file, which is not remembered, at each read."""
    keyed, files = KEYED["int64"], LocalFiles(str(tmp_path))
    segment, _ = written(files, keyed, [(n, n * 7919) for n in range(1 if small else 20_000)])
    assert (segment.bytes <= SMALL_BYTES) is small
    counted: list[int] = []
    real = data_file.zlib.crc32
    monkeypatch.setattr(data_file.zlib, "crc32", lambda data: (counted.append(1), real(data))[1])
    for _ in range(3):
        reader(files, segment, keyed).read()
    assert len(counted) == (3 if small else 1)


def test_what_is_known_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "_VERIFIED_LIMIT", 2)
    monkeypatch.setattr(data_file, "SMALL_BYTES", 0)
    keyed, files = KEYED["int64"], LocalFiles(str(tmp_path))
    for n in range(5):
        segment, _ = written(files, keyed, [(1, 1)], f"{n}.arrow")
        reader(files, segment, keyed).read()
    assert len(data_file._verified) <= 2


def test_nothing_is_left_of_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = LocalFiles(str(tmp_path))
    (tmp_path / "s").write_bytes(b"a file where a folder should be")
    with pytest.raises(WriteFailed):
        written(files, KEYED["int64"], [(1, 1)])
    assert [info.path for info in files.list()] == ["s"]


def test_threads_read_one_file_together(tmp_path: Path) -> None:
    keyed, files = KEYED["int64"], LocalFiles(str(tmp_path))
    segment, rows = written(files, keyed, [(n, n) for n in range(1000)])
    results: list[bool] = []

    def read() -> None:
        results.append(reader(files, segment, keyed).read().data.equals(rows.data))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8
