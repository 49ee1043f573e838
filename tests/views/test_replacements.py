"""Replacements of views that come before the ones before them are committed: no epoch has both definitions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import epochlog as el
from epochlog.checkpoint.job import runner
from epochlog.store.types.epoch import to_unix_ms
from lab import KEY, Lab

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
