"""The log of P27: a packed copy has the rows of the log it was copied from in fewer files, here and on S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_small_commits import Kept, Stepped, requests_of, rows_of_source
from small_commits import ROWS, SmallCommits

COMMITS = 200


@pytest.fixture
def single(tmp_path: Path) -> Iterator[SmallCommits]:
    log = SmallCommits(tmp_path / "single").grow(COMMITS)
    yield log
    log.close()


@pytest.mark.medium
def test_only_the_copy_is_packed_and_gives_the_same_changes(single: SmallCommits, tmp_path: Path) -> None:
    packed = single.copied(tmp_path / "packed").packed()
    assert single.files == COMMITS and packed.files == COMMITS // 64 + COMMITS % 64
    assert packed.table.changes(0).read_all().equals(single.table.changes(0).read_all())
    assert packed.epochs() == single.epochs() and rows_of_source(packed) == COMMITS * ROWS
    assert packed.catalog_bytes < single.catalog_bytes
    packed.close()


@pytest.mark.medium
def test_a_replay_on_s3_asks_for_few_files_of_the_range(single: SmallCommits, tmp_path: Path) -> None:
    packed = single.copied(tmp_path / "packed").packed()
    files = packed.files
    whole, *parts = requests_of(packed, 4)["GETs"]
    assert files <= whole <= 2 * files
    assert all(part <= whole for part in parts)


@pytest.mark.medium
def test_a_view_of_a_packed_copy_steps_over_later_commits(single: SmallCommits, tmp_path: Path) -> None:
    stepped = Stepped(single, tmp_path)
    kept = Kept.of(stepped.log)
    assert stepped.step() > 0 and stepped.step() > 0
    assert kept.files == COMMITS // 64 + COMMITS % 64 and stepped.log.store.verify().ok
    stepped.log.close()
