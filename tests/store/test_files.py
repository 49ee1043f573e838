"""Files in local folders are private and durable when written, and a disk that fails says so; see conformance too."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import NoReturn

import pyarrow.fs as pafs
import pytest

from epochlog.errors import InvalidInput, WriteFailed
from epochlog.store.env import local_folder as files_module
from epochlog.store.env.arrow_files import ArrowFiles
from epochlog.store.env.filesystem import open_files
from epochlog.store.env.local_folder import LocalFiles, make_private_dir

pytestmark = pytest.mark.local_only


def test_a_stamp_changes_with_the_file(tmp_path: Path) -> None:
    for files in (LocalFiles(str(tmp_path)), ArrowFiles(pafs.LocalFileSystem(), str(tmp_path))):
        (tmp_path / "x").write_bytes(b"1")
        os.utime(tmp_path / "x", ns=(0, 1))
        stamp = files.stamp("x")
        assert files.stamp("x") == stamp
        (tmp_path / "x").write_bytes(b"2")
        assert files.stamp("x") != stamp


def test_modified_is_in_unix_milliseconds(tmp_path: Path) -> None:
    for files in (LocalFiles(str(tmp_path)), ArrowFiles(pafs.LocalFileSystem(), str(tmp_path))):
        name = type(files).__name__
        files.write(name, b"x")
        os.utime(tmp_path / name, ns=(0, 1_735_689_600_123_456_789))
        assert [info.modified_ms for info in files.list() if info.path == name] == [1_735_689_600_123]


def test_roots(tmp_path: Path) -> None:
    assert open_files(str(tmp_path)) == open_files(tmp_path.as_uri()) == LocalFiles(str(tmp_path))
    assert open_files("file:///a%20b") == LocalFiles("/a b")
    for root, durability in [("file://host/x", "disk"), ("nosuch://x", "disk"), (str(tmp_path), "maybe")]:
        with pytest.raises(InvalidInput):
            open_files(root, durability)
    assert os.listdir(tmp_path) == []


def test_files_and_folders_are_private(tmp_path: Path) -> None:
    root = tmp_path / "root"
    old = os.umask(0)
    try:
        open_files(root).write("a/b/x", b"x")
    finally:
        os.umask(old)
    for folder in (root, root / "a", root / "a" / "b"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((root / "a" / "b" / "x").stat().st_mode) == 0o600


class SyncLog:
    """Notes what is synced, by path; fails the given one with EIO."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        self.fail = ""
        real = os.fsync

        def fsync(handle: int) -> None:
            path = os.readlink(f"/proc/self/fd/{handle}")
            self.paths.append(path)
            if path == self.fail:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(files_module, "_synced", set())


def test_a_write_syncs_the_file_its_folder_and_every_new_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SyncLog(monkeypatch)
    root = tmp_path / "deep" / "root"
    files = open_files(root)
    files.write("a/b/x", b"x")
    for parent in (tmp_path, tmp_path / "deep", root, root / "a"):
        assert str(parent) in log.paths
    assert log.paths[-2:] == [str(root / "a" / "b" / "x"), str(root / "a" / "b")]
    log.paths.clear()
    files.write("a/b/y", b"y")
    assert log.paths == [str(root / "a" / "b" / "y"), str(root / "a" / "b")]


def test_folders_of_another_process_are_not_taken_for_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SyncLog(monkeypatch)
    (tmp_path / "root" / "a").mkdir(parents=True)
    open_files(tmp_path / "root").write("a/x", b"x")
    assert {str(tmp_path), str(tmp_path / "root")} <= set(log.paths)


def test_without_disk_durability_nothing_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SyncLog(monkeypatch)
    open_files(tmp_path / "root", "os").write("a/x", b"x")
    assert log.paths == []


@pytest.mark.parametrize("failing", ["a/x", "a"])
def test_a_failed_sync_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    log = SyncLog(monkeypatch)
    log.fail = str(tmp_path / failing)
    with pytest.raises(WriteFailed, match=r"a/x was not written: Input/output error"):
        open_files(tmp_path).write("a/x", b"x")
    assert log.paths.count(log.fail) == 1
    assert not (tmp_path / "a" / "x").exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_says_so_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    files = open_files(tmp_path)
    real = os.write
    calls = []

    def write(handle: int, data: memoryview) -> int:
        calls.append(len(data))
        if len(calls) == 2:
            raise OSError(code, os.strerror(code))
        return real(handle, data[:2])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(WriteFailed, match="x was not written: the disk is full"):
        files.write("x", b"12345")
    assert files.list() == []
    files.write("x", b"12345")
    assert files.read("x").to_pybytes() == b"12345"
    assert calls == [5, 3, 5, 3, 1]


def test_a_root_below_a_file_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for files in (open_files(tmp_path / "file"), ArrowFiles(pafs.LocalFileSystem(), str(tmp_path / "file"))):
        with pytest.raises(WriteFailed, match="was not written"):
            files.write("x", b"x")
    assert not open_files(tmp_path / "file").exists("x")


def test_an_interrupted_object_is_removed(tmp_path: Path) -> None:
    class Stream:
        def write(self, data: bytes) -> None:
            raise OSError(errno.EIO, "broken pipe")

        def close(self) -> None:
            (tmp_path / "x").write_bytes(b"half")

    class Broken:
        def __getattr__(self, name: str) -> object:
            return getattr(pafs.LocalFileSystem(), name)

        def open_output_stream(self, path: str) -> Stream:
            return Stream()

    files = ArrowFiles(Broken(), str(tmp_path))
    with pytest.raises(WriteFailed, match="broken pipe"):
        files.write("x", b"whole")
    assert files.list() == []


def test_private_dirs(tmp_path: Path) -> None:
    make_private_dir(tmp_path / "a" / "b")
    make_private_dir(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


DENIED = {
    "of the user": OSError(errno.EACCES, "Permission denied"),
    "of root": OSError(errno.EPERM, "Operation not permitted"),
    "of the mount": OSError(errno.EROFS, "Read-only file system"),
    "in Arrow's text": OSError("Failed to open local file. Detail: [errno 30] Read-only file system"),
    "S3": OSError("When uploading key 'k' in bucket 'b': AWS Error ACCESS_DENIED during PutObject operation: "),
    "S3 without a code": OSError("AWS Error UNKNOWN (HTTP status 403) during PutObject operation: "),
    "GCS": OSError("google::cloud::Status(PERMISSION_DENIED: caller has no storage.objects.create access)"),
}
FAILED = {
    "full": OSError(errno.ENOSPC, "No space left on device"),
    "broken": OSError(errno.EIO, "Input/output error"),
    "busy": OSError("AWS Error SLOW_DOWN during PutObject operation: Please reduce your request rate"),
    "unknown user": OSError("AWS Error INVALID_ACCESS_KEY_ID during PutObject operation: "),
}


class RefusedFiles(pafs.LocalFileSystem):
    """A file system of pyarrow whose writes and deletions fail."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self._error = error

    def open_output_stream(self, *_: object, **__: object) -> NoReturn:
        raise self._error

    delete_file = open_output_stream


@pytest.mark.rule("1.74")
@pytest.mark.parametrize("kind", [*DENIED, *FAILED])
def test_only_a_refused_right_to_write_names_read_only(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = {**DENIED, **FAILED}[kind]
    (tmp_path / "there").write_bytes(b"x")

    def refuse(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr(files_module.os, "unlink", refuse)
    monkeypatch.setattr(files_module, "_write_all", refuse)
    for files in (LocalFiles(str(tmp_path), "os"), ArrowFiles(RefusedFiles(error), str(tmp_path))):
        for call in (
            lambda files=files: files.write(type(files).__name__, b"x"),
            lambda files=files: files.delete("there"),
        ):
            with pytest.raises(WriteFailed) as refused:
                call()
            text = str(refused.value)
            assert ("epochlog.open(root, read_only=True)" in text) is (kind in DENIED), text
            assert (error.strerror or str(error)) in text
