"""Many jobs in one process: each at its own pace, whatever becomes of the others; waiting, ending, and being told."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.store.compaction import write_stall
from epochlog.store.compaction.task_record import CompactionOutcome
from epochlog.store.compaction.trace import read_traces
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table, get_version
from epochlog.store.session.handle import Handle
from lab import Lab, mirror, refuse, sums, table_of
from logged_events import logged
from virtual_time import VirtualTime
from wait_until import WAIT_LIMIT_S, wait_until


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    return lab


def states(pipe: el.Pipeline) -> dict[str, str]:
    return {row.name: row.state for row in pipe.status()}


def fails(ctx: Any) -> None:
    raise ZeroDivisionError("as it always does")


@contextmanager
def running(pipe: el.Pipeline, let_go: Callable[[], object] = lambda: None) -> Iterator[threading.Thread]:
    """The pipeline in a thread of its own, stopped at the end."""
    thread = threading.Thread(target=pipe.run)
    thread.start()
    try:
        yield thread
    finally:
        pipe.stop()
        let_go()
        thread.join()


# ---- until="idle" ------------------------------------------------------------------------------------------------


def test_views_on_views_take_in_all_that_was_committed_before(lab: Lab) -> None:
    pipe = el.Pipeline(lab.store)
    jobs = {name: lab.job(name, ups) for name, ups in (("a", ["r"]), ("b", ["a_out"]), ("c", ["b_out", "r"]))}
    pipe.add(jobs["c"], sums("b_out", "c_out"))  # in no order
    pipe.add(jobs["a"], mirror("r", "a_out"))
    pipe.add(jobs["b"], mirror("a_out", "b_out"))
    for number in range(3):
        last = lab.put({number: (0, number)})  # no boundary has passed since
        pipe.run(until="idle")
        rows = {row.name: row for row in pipe.status()}
        assert list(rows) == ["c", "a", "b"]
        assert all(row.state == "idle" and row.committed_epoch >= last for row in rows.values())
        assert {(row.restarts, row.last_error, row.next_try_ms, row.lag_ms) for row in rows.values()} == {
            (0, None, None, 0)
        }
        assert lab.rows("b_out") == lab.rows("r") and lab.rows("c_out")[0] == (number + 1, sum(range(number + 1)))
    assert {lab.state(name) for name in "abc"} == {"running"}


def test_it_returns_though_more_is_written_all_the_time(lab: Lab) -> None:
    """Each refresh is followed by a new commit and a new boundary: there is always something to do."""
    pipe, job = el.Pipeline(lab.store), lab.job("a", ["r"])
    before = lab.put({0: (0, 0)})

    def refresh(ctx: Any) -> None:
        mirror("r", "a_out")(ctx)
        lab.put({ctx.barrier.curr % 100: (0, 0)})
        lab.store.checkpoint()

    pipe.add(job, refresh)
    pipe.add(lab.job("b", ["a_out"]), mirror("a_out", "b_out"))
    for value in range(3):
        pipe.run(until="idle")
        assert job.info.committed_epoch >= before and lab.store.job("b").info.committed_epoch >= before
        before = lab.put({1: (1, value)})


@pytest.mark.logs("job_retried", "job_ended")
def test_jobs_that_fail_are_given_up_and_those_below_are_not_waited_for(lab: Lab) -> None:
    pipe = el.Pipeline(lab.store, pauses=Hurry())
    lab.put({1: (0, 10)})
    calls = []
    pipe.add(lab.job("bad", ["r"]), lambda ctx: calls.append(1) or fails(ctx))
    pipe.add(lab.job("below", ["bad_out", "r"]), refuse)
    pipe.add(lab.job("good", ["r"]), mirror("r", "good_out"))
    pipe.run(until="idle")
    rows = {row.name: row for row in pipe.status()}
    assert states(pipe) == {"bad": "given up", "below": "idle", "good": "idle"}
    assert (len(calls), rows["bad"].restarts, rows["bad"].committed_epoch) == (5, 4, 0)
    assert rows["bad"].last_error == "ZeroDivisionError: as it always does" == lab.store.job("bad").info.last_error
    assert lab.rows("good_out") == {1: (0, 10)}
    pipe.run(until="idle")  # anew
    assert len(calls) == 10


def test_a_job_that_fails_now_and_then_catches_up(lab: Lab) -> None:
    pipe, calls = el.Pipeline(lab.store, pauses=Hurry()), []

    def now_and_then(ctx: Any) -> None:
        calls.append(ctx.barrier)
        if len(calls) % 2:
            fails(ctx)
        mirror("r", "a_out")(ctx)

    pipe.add(lab.job("a", ["r"]), now_and_then)
    pipe.add(lab.job("b", ["a_out"]), mirror("a_out", "b_out"))
    for number in range(3):
        lab.put({number: (0, number)})
        pipe.run(until="idle")
        assert lab.rows("a_out") == lab.rows("b_out") == lab.rows("r")
    row = pipe.status()[0]
    assert (row.restarts, row.last_error) == (3, "ZeroDivisionError: as it always does")
    assert all(first == second for first, second in zip(calls[::2], calls[1::2], strict=True))  # the same barrier


def test_jobs_of_own_intervals_come_to_rest_too(lab: Lab) -> None:
    pipe = el.Pipeline(lab.store)
    pipe.add(lab.job("a", ["r"], interval=3), mirror("r", "a_out"))
    pipe.add(lab.job("b", ["a_out"], interval=5), mirror("a_out", "b_out"))
    for number in range(4):
        lab.put({number: (0, number)})
        lab.tick(1.5)
        pipe.run(until="idle")
        assert lab.rows("b_out") == lab.rows("r")


def test_snapshots_in_pieces_are_taken_side_by_side(lab: Lab) -> None:
    pipe = el.Pipeline(lab.store)
    first = lab.job("a", ["r"], snapshot_rows=3)
    pipe.add(lab.job("b", ["a_out"], snapshot_rows=2), mirror("a_out", "b_out"))
    pipe.add(first, mirror("r", "a_out"))
    pipe.add(lab.job("c", ["r"]), mirror("r", "c_out"))
    lab.put({k: (0, k) for k in range(20)})
    pipe.run(until="idle")
    assert lab.rows("a_out") == lab.rows("b_out") == lab.rows("c_out") == lab.rows("r")
    assert {lab.state(name) for name in "abc"} == {"running"} and set(states(pipe).values()) == {"idle"}


def test_without_jobs_or_anything_new_it_returns(lab: Lab) -> None:
    pipe = el.Pipeline(lab.store)
    pipe.run(until="idle")
    pipe.run()
    pipe.add(lab.job("a", ["r"]), mirror("r", "a_out"))
    pipe.run(until="idle")
    before = lab.entries("a_out")
    lab.tick()
    pipe.run(until="idle")
    assert lab.entries("a_out") == before and len(before) == 1


# ---- ends --------------------------------------------------------------------------------------------------------


def test_finished_jobs_end_and_the_pipeline_with_them(lab: Lab) -> None:
    pipe = el.Pipeline(lab.store)
    pipe.add(lab.job("a", ["r"]), mirror("r", "a_out"))
    pipe.add(lab.job("b", ["a_out"]), mirror("a_out", "b_out"))
    lab.put({1: (0, 10)})
    lab.store.table("r").finish()
    lab.store.checkpoint()
    pipe.run()
    assert states(pipe) == {"a": "finished", "b": "finished"}
    assert {row.lag_ms for row in pipe.status()} == {0} and lab.rows("b_out") == {1: (0, 10)}


def test_a_job_that_was_taken_over_ends_and_is_not_claimed_again(lab: Lab) -> None:
    pipe, job = el.Pipeline(lab.store), lab.job("a", ["r"])
    pipe.add(job, mirror("r", "a_out"))
    pipe.add(lab.job("b", ["r"]), mirror("r", "b_out"))
    lab.put({1: (0, 10)})
    pipe.run(until="idle")
    lab.put({2: (0, 20)})
    lab.store.checkpoint()
    other = lab.store.job("a")
    assert other.step_local(mirror("r", "a_out")) is not None
    incarnation = other.info.incarnation
    for _ in range(2):
        lab.put({3: (0, 30)})
        pipe.run(until="idle")
        assert states(pipe) == {"a": "fenced", "b": "idle"}
        assert "taken over" in (pipe.status()[0].last_error or "")
    assert other.info.incarnation == incarnation and lab.rows("b_out") == lab.rows("r")
    assert other.step_local(mirror("r", "a_out")) is not None


def test_dropped_jobs_end(lab: Lab) -> None:
    pipe = el.Pipeline(lab.store)
    pipe.add(lab.job("a", ["r"]), mirror("r", "a_out"))
    pipe.add(lab.job("b", ["r"]), mirror("r", "b_out"))
    pipe.run(until="idle")
    lab.store.drop_job("a")
    lab.put({1: (0, 10)})
    pipe.run(until="idle")
    assert states(pipe) == {"a": "dropped", "b": "idle"} and pipe.status()[0].lag_ms is None


def test_a_job_that_is_cancelled_in_its_snapshot_ends(lab: Lab) -> None:
    pipe, calls = el.Pipeline(lab.store), []

    def refresh(ctx: Any) -> None:
        mirror("r", "a_out")(ctx)
        calls.append(ctx.barrier)
        if len(calls) == 3:
            lab.store.job("a").cancel()

    pipe.add(lab.job("a", ["r"], snapshot_rows=1), refresh)
    pipe.add(lab.job("b", ["r"]), mirror("r", "b_out"))
    lab.put({k: (0, k) for k in range(20)})
    pipe.run(until="idle")
    assert states(pipe) == {"a": "dropped", "b": "idle"} and len(calls) == 3
    assert [info.name for info in lab.store.tables()] == ["b_out", "r"]


def test_a_closed_store_ends_all(lab: Lab) -> None:
    pipe = el.Pipeline(lab.store)
    pipe.add(lab.job("a", ["r"]), mirror("r", "a_out"))
    with running(pipe) as thread:
        wait_until(lambda: states(pipe)["a"] == "idle")
        lab.store.close()
        thread.join()
    (row,) = pipe.status()
    assert (row.state, row.lag_ms) == ("given up", None) and "StoreClosed" in (row.last_error or "")


def test_job_stop_ends_one_job_of_it_and_drain_its_data(lab: Lab) -> None:
    pipe = el.Pipeline(lab.store)
    jobs = {name: lab.job(name, ["r"]) for name in "abc"}
    for name, job in jobs.items():
        pipe.add(job, mirror("r", f"{name}_out"))
    lab.put({1: (0, 10)})
    lab.store.checkpoint()
    with running(pipe):
        wait_until(lambda: set(states(pipe).values()) == {"idle"})
        jobs["a"].stop()
        assert states(pipe)["a"] == "stopped"
        last = lab.put({2: (0, 20)})
        lab.store.job("b").stop(drain=True)
        lab.store.checkpoint()
        wait_until(lambda: jobs["c"].info.committed_epoch >= last)
        assert states(pipe)["b"] == "finished" == jobs["b"].info.state
    assert (len(lab.rows("a_out")), len(lab.rows("b_out")), len(lab.rows("c_out"))) == (1, 2, 2)
    pipe.run(until="idle")
    assert lab.rows("a_out") == lab.rows("r")


# ---- stopping ----------------------------------------------------------------------------------------------------


def test_stop_ends_it_after_the_barriers_at_hand(lab: Lab) -> None:
    pipe, at_work, go_on = el.Pipeline(lab.store), threading.Event(), threading.Event()
    lab.put({1: (0, 10)})
    lab.store.checkpoint()

    def slow(ctx: Any) -> None:
        at_work.set()
        go_on.wait()
        mirror("r", "a_out")(ctx)

    pipe.add(lab.job("a", ["r"]), slow)
    with running(pipe) as thread:
        at_work.wait()
        assert states(pipe) == {"a": "running"}
        with pytest.raises(el.InvalidInput, match="running already"):
            pipe.run()
        pipe.stop()
        go_on.set()
        thread.join()
    assert lab.rows("a_out") == {1: (0, 10)}
    lab.put({2: (0, 20)})
    pipe.run(until="idle")
    assert lab.rows("a_out") == lab.rows("r")


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell has its background processes ignore SIGINT, and they hand that on."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_it_after_the_barriers_at_hand(lab: Lab) -> None:
    pipe = el.Pipeline(lab.store)
    lab.put({1: (0, 10)})
    lab.store.checkpoint()

    def interrupted(ctx: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)  # to the main thread, which waits in run
        mirror("r", "a_out")(ctx)

    pipe.add(lab.job("a", ["r"]), interrupted)
    pipe.add(lab.job("b", ["r"]), mirror("r", "b_out"))
    with pytest.raises(KeyboardInterrupt):
        pipe.run()
    assert lab.rows("a_out") == {1: (0, 10)}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("epochlog ")]


@pytest.mark.logs("job_rebuild")
def test_a_parked_job_that_is_rebuilt_goes_on_when_it_is_added_again(lab: Lab) -> None:
    job, other = lab.job("a", ["r"]), lab.job("b", ["r"])
    lab.put({1: (0, 10)})
    lab.tick()
    for rebuilt in (job, other):
        rebuilt.step_local(mirror("r", f"{rebuilt.name}_out"))
    lab.put({2: (0, 20)})
    lab.tick()
    other.step_local(mirror("r", "b_out"))
    lab.tick(3 * 86_400)
    lab.put({3: (0, 30)})
    lab.store.compact("r", full=True)
    pipe = el.Pipeline(lab.store)
    pipe.add(job, mirror("r", "a_out"))
    pipe.add(other, mirror("r", "b_out"))
    with running(pipe):
        wait_until(lambda: states(pipe)["a"] == "parked")
        with pytest.raises(el.InvalidInput, match="already"):
            pipe.add(other, refuse)
        job.rebuild()
        pipe.add(job, mirror("r", "a_out"))
        lab.store.checkpoint()
        wait_until(lambda: lab.rows("a_out") == lab.rows("r") == lab.rows("b_out"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("epochlog ")]


def test_jobs_may_come_while_it_runs(lab: Lab) -> None:
    pipe = el.Pipeline(lab.store)
    first = lab.job("a", ["r"])
    pipe.add(first, mirror("r", "a_out"))
    with running(pipe):
        last = lab.put({1: (0, 10)})
        lab.store.checkpoint()
        second = lab.job("b", ["a_out"])
        pipe.add(second, mirror("a_out", "b_out"))
        wait_until(lambda: second.info.committed_epoch >= last)
    assert lab.rows("b_out") == lab.rows("r")


def test_misuse(lab: Lab, tmp_path: Path) -> None:
    pipe, job = el.Pipeline(lab.store), lab.job("a", ["r"])
    pipe.add(job, refuse)
    with pytest.raises(el.InvalidInput, match="in this pipeline already"):
        pipe.add(lab.store.job("a"), refuse)
    with pytest.raises(el.InvalidInput, match="refresh is a function"):
        pipe.add(lab.job("b", ["r"]), None)
    with pytest.raises(el.InvalidInput, match="until must be"):
        pipe.run(until="done")
    other = Lab(tmp_path / "other")
    other.root_table()
    with pytest.raises(el.InvalidInput, match="another store"):
        pipe.add(other.job("a", ["r"]), refuse)
    with running(pipe):
        again = el.Pipeline(lab.store)
        again.add(lab.store.job("a"), refuse)
        wait_until(lambda: states(pipe)["a"] in ("idle", "backing off"))
        with pytest.raises(el.JobRunning, match=r"already in this process, by a pipeline of process \d+ on .* since"):
            again.run()
    assert repr(el.Pipeline(lab.store)).endswith("no jobs>") and "a: " in repr(pipe)


# ---- nobody's trouble is another's -----------------------------------------------------------------------------------

Ticks = list[tuple[str, int, int]]


def ticks(folder: Path, trouble: str, rounds: int = 115) -> tuple[Ticks, el.JobStatus | None]:
    """(job, virtual time, epoch) of each commit of two jobs, one on the other, under a load of so many rounds; beside
    them one that fails at each try, one that hangs for good, or none. Its status at the end too.
    """
    lab, commits = Lab(folder), []
    time = VirtualTime(lab)
    pipe = el.Pipeline(lab.store, pauses=time)
    hanging, go_on = threading.Event(), threading.Event()
    for name in ("r", "other"):
        lab.root_table(name)
        lab.put({0: (0, 0)}, name)

    def noted(ctx: Any) -> None:
        name = "b" if "b_out" in ctx.plan.outputs else "a"
        ctx.upsert(f"{name}_out", table_of({0: (0, len(commits))}))
        commits.append((name, time.now_ms(), ctx.barrier.curr))

    def hangs(ctx: Any) -> None:
        hanging.set()
        time.let_go()
        go_on.wait()

    pipe.add(lab.job("a", ["r"]), noted)
    pipe.add(lab.job("b", ["a_out", "r"], interval=2), noted)
    if trouble:
        pipe.add(lab.job("c", ["other"]), fails if trouble == "fails" else hangs)
    with running(pipe, lambda: (go_on.set(), time.let_go())):
        for number in range(rounds):
            time.advance(700 if number < 10 else 31_000, lambda: pipe._pool.busy == hanging.is_set())
            if number % 2:
                lab.put({0: (0, number)})
        status = next((row for row in pipe.status() if row.name == "c"), None)
    return commits, status


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Ticks:
    commits, _ = ticks(tmp_path_factory.mktemp("alone") / "store", "")
    assert len([tick for tick in commits if tick[0] == "a"]) > 50 < len([tick for tick in commits if tick[0] == "b"])
    return commits


@pytest.mark.medium
@pytest.mark.local_only
def test_b12_the_ticks_of_a_job_are_the_same_beside_one_that_fails_a_hundred_times(alone: Ticks, tmp_path) -> None:
    beside, status = ticks(tmp_path / "store", "fails")
    assert status is not None and status.state == "backing off" and status.restarts >= 100
    assert status.next_try_ms is not None and 0 < status.next_try_ms <= 30_000
    assert sorted(beside) == sorted(alone)


@pytest.mark.medium
@pytest.mark.local_only
def test_the_ticks_of_a_job_are_the_same_beside_one_that_hangs(alone: Ticks, tmp_path) -> None:
    beside, status = ticks(tmp_path / "store", "hangs", rounds=30)
    assert status is not None and (status.state, status.committed_epoch) == ("running", 0)
    last = max(tick[1] for tick in beside)
    assert sorted(beside) == sorted(tick for tick in alone if tick[1] <= last) and len(beside) > 20


class Hurry:
    """Pauses that do not wait, but for a moment in which others may work."""

    def __init__(self) -> None:
        self._ms = 0

    def now_ms(self) -> int:
        return self._ms

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        self._ms += timeout_ms
        return event.wait(0.0005)


@pytest.mark.rule("5.3")
@pytest.mark.medium
@pytest.mark.logs("runner_waits")
def test_a_pipeline_waits_for_a_live_runner_and_goes_on_when_it_has_ended(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "epochlog")
    job, other, pipe, at_work, released = lab.job("a", ["r"]), lab.store.job("a"), el.Pipeline(lab.store), *_events(2)
    pipe.add(job, mirror("r", "a_out"))
    lab.put({1: (0, 10)})
    lab.store.checkpoint()

    def slowly(ctx: Any) -> None:
        mirror("r", "a_out")(ctx)
        at_work.set()
        assert released.wait(WAIT_LIMIT_S)

    step = threading.Thread(target=other.step_local, args=[slowly])
    step.start()
    assert at_work.wait(WAIT_LIMIT_S)
    run = threading.Thread(target=pipe.run, args=["idle"])
    run.start()
    wait_until(lambda: states(pipe) == {"a": "waiting"})
    released.set()
    step.join()
    run.join()
    assert states(pipe) == {"a": "idle"} and lab.rows("a_out") == {1: (0, 10)}
    (wait,) = logged(caplog, "runner_waits")
    assert wait["job"] == "a" and "'a' is run by a step of process" in wait["reason"]
    assert other.info.runner is None


def test_a_pipeline_that_takes_over_waits_for_nobody(lab: Lab) -> None:
    job, other, pipe = lab.job("a", ["r"]), lab.store.job("a"), el.Pipeline(lab.store)
    pipe.add(job, mirror("r", "a_out"), take_over=True)
    lab.put({1: (0, 10)})
    lab.store.checkpoint()

    def meanwhile(ctx: Any) -> None:
        pipe.run(until="idle")
        mirror("r", "a_out")(ctx)

    with pytest.raises(el.Fenced):
        other.step_local(meanwhile)
    assert lab.rows("a_out") == {1: (0, 10)} and job.info.incarnation == 2


def test_a_step_beside_a_pipeline_is_refused(lab: Lab) -> None:
    job, pipe, seen = lab.job("a", ["r"]), el.Pipeline(lab.store), []
    lab.put({1: (0, 10)})
    lab.store.checkpoint()

    def refresh(ctx: Any) -> None:
        mirror("r", "a_out")(ctx)
        for handle in (job, lab.store.job("a")):
            with pytest.raises(el.JobRunning, match="a pipeline of process"):
                handle.step_local(mirror("r", "a_out"))
        seen.append(job.info.runner)

    pipe.add(job, refresh)
    pipe.run(until="idle")
    assert [runner.kind for runner in seen if runner] == ["pipeline"]
    assert job.info.runner is None and job.step_local(refresh) is None


def _events(count: int) -> list[threading.Event]:
    return [threading.Event() for _ in range(count)]


def test_the_phases_of_each_barrier_are_measured(lab: Lab) -> None:
    """Barriers that a process decides itself have the metrics of those that a coordinator decides."""
    job, other = lab.job("j", ["r"]), lab.job("k", ["j_out"])
    lab.put({1: (0, 10)})
    assert 'job="job:j"' not in lab.store.metrics()
    lab.tick()
    assert job.step_local(mirror("r", "j_out"))
    lab.put({1: (0, 11)})
    lab.tick()
    with pytest.raises(ZeroDivisionError):  # no barrier has committed
        job.step_local(lambda ctx: 1 / 0)
    pipe = el.Pipeline(lab.store)
    pipe.add(job, mirror("r", "j_out"))
    pipe.add(other, sums("j_out", "k_out"))
    pipe.run(until="idle")
    text = lab.store.metrics()
    for phase in ("decision", "collection", "commit"):
        for name in ("j", "k"):
            count = len(lab.store.table(f"{name}_out").history())
            assert f'epochlog_barrier_phase_seconds_count{{job_name="job:{name}",phase="{phase}"}} {count}\n' in text
    assert 'epochlog_table_lag_seconds{table="k_out"} 0' in text


# ---- a session that is lost ------------------------------------------------------------------------------------------


def loses_its_session(ctx: Any) -> None:
    raise el.SparkLost("the JVM has died")


def test_a_lost_session_ends_all_jobs_also_one_that_never_has_work(lab: Lab) -> None:
    """The second job reads the first, which cannot commit any more: `run` must not wait for it."""
    pipe = el.Pipeline(lab.store)
    pipe.add(lab.job("a", ["r"]), loses_its_session)
    pipe.add(lab.job("b", ["a_out"]), mirror("a_out", "b_out"))
    lab.put({0: (0, 0)})
    lab.store.checkpoint()
    with running(pipe) as thread:
        wait_until(lambda: not thread.is_alive())
    assert states(pipe) == {"a": "given up", "b": "given up"}
    assert all("SparkLost" in str(row.last_error) for row in pipe.status())
    assert all(lab.store.job(name).info.runner is None for name in "ab")


@pytest.mark.medium
def test_a_lost_session_ends_a_job_that_works_backs_off_or_waits(lab: Lab) -> None:
    """The job at work commits first."""
    jobs = {name: lab.job(name, ["r"]) for name in ("works", "fails", "waits", "loses")}
    pipe, at_work, held, ended = el.Pipeline(lab.store), *_events(3)

    def works(ctx: Any) -> None:
        at_work.set()
        wait_until(lambda: states(pipe)["loses"] == "given up")
        mirror("r", "works_out")(ctx)

    def holds(ctx: Any) -> None:
        held.set()
        assert ended.wait(WAIT_LIMIT_S)

    def loses(ctx: Any) -> None:
        assert at_work.wait(WAIT_LIMIT_S)
        wait_until(lambda: (states(pipe)["fails"], states(pipe)["waits"]) == ("backing off", "waiting"))
        loses_its_session(ctx)

    lab.put({0: (0, 0)})
    lab.store.checkpoint()
    step = threading.Thread(target=lab.store.job("waits").step_local, args=[holds])
    step.start()
    assert held.wait(WAIT_LIMIT_S)
    for name, refresh in (("works", works), ("fails", fails), ("waits", mirror("r", "waits_out")), ("loses", loses)):
        pipe.add(jobs[name], refresh)
    with running(pipe, ended.set) as thread:
        wait_until(lambda: not thread.is_alive())
    step.join()
    assert set(states(pipe).values()) == {"given up"}
    assert lab.rows("works_out") == lab.rows("r")
    assert all(job.info.runner is None for job in jobs.values())


# ---- compaction --------------------------------------------------------------------------------------------------


def compactors(lab: Lab, table: str) -> set[str]:
    """Return who compacted the table."""
    return lab.store._handle.catalog.read(
        lambda view: {trace.by for trace in read_traces(view, find_table(view, table).id)}
    )


def l0_segments(lab: Lab, table: str) -> int:
    return lab.store._handle.catalog.read(lambda view: get_version(view, find_table(view, table).id, table).l0_segments)


def steps(lab: Lab, pipe: el.Pipeline, count: int) -> None:
    for number in range(count):
        lab.put({number % 5: (0, number)})
        lab.tick()
        pipe.run(until="idle")
    assert lab.rows("a_out") == lab.rows("r")


def test_a_pipeline_compacts_what_it_writes_and_nothing_else(lab: Lab) -> None:
    pipe = el.Pipeline(lab.store)
    pipe.add(lab.job("a", ["r"]), mirror("r", "a_out"))
    steps(lab, pipe, 20)
    assert l0_segments(lab, "a_out") < 8 <= l0_segments(lab, "r"), "r is written by others"
    assert compactors(lab, "a_out") == {"pipeline"} and compactors(lab, "r") == set()
    for epoch in lab.store.table("a_out").history()["epoch"].to_pylist():
        assert lab.rows("a_out", epoch) == lab.rows("r", epoch), "no retention has released an epoch"


def test_a_failed_compaction_leaves_the_job_alone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object, **__: object) -> None:
        raise el.WriteFailed("no space is left")

    monkeypatch.setattr(write_stall, "compact_table", full)
    pipe = el.Pipeline(lab.store)
    pipe.add(lab.job("a", ["r"]), mirror("r", "a_out"))
    steps(lab, pipe, 10)
    assert any("the compaction of table a_out" in event["what"] for event in logged(caplog, "retry"))
    assert states(pipe) == {"a": "idle"}
    monkeypatch.undo()
    steps(lab, pipe, 1)
    assert l0_segments(lab, "a_out") == 0, "the next step tries again"


@pytest.mark.medium
@pytest.mark.parametrize("error", [MemoryError("out of memory"), OSError(5, "no answer"), RuntimeError("a bug")])
def test_no_error_of_a_compaction_ends_the_threads_of_a_pipeline(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """The one thread of the pool goes on, and so does the compaction of the other outputs."""
    compact_table = write_stall.compact_table

    def failing(handle: Handle, table: TableDef, **options: Any) -> CompactionOutcome:
        if table.name == "a_out":
            raise error
        return compact_table(handle, table, **options)

    monkeypatch.setattr(write_stall, "compact_table", failing)
    pipe, job = el.Pipeline(lab.store, threads=1), lab.job("a", ["r"], outputs=("a_out", "b_out"))
    pipe.add(job, lambda ctx: [mirror("r", name)(ctx) for name in ("a_out", "b_out")])
    with running(pipe):
        for number in range(10):
            epoch = lab.put({number: (0, number)})
            lab.tick()
            wait_until(lambda: job.info.committed_epoch >= epoch)  # noqa: B023
    assert lab.rows("a_out") == lab.rows("b_out") == lab.rows("r")
    assert l0_segments(lab, "a_out") >= 8 > l0_segments(lab, "b_out")
    assert logged(caplog, "retry" if isinstance(error, OSError) else "defect")


def test_maintenance_of_the_process_compacts_instead(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "store", maintenance=True)
    lab.root_table()
    pipe = el.Pipeline(lab.store)
    pipe.add(lab.job("a", ["r"]), mirror("r", "a_out"))
    steps(lab, pipe, 10)
    wait_until(lambda: l0_segments(lab, "a_out") < 8)
    assert compactors(lab, "a_out") == {"maintenance"}
    lab.store.close()
