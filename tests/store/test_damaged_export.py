"""Damaged exports of a catalog: a restore ends with a typed error that says what to do, in bounded memory."""

from __future__ import annotations

import hashlib
import random
import shutil
import tracemalloc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zstandard

import epochlog as el
from epochlog.store.backup import catalog_restore
from epochlog.store.catalog import export_format
from epochlog.store.catalog.export_format import MAGIC, Header, decode_dump, encode_dump
from epochlog.store.catalog.keys import HEAD, RUNS_PREFIX, TABLE_PREFIX, head_key
from epochlog.store.catalog.records import pack, unpack
from lab import Lab, mirror

pytestmark = pytest.mark.local_only
WAY_OUT = "nothing was restored. Restore from another export, from the incremental backups in the root"
Records = dict[bytes, bytes]


@pytest.fixture
def export(tmp_path: Path) -> tuple[Path, Path]:
    """Return a root without its catalog, and the export of it."""
    lab = Lab(tmp_path / "lake")
    with lab.store as store:
        lab.root_table()
        lab.put({1: (1, 1)})
        lab.job("j", ["r"]).step_local(mirror("r", "j_out"))
        store.compact("r", full=True)
        lab.put({2: (1, 1)})
        store.export_catalog(tmp_path / "export")
    shutil.rmtree(tmp_path / "lake" / "catalog")
    return tmp_path / "lake", tmp_path / "export"


def opened(path: Path) -> tuple[Header, Records]:
    header, records = decode_dump(str(path), path.read_bytes())
    return header, {key: value for key, value in records if value is not None}


def without_head(records: Records) -> None:
    table = next(key for key in records if key.startswith(TABLE_PREFIX))
    del records[head_key(unpack(table, records[table])["id"])]


def other_head(records: Records) -> None:
    records[HEAD] = pack(HEAD, {"last_epoch": 1, "more": 2})


def other_runs(records: Records) -> None:
    key = next(key for key in records if key.startswith(RUNS_PREFIX))
    records[key] = pack(key, {"runs": [{"parts": 7}]})


DAMAGES = [without_head, other_head, other_runs]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_records_that_do_not_belong_together_are_damage(
    damage: Callable[[Records], None], export: tuple[Path, Path]
) -> None:
    """A table without its head raised KeyError."""
    check_damage(damage, export)


@pytest.mark.planted
@pytest.mark.damages_store
@pytest.mark.parametrize("planted", ["raw errors", "a table without its head"])
def test_a_restore_of_what_does_not_belong_together_is_found(
    planted: str, export: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if planted == "raw errors":
        monkeypatch.setattr(catalog_restore, "_as_damage", lambda path: nullcontext())
    else:
        monkeypatch.setattr(catalog_restore, "_make_report", report_of_no_table)
    with pytest.raises((pytest.fail.Exception, AssertionError, TypeError, KeyError)):
        check_damage(other_head if planted == "raw errors" else without_head, export)


def report_of_no_table(state: Any) -> el.RestoreReport:
    return el.RestoreReport(state.header.store_id, state.header.version, 0, 0, {})


def check_damage(damage: Callable[[Records], None], export: tuple[Path, Path]) -> None:
    root, path = export
    whole = path.read_bytes()
    header, records = opened(path)
    damage(records)
    path.write_bytes(encode_dump(_counted(header, records), records.items()))
    with pytest.raises(el.Corrupt, match=WAY_OUT):
        el.restore_catalog(root, path)
    assert not (root / "catalog" / "data.mdb").exists()
    path.write_bytes(whole)
    el.restore_catalog(root, path)
    with el.open(root) as store:
        assert store.table("r").to_arrow().num_rows == 2


def _counted(header: Header, records: Records) -> Header:
    return Header(**{**_fields(header), "count": len(records)})


def _fields(header: Header) -> dict[str, Any]:
    return {name: getattr(header, name) for name in Header.__dataclass_fields__}


@pytest.mark.medium
@pytest.mark.damages_store
def test_random_records_end_with_a_typed_error_or_a_store(export: tuple[Path, Path]) -> None:
    root, path = export
    header, whole = opened(path)
    refused = list[el.EpochlogError]()
    for seed in range(60):
        chance, records = random.Random(seed), dict(whole)
        for _ in range(chance.randrange(1, 3)):
            key = chance.choice(sorted(records))
            record = unpack(key, records[key])
            name = chance.choice(sorted(record))
            match chance.randrange(3):
                case 0:
                    del records[key]
                case 1:
                    del record[name]
                    records[key] = pack(key, record)
                case _:
                    record[name] = chance.choice([None, -1, "x", [], {}, [1], 1 << 63, 1.5])
                    records[key] = pack(key, record)
        path.write_bytes(encode_dump(_counted(header, records), records.items()))
        try:
            el.restore_catalog(root, path)
        except el.EpochlogError as error:
            refused.append(error)
        shutil.rmtree(root / "catalog", ignore_errors=True)
    assert len(refused) > 10
    assert all(WAY_OUT in str(error) for error in refused if not isinstance(error, el.UnsupportedFormat))


def claims_an_array() -> bytes:
    return b"\xdd\x3f\xff\xff\xff"  # an array of 2^30 items


def claims_a_map() -> bytes:
    return b"\xdf\x3f\xff\xff\xff"


def grows() -> bytes:
    return b"".join(msgpack.packb([b"k%d" % number, bytes(1 << 20)]) for number in range(200))  # type: ignore[misc]


@pytest.mark.medium
@pytest.mark.damages_store
@pytest.mark.parametrize("body", [claims_an_array, claims_a_map, grows], ids=lambda body: body.__name__)
def test_a_small_file_takes_little_memory(
    body: Callable[[], bytes], export: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five bytes that claim an array took eight gigabytes."""
    monkeypatch.setattr(export_format, "_MOST_DECODED", 8 << 20)
    check_memory(body, export)


@pytest.mark.medium
@pytest.mark.planted
@pytest.mark.damages_store
def test_a_text_that_grows_without_a_bound_is_found(export: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_format, "_MOST_DECODED", 1 << 30)
    with pytest.raises(AssertionError, match="bytes for a file of"):
        check_memory(grows, export)


def check_memory(body: Callable[[], bytes], export: tuple[Path, Path]) -> None:
    root, path = export
    header, _ = opened(path)
    data = zstandard.ZstdCompressor().compress(msgpack.packb(_fields(header)) + body())  # type: ignore[operator]
    path.write_bytes(MAGIC + hashlib.sha256(data).digest() + data)
    tracemalloc.start()
    try:
        with pytest.raises(el.Corrupt, match=WAY_OUT):
            el.restore_catalog(root, path)
        peak, size = tracemalloc.get_traced_memory()[1], path.stat().st_size
        assert peak < 64 << 20, f"{peak:,} bytes for a file of {size:,}"
    finally:
        tracemalloc.stop()
