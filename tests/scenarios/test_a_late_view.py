"""A week with a view that fails: no default read of other tables fails, none is older than the store's bound."""

from __future__ import annotations

import random
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from lab import Lab, state_of, sums

pytestmark = pytest.mark.local_only  # time and catalog records alone decide

BOUND_MS, DAY_MS = 600_000, 86_400_000


def fails(ctx: Any) -> None:
    raise LookupError("no such day")


def run(lab: Lab, name: str, refresh: Any) -> None:
    """Step the job until it has nothing to do, or has failed, or is parked."""
    try:
        while lab.store.job(name).step_local(refresh) is not None:
            pass
    except (LookupError, el.JobParked):
        pass


def check_reads(lab: Lab) -> set[str]:
    """Default reads succeed, are young, and show what the view says of the rows then; returns who took part."""
    with lab.store.snapshot() as moment:
        assert {"r", "kept", "good_out"} <= {*moment} and {*moment} | {*moment.left_out} == {*lab_tables(lab)}
        assert len(set(moment.epochs.values())) == 1 and max(moment.lag_ms.values()) <= BOUND_MS
        rows = state_of(moment["r"].to_arrow())
        assert state_of(moment["good_out"].to_arrow()) == {0: (len(rows), sum(v for _, v in rows.values()))}
        return {*moment}


def lab_tables(lab: Lab) -> list[str]:
    return [info.name for info in lab.store.tables()]


@pytest.mark.rule("3.13")
@pytest.mark.slow
def test_a_week_beside_views_that_fail(tmp_path: Path) -> None:
    """One of them is parked, as its log is kept for a day; the other one's log is kept for a month."""
    lab, rng = Lab(tmp_path / "s"), random.Random(7)
    lab.root_table("r")
    lab.root_table("kept", options=el.TableOptions(log_retention=timedelta(days=30)))
    sources = {"good": "r", "bad": "r", "worse": "kept"}
    for name, source in sources.items():
        lab.job(name, [source])
    start_ms, together, parked = lab.now_ms, 0, set[str]()
    while lab.now_ms < start_ms + 7 * DAY_MS:
        day = (lab.now_ms - start_ms) / DAY_MS
        broken = 0.5 < day < 4 or day > 5
        for table in ("r", "kept"):
            lab.put({rng.randrange(9): (0, rng.randrange(99))}, table)
        lab.tick(rng.choice([1, 2, 5]))
        for name, source in sources.items():
            run(lab, name, fails if broken and name != "good" else sums(source, f"{name}_out"))
            if lab.store.job(name).info.state == "parked":
                parked.add(name)
                if not broken:
                    lab.store.job(name).rebuild()
        lab.tick(rng.choice([1, 300, 3000, 9000]))
        if rng.random() < 0.1:
            lab.store.compact()
            lab.store.vacuum()
        seen = check_reads(lab)
        together += {"bad_out", "worse_out"} <= seen and 4 < day < 5
    assert together > 3 and parked == {"bad"}


@pytest.mark.planted
@pytest.mark.slow
@pytest.mark.parametrize("mutant", ["no bound", "no mark", "none"])
def test_a_view_that_is_catching_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    """Without the bound reads fail after an hour; without marks the view comes and goes, and reads with it."""
    lab = Lab(tmp_path / "s", **({"global_max_lag": timedelta(days=365)} if mutant == "no bound" else {}))
    if mutant == "no mark":
        monkeypatch.setattr("epochlog.batch.choice.mark_late", lambda handle, view, tx: None)
    for table in ("r", "kept"):
        lab.root_table(table, options=el.TableOptions(history_retention=timedelta(hours=1)))
    for name, source in (("good", "r"), ("bad", "kept")):
        lab.job(name, [source])
        run(lab, name, sums(source, f"{name}_out"))
    taking_part: list[bool] = []
    for minute in range(1, 80, 2):
        for table in ("r", "kept"):
            lab.put({minute: (0, 1)}, table)
        lab.tick(120)
        run(lab, "good", sums("r", "good_out"))
        if mutant != "no bound" and minute % 13 == 0:
            assert lab.store.job("bad").step_local(sums("kept", "bad_out"))  # one barrier: it is not back yet
        if mutant != "no bound":
            taking_part.append("bad_out" in check_reads(lab))
    if mutant == "no bound":
        lab.store.compact(full=True)
        with pytest.raises(el.NoConsistentEpoch):
            lab.store.snapshot(["r"], consistency="global")
    else:
        changes = sum(now != before for before, now in pairwise(taking_part))
        assert changes > 4 if mutant == "no mark" else changes == 1
