"""Outputs of jobs as tables of the first class: old rows stored with their commits, in every way that jobs commit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.store.commit import job_commit
from epochlog.store.sst.segment_writer import SegmentWriter
from lab import KEY, SCHEMA, Lab, keys_of, mirror, table_of

SHORT = el.TableOptions(history_retention=timedelta(0))
KeyChanges = list[tuple[str, int, int]]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "s")
    made.root_table()
    yield made
    made.store.close()


def changes_since(lab: Lab, after: int, name: str = "out") -> KeyChanges:
    changes = lab.store.table(name).changes(after, pre_images=True).read_all()
    return list(zip(*(changes[column].to_pylist() for column in ("_change_type", "k", "v")), strict=True))


def update(key: int, old: int, new: int) -> KeyChanges:
    return [("update_preimage", key, old), ("update_postimage", key, new)]


def full(lab: Lab, **options: Any) -> el.Job:
    return lab.store.create_job("j", ["r"], {"out": el.Output(SCHEMA, KEY, changelog="full", options=SHORT)}, **options)


def step(lab: Lab, job: el.Job, refresh: Any = None) -> int:
    lab.store.checkpoint()
    done = job.step_local(refresh or mirror("r", "out"))
    while done == 0:
        done = job.step_local(refresh or mirror("r", "out"))
    assert done is not None
    return done


def forget_states(lab: Lab) -> None:
    lab.tick()
    lab.store.compact("out", full=True)


@pytest.mark.parametrize("pieces", [None, 2])
def test_old_rows_are_stored_with_each_commit(lab: Lab, pieces: int | None) -> None:
    job = full(lab, snapshot_rows=pieces)
    lab.put({1: (0, 1), 2: (0, 2), 3: (0, 3)})
    first = step(lab, job)
    lab.put({1: (0, 4), 5: (0, 5)})
    lab.store.table("r").delete(keys_of([2]))
    step(lab, job)
    forget_states(lab)
    assert changes_since(lab, 0) == [
        *(("insert", key, key) for key in (1, 2, 3)),
        *update(1, 1, 4),
        ("delete", 2, 2),
        ("insert", 5, 5),
    ]
    assert changes_since(lab, first) == [*update(1, 1, 4), ("delete", 2, 2), ("insert", 5, 5)]


def test_a_rebuild_stores_what_it_replaces(lab: Lab) -> None:
    job = full(lab, snapshot_rows=1)
    lab.put({1: (0, 1), 2: (0, 2)})
    first = step(lab, job)
    lab.put({2: (0, 3), 3: (0, 3)})
    job.rebuild()
    lab.tick()
    step(lab, job)
    forget_states(lab)
    assert changes_since(lab, first) == [*update(2, 2, 3), ("insert", 3, 3)]


def test_a_drained_job_stores_them_too(lab: Lab) -> None:
    job = full(lab)
    lab.put({1: (0, 1)})
    first = step(lab, job)
    lab.put({1: (0, 2)})
    job.stop(drain=True)
    forget_states(lab)
    assert lab.state("j") == "finished" and changes_since(lab, first) == update(1, 1, 2)


@pytest.mark.rule("5.15")
@pytest.mark.parametrize("later", ["full", "upsert"])
def test_a_changelog_altered_while_a_commit_is_made(lab: Lab, monkeypatch: pytest.MonkeyPatch, later: str) -> None:
    """The commit is made again where it lacks old rows; those that are not asked for any more do no harm."""
    job = full(lab)
    table = lab.store.table("out")
    if later == "full":
        table.alter(changelog="upsert")
    lab.put({1: (0, 1)})
    first = step(lab, job)
    lab.put({1: (0, 2)})
    real = job_commit.prepare_outputs

    def altering(*args: Any, **options: Any) -> Any:
        settings = real(*args, **options)
        table.alter(changelog=later)
        return settings

    monkeypatch.setattr(job_commit, "prepare_outputs", altering)
    step(lab, job)
    assert changes_since(lab, first) == update(1, 1, 2)
    report = lab.store.verify()
    assert report.ok and not report.unreachable


def test_the_same_barrier_committed_again_leaves_no_file(lab: Lab) -> None:
    """An answer was lost: the second call finds the first one's commit."""
    job = full(lab)
    lab.put({1: (0, 1)})
    step(lab, job)
    lab.put({1: (0, 2)})
    lab.store.checkpoint()
    run = job._runner.begin()
    assert run is not None
    writer = SegmentWriter(run.output("out").target)
    writer.upsert(table_of({1: (0, 2)}))
    segments = {"out": writer.finish()}
    assert job._runner.commit(run, segments) == job._runner.commit(run, segments) == run.barrier.curr
    report = lab.store.verify()
    assert report.ok and not report.unreachable
