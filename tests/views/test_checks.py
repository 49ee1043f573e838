"""Checks of views: DuckDB judges no view that only Spark may refresh, nor a view whose new query has no rows yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.views.definition import create_view

ROWS = pa.schema([("id", pa.int64()), ("x", pa.float64())])
ROUNDED = "SELECT id, ROUND(x, 1) AS x FROM t"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[el.Store]:
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=10) as store:
        store.create_table("t", ROWS, ["id"]).upsert(pa.table([[1], [0.25]], schema=ROWS))
        store.create_view("v", "SELECT id, x * 2 AS x FROM t", ["id"])
        store.checkpoint()
        assert store.view("v").step()
        yield store


def test_duckdb_does_not_judge_a_view_of_spark(store: el.Store) -> None:
    """Spark rounds 0.25 to 0.3, DuckDB computes another value for some doubles: it would say that the view is wrong."""
    create_view(store._handle, "rounded", ROUNDED, ["id"], schema_of=lambda *_: ROWS)
    view = store.view("rounded")
    for check in (view.check, lambda: view.job.check(ROUNDED)):
        with pytest.raises(el.InvalidInput, match=r"ROUND\(.*Spark session.*check"):
            check()
    assert not view.info.committed_epoch


def test_a_view_is_checked_by_its_own_text_in_sparks_dialect(store: el.Store) -> None:
    """In Spark `/` divides integers as DOUBLE."""
    sql = "SELECT id, CAST(id AS INT) / 2 AS x FROM t"
    view = store.create_view("half", sql, ["id"])
    store.checkpoint()
    assert view.step() and view.check().ok and view.job.check(sql).ok


@pytest.mark.parametrize("how", ["replaced", "rebuilt"])
def test_a_view_without_rows_of_its_new_query_is_not_checked(store: el.Store, how: str) -> None:
    view = store.view("v")
    if how == "replaced":
        store.replace_views({"v": "SELECT id, x * 3 AS x FROM t"})
    else:
        view.rebuild()
    for check in (view.check, lambda: view.job.check(view.sql)):
        with pytest.raises(el.InvalidInput, match="step it, then check it"):
            check()
    store.checkpoint()
    assert view.step() and view.check().ok
