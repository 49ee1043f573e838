"""What every kind of file system promises the store, asked of all of them: local folders, Arrow's, and S3."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from epochlog.errors import Corrupt, InvalidInput, ReadFailed, WriteFailed
from epochlog.store import datafile
from epochlog.store.datafile import verified
from epochlog.store.files import ArrowFiles, Files, open_files
from epochlog.store.kept import Kept
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


def new_name(folder: str = "t") -> str:
    return f"{folder}/{uuid4().hex}-{uuid4().hex}.arrow"


def test_what_was_written_is_read(files: Files) -> None:
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


def test_a_large_file_comes_back_whole(files: Files) -> None:
    name, data = new_name(), bytes(range(256)) * (1 << 16)
    files.write(name, data)
    assert files.size(name) == len(data)
    assert files.read(name).to_pybytes() == data


def test_nothing_is_written_over(files: Files) -> None:
    files.write("x", b"first")
    with pytest.raises(FileExistsError):
        files.write("x", b"second")
    assert files.read("x").to_pybytes() == b"first"


def test_missing_files(files: Files) -> None:
    files.write("there", b"1")
    for call in (files.read, files.open_input, files.size, files.stamp):
        with pytest.raises(FileNotFoundError):
            call("a/missing")
    files.delete("a/missing")
    files.delete("there")
    files.delete("there")
    assert not files.exists("there")
    assert files.list() == []


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", "a/./x", "a//x", "a/", "a\0b", "..", "a\\..\\b"]
)
def test_no_path_leaves_the_root(files: Files, path: str) -> None:
    for call in (files.read, files.size, files.exists, files.delete, files.open_input, files.stamp):
        with pytest.raises(InvalidInput):
            call(path)
    with pytest.raises(InvalidInput):
        files.write(path, b"x")
    if path:
        with pytest.raises(InvalidInput):
            files.list(path)


def test_writers_at_the_same_time(files: Files) -> None:
    names = [new_name() for _ in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: files.write(name, name.encode()), names))
        found = list(pool.map(lambda name: files.read(name).to_pybytes().decode(), names))
    assert found == names
    assert [info.path for info in files.list("t")] == sorted(names)


def test_of_writers_of_one_name_one_wins(files: Files) -> None:
    """In folders. Object stores take what comes last, so all names there are drawn at random, but for the marker's."""

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


def test_a_stamp_stays_as_long_as_the_file(files: Files) -> None:
    files.write("x", b"1")
    files.write("y", b"1")
    assert files.stamp("x") == files.stamp("x") != files.stamp("y")


def test_workers_receive_files_by_pickle(files: Files, request: pytest.FixtureRequest) -> None:
    if "arrow-mock" in request.node.name:
        return  # it lives in this process alone
    files.write("x", b"x")
    copy = pickle.loads(pickle.dumps(files))
    assert copy.read("x").to_pybytes() == b"x"
    assert copy.place == files.place


def test_a_damaged_file_is_told_from_a_whole_one(files: Files) -> None:
    name, data = new_name(), b"some rows"
    files.write(name, data)
    assert verified(files, name, len(data), zlib.crc32(data)).to_pybytes() == data
    for size, crc in ((len(data) + 1, zlib.crc32(data)), (len(data), 1)):
        with pytest.raises(Corrupt):
            verified(files, name, size, crc)
    files.delete(name)
    with pytest.raises(Corrupt, match="gone"):
        verified(files, name, len(data), zlib.crc32(data), again=True)


@pytest.mark.slow
def test_a_listing_of_many_files_is_whole(s3: S3Server) -> None:
    files, names = on_s3(s3), sorted(new_name() for _ in range(1_010))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: files.write(name, b"x"), names))
    s3.requests()
    assert [info.path for info in files.list("t")] == names
    assert len(s3.requests()) == 2


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
    once = pafs.S3FileSystem(
        access_key=USER,
        secret_key=SECRET,
        endpoint_override=f"127.0.0.1:{stopped.port}",
        scheme="http",
        region="us-east-1",
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=1),
        allow_delayed_open=True,
    )
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
    verified(files, name, len(data), zlib.crc32(data), again=True)
    assert [request.split()[0] for request in s3.requests()] == ["HEAD", "GET"]


def test_downloads_are_kept_within_a_bound(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept[pa.Buffer](10, lambda data: data.size)
    monkeypatch.setattr(datafile, "downloads", kept)
    data = {new_name(): bytes([65 + size]) * size for size in (4, 5, 6, 11)}
    for name, content in data.items():
        files.write(name, content)
        assert verified(files, name, len(content), zlib.crc32(content)).to_pybytes() == content
    four, five, six, eleven = ((files.place, name, len(c), zlib.crc32(c)) for name, c in data.items())
    assert [kept.get(name) is not None for name in (four, five, six, eleven)] == [False, False, files.remote, False]
    kept.put(four, pa.py_buffer(b"1234"))
    kept.put(four, pa.py_buffer(b"1234"))
    assert [kept.get(name) is not None for name in (six, four)] == [files.remote, True]
    kept.put(five, pa.py_buffer(b"12345"))
    assert [kept.get(name) is not None for name in (six, four, five)] == [False, True, True]
