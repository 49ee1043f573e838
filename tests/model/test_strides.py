"""Slow views take several boundaries at once: at common ones, and without waiting for one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
import history_runs
from epoch_histories import INTERVAL_MS, History, HistoryEntry, JobSpec, play, random_history
from epochlog.checkpoint.job.next_barrier import Barrier, next_barrier
from epochlog.store.metadata import step_times
from epochlog.store.metadata.step_times import KEPT, StepTime, StepTimes
from epochlog.store.types.epoch import boundary
from history_checks import by_definition, catch_up, check_against_definitions, check_law
from history_runs import by_library
from seeds import seeds

pytestmark = pytest.mark.local_only


def strided(seed: int) -> Iterator[tuple[random.Random, History]]:
    """Random histories whose jobs have strides, which change now and then."""
    chance = random.Random(f"strides {seed}")
    for history in play(random_history(chance), chance, by_definition):
        for spec in history.jobs.values():
            spec.stride = chance.choice([1, 1, 2, 4, 8, 64])
        yield chance, history


@pytest.mark.rule("5.39")
@pytest.mark.parametrize("seed", seeds(range(60), 20))
def test_slow_jobs_keep_the_law_and_never_wait(seed: int) -> None:
    history = None
    for chance, history in strided(seed):
        check_against_definitions(seed, chance, history)
        check_law(seed, history)
        for job, spec in history.jobs.items():
            after, stride = history.position(job), spec.stride
            taken = by_library(history, job)
            spec.stride = 1
            assert (taken is None) == (by_library(history, job) is None), (seed, job, "a slow job waits")
            spec.stride = stride
            assert taken is None or taken > after
    assert history is not None
    catch_up(seed, history)


@pytest.mark.rule("5.39")
def test_the_stride_is_the_least_power_of_two_that_lasts_as_long_as_the_median_step() -> None:
    def stride(*took_ms: int, interval_ms: int = 1000) -> int:
        return StepTimes("local", took_ms).stride(interval_ms)

    assert [stride(*[ms] * KEPT) for ms in (0, 1, 999, 1000, 1001, 2000, 2001, 4000, 4001)] == [
        1,
        1,
        1,
        1,
        2,
        2,
        4,
        4,
        8,
    ]
    assert stride(*[10**9] * KEPT) == step_times.MOST_BOUNDARIES
    assert stride(100, 100, 100, 9000, 9000) == 1 and stride(100, 100, 3000, 9000, 9000) == 4
    assert stride(*[9000] * (KEPT - 1)) == 1, "one slow step is no slow view"
    assert stride(*[9000] * KEPT, interval_ms=60_000) == 1


def test_times_of_another_engine_are_forgotten() -> None:
    times: StepTimes | None = None
    for took_ms in range(7):
        times = StepTime("local", took_ms).after(times)
    assert times == StepTimes("local", (2, 3, 4, 5, 6))
    assert StepTime("spark", 9).after(times) == StepTimes("spark", (9,))
    assert StepTimes.from_record(times.to_record()) == times


# ---- how far slow views are behind together ------------------------------------------------------------------------


@dataclass(frozen=True)
class Ages:
    """Ages of the newest epoch at which all tables are valid, in boundaries, over the second half of a run."""

    ages: tuple[int, ...]

    @property
    def mean(self) -> float:
        return sum(self.ages) / len(self.ages)


def pace_of(took: Mapping[str, int], strides: Mapping[str, int], boundaries: int = 240) -> Ages:
    """Run views over one table that changes in each interval. took: boundaries that pass during a view's step."""
    history = History(["r"], {job: JobSpec(["r"], max_lag=30, stride=strides[job]) for job in took})
    left, decided, ages = dict.fromkeys(took, 0), dict[str, int](), list[int]()
    for index in range(1, boundaries + 1):
        history.last_epoch = boundary(index, INTERVAL_MS)
        history.log["r"].append(HistoryEntry(history.last_epoch - 1, {"k": index}, changed=True))
        for job in took:
            left[job] -= 1
            if left[job] <= 0:
                if job in decided:
                    epoch = decided.pop(job)
                    history.step(job, lambda history, job, epoch=epoch: epoch)
                stop = by_library(history, job)
                if stop is not None:
                    decided[job], left[job] = stop, took[job]
        newest = history.view().largest_valid_at_most(history.names) or 0
        ages.append(index - (newest + 1) // (INTERVAL_MS << 12))
    return Ages(tuple(ages[boundaries // 2 :]))


@pytest.mark.medium
@pytest.mark.rule("5.39")
def test_eight_slow_views_share_newer_epochs_by_their_strides() -> None:
    """Without strides each takes every boundary in turn, and falls behind until it lags max_lag boundaries."""
    took = {f"v{number}": 1 + number % 4 for number in range(8)}
    own = {job: StepTimes("local", (took_s * 1000,) * KEPT).stride(1000) for job, took_s in took.items()}
    by_strides, in_turn = pace_of(took, own), pace_of(took, dict.fromkeys(took, 1))
    print(by_strides.mean, in_turn.mean)
    assert by_strides.mean * 2 < in_turn.mean


# ---- planted errors ------------------------------------------------------------------------------------------------


def waits_for_its_multiple(*arguments: Any, stride: int, **options: Any) -> Barrier | None:
    barrier = next_barrier(*arguments, stride=stride, **options)
    waits = barrier is not None and (barrier.curr + 1) % (stride * (INTERVAL_MS << 12))
    return None if stride > 1 and waits else barrier


def takes_each_boundary(*arguments: Any, stride: int, **options: Any) -> Barrier | None:
    return next_barrier(*arguments, stride=1, **options)


@pytest.mark.planted
@pytest.mark.parametrize("plant", [waits_for_its_multiple, takes_each_boundary])
def test_a_planted_error_of_strides_is_found(plant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_runs, "next_barrier", plant)
    with pytest.raises(AssertionError):
        test_slow_jobs_keep_the_law_and_never_wait(0)


# ---- in a store ------------------------------------------------------------------------------------------------------


def slow_store(folder: Path) -> el.Store:
    store = el.open(folder)
    table = store.create_table("t", pa.schema([pa.field("id", pa.int64(), nullable=False)]), primary_key=["id"])
    store.create_view("v", "SELECT id AS k, COUNT(*) AS n FROM t GROUP BY id", primary_key=["k"])
    table.upsert(pa.table({"id": [0]}))
    store.checkpoint()
    store.view("v").step()
    return store


@pytest.mark.medium
@pytest.mark.rule("5.39")
def test_a_view_with_slow_steps_takes_all_boundaries_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    took_ms = 5000
    monkeypatch.setattr("epochlog.checkpoint.job.refresh_plan.StepTime", lambda engine, _: StepTime(engine, took_ms))
    with slow_store(tmp_path) as store:
        for number in range(1, KEPT + 1):
            store.table("t").upsert(pa.table({"id": [number]}))
            store.checkpoint()
            assert store.view("v").step() is not None
        for number in range(10, 14):
            store.table("t").upsert(pa.table({"id": [number]}))
            store.checkpoint()
        newest = store.last_epoch
        assert store.view("v").step() == newest
        assert store.view("v").step() is None
        took_ms = 1
        for number in range(20, 20 + KEPT):
            store.table("t").upsert(pa.table({"id": [number]}))
            store.checkpoint()
            store.view("v").step()
        for number in range(30, 34):
            store.table("t").upsert(pa.table({"id": [number]}))
            store.checkpoint()
        assert [store.view("v").step() is not None for _ in range(5)] == [True] * 4 + [False], "it is fast again"


def test_backfills_rebuilds_and_retries_are_no_steps_of_its_pace(tmp_path: Path) -> None:
    with slow_store(tmp_path) as store:
        store.view("v").rebuild()
        store.view("v").step()
        assert times_of(store) is None
        store.table("t").upsert(pa.table({"id": [1]}))
        store.checkpoint()
        store.view("v").step()
        times = times_of(store)
        assert times is not None and times.engine == "local" and len(times.took_ms) == 1
        store.drop_job("v")
        assert times_of(store) is None


def times_of(store: el.Store) -> StepTimes | None:
    return store._handle.catalog.read(lambda view: step_times.read_step_times(view, 1))
