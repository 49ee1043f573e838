"""A compaction reads back what it wrote before its inputs go, and keeps them if a value is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.store.compaction.read_back import RANDOM_GROUPS, SMALL_GROUPS, sampled_groups
from epochlog.store.sst import sorted_run
from epochlog.store.sst.sorted_run import ROW_GROUP_ROWS, RunFile
from lossy_writer import NESTED, losing, nested_rows

FAILURES = 'epochlog_compaction_check_failures_total{table="t"} 1'


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "s", durability="os") as opened:
        yield opened


def filled(store: el.Store, count: int, **options: Any) -> el.Table:
    table = store.create_table("t", NESTED, ["id"], options=el.TableOptions(**options))
    table.upsert(nested_rows(count))
    return table


@pytest.mark.rule("1.29")
@pytest.mark.planted
@pytest.mark.parametrize("row", [0, 1, 9])
def test_one_lost_nested_value_keeps_the_inputs(store: el.Store, row: int) -> None:
    table = filled(store, 10)
    rows = table.to_arrow()
    with (
        losing(row),
        pytest.raises(el.ReadBackFailed, match=rf"table 't'.*row {row} of column 'v', of type struct.*stay"),
    ):
        store.compact("t", full=True)
    assert table.to_arrow().equals(rows)
    assert not list(Path(store.root).rglob("*.parquet"))
    assert FAILURES in store.metrics()
    store.compact("t", full=True)
    assert table.to_arrow().equals(rows)
    assert 'epochlog_compaction_checked_rows_total{table="t"} 10' in store.metrics()


@pytest.mark.planted
def test_a_file_that_cannot_be_decoded_keeps_the_inputs(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(store, 10)
    rows = table.to_arrow()
    with monkeypatch.context() as patch:
        patch.setattr(sorted_run, "_in_parquet_types", lambda table: table.drop_columns(["v"]))
        with pytest.raises(el.ReadBackFailed, match="cannot be decoded"):
            store.compact("t", full=True)
    assert table.to_arrow().equals(rows)


def test_without_the_check_the_value_is_lost(store: el.Store) -> None:
    table = filled(store, 10, compaction_check="off")
    with losing(3):
        store.compact("t", full=True)
    assert table.to_arrow().column("v")[3].as_py() == {"l": [None, None]}


@pytest.mark.rule("1.29")
@pytest.mark.medium
@pytest.mark.parametrize("check", ["sample", "all"])
def test_of_a_large_file_a_sample_or_all_is_read(store: el.Store, check: str) -> None:
    groups = SMALL_GROUPS + 4
    table = filled(store, groups * ROW_GROUP_ROWS, compaction_check=check)
    rows = table.to_arrow()
    lost = 5 if check == "sample" else 3 * ROW_GROUP_ROWS
    with losing(lost), pytest.raises(el.ReadBackFailed, match=f"row {lost} of"):
        store.compact("t", full=True)
    assert table.to_arrow().equals(rows)
    store.compact("t", full=True)
    checked = re.search(r"compaction_checked_rows_total{.*} (\d+)", store.metrics())
    assert checked is not None
    read = int(checked[1]) / ROW_GROUP_ROWS
    assert read == groups if check == "all" else 3 <= read <= 2 + RANDOM_GROUPS


@pytest.mark.rule("1.29")
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


def test_the_option_is_kept(store: el.Store) -> None:
    filled(store, 1, compaction_check="all")
    assert store.table("t").info.options.compaction_check == "all"
