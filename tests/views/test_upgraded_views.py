"""Views of an earlier release: one whose text is read otherwise now is rebuilt, and newer records are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.checkpoint.job import claims
from epochlog.store.catalog.keys import job_key
from epochlog.store.catalog.protocol import Txn
from epochlog.store.catalog.records import Record
from epochlog.store.metadata import definitions
from epochlog.store.metadata.definitions import DERIVATION, JOB_FORMAT, JobRecord
from epochlog.store.metadata.lookups import find_job
from epochlog.views import definition, stored
from reading_faults import _a_doubled_quote_is_none

SQL = "SELECT id AS k, 'O''Brien' AS s, COUNT(*) AS n FROM t GROUP BY id"


def make_earlier(monkeypatch: pytest.MonkeyPatch, store: el.Store) -> None:
    """Make a view as an earlier release would, which read `''` as nothing."""
    table = store.create_table("t", pa.schema([pa.field("id", pa.int64(), nullable=False)]), primary_key=["id"])
    table.upsert(pa.table({"id": [1, 2]}))
    with monkeypatch.context() as earlier:
        _a_doubled_quote_is_none(earlier)
        for module in (definition, stored, claims, definitions):
            earlier.setattr(module, "DERIVATION", DERIVATION - 1)
        view = store.create_view("v", SQL, primary_key=["k"])
        store.checkpoint()
        view.step()
    assert store.table("v").to_arrow().column("s").to_pylist() == ["OBrien"] * 2


def step_by_view(store: el.Store) -> None:
    store.view("v").step()


def run_by_pipeline(store: el.Store) -> None:
    pipeline = el.Pipeline(store)
    pipeline.add(store.view("v"))
    pipeline.run(until="idle")


@pytest.mark.rule("5.38")
@pytest.mark.parametrize("run", [step_by_view, run_by_pipeline])
def test_a_view_that_was_read_otherwise_is_rebuilt_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[[el.Store], None]
) -> None:
    """Without it the rows of unchanged groups kept the earlier reading until somebody rebuilt the view."""
    with el.open(tmp_path) as store:
        make_earlier(monkeypatch, store)
        run(store)
        assert store.table("v").to_arrow().column("s").to_pylist() == ["O'Brien"] * 2
        commits = store.table("v").history().num_rows
        store.table("t").upsert(pa.table({"id": [3]}))
        store.checkpoint()
        run(store)
        assert store.table("v").to_arrow().column("s").to_pylist() == ["O'Brien"] * 3
        assert store.table("v").history().num_rows == commits + 1
        assert store.table("v").history()["rows_upserted"][0].as_py() == 1


def test_old_rows_are_read_until_the_rebuild_has_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with el.open(tmp_path) as store:
        make_earlier(monkeypatch, store)
        before = store.last_epoch
        store.view("v").step()
        with store.snapshot(["v"], consistency="as_of", epoch=before) as old:
            assert old["v"].to_arrow().column("s").to_pylist() == ["OBrien"] * 2


def test_a_parked_view_stays_parked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with el.open(tmp_path) as store:
        make_earlier(monkeypatch, store)
        change_job(store, lambda record: {**record, "state": "parked", "lost": "t"})
        with pytest.raises(el.JobParked):
            store.view("v").step()


@pytest.mark.planted
def test_a_view_that_keeps_its_earlier_reading_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims.JobClaims, "_with_present_reading", lambda self, tx, job: job)
    with pytest.raises(AssertionError):
        test_a_view_that_was_read_otherwise_is_rebuilt_once(tmp_path, monkeypatch, step_by_view)


# ---- records of later releases --------------------------------------------------------------------------------------


def change_job(store: el.Store, change: Callable[[Record], Record]) -> JobRecord:
    """Write a changed record of the job `v`; return the job as it was."""

    def body(tx: Txn) -> JobRecord:
        job = find_job(tx, "v")
        tx.put(job_key(job.id), change(job.to_record()))
        return job

    return store._handle.catalog.transact(body)


def put_back(store: el.Store, job: JobRecord) -> None:
    store._handle.catalog.transact(lambda tx: tx.put(job_key(job.id), job.to_record()))


def later(record: Record) -> Record:
    return {**record, "format": JOB_FORMAT + 1, "stride": 8}


CALLS: dict[str, Callable[[el.Store], object]] = {
    "jobs": lambda store: store.jobs(),
    "view": lambda store: store.view("v"),
    "job": lambda store: store.job("v"),
    "step": lambda store: store.view("v").step(),
    "global": lambda store: store.snapshot(),
    "replace": lambda store: store.replace_views({"v": SQL}),
    "drop": lambda store: store.drop_job("v"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_job_of_a_later_release_is_refused_by_name(tmp_path: Path, call: str) -> None:
    """It was said to be Corrupt, which is what a damaged catalog is."""
    with el.open(tmp_path) as store:
        table = store.create_table("t", pa.schema([pa.field("id", pa.int64(), nullable=False)]), primary_key=["id"])
        table.upsert(pa.table({"id": [1, 2]}))
        store.create_view("v", SQL, primary_key=["k"])
        job = change_job(store, later)
        version = store._handle.catalog.read(lambda view: view.version)
        with pytest.raises(el.UnsupportedFormat, match=r"job 'v' has format 3, newer than 2: upgrade epochlog"):
            CALLS[call](store)
        assert store._handle.catalog.read(lambda view: view.version) == version
        put_back(store, job)


def test_a_view_of_a_later_derivation_is_refused_by_name(tmp_path: Path) -> None:
    with el.open(tmp_path) as store:
        store.create_table("t", pa.schema([pa.field("id", pa.int64(), nullable=False)]), primary_key=["id"])
        store.create_view("v", SQL, primary_key=["k"])
        job = store._handle.catalog.read(lambda view: find_job(view, "v"))
        assert job.view is not None
        newer = replace(job, view=replace(job.view, derivation=DERIVATION + 1))
        change_job(store, lambda record: newer.to_record())
        store.table("t").upsert(pa.table({"id": [1]}))
        store.checkpoint()
        with pytest.raises(el.UnsupportedFormat, match=r"view 'v' .* newer than"):
            store.view("v").step()
