"""jobs and status: the graph of tables and jobs, their barriers, and what they wait for, to the letter."""

from __future__ import annotations

import io
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from epochlog.cli.render import pages
from epochlog.cli.render.graph import graph
from epochlog.facts.store import jobs_facts, look
from lab import INTERVAL_MS, Lab, mirror

# no test here looks at files: one run with a folder and LMDB tells everything
pytestmark = pytest.mark.local_only


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """Jobs in every state that is easily had; the clock stands 40 ms past a boundary."""
    lab = Lab(tmp_path / "lake")
    for name in ("lines", "orders", "unread"):
        lab.root_table(name)
    jobs = {
        "daily": lab.job("daily", ["orders"], ["revenue", "visits"]),
        "top": lab.job("top", ["lines", "revenue"]),
        "weekly": lab.job("weekly", ["top_out"], interval=7),
    }
    lab.job("late", ["visits", "orders"])
    jobs["broken"] = lab.job("broken", ["orders"])
    lab.job("best", ["broken_out"])
    lab.job("slow", ["lines"], interval=5).step_local(mirror("lines", "slow_out"))
    lab.tick(5)
    for name, source in (("daily", "orders"), ("top", "lines")):
        jobs[name].step_local(mirror(source, {"daily": "visits"}.get(name, "top_out")))
    lab.put({1: (1, 1)}, "orders")
    lab.tick(0.9)
    lab.put({1: (1, 1)}, "lines")
    lab.tick(0.14)
    with pytest.raises(LookupError):
        jobs["broken"].step_local(no_such_day)
    lab.tick(0.06)
    return lab


def no_such_day(ctx: Any) -> None:
    raise LookupError("no such day")


def facts_of(lab: Lab) -> dict[str, dict[str, Any]]:
    return {job["name"]: job for job in jobs_facts(look(lab.store._handle))}


def text(*parts: Any) -> str:
    """As a page for people shows it, without rules and padding."""
    page = io.StringIO()
    for part in parts:
        Console(file=page, width=500).print(part, highlight=False, markup=False)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines() if set(line) - {"─"})


GRAPH = """\
graph                          state      committed epoch                           lag   component   waits for
lines
├─ job slow                    running    409599999 (2025-01-01T00:01:39.999Z)   200 ms           3   its next boundary, 450559999 (2025-01-01T00:01:49.999Z), in 3.9 s
│  └─ slow_out
└─ job top, below revenue
orders
├─ job broken                  failed     -                                       6.1 s           2   a runner to try again, failing for 60 ms with LookupError: no such day
│  └─ broken_out
│     └─ job best              creating   -                                       6.1 s           2   the first commit of broken_out: job broken is failing
│        └─ best_out
├─ job daily                   running    409599999 (2025-01-01T00:01:39.999Z)    1.1 s           1   a runner to begin its barrier at 434175999 (2025-01-01T00:01:45.999Z), due 101 ms ago
│  ├─ revenue
│  │  └─ job top               running    409599999 (2025-01-01T00:01:39.999Z)    1.1 s           1   revenue, complete through 430079999 (2025-01-01T00:01:44.999Z): job daily has a barrier to run
│  │     └─ top_out
│  │        └─ job weekly      creating   -                                       6.1 s           1   a runner to begin its barrier at 430079999 (2025-01-01T00:01:44.999Z), due 6.1 s ago
│  │           └─ weekly_out
│  └─ visits
│     └─ job late              creating   -                                       6.1 s           1   a runner to begin its barrier at 430079999 (2025-01-01T00:01:44.999Z), due 6.1 s ago
│        └─ late_out
└─ job late, below visits
job      reads            writes                           every   incarnation   barrier                         last error
best     broken_out       best_out                         1.0 s             0   -                               -
broken   orders           broken_out                       1.0 s             1   initial 0 → 434175999, 101 ms   LookupError: no such day
daily    orders           revenue, visits                  1.0 s             1   -                               -
late     visits, orders   late_out                         1.0 s             0   -                               -
slow     lines            slow_out          5.0 s = 5 boundaries             1   -                               -
top      lines, revenue   top_out                          1.0 s             1   -                               -
weekly   top_out          weekly_out        7.0 s = 7 boundaries             0   -                               -
"""  # noqa: E501


def test_the_page_of_jobs(lab: Lab) -> None:
    assert text(*pages.jobs_page(list(facts_of(lab).values()))) == GRAPH.rstrip("\n")


def test_all_jobs_that_a_job_waits_for_are_named(lab: Lab) -> None:
    orders = lab.store.table("orders")
    for name in ("left", "right"):
        lab.store.create_job(name, ["orders"], {f"{name}_out": (orders.schema, orders.primary_key)})
    both = {"both_out": (orders.schema, orders.primary_key)}
    lab.store.create_job("both", ["left_out", "right_out"], both)
    waits = facts_of(lab)["both"]["waits_for"]
    assert waits["jobs"] == ["left", "right"] and waits["epoch"] is None
    assert waits["text"] == "the first commit of left_out: job left has a barrier to run; and for job right"


def test_a_drain_and_an_end_are_told(lab: Lab) -> None:
    lab.store.job("slow").stop(drain=True)
    page = text(*pages.jobs_page(list(facts_of(lab).values())))
    assert re.search(r"job slow +running, draining .* a runner to begin its barrier at", page)
    lab.store.job("slow").step_local(mirror("lines", "slow_out"))
    page = text(*pages.jobs_page(list(facts_of(lab).values())))
    assert re.search(r"job slow +finished .* none +3 +nothing more: its data has ended", page)


def test_a_barrier_that_is_decided_waits_for_its_runner(lab: Lab) -> None:
    lab.store.job("daily")._runner.begin()
    daily = facts_of(lab)["daily"]
    assert daily["barrier"] == {
        "prev": daily["committed_epoch"],
        "curr": daily["waits_for"]["epoch"],
        "kind": "checkpoint",
        "age_ms": 101,
    }
    assert daily["waits_for"]["text"].startswith("a runner to commit its barrier at")


def test_a_failure_is_told_since_its_first_attempt_and_until_a_commit(lab: Lab) -> None:
    first = facts_of(lab)["broken"]
    lab.tick(65)
    with pytest.raises(LookupError):
        lab.store.job("broken").step_local(no_such_day)
    again = facts_of(lab)["broken"]
    assert first["failed_since"] == again["failed_since"] == "2025-01-01T00:01:46.040Z"
    assert again["waits_for"]["text"].startswith("a runner to try again, failing for 1 min 5 s with LookupError")
    lab.store.job("broken").step_local(mirror("orders", "broken_out"))
    assert facts_of(lab)["broken"]["failed_since"] is None


def test_a_snapshot_in_pieces_tells_how_far_it_is(lab: Lab) -> None:
    lab.root_table("big")
    lab.put({k: (k, k) for k in range(10)}, "big")
    lab.put({0: (1, 1)}, "big")
    lab.tick()
    job = lab.job("pieces", ["big"], snapshot_rows=4)
    assert facts_of(lab)["pieces"]["snapshot"] is None
    assert job.step_local(mirror("big", "pieces_out")) == 0
    assert facts_of(lab)["pieces"]["snapshot"] == {"rows": 4, "of_at_most": 11}
    lab.store.compact("big", full=True)
    assert facts_of(lab)["pieces"]["snapshot"] == {"rows": 4, "of_at_most": 10}
    page = text(*pages.jobs_page(list(facts_of(lab).values())))
    assert re.search(r"job pieces +creating, 4 of at most 10 rows in .* a runner to continue its backfill at", page)
    while not job.step_local(mirror("big", "pieces_out")):
        pass
    assert facts_of(lab)["pieces"]["snapshot"] is None


def test_a_fill_of_a_view_tells_the_rows_of_the_table_that_it_divides(lab: Lab) -> None:
    for name, rows in (("big", 10), ("small", 3)):
        lab.root_table(name)
        lab.put({k: (k, k) for k in range(rows)}, name)
    lab.tick()
    sql = "SELECT b.k, b.v, s.v AS w FROM small s JOIN big b ON b.k = s.k"
    view = lab.store.create_view("joined", sql, ["k"], snapshot_rows=6)
    for rows in (6, 10):
        assert view._runner.step_local(view.refresh) == 0
        assert facts_of(lab)["joined"]["snapshot"] == {"rows": rows, "of_at_most": 10}
    page = text(*pages.jobs_page(list(facts_of(lab).values())))
    assert re.search(r"job joined +creating, 10 of at most 10 rows in", page)
    assert view.step() and facts_of(lab)["joined"]["snapshot"] is None


def test_a_rebuild_is_told(lab: Lab) -> None:
    lab.store.job("slow").rebuild()
    assert re.search(
        r"job slow +running, rebuilding .* a runner to", text(*pages.jobs_page(list(facts_of(lab).values())))
    )


def test_who_runs_a_job_is_told(lab: Lab) -> None:
    assert "run by" not in text(*pages.jobs_page(list(facts_of(lab).values())))
    lab.store.job("daily")._runner.begin()
    page = text(*pages.jobs_page(list(facts_of(lab).values())))
    assert re.search(rf"daily +step +{os.getpid()} +{os.uname().nodename} +2025-01-01T00:01:", page)


def test_json_tells_what_the_page_tells(run: Any, lab: Lab) -> None:
    names = {
        "name", "upstreams", "outputs", "state", "committed_epoch", "lag_ms", "incarnation", "last_error", "draining",
        "lost", "snapshot_rows", "rebuilding", "committed_at", "interval", "interval_ms", "max_lag", "max_lag_ms",
        "failed_since", "barrier", "snapshot", "waits_for", "outside", "runner", "sql",
        "component",
    }  # fmt: skip
    lab.store.close()
    for command in ("jobs", "status"):
        jobs = {job["name"]: job for job in json.loads(run(command, lab.root, "--json").out)["jobs"]}
        assert all(set(job) == names for job in jobs.values())
        assert jobs["slow"]["interval_ms"] == 5 * INTERVAL_MS
        assert jobs["best"]["waits_for"] == {
            "kind": "upstream",
            "epoch": None,
            "upstream": "broken_out",
            "writer": "broken",
            "through": 0,
            "cause": "broken",
            "since_ms": None,
            "jobs": ["broken"],
            "text": "the first commit of broken_out: job broken is failing",
        }
    assert run("status", lab.root).out.count("the first commit of broken_out: job broken is failing") == 1


# ---- the graph ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_every_table_and_job_is_drawn_once_below_what_it_comes_from(seed: int) -> None:
    rng = random.Random(seed)
    tables = [f"r{at}" for at in range(3)]
    jobs = []
    for at in range(rng.randint(1, 12)):
        ups = rng.sample(tables, rng.randint(1, min(3, len(tables))))
        outputs = [f"t{at}_{out}" for out in range(rng.randint(1, 2))]
        jobs.append({"name": f"j{at}", "upstreams": ups, "outputs": outputs})
        tables += outputs
    rng.shuffle(jobs)
    above: list[str] = []  # the names from the root down to the line
    reads, writes, seen = set(), set(), []
    for line in graph(jobs):
        del above[len(line.indent) // 3 :]
        parent = above[-1] if above else None
        above.append(line.name)
        if line.kind in ("job", "elsewhere"):
            reads.add((parent, line.name))
        elif line.kind == "output":
            writes.add((parent, line.name))
        if line.kind != "elsewhere":
            seen.append(line.name)
        assert (line.kind == "root") == (parent is None), seed
        assert line.home is None or (line.home == parent) == (line.kind == "job"), seed
    assert reads == {(up, job["name"]) for job in jobs for up in job["upstreams"]}
    assert writes == {(job["name"], out) for job in jobs for out in job["outputs"]}
    assert len(seen) == len(set(seen)), seed


@pytest.mark.medium
def test_a_chain_of_thousands_is_drawn() -> None:
    jobs = [{"name": f"j{at}", "upstreams": [f"t{at}"], "outputs": [f"t{at + 1}"]} for at in range(3000)]
    assert sum(line.kind == "job" for line in graph(jobs)) == 3000
