"""Places that permit only reads: each is opened and read, and a plain open says how."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import epochlog as el
import plain_flight as plain
from epochlog.__main__ import main
from epochlog.spark.batch_source import make_reader, resolve_load
from mounts import APART, can_mount
from redis_server import PASSWORD
from s3_server import S3Server
from stores import servers

TESTS = Path(__file__).resolve().parents[1]
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
ROWS = pa.table({"id": [1, 2], "v": [10, 20]}, schema=SCHEMA)
WHAT_HELPS = r"holds what a store reads that is opened read-only.*tag the epochs where the store may be written"
EPOCHS_THAT_STAY = r"tag the epochs where the store may be written.*TableOptions\(history_retention=…\)"
READER = ("+@read", "+ping", "+select", "+eval", "+evalsha", "+time")


def run(place: str, before: list[str]) -> None:
    """In a process apart, whose mounts end with it; in a folder that other users may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        command = [*before, sys.executable, "-m", "store.read_only_place", folder, place]
        ended = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
        subprocess.run(["chmod", "-R", "u+w", folder], check=True)
        assert ended.returncode == 0, ended.stderr


NOT_MINE = "user" if os.geteuid() == 0 else "rights"
"""Root may write where the rights of files forbid it, so it becomes another user."""


@pytest.mark.medium
@pytest.mark.local_only
@pytest.mark.rule("1.70")
@pytest.mark.rule("1.74")
def test_another_user_who_may_only_read() -> None:
    run(NOT_MINE, [])


@pytest.mark.medium
@pytest.mark.local_only
@pytest.mark.rule("1.70")
@pytest.mark.rule("1.74")
def test_a_read_only_mount() -> None:
    """Rights of the folders stand in for the mount where nothing can be mounted."""
    run(*("mount", APART) if can_mount() else (NOT_MINE, []))


@pytest.mark.medium
@pytest.mark.local_only
@pytest.mark.rule("1.70")
def test_a_full_disk() -> None:
    """Rights stand in where nothing can be mounted: a read that wrote one byte would fail there too."""
    run(*("full", APART) if can_mount() else (NOT_MINE, []))


@pytest.mark.redis
@pytest.mark.local_only
@pytest.mark.rule("1.70")
@pytest.mark.rule("1.74")
def test_a_user_of_redis_who_may_only_read(tmp_path: Path) -> None:
    server = servers.redis
    with el.open(tmp_path / "s", server.url()) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(ROWS)
        server.client().execute_command(
            "ACL", "SETUSER", "reader", "on", f">{PASSWORD}", "~epochlog:*", "-@all", *READER
        )
        _require_reads(str(tmp_path / "s"), server.url("reader"))
        server.client().execute_command("ACL", "SETUSER", "reader", "+config|get")  # the check of each plain open
        with el.open(tmp_path / "s", server.url("reader")) as plain:
            for write in (plain.checkpoint, plain.snapshot):
                with pytest.raises(el.CatalogUnavailable, match="read_only=True"):
                    write()


@pytest.mark.redis
@pytest.mark.local_only
@pytest.mark.rule("1.70")
@pytest.mark.rule("1.74")
def test_credentials_of_s3_that_may_only_read(s3: S3Server) -> None:
    """The server answers 403 to each request that writes, and counts none while the store is opened read-only."""
    root, url = s3.uri(f"{s3.new_bucket()}/lake"), servers.redis.url()
    with el.open(root, url) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(ROWS)
        files = store._handle.files
        written = files.list()[-1].path
        s3.refuse_writes(True)
        try:
            s3.requests()
            _require_reads(root, url)
            assert {request.split()[0] for request in s3.requests()} <= {"GET", "HEAD"}
            for write in (lambda: table.upsert(ROWS), lambda: store.compact(full=True), lambda: files.delete(written)):
                with pytest.raises(el.WriteFailed, match="ACCESS_DENIED.*read_only=True"):
                    write()
        finally:
            s3.refuse_writes(False)


def _require_reads(root: str, url: str) -> None:
    with el.open(root, url, read_only=True) as reader:
        with reader.snapshot() as snapshot:
            assert snapshot["t"].to_arrow().num_rows == 2
        assert reader.table("t").count() == 2
        assert sum(batch.num_rows for batch in reader.table("t").changes(0)) == 2
        assert reader.verify().ok
        for write in (lambda: reader.table("t").upsert(ROWS), reader.checkpoint, reader.vacuum, reader.compact):
            with pytest.raises(el.StoreReadOnly):
                write()


@pytest.mark.rule("1.72")
@pytest.mark.local_only
def test_a_vacuum_elsewhere_ends_a_snapshot_and_takes_no_row(tmp_path: Path) -> None:
    """A reader without holds gets all rows of its epoch, or a typed error."""
    clock = [1_767_225_600_000]
    with el.open(tmp_path / "s", clock=lambda: clock[0]) as store:
        options = el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0))
        table = store.create_table("t", SCHEMA, ["id"], options=options)
        for number in range(4):
            table.upsert(pa.table({"id": [number], "v": [number]}, schema=SCHEMA))
        store.checkpoint()
        with el.open(tmp_path / "s", store._handle.catalog_url, read_only=True, clock=lambda: clock[0]) as reader:
            snapshot, log = reader.snapshot(["t"]), el.UpstreamLog(reader, ["t"], after=0)
            first = log.poll(0.0)
            assert isinstance(first, el.Chunk)
            clock[0] += 3_600_000
            table.upsert(pa.table({"id": [9], "v": [9]}, schema=SCHEMA))
            store.compact("t", full=True)
            for _ in range(2):
                clock[0] += 3_600_000
                store.vacuum(grace=0)
            with pytest.raises((el.SnapshotExpired, el.EpochExpired), match=WHAT_HELPS):
                snapshot["t"].to_arrow()
            with pytest.raises((el.LogTruncated, el.SnapshotExpired)):
                list(iter(lambda: log.poll(0.0), None))
            assert reader.table("t").count() == 5
            log.close()
            snapshot.close()


@pytest.mark.rule("1.72")
@pytest.mark.local_only
def test_the_advice_of_an_ended_read_helps_there(tmp_path: Path) -> None:
    """Each door names a tag of a process that may write, and the reader reads it after a vacuum."""
    clock = [1_767_225_600_000]
    with el.open(tmp_path / "s", clock=lambda: clock[0]) as store:
        options = el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(0))
        table = store.create_table("t", SCHEMA, ["id"], options=options)

        def replace_all() -> None:
            table.upsert(pa.table({"id": [1], "v": [clock[0] % 1000]}, schema=SCHEMA))
            store.compact("t", full=True)
            for _ in range(2):
                clock[0] += 3_600_001
                store.vacuum(grace=0)

        replace_all()
        with el.open(tmp_path / "s", read_only=True, clock=lambda: clock[0]) as reader:
            snapshot, dataset = reader.snapshot(["t"]), reader.table("t").dataset()
            load = resolve_load({"path": str(tmp_path / "s"), "table": "t", "readOnly": "true"})
            spark = make_reader(load, load.spark_schema(), {})
            tasks = spark.partitions()
            doors: dict[str, Callable[[], object]] = {
                "to_arrow": snapshot["t"].to_arrow,
                "scan": lambda: list(snapshot["t"].scan()),
                "get": lambda: snapshot["t"].get([1]),
                "pandas": snapshot["t"].to_pandas,
                "dataset": dataset.to_table,
                "spark": lambda: [batch for task in tasks for batch in spark.read(task)],
            }
            replace_all()
            for name, door in doors.items():
                with pytest.raises(el.SnapshotExpired, match=WHAT_HELPS) as ended:
                    door()
                assert "keep a snapshot" not in str(ended.value), name
            store.tag("kept", ["t"])
            before = store.table("t").to_arrow()
            replace_all()
            with reader.snapshot(tag="kept") as kept:
                assert kept["t"].to_arrow() == before != reader.table("t").to_arrow()
            snapshot.close()


@pytest.mark.medium
@pytest.mark.rule("1.72")
@pytest.mark.rule("2.6")
@pytest.mark.local_only
def test_the_advice_of_an_expired_epoch_helps_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each door names a readable epoch, and a tag of a process that may write: the door reads both."""
    clock, root = [1_767_225_600_000], str(tmp_path / "s")

    def by_format(**options: str) -> list[object]:
        load = resolve_load({"path": root, "table": "t", "readOnly": "true", **options})
        reader = make_reader(load, load.spark_schema(), {})
        return [batch for task in reader.partitions() for batch in reader.read(task)]

    def by_command(command: str, *options: str) -> None:
        if main([command, "--read-only", root, "t", *options]):
            raise el.EpochExpired(capsys.readouterr().err)

    def close(snapshot: el.PinnedSnapshot) -> None:
        with snapshot:
            snapshot["t"].to_arrow()

    with el.open(root, clock=lambda: clock[0]) as store:
        options = el.TableOptions(history_retention=timedelta(0), log_retention=timedelta(days=9))
        table = store.create_table("t", SCHEMA, ["id"], options=options)

        def replace_all() -> int:
            """Replace the row, release the history before that, and return the epoch of the snapshot that preceded."""
            with store.snapshot(["t"]) as snapshot:
                token = snapshot.token
                epoch = snapshot.epochs["t"]
            tokens[epoch] = token
            for _ in range(2):
                clock[0] += 3_600_001
                table.upsert(pa.table({"id": [1], "v": [clock[0] % 1000]}, schema=SCHEMA))
                store.checkpoint()
            store.compact("t", full=True)
            for _ in range(2):
                clock[0] += 3_600_001
                store.vacuum(grace=0)
            return epoch

        tokens: dict[int, str] = {}
        replace_all()
        expired = replace_all()
        with (
            el.open(root, read_only=True, clock=lambda: clock[0]) as reader,
            el.serve(reader) as server,
            el.connect(server.location) as remote,
            plain.connected(server.location) as (client, _),
        ):
            t = reader.table("t")
            doors: dict[str, Callable[[int], object]] = {
                "to_arrow": lambda epoch: t.to_arrow(epoch=epoch),
                "get": lambda epoch: t.get([1], epoch=epoch),
                "count": t.count,
                "dataset": lambda epoch: t.dataset(epoch=epoch).to_table(),
                "as_of": lambda epoch: close(reader.snapshot(["t"], consistency=el.AsOf(epoch))),
                "exact": lambda epoch: close(reader.snapshot(["t"], consistency=el.Exact({"t": epoch}))),
                "changes": lambda epoch: t.changes(epoch, pre_images=True).read_all(),
                "log": lambda epoch: el.UpstreamLog(reader, ["t"], after=epoch, pre_images=True).close(),
                "flight": lambda epoch: plain.read(client, plain.command(read="t", epoch=epoch)),
                "remote": lambda epoch: remote.snapshot("t", epoch=epoch).read_all(),
                "remote as_of": lambda epoch: remote.snapshot("t", consistency="as_of", epoch=epoch).read_all(),
                "remote changes": lambda epoch: remote.changes("t", epoch, pre_images=True).read_all(),
                "spark": lambda epoch: by_format(versionAsOf=str(epoch)),
                "spark changes": lambda epoch: by_format(
                    readChangeFeed="true", startingVersion=str(epoch + 1), preImages="true"
                ),
                "read": lambda epoch: by_command("read", "--epoch", str(epoch)),
                "read exact": lambda epoch: by_command("read", "--consistency", "exact", "--epoch", str(epoch)),
                "command changes": lambda epoch: by_command("changes", "--after", str(epoch), "--pre-images"),
            }
            for name, door in doors.items():
                with pytest.raises((el.EpochExpired, flight.FlightError), match=EPOCHS_THAT_STAY) as ended:
                    door(expired)
                if "changes" in name or name == "log":
                    assert re.search("[Uu]se pre_images=False|Read without them", str(ended.value))
                    assert sum(rows.num_rows for rows in t.changes(expired)) > 0
                else:
                    named = re.search(r"(?:Read at|Ask for epoch) (\d+)", str(ended.value))
                    assert named is not None, str(ended.value)
                    door(int(named[1]))
            with pytest.raises(el.EpochExpired, match=EPOCHS_THAT_STAY):
                reader.snapshot(consistency=el.Exact(tokens[expired]))
            store.tag("kept", ["t"])
            before = store.table("t").to_arrow()
            tagged = replace_all()
            with reader.snapshot(tag="kept") as kept:
                assert kept["t"].to_arrow() == before != t.to_arrow()
                assert kept.epochs["t"] == tagged
            for door in doors.values():
                door(tagged)
            with pytest.raises(el.EpochExpired, match=EPOCHS_THAT_STAY):
                t.to_arrow(epoch=tagged + 1)
