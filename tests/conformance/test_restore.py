"""Catalogs that were lost come back from exports and from what was shipped; damage and live catalogs are refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from catalog_makers import KINDS, empty, server_of
from epochlog.store.backup import catalog_restore, incremental
from epochlog.store.backup.incremental import chain_of, ship
from epochlog.store.catalog import export_format
from epochlog.store.catalog.export_format import MAGIC, decode_dump, encode_dump, shipped_files
from epochlog.store.catalog.redis import catalog as redis_catalog
from epochlog.store.catalog.redis.catalog import RedisCatalog
from epochlog.store.env.local_folder import LocalFiles
from redis_server import RedisProcess
from s3_server import S3Server
from stores import watch

pytestmark = pytest.mark.redis
SCHEMA = pa.schema([pa.field("id", pa.int64())])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    yield from server_of(tmp_path / "redis")


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": list(numbers)})


def dumps(root: Path) -> list[Path]:
    return sorted(root.rglob("*.dump"))


def catalog_of(store: el.Store) -> RedisCatalog:
    catalog = store._handle.catalog
    assert isinstance(catalog, RedisCatalog)
    return catalog


def records_of(store: el.Store) -> dict[bytes, bytes | None]:
    changes = catalog_of(store).changes_since(0, without_deletions=True)
    assert changes is not None
    return changes.records


def lose(kind: str, root: Path, server: RedisProcess) -> None:
    if kind == "lmdb":
        shutil.rmtree(root / "catalog")
    else:
        empty(server)


# ---- exports -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", KINDS)
@pytest.mark.parametrize("before", KINDS)
def test_an_export_brings_back_everything_up_to_it_into_either_kind(
    tmp_path: Path, server: RedisProcess, before: str, after: str
) -> None:
    root, url = tmp_path / "s", {"lmdb": None, "redis": server.url()}
    with el.open(root, url[before]) as store:
        for name in ("a", "b"):
            store.create_table(name, SCHEMA, ["id"])
        for n in range(5):
            store.table("a").upsert(rows(n), txn=("app", n))
        store.table("b").upsert(rows(1, 2, 3))
        store.compact("a", full=True)
        export = store.export_catalog(tmp_path / "out" / "x.dump")
        rows_exported = store.table("a").to_arrow()
        tables = {info.name: info.max_committed_epoch for info in store.tables()}
        assert export.last_epoch == store.last_epoch
        store.table("a").upsert(rows(99))
        with pytest.raises(el.InvalidInput, match="already"):
            store.export_catalog(tmp_path / "out" / "x.dump")
    lose(before, root, server)
    if (before, after) == ("redis", "lmdb"):
        with pytest.raises(el.InvalidInput, match="leave_redis=True"):
            el.restore_catalog(root, tmp_path / "out" / "x.dump")
        report = el.restore_catalog(root, tmp_path / "out" / "x.dump", leave_redis=True)
    else:
        report = el.restore_catalog(root, tmp_path / "out" / "x.dump", catalog=url[after])
    assert (report.version, report.last_epoch, report.at_ms) == (export.version, export.last_epoch, export.at_ms)
    assert (report.store_id, report.tables) == (export.store_id, tables)
    with el.open(root, url[after], create=False) as store:
        assert store.table("a").to_arrow() == rows_exported
        assert store.resolve(("app", 4)) is not None
        assert store.table("a").upsert(rows(100)) > report.last_epoch
        assert store.verify().ok
    with pytest.raises(el.CatalogInUse):
        el.restore_catalog(root, tmp_path / "out" / "x.dump", catalog=url[after])
    watch.forget()  # it may have been opened with the other kind before
    assert not el.open(root, url[after]).close()


def test_an_export_goes_to_an_object_store_and_back(tmp_path: Path, s3: S3Server) -> None:
    uri = s3.uri(f"{s3.new_bucket()}/backup/x.dump")
    with el.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
        store.export_catalog(uri)
        with pytest.raises(el.InvalidInput, match="already") as caught:
            store.export_catalog(uri)
        assert "not/so+secret" not in str(caught.value)
    shutil.rmtree(tmp_path / "s" / "catalog")
    el.restore_catalog(tmp_path / "s", uri)
    with el.open(tmp_path / "s") as store:
        assert store.table("t").count() == 1


@pytest.mark.parametrize("uri", ["", 7, None, "s3://bucket/", "file:///"])
def test_a_name_that_is_no_files_is_refused(tmp_path: Path, uri: object) -> None:
    with el.open(tmp_path / "s") as store, pytest.raises(el.InvalidInput):
        store.export_catalog(uri)


def test_an_export_of_another_store_or_none_is_refused(tmp_path: Path) -> None:
    for name in ("s", "other"):
        with el.open(tmp_path / name) as store:
            store.create_table("t", SCHEMA, ["id"])
            store.export_catalog(tmp_path / f"{name}.dump")
    shutil.rmtree(tmp_path / "s" / "catalog")
    with pytest.raises(el.InvalidInput, match="the export is of store"):
        el.restore_catalog(tmp_path / "s", tmp_path / "other.dump")
    with pytest.raises(el.InvalidInput, match="does not exist"):
        el.restore_catalog(tmp_path / "s", tmp_path / "none.dump")
    with pytest.raises(el.StoreNotFound):
        el.restore_catalog(tmp_path / "s")
    el.restore_catalog(tmp_path / "s", tmp_path / "s.dump")


def test_a_lost_marker_comes_back_with_the_catalog(tmp_path: Path) -> None:
    with el.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
        store.export_catalog(tmp_path / "x.dump")
    shutil.rmtree(tmp_path / "s" / "catalog")
    (tmp_path / "s" / "epochlog.json").unlink()
    el.restore_catalog(tmp_path / "s", tmp_path / "x.dump")
    with el.open(tmp_path / "s", create=False) as store:
        assert store.table("t").count() == 1


# ---- shipping ----------------------------------------------------------------------------------------------------


def test_a_vacuum_that_finds_nothing_to_delete_ships_too(tmp_path: Path, server: RedisProcess) -> None:
    with el.open(tmp_path / "s", catalog=server.url()) as store:
        epoch = store.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
        assert store.vacuum(dry_run=True).deleted == () and not dumps(tmp_path / "s")
        assert store.vacuum().deleted == ()
    empty(server)
    assert el.restore_catalog(tmp_path / "s", catalog=server.url()).tables == {"t": epoch}


def test_what_was_shipped_comes_back_and_says_up_to_where(tmp_path: Path, server: RedisProcess) -> None:
    root = tmp_path / "s"
    with el.open(root, server.url()) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        for n in range(4):
            table.upsert(rows(n))
            ship(store._handle)
        shipped, expected = store.last_epoch, table.to_arrow()
        assert ship(store._handle) is None
        table.upsert(rows(99))
    empty(server)
    report = el.restore_catalog(root, catalog=server.url())
    assert report.last_epoch == report.tables["t"] == shipped
    with el.open(root, server.url()) as store:
        assert store.table("t").to_arrow() == expected
        assert store.verify().ok
        store.table("t").upsert(rows(100))
        ship(store._handle)
    empty(server)
    el.restore_catalog(root, catalog=server.url())  # of the new generation
    with el.open(root, server.url()) as store:
        assert store.table("t").count() == 5


def test_a_remote_root_comes_back_too(server: RedisProcess, s3: S3Server) -> None:
    root = s3.uri(f"{s3.new_bucket()}/lake")
    with el.open(root, server.url()) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
        ship(store._handle)
        store.table("t").upsert(rows(2))
        ship(store._handle)
    empty(server)
    with pytest.raises(el.CatalogLost):
        el.open(root, server.url())
    el.restore_catalog(root, catalog=server.url())
    with el.open(root, server.url(), create=False) as store:
        assert store.table("t").count() == 2
    with pytest.raises(el.InvalidInput, match="catalog="):
        el.restore_catalog(root)


def test_every_shipped_file_leads_to_the_state_of_its_moment(
    tmp_path: Path, server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when deltas outgrow their base, and what they left behind is gone."""
    monkeypatch.setattr(incremental, "SMALL_BYTES", 4_000)
    root, bases = tmp_path / "s", 0
    with el.open(root, server.url(), durability="os") as store:
        handle = store._handle
        for n in range(40):
            if n % 5 == 0:
                store.create_table(f"t{n}", SCHEMA, ["id"])
            store.table(f"t{n // 5 * 5}").upsert(rows(n))
            if n % 7 == 6:
                store.drop_table(f"t{(n // 5 - 1) * 5}")
            made = ship(handle)
            assert made is not None
            bases += made.since == 0
            chain = chain_of(shipped_files(handle.files, handle.store_id))
            merged: dict[bytes, bytes] = {}
            for file in chain:
                header, changes = decode_dump(file.path, bytes(handle.files.read(file.path)))
                assert (header.since, header.version) == (file.since, file.version)
                merged = catalog_restore._merge(merged, changes)
            assert merged == records_of(store)
        assert 1 < bases < 20
        assert len(dumps(root)) < 40


def test_two_that_ship_at_once_and_deletions_that_were_let_go_leave_a_whole_chain(
    tmp_path: Path, server: RedisProcess
) -> None:
    root = tmp_path / "s"
    with el.open(root, server.url()) as first, el.open(root, server.url()) as second:
        table = first.create_table("t", SCHEMA, ["id"])
        ship(first._handle)
        table.upsert(rows(1))
        ship(first._handle)
        first.create_table("gone", SCHEMA, ["id"])
        first.drop_table("gone")
        catalog_of(first).forget_deleted(catalog_of(first).version())  # as if another had shipped them
        made = ship(second._handle)
        assert made is not None and made.since == 0
        assert ship(first._handle) is None
        expected = records_of(first)
    empty(server)
    el.restore_catalog(root, catalog=server.url())
    with el.open(root, server.url()) as store:
        assert records_of(store).keys() == expected.keys()


def test_a_file_that_a_crash_left_half_written_is_replaced(tmp_path: Path, server: RedisProcess) -> None:
    root = tmp_path / "s"
    with el.open(root, server.url()) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
        ship(store._handle)
        store.table("t").upsert(rows(2))
        ship(store._handle)
    last = dumps(root)[-1]
    last.write_bytes(last.read_bytes()[:-10])
    with pytest.raises(el.Corrupt, match=last.name):
        empty_and_restore(root, server)
    with el.open(root, server.url()) as store:
        made = ship(store._handle)
        assert made is not None and made.since == 0
        assert [path.name for path in dumps(root)] == [made.path.rsplit("/", 1)[-1]]
    empty(server)
    el.restore_catalog(root, catalog=server.url())
    with el.open(root, server.url()) as store:
        assert store.table("t").count() == 2


def empty_and_restore(root: Path, server: RedisProcess) -> None:
    """The restore of a copy of the data; the server has its own back afterwards."""
    server.kill()
    moved_root = root.parent / "kept"
    shutil.move(server.folder, moved_root)
    server.folder.mkdir()
    server.start()
    try:
        el.restore_catalog(root, catalog=server.url())
    finally:
        server.kill()
        shutil.rmtree(server.folder)
        shutil.move(moved_root, server.folder)
        server.start()


def test_an_embedded_catalog_ships_nothing(tmp_path: Path) -> None:
    with el.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, ["id"])
        assert ship(store._handle) is None


def test_who_has_the_old_catalog_open_ships_nothing_into_the_new_ones_place(
    tmp_path: Path, server: RedisProcess
) -> None:
    root = tmp_path / "s"
    for other in server_of(tmp_path / "other"):
        with el.open(root, server.url()) as old:
            old.create_table("t", SCHEMA, ["id"])
            ship(old._handle)
            el.restore_catalog(root, catalog=other.url())
            before = dumps(root)
            old.create_table("u", SCHEMA, ["id"])
            with pytest.raises(el.CatalogLost):
                ship(old._handle)
            assert dumps(root) == before
        with el.open(root, other.url()) as store:
            assert [info.name for info in store.tables()] == ["t"]
        with pytest.raises(el.CatalogLost):
            el.open(root, server.url())
        with el.open(root, other.url()):
            pass  # the last word for the check at the end of the test


# ---- live and half-restored catalogs ------------------------------------------------------------------------------


def test_a_live_catalog_is_left_alone(tmp_path: Path, server: RedisProcess) -> None:
    root = tmp_path / "s"
    with el.open(root, server.url()) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(rows(1))
        ship(store._handle)
        store.export_catalog(tmp_path / "x.dump")
        store.table("t").upsert(rows(2))
        for uri in (None, tmp_path / "x.dump"):
            with pytest.raises(el.CatalogInUse):
                el.restore_catalog(root, uri, catalog=server.url())
        assert store.table("t").count() == 2
        store.table("t").upsert(rows(3))


def test_a_restore_cut_off_anywhere_is_begun_again(
    tmp_path: Path, server: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each request to the server and each step in the root the process dies; then a second restore goes through."""
    root = tmp_path / "s"
    with el.open(root, server.url()) as store:
        store.create_table("t", SCHEMA, ["id"]).upsert(rows(1, 2))
        ship(store._handle)
        last_epoch = store.last_epoch
    copied_root = tmp_path / "kept"
    shutil.copytree(root, copied_root)
    monkeypatch.setattr(redis_catalog, "_REFILLED_AT_ONCE", 5)
    once, write, delete = redis_catalog.RedisServer.run_once, LocalFiles.write, LocalFiles.delete
    step = 0
    for step in count():
        steps_left = [step]

        def dies(steps_left: list[int] = steps_left) -> None:
            steps_left[0] -= 1
            if steps_left[0] < 0:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(redis_catalog.RedisServer, "run_once", lambda *args: (dies(), once(*args))[1])
            patch.setattr(LocalFiles, "write", lambda *args: (dies(), write(*args))[1])
            patch.setattr(LocalFiles, "delete", lambda *args: (dies(), delete(*args))[1])
            empty(server)
            shutil.rmtree(root)
            shutil.copytree(copied_root, root)
            try:
                el.restore_catalog(root, catalog=server.url())
                restored = True
            except KeyboardInterrupt:
                restored = False
        if restored:
            break
        with suppress(el.CatalogInUse):  # then the catalog is there, and opening writes the marker if that is missing
            assert el.restore_catalog(root, catalog=server.url()).last_epoch == last_epoch
        with el.open(root, server.url()) as store:
            assert store.table("t").count() == 2
            assert store.last_epoch == last_epoch
    assert step > 8


# ---- damage ------------------------------------------------------------------------------------------------------


HEADER = export_format.Header("0" * 32, "1" * 32, 0, 5, 7, 9, 3)
RECORDS: list[tuple[bytes, bytes | None]] = [(b"a", b"x"), (b"b", None), (b"c", b"\0" * 10)]


def test_every_byte_of_a_dump_counts() -> None:
    data = encode_dump(HEADER, RECORDS)
    header, records = decode_dump("f", data)
    assert (header, list(records)) == (HEADER, RECORDS)
    for length in range(len(data)):
        with pytest.raises(el.Corrupt, match="f"):
            list(decode_dump("f", data[:length])[1])
    for at in range(len(data)):
        with pytest.raises(el.Corrupt, match="f"):
            list(decode_dump("f", data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])[1])
    with pytest.raises(el.Corrupt):
        list(decode_dump("f", data + b"\0")[1])


def sealed(body: bytes) -> bytes:
    import hashlib

    return MAGIC + hashlib.sha256(body).digest() + body


@pytest.mark.parametrize("items", [
    [], [7], [{}], [[1]], [{"format": 1}], ["x"], [{"format": "1"}],
    [{**{n: getattr(HEADER, n) for n in HEADER.__slots__}, "store_id": "../../x"}],
    [{**{n: getattr(HEADER, n) for n in HEADER.__slots__}, "version": -1}],
    [{**{n: getattr(HEADER, n) for n in HEADER.__slots__}, "more": 1}],
    [{n: getattr(HEADER, n) for n in HEADER.__slots__}, [b"a", b"b"]],
    [{n: getattr(HEADER, n) for n in HEADER.__slots__}, [b"a", 1], [b"b", 1], [b"c", 1]],
    [{n: getattr(HEADER, n) for n in HEADER.__slots__}, [b"a"], [b"b"], [b"c"]],
    [{n: getattr(HEADER, n) for n in HEADER.__slots__}, *[[b"a", None]] * 4],
])  # fmt: skip
def test_a_dump_that_is_well_sealed_and_makes_no_sense_is_damage(items: list) -> None:
    import msgpack
    import zstandard

    body = b"".join(msgpack.packb(item) for item in items)
    with pytest.raises(el.Corrupt):
        list(decode_dump("f", sealed(zstandard.compress(body)))[1])
    with pytest.raises(el.Corrupt):
        list(decode_dump("f", sealed(body))[1])


def test_a_dump_of_a_newer_format_is_refused() -> None:
    from dataclasses import replace

    with pytest.raises(el.UnsupportedFormat):
        decode_dump("f", encode_dump(replace(HEADER, format=2), []))


def test_a_damaged_record_or_a_missing_file_is_named(tmp_path: Path, server: RedisProcess) -> None:
    root = tmp_path / "s"
    with el.open(root, server.url()) as store:
        store.create_table("t", SCHEMA, ["id"])
        ship(store._handle)
        store.table("t").upsert(rows(1))
        ship(store._handle)
    base, delta = dumps(root)
    content = base.read_bytes()
    header, records = decode_dump("f", content)
    bad = [(key, value and value[:-1] + b"\x7f") for key, value in records]
    base.write_bytes(encode_dump(header, bad))
    with pytest.raises(el.Corrupt, match="cannot be decoded"):
        empty_and_restore(root, server)
    base.write_bytes(delta.read_bytes())
    with pytest.raises(el.Corrupt, match=base.name):
        empty_and_restore(root, server)
    base.write_bytes(encode_dump(header, []))
    with pytest.raises(el.Corrupt):
        empty_and_restore(root, server)
    base.unlink()
    with pytest.raises(el.StoreNotFound):
        empty_and_restore(root, server)
    with el.open(root, server.url()) as store:
        assert store.table("t").count() == 1


def test_a_root_without_the_stores_files_is_refused(tmp_path: Path) -> None:
    with el.open(tmp_path / "s") as store:
        store.create_table("t", pa.schema([("id", pa.int64())]), ["id"]).upsert(pa.table({"id": [1]}))
        store.export_catalog(tmp_path / "x.dump")
    with pytest.raises(el.InvalidInput, match="has no file of store"):
        el.restore_catalog(tmp_path / "mistyped", tmp_path / "x.dump")
    assert not (tmp_path / "mistyped").exists() or not list((tmp_path / "mistyped").iterdir())
    with pytest.raises(el.InvalidInput, match="does not exist"):
        el.restore_catalog(tmp_path / "s", tmp_path)


@pytest.mark.logs("backup_damaged")
def test_a_damaged_backup_is_replaced_by_a_full_one(tmp_path: Path, server: RedisProcess) -> None:
    root = tmp_path / "s"
    with el.open(root, server.url()) as store:
        table = store.create_table("t", SCHEMA, ["id"])
        table.upsert(rows(0))
        first = ship(store._handle)
        assert first is not None
        store._handle.intact_backups.clear()
        (root / first.path).write_bytes((root / first.path).read_bytes()[:-3])
        table.upsert(rows(1))
        second = ship(store._handle)
        assert second is not None and second.since == 0
    empty(server)
    el.restore_catalog(root, catalog=server.url())
    with el.open(root, server.url()) as store:
        assert store.table("t").count() == 2
