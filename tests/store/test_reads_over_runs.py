"""Reads over L0 and a run: at epochs below, at and above the run, of every column type, and while compaction works."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el
from epochlog.store.compaction.rewriter import Rewriter
from epochlog.store.scan import scan_plan
from epochlog.store.sst import segment
from epochlog.store.sst import sorted_run as run
from epochlog.store.sst.sorted_run import SortedRun
from row_sets import WIDE, wide_rows

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64(), nullable=False)])
NOW_MS = 1_767_225_600_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os", clock=lambda: NOW_MS) as opened:
        yield opened


def numbers(table: el.Table, epoch: int | None = None, filter: pc.Expression | None = None) -> dict[int, int]:
    rows = table.to_arrow(epoch=epoch, filter=filter)
    return dict(zip(rows["id"].to_pylist(), rows["n"].to_pylist(), strict=True))


def put(**pairs: int) -> pa.Table:
    return pa.table({"id": [int(key[1:]) for key in pairs], "n": list(pairs.values())})


def key(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


@pytest.mark.medium
def test_epochs_below_at_and_above_a_run(store: el.Store) -> None:
    table = store.create_table("t", SCHEMA, ["id"])
    states = {0: {}}
    states[table.upsert(put(_1=10, _2=20, _3=30))] = {1: 10, 2: 20, 3: 30}
    states[table.delete(key(2, 9))] = {1: 10, 3: 30}
    states[table.upsert(put(_2=21, _4=40))] = {1: 10, 2: 21, 3: 30, 4: 40}
    store.compact("t")
    at_run = store.last_epoch
    states[at_run] = {1: 10, 2: 21, 3: 30, 4: 40}
    states[table.delete(key(1, 4))] = {2: 21, 3: 30}
    states[table.upsert(put(_1=11))] = {1: 11, 2: 21, 3: 30}

    def check() -> None:
        for epoch, state in states.items():
            if epoch >= table.info.safe_epoch:
                assert numbers(table, epoch) == state, epoch
                assert table.count(epoch) == len(state)
                big = pc.field("n") > 15
                assert numbers(table, epoch, big) == {k: n for k, n in state.items() if n > 15}, epoch
                keys = table.get(key(4, 2, 2, 7, 1), epoch=epoch)["id"].to_pylist()
                assert keys == [k for k in (4, 2, 2, 7, 1) if k in state]
        changes = table.changes(0, pre_images=True).read_all()
        kinds = list(zip(changes["_change_type"].to_pylist(), changes["id"].to_pylist(), strict=True))
        assert kinds == [
            ("insert", 1), ("insert", 2), ("insert", 3), ("delete", 2), ("insert", 2), ("insert", 4), ("delete", 1),
            ("delete", 4), ("insert", 1),
        ]  # fmt: skip

    check()
    assert table.info.runs == 1
    store.compact("t")  # a run over a run, with the history of both
    check()
    store.compact("t")
    check()
    assert table.info.runs == 1 and store.verify().ok


def test_deletes_and_required_columns_meet_in_one_run(store: el.Store) -> None:
    """Tombstones have no values: files with them say that `n` may be null, others do not."""
    table = store.create_table("t", SCHEMA, ["id"])
    table.upsert(put(_1=10, _2=20))
    table.delete(key(1))
    table.upsert(put(_3=30))
    store.compact("t")
    assert numbers(table) == {2: 20, 3: 30}
    table.delete(key(2))
    table.upsert(put(_2=22))
    store.compact("t")
    assert numbers(table) == {2: 22, 3: 30} and table.to_arrow().schema == table.schema


def test_an_old_epoch_of_a_run_with_several_row_groups(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochlog.store.sst.sorted_run.ROW_GROUP_ROWS", 4)
    monkeypatch.setattr("epochlog.store.compaction.rewriter.PART_ROWS", 10)
    table = store.create_table("t", SCHEMA, ["id"])
    first = table.upsert(pa.table({"id": range(25), "n": range(25)}))
    second = table.upsert(pa.table({"id": range(0, 25, 3), "n": [-1] * 9}))
    store.compact("t")
    assert numbers(table, first) == {k: k for k in range(25)}
    assert numbers(table, second) == {k: -1 if k % 3 == 0 else k for k in range(25)}


def test_no_columns_are_still_counted(store: el.Store) -> None:
    table = store.create_table("t", SCHEMA, ["id"])
    for step in (lambda: table.upsert(put(_1=1, _2=2)), lambda: table.delete(key(1)), lambda: store.compact("t")):
        step()
        assert table.to_arrow(columns=[]).num_rows == table.count()
        assert table.to_arrow(columns=[], filter=pc.field("n") > 1).num_rows == 1


def test_no_columns_of_a_table_that_is_read_in_pieces_are_counted(
    store: el.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "BATCH_ROWS", 4)
    monkeypatch.setattr(scan_plan, "READ_BYTES", 100)
    table = store.create_table("t", SCHEMA, ["id"])
    for commit in (range(50), range(40, 60)):
        table.upsert(pa.table({"id": commit, "n": commit}))
    assert table.to_arrow(columns=[]).num_rows == table.count() == 60
    assert table.to_arrow(columns=[], filter=pc.field("id") >= 50).num_rows == 10
    assert sum(batch.num_rows for batch in table.scan(columns=[])) == 60


def test_rows_by_key_have_the_names_inside_of_nested_types(store: el.Store) -> None:
    """Parquet calls the items of a list otherwise."""
    table = store.create_table("t", pa.schema([("id", pa.int64()), ("l", pa.list_(pa.int64()))]), ["id"])
    table.upsert(pa.table({"id": [1], "l": pa.array([[1]], pa.list_(pa.int64()))}))
    for _ in range(2):
        for rows in (table.get(key(1)), table.to_arrow(), table.get(key(1), columns=["l"])):
            assert rows.schema.field("l").type.value_field.name == "item"
        store.compact(full=True)


def test_history_goes_with_its_retention_and_the_rows_stay(tmp_path: Path) -> None:
    now = [NOW_MS]
    with el.open(tmp_path / "s", durability="os", clock=lambda: now[0]) as store:
        options = el.TableOptions(history_retention=timedelta(seconds=1))
        table = store.create_table("t", SCHEMA, ["id"], options=options)
        epochs = []
        for n in range(5):
            epochs.append(table.upsert(put(_1=n, _2=n)))
            now[0] += 1000
        store.compact("t")
        run = plan_run(table)
        assert sum(part.rows for part in run.parts) == 2
        assert numbers(table, table.info.safe_epoch) == {1: 4, 2: 4}
        assert not run.history, "nobody can read the replaced rows any more"
        for epoch in epochs[:4]:
            with pytest.raises(el.EpochExpired):
                table.to_arrow(epoch=epoch)


def plan_run(table: el.Table) -> SortedRun:
    """The table's one run."""
    (run,) = table._snapshot_at(None).plan.runs
    return run


@pytest.mark.medium
def test_every_column_type_through_segments_and_runs(store: el.Store) -> None:
    table = store.create_table("wide", WIDE.schema, ["id"])
    first = table.upsert(wide_rows([1, 2, 3, 4, 5, 6]))
    table.delete(key(2, 3))
    last = table.upsert(wide_rows([3, 4, 5, 6, 7, 8], salt=1))
    old, new = table.to_arrow(epoch=first), table.to_arrow()
    assert old.equals(wide_rows([1, 2, 3, 4, 5, 6]))
    images = table.changes(first, last, mode="net", pre_images=True).read_all()
    for _ in range(2):
        store.compact("wide", full=True)
        assert table.to_arrow(epoch=first).equals(old) and table.to_arrow().equals(new)
        assert table.changes(first, last, mode="net", pre_images=True).read_all().equals(images)
        for name in ("ts", "d64", "dec", "s", "tns", "dur", "t32"):
            values = new[name].drop_null()
            some = pc.field(name) >= pc.scalar(values[0])
            assert table.to_arrow(filter=some).equals(new.filter(some)), name
            assert table.to_arrow(epoch=first, filter=some).equals(old.filter(some)), name
        table.upsert(wide_rows([8], salt=1))
    assert store.verify().ok


@pytest.mark.medium
def test_every_key_type_through_segments_and_runs(store: el.Store) -> None:
    """One table a type: rows come in key order, and each is found by its key."""
    for name, kind in [
        (field.name, field.type) for field in WIDE.schema if field.name not in ("l", "ll", "fsl", "st", "m")
    ]:
        schema = pa.schema([pa.field("k", kind), pa.field("n", pa.int64(), nullable=False)])
        table = store.create_table(f"by_{name}", schema, ["k"])
        values = wide_rows(list(range(1, 40)))[name].combine_chunks().drop_null().unique()
        whole = pa.table({"k": values, "n": pa.array(range(len(values)))})
        first = table.upsert(whole)
        table.delete(whole.select(["k"]).slice(0, 2))
        store.compact(f"by_{name}")
        table.upsert(whole.slice(1, 1))
        assert table.count() == len(values) - 1, name
        asked = whole.select(["k"])
        assert table.get(asked)["n"].to_pylist() == list(range(1, len(values))), name
        assert table.get(asked, epoch=first)["n"].to_pylist() == list(range(len(values))), name
        if kind == pa.float16():
            continue  # Arrow cannot compare halves
        some = pc.field("k") == pc.scalar(values[1])
        assert table.to_arrow(filter=some)["n"].to_pylist() == [1], name
        assert table.changes(0, mode="net", filter=some).read_all()["n"].to_pylist() == [1], name
    assert store.verify().ok


# ---- compaction beside commits -----------------------------------------------------------------------------------


def test_commits_that_land_while_a_run_is_made_stay(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", SCHEMA, ["id"])
    first = table.upsert(put(_1=1, _2=2))
    made = Rewriter.rewrite

    def slow(*args: Any, **options: Any) -> Any:
        parts = made(*args, **options)
        table.upsert(put(_2=22, _3=33))
        table.delete(key(1))
        return parts

    monkeypatch.setattr(Rewriter, "rewrite", slow)
    store.compact("t")
    monkeypatch.undo()
    assert numbers(table) == {2: 22, 3: 33} and numbers(table, first) == {1: 1, 2: 2}
    assert plan_run(table).hi == first
    store.compact("t")
    assert numbers(table) == {2: 22, 3: 33} and store.verify().ok


@pytest.mark.parametrize("meanwhile", ["compacted", "dropped"])
def test_a_compaction_whose_inputs_have_gone_leaves_nothing(
    store: el.Store, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    table = store.create_table("t", SCHEMA, ["id"])
    table.upsert(put(_1=1))
    made = Rewriter.rewrite

    def slow(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(Rewriter, "rewrite", made)
        parts = made(*args, **options)
        store.compact("t") if meanwhile == "compacted" else store.drop_table("t")
        return parts

    monkeypatch.setattr(Rewriter, "rewrite", slow)
    store.compact(full=True)
    assert [path for path in store.verify().unreachable if path.endswith(".parquet")] == []
    assert store.verify().ok


@pytest.mark.medium
def test_threads_commit_read_and_compact_one_table(store: el.Store) -> None:
    """Each writer moves its own two keys up; a reader must see every key only rise, and every commit whole."""
    table = store.create_table("t", SCHEMA, ["id"])
    table.upsert(pa.table({"id": range(4), "n": [0] * 4}))
    over = threading.Event()

    def write(first: int) -> None:
        for n in range(1, 16):
            table.upsert(pa.table({"id": [first, first + 1], "n": [n, n]}))

    def compact() -> None:
        while not over.is_set():
            store.compact("t")

    def read() -> None:
        seen = [0] * 4
        while not over.is_set():
            with store.snapshot(["t"], consistency="latest") as moment:
                once, twice = moment["t"].to_arrow(), moment["t"].to_arrow()
            now = once["n"].to_pylist()
            assert once.equals(twice) and len(now) == 4
            assert now[0] == now[1] and now[2] == now[3], "a commit is whole"
            assert all(a <= b for a, b in zip(seen, now, strict=True))
            seen = now

    with ThreadPoolExecutor(4) as pool:
        helpers = [pool.submit(compact), pool.submit(read)]
        try:
            for writer in [pool.submit(write, 0), pool.submit(write, 2)]:
                writer.result()
        finally:
            over.set()
        for helper in helpers:
            helper.result()
    assert numbers(table) == dict.fromkeys(range(4), 15)
    assert len(table.history()) == 31 and store.verify().ok


@pytest.mark.parametrize("keys", [["id"], ["id", "day"]])
def test_a_run_that_has_nothing_above_it_is_read_without_keys_that_nobody_asked_for(
    store: el.Store, keys: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("id", "day", "n")])
    table = store.create_table("t", schema, keys)
    table.upsert(pa.table([["a", "b", "c"], ["x", "y", "z"], ["1", "2", "3"]], schema=schema))
    removed = table.delete(pa.table([["b"], ["y"]], names=["id", "day"]).select(keys))
    store.compact("t", full=True)
    decoded: set[str] = set()
    plain = run.Footer.read

    def noting(footer: run.Footer, data: pa.Buffer, groups: list[int], names: list[str]) -> pa.Table:
        decoded.update(names)
        return plain(footer, data, groups, names)

    monkeypatch.setattr(run.Footer, "read", noting)
    assert table.to_arrow(columns=["n"])["n"].to_pylist() == ["1", "3"] and decoded == {"n"}
    assert table.to_arrow(columns=["n"], filter=pc.field("id") > "a")["n"].to_pylist() == ["3"]
    assert table.to_arrow(epoch=removed - 1, columns=["n"])["n"].to_pylist() == ["1", "2", "3"]
    table.upsert(pa.table([["b"], ["y"], ["4"]], schema=schema))
    assert table.to_arrow(columns=["n"])["n"].to_pylist() == ["1", "4", "3"]


@pytest.mark.medium
def test_a_table_that_was_read_sees_what_others_have_done_since(store: el.Store, tmp_path: Path) -> None:
    """A read plan is reused until any process changes any table."""
    table = store.create_table("t", SCHEMA, ["id"])
    changes: list[tuple[Callable[[el.Store], object], dict[int, int]]] = [
        (lambda two: two.table("t").upsert(put(_1=10, _2=20)), {1: 10, 2: 20}),
        (lambda two: two.table("t").upsert(put(_3=30)), {1: 10, 2: 20, 3: 30}),
        (lambda two: two.create_table("other", SCHEMA, ["id"]).upsert(put(_9=9)), {1: 10, 2: 20, 3: 30}),
        (lambda two: two.table("t").delete(key(2)), {1: 10, 3: 30}),
        (lambda two: two.compact("t"), {1: 10, 3: 30}),
        (lambda two: two.vacuum(), {1: 10, 3: 30}),
        (lambda two: two.table("t").upsert(put(_1=11)), {1: 11, 3: 30}),
    ]
    with el.open(tmp_path / "s", durability="os", clock=lambda: NOW_MS) as two:
        for change, state in changes:
            for _ in range(2):
                assert numbers(table) == numbers(two.table("t"))
            change(two)
            for _ in range(2):
                assert numbers(table) == state
                assert table.get(key(1, 2, 3)).num_rows == table.count() == len(state)
        pid = os.fork()
        if pid == 0:
            table.upsert(put(_4=40))
            os._exit(0 if numbers(table) == {1: 11, 3: 30, 4: 40} else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert numbers(table) == {1: 11, 3: 30, 4: 40}
        two.drop_table("t")
        two.create_table("t", SCHEMA, ["id"])
        with pytest.raises(el.TableDropped):
            table.to_arrow()


@pytest.mark.medium
def test_commits_of_one_block_are_spread_over_what_they_lie_above(
    store: el.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their first keys all lie at the beginning, or, where rows are appended, after what came before."""
    monkeypatch.setattr(segment, "BATCH_ROWS", 100)
    chance = np.random.default_rng(4)
    for name, commits in (
        ("all over", [np.unique(chance.integers(0, 2000, 80)) for _ in range(40)]),
        ("appended", [np.arange(80) + 2000 + 80 * place for place in range(40)]),
    ):
        table = store.create_table(name.replace(" ", "_"), SCHEMA, ["id"])
        for ids in (np.arange(2000), *commits):
            table.upsert(pa.table({"id": ids, "n": ids}))
        with store.snapshot([table.name]) as snapshot:
            plan = snapshot[table.name].plan
        files = [np.arange(2000), *commits]
        counts = [
            sum(int(((ids >= (low or 0)) & (ids < (high or 1 << 40))).sum()) for ids in files)
            for low, high in plan.splits(10)
        ]
        assert len(counts) == 10 and sum(counts) == sum(map(len, files))
        assert max(counts) <= 2 * sum(counts) / 10, (name, counts)


@pytest.mark.medium
def test_a_table_that_is_read_in_pieces_decodes_each_block_once(
    store: el.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment, "BATCH_ROWS", 100)
    monkeypatch.setattr(scan_plan, "READ_BYTES", 2000)
    monkeypatch.setattr(scan_plan, "BATCH_ROWS", 100)
    chance, copied, apart = np.random.default_rng(4), [0], segment._copy_if_mapped
    table = store.create_table("t", SCHEMA, ["id"])
    for ids in (np.arange(2000), *(np.unique(chance.integers(0, 2000, 80)) for _ in range(40))):
        table.upsert(pa.table({"id": ids, "n": ids}))

    def counted(batch: pa.RecordBatch, data: pa.Buffer) -> pa.RecordBatch:
        copied[0] += 1
        return apart(batch, data)

    monkeypatch.setattr(segment, "_copy_if_mapped", counted)  # once for each batch that is decoded
    for read in (table.to_arrow, lambda: table.scan().read_all()):
        copied[0] = 0
        assert read().num_rows == 2000
        assert copied[0] == 20 + 40
