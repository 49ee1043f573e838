"""Restore checks: a job whose catalog contradicts itself is not run, and verify says why."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.store.catalog.keys import head_key, job_key
from epochlog.store.metadata.lookups import find_job, find_table, get_version
from epochlog.store.types.epoch import show_epoch
from lab import Lab, mirror, refuse


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """r -> a -> b, all caught up."""
    lab = Lab(tmp_path / "store")
    lab.root_table()
    for number in range(2):
        lab.put({number: (0, number)})
        lab.tick()
        for name, upstream in (("a", "r"), ("b", "a_out")):
            job = lab.store.job(name) if number else lab.job(name, [upstream])
            assert job.step_local(mirror(upstream, f"{name}_out")) is not None
    assert lab.store.verify().ok
    return lab


def damage_job(lab: Lab, name: str, **changes: Any) -> None:
    def body(tx: Any) -> None:
        job = find_job(tx, name)
        tx.put(job_key(job.id), replace(job, **changes).to_record())

    lab.store._handle.catalog.transact(body)


def damage_table(lab: Lab, name: str, change: Callable[[Any], dict[str, Any]]) -> None:
    def body(tx: Any) -> None:
        table = find_table(tx, name)
        version = get_version(tx, table.id, name)
        tx.put(head_key(table.id), replace(version, **change(version)).to_record())

    lab.store._handle.catalog.transact(body)


def rejected(lab: Lab, name: str, match: str) -> None:
    """By step, by every runner that would begin, without any effect; and verify tells it too."""
    before = lab.store.job(name).info.incarnation
    for _ in range(2):
        with pytest.raises(el.RestoreRejected, match=re.escape(match)):
            lab.store.job(name).step_local(refuse)
    assert lab.store.job(name).info.incarnation == before
    problems = [problem for problem in lab.store.verify().problems if problem.where == f"job {name}"]
    assert problems, lab.store.verify()


@pytest.mark.rule("5.12")
@pytest.mark.damages_store
def test_a_downstream_past_its_upstream(lab: Lab) -> None:
    """The upstream's records are of an older copy than the downstream's."""
    lab.put({5: (0, 5)})  # so that nothing says that the upstream has nothing to take in
    lab.tick()
    position = lab.store.job("b").info.committed_epoch
    first = lab.entries("a_out")[0][0]
    damage_job(lab, "a", position=first)
    damage_table(lab, "a_out", lambda version: {"max_committed_epoch": first})
    rejected(lab, "b", f"position is {show_epoch(position)}, but its upstream a_out is complete only through")


@pytest.mark.rule("5.12")
@pytest.mark.damages_store
def test_outputs_that_stand_elsewhere(lab: Lab) -> None:
    position = lab.store.job("a").info.committed_epoch
    damage_job(lab, "a", position=position - 5)
    rejected(lab, "a", f"position is {show_epoch(position - 5)}, but its output a_out is at {show_epoch(position)}")


@pytest.mark.rule("5.12")
@pytest.mark.damages_store
def test_the_log_has_not_what_follows(lab: Lab) -> None:
    position = lab.store.job("a").info.committed_epoch
    lab.put({7: (0, 7)})
    damage_table(lab, "r", lambda version: {"log_start": position + 1})
    rejected(
        lab,
        "a",
        f"continues from {show_epoch(position)}, but the log of its upstream r begins after {show_epoch(position + 1)}",
    )


@pytest.mark.rule("5.12")
@pytest.mark.damages_store
def test_finished_below_what_is_not(lab: Lab) -> None:
    position = lab.store.job("b").info.committed_epoch
    damage_job(lab, "b", state="finished")
    damage_table(lab, "b_out", lambda version: {"end_epoch": position})
    rejected(lab, "b", f"finished at {show_epoch(position)}, but its upstream a_out is not")


@pytest.mark.rule("5.12")
@pytest.mark.damages_store
def test_an_end_without_a_finished_job(lab: Lab) -> None:
    position = lab.store.job("b").info.committed_epoch
    damage_table(lab, "b_out", lambda version: {"end_epoch": position})
    rejected(lab, "b", f"it is running, but the data of its output b_out ended at {show_epoch(position)}")


@pytest.mark.rule("5.12")
def test_a_drained_job_may_end_before_its_upstreams(lab: Lab) -> None:
    job = lab.store.job("b")
    job.step_local(mirror("a_out", "b_out"))
    job.stop(drain=True)
    assert lab.store.job("b").step_local(refuse) is None
    assert lab.store.verify().ok
