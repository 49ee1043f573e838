"""Plans of a barrier: made from one reading of each table's files, and equal to those that are made one by one."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from epochlog.checkpoint.job import refresh_plan
from epochlog.checkpoint.job.refresh_plan import RefreshPlan, plan_barrier
from epochlog.store.catalog.lmdb.catalog import LmdbView
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.log_plan import Columns, plan_backfill, plan_changes
from epochlog.store.metadata.job_columns import read_by
from epochlog.store.metadata.lookups import get_job, get_table
from epochlog.store.scan.scan_plan import ScanFiles, ScanPlan, plan_scan
from lab import Lab, mirror

pytestmark = pytest.mark.local_only
REFRESH = mirror("r", "j_out")


def planned(lab: Lab) -> tuple[RefreshPlan, RefreshPlan]:
    """Plan the recorded barrier of `j`, and compose the plan of its upstream again from single plans."""
    runner = lab.store.job("j")._runner

    def body(view: ReadTxn) -> tuple[RefreshPlan, RefreshPlan]:
        job = get_job(view, runner.job_id, "j")
        plan = plan_barrier(view, runner.handle, job)
        (up,) = plan.upstreams.values()
        prev, curr = plan.barrier.prev, plan.barrier.curr
        current = get_table(view, up.table.id, "r")
        table = read_by(job, current)
        columns = Columns(table.schema, whole=True)
        changes = (
            plan_backfill(view, table, curr, table.schema)
            if job.reads_all_rows
            else plan_changes(view, current, prev, curr, by_commit=True, columns=columns)
        )
        previous = plan_scan(view, table, prev, table.schema) if prev else ScanPlan(table.schema, 0)
        single = refresh_plan.Upstream(table, changes, plan_scan(view, table, curr, table.schema), previous)
        return plan, replace(plan, upstreams={"r": single})

    return runner.handle.catalog.read(body)


def check_plans(lab: Lab, rng: random.Random, steps: int = 12) -> set[str]:
    """Raises AssertionError if a plan differs from the single plans; return the kinds of barriers."""
    kinds = set[str]()
    for _ in range(steps):
        for _ in range(rng.randrange(1, 4)):
            lab.put({rng.randrange(5): (0, rng.randrange(9))})
        lab.tick()
        if rng.random() < 0.3:
            lab.store.compact(full=rng.random() < 0.5)
        if rng.random() < 0.2:
            lab.store.job("j").rebuild()
        runner = lab.store.job("j")._runner
        if runner.begin(lease=runner.new_lease("query")) is not None:
            together, single = planned(lab)
            assert together == single, "differs"
            kinds.add(together.barrier.kind)
        while lab.store.job("j").step_local(REFRESH, take_over=True) is not None:
            pass
    return kinds


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    made = Lab(tmp_path / "store")
    made.root_table()
    made.job("j", ["r"])
    return made


def test_plans_from_one_reading_are_the_single_plans(lab: Lab) -> None:
    assert check_plans(lab, random.Random(3)) == {"initial", "checkpoint"}


@pytest.mark.planted
def test_a_plan_with_later_entries_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    plainly = ScanFiles.plan

    def plan(files: ScanFiles, table: Any, epoch: int | None, schema: Any = None) -> ScanPlan:
        segments = tuple(segment for entry in files.entries for segment in entry.segments)
        return replace(plainly(files, table, epoch, schema), segments=segments)

    monkeypatch.setattr(ScanFiles, "plan", plan)
    with pytest.raises(AssertionError, match="differs"):
        check_plans(lab, random.Random(3))


def test_each_log_is_read_once_for_all_plans_of_a_barrier(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four plans read the entries of the upstream's log, each all of them."""
    job = lab.store.job("j")
    for number in range(12):
        lab.put({number: (0, number)})
        lab.tick()
        assert job.step_local(REFRESH)
    lab.put({99: (0, 0)})
    lab.tick()
    entries, scan = list[bytes](), LmdbView.scan_packed

    def counted(view: LmdbView, low: bytes, high: bytes, **options: Any) -> Any:
        for key, record in scan(view, low, high, **options):
            entries.extend([key] if key.startswith(b"log/") else [])
            yield key, record

    monkeypatch.setattr(LmdbView, "scan_packed", counted)
    runner = job._runner
    assert runner.begin(lease=runner.new_lease("query")) is not None
    assert len(entries) == 13 + 1 + 12, "the rows of r, its changes, and the rows of j_out"
