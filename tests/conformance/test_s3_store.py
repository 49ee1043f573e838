"""A store whose files lie on S3: what it costs, and what it says while S3 refuses."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import epochlog as el
from s3_server import SECRET, S3Server
from stores import servers

pytestmark = pytest.mark.redis
SCHEMA = pa.schema([pa.field("k", pa.int64())])


@pytest.fixture
def store(s3: S3Server) -> Iterator[el.Store]:
    with el.open(s3.uri(f"{s3.new_bucket()}/lake"), servers.redis.url()) as opened:
        opened.create_table("t", SCHEMA, ["k"])
        yield opened


def rows(*keys: int) -> pa.Table:
    return pa.table({"k": keys}, schema=SCHEMA)


@pytest.mark.medium
def test_requests_of_commits_and_reads(store: el.Store, s3: S3Server) -> None:
    """A commit is one request for each file that it writes; what a reader has seen is not fetched again."""
    table = store.table("t")
    s3.requests()
    for key in (1, 2):
        table.upsert(rows(key))
        assert [request.split()[0] for request in s3.requests()] == ["PUT"]
    for expected in (["HEAD", "GET"] * 2, []):
        assert table.to_arrow().num_rows == 2
        assert sorted(request.split()[0] for request in s3.requests()) == sorted(expected)


@pytest.mark.medium
def test_while_s3_refuses_nothing_lands_and_nothing_is_called_damaged(store: el.Store, s3: S3Server) -> None:
    table = store.table("t")
    first = table.upsert(rows(1))
    s3.ask_for_keys(True)
    try:
        for call in (lambda: table.upsert(rows(2)), lambda: table.delete(rows(1))):
            with pytest.raises(el.WriteFailed, match="INVALID_ACCESS_KEY_ID"):
                call()
        for call in (table.to_arrow, store.verify, lambda: table.get(rows(1))):
            with pytest.raises(el.ReadFailed, match="ACCESS_DENIED|INVALID_ACCESS_KEY_ID"):
                call()
    finally:
        s3.ask_for_keys(False)
    assert table.to_arrow()["k"].to_pylist() == [1]
    assert store.last_epoch == first
    assert table.upsert(rows(2)) > first


def test_no_password_is_shown(store: el.Store, s3: S3Server) -> None:
    table = store.table("t")
    table.upsert(rows(1))
    shown = [repr(store), repr(table), str(store.verify()), str(table.info)]
    with pytest.raises(el.InvalidInput) as caught:
        el.open(s3.uri("bucket/lake"))
    for text in (*shown, str(caught.value)):
        assert SECRET not in text
        assert SECRET.replace("/", "%2F").replace("+", "%2B") not in text
