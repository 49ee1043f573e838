"""A view that is late hurts nobody else's reads under `global`: it stands outside, is marked, and comes back."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

import epochlog as el
from epochlog.checkpoint.job import job_ddl
from epochlog.store.catalog.keys import STORE
from epochlog.store.epochs.global_membership import outside_by_interval
from epochlog.store.epochs.table_epochs import TableEpochs
from epochlog.store.metadata.definitions import StoreRecord
from epochlog.store.metadata.lookups import find_job
from lab import Lab, sums
from logged_events import logged

MIN = 60  # intervals of a second
BOUND = timedelta(minutes=10)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A root table with two views, of which `late` may be left alone."""
    lab = Lab(tmp_path / "store")
    lab.root_table()
    lab.put({1: (0, 1)})
    lab.tick()
    for name in ("good", "late"):
        lab.job(name, ["r"])
    lab.put({1: (0, 2)})
    lab.tick()
    for name in ("good", "late"):
        catch_up(lab, name)
    return lab


def catch_up(lab: Lab, name: str) -> None:
    job = lab.store.job(name)
    while job.step_local(sums("r", f"{name}_out")) is not None:
        pass


def go_on(lab: Lab, minutes: int, *names: str, every: int = 1) -> None:
    """A commit every so many minutes, which these jobs take in."""
    for _ in range(0, minutes, every):
        lab.tick(every * MIN)
        lab.put({lab.now_ms % 7: (0, lab.now_ms % 1000)})
        lab.tick()
        for name in names:
            catch_up(lab, name)


def outside_ms(lab: Lab, name: str) -> int | None:
    return lab.store._handle.catalog.read(lambda view: find_job(view, name)).outside_ms


def read(lab: Lab, *tables: str, consistency: Any = "global", **policy: Any) -> dict[str, int]:
    with lab.store.snapshot(tables or None, consistency=consistency, **policy) as moment:
        return dict(moment.epochs)


# ---- the rule on a store -------------------------------------------------------------------------------------------


@pytest.mark.rule("3.13")
def test_a_view_that_nobody_runs_leaves_the_others_alone_after_hours_of_retention(lab: Lab) -> None:
    late_at = lab.store.job("late").info.committed_epoch
    go_on(lab, 5, "good")
    with lab.store.snapshot() as moment:  # it holds the others back as long as it may
        assert list(moment) == ["r", "good_out", "late_out"] and not moment.left_out
        assert max(moment.lag_ms.values()) <= BOUND // timedelta(milliseconds=1)
    for _ in range(3):
        go_on(lab, 40, "good", every=4)
        lab.store.compact(full=True)
        with lab.store.snapshot() as moment:
            assert list(moment) == ["r", "good_out"] and max(moment.lag_ms.values()) < 242_000
        assert set(read(lab, "good_out").values()) == {lab.store.last_epoch}
    with pytest.raises(
        el.TableNotReadable, match=r"late_out cannot be read: it .* global_max_lag \(10 min\)"
    ) as refused:
        read(lab, "late_out")
    first_missing = read(lab, "late_out", consistency="aligned")["late_out"]
    assert first_missing >= late_at and f"aligned would read it at {first_missing} (" in str(refused.value)
    assert set(read(lab, "late_out", include_creating=True).values()) == {first_missing}


@pytest.mark.rule("3.11")
def test_a_reader_marks_the_job_and_its_own_commit_within_max_lag_lets_it_come_back(lab: Lab) -> None:
    go_on(lab, 11, "good")
    assert outside_ms(lab, "late") is None  # nobody has noticed, so nobody can be surprised
    info = lab.store.job("late").info
    assert info.outside is not None and "it lags 10 min 11 s" in info.outside
    assert lab.store.job("good").info.outside is None
    newest = read(lab)["r"]
    assert outside_ms(lab, "late") == lab.now_ms
    txn = lab.txn_id()
    job = lab.store.job("late")
    assert job.step_local(sums("r", "late_out")) is not None  # far behind, it merges, and is not there yet
    if job.info.lag_ms:
        assert outside_ms(lab, "late") is not None and "late_out" not in read(lab)
    catch_up(lab, "late")
    assert outside_ms(lab, "late") is None and job.info.outside is None
    assert read(lab)["late_out"] >= newest and lab.txn_id() != txn


@pytest.mark.rule("3.11")
def test_a_job_that_is_back_below_the_bound_but_not_caught_up_stays_outside(lab: Lab) -> None:
    """Else every read would go back and forth by minutes while it catches up."""
    go_on(lab, 12, "good")
    read(lab)
    job = lab.store.job("late")
    job.alter(max_lag=0)
    lab.put({5: (0, 5)})  # lacks what comes after the boundary at which the job commits
    while job.info.lag_ms > 5_000:
        assert job.step_local(sums("r", "late_out")) is not None
        lab.tick()
        lab.put({5: (0, lab.now_ms % 100)})
    assert 0 < job.info.lag_ms < BOUND // timedelta(milliseconds=1) and outside_ms(lab, "late") is not None
    assert "late_out" not in read(lab)
    assert "once a commit of it is within its max_lag, which job.alter changes" in str(job.info.outside)
    job.alter(max_lag=10)
    lab.put({5: (0, 7)})
    lab.tick()
    assert job.step_local(sums("r", "late_out")) is not None and "late_out" in read(lab)


@pytest.mark.rule("3.14")
def test_rejoining_takes_reads_back_by_at_most_the_bound(lab: Lab) -> None:
    lab.store.job("late").alter(max_lag=timedelta(hours=1))
    go_on(lab, 11, "good")
    before = read(lab)["r"]
    job = lab.store.job("late")
    assert job.step_local(sums("r", "late_out")) is not None
    with lab.store.snapshot() as moment:
        bound_ms = BOUND // timedelta(milliseconds=1)
        assert list(moment) == ["r", "good_out", "late_out"] and moment.lag_ms["r"] <= bound_ms
        assert moment.epochs["r"] >= before - (bound_ms << 12)


def test_looking_at_a_store_marks_nobody(lab: Lab) -> None:
    go_on(lab, 11, "good")
    txn = lab.txn_id()
    assert [info.outside is not None for info in lab.store.jobs()] == [False, True]
    assert lab.txn_id() == txn and outside_ms(lab, "late") is None


@pytest.mark.rule("3.11")
@pytest.mark.parametrize("how", ["rebuild", "drain"])
def test_a_rebuild_or_drain_that_nobody_runs_does_not_freeze_global_over_idle_upstreams(lab: Lab, how: str) -> None:
    lab.root_table("other")
    catch_up(lab, "late")
    job = lab.store.job("late")
    job.rebuild() if how == "rebuild" else job.stop(drain=True)
    request_epoch = lab.store.last_epoch
    for minutes in range(1, 30):
        lab.tick(MIN)
        lab.put({minutes: (0, 1)}, "other")
        epochs = read(lab, "other")
        if minutes > 10:
            assert epochs["other"] == lab.store.last_epoch
        else:
            assert epochs["other"] == request_epoch - 1
    assert job.info.lag_ms >= 29 * 60_000 and outside_ms(lab, "late") is not None
    catch_up(lab, "late")
    assert read(lab)["late_out"] == lab.store.last_epoch and outside_ms(lab, "late") is None


def test_a_drained_view_stays_readable_under_global_when_its_upstream_stands_outside(lab: Lab) -> None:
    lab.store.create_job("below", ["late_out"], {"below_out": (lab.store.table("late_out").schema, ["k"])})
    below = lab.store.job("below")
    while below.step_local(sums("late_out", "below_out")) is not None:
        pass
    below.stop(drain=True)
    while below.step_local(sums("late_out", "below_out")) is not None:
        pass
    assert below.info.state == "finished"
    go_on(lab, 12, "good")
    epochs = read(lab)
    assert list(epochs) == ["r", "good_out", "below_out"] and set(epochs.values()) == {lab.store.last_epoch}


# ---- what is left out is not left out silently ---------------------------------------------------------------------


@pytest.mark.rule("3.15")
def test_a_snapshot_of_all_tables_says_what_it_left_out_and_why(lab: Lab) -> None:
    go_on(lab, 11, "good")
    aligned = read(lab, "late_out", consistency="aligned")["late_out"]
    with lab.store.snapshot() as moment:
        assert list(moment.left_out) == ["late_out"]
        message = rf"left out the table: late_out cannot be read: .*aligned would read it at {aligned} \("
        for ask in (lambda: moment["late_out"], lambda: moment.spark("late_out", None)):  # pyright: ignore[reportArgumentType]
            with pytest.raises(el.TableNotReadable, match=message):
                ask()
        with moment.duckdb() as connection:
            assert connection.sql("SELECT count(*) FROM good_out").fetchall() == [(1,)]
            assert "late_out" in {name for (name,) in connection.sql("SHOW TABLES").fetchall()}
            for query in ("SELECT * FROM late_out", "SELECT count(*) FROM late_out JOIN good_out USING (k)"):
                with pytest.raises((el.TableNotReadable, duckdb.Error), match="late_out cannot be read: it lags"):
                    connection.sql(query).fetchall()
        with pytest.raises(el.InvalidInput, match="no table 'nothing'"):
            moment["nothing"]
    with lab.store.snapshot(["r"]) as moment:
        assert not moment.left_out
        with pytest.raises(el.InvalidInput, match="this snapshot has no table 'late_out'"):
            moment["late_out"]


@pytest.mark.rule("3.15")
def test_tokens_and_tags_refuse_what_was_left_out(lab: Lab) -> None:
    go_on(lab, 11, "good")
    with lab.store.snapshot() as moment:
        token = moment.token
        with pytest.raises(el.TableNotReadable, match=r"left some out: late_out cannot be read.*partial=True"):
            moment.tag("nightly", 60.0)
        assert not lab.store.tags()
        nightly, left_out = moment.tag("nightly", 60.0, partial=True), moment.left_out
        assert list(nightly.epochs) == ["r", "good_out"]
    with lab.store.snapshot(["r", "good_out"]) as moment:
        moment.tag("named", 60.0)
    with pytest.raises(el.TableNotReadable, match="snapshot of this token left out .*late_out cannot be read: it lags"):
        read(lab, "r", "late_out", consistency=el.Exact(token))
    with lab.store.snapshot(consistency=el.Exact(token)) as again:
        assert list(again) == ["r", "good_out"] and list(again.left_out) == ["late_out"]
        with pytest.raises(el.TableNotReadable, match="late_out cannot be read"):
            again["late_out"]
        assert again.token == token
    with pytest.raises(el.TableNotReadable, match="late_out cannot be read: it lags"):
        read(lab, "late_out", consistency=el.Exact(nightly.token))
    with lab.store.snapshot(consistency=el.Exact(nightly.token)) as held:
        assert held.left_out == left_out
        with pytest.raises(el.TableNotReadable, match="late_out cannot be read: it lags"):
            held["late_out"]


def test_a_held_snapshot_that_is_listed_says_what_is_known_of_what_it_has_not(lab: Lab) -> None:
    """The holds are of the tables that it has; of the others the catalog keeps nothing."""
    go_on(lab, 11, "good")
    with lab.store.snapshot() as moment:
        moment.tag("nightly", 60.0, partial=True)
    (listed,) = lab.store.tags()
    message = r"late_out; it has: r, good_out\. .*left it out as unreadable.*job\.info\.outside.*epochlog jobs"
    with pytest.raises(el.InvalidInput, match=message):
        read(lab, "late_out", consistency=el.Exact(listed.token))
    with (
        lab.store.snapshot(consistency=el.Exact(listed.token)) as held,
        pytest.raises(el.InvalidInput, match=r"'late_out'.*left it out as unreadable.*job\.info\.outside"),
    ):
        held["late_out"]
    with pytest.raises(el.InvalidInput, match=r"it has: r$"):
        read(lab, "late_out", consistency=el.Exact({"r": 5}))


@pytest.mark.rule("3.13")
def test_a_table_whose_history_is_short_is_left_out_by_itself(lab: Lab) -> None:
    lab.store.create_table(
        "brief", lab.store.table("r").schema, ["k"], options=el.TableOptions(history_retention=timedelta(0))
    )
    lab.put({1: (0, 1)}, "brief")
    go_on(lab, 3, "good")
    lab.put({1: (0, 2)}, "brief")
    lab.store.compact(full=True)
    with lab.store.snapshot() as moment:
        assert list(moment.left_out) == ["brief"] and "history of brief below epoch" in moment.left_out["brief"]
    with pytest.raises(el.NoConsistentEpoch, match="history of brief"):
        read(lab, "brief")


def test_a_new_table_beside_a_late_view_is_told_where_it_can_be_read(lab: Lab) -> None:
    """`global` chooses an epoch from before it for as long as the view is within the bound."""
    lab.put({5: (0, 5)})
    lab.tick(MIN)
    lab.root_table("fresh")
    lab.put({1: (0, 1)}, "fresh")
    with lab.store.snapshot() as moment:
        assert list(moment.left_out) == ["fresh"] and "fresh was created at" in moment.left_out["fresh"]
    with pytest.raises(
        el.NoConsistentEpoch, match=r"take a snapshot with consistency='aligned', which chooses \d+ \("
    ) as refused:
        read(lab, "fresh")
    assert str(read(lab, "fresh", consistency="aligned")["fresh"]) in str(refused.value)
    lab.tick(10 * MIN)
    assert set(read(lab)) == {"r", "fresh"}


# ---- the option ----------------------------------------------------------------------------------------------------


def test_the_bound_is_an_option_of_the_store(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "a", global_max_lag=timedelta(minutes=30))
    assert lab.store.global_max_lag == timedelta(minutes=30)
    lab.reopen()
    lab.options.pop("global_max_lag")
    lab.reopen()
    assert lab.store.global_max_lag == timedelta(minutes=30)
    with pytest.raises(el.InvalidInput, match=r"global_max_lag is 30 min.*not 20 min.*store.alter\(global_max_lag=…\)"):
        el.open(lab.root, global_max_lag=1200, durability="os")
    other = lab.open()
    lab.store.alter(global_max_lag=1200)
    assert other.global_max_lag == timedelta(minutes=20) == lab.store.global_max_lag
    el.open(lab.root, global_max_lag=1200, durability="os").close()


@pytest.mark.parametrize("bad", [0, -1, 1.9, "10m", True, float("nan")])
def test_a_bound_that_is_none_is_refused(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(el.InvalidInput, match="global_max_lag must be"):
        el.open(tmp_path / "bad", global_max_lag=bad)
    assert not (tmp_path / "bad").exists()
    with el.open(tmp_path / "good") as store, pytest.raises(el.InvalidInput, match="global_max_lag must be"):
        store.alter(global_max_lag=bad)


def test_the_default_is_ten_minutes_or_two_long_intervals_and_no_field_of_the_record(tmp_path: Path) -> None:
    for interval_ms, minutes in ((1000, 10), (3_600_000, 120)):
        with el.open(tmp_path / str(minutes), checkpoint_interval_ms=interval_ms) as store:
            assert store.global_max_lag == timedelta(minutes=minutes)
            record = store._handle.catalog.read(lambda view: view.get(STORE))
            assert record and "global_max_lag_ms" not in record
    assert StoreRecord("x", 1000, 0).max_lag_ms == 600_000


def test_another_bound_decides_from_the_next_read_on(lab: Lab) -> None:
    go_on(lab, 11, "good")
    lab.store.alter(global_max_lag=timedelta(minutes=30))
    assert "late_out" in read(lab)
    lab.store.alter(global_max_lag=timedelta(minutes=5))
    assert "late_out" not in read(lab)


def assert_left_out(caplog: pytest.LogCaptureFixture, table: str, reason: str) -> None:
    (event,) = logged(caplog, "job_outside")
    assert event["tables"] == [table] and event["reason"].startswith(reason)


@pytest.mark.rule("3.10")
@pytest.mark.logs("job_created", "job_altered", "job_outside")
def test_create_job_and_alter_say_whom_the_intervals_keep_out(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    lab.job("slow", ["r"], interval=timedelta(minutes=3))
    assert not logged(caplog, "job_outside")
    lab.job("hourly", ["r"], interval=timedelta(hours=1))
    assert_left_out(caplog, "hourly_out", "its job commits every 1 h, ")
    assert "commits every 1 h" in str(lab.store.job("hourly").info.outside)
    caplog.clear()
    lab.job("two", ["r"], interval=timedelta(minutes=2))
    assert_left_out(caplog, "slow_out", "its job commits every 3 min, and at one epoch with all jobs")
    caplog.clear()
    lab.store.job("two").alter(interval=timedelta(minutes=1))
    assert not logged(caplog, "job_outside") and "it is creating" in str(lab.store.job("slow").info.outside)
    lab.store.job("slow").alter(interval=timedelta(minutes=7))
    assert_left_out(caplog, "slow_out", "")


def test_a_job_of_the_store_s_interval_reads_no_other_job(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check what keeps the cost of creating a thousand jobs in proportion to their number."""
    lab.job("slow", ["r"], interval=timedelta(minutes=3))
    monkeypatch.setattr(job_ddl, "read_epoch_view", lambda *args, **options: pytest.fail("all jobs were read"))
    lab.job("plain", ["r"])
    lab.store.job("plain").alter(max_lag=10)


@pytest.mark.rule("3.10")
@pytest.mark.parametrize("seed", [1_798_986_664, random.randrange(1 << 32)], ids=["literal", "random"])
def test_a_job_of_the_store_s_interval_keeps_none_out(seed: int) -> None:
    """Random intervals of the others, and random places among them; without the job, its readers read what it reads."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(300):
        tables = [TableEpochs(0, "r")]
        for number in range(1, rng.randrange(2, 9)):
            ups = tuple(rng.sample(range(number), rng.randrange(1, min(3, number) + 1)))
            interval_ms = 1000 * rng.choice([1, 1, 2, 3, 5, 7, 30, 400])
            tables.append(
                TableEpochs(number, f"t{number}", derived=True, upstreams=ups, job_id=number, interval_ms=interval_ms)
            )
        plain = rng.choice(tables[1:])
        tables = [replace(table, interval_ms=1000) if table is plain else table for table in tables]
        others = [
            replace(table, upstreams=tuple({*table.upstreams, *plain.upstreams} - {plain.table_id}))
            if plain.table_id in table.upstreams
            else table
            for table in tables
            if table is not plain
        ]
        bound = rng.choice([2_000, 10_000, 60_000, 600_000])
        assert outside_by_interval(tables, bound).keys() <= outside_by_interval(others, bound).keys(), tables
