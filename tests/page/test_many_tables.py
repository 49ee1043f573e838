"""Stores of many tables: no work of the page and the metrics grows faster than the number of tables."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.checkpoint.coordinator.metrics import as_text, store_lines
from epochlog.page import summary
from epochlog.page.changes import difference
from epochlog.page.curves import Curves
from epochlog.page.document import look_at_store, status_document
from epochlog.page.port import encoded
from epochlog.store.epochs.lag import unreflected_of_newest
from epochlog.store.epochs.view import EpochView
from lab import Lab, mirror
from width_work import Meter, superlinear

pytestmark = [pytest.mark.local_only, pytest.mark.slow]


def wide(lab: Lab, count: int) -> None:
    """Make tables with a job each: jobs that keep up, wait, were never stepped, fail, are parked or have finished."""
    for at in range(count):
        lab.root_table(f"r{at}")
        lab.put({1: (1, at)}, f"r{at}")
    lab.store.checkpoint()
    for at in range(count):
        job = lab.job(f"j{at}", [f"r{at}"])
        match at % 4:
            case 0:
                job.step_local(mirror(f"r{at}", f"j{at}_out"))
            case 1:
                with suppress(ZeroDivisionError):
                    job.step_local(_fail)
            case 2:
                job.step_local(mirror(f"r{at}", f"j{at}_out"))
                job.stop(drain=True)
                job.step_local(mirror(f"r{at}", f"j{at}_out"))
            case _:
                pass


def star(lab: Lab, count: int) -> None:
    """Make jobs that all read one table, and one that reads all their outputs."""
    lab.root_table("r0")
    lab.put({1: (1, 1)}, "r0")
    lab.store.checkpoint()
    for at in range(count):
        lab.job(f"j{at}", ["r0"]).step_local(mirror("r0", f"j{at}_out"))
    lab.job("all", [f"j{at}_out" for at in range(count)])


def chain(lab: Lab, count: int) -> None:
    """Make jobs that read the output of the one before each; those of the second half lack the newest change."""
    lab.root_table("r0")
    lab.put({1: (1, 1)}, "r0")
    lab.store.checkpoint()
    names = ["r0", *(f"j{at}_out" for at in range(count))]
    for at in range(count):
        lab.job(f"j{at}", [names[at]]).step_local(mirror(names[at], names[at + 1]))
    lab.put({2: (1, 2)}, "r0")
    lab.store.checkpoint()
    for at in range(count // 2):
        lab.store.job(f"j{at}").step_local(mirror(names[at], names[at + 1]))


def forced(lab: Lab, count: int) -> None:
    """Make forced boundaries, and jobs that have reached none of them."""
    lab.root_table("r0")
    for at in range(count):
        lab.put({at: (1, 1)}, "r0")
        lab.store.checkpoint()
        lab.job(f"j{at}", ["r0"])


def replaced(lab: Lab, count: int) -> None:
    """Make views of which each was replaced by itself."""
    lab.root_table("r0")
    lab.root_table("r1")
    for at in range(count):
        lab.store.create_view(f"v{at}", "SELECT k, v FROM r0", ["k"])
    lab.put({1: (1, 1)}, "r0")
    lab.store.checkpoint()
    for at in range(count):
        lab.store.view(f"v{at}").step()
    for at in range(count):
        lab.tick()
        lab.store.replace_views({f"v{at}": "SELECT k, v FROM r1"})
        lab.store.view(f"v{at}").step()
    lab.put({1: (1, 1)}, "r1")
    lab.store.checkpoint()


def followed(lab: Lab, count: int) -> None:
    """Make tables with a consumer and a tag each."""
    for at in range(count):
        lab.root_table(f"r{at}")
        lab.put({1: (1, at)}, f"r{at}")
    for at in range(count):
        with el.UpstreamLog(lab.store, [f"r{at}"], consumer=f"c{at}"):
            pass
        lab.store.tag(f"t{at}", [f"r{at}"], consistency="latest")


spans = EpochView._spans
SHAPES: list[Callable[[Lab, int], None]] = [wide, star, chain, forced, replaced, followed]


def _fail(ctx: Any) -> None:
    raise ZeroDivisionError


def world(root: Path, shape: Callable[[Lab, int], None], count: int, meter: Meter) -> None:
    lab = Lab(root / f"{shape.__name__}-{count}-{len(list(root.iterdir()))}")
    with lab.store as store:
        shape(lab, count)
        handle, curves = store._handle, Curves(store._handle)
        meter("metrics", lambda: as_text(store_lines(handle)))
        before = status_document("here", look_at_store(handle))
        lab.tick()
        look = meter("look", lambda: look_at_store(handle))
        document = meter("document", lambda: status_document("here", look))
        meter("text", lambda: encoded(document))
        meter("event", lambda: encoded(difference(before, document)))
        meter("sample", lambda: curves.sample(look))
        meter("tables", store.tables)
        meter("jobs", store.jobs)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_no_work_grows_faster_than_the_tables(tmp_path: Path, shape: Callable[[Lab, int], None]) -> None:
    assert superlinear(lambda count, meter: world(tmp_path, shape, count, meter), 8) == []


@pytest.mark.planted
@pytest.mark.parametrize("planted", ["a search in a list", "a lag of its own for each table", "all replacements"])
def test_work_that_grows_faster_is_found(tmp_path: Path, planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant what made a text of 10,000 tables take 12 s."""
    shape = {"a search in a list": wide, "all replacements": replaced}.get(planted, chain)
    if planted == "a search in a list":
        monkeypatch.setattr(summary, "_lag_ms", _lag_by_search)
    elif planted == "all replacements":
        monkeypatch.setattr(EpochView, "_spans", lambda view, refs, lo, hi: spans(view, view.tables, lo, hi))
    else:
        monkeypatch.setattr(EpochView, "unreflected", property(unreflected_of_newest))
    assert superlinear(lambda count, meter: world(tmp_path, shape, count, meter), 8, also=[__file__])


def _lag_by_search(view: EpochView, common: summary.CommonEpoch) -> int | None:
    if common.epoch is None:
        return None
    return max((view.lag_ms(table, common.epoch) for table in common.held_by if table in common.tables), default=0)
