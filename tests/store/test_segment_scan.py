"""A scan of many segments gives the rows of each, reads small files once, and names the one that is damaged."""

from __future__ import annotations

import os
import random
import threading
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from epochlog.errors import Corrupt
from epochlog.store.env import local_folder
from epochlog.store.env.arrow_files import ArrowFiles
from epochlog.store.env.files import SMALL_BYTES, Files
from epochlog.store.env.local_folder import LocalFiles
from epochlog.store.env.parallel import MOST_REQUESTS
from epochlog.store.sst import segment_scan
from epochlog.store.sst.merge import joined
from epochlog.store.sst.segment import Segment, SegmentReader, write_segment
from epochlog.store.sst.segment_scan import LogFile, Scanned, is_small, scan_segments
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from row_sets import KEYED, Keyed
from wait_until import WAIT_LIMIT_S

pytestmark = pytest.mark.local_only


def written(files: Files, keyed: Keyed, dice: random.Random, count: int) -> list[Segment]:
    """Write segments of random rows, some with deletes, some too large to be small."""
    segments: list[Segment] = []
    for number in range(count):
        rows = dice.choice([1, 3, 20, 9000])
        deletes = dice.choice([0, 0, 3])
        changes = [
            (key, None if deletes and dice.randrange(deletes) == 0 else dice.randrange(10**9))
            for key in sorted(dice.sample(range(10_000), rows))
        ]
        path = f"s/t00000001/{number}.arrow"
        segments.append(write_segment(files, path, 1, keyed.schema, keyed.codec, keyed.rows(changes)))
    return segments


def read_one_by_one(
    files: Files, keyed: Keyed, segments: list[Segment], columns: list[str], keys: KeyRange
) -> tuple[Any, list[int]]:
    parts = [SegmentReader(files, segment, keyed.schema, keyed.codec).read(columns, keys) for segment in segments]
    return joined(parts), [len(part) for part in parts]


def log_files(segments: list[Segment]) -> list[LogFile]:
    """Return the segments as files of a log, each with its number as the log epoch."""
    return [LogFile(segment, number) for number, segment in enumerate(segments)]


def plain(scanned: Scanned) -> list[tuple[Any, ...]]:
    columns = [column.to_pylist() for column in scanned.data.columns]
    return list(zip(scanned.keys.to_pylist(), scanned.deleted.tolist(), *columns, strict=True))


@pytest.mark.parametrize("keyed", KEYED.values(), ids=KEYED.keys())
def test_a_scan_has_the_rows_of_each_file_in_order(tmp_path: Path, keyed: Keyed) -> None:
    dice, files = random.Random(7), LocalFiles(str(tmp_path), "os")
    segments = written(files, keyed, dice, 12)
    assert {is_small(segment) for segment in segments} == (
        {True, False} if max(s.rows for s in segments) > 999 else {True}
    )
    bounds = sorted((segments[0].key_min, segments[0].key_max))
    ranges = [ALL_KEYS, KeyRange(bounds[0], bounds[1]), KeyRange(None, bounds[1]), KeyRange(bounds[1], None)]
    for keys in ranges:
        for columns in (["v"], ["w", "v"], list(keyed.schema.schema.names)):
            rows, counts = read_one_by_one(files, keyed, segments, columns, keys)
            scanned = scan_segments(files, keyed.schema, log_files(segments), columns, keys)
            assert scanned.labels.tolist() == [number for number, count in enumerate(counts) for _ in range(count)]
            deleted = np.zeros(len(rows), np.bool_) if rows.deleted is None else rows.deleted
            expected = list(zip(rows.keys.to_pylist(), deleted.tolist(),
                                *(column.to_pylist() for column in rows.data.columns), strict=True))  # fmt: skip
            assert repr(plain(scanned)) == repr(expected)  # a NaN equals no other


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "no batch"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_the_damaged_one_of_many_is_named(tmp_path: Path, damage: str, which: int) -> None:
    keyed, files = KEYED["int64"], LocalFiles(str(tmp_path), "os")
    segments = [
        write_segment(files, f"s/{n}.arrow", 1, keyed.schema, keyed.codec, keyed.rows([(n, n)])) for n in range(3)
    ]
    place = tmp_path / segments[which].path
    data = bytearray(place.read_bytes())
    if damage == "gone":
        place.unlink()
    elif damage == "no batch":  # a checksum that fits: whoever can write the catalog can write this
        sink = pa.BufferOutputStream()
        pa.ipc.new_file(sink, keyed.schema.schema).close()
        content = sink.getvalue().to_pybytes()
        place.write_bytes(content)
        segments[which] = replace(segments[which], bytes=len(content), crc32=zlib.crc32(content))
    else:
        place.write_bytes(data[:-1] if damage == "cut" else bytes([*data[:-9], data[-9] ^ 1, *data[-8:]]))
    with pytest.raises(Corrupt, match=rf"s/{which}\.arrow"):
        scan_segments(files, keyed.schema, log_files(segments), ["v"])


class Slow(ArrowFiles):
    """Object store whose reads wait until so many of them are under way."""

    __slots__ = ()
    meeting: threading.Barrier

    def read(self, path: str) -> pa.Buffer:
        type(self).meeting.wait(WAIT_LIMIT_S)
        return super().read(path)


def test_requests_to_a_remote_file_system_are_sent_ahead(tmp_path: Path) -> None:
    keyed = KEYED["int64"]
    files = Slow(pafs.LocalFileSystem(), str(tmp_path))
    Slow.meeting = threading.Barrier(MOST_REQUESTS)
    segments = [
        write_segment(files, f"s/{n}.arrow", 1, keyed.schema, keyed.codec, keyed.rows([(n, n)]))
        for n in range(2 * MOST_REQUESTS)
    ]
    assert scan_segments(files, keyed.schema, log_files(segments), ["v"]).data["v"].to_pylist() == list(
        range(2 * MOST_REQUESTS)
    )


def test_a_small_file_is_neither_mapped_nor_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small").write_bytes(b"x" * SMALL_BYTES)
    (tmp_path / "large").write_bytes(b"y" * (SMALL_BYTES + 1))
    (tmp_path / "empty").write_bytes(b"")
    mapped: list[str] = []
    real = pa.memory_map
    monkeypatch.setattr(local_folder.pa, "memory_map", lambda path: (mapped.append(path), real(path))[1])
    files = LocalFiles(str(tmp_path))
    assert [files.read(name).size for name in ("empty", "small", "large")] == [0, SMALL_BYTES, SMALL_BYTES + 1]
    assert mapped == [str(tmp_path / "large")]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):  # and does not wait for a writer
        files.read("pipe")


def test_a_read_that_returns_less_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(bytes(range(256)) * 8)
    real = os.read
    monkeypatch.setattr(local_folder.os, "read", lambda handle, size: real(handle, min(size, 100)))
    assert LocalFiles(str(tmp_path)).read("f").to_pybytes() == bytes(range(256)) * 8


# planted errors


def _key_range_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segment_scan, "_inside", lambda keys, _: np.ones(len(keys), np.bool_))


def _deletes_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(segment_scan, "tombstones", lambda _: None)


def _columns_by_place(patch: pytest.MonkeyPatch) -> None:
    """The first columns of a file are read, whatever their names."""

    def options(_: pa.Schema, physical: set[str]) -> pa.ipc.IpcReadOptions:
        return pa.ipc.IpcReadOptions(included_fields=list(range(len(physical))))

    patch.setattr(segment_scan, "_options_of", options)


@pytest.mark.planted
@pytest.mark.parametrize("plant", [_key_range_is_ignored, _deletes_are_ignored, _columns_by_place])
def test_a_planted_error_of_a_scan_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, KeyError, pa.ArrowException)):
        test_a_scan_has_the_rows_of_each_file_in_order(tmp_path, KEYED["int64"])
