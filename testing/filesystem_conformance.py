"""Conformance suite for file systems: the contract of `Files` in store/env/files.py as functions to call.

`CASES` lists the functions. Each takes an empty folder in the file system; `ArrowFiles` adapts any file system of
Arrow.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pyarrow as pa

from epochlog.errors import Corrupt, InvalidInput
from epochlog.store.env.files import Files
from epochlog.store.sst.data_file import verified

from .raising import raises

OUTSIDE = ("", "/etc/passwd", "../x", "a/../../x", "a/./x", "a//x", "a/", "a\0b", "..", "a\\..\\b")
"""Paths that escape the root, or name no file."""


def new_name(folder: str = "t") -> str:
    """Draw a name in the form of the store's file names."""
    return f"{folder}/{uuid4().hex}-{uuid4().hex}.arrow"


def a_file_is_read_as_it_was_written(files: Files) -> None:
    assert files.list() == []
    assert not files.exists("a/b/x.arrow")
    files.write("a/b/x.arrow", b"hello")
    files.write("a/y.arrow", pa.py_buffer(b""))
    assert files.read("a/b/x.arrow").to_pybytes() == b"hello"
    assert files.read("a/y.arrow").to_pybytes() == b""
    with files.open_input("a/b/x.arrow") as file:
        assert file.read_at(3, 2) == b"llo"
    with files.open_input("a/y.arrow") as file:
        assert file.read() == b""
    assert files.size("a/b/x.arrow") == 5
    assert files.exists("a/y.arrow")
    assert not files.exists("a/b")
    assert [(info.path, info.size) for info in files.list()] == [("a/b/x.arrow", 5), ("a/y.arrow", 0)]
    assert [info.path for info in files.list("a/b")] == ["a/b/x.arrow"]
    assert files.list("nothing") == []
    assert files.list("a/y.arro") == []


def a_large_file_comes_back_whole(files: Files) -> None:
    name, data = new_name(), bytes(range(256)) * (1 << 16)
    files.write(name, data)
    assert files.size(name) == len(data)
    assert files.read(name).to_pybytes() == data


def nothing_is_written_over(files: Files) -> None:
    files.write("x", b"first")
    with raises(FileExistsError):
        files.write("x", b"second")
    assert files.read("x").to_pybytes() == b"first"


def missing_files(files: Files) -> None:
    files.write("there", b"1")
    for call in (files.read, files.open_input, files.size, files.stamp):
        with raises(FileNotFoundError):
            call("a/missing")
    files.delete("a/missing")
    files.delete("there")
    files.delete("there")
    assert not files.exists("there")
    assert files.list() == []


def no_path_leaves_the_root(files: Files) -> None:
    for path in OUTSIDE:
        for call in (files.read, files.size, files.exists, files.delete, files.open_input, files.stamp):
            with raises(InvalidInput):
                call(path)
        with raises(InvalidInput):
            files.write(path, b"x")
        if path:
            with raises(InvalidInput):
                files.list(path)


def writers_at_the_same_time(files: Files) -> None:
    names = [new_name() for _ in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: files.write(name, name.encode()), names))
        contents = list(pool.map(lambda name: files.read(name).to_pybytes().decode(), names))
    assert contents == names
    assert [info.path for info in files.list("t")] == sorted(names)


def of_writers_of_one_name_one_wins(files: Files) -> None:
    """Race writers of one name. On object stores the last one wins; the store draws random names for all files but its
    marker.
    """

    def write(word: str) -> str | None:
        try:
            files.write("x", word.encode())
        except FileExistsError:
            return None
        return word

    words = [f"writer {number}" for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        won = [word for word in pool.map(write, words) if word]
    assert files.read("x").to_pybytes().decode() in won
    assert len(won) == 1 or files.remote


def a_stamp_stays_as_long_as_the_file(files: Files) -> None:
    files.write("x", b"1")
    files.write("y", b"1")
    assert files.stamp("x") == files.stamp("x") != files.stamp("y")


def workers_receive_files_by_pickle(files: Files) -> None:
    files.write("x", b"x")
    copy = pickle.loads(pickle.dumps(files))
    assert copy.read("x").to_pybytes() == b"x"
    assert copy.place == files.place


def a_damaged_file_is_told_from_a_whole_one(files: Files) -> None:
    name, data = new_name(), b"some rows"
    files.write(name, data)
    assert verified(files, name, len(data), zlib.crc32(data)).to_pybytes() == data
    for size, crc in ((len(data) + 1, zlib.crc32(data)), (len(data), 1)):
        with raises(Corrupt):
            verified(files, name, size, crc)
    files.delete(name)
    with raises(Corrupt, "gone"):
        verified(files, name, len(data), zlib.crc32(data), recheck=True)


CASES: tuple[Callable[[Files], None], ...] = (
    a_file_is_read_as_it_was_written,
    a_large_file_comes_back_whole,
    nothing_is_written_over,
    missing_files,
    no_path_leaves_the_root,
    writers_at_the_same_time,
    of_writers_of_one_name_one_wins,
    a_stamp_stays_as_long_as_the_file,
    workers_receive_files_by_pickle,
    a_damaged_file_is_told_from_a_whole_one,
)
"""The whole suite: a file system is fit for a store if no case raises."""
