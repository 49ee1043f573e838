"""Replacements of views that come before the ones before them are committed: no epoch has both definitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import epochlog as el
from epochlog.checkpoint.job import runner
from epochlog.checkpoint.job.local_context import LocalRefreshContext
from epochlog.store.types.epoch import to_unix_ms
from epochlog.views import duckdb_engine
from epochlog.views.compiled_plan import CompiledPlan
from lab import KEY, Lab
from raw_check import raw_check

QUERIES = [f"SELECT k, CAST(g AS BIGINT) AS g, v * {factor} AS v FROM r" for factor in (1, 2, 3)]
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    yield lab
    lab.store.close()


def require_one_definition(lab: Lab, epoch: int | None = None) -> int:
    """Compare views `a` and `b`, of one query, at the newest valid epoch at or below `epoch`; return it."""
    policy = el.Aligned() if epoch is None else el.AsOf(epoch)
    with lab.store.snapshot(["a", "b"], consistency=policy) as snapshot:
        assert snapshot["a"].to_arrow().to_pylist() == snapshot["b"].to_arrow().to_pylist(), epoch
        return max(snapshot.epochs.values())


@pytest.mark.rule("5.11")
@pytest.mark.parametrize("late", ["replaced", "rebuilt", "parked"])
def test_no_epoch_has_two_definitions_when_a_view_skips_a_replacement(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    """View `a` commits the first replacement. View `b` skips it: its next commit is of a later request."""
    lab.put({1: (0, 10)})
    for name in ("a", "b"):
        lab.store.create_view(name, QUERIES[0], KEY)
    a, b = lab.store.view("a"), lab.store.view("b")
    lab.tick()
    start = a.step()
    assert start and start == b.step()
    lab.tick(3.5)
    first = lab.store.replace_views({"a": QUERIES[1], "b": QUERIES[1]})
    assert a.step() == first
    lab.tick(3.5)
    require_one_definition(lab)
    if late == "replaced":
        lab.store.replace_views({"a": QUERIES[2], "b": QUERIES[2]})
    else:
        if late == "parked":
            with monkeypatch.context() as patch:
                patch.delattr(runner, "difference")
                with pytest.raises(NameError):
                    b.step()  # with a barrier on record, the log is held until the view is parked
            lab.put({1: (0, 11)})
            lab.tick()
            assert a.step() is not None
            lab.now_ms += 2 * DAY_MS
            lab.store.compact("r", full=True)
            assert b.info.state == "parked"
            require_one_definition(lab)
        b.rebuild()
    require_one_definition(lab)
    assert b.info.lag_ms == lab.now_ms - to_unix_ms(first)
    for value in (12, 13):
        lab.tick(1.5)
        for view in (a, b):
            while view.step() is not None:
                require_one_definition(lab)
        lab.put({1: (0, value)})
    logs = [lab.store.table(name).history()["epoch"].to_pylist() for name in ("a", "b", "r")]
    near = {epoch for log in logs for commit in log for epoch in (commit - 1, commit, commit + 1)}
    read = {require_one_definition(lab, epoch) for epoch in near if epoch >= start}
    assert start in read and first - 1 in read and first not in read


@pytest.fixture
def view(lab: Lab) -> el.View:
    lab.put({1: (0, 10)})
    view = lab.store.create_view("a", QUERIES[0], KEY)
    lab.tick()
    assert view.step()
    lab.put({2: (0, 20)})
    lab.tick()
    return view


def overtake(monkeypatch: pytest.MonkeyPatch, *events: Callable[[], object]) -> list[str]:
    """Let each refresh of a view be followed by the next event. Return the queries of the refreshes, filled later."""
    refresh, pending, refreshed = duckdb_engine.refresh, list(events), []

    def followed(ctx: LocalRefreshContext, output: str, plan: CompiledPlan) -> None:
        refreshed.append(plan.derive().sql)
        try:
            refresh(ctx, output, plan)
        finally:
            if pending:
                pending.pop(0)()

    monkeypatch.setattr(duckdb_engine, "refresh", followed)
    return refreshed


@pytest.mark.rule("5.11")
@pytest.mark.logs("views_replaced", "refresh_restarted")
def test_a_step_that_a_replacement_overtakes_goes_on_with_the_new_query(
    lab: Lab, view: el.View, monkeypatch: pytest.MonkeyPatch
) -> None:
    refreshed = overtake(monkeypatch, *(partial(lab.store.replace_views, {"a": query}) for query in QUERIES[1:]))
    epoch = view.step()
    assert refreshed == QUERIES and epoch == view.info.committed_epoch
    assert {row["k"]: row["v"] for row in lab.store.table("a").to_arrow().to_pylist()} == {1: 30, 2: 60}
    assert raw_check(view).ok and view.info.last_error is None and view.info.incarnation == 1
    while view.step() is not None:
        lab.tick()
    assert not set(lab.store.verify().unreachable)


def test_the_error_of_a_query_that_was_replaced_meanwhile_is_dropped(
    lab: Lab, view: el.View, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.store.replace_views(
        {"a": "SELECT CAST(1 AS BIGINT) AS k, CAST(g AS BIGINT) AS g, v FROM r"}
    )  # two rows with one key
    with pytest.raises(el.InvalidInput, match="several rows"):
        view.step()
    refreshed = overtake(monkeypatch, partial(lab.store.replace_views, {"a": QUERIES[1]}))
    lab.tick()
    assert view.step() and len(refreshed) == 2
    assert raw_check(view).ok and view.info.last_error is None


def test_a_step_that_a_rebuild_overtakes_rebuilds(lab: Lab, view: el.View, monkeypatch: pytest.MonkeyPatch) -> None:
    refreshed = overtake(monkeypatch, view.rebuild)
    assert view.step() and len(refreshed) == 2
    assert lab.store.table("a").history()["operation"].to_pylist()[0] == "rebuild"


def test_a_step_of_a_view_that_was_dropped_or_taken_over_says_so(
    lab: Lab, view: el.View, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        other = lab.store.view("a")
        overtake(patch, lambda: (lab.store.replace_views({"a": QUERIES[1]}), other.step(take_over=True)))
        with pytest.raises(el.Fenced):
            view.step()
    lab.put({3: (0, 30)})
    lab.tick()
    other = lab.store.view("a")
    overtake(monkeypatch, partial(lab.store.drop_view, "a"))
    with pytest.raises(el.JobNotFound):
        other.step()
