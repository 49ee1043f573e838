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
from epochlog.store.env.memory import available_bytes
from epochlog.store.scan import result_cache
from epochlog.store.sst.merge import Rows
from epochlog.store.sst.segment import SegmentReader

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
    """Return the answer of a read by the files alone."""
    result_cache.results.clear()
    return read()


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
