"""The conformance suite of file systems on all kinds: local folders, Arrow's, and S3; and what is S3's alone."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from epochlog.errors import InvalidInput, ReadFailed, WriteFailed
from epochlog.store.env.arrow_files import ArrowFiles
from epochlog.store.env.files import Files
from epochlog.store.env.filesystem import open_files
from epochlog.store.env.lru_cache import LRUCache
from epochlog.store.sst import data_file
from epochlog.store.sst.data_file import verified
from epochlog.testing.filesystem_conformance import CASES, new_name, workers_receive_files_by_pickle
from s3_server import SECRET, USER, S3Server

KINDS = ("disk", "os", "uri", "arrow-local", "arrow-mock", "arrow-root", "s3")
Make = Callable[[str], Files]


@pytest.fixture(params=KINDS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    """An empty place of each kind."""
    return {
        "disk": lambda: open_files(str(tmp_path / "root")),
        "os": lambda: open_files(str(tmp_path / "root"), "os"),
        "uri": lambda: open_files((tmp_path / "a root").as_uri(), "os"),
        "arrow-local": lambda: ArrowFiles(pafs.LocalFileSystem(), str(tmp_path / "root")),
        "arrow-mock": lambda: ArrowFiles(pafs._MockFileSystem(), "bucket/root"),  # pyright: ignore[reportAttributeAccessIssue]
        "arrow-root": lambda: ArrowFiles(pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()), ""),
        "s3": lambda: on_s3(request.getfixturevalue("s3")),
    }[request.param]()


def on_s3(server: S3Server) -> Files:
    """An empty place in a bucket of its own."""
    return open_files(server.uri(f"{server.new_bucket()}/lake"))


def s3_client(server: S3Server, **options: Any) -> pafs.S3FileSystem:
    return pafs.S3FileSystem(
        access_key=USER,
        secret_key=SECRET,
        endpoint_override=f"127.0.0.1:{server.port}",
        scheme="http",
        region="us-east-1",
        **options,
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_it_keeps_the_promise(files: Files, case: Callable[[Files], None], request: pytest.FixtureRequest) -> None:
    if case is workers_receive_files_by_pickle and "arrow-mock" in request.node.name:
        return  # it lives in this process alone
    case(files)


@pytest.mark.slow
def test_a_listing_of_many_files_is_whole(s3: S3Server) -> None:
    patient = s3_client(s3, request_timeout=600, retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=3))
    files = ArrowFiles(patient, f"{s3.new_bucket()}/lake")  # a loaded machine takes seconds to a page of the listing
    names = sorted(new_name() for _ in range(1_010))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: files.write(name, b"x"), names))
    s3.requests()
    assert [info.path for info in files.list("t")] == names
    assert len(set(s3.requests())) == 2  # a client asks again when a loaded server is slow to answer


# ---- stores that refuse, or do not answer --------------------------------------------------------------------------


def refused(files: Files, name: str, words: str) -> None:
    """Everything that asks raises a typed error with the words, and without the password."""
    calls: list[tuple[type[Exception], Callable[[], object]]] = [
        (ReadFailed, lambda: files.read(name)),
        (ReadFailed, lambda: files.open_input(name)),
        (ReadFailed, lambda: files.size(name)),
        (ReadFailed, lambda: files.exists(name)),
        (ReadFailed, lambda: files.stamp(name)),
        (ReadFailed, files.list),
        (ReadFailed, lambda: verified(files, name, 1, 1)),
        (WriteFailed, lambda: files.write(new_name(), b"x")),
        (WriteFailed, lambda: files.write("x", b"x")),
        (WriteFailed, lambda: files.delete(name)),
    ]
    for kind, call in calls:
        with pytest.raises(kind, match=words) as caught:
            call()
        assert SECRET not in str(caught.value)


def test_a_user_that_is_not_known(s3: S3Server) -> None:
    files, name = on_s3(s3), new_name()
    files.write(name, b"x")
    s3.ask_for_keys(True)
    try:
        refused(files, name, "ACCESS_DENIED|INVALID_ACCESS_KEY_ID")
    finally:
        s3.ask_for_keys(False)
    assert files.read(name).to_pybytes() == b"x"


@pytest.fixture
def stopped() -> S3Server:
    server = S3Server()
    server.stop()
    return server


@pytest.mark.medium
def test_a_server_that_is_gone(stopped: S3Server) -> None:
    once = s3_client(stopped, retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=1), allow_delayed_open=True)
    refused(ArrowFiles(once, "bucket/lake"), new_name(), "NETWORK_CONNECTION")


@pytest.mark.medium
def test_a_server_that_is_asked_too_often_is_asked_again(s3: S3Server) -> None:
    files, name, data = on_s3(s3), new_name(), b"x" * 1_000
    for method, call in (("PUT", lambda: files.write(name, data)), ("GET", lambda: files.read(name))):
        s3.fail(2, method)
        call()


def test_a_bucket_that_is_not_there(s3: S3Server) -> None:
    files = open_files(s3.uri("no-such-bucket/lake").replace("allow_bucket_creation=true", "region=us-east-1"))
    assert files.list() == []
    assert not files.exists("x")
    for name in (new_name(), "x"):
        with pytest.raises(FileNotFoundError):
            files.read(name)
        with pytest.raises(WriteFailed, match="NO_SUCH_BUCKET"):
            files.write(name, b"x")


@pytest.mark.parametrize(
    "root",
    [
        "s3://user:{}@bucket:9x/lake",
        "s3://user:{}@bucket/lake?scheme=nonsense&region=x",
        "s3://user:{}@bucket/lake?secret_key={}",
        "s3://us er:{}@bucket/lake",
        "s3://user:{}/x@bucket/lake",
        "s3://user:{}@[bucket/lake",
        "nosuch://user:{}@bucket/lake",
    ],
)
def test_a_root_that_cannot_be_used_is_told_without_its_password(root: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        open_files(root.format("hush-hush", "hush-hush"))
    assert "hush" not in str(caught.value)
    assert "***" in str(caught.value)
    assert caught.value.__suppress_context__


def test_the_password_is_not_shown(s3: S3Server) -> None:
    files = on_s3(s3)
    for shown in (repr(files), str(files), files.place):
        assert SECRET not in shown
        assert SECRET.replace("/", "%2F").replace("+", "%2B") not in shown
    assert USER in files.place


# ---- what it costs -------------------------------------------------------------------------------------------------


def test_requests_of_a_file(s3: S3Server) -> None:
    """A new file is one request, its first read two, every later one none."""
    files, name, data = on_s3(s3), new_name(), b"some rows"
    s3.requests()
    files.write(name, data)
    assert [request.split()[0] for request in s3.requests()] == ["PUT"]
    for expected in (["HEAD", "GET"], [], []):
        assert verified(files, name, len(data), zlib.crc32(data)).to_pybytes() == data
        assert [request.split()[0] for request in s3.requests()] == expected
    verified(files, name, len(data), zlib.crc32(data), recheck=True)
    assert [request.split()[0] for request in s3.requests()] == ["HEAD", "GET"]


def test_downloads_are_kept_within_a_bound(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = LRUCache[pa.Buffer](10, lambda data: data.size)
    monkeypatch.setattr(data_file, "downloads", cache)
    data = {new_name(): bytes([65 + size]) * size for size in (4, 5, 6, 11)}
    for name, content in data.items():
        files.write(name, content)
        assert verified(files, name, len(content), zlib.crc32(content)).to_pybytes() == content
    four, five, six, eleven = ((files.place, name, len(c), zlib.crc32(c)) for name, c in data.items())
    assert [cache.get(name) is not None for name in (four, five, six, eleven)] == [False, False, files.remote, False]
    cache.put(four, pa.py_buffer(b"1234"))
    cache.put(four, pa.py_buffer(b"1234"))
    assert [cache.get(name) is not None for name in (six, four)] == [files.remote, True]
    cache.put(five, pa.py_buffer(b"12345"))
    assert [cache.get(name) is not None for name in (six, four, five)] == [False, True, True]
