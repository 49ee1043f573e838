"""Statistics of a view: what its last steps were computed by, and its state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.checkpoint.job import step_work

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.int32()), ("cents", pa.int64())])
GROUPS = (
    "SELECT n, COUNT(*) AS days FROM (SELECT day, COUNT(DISTINCT cents) AS n, MAX(cents) AS most FROM orders "
    "GROUP BY day) WHERE most > 0 GROUP BY n"
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path, durability="os", checkpoint_interval_ms=10) as store:
        store.create_table("orders", SCHEMA, ["id"]).upsert(rows(range(40)))
        yield store


def rows(ids: range, *, cents: int = 5) -> list[dict[str, int]]:
    return [{"id": number, "day": number % 4, "cents": cents + number} for number in ids]


def step(store: el.Store, view: el.View, ids: range, *, cents: int = 5) -> int:
    store.table("orders").upsert(rows(ids, cents=cents))
    store.checkpoint()
    epoch = view.step(until="newest")
    assert epoch is not None
    return epoch


@pytest.mark.medium
def test_each_step_says_what_it_was_computed_by(store: el.Store) -> None:
    texts = {
        "state": (GROUPS, "n"),
        "rows": ("SELECT id, cents FROM orders WHERE day > 0", "id"),
        "groups": ("SELECT day, MAX(cents + 0D) AS s FROM orders GROUP BY day", "day"),
        "all rows": ("SELECT COUNT(*) AS n, MAX(cents + 0D) AS m FROM orders", "n"),
    }
    store.checkpoint()
    for place, (way, (text, key)) in enumerate(texts.items()):
        view = store.create_view(f"by_{key}_{way.replace(' ', '_')}", text, [key])
        view.step()
        epoch = step(store, view, range(2), cents=50 + place)
        first, last = view.stats().steps
        assert (first.work.by, first.changes, first.operation) == ("all rows", 0, "refresh")
        assert (last.work.by, last.changes, last.epoch, last.engine) == (way, 2, epoch, "local"), view.explain()
        assert last.bytes > 0 and last.rows > 0 and last.job == view.name
        history = store.table(view.name).history().select(["operation", "engine"])
        assert history.to_pylist()[:2] == [{"operation": each.operation, "engine": "local"} for each in (last, first)]
        assert bool(last.work.blocks) is (way == "state")


@pytest.mark.medium
def test_a_state_is_shown_by_block_and_table(store: el.Store) -> None:
    view = store.create_view("v", GROUPS, ["n"])
    assert view.stats() == type(view.stats())((), ())
    assert "steps: none in this process" in view.explain(analyze=True)
    store.checkpoint()
    view.step()
    step(store, view, range(2), cents=50)
    stats = view.stats()
    below, above = stats.steps[-1].work.blocks
    assert (below.table, below.rows, below.groups, below.recomputed) == ("groups", 4, 2, 0)
    assert (above.table, above.groups) == ("block_1_groups", 1)
    assert below.bytes > 0 and below.took_ms > 0
    assert [size.table for size in stats.state] == ["groups", "values_0", "block_1_groups"]
    assert all(size.rows > 0 and size.bytes > 0 for size in stats.state)
    store.table("orders").delete(pa.table({"id": [1]}))  # the greatest value of its day
    store.checkpoint()
    view.step()
    assert view.stats().steps[-1].work.blocks[0].recomputed == 1
    text = view.explain(analyze=True)
    assert text.startswith(view.explain()) and str(view.stats()) in text
    assert text.count("state") > 3 and "last step, by block of the state:" in text


@pytest.mark.medium
def test_only_the_last_steps_of_some_jobs_are_remembered(store: el.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    view = store.create_view("v", "SELECT id, cents FROM orders", ["id"])
    epochs = [step(store, view, range(number + 1), cents=number) for number in range(step_work.KEPT + 3)]
    assert [each.epoch for each in store.view("v").stats().steps] == epochs[-step_work.KEPT :]
    monkeypatch.setattr(step_work, "MOST_JOBS", len(step_work._steps))
    other = store.create_view("w", "SELECT id FROM orders", ["id"])
    other.step()
    step(store, view, range(9), cents=77)
    assert len(step_work._steps) == step_work.MOST_JOBS
    assert len(other.stats().steps) == 1 and len(view.stats().steps) == step_work.KEPT


@pytest.mark.medium
def test_a_dropped_view_leaves_no_steps_to_the_next_one_of_its_name(store: el.Store) -> None:
    store.checkpoint()
    store.create_view("v", "SELECT id FROM orders", ["id"]).step()
    store.drop_view("v")
    assert store.create_view("v", "SELECT id FROM orders", ["id"]).stats().steps == ()
