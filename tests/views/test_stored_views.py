"""Views of random queries in a real store, refreshed by DuckDB between random commits."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from epochlog.store.changelog.change_rows import CHANGE_TYPE
from epochlog.store.commit import table_ddl
from epochlog.views import reads
from epochlog.views.derivation import Coverage, ViewPlan
from seeds import seeds
from stored_views import Differs, StoredViews

STORES = int(os.environ.get("EPOCHLOG_VIEW_STORES", "400"))
"""Random stores of a campaign, from the seed EPOCHLOG_VIEW_SEED on."""
FIRST = int(os.environ.get("EPOCHLOG_VIEW_SEED") or random.SystemRandom().randrange(10**9))


def play_stores(folder: Path, seeds: Sequence[int], actions: int, **options: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        print("seed", seed)
        seen += StoredViews(folder / str(seed), seed, **options).play(actions)
    print(seen)
    return seen


@pytest.mark.medium
@pytest.mark.parametrize("seed", seeds(range(0, 10, 2)))
def test_views_of_a_store_equal_their_queries(tmp_path: Path, seed: int) -> None:
    """Seeds after a random one, which a failure names.

    Two stores have six views and three checks at nearly every seed, and a third one where chance refused most queries.
    """
    seen = play_stores(tmp_path, range(FIRST + seed, FIRST + seed + 2), 30)
    for more in range(FIRST + seed + 2, FIRST + seed + 10):
        if seen["views"] >= 6 and seen["checks"] >= 3:
            return
        seen += play_stores(tmp_path, [more], 30)
    pytest.fail(f"ten stores from seed {FIRST + seed} on show too little: {seen}")


@pytest.mark.campaign
def test_views_of_many_stores_equal_their_queries(tmp_path: Path) -> None:
    seen = play_stores(tmp_path, range(FIRST, FIRST + STORES), 60)
    assert seen["refresh"] > seen["recompute"] and seen["rows"] > seen["checks"], seen


# planted errors


def _old_images_are_ignored(patch: pytest.MonkeyPatch) -> None:
    changes = reads.read_changes

    def new_ones(*arguments: Any) -> pa.Table:
        rows = changes(*arguments)
        is_new = [kind not in ("delete", "update_preimage") for kind in rows[CHANGE_TYPE].to_pylist()]
        return rows.filter(pa.array(is_new, pa.bool_()))

    patch.setattr(reads, "read_changes", new_ones)


def _one_side_of_a_join_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = Coverage.changed_batches
    patch.setattr(Coverage, "changed_batches", lambda self, changed: original(self, sorted(changed)[:1]))


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.parametrize(("plant", "first"), [(_old_images_are_ignored, 0), (_one_side_of_a_join_is_forgotten, 16)])
def test_a_planted_error_of_a_refresh_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], first: int
) -> None:
    """In a world of views whose groups several tables touch.

    first: a seed whose store shows the error; those after it are for the day when its queries change.
    """
    plant(monkeypatch)
    with pytest.raises(Differs):
        play_stores(tmp_path, range(first, first + 40), 30, alters=0, world=5)


def _one_column_is_not_bound(patch: pytest.MonkeyPatch) -> None:
    """The last column that a query reads of each table is not the job's."""
    original = ViewPlan.columns.fget
    assert original is not None
    few = property(lambda plan: {table: names[:-1] for table, names in original(plan).items()})
    patch.setattr(ViewPlan, "columns", few)


def _an_alter_asks_for_no_views_columns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(table_ddl, "refuse_bound", lambda *_: None)


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.parametrize("plant", [_one_column_is_not_bound, _an_alter_asks_for_no_views_columns])
def test_a_view_that_binds_too_few_columns_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        play_stores(tmp_path, range(20), 30, alters=20)
