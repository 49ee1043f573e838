"""Views whose query has no valid rows at a boundary go on at the next one at which it has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from lab import Lab
from raw_check import raw_check

ITEMS = pa.schema([("id", pa.int64()), ("a", pa.int64())])
QUERIES = {"two rows": "SELECT a, id FROM t", "null": "SELECT a, MAX(id) AS id FROM t GROUP BY a"}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "store")
    lab.store.create_table("t", ITEMS, ["id"]).upsert(pa.table([[1], [5]], schema=ITEMS))
    yield lab
    lab.store.close()


def spoil(lab: Lab, kind: str) -> None:
    lab.store.table("t").upsert(
        pa.table([[2], pa.array([5 if kind == "two rows" else None], pa.int64())], schema=ITEMS)
    )
    lab.tick()


@pytest.mark.rule("5.4")
@pytest.mark.parametrize("interval", [1, 7])
@pytest.mark.parametrize("kind", list(QUERIES))
def test_a_view_goes_on_at_the_first_boundary_after_its_rows_were_mended(lab: Lab, kind: str, interval: int) -> None:
    view = lab.store.create_view("v", QUERIES[kind], ["a"], interval=interval)
    lab.tick(interval)
    first = view.step()
    assert first
    spoil(lab, kind)
    for _ in range(3):
        lab.tick(interval)
        with pytest.raises(el.InvalidInput) as error:
            view.step()
        assert "recompute" not in str(error.value) and "from_" not in str(error.value)
    assert view.info.state == "failed" and view.info.committed_epoch == first
    lab.store.table("t").delete(pa.table({"id": [2]}))
    lab.tick(interval)
    mended = view.step()
    assert mended and mended > first and view.info.state == "running"
    assert lab.store.table("v").to_arrow().to_pylist() == [{"a": 5, "id": 1}]
    assert raw_check(view).ok and view.info.last_error is None
    for value in (6, 7):  # from here on it takes each boundary again
        lab.store.table("t").upsert(pa.table([[1], [value]], schema=ITEMS))
        lab.tick(interval)
    assert view.step() and view.step()


@pytest.mark.rule("5.4", "5.11")
def test_a_replacement_that_fails_at_its_boundary_is_committed_at_a_later_one(lab: Lab) -> None:
    """Another view of the replacement commits at its boundary, so this one is valid from its own commit on."""
    for name in ("v", "w"):
        lab.store.create_view(name, QUERIES["null"], ["a"])
    v, w = lab.store.view("v"), lab.store.view("w")
    lab.tick()
    assert v.step() == w.step()
    spoil(lab, "two rows")
    assert v.step() == w.step()
    boundary = lab.store.replace_views({"v": QUERIES["two rows"], "w": "SELECT a, MIN(id) AS id FROM t GROUP BY a"})
    assert w.step() == boundary
    with pytest.raises(el.InvalidInput):
        v.step()
    lab.store.table("t").delete(pa.table({"id": [2]}))
    lab.tick()
    late = v.step()
    assert late and late > boundary
    w.step()
    for epoch, expected in ((late, late), (late - 1, boundary - 1), (boundary, boundary - 1)):
        with lab.store.snapshot(["v", "w"], consistency=el.AsOf(epoch)) as snapshot:
            assert max(snapshot.epochs.values()) == expected
