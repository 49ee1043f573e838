"""Catalog records that no version has written, under a right checksum too: Corrupt, and never half a value."""

from __future__ import annotations

import contextlib
import struct
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_type_hints

import msgpack
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from epochlog.errors import Corrupt, InvalidInput
from epochlog.store.catalog import records
from epochlog.store.catalog.records import Record, as_record, decode, pack, unpack
from epochlog.store.commit.loads import LoadRecord
from epochlog.store.compaction.strategy import CompactionTask
from epochlog.store.metadata import commit_log
from epochlog.store.metadata.definitions import Cursor, JobRecord, Runner, TableDef
from epochlog.store.metadata.step_times import StepTimes
from epochlog.store.metadata.table_options import TableOptions
from epochlog.store.metadata.version import Commit, LabelGroup, LogEntry, TableVersion
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.sorted_run import RunFile, SortedRun
from epochlog.store.types.schema import TableSchema
from lab import Lab, mirror
from message_mutations import places, replaced

pytestmark = pytest.mark.local_only

KEY = b"log/00000001/0000000000000001"
SEGMENT = Segment("a/t/b.arrow", 1, 10, 2, 400, 7, b"a", b"z", {"id": (b"a", b"z")}, None, (b"a", b"m"))
PART = RunFile("a/t/b.parquet", 10, 400, 7, 1, 9, {"id": (1, 9)}, True, (1, 5), 0, 8)
SCHEMA = TableSchema("t", pa.schema([pa.field("id", pa.int64(), nullable=False)]), ("id",))
VALUES: list[Any] = [
    SEGMENT,
    PART,
    SortedRun(0, 9, (PART,), (PART,)),
    LogEntry(9, (LabelGroup(8, (SEGMENT,), (SEGMENT,)),), end=True),
    Commit(9, 1, "upsert", ("app", 4), None, 1, 0, 1, 400, True, (8,)),
    TableVersion(9, 5, 1, None, 0, 0, 1, 400, 1, 400),
    TableOptions(),
    TableDef(1, SCHEMA, "upsert", TableOptions(), None),
    JobRecord(1, "job", (1,), (2,), "snapshot", 1, 1000, barrier=(1, 2, "checkpoint")),
    Runner("step:1", "lease", "1-2-3", "host", 7, 5, "step"),
    LoadRecord("load", (1, 2), 4, finish_tables=True),
    CompactionTask("many", 0, 9, 1, 9, 5, ("x",)),
]


def record_of(value: Any) -> Record:
    """Return what the catalog keeps of a value; a runner is part of its job's record."""
    return asdict(value) if isinstance(value, Runner) else value.to_record()


DECODERS = {type(value): record_of(value) for value in VALUES}
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.sampled_from(["", "x", b"x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["", "path", 1]), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip


def through(record: Record) -> Record:
    return unpack(KEY, pack(KEY, record))


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_every_record_comes_back_as_it_was_written(value: Any) -> None:
    assert type(value).from_record(through(record_of(value))) == value


JOB = JobRecord(
    1, "job", (1,), (2,), "snapshot", 1, 1000, barrier=(1, 2, "checkpoint"), cursor=Cursor(1, b"k"),
    runner=Runner("step:1", "lease", "1-2-3", "host", 7, 5, "step"), former=((3, (1, 2)),),
)  # fmt: skip


@pytest.mark.parametrize("value", [SEGMENT, PART, replace(SEGMENT, stats={"s": ("a", "b")}), JOB])
def test_the_fields_of_a_record_are_those_of_asdict(value: Any) -> None:
    record, copied = as_record(value), asdict(value)
    assert record == copied and list(record) == list(copied)
    assert pack(KEY, record) == pack(KEY, copied)
    shared = [name for name in record if isinstance(record[name], dict | list) and record[name] is getattr(value, name)]
    assert not shared, "a change of the record would change the value"


def test_none_is_forgotten() -> None:
    """Every class of the store that is made of a record stands above."""
    from epochlog.store.commit import loads
    from epochlog.store.compaction import strategy
    from epochlog.store.metadata import definitions, version
    from epochlog.store.sst import segment, sorted_run

    made = [vars(module).values() for module in (definitions, loads, strategy, sorted_run, segment, version)]
    assert {value for names in made for value in names if hasattr(value, "from_record")} == set(DECODERS)


def check_fields_or_typed_error(kind: Any, record: Any) -> None:
    """Check that a decoded record has plain fields of the declared types; typed errors pass."""
    try:
        made = kind.from_record(record)
    except (Corrupt, InvalidInput):
        return
    for name, hint in get_type_hints(kind).items():
        if hint in (int, str, bytes, bool):
            assert type(getattr(made, name)) is hint, f"{kind.__name__}.{name} is {getattr(made, name)!r}"


@given(st.sampled_from(list(DECODERS)), st.data())
def test_one_field_spoilt_anywhere(kind: Any, data: st.DataObject) -> None:
    record = through(DECODERS[kind])
    path = data.draw(st.sampled_from(places(record)[1:]))
    with contextlib.suppress(Corrupt):
        check_fields_or_typed_error(kind, through(replaced(record, path, data.draw(PLAIN))))


@pytest.mark.parametrize("kind", DECODERS, ids=lambda kind: kind.__name__)
def test_a_field_too_many_or_too_few(kind: Any) -> None:
    record = DECODERS[kind]
    for name in record:
        check_fields_or_typed_error(kind, {key: value for key, value in record.items() if key != name})
    check_fields_or_typed_error(kind, {**record, "more": 1})
    for wrong in (None, [], "x", {"nothing of it": {}}):
        with pytest.raises(Corrupt):
            kind.from_record(wrong)


@pytest.mark.parametrize("value", [SEGMENT, PART], ids=["segment", "part"])
def test_a_file_lies_inside_the_root(value: Any) -> None:
    for path in ("../x", "/x", "a/../b", "", "a//b", "a\\b", "a\0b", 5):
        with pytest.raises(Corrupt):
            type(value).from_record({**value.to_record(), "path": path})


@given(st.sampled_from(list(DECODERS)), st.dictionaries(st.sampled_from(["path", "id", "epoch", "rows"]), PLAIN))
def test_random_records(kind: Any, record: Record) -> None:
    check_fields_or_typed_error(kind, record)


@given(st.binary(max_size=60))
def test_random_bytes_under_a_right_checksum(body: bytes) -> None:
    value = struct.pack("<I", zlib.crc32(body, zlib.crc32(KEY))) + body
    with contextlib.suppress(Corrupt):
        assert isinstance(unpack(KEY, value), dict)


DEEP = [b"\x91" * 5_000, b"\x81\xa1x" * 5_000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xc1", b""]


@pytest.mark.parametrize("body", [*DEEP, msgpack.packb([1]), msgpack.packb(msgpack.ExtType(1, b"x"))])
def test_what_is_no_record(body: bytes) -> None:
    with pytest.raises(Corrupt):
        unpack(KEY, struct.pack("<I", zlib.crc32(body, zlib.crc32(KEY))) + body)


# ---- a whole store whose catalog somebody else has written to ----------------------------------------------------


@pytest.mark.damages_store
@pytest.mark.parametrize("path", ["../../outside", "/etc/passwd", "a/../../b", "", "a\0b", 5, None])
def test_no_path_in_the_catalog_leaves_the_root(tmp_path: Path, path: Any) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"of somebody else")
    with el.open(tmp_path / "s", durability="os") as store:
        table = store.create_table("t", pa.schema([pa.field("id", pa.int64())]), ["id"])
        epoch = table.upsert(pa.table({"id": [1]}))
        catalog, key = store._handle.catalog, b"log/%08x/%016x" % (1, epoch)
        entry = catalog.read(lambda view: LogEntry.from_record(view.get(key) or {}).to_record())
        entry["groups"][0][1][0]["path"] = path
        catalog.transact(lambda tx: tx.put(key, entry))
        with pytest.raises((Corrupt, InvalidInput, el.ReadFailed)):
            table.to_arrow()
        assert not store.verify().ok
    assert outside.read_bytes() == b"of somebody else"


# ---- records that were decoded before ----------------------------------------------------------------------------


def test_a_record_that_was_decoded_before_is_the_same_value() -> None:
    packed = pack(b"pace/1", StepTimes("local", (3, 4)).to_record())
    first = StepTimes.from_record(unpack(b"pace/1", packed))
    assert first == StepTimes("local", (3, 4))
    assert StepTimes.from_record(unpack(b"pace/1", packed)) is first
    other = pack(b"pace/1", StepTimes("local", (3, 5)).to_record())
    assert StepTimes.from_record(unpack(b"pace/1", other)) == StepTimes("local", (3, 5))


def test_a_record_without_its_bytes_is_decoded_each_time() -> None:
    record = StepTimes("local", (3, 4)).to_record()
    assert StepTimes.from_record(record) is not StepTimes.from_record(record)


def test_a_record_of_equal_bytes_is_not_unpacked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(b"pace/1", StepTimes("local", (4, 4)).to_record())
    first = decode(StepTimes, b"pace/1", packed)
    monkeypatch.setattr(records, "unpack", None)
    assert decode(StepTimes, b"pace/1", bytes(bytearray(packed))) is first


def test_a_record_that_was_moved_to_another_key_is_found() -> None:
    """Its bytes are known, but the checksum covers the key."""
    packed = pack(b"pace/1", StepTimes("local", (4, 5)).to_record())
    decode(StepTimes, b"pace/1", packed)
    with pytest.raises(Corrupt, match="checksum"):
        decode(StepTimes, b"pace/2", packed)


@pytest.mark.parametrize("place", range(4))
def test_bytes_that_are_damaged_later_are_found(place: int) -> None:
    """The checksum is compared at each read, also of a record that was decoded before."""
    packed = pack(b"pace/1", StepTimes("local", (3, 4)).to_record())
    StepTimes.from_record(unpack(b"pace/1", packed))
    damaged = bytearray(packed)
    damaged[place * len(packed) // 4] ^= 1
    with pytest.raises(Corrupt, match="checksum"):
        unpack(b"pace/1", bytes(damaged))
    with pytest.raises(Corrupt, match="checksum"):
        unpack(b"pace/2", packed)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_that_are_kept_decoded_are_immutable(value: Any) -> None:
    """One caller must not change what another gets."""
    assert type(value).__dataclass_params__.frozen


def check_scans(root: Path) -> None:
    """A replay of a log, also net, a vacuum, `verify` and the history keep few records beside those of steps."""
    lab = Lab(root)
    try:
        lab.root_table("q")
        lab.root_table()
        job = lab.job("j", ["q"])
        for number in range(200):
            lab.put({number: (1, number)})

        def step() -> None:
            lab.put({1: (1, lab.now_ms)}, "q")
            lab.tick()
            assert job.step_local(mirror("q", "j_out")) is not None

        step()
        records.DECODED.clear()
        step()
        kept = len(records.DECODED._entries)
        for scan in (
            lambda: lab.store.table("r").changes(0).read_all(),
            lambda: lab.store.table("r").changes(0, mode="net").read_all(),
            lab.store.vacuum,
            lab.store.verify,
            lab.store.table("r").history,
        ):
            scan()
            assert len(records.DECODED._entries) <= kept + 2 * 64, scan
    finally:
        lab.store.close()


@pytest.mark.medium
def test_scans_of_the_log_leave_what_steps_decode(tmp_path: Path) -> None:
    check_scans(tmp_path / "s")


@pytest.mark.medium
@pytest.mark.planted
def test_a_replay_that_fills_the_cache_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a replay keeps each log entry that it decodes."""
    monkeypatch.setattr(commit_log, "KEPT_ENTRIES", 1 << 40)
    with pytest.raises(AssertionError):
        check_scans(tmp_path / "s")
