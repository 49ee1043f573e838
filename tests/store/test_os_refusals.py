"""Refusals of the system (open files, memory, rights) are reported as such, never as damage of a file or a catalog."""

from __future__ import annotations

import ast
import errno
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import epochlog as el
from epochlog.store.catalog.lmdb import catalog
from epochlog.store.catalog.redis import client
from epochlog.store.env import local_folder
from epochlog.store.env.local_folder import LocalFiles
from epochlog.store.env.os_refusals import errno_of, read_failed, undecodable
from epochlog.store.sst.data_file import FileMissing, verified
from open_files import no_open_files

pytestmark = pytest.mark.local_only

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A table with a run, history and a commit above them."""
    with el.open(tmp_path / "s", durability="os") as store:
        table = store.create_table("t", SCHEMA, ["id"])
        for value in "ab":
            table.upsert(pa.table({"id": [1, 2], "v": [value] * 2}))
        store.compact("t", full=True)
        table.upsert(pa.table({"id": [3], "v": ["c"]}))
    return tmp_path / "s"


def reads(store: el.Store) -> dict[str, Callable[[], Any]]:
    table = store.table("t")
    return {
        "now": lambda: table.to_arrow().to_pylist(),
        "key": lambda: table.get(pa.table({"id": [3]})).to_pylist(),
        "log": lambda: table.changes(0).read_all().to_pylist(),
    }


def test_a_process_without_open_files_is_told_so_and_reads_again_later(root: Path) -> None:
    with el.open(root) as store:
        ways = reads(store)
        with no_open_files():
            for name, read in ways.items():
                with pytest.raises(el.ReadFailed, match=r"EMFILE.*no sign of damage.*ulimit") as error:
                    read()
                assert not isinstance(error.value, el.Corrupt), name
        assert [row["id"] for row in ways["now"]()] == [1, 2, 3]
        assert store.verify().ok


def test_verify_does_not_call_a_file_damaged_that_it_could_not_open(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with el.open(root) as store:
        names = [info.path for info in store._handle.files.list(store._handle.store_id)]
        plainly = local_folder._read_small

        def refused(path: str) -> bytes | None:
            with no_open_files():
                return plainly(path)

        monkeypatch.setattr(local_folder, "_read_small", refused)
        report = store.verify()
        assert not report.ok and not report.problems
        assert {unread.where for unread in report.unread} <= set(names) and len(report.unread) > 2
        assert all("EMFILE" in unread.what for unread in report.unread)
        monkeypatch.undo()
        assert store.verify().ok
        with no_open_files(), pytest.raises((el.ReadFailed, el.CatalogUnavailable), match="open files"):
            store.verify()  # not even a folder can be listed: that is no empty folder


def test_a_store_that_cannot_be_opened_now_is_not_lost(root: Path) -> None:
    with pytest.raises((el.ReadFailed, el.CatalogUnavailable), match="open files") as error, no_open_files():
        el.open(root)
    assert not isinstance(error.value, el.CatalogLost)
    with el.open(root) as store:
        assert store.verify().ok


def test_a_folder_that_cannot_be_listed_is_made_no_store(root: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with no_open_files(), pytest.raises(el.WriteFailed, match="Too many open files"):
        el.open(tmp_path / "new")
    el.open(tmp_path / "new").close()


@pytest.mark.parametrize("code", [errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO])
def test_a_catalog_that_the_system_refuses_is_not_lost(root: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    kind = lmdb.MemoryError if code == errno.ENOMEM else lmdb.Error

    def refused(*_: Any, **__: Any) -> Any:
        raise kind(f"{root}/catalog: {os.strerror(code)}")

    monkeypatch.setattr(catalog.lmdb, "open", refused)
    with pytest.raises(el.CatalogUnavailable, match=f"{os.strerror(code)}.*This is no sign of damage"):
        el.open(root)
    monkeypatch.undo()
    monkeypatch.setattr(catalog, "check_metas", lambda *_: (_ for _ in ()).throw(OSError(code, os.strerror(code))))
    with pytest.raises(el.CatalogUnavailable, match=os.strerror(code)):
        el.open(root)
    monkeypatch.undo()
    el.open(root).close()


def test_a_catalog_without_memory_for_a_transaction_is_not_damaged(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with el.open(root) as store:

        def body(_: Any) -> None:
            raise lmdb.MemoryError("mdb_get: Cannot allocate memory")

        with pytest.raises(el.CatalogUnavailable, match="Cannot allocate memory"):
            store._handle.catalog.read(body)
        assert store.table("t").count() == 3


def test_a_catalog_server_that_gets_no_socket_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RECONNECT_S", 0.02)
    server = client.RedisServer("redis://127.0.0.1:1/0")
    with no_open_files(), pytest.raises(el.CatalogUnavailable, match="Too many open files"):
        server.time_ms()


TEXTS = [
    OSError(errno.EMFILE, "Failed to open local file '/x'. Detail: [errno 24] Too many open files"),
    OSError("Failed to open local file '/x'. Detail: [errno 23] Too many open files in system"),
    OSError("Memory mapping file failed: Cannot allocate memory"),
    PermissionError(errno.EACCES, "Permission denied", "/x"),
    OSError(errno.EIO, "Input/output error"),
    pa.ArrowMemoryError("malloc of size 1073741824 failed"),
    MemoryError(),
]


@pytest.mark.parametrize("error", TEXTS, ids=[str(errno_of(error)) + type(error).__name__ for error in TEXTS])
def test_the_systems_refusals_however_they_are_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    assert errno_of(error) in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EIO)
    assert isinstance(undecodable("p", error), el.ReadFailed)
    name = errno.errorcode[errno_of(error) or 0]

    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    with el.open(root) as store:
        calls = ((local_folder, "_read_small"), (pa, "memory_map"), (pa.ipc, "open_file"), (pq, "ParquetFile"))
        for where in calls:
            with monkeypatch.context() as patch:
                patch.setattr(*where, refuse)
                if where == (pa, "memory_map"):
                    patch.setattr(local_folder, "SMALL_BYTES", 0)  # so that every file is mapped
                with pytest.raises(el.ReadFailed, match=name):
                    store.table("t").to_arrow()
                if where[0] is not pa.ipc:
                    assert not store.verify().problems
        assert store.table("t").count() == 3 and store.verify().ok


def test_what_is_missing_or_wrong_is_damage_still(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path), "os")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    for path in ("none", "folder", "file/under", "none/deep"):
        with pytest.raises(FileMissing, match="gone"):
            verified(files, path, 1, 1)
        assert not files.exists(path)
    with pytest.raises(el.Corrupt, match="checksum"):
        verified(files, "file", 1, 1)
    for error in (pa.ArrowInvalid("x"), KeyError("x"), OSError("Corrupt snappy compressed data."), OSError("x: y")):
        assert isinstance(undecodable("p", error), el.Corrupt)


def test_a_folder_that_cannot_be_looked_into_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = LocalFiles(str(tmp_path), "os")
    files.write("a/b", b"x")

    def denied(path: Any, **_: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "stat", denied)
    for ask in (lambda: files.exists("a/b"), lambda: files.size("a/b"), lambda: files.stamp("a/b"), files.list):
        with pytest.raises(el.ReadFailed, match="EACCES.*Give this user"):
            ask()
    monkeypatch.undo()
    with no_open_files(), pytest.raises(el.ReadFailed, match="EMFILE"):
        files.list()
    assert [info.path for info in files.list()] == ["a/b"]


def test_a_refusal_travels(tmp_path: Path) -> None:
    error = read_failed("p", OSError(errno.EMFILE, "x"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


MEMORY = """
import resource, sys
import pyarrow as pa, pyarrow.compute
import epochlog as el
with el.open(sys.argv[1]) as store:
    table = store.table("t")
    table.get(pa.table({"id": [1]}))
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), resource.RLIM_INFINITY))
    try:
        table.to_arrow()
    except el.ReadFailed as error:
        print("ReadFailed", error)
    try:
        el.open(sys.argv[2])
    except el.CatalogUnavailable as error:
        print("CatalogUnavailable", error)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    print(table.count(), el.open(sys.argv[2]).tables())
"""


@pytest.mark.medium
def test_a_process_without_memory_is_told_so(tmp_path: Path) -> None:
    """With a bounded address space no file can be mapped or decoded, and no catalog opened."""
    with el.open(tmp_path / "s", durability="os") as store, el.open(tmp_path / "other", durability="os"):
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(pa.table({"id": pa.array(range(1 << 17), pa.int64()), "v": ["x" * 1_000] * (1 << 17)}))
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "s"), str(tmp_path / "other")],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ReadFailed", "CatalogUnavailable", str(1 << 17)], done
    assert "ENOMEM" in lines[0] and "Cannot allocate memory" in lines[1]


# ---- siblings ------------------------------------------------------------------------------------------------------

SYSTEM = {"OSError", "IOError", "EnvironmentError", "PermissionError", "Exception", "BaseException", "MemoryError"}
ARROW = {"ArrowException", "ArrowMemoryError", "ArrowIOError", "CALL_ERRORS"}
DAMAGE = {"Corrupt", "FileMissing", "damaged", "_damaged"}


def caught(handler: ast.ExceptHandler) -> set[str]:
    """The last parts of the names of what a handler catches; lmdb.Error and redis' base as what they are."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(kind).rpartition(".")[2] if kind is not None else "BaseException" for kind in kinds} | (
        {"OSError"}
        if any(ast.unparse(kind or handler) in ("lmdb.Error", "redis_errors.RedisError") for kind in kinds)
        else set()
    )


def taken_for_damage(text: str) -> list[int]:
    """Lines of handlers that catch what the system may have refused, and make damage of it themselves."""
    return [
        handler.lineno
        for handler in ast.walk(ast.parse(text))
        if isinstance(handler, ast.ExceptHandler) and caught(handler) & (SYSTEM | ARROW)
        for call in ast.walk(handler)
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in DAMAGE
    ]


@pytest.mark.medium
def test_nobody_but_the_judge_makes_damage_of_the_systems_errors() -> None:
    """store/env/os_refusals.py alone decides; who catches OSError or Arrow's errors asks it."""
    folders = ("store", "exchange", "checkpoint", "batch", "cli")
    paths = [*ROOT.glob("*.py"), *(path for folder in folders for path in (ROOT / folder).rglob("*.py"))]
    assert len(paths) > 100
    assert [f"{path}:{line}" for path in paths for line in taken_for_damage(path.read_text())] == []


@pytest.mark.parametrize(
    "handler",
    [
        "except OSError as e:\n    raise Corrupt('p', str(e)) from e",
        "except (pa.ArrowException, KeyError) as e:\n    raise errors.Corrupt('p', str(e))",
        "except Exception as e:\n    if x:\n        return Corrupt('p', str(e))",
        "except lmdb.Error:\n    raise Corrupt('p', '')",
        "except:\n    raise FileMissing('p', '')",
        "except (redis_errors.RedisError, OSError):\n    raise self.damaged('')",
    ],
)
def test_the_check_finds_who_does(handler: str) -> None:
    assert taken_for_damage("try:\n    f()\n" + handler)


def test_the_check_lets_the_judge_pass() -> None:
    assert not taken_for_damage("try:\n    f()\nexcept (OSError, KeyError) as e:\n    raise undecodable('p', e) from e")
    assert not taken_for_damage("try:\n    f()\nexcept FileNotFoundError as e:\n    raise Corrupt('p', 'gone') from e")
