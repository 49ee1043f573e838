"""Open stores and what holds them: what to send to another process instead, and warnings about those left open."""

from __future__ import annotations

import gc
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with el.open(tmp_path / "lake", durability="os") as store:
        store.create_table("t", SCHEMA, ["id"]).upsert([{"id": 1}])
        store.create_job("j", ["t"], {"out": (SCHEMA, ["id"])})
        yield store


def context_of(store: el.Store) -> Any:
    seen: list[Any] = []
    store.checkpoint()
    store.job("j").step_local(seen.append)
    return seen[0]


def pipeline_of(store: el.Store) -> el.Pipeline:
    pipe = el.Pipeline(store)
    pipe.add(store.job("j"), lambda ctx: None)
    return pipe


THINGS: dict[str, tuple[Callable[[el.Store], Any], str]] = {
    "store": (lambda store: store, r"send store\.root"),
    "table": (lambda store: store.table("t"), r"table\(name\)"),
    "writer": (lambda store: store.table("t").writer(), r"send store\.root"),
    "snapshot": (lambda store: store.snapshot(["t"], consistency="latest"), r"snapshot\.token"),
    "table of a snapshot": (lambda store: store.snapshot(["t"], consistency="latest")["t"], "token"),
    "dataset": (lambda store: store.table("t").dataset(), r"snapshot\.token"),
    "job": (lambda store: store.job("j"), r"job\(name\)"),
    "context": (context_of, "rows"),
    "transaction": (lambda store: store.transaction(), r"send store\.root"),
    "log": (lambda store: el.UpstreamLog(store, ["t"], after=0), r"^UpstreamLog holds .*send store\.root.*UpstreamLog"),
    "pipeline": (el.Pipeline, r"^Pipeline holds .*send store\.root.*Pipeline"),
    "pipeline with a job": (pipeline_of, r"^Pipeline holds"),
}


@pytest.mark.parametrize("what", THINGS)
def test_pickling_says_what_to_send_instead(store: el.Store, what: str) -> None:
    make, message = THINGS[what]
    made = make(store)
    with pytest.raises(el.InvalidInput, match=message):
        pickle.dumps(made)
    if what not in ("store", "dataset"):  # as it lies in what a Spark function captures
        with pytest.raises(el.InvalidInput):
            pickle.dumps({"captured": [made]})


def warned(act: Callable[[], object]) -> list[str]:
    """Return the ResourceWarnings about objects that `act` leaves open."""
    gc.collect()
    with warnings.catch_warnings(record=True) as warned_of:
        warnings.simplefilter("always")
        act()
        gc.collect()
    return [str(warning.message) for warning in warned_of if warning.category is ResourceWarning]


def left_open(messages: list[str], what: str) -> bool:
    return any(message.startswith("unclosed <") and what in message for message in messages)


@pytest.mark.medium
def test_a_store_left_open_is_warned_of(tmp_path: Path) -> None:
    def leave() -> el.Table:
        return el.open(tmp_path / "lake", durability="os").create_table("t", SCHEMA, ["id"])

    tables: list[el.Table] = []
    assert left_open(warned(lambda: tables.append(leave())), "epochlog.Store")
    assert tables[0].upsert([{"id": 1}]) > 0  # nothing was closed

    def close() -> None:
        with el.open(tmp_path / "lake", durability="os"):
            pass
        el.open(tmp_path / "lake", durability="os").close()

    assert not left_open(warned(close), "epochlog.Store")


@pytest.mark.medium
def test_a_snapshot_left_open_is_warned_of_and_a_closed_one_is_not(store: el.Store) -> None:
    def take() -> el.Snapshot:
        return store.snapshot(["t"], consistency="latest")

    assert left_open(warned(lambda: take().close and None), "Snapshot")
    assert left_open(warned(lambda: take().duckdb().sql("SELECT * FROM t").fetchall()), "Snapshot")

    def close() -> None:
        with take() as moment:
            moment.duckdb().close()
        take().close()

    assert not left_open(warned(close), "Snapshot")


@pytest.mark.medium
def test_a_view_in_duckdb_keeps_its_snapshot(store: el.Store) -> None:
    connection = store.snapshot(["t"], consistency="latest").duckdb()
    assert not left_open(warned(lambda: None), "Snapshot")
    assert connection.sql("SELECT count(*) FROM t").fetchall() == [(1,)]
    assert left_open(warned(connection.close), "Snapshot")


def test_another_interval_than_the_stores_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "timed"
    el.open(root, checkpoint_interval_ms=250, durability="os").close()
    with pytest.raises(el.InvalidInput, match=r"checkpoint_interval_ms=250, which cannot change to 1000"):
        el.open(root, checkpoint_interval_ms=1000, durability="os")
    for options in ({}, {"checkpoint_interval_ms": 250}):
        with el.open(root, durability="os", **options) as store:
            assert store.checkpoint_interval_ms == 250
    with el.open(tmp_path / "plain", durability="os") as store:
        assert store.checkpoint_interval_ms == 1000
    with pytest.raises(el.InvalidInput, match="from 1 to 86,400,000"):
        el.open(root, checkpoint_interval_ms=0)
