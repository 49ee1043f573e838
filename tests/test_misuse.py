"""Ordinary misuse that reviewers found: each call raises a typed error, and no data is lost silently."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import epochlog as el

KV = pa.schema([("k", pa.int64()), ("v", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> el.Table:
    table = el.open(tmp_path / "s", durability="os").create_table("t", KV, ["k"])
    table.upsert(pa.table({"k": [1, 2], "v": ["a", "b"]}))
    return table


def test_a_get_without_columns_has_a_row_for_each_key_found(table: el.Table) -> None:
    keys = pa.table({"k": [2, 7, 1]})
    assert table.get(keys, columns=[]).num_rows == 2
    with el.open(table._handle.root, durability="os") as store, store.snapshot(["t"], consistency="latest") as moment:
        assert moment["t"].get(keys, columns=[]).num_rows == 2


def test_a_context_takes_nothing_once_its_refresh_is_over(tmp_path: Path) -> None:
    contexts: list[Any] = []

    def refresh(ctx: Any) -> None:
        contexts.append(ctx)
        ctx.upsert("o", ctx.table("t"))

    def fails(ctx: Any) -> None:
        contexts.append(ctx)
        raise ArithmeticError

    with el.open(tmp_path / "s", durability="os") as store:
        table = store.create_table("t", KV, ["k"])
        job = store.create_job("j", ["t"], {"o": (KV, ["k"])})
        table.upsert(pa.table({"k": [1], "v": ["a"]}))
        store.checkpoint()
        with pytest.raises(ArithmeticError):
            job.step_local(fails)
        assert job.step_local(refresh) is not None
        for ctx in contexts:
            with pytest.raises(el.InvalidInput, match="'j' at .* is over"):
                ctx.upsert("o", pa.table({"k": [99], "v": ["z"]}))
            with pytest.raises(el.InvalidInput, match="is over"):
                ctx.delete("o", pa.table({"k": [1]}))
        assert store.table("o").count() == 1


@pytest.mark.parametrize("key", [["k"], ["v"]])
def test_a_decimal_that_no_run_could_hold_is_refused_when_the_table_is_made(tmp_path: Path, key: list[str]) -> None:
    schema = pa.schema([("k", pa.int64()), ("v", pa.decimal128(5, -2))])
    with el.open(tmp_path / "s") as store:
        with pytest.raises(el.InvalidSchema, match="table t, column 'v'.*negative scale"):
            store.create_table("t", schema, key)
        assert store.tables() == []


@pytest.mark.parametrize("width", [pa.decimal32(7, 2), pa.decimal64(12, 2), pa.decimal128(20, 2), pa.decimal256(50, 2)])
def test_decimals_of_every_width_are_keys_alone_and_among_others(tmp_path: Path, width: pa.DataType) -> None:
    values = pa.array([5, -3, 0, 12], pa.int8()).cast(pa.decimal128(10, 2)).cast(width)
    with el.open(tmp_path / "s", durability="os") as store:
        single = store.create_table("one", pa.schema([("d", width)]), ["d"])
        two = store.create_table("two", pa.schema([("d", width), ("n", pa.int8())]), ["n", "d"])
        single.upsert(pa.table({"d": values}))
        two.upsert(pa.table({"d": values, "n": pa.array([1, 1, 1, 0], pa.int8())}))
        for _ in range(2):
            assert [int(x) for x in single.to_arrow()["d"].to_pylist()] == [-3, 0, 5, 12]
            assert [int(x) for x in two.to_arrow()["d"].to_pylist()] == [12, -3, 0, 5]
            store.compact(full=True)
        assert store.verify().ok


@pytest.mark.parametrize("column", ["k", "v"])
def test_strings_that_are_not_utf_8_are_refused(tmp_path: Path, column: str) -> None:
    bad = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff"))
    with el.open(tmp_path / "s") as store:
        table = store.create_table("t", pa.schema([("k", pa.string()), ("v", pa.string())]), ["k"])
        data = {"k": pa.array(["a"]), "v": pa.array(["b"]), column: bad}
        with pytest.raises(el.SchemaMismatch, match=f"table t, column '{column}'"):
            table.upsert(pa.table(data))
        assert table.count() == 0
        assert store.verify().unreachable == ()


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.changes(None),
        lambda t: t.changes(0, "now"),
        lambda t: t.next_epoch(None),
        lambda t: t.to_arrow(epoch="now"),
        lambda t: t.count(epoch=1.5),
        lambda t: t.to_arrow(columns={"k"}),
        lambda t: t.scan(columns={"k"}),
        lambda t: t.changes(0, columns={"k"}),
        lambda t: t.get(pa.table({"k": [1]}), columns={"k"}),
        lambda t: t.history(limit="a"),
        lambda t: t.history(limit=-1),
        lambda t: t.truncate_log(None),
        lambda t: t.writer().seal(None),
        lambda t: t.upsert(pa.table({"k": [1], "v": ["x"]}), epoch="now"),
    ],
)
def test_arguments_of_the_wrong_kind_are_typed_errors(table: el.Table, call: Callable[[Any], Any]) -> None:
    with pytest.raises(el.InvalidInput):
        call(table)


def test_epochs_out_of_numpy_are_epochs(table: el.Table) -> None:
    at = np.int64(table.info.max_committed_epoch)
    assert table.to_arrow(epoch=at).num_rows == table.count(epoch=at) == 2
    assert table.get(pa.table({"k": [1]}), epoch=at).num_rows == 1
    assert table.changes(at).read_all().num_rows == 0
    assert table.next_epoch(at) is None
    after = at + 1
    assert table.upsert(pa.table({"k": [3], "v": ["c"]}), epoch=after) == int(after)


def test_a_snapshot_says_what_it_takes(tmp_path: Path) -> None:
    class Mute:
        def choose(self, view: Any, tables: Any) -> Any:
            return None

    with el.open(tmp_path / "s") as store:
        store.create_table("t", KV, ["k"])
        with pytest.raises(el.InvalidInput, match="list of table names"):
            store.snapshot(5)  # pyright: ignore[reportArgumentType]
        with pytest.raises(el.InvalidInput, match="must choose a dict"):
            store.snapshot(["t"], consistency=Mute())


@pytest.mark.parametrize(
    "options",
    [
        {"catalog": 5},
        {"catalog": "mysql://127.0.0.1/0"},
        {"clock": 5},
        {"clock": lambda: 1.8e12 + 0.5},
        {"clock": lambda: "x"},
        {"clock": lambda: 10**20},
        {"clock": lambda: 1 // 0},
        {"maintenance": "yes"},
        {"checkpoint_interval_ms": True},
    ],
)
def test_a_store_that_cannot_be_opened_so_leaves_nothing_behind(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(el.InvalidInput):
        el.open(tmp_path / "s", **options)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("root", [None, "", 5])
def test_a_root_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(el.InvalidInput, match="root must be a path"):
        el.open(root)
    assert list(tmp_path.iterdir()) == []


def test_a_root_below_a_file_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(el.WriteFailed, match="no store can be created in"):
        el.open(tmp_path / "file" / "s")


@pytest.mark.damages_store
def test_a_damaged_table_keeps_no_other_from_being_compacted(tmp_path: Path) -> None:
    with el.open(tmp_path / "s", durability="os") as store:
        for name in ("a", "b", "c"):
            store.create_table(name, KV, ["k"]).upsert(pa.table({"k": [1], "v": [name]}))
        folder = tmp_path / "s" / store._handle.table_folder(store.table("b")._table.id)
        (path,) = folder.iterdir()
        path.unlink()
        with pytest.raises(el.Corrupt, match="the file is gone"):
            store.compact(full=True)
        assert [store.table(name).info.runs for name in "abc"] == [1, 0, 1]


def test_to_keep_for_ever_is_no_overflow(tmp_path: Path) -> None:
    with el.open(tmp_path / "s") as store:
        options = el.TableOptions(history_retention=timedelta.max, log_retention=timedelta.max)
        table = store.create_table("t", KV, ["k"], options=options)
        at = table.upsert(pa.table({"k": [1], "v": ["a"]}))
        store.compact()
        assert table.count(at) == 1 and [info.name for info in store.tables()] == ["t"] and store.verify().ok
    with pytest.raises(el.InvalidInput, match="max_segments must be an int from 1"):
        el.TableOptions(max_segments=1 << 64)


def test_a_clock_that_goes_wrong_later_is_a_typed_error(tmp_path: Path) -> None:
    times: list[Any] = [1_800_000_000_000]
    with el.open(tmp_path / "s", clock=lambda: times[-1]) as store:
        table = store.create_table("t", KV, ["k"])
        for wrong in (1.5, None, 1 << 60):
            times.append(wrong)
            with pytest.raises(el.InvalidInput, match="clock must return Unix milliseconds"):
                table.upsert(pa.table({"k": [1], "v": ["a"]}))
            times.pop()
        table.upsert(pa.table({"k": [1], "v": ["a"]}))


def test_a_grace_without_end_and_a_seal_after_the_close_are_refused(tmp_path: Path) -> None:
    store = el.open(tmp_path / "s")
    writer = store.create_table("t", KV, ["k"]).writer()
    writer.upsert(pa.table({"k": [1], "v": ["a"]}))
    with pytest.raises(el.InvalidInput, match="grace must be seconds"):
        store.vacuum(grace=float("inf"))
    store.close()
    with pytest.raises(el.StoreClosed):
        writer.seal(1)
