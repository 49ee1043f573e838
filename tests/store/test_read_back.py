"""A compaction reads back what it wrote before its inputs go, and keeps them if a value is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.compaction.read_back import RANDOM_GROUPS, SMALL_GROUPS, sampled_groups
from epochlog.store.sst import sorted_run
from epochlog.store.sst.sorted_run import ROW_GROUP_ROWS, RunFile

INNER = pa.struct([pa.field("l", pa.list_(pa.int32()))])
SCHEMA = pa.schema([("id", pa.int64()), ("v", INNER)])
FAILURES = 'epochlog_compaction_check_failures_total{table="t"} 1'


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os") as opened:
        yield opened


def filled(store: el.Store, count: int, **options: Any) -> el.Table:
    table = store.create_table("t", SCHEMA, ["id"], options=el.TableOptions(**options))
    values = [{"l": [i, None]} for i in range(count)]
    table.upsert(pa.table([pa.array(range(count)), pa.array(values, INNER)], schema=SCHEMA))
    return table


def lossy(monkeypatch: pytest.MonkeyPatch, *rows: int) -> None:
    """The writer of run files loses the item of the list in these rows."""
    write = sorted_run._in_parquet_types

    def losing(table: pa.Table) -> pa.Table:
        values = table.column("v").to_pylist()
        for row in rows:
            values[row]["l"][0] = None
        return write(table.set_column(1, table.schema.field("v"), pa.array(values, INNER)))

    monkeypatch.setattr(sorted_run, "_in_parquet_types", losing)


@pytest.mark.parametrize("row", [0, 1, 9])
def test_one_lost_nested_value_keeps_the_inputs(store: el.Store, monkeypatch: pytest.MonkeyPatch, row: int) -> None:
    table = filled(store, 10)
    rows = table.to_arrow()
    with monkeypatch.context() as patch:
        lossy(patch, row)
        with pytest.raises(el.ReadBackFailed, match=rf"table 't'.*row {row} of column 'v', of type struct.*stay"):
            store.compact("t", full=True)
    assert table.to_arrow().equals(rows)
    assert not list(Path(store.root).rglob("*.parquet"))
    assert FAILURES in store.metrics()
    store.compact("t", full=True)
    assert table.to_arrow().equals(rows)
    assert 'epochlog_compaction_checked_rows_total{table="t"} 10' in store.metrics()


def test_a_file_that_cannot_be_decoded_keeps_the_inputs(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(store, 10)
    rows = table.to_arrow()
    with monkeypatch.context() as patch:
        patch.setattr(sorted_run, "_in_parquet_types", lambda table: table.drop_columns(["v"]))
        with pytest.raises(el.ReadBackFailed, match="cannot be decoded"):
            store.compact("t", full=True)
    assert table.to_arrow().equals(rows)


def test_without_the_check_the_value_is_lost(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(store, 10, compaction_check="off")
    with monkeypatch.context() as patch:
        lossy(patch, 3)
        store.compact("t", full=True)
    assert table.to_arrow().column("v")[3].as_py() == {"l": [None, None]}


@pytest.mark.medium
@pytest.mark.parametrize("check", ["sample", "all"])
def test_of_a_large_file_a_sample_or_all_is_read(store: el.Store, monkeypatch: pytest.MonkeyPatch, check: str) -> None:
    groups = SMALL_GROUPS + 4
    table = filled(store, groups * ROW_GROUP_ROWS, compaction_check=check)
    rows = table.to_arrow()
    with monkeypatch.context() as patch:
        lossy(patch, *(group * ROW_GROUP_ROWS + 5 for group in ([0] if check == "sample" else [3])))
        with pytest.raises(el.ReadBackFailed):
            store.compact("t", full=True)
    assert table.to_arrow().equals(rows)
    store.compact("t", full=True)
    line = next(
        line for line in store.metrics().splitlines() if line.startswith("epochlog_compaction_checked_rows_total{")
    )
    read = float(line.split()[1]) / ROW_GROUP_ROWS
    assert read == groups if check == "all" else 3 <= read <= 2 + RANDOM_GROUPS


def test_the_sample_follows_from_the_path() -> None:
    def part(path: str, groups: int) -> RunFile:
        return RunFile(path, 0, 0, 0, 0, 0, blocks=tuple(range(groups)))

    assert sampled_groups(part("a", SMALL_GROUPS), "sample") == list(range(SMALL_GROUPS))
    chosen = [sampled_groups(part(f"t/{i}.parquet", 100), "sample") for i in range(50)]
    assert all(groups[0] == 0 and groups[-1] == 99 and groups == sorted(set(groups)) for groups in chosen)
    assert max(map(len, chosen)) == 2 + RANDOM_GROUPS
    assert chosen == [sampled_groups(part(f"t/{i}.parquet", 100), "sample") for i in range(50)]
    assert len({group for groups in chosen for group in groups}) > 40
    assert sampled_groups(part("a", 100), "off") == []
    assert len(sampled_groups(part("a", 100), "all")) == 100


@pytest.mark.parametrize("check", ["none", None, True])
def test_an_unknown_check(check: Any) -> None:
    with pytest.raises(el.InvalidInput, match=r"compaction_check must be one of \('sample', 'all', 'off'\)"):
        el.TableOptions(compaction_check=check)


def test_the_option_is_kept(store: el.Store, tmp_path: Path) -> None:
    filled(store, 1, compaction_check="all")
    assert store.table("t").info.options.compaction_check == "all"
