"""Jobs that are made twice, and jobs whose interval and permitted lag are altered while they run."""

from __future__ import annotations

import threading
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.metadata.lookups import find_table
from epochlog.store.types.epoch import boundary_index
from lab import INTERVAL_MS, KEY, SCHEMA, Lab, mirror


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    return lab


@pytest.mark.parametrize("many", [10**30, 1 << 63, (1 << 53) + 1])
def test_an_interval_that_no_record_can_hold_is_refused(lab: Lab, many: int) -> None:
    with pytest.raises(el.InvalidInput, match="job 'j': interval is"):
        lab.job("j", ["r"], interval=many)
    job = lab.job("j", ["r"])
    with pytest.raises(el.InvalidInput, match="job 'j': interval is"):
        job.alter(interval=many)


def test_what_to_do_about_a_table_that_differs_loses_nothing_where_that_can_be(lab: Lab) -> None:
    lab.job("j", ["r"])
    hint = r"Use another name, pass the settings that it has, or change it with .*alter\(…\)$"
    with pytest.raises(el.TableExists, match=hint):
        lab.store.create_table("r", SCHEMA, KEY, changelog="full", exist_ok=True)
    with pytest.raises(el.TableExists, match=r"or drop it with store\.drop_table\('r'\)$"):
        lab.store.create_table("r", SCHEMA.remove(2), KEY, exist_ok=True)
    with pytest.raises(el.TableExists, match="an output of job 'j', not a root table. Use another name$"):
        lab.store.create_table("j_out", SCHEMA, KEY, exist_ok=True)


# ---- exist_ok --------------------------------------------------------------------------------------------------------


def test_the_same_table_and_job_are_found_again(lab: Lab) -> None:
    before = lab.txn_id()
    again = lab.store.create_table("r", SCHEMA, KEY, exist_ok=True)
    assert lab.txn_id() == before  # nothing was written
    epoch = again.upsert(pa.table({"k": [1], "g": [0], "v": [7]}, schema=SCHEMA))
    assert lab.store.table("r").info.max_committed_epoch == epoch
    job = lab.job("j", ["r"], interval=2)
    lab.tick(2)
    assert job.step_local(mirror("r", "j_out")) is not None
    for options in ({"interval": 2}, {"interval": timedelta(seconds=2)}, {}, {"max_lag": timedelta(seconds=60)}):
        same_job = lab.job("j", ["r"], exist_ok=True, **options)
        assert same_job.info == job.info
    assert lab.job("new", ["r"], exist_ok=True).info.state == "creating"


OTHER = pa.schema([("v", pa.int64()), ("k", pa.int64()), ("g", pa.string()), ("more", pa.int8())])


@pytest.mark.parametrize("schema, key, options, message", [
    (OTHER, ["k"], {}, r"no column 'more'; its column 'g' is int64, not string"),
    (SCHEMA.remove(2), ["k"], {}, r"a column 'v' that was not requested"),
    (pa.schema(list(SCHEMA)[::-1]), ["k"], {}, r"in the order \['k', 'g', 'v'\], not \['v', 'g', 'k'\]"),
    (SCHEMA, ["k", "g"], {}, r"column 'g' is nullable, and was requested without nulls; .*key is \['k'\]"),
    (SCHEMA, ["k"], {"changelog": "full"}, r"changelog is 'upsert', not 'full'"),
    (SCHEMA, ["k"], {"options": el.TableOptions(history_retention=timedelta(hours=2))},
     r"history_retention is auto, not 2 h"),
    (SCHEMA, ["k"], {"options": el.TableOptions(log_retention=timedelta(days=1, seconds=30))},
     r"log_retention is 86,400,000 ms, not 86,430,000 ms"),
])  # fmt: skip
def test_a_table_of_another_definition_says_what_differs(
    lab: Lab, schema: pa.Schema, key: list[str], options: dict[str, Any], message: str
) -> None:
    before = lab.txn_id()
    with pytest.raises(el.TableExists, match=f"'r'.*{message}"):
        lab.store.create_table("r", schema, key, exist_ok=True, **options)
    assert lab.txn_id() == before


def test_an_output_is_no_root_table_of_that_name(lab: Lab) -> None:
    lab.job("j", ["r"])
    with pytest.raises(el.TableExists, match="output of job 'j'"):
        lab.store.create_table("j_out", SCHEMA, KEY, exist_ok=True)


@pytest.mark.parametrize("change, message", [
    ({"upstreams": ["other"]}, r"upstreams are \['r'\], not \['other'\]"),
    ({"upstreams": ["missing"]}, r"upstreams are \['r'\], not \['missing'\]"),
    ({"outputs": {"x": (SCHEMA, KEY)}}, r"outputs are \['j_out'\], not \['x'\]"),
    ({"outputs": {"j_out": (OTHER, KEY)}}, r"output 'j_out': it has no column 'more'; .*'g' is int64, not string"),
    ({"backfill": "log"}, r"backfill is 'snapshot', not 'log'"),
    ({"interval": 3}, r"interval is 2, not 3"),
    ({"interval": timedelta(seconds=3)}, r"interval is 2, not 3"),
    ({"max_lag": 5}, r"max_lag is 30, not 5"),
    ({"snapshot_rows": 5}, r"snapshot_rows is None, not 5"),
])  # fmt: skip
def test_a_job_of_another_definition_says_what_differs(lab: Lab, change: dict[str, Any], message: str) -> None:
    lab.root_table("other")
    lab.job("j", ["r"], interval=2)
    before = lab.txn_id()
    definition = {"upstreams": ["r"], "outputs": {"j_out": (SCHEMA, KEY)}, **change}
    with pytest.raises(el.JobExists, match=f"'j'.*{message}"):
        lab.store.create_job("j", exist_ok=True, **definition)
    assert lab.txn_id() == before


def test_many_that_make_the_same_at_once_all_get_it(lab: Lab) -> None:
    """Creation with `exist_ok` checks for the table or job in the transaction that creates it."""
    ids: list[tuple[int, int]] = []
    start = threading.Barrier(8)

    def make() -> None:
        start.wait()
        table = lab.store.create_table("t", SCHEMA, KEY, exist_ok=True)
        job = lab.store.create_job("j", ["t"], {"out": (SCHEMA, KEY)}, exist_ok=True)
        ids.append((table._table.id, job._runner.job_id))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8 and len(set(ids)) == 1


# ---- times -----------------------------------------------------------------------------------------------------------


def test_intervals_and_lags_are_given_as_times_and_told_as_both(lab: Lab) -> None:
    info = lab.job("j", ["r"], interval=timedelta(minutes=1), max_lag=timedelta(minutes=5, seconds=30)).info
    assert (info.interval, info.interval_ms, info.max_lag, info.max_lag_ms) == (60, 60_000, 5, 300_000)


@pytest.mark.parametrize("interval, message", [
    (timedelta(seconds=2.5), r"2\.5 s .* 1 s apart; take 2 boundaries \(2 s\) or 3 boundaries \(3 s\)"),
    (timedelta(milliseconds=1), r"0\.001 s .*; take 1 boundary \(1 s\)$"),
    (timedelta(0), r"take 1 boundary"),
    (timedelta(seconds=-3), r"take 1 boundary|whole number"),
])  # fmt: skip
def test_an_interval_between_boundaries_is_refused(lab: Lab, interval: timedelta, message: str) -> None:
    with pytest.raises(el.InvalidInput, match=f"'j'.*{message}"):
        lab.job("j", ["r"], interval=interval)


# ---- alter -----------------------------------------------------------------------------------------------------------


def test_a_recorded_barrier_is_committed_as_it_is_and_the_next_lie_on_the_new_interval(lab: Lab) -> None:
    lab.put({1: (0, 1)})
    lab.tick()
    job = lab.job("j", ["r"])
    with pytest.raises(ZeroDivisionError):
        job.step_local(lambda ctx: 1 // 0)
    recorded = job._runner.record().barrier
    assert recorded is not None
    other = lab.open()  # not the handle that runs it
    other.job("j").alter(interval=timedelta(seconds=5))
    other.close()
    assert job.step_local(mirror("r", "j_out")) == recorded[1]  # the same runner, not fenced
    epochs = []
    for number in range(12):
        lab.put({number: (0, number)})
        lab.tick()
        epochs.append(job.step_local(mirror("r", "j_out")))
    taken = [epoch for epoch in epochs if epoch is not None]
    assert 2 <= len(taken) <= 3
    assert all(boundary_index(epoch, 5 * INTERVAL_MS) is not None for epoch in taken)
    for epoch in taken:  # the law
        assert lab.rows("j_out", epoch) == lab.rows("r", epoch)


def test_a_shorter_interval_takes_boundaries_that_the_longer_one_passed_over(lab: Lab) -> None:
    job = lab.job("j", ["r"], interval=10)
    assert job.step_local(mirror("r", "j_out")) is not None
    lab.put({1: (0, 1)})
    lab.tick(3)
    assert job.step_local(mirror("r", "j_out")) is None
    job.alter(interval=1)
    epoch = job.step_local(mirror("r", "j_out"))
    assert epoch is not None and lab.rows("j_out", epoch) == lab.rows("r")


def test_max_lag_stays_what_it_was_given_as(lab: Lab) -> None:
    counted, timed = lab.job("c", ["r"], max_lag=20), lab.job("t", ["r"], max_lag=timedelta(seconds=20))
    for job in (counted, timed):
        job.alter(interval=4)
    assert (counted.info.max_lag, timed.info.max_lag) == (20, 5)
    timed.alter(interval=7)
    assert timed.info.max_lag == 2
    timed.alter(interval=1)
    assert timed.info.max_lag == 20  # nothing was lost in between
    timed.alter(max_lag=3)
    timed.alter(interval=2)
    assert (timed.info.interval, timed.info.max_lag) == (2, 3)


def test_options_are_altered_for_all_outputs_or_for_some(lab: Lab) -> None:
    job = lab.job("j", ["r"], ["a", "b"])

    def options(name: str) -> el.TableOptions:
        return lab.store.table(name)._handle.catalog.read(lambda view: find_table(view, name)).options

    brief, long = el.TableOptions(history_retention=timedelta(0)), el.TableOptions(log_retention=timedelta(days=9))
    job.alter(options=brief)
    assert [options("a"), options("b")] == [brief, brief]
    job.alter(options={"b": long}, interval=2)
    assert [options("a"), options("b"), job.info.interval] == [brief, long, 2]
    for bad in ({"b": brief, "r": long}, {"b": 5}, 5):
        with pytest.raises(el.InvalidInput, match="'j'|'b'"):
            job.alter(options=bad, interval=7)  # pyright: ignore[reportArgumentType]
    assert [options("a"), options("b"), job.info.interval] == [brief, long, 2]


def test_what_cannot_be_altered_is_refused_and_leaves_nothing(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    before = lab.txn_id()
    for options in ({}, {"interval": 0}, {"interval": True}, {"max_lag": -1}, {"interval": 2, "max_lag": "x"}):
        with pytest.raises(el.InvalidInput, match="'j'"):
            job.alter(**options)  # pyright: ignore[reportArgumentType]
    job.alter(interval=1)  # as it is
    assert lab.txn_id() == before
    lab.store.drop_job("j")
    with pytest.raises(el.JobNotFound):
        job.alter(interval=2)


def test_a_job_of_an_older_store_can_be_altered(lab: Lab) -> None:
    job = lab.job("j", ["r"])
    record = asdict(job._runner.record())
    del record["max_lag_ms"]
    assert JobRecord.from_record(record) == job._runner.record()
