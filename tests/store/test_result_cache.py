"""Tests of the result cache: a read puts newer commits on kept rows, and gives what a read of the files gives."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.compaction import rewriter
from epochlog.store.env.memory import available_bytes
from epochlog.store.scan import level_reader, result_cache, scan_plan
from epochlog.store.sst.merge import Rows
from epochlog.store.sst.segment import SegmentReader
from epochlog.store.sst.sorted_run import RunFile, SortedRun, read_part

pytestmark = pytest.mark.local_only
INT, TEXT = (pa.field("id", pa.int64(), False), pa.field("name", pa.string(), False))
KEYS = {"int": [INT], "text": [TEXT], "both": [TEXT, INT]}


@pytest.fixture(autouse=True)
def no_results() -> Iterator[None]:
    result_cache.results.clear()
    before = el.set_result_cache_bytes(result_cache.LIMIT_BYTES)
    yield
    el.set_result_cache_bytes(before)


def some_rows(dice: random.Random, key: list[pa.Field], keys: int, count: int) -> pa.Table:
    numbers = dice.sample(range(keys), count)
    columns = {"id": numbers, "name": [f"n{number}" for number in numbers]}
    values = {field.name: columns[field.name] for field in key}
    schema = pa.schema([*key, ("v", pa.float64()), ("w", pa.string())])
    words = [dice.choice(["x", "y", None]) for _ in numbers]
    return pa.table({**values, "v": [dice.random() for _ in numbers], "w": words}, schema=schema)


def anew(read: Callable[[], pa.Table]) -> pa.Table:
    """Return the answer of a read by the files alone, and leave the cache as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan_plan, "find_result", lambda *_: None)
        patch.setattr(scan_plan, "keep_result", lambda *_: None)
        return read()


@pytest.fixture
def parts_read(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that gets an entry for each file of a run that is read from now on: True for one of history."""
    reads: list[bool] = []

    def counting(files: Any, part: RunFile, *args: Any, **options: Any) -> Rows:
        reads.append(part.history)
        return read_part(files, part, *args, **options)

    monkeypatch.setattr(level_reader, "read_part", counting)
    return reads


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the path of each segment that is decoded from now on."""
    paths: list[str] = []
    read = SegmentReader.read

    def counting(reader: SegmentReader, *args: Any, **options: Any) -> Rows:
        paths.append(reader.segment.path)
        return read(reader, *args, **options)

    monkeypatch.setattr(SegmentReader, "read", counting)
    return paths


def operate(dice: random.Random, store: el.Store, table: el.Table, key: list[pa.Field], epochs: list[int]) -> None:
    """Do one operation that changes the table's rows, schema or files."""
    match dice.randrange(9):
        case 0 if epochs:
            store.compact("t", full=dice.random() < 0.5)
        case 1 if epochs:
            present = table.to_arrow().select([field.name for field in key])
            table.delete(present.take(dice.sample(range(len(present)), len(present) // 3)))
        case 2:
            table.alter(add=[pa.field(f"c{len(epochs)}", pa.int32())])
        case 3 if "w" in table.schema.names and len(epochs) > 9:
            table.alter(rename={"w": "renamed"})
        case 4 if epochs and dice.random() < 0.3:
            table.restore(dice.choice(epochs[-3:]))
        case _:
            rows = some_rows(dice, key, 60, dice.randrange(1, 20))
            if "w" not in table.schema.names:
                rows = rows.rename_columns([*rows.column_names[:-1], "renamed"])
            for field in table.schema:
                if field.name not in rows.column_names:
                    rows = rows.append_column(field, pa.nulls(len(rows), field.type))
            table.upsert(rows)


@pytest.mark.rule("2.12")
@pytest.mark.parametrize("shape", KEYS)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12))])
def test_reads_among_all_operations_give_the_rows_of_the_files(tmp_path: Path, shape: str, seed: int) -> None:
    dice, key = random.Random(f"{shape} {seed}"), KEYS[shape]
    with el.open(tmp_path / "s") as store:
        table = store.create_table("t", some_rows(dice, key, 1, 1).schema, primary_key=[field.name for field in key])
        epochs: list[int] = []
        for step in range(30):
            operate(dice, store, table, key, epochs)
            epochs.append(table.info.max_committed_epoch)
            at = dice.choice([None, None, dice.choice(epochs[-8:])])
            columns = dice.choice([None, None, ["v"], [key[0].name], []])

            def read(at: int | None = at, columns: list[str] | None = columns) -> pa.Table:
                with store.snapshot(consistency=el.Latest() if at is None else el.AsOf(at)) as moment:
                    return moment["t"].to_arrow(columns=columns)

            for got in (read(), read()):
                wanted = anew(read)
                assert got.schema.equals(wanted.schema, check_metadata=True), (shape, seed, step)
                assert got.equals(wanted), (shape, seed, step)
            read(columns=None)


def test_a_read_after_a_commit_decodes_this_commit_alone(tmp_path: Path, decoded: list[str]) -> None:
    dice = random.Random(1)
    with el.open(tmp_path / "s") as store:
        table = store.create_table("t", some_rows(dice, [INT], 1, 1).schema, primary_key=["id"])
        for _ in range(5):
            table.upsert(some_rows(dice, [INT], 60, 20))
        table.to_arrow()
        assert len(decoded) == 5
        decoded.clear()
        table.to_arrow(columns=["w"])
        assert not decoded, "fewer columns come from the kept rows"
        table.upsert(some_rows(dice, [INT], 60, 20))
        table.to_arrow()
        assert len(decoded) == 1
        store.compact("t", full=True)
        decoded.clear()
        table.to_arrow()
        assert not decoded, "a run has all rows"
        table.upsert(some_rows(dice, [INT], 60, 20))
        table.to_arrow()
        assert len(decoded) == 1


def test_an_older_read_does_not_replace_newer_rows(tmp_path: Path, decoded: list[str]) -> None:
    dice = random.Random(2)
    with el.open(tmp_path / "s") as store:
        table = store.create_table("t", some_rows(dice, [INT], 1, 1).schema, primary_key=["id"])
        first = table.upsert(some_rows(dice, [INT], 60, 20))
        table.upsert(some_rows(dice, [INT], 60, 20))
        table.to_arrow()
        with store.snapshot(consistency=el.AsOf(first)) as moment:
            assert len(moment["t"].to_arrow()) == 20
        decoded.clear()
        table.to_arrow()
        assert not decoded


def int_table(store: el.Store, name: str = "t") -> el.Table:
    return store.create_table(name, some_rows(random.Random(0), [INT], 1, 1).schema, primary_key=["id"])


def numbered(numbers: range, v: float) -> pa.Table:
    rows = {"id": numbers, "v": [v] * len(numbers), "w": ["x"] * len(numbers)}
    return pa.table(rows, schema=some_rows(random.Random(0), [INT], 1, 1).schema)


def test_rows_of_past_epochs_are_kept_beside_those_of_the_newest(tmp_path: Path, parts_read: list[bool]) -> None:
    dice = random.Random(6)
    with el.open(tmp_path / "s") as store:
        table = int_table(store)
        first, second = (table.upsert(some_rows(dice, [INT], 60, 40)) for _ in range(2))
        table.upsert(some_rows(dice, [INT], 60, 40))
        wanted = {epoch: table.to_arrow(epoch=epoch) for epoch in (first, second)}
        store.compact("t", full=True)
        present = table.to_arrow()
        for epoch in (first, second):
            parts_read.clear()
            assert table.to_arrow(epoch=epoch).equals(wanted[epoch])
            assert parts_read == [False, True]
        parts_read.clear()
        table.upsert(some_rows(dice, [INT], 60, 5))
        for epoch in (first, second):
            assert table.to_arrow(epoch=epoch).equals(wanted[epoch])
            assert table.to_arrow(epoch=epoch, columns=["w"]).equals(wanted[epoch].select(["w"]))
        assert not table.to_arrow().equals(present)
        assert not parts_read, "all are kept"


def test_reads_with_a_filter_and_scans_do_not_use_kept_rows(tmp_path: Path, parts_read: list[bool]) -> None:
    with el.open(tmp_path / "s") as store:
        table = int_table(store)
        first = table.upsert(numbered(range(9), 1.0))
        table.upsert(numbered(range(3), 2.0))
        store.compact("t", full=True)
        table.to_arrow(epoch=first)
        with store.snapshot(consistency=el.AsOf(first)) as moment:
            for read in (
                lambda: moment["t"].to_arrow(filter=pa.compute.field("v") > 0),
                lambda: moment["t"].scan().read_all(),
            ):
                parts_read.clear()
                assert len(read()) == 9 and parts_read
            parts_read.clear()
            assert len(moment["t"].to_pandas()) == len(moment["t"].to_polars()) == 9 and not parts_read


def test_reads_of_a_clone_put_its_commits_on_kept_rows(tmp_path: Path, parts_read: list[bool]) -> None:
    """Read a clone whose run has later rows too: each read is of the run's past, and of the clone's newest epoch."""
    dice = random.Random(7)
    with el.open(tmp_path / "s") as store:
        table = int_table(store)
        first, _ = (table.upsert(some_rows(dice, [INT], 60, 40)) for _ in range(2))
        store.compact("t", full=True)
        clone = store.clone("t", "c", as_of=first)
        clone.to_arrow()
        assert not result_cache.results._spare
        for _ in range(3):
            clone.upsert(some_rows(dice, [INT], 60, 5))
            table.to_arrow()
            table.to_arrow(epoch=first)
            parts_read.clear()
            read = clone.to_arrow()
            assert not parts_read, "reads of the source leave the rows of the clone"
            assert anew(clone.to_arrow).equals(read)


def branched(store: el.Store) -> tuple[el.Table, el.Table, int]:
    """Return a table, its clone and an epoch: their runs have equal live parts, and other history at that epoch."""
    table = int_table(store)
    table.upsert(numbered(range(10), 0.0))
    store.compact("t", full=True)
    clone = store.clone("t", "c")
    table.upsert(numbered(range(20, 22), 1.0))
    at = clone.upsert(numbered(range(20, 22), 2.0))
    for branch in (table, clone):
        branch.delete(numbered(range(20, 22), 0.0).select(["id"]))
        store.compact(branch.name, full=True)
    return table, clone, at


def values_at(table: el.Table, at: int | None = None) -> list[float]:
    return table.to_arrow(epoch=at)["v"].to_pylist()


def check_a_table_and_its_clone(folder: Path) -> None:
    with el.open(folder) as store:
        table, clone, at = branched(store)
        for _ in range(2):
            assert values_at(table, at) == [0.0] * 10 + [1.0] * 2, "rows of the table"
            assert values_at(clone, at) == [0.0] * 10 + [2.0] * 2, "rows of the clone"
            with store.snapshot(["t", "c"], consistency=el.AsOf(at)) as moment:
                assert [moment[name].to_arrow()["v"].to_pylist()[-1] for name in ("t", "c")] == [1.0, 2.0]
            assert values_at(table) == values_at(clone) == [0.0] * 10


def check_clones_of_one_name(folder: Path) -> None:
    """Read the clone of a table, then one of its clone: they have one name, equal live parts and one epoch."""
    with el.open(folder) as store:
        table, clone, at = branched(store)
        for source, last in ((table, 1.0), (clone, 2.0)):
            assert values_at(store.clone(source.name, "d", as_of=at)) == [0.0] * 10 + [last] * 2, "rows of the clone"
            store.drop_table("d")


def test_a_table_and_its_clone_have_their_own_past_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = set[result_cache.ResultKey]()
    real = scan_plan.result_key

    def noting(*args: Any) -> result_cache.ResultKey | None:
        key = real(*args)
        if key is not None:
            keys.add(key)
        return key

    monkeypatch.setattr(scan_plan, "result_key", noting)
    check_a_table_and_its_clone(tmp_path / "s")
    past = {key.table: key.runs[0] for key in keys if key.spare}
    assert past["t"].files[0] == past["c"].files[0] and past["t"].files[1] != past["c"].files[1]
    check_clones_of_one_name(tmp_path / "d")


def without_history(run: SortedRun, epoch: int) -> result_cache.RunRows:
    files = tuple((part.path, part.bytes, part.crc32) for part in run.parts)
    return result_cache.RunRows(run.past_epoch(epoch), files)


def without_epoch(run: SortedRun, epoch: int) -> result_cache.RunRows:
    return result_cache.RunRows(None, tuple((file.path, file.bytes, file.crc32) for file in run.files_at(epoch)))


@pytest.mark.planted
def test_a_key_without_history_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bug: of a run, the key has the epoch and the live parts only."""
    monkeypatch.setattr(result_cache, "_rows_of", without_history)
    with pytest.raises(AssertionError, match="rows of the clone"):
        check_clones_of_one_name(tmp_path / "s")


@pytest.mark.planted
def test_a_key_without_history_and_name_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bug that was once made: the key has neither the history nor the table's name."""
    real = scan_plan.result_key

    def nameless(*args: Any) -> result_cache.ResultKey | None:
        key = real(*args)
        return None if key is None else key._replace(table="")

    monkeypatch.setattr(scan_plan, "result_key", nameless)
    check_a_table_and_its_clone(tmp_path / "right")
    monkeypatch.setattr(result_cache, "_rows_of", without_history)
    with pytest.raises(AssertionError, match="rows of the clone"):
        check_a_table_and_its_clone(tmp_path / "wrong")


@pytest.mark.planted
@pytest.mark.parametrize("shape", ["int", "both"])
def test_a_key_without_the_epoch_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    """Plant a bug: of a run, the key has the files only."""
    monkeypatch.setattr(result_cache, "_rows_of", without_epoch)
    with pytest.raises(AssertionError, match=f"'{shape}', 0, "):
        test_reads_of_a_table_and_clones_give_the_rows_of_the_files(tmp_path, monkeypatch, shape, 0)


def test_past_rows_leave_the_newest_ones_in_the_cache(tmp_path: Path, parts_read: list[bool]) -> None:
    with el.open(tmp_path / "s") as store:
        table, other = int_table(store), int_table(store, "o")
        epochs = [table.upsert(numbered(range(1000), float(step))) for step in range(4)]
        other.upsert(numbered(range(1000), 0.0))
        store.compact(full=True)
        table.to_arrow()
        size = result_cache.results.bytes
        el.set_result_cache_bytes(size * 5 // 2)
        for epoch in epochs[:3]:
            table.to_arrow(epoch=epoch)
        parts_read.clear()
        assert values_at(table, epochs[2])[0] == 2.0 and values_at(table)[0] == 3.0 and not parts_read
        assert result_cache.results.bytes == 2 * size, "of the past, one result has room"
        other.to_arrow()
        table.to_arrow(epoch=epochs[0])
        parts_read.clear()
        assert values_at(table)[0] == 3.0 and values_at(other)[0] == 0.0 and not parts_read
        assert values_at(table, epochs[2])[0] == 2.0 and parts_read
        assert result_cache.results.bytes == 2 * size


def change(dice: random.Random, store: el.Store, key: list[pa.Field], epochs: list[int]) -> None:
    """Do one operation on one of the tables of a store: most write a band of keys, so that parts of runs are kept."""
    names = [table.name for table in store.tables()]
    table = store.table(dice.choice(names))
    match dice.randrange(11):
        case 0 | 1 | 2:
            store.compact(table.name, full=True)
        case 3:
            rows = table.to_arrow().select([field.name for field in key])
            table.delete(rows.slice(dice.randrange(len(rows) + 1), 9))
        case 4:
            table.alter(add=[pa.field(f"c{len(epochs)}", pa.int32())])
        case 5:
            source = dice.choice(names)
            if "c" in names and source != "c":
                store.drop_table("c")
            if source != "c":
                store.clone(source, "c", as_of=dice.choice([None, *epochs[-6:]]))
        case 6:
            store.vacuum(grace=0)
        case _:
            low, band = dice.choice([0, 0, 20, 40]), some_rows(dice, key, 20, dice.randrange(1, 20))
            if "id" in band.column_names:
                band = band.set_column(band.schema.get_field_index("id"), INT, pa.compute.add(band["id"], low))
            for field in table.schema:
                if field.name not in band.column_names:
                    band = band.append_column(field, pa.nulls(len(band), field.type))
            table.upsert(band.select(table.schema.names))
    epochs.append(store.last_epoch)


@pytest.mark.rule("2.12")
@pytest.mark.parametrize("shape", ["int", "both"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12))])
def test_reads_of_a_table_and_clones_give_the_rows_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, seed: int
) -> None:
    monkeypatch.setattr(rewriter, "PART_ROWS", 10)
    dice, key = random.Random(f"{shape} {seed}"), KEYS[shape]
    past_reads = 0
    with el.open(tmp_path / "s", durability="os") as store:
        schema = some_rows(dice, key, 1, 1).schema
        for name in ("t", "s"):
            store.create_table(name, schema, primary_key=[field.name for field in key])
            store.table(name).upsert(some_rows(dice, key, 60, 40))
        epochs = [store.last_epoch]
        for step in range(40):
            change(dice, store, key, epochs)
            for table in [store.table(info.name) for info in store.tables()]:
                for at in (None, *dice.sample(epochs[-12:], 2)):
                    try:
                        got = [table.to_arrow(epoch=at) for _ in range(2)]
                    except (el.EpochExpired, el.EpochNotCommitted):
                        continue
                    wanted = anew(lambda table=table, at=at: table.to_arrow(epoch=at))
                    for rows in got:
                        assert rows.schema.equals(wanted.schema, check_metadata=True), (shape, seed, step)
                        assert rows.equals(wanted), (shape, seed, step)
                    past_reads += at is not None
        assert past_reads > 40 and result_cache.results._spare


def test_without_a_bound_nothing_is_kept(tmp_path: Path, decoded: list[str]) -> None:
    dice = random.Random(3)
    with el.open(tmp_path / "s") as store:
        table = store.create_table("t", some_rows(dice, [INT], 1, 1).schema, primary_key=["id"])
        table.upsert(some_rows(dice, [INT], 60, 20))
        before = el.set_result_cache_bytes(0)
        try:
            for _ in range(2):
                table.to_arrow()
            assert len(decoded) == 2
        finally:
            assert el.set_result_cache_bytes(before) == 0
        with pytest.raises(el.InvalidInput, match="bytes"):
            el.set_result_cache_bytes(-1)


def test_nothing_is_kept_when_memory_is_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(5)
    with el.open(tmp_path / "s") as store:
        table = store.create_table("t", some_rows(dice, [INT], 1, 1).schema, primary_key=["id"])
        table.upsert(some_rows(dice, [INT], 60, 20))
        table.to_arrow()
        assert result_cache.results.bytes > 0
        table.upsert(some_rows(dice, [INT], 60, 20))
        monkeypatch.setattr(result_cache, "SMALL_BYTES", 0)
        monkeypatch.setattr(result_cache, "available_bytes", lambda: result_cache.RESERVE_BYTES - 1)
        table.to_arrow()
        assert result_cache.results.bytes == 0


def test_the_memory_that_is_available(tmp_path: Path) -> None:
    meminfo, group = tmp_path / "meminfo", tmp_path / "group"
    assert available_bytes(meminfo, group) is None
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:   2000 kB\n")
    assert available_bytes(meminfo, group) == 2_048_000
    group.mkdir()
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("5000\n")
    assert available_bytes(meminfo, group) == 2_048_000
    (group / "memory.max").write_text("8000\n")
    assert available_bytes(meminfo, group) == 3000
    here = available_bytes()
    assert here is not None and here > 1 << 20


def test_a_forked_child_reads_by_itself(tmp_path: Path) -> None:
    dice = random.Random(4)
    with el.open(tmp_path / "s") as store:
        table = store.create_table("t", some_rows(dice, [INT], 1, 1).schema, primary_key=["id"])
        table.upsert(some_rows(dice, [INT], 60, 20))
        table.to_arrow()
        pid = os.fork()
        if not pid:
            os._exit(0 if result_cache.results.bytes == 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert result_cache.results.bytes > 0
