"""Nexmark's views, read at one epoch, are DuckDB's answers; the events have the ratios of its description."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import nexmark
import nexmark_data
import numpy as np
import pytest

EXAMPLE = Path(nexmark.__file__)


@pytest.mark.medium
def test_all_eight_views_are_duckdbs_answers_at_one_epoch(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    run = nexmark.Nexmark(tmp_path / "store", durability="os")
    with run.store:
        for rows in nexmark_data.Events(seed).batches(0, 3000, 1000):
            run.commit(rows)
            run.step(nexmark.Took())
            assert not any(run.differing().values()), run.differing()
        assert all(run.store.table(name).count() for name in nexmark.VIEWS)
        assert all(view.explain().startswith("incremental by") for view in run.views.values())


@pytest.mark.planted
@pytest.mark.medium
def test_a_view_that_was_not_stepped_differs(tmp_path: Path) -> None:
    run = nexmark.Nexmark(tmp_path / "store", durability="os")
    with run.store:
        first, second = nexmark_data.Events(1).batches(0, 4000, 2000)
        run.commit(first)
        run.step(nexmark.Took())
        run.commit(second)
        with run.store.snapshot(consistency="latest") as newest, newest.duckdb() as connection:
            assert all(nexmark.differing_rows(connection, name) for name in nexmark.VIEWS)


def test_the_events_have_nexmarks_ratios() -> None:
    (rows,) = nexmark_data.Events(1).batches(0, 200_000, 200_000)
    assert [len(rows[name]) for name in ("person", "auction", "bid")] == [4000, 12000, 184_000]
    assert rows["person"]["id"].to_pylist() == list(range(1000, 5000))
    assert rows["auction"]["id"].to_pylist() == list(range(1000, 13000))
    bids, auctions = rows["bid"], rows["auction"]
    for column, hot, share in (
        (bids["auction"], 0, 1 / 2), (bids["bidder"], 1, 3 / 4), (auctions["seller"], 0, 3 / 4)
    ):  # fmt: skip
        assert np.mean((column.to_numpy() - 1000) % 100 == hot) == pytest.approx(share, abs=0.02)
    assert sorted(set(auctions["category"].to_pylist())) == [10, 11, 12, 13, 14]
    newest = 1000 + nexmark_data.newest_auction(bids["number"].to_numpy())
    behind = newest - bids["auction"].to_numpy()
    assert behind.min() == -10 and behind.max() == 100
    assert np.mean(bids["date_time"].to_numpy()[1:] > bids["date_time"].to_numpy()[:-1]) == 1


@pytest.mark.medium
def test_it_runs_as_printed(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "--base", "2000", "--events", "1000", "--batch", "500", "--compare"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "are equal to DuckDB's answers" in done.stdout
    printed = re.findall(r"^(.*?)  +[\d,]+ events/s +p50 +[\d.]+ ms +p99 +[\d.]+ ms$", done.stdout, re.MULTILINE)
    assert printed == [*nexmark.VIEWS, "all eight", "all eight, all rows anew", "Delta MERGE of these rows"]
