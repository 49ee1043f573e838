"""The bank's money adds up in every read at one epoch, while a view is slow and another one is killed."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import bank
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import epochlog as el

EXAMPLE = Path(bank.__file__)


def seen_by(store: el.Store) -> dict[str, int]:
    """Count the wrong reads among one read under each policy."""
    tallies = {policy: bank.Tally() for policy in bank.POLICIES}
    for policy, tally in tallies.items():
        bank.read_once(store, policy, tally, bank.Arrivals(2400))
    assert {tally.reads for tally in tallies.values()} == {1}
    return {policy: tally.wrong for policy, tally in tallies.items()}


def step_all(store: el.Store, names: Iterable[str]) -> None:
    for name in names:
        while store.view(name).step() is not None:
            pass


@pytest.mark.medium
def test_views_that_commit_alone_add_up_at_one_epoch_and_not_at_their_newest(tmp_path: Path) -> None:
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        bank.create_views(store)
        (rows,) = bank.transfers(3000)
        for at, stepped in enumerate([list(bank.VIEWS), ["credits"], ["matched", "total"], ["debits"]]):
            store.table("transfers").upsert(rows.slice(600 * at, 600))
            store.checkpoint()
            step_all(store, stepped)
            assert seen_by(store) == {"aligned": 0, "global": 0, "latest": int(at > 0)}
        store.checkpoint()
        step_all(store, bank.VIEWS)
        assert seen_by(store) == {"aligned": 0, "global": 0, "latest": 0}
        assert store.view("matched").explain().startswith("incremental by (id)")
        bank.check_end(store, 2400)


def test_transfers_arrive_once_each_and_up_to_ten_seconds_late() -> None:
    (rows,) = bank.transfers(6000)
    assert rows.equals(pa.concat_tables(bank.transfers(6000)))
    ids, seconds = rows["id"].to_pylist(), pc.second(rows["ts"]).to_pylist()
    assert sorted(ids) == list(range(6000)) != ids
    assert seconds == [id_ // 100 for id_ in ids]
    newest = 0
    for second in seconds:
        assert second > newest - 11
        newest = max(newest, second)
    assert any(before > second for before, second in itertools.pairwise(seconds))


def run(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(EXAMPLE), *arguments, "--json", str(folder / "seen.json")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "all views have all transfers" in done.stdout
    seen: dict[str, Any] = json.loads((folder / "seen.json").read_text())
    assert all(seen[policy]["reads"] > 0 for policy in bank.POLICIES)
    assert not any(seen[policy]["wrong"] for policy in ("aligned", "global")), done.stdout
    assert not any(seen[policy]["nulls"] for policy in bank.POLICIES), done.stdout
    return seen


@pytest.mark.slow
def test_no_total_is_wrong_while_a_view_is_slow_and_another_is_killed(tmp_path: Path) -> None:
    run(tmp_path, "--transfers", "20000", "--seconds", "2")


@pytest.mark.spark
@pytest.mark.long
def test_no_total_is_wrong_in_a_million_transfers_beside_plain_queries_of_spark(tmp_path: Path) -> None:
    seen = run(tmp_path, "--transfers", "1000000", "--seconds", "8", "--spark")
    assert seen[bank.SPARK]["reads"] > 0
