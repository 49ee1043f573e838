"""Stores with a Redis catalog are made once, whoever makes them and wherever making them was cut off."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

import epochlog as el
from catalog_makers import server_of
from epochlog.store.catalog.redis import catalog as redis_catalog
from epochlog.store.env.arrow_files import ArrowFiles
from epochlog.store.env.local_folder import LocalFiles
from epochlog.store.env.paths import MARKER
from epochlog.store.session.marker import read_marker
from redis_server import RedisProcess
from s3_server import S3Server

pytestmark = pytest.mark.redis
SCHEMA = pa.schema([pa.field("id", pa.int64())])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    yield from server_of(tmp_path / "redis")


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "s")
    s3: S3Server = request.getfixturevalue("s3")
    return s3.uri(f"{s3.new_bucket()}/lake")


def files_of(root: str) -> tuple[pafs.FileSystem, str]:
    return pafs.FileSystem.from_uri(root)


def remove(root: str, path: str = "") -> None:
    filesystem, base = files_of(root)
    if path:
        filesystem.delete_file(f"{base}/{path}")
    else:
        filesystem.delete_dir(base)


def works(root: str, url: str) -> str:
    with el.open(root, url) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(pa.table({"id": [1]}))
    with el.open(root, url, create=False) as store:
        assert store.table("t").count() == 1
        return store._handle.store_id


@pytest.mark.medium
def test_makers_at_once_make_one_store(root: str, server: RedisProcess) -> None:
    store_ids, barrier = list[str](), threading.Barrier(4)

    def make() -> None:
        barrier.wait()
        with el.open(root, server.url()) as store:
            store_ids.append(store._handle.store_id)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store_ids) == 4 and len(set(store_ids)) == 1
    assert works(root, server.url()) == store_ids[0]


def test_a_marker_that_goes_while_it_is_looked_at_is_none_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of several makers takes another's for cut off and writes it anew; a third had seen that it is there."""
    files = LocalFiles(str(tmp_path))
    (tmp_path / MARKER).write_text("{")
    real_exists = LocalFiles.exists

    def exists_no_longer(files: LocalFiles, path: str) -> bool:
        exists = real_exists(files, path)
        (tmp_path / MARKER).unlink()
        return exists

    monkeypatch.setattr(LocalFiles, "exists", exists_no_longer)
    assert read_marker(files) is None


@pytest.mark.medium
def test_a_creation_cut_off_anywhere_is_taken_up(
    root: str, server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, writes = redis_catalog.RedisServer.run_once, {kind: kind.write for kind in (LocalFiles, ArrowFiles)}
    step = 0
    for step in count():
        steps_left = [step]

        def dies(steps_left: list[int] = steps_left) -> None:
            steps_left[0] -= 1
            if steps_left[0] < 0:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(redis_catalog.RedisServer, "run_once", lambda *args: (dies(), once(*args))[1])
            for kind, write in writes.items():
                patch.setattr(kind, "write", lambda *args, write=write: (dies(), write(*args))[1])
            created = not interrupted(lambda: el.open(root, server.url()).close())
        works(root, server.url())
        if created:
            break
        remove(root)
        server.client().flushall()
    assert step >= 5


def interrupted(work: Callable[[], object]) -> bool:
    try:
        work()
    except KeyboardInterrupt:
        return True
    return False


def test_the_marker_names_kind_and_generation_and_no_secret(root: str, server: RedisProcess) -> None:
    store_id = works(root, server.url())
    filesystem, base = files_of(root)
    marker = json.loads(filesystem.open_input_file(f"{base}/epochlog.json").read())
    assert marker.keys() == {"store_id", "format", "catalog", "generation"}
    assert (marker["store_id"], marker["catalog"]) == (store_id, "redis")
    with el.open(root, server.url()) as store:
        assert store.root == root
        assert "secret" not in repr(store) + repr(store.table("t"))


def test_opening_with_the_other_kind_says_what_to_pass(tmp_path: Path, server: RedisProcess) -> None:
    works(str(tmp_path / "s"), server.url())
    with pytest.raises(el.InvalidInput, match=r"pass catalog='redis://"):
        el.open(tmp_path / "s")
    el.open(tmp_path / "lmdb").close()
    with pytest.raises(el.InvalidInput, match="leave catalog out"):
        el.open(tmp_path / "lmdb", server.url())
    with pytest.raises(el.InvalidInput, match=r"pass catalog='redis://"):
        el.open("s3://bucket/lake")


def test_what_is_somebody_elses_is_left_alone(root: str, server: RedisProcess) -> None:
    filesystem, base = files_of(root)
    filesystem.create_dir(base, recursive=True)
    with filesystem.open_output_stream(f"{base}/notes.txt") as file:
        file.write(b"mine")
    for _ in range(2):
        with pytest.raises(el.ForeignRoot, match=r"notes\.txt"):
            el.open(root, server.url())
    assert [info.base_name for info in filesystem.get_file_info(pafs.FileSelector(base))] == ["notes.txt"]
    assert server.client().dbsize() == 0


def test_a_file_as_root_is_refused(tmp_path: Path, server: RedisProcess) -> None:
    (tmp_path / "s").write_text("mine")
    with pytest.raises((el.ForeignRoot, el.WriteFailed)):
        el.open(tmp_path / "s", server.url())
    assert (tmp_path / "s").read_text() == "mine"


@pytest.mark.medium
def test_a_root_that_was_emptied_becomes_another_store(root: str, server: RedisProcess) -> None:
    first = works(root, server.url())
    remove(root)
    with pytest.raises(el.StoreNotFound):
        el.open(root, server.url(), create=False)
    assert works(root, server.url()) != first


@pytest.mark.medium
def test_a_marker_that_was_lost_is_written_again(root: str, server: RedisProcess) -> None:
    first = works(root, server.url())
    remove(root, "epochlog.json")
    with el.open(root, server.url()) as store:
        assert store._handle.store_id == first
        assert store.table("t").count() == 1


@pytest.mark.parametrize("text", [
    '{\n "store_id": "../x",\n "format": 1,\n "catalog": "redis",\n "generation": "x"\n}',
    '{\n "store_id": "00000000000000000000000000000000",\n "format": 1,\n "catalog": "redis"\n}',
    '{\n "store_id": "00000000000000000000000000000000",\n "format": 1,\n "catalog": "etcd"\n}',
])  # fmt: skip
def test_a_marker_that_makes_no_sense_is_damage(tmp_path: Path, server: RedisProcess, text: str) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "epochlog.json").write_text(text)
    for catalog in (None, server.url()):
        with pytest.raises(el.Corrupt, match=r"epochlog\.json"):
            el.open(tmp_path / "s", catalog)


def test_two_machines_with_folders_of_one_name_have_two_stores(
    tmp_path: Path, server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    monkeypatch.setattr("platform.node", lambda: "one")
    el.open(root, server.url()).close()
    shutil.move(root, tmp_path / "of one")
    monkeypatch.setattr("platform.node", lambda: "two")
    el.open(root, server.url()).close()
    ids = [json.loads((folder / "epochlog.json").read_text())["store_id"] for folder in (root, tmp_path / "of one")]
    assert ids[0] != ids[1]
