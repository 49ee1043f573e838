"""Many jobs of one pipeline: the cost of a round, more slow jobs than threads, a drain of all, a kill in the middle."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from epochlog.checkpoint.job.claims import release_all
from epochlog.checkpoint.job.driver import JobDriver
from epochlog.checkpoint.job.job_looks import LookRequest, look_at
from epochlog.checkpoint.pipeline.pipeline import PipelineRunner
from epochlog.checkpoint.pipeline.step_pool import LONG_MS, StepPool
from epochlog.store.catalog.keys import job_key
from lab import KEY, SCHEMA, Lab, mirror, state_of, sums, table_of
from logged_events import logged
from virtual_time import StandingTime, VirtualTime
from wait_until import WAIT_LIMIT_S, wait_until


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    lab = Lab(tmp_path / "store")
    lab.root_table()
    lab.put({1: (0, 10)})
    return lab


def states(pipe: el.Pipeline) -> dict[str, str]:
    return {row.name: row.state for row in pipe.status()}


def pipeline_of(lab: Lab, count: int, **options: Any) -> el.Pipeline:
    """Return a pipeline of `count` copies of the table, and of a view on each tenth of them."""
    pipe = el.Pipeline(lab.store, **options)
    for number in range(count):
        pipe.add(lab.job(f"j{number}", ["r"]), mirror("r", f"j{number}_out"))
        if number % 10 == 0:
            pipe.add(lab.job(f"k{number}", [f"j{number}_out"]), sums(f"j{number}_out", f"k{number}_out"))
    return pipe


class Counted:
    """Counts the reads of a catalog."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, catalog: Any) -> None:
        self.reads = 0
        read = catalog.read

        def counted(body: Callable[[Any], Any]) -> Any:
            self.reads += 1
            return read(body)

        monkeypatch.setattr(catalog, "read", counted)


# ---- cost --------------------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_the_reads_of_an_idle_poll_do_not_grow_with_the_jobs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten polls of 0.1 s of virtual time read the catalog ten times, for three jobs and for thirty."""
    reads: dict[int, int] = {}
    for count in (3, 30):
        time = VirtualTime(lab)
        pipe = el.Pipeline(lab.store, pauses=time)
        for number in range(count):
            name = f"of{count}_{number}"
            pipe.add(lab.job(name, ["r"]), mirror("r", f"{name}_out"))
        pipe.run(until="idle")
        thread = threading.Thread(target=pipe.run)
        thread.start()
        time.advance(1000, lambda pipe=pipe: pipe._pool.busy == 0)
        with monkeypatch.context() as patch:
            counted = Counted(patch, lab.store._handle.catalog)
            for _ in range(10):
                time.advance(100, lambda pipe=pipe: pipe._pool.busy == 0)
            reads[count] = counted.reads
        assert set(states(pipe).values()) == {"idle"}
        pipe.stop()
        time.let_go()
        thread.join()
    assert reads == {3: 10, 30: 10}


@pytest.mark.medium
def test_an_idle_round_reads_for_entering_alone(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round without work enters each job, and looks at all jobs once before that; no job is stepped."""
    reads: dict[int, int] = {}
    for count in (5, 40):
        pipe = el.Pipeline(lab.store, pauses=StandingTime())
        for number in range(count):
            name = f"of{count}_{number}"
            pipe.add(lab.job(name, ["r"]), mirror("r", f"{name}_out"))
        pipe.run(until="idle")
        with monkeypatch.context() as patch:
            counted, stepped = Counted(patch, lab.store._handle.catalog), []
            patch.setattr(JobDriver, "step", lambda *arguments, done=stepped: done.append(arguments))
            pipe.run(until="idle")
            reads[count] = counted.reads - count
        assert not stepped and set(states(pipe).values()) == {"idle"}
    assert set(reads.values()) == {1}


@pytest.mark.medium
def test_a_round_of_many_jobs_takes_few_threads(lab: Lab) -> None:
    pipe, at_work, most = el.Pipeline(lab.store, threads=3, pauses=StandingTime()), set(), [0]

    def counted(refresh: Callable[[Any], None]) -> Callable[[Any], None]:
        def body(ctx: Any) -> None:
            at_work.add(threading.get_ident())
            most[0] = max(most[0], len(at_work))
            refresh(ctx)
            at_work.discard(threading.get_ident())

        return body

    for number in range(20):
        pipe.add(lab.job(f"j{number}", ["r"]), counted(mirror("r", f"j{number}_out")))
    pipe.add(lab.job("k", ["j7_out", "j9_out"]), counted(sums("j7_out", "k_out")))
    for value in range(3):
        lab.put({1: (0, value), 100 + value: (0, value)})
        pipe.run(until="idle")
        assert set(states(pipe).values()) == {"idle"}
        assert all(lab.rows(f"j{number}_out") == lab.rows("r") for number in range(20))
        assert lab.rows("k_out") == {0: (len(lab.rows("r")), sum(v for _, v in lab.rows("r").values()))}
    assert 1 <= most[0] <= 3
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("epochlog ")]


def test_threads_are_checked(lab: Lab) -> None:
    for threads in (0, -1, 1.5, True, "4"):
        with pytest.raises(el.InvalidInput, match="threads is the number of steps"):
            el.Pipeline(lab.store, threads=threads)


@pytest.mark.medium
def test_a_look_finds_work_exactly_where_a_step_does_it(tmp_path: Path) -> None:
    """Random graphs under random commits, boundaries, drains, rebuilds and failures."""
    for seed in range(5):
        chance = random.Random(seed)
        lab = Lab(tmp_path / f"store{seed}")
        lab.root_table()
        lab.root_table("s")
        tables, jobs = ["r", "s"], {}
        handle = lab.store._handle
        for number in range(6):
            upstreams = chance.sample(tables, chance.choice([1, 1, 2]))
            interval, backfill = chance.choice([1, 1, 2, 3]), chance.choice(["snapshot", "log"])
            job = lab.job(f"j{number}", upstreams, interval=interval, backfill=backfill)
            jobs[job] = mirror(upstreams[0], f"j{number}_out")
            tables.append(f"j{number}_out")
        for act in range(60):
            what = chance.random()
            if what < 0.35:
                lab.put({chance.randrange(9): (0, act)}, chance.choice(["r", "s"]))
            elif what < 0.6:
                lab.tick(chance.choice([0.3, 1, 2.5]))
            elif what < 0.7:
                lab.store.checkpoint()
            elif what < 0.72:
                with suppress(el.TableFinished):
                    chance.choice(list(jobs)).rebuild()
            elif what < 0.74:
                lab.store.job(chance.choice(list(jobs)).name).stop(drain=True)  # recorded, not waited for
            for job in chance.sample(list(jobs), chance.choice([0, 1, 2, 6])):
                runner, lease = job._runner, job._runner.new_lease("pipeline")
                look = look_at(handle, [LookRequest(runner.job_id, runner.name, lease)], None, {}).by_job[runner.job_id]
                before = job.info.state, job.info.outside
                epoch = job.step_local(jobs[job])
                changed = epoch is not None or before != (job.info.state, job.info.outside)
                assert look.has_work == changed and look.finished == (before[0] == "finished"), (seed, act, job.name)


# ---- order and time ----------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_short_steps_start_before_long_ones(lab: Lab) -> None:
    """A flood of rows in one job began at any place among the steps of the others, and took the processor from them."""
    time, order = VirtualTime(lab), []
    pipe = el.Pipeline(lab.store, threads=1, pauses=time)

    def taking(ms: int, name: str) -> Callable[[Any], None]:
        def refresh(ctx: Any) -> None:
            order.append(name)
            time.pass_ms(ms)
            mirror("r", f"{name}_out")(ctx)

        return refresh

    for name, ms in {"flood": 300, "quick0": 2, "slow": 40, "quick1": 1}.items():
        pipe.add(lab.job(name, ["r"]), taking(ms, name))
    pipe.run(until="idle")
    assert order == ["flood", "quick0", "slow", "quick1"]  # nothing is known of them yet
    for value in range(3):
        order.clear()
        lab.put({1: (0, value)})
        pipe.run(until="idle")
        assert order == ["quick1", "quick0", "slow", "flood"]


def test_an_idle_job_gets_its_barrier_when_the_boundary_passes(lab: Lab) -> None:
    """Idle jobs were looked at ten times a second, so each barrier came up to 0.1 s after its boundary."""
    time = VirtualTime(lab)
    lab.now_ms += 35  # boundaries fall between two looks
    pipe = el.Pipeline(lab.store, pauses=time)
    job = lab.job("j", ["r"])
    pipe.add(job, mirror("r", "j_out"))
    pipe.run(until="idle")
    thread = threading.Thread(target=pipe.run)
    thread.start()
    try:
        last = lab.put({2: (0, 20)})
        for ms, committed in ((900, False), (64, False), (1, True)):
            time.advance(ms, lambda: pipe._pool.busy == 0)
            assert (job.info.committed_epoch >= last) == committed, ms
    finally:
        pipe.stop()
        time.let_go()
        thread.join()
    assert lab.rows("j_out") == lab.rows("r")


# ---- isolation ---------------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_more_slow_jobs_than_threads_do_not_keep_the_others(lab: Lab) -> None:
    """Two threads and five jobs that hang: the pool lends two slots at a time, so the others go on after two waits, and
    from then on nothing waits for the five.
    """
    time, go_on, hanging = VirtualTime(lab), threading.Event(), []
    pipe = el.Pipeline(lab.store, threads=2, pauses=time)

    def hangs(ctx: Any) -> None:
        hanging.append(ctx.barrier)
        assert go_on.wait(WAIT_LIMIT_S * 4)

    for number in range(5):
        pipe.add(lab.job(f"slow{number}", ["r"]), hangs)
    good = [lab.job(f"good{number}", ["r"]) for number in range(4)]
    for job in good:
        pipe.add(job, mirror("r", f"{job.name}_out"))
    lab.store.checkpoint()
    thread = threading.Thread(target=pipe.run)
    thread.start()
    try:
        for count in (2, 4, 5):
            time.settle(lambda count=count: len(hanging) == count)
            time.pass_ms(LONG_MS)
        wait_until(lambda: all(job.info.committed_epoch for job in good))
        assert len(hanging) == 5
        for value in range(3):  # nobody waits now: no time passes but the poll of the idle jobs
            time.settle(
                lambda: pipe._pool.busy == len(hanging)
            )  # else a look comes after that time, and waits for more of it
            last = lab.put({2: (0, value)})
            lab.store.checkpoint()
            time.pass_ms(100)
            wait_until(lambda last=last: all(job.info.committed_epoch >= last for job in good))
        assert {state for name, state in states(pipe).items() if name.startswith("slow")} == {"running"}
    finally:
        pipe.stop()
        go_on.set()
        time.let_go()
        thread.join()
    assert lab.rows("good3_out") == lab.rows("r")


def test_a_job_that_was_slow_takes_no_slot_until_it_is_quick_again() -> None:
    now_ms, ended, may_end = [0], threading.Semaphore(0), threading.Event()
    pool = StepPool(1, lambda: now_ms[0])
    at_work = threading.Semaphore(0)

    def slow() -> None:
        at_work.release()
        may_end.wait(WAIT_LIMIT_S)
        ended.release()

    pool.submit("slow", slow)
    at_work.acquire()
    pool.submit("quick", ended.release)
    now_ms[0] += LONG_MS - 1
    assert pool.release_long() == 1 and pool.queued
    now_ms[0] += 1
    pool.release_long()
    assert ended.acquire(timeout=WAIT_LIMIT_S)  # the quick one, while the slow one runs
    may_end.set()
    assert ended.acquire(timeout=WAIT_LIMIT_S)
    wait_until(lambda: pool.busy == 0)
    may_end.clear()
    pool.submit("slow", slow)  # beside the pool from the start
    at_work.acquire()
    pool.submit("quick", ended.release)
    assert ended.acquire(timeout=WAIT_LIMIT_S)
    may_end.set()
    assert ended.acquire(timeout=WAIT_LIMIT_S)
    wait_until(lambda: pool.busy == 0)
    may_end.clear()
    pool.submit("slow", slow)  # its newest step was quick, so it takes the slot
    at_work.acquire()
    pool.submit("quick", ended.release)
    assert pool.queued
    assert pool.close() == ["quick"]
    may_end.set()
    pool.join()


# ---- drain -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("until", [None, "idle"])
@pytest.mark.medium
def test_a_running_pipeline_is_drained_at_one_epoch(lab: Lab, until: Any) -> None:
    pipe, at_work, go_on = pipeline_of(lab, 12, threads=2), threading.Event(), threading.Event()

    def slowly(ctx: Any) -> None:
        at_work.set()
        assert go_on.wait(WAIT_LIMIT_S * 4)
        mirror("r", "slow_out")(ctx)

    pipe.add(lab.job("slow", ["r"]), slowly)
    lab.store.checkpoint()
    thread = threading.Thread(target=pipe.run, args=[until])
    thread.start()
    assert at_work.wait(WAIT_LIMIT_S)
    lab.put({2: (0, 20)})
    pipe.stop(drain=True)
    lab.put({3: (0, 30)})  # comes too late
    go_on.set()
    thread.join()
    assert set(states(pipe).values()) == {"finished"}
    assert len({info.drain for info in lab_jobs(lab)}) == 1
    assert all(lab.rows(f"j{number}_out") == {1: (0, 10), 2: (0, 20)} for number in range(12))
    assert lab.rows("k10_out") == {0: (2, 30)} and lab.rows("slow_out") == lab.rows("j0_out")
    assert all(lab.store.table(name).info.state == "finished" for name in ("k10_out", "slow_out"))
    pipe.stop(drain=True)  # of finished jobs: nothing changes
    pipe.run(until="idle")
    assert set(states(pipe).values()) == {"finished"}


def lab_jobs(lab: Lab) -> list[Any]:
    return [lab.store.job(info.name)._runner.record() for info in lab.store.jobs()]


def test_a_drain_of_a_pipeline_that_does_not_run_is_for_its_next_run(lab: Lab) -> None:
    pipe = pipeline_of(lab, 3)
    pipe.run(until="idle")
    lab.put({2: (0, 20)})
    pipe.stop(drain=True)
    assert set(states(pipe).values()) == {"idle"} and {lab.state(f"j{number}") for number in range(3)} == {"running"}
    lab.put({3: (0, 30)})
    pipe.run()
    assert set(states(pipe).values()) == {"finished"} and lab.rows("j2_out") == {1: (0, 10), 2: (0, 20)}


@pytest.mark.medium
def test_a_drain_leaves_ended_jobs_and_goes_on_beside_one_that_fails(lab: Lab) -> None:
    pipe, broken = el.Pipeline(lab.store), [True]

    def fails_at_first(ctx: Any) -> None:
        if broken[0]:
            raise ZeroDivisionError("as it always does")
        mirror("r", "bad_out")(ctx)

    for name in ("gone", "taken", "good"):
        pipe.add(lab.job(name, ["r"]), mirror("r", f"{name}_out"))
    pipe.add(lab.job("bad", ["r"]), fails_at_first)
    pipe.run(until="idle")
    lab.store.drop_job("gone")
    other = lab.store.job("taken")
    lab.put({2: (0, 20)})
    lab.store.checkpoint()
    assert other.step_local(mirror("r", "taken_out")) is not None
    pipe.stop(drain=True)
    pipe.run(until="idle")
    assert states(pipe) == {"gone": "dropped", "taken": "fenced", "good": "finished", "bad": "given up"}
    assert other.info.state == "running" and lab.state("bad") != "finished"
    broken[0] = False
    pipe.run(until="idle")
    assert states(pipe)["bad"] == "finished" and lab.rows("bad_out") == lab.rows("r")


# ---- ends --------------------------------------------------------------------------------------------------------


def test_job_stop_does_not_wait_for_the_queue(lab: Lab) -> None:
    """The job is queued behind one that hangs in the only slot; its stop returns, and its refresh never runs."""
    pipe, at_work, go_on = el.Pipeline(lab.store, threads=1), threading.Event(), threading.Event()

    def hangs(ctx: Any) -> None:
        at_work.set()
        assert go_on.wait(WAIT_LIMIT_S * 4)
        mirror("r", "a_out")(ctx)

    pipe.add(lab.job("a", ["r"]), hangs)
    second = lab.job("b", ["r"])
    pipe.add(second, mirror("r", "b_out"))
    lab.store.checkpoint()
    thread = threading.Thread(target=pipe.run)
    thread.start()
    try:
        assert at_work.wait(WAIT_LIMIT_S)
        second.stop()
        assert states(pipe)["b"] == "stopped" and second.info.runner is None and not go_on.is_set()
    finally:
        go_on.set()
        pipe.stop()
        thread.join()
    assert second.info.committed_epoch == 0 and lab.rows("a_out") == lab.rows("r")


@pytest.mark.local_only
@pytest.mark.logs("runner_left")
def test_a_damaged_record_keeps_no_other_job_from_being_released(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    handle = lab.store._handle
    runners = [lab.job(name, ["r"])._runner for name in "abc"]
    leases = [runner.new_lease("pipeline") for runner in runners]
    for runner, lease in zip(runners, leases, strict=True):
        runner.acquire(lease)

    def put_checksum(checksum: bytes) -> bytes:
        def body(tx: Any) -> bytes:
            key = job_key(runners[1].job_id)
            before = tx._txn.get(key)
            tx._txn.put(key, checksum + before[4:])
            return before[:4]

        return handle.catalog.transact(body)

    checksum = put_checksum(b"\0" * 4)
    release_all(handle, leases)
    assert "checksum" in logged(caplog, "runner_left")[0]["error"]
    assert [runner.record().runner for runner in (runners[0], runners[2])] == [None, None]
    handle.runners.renew()  # nothing is left to be released that would fail at each renewal
    put_checksum(checksum)


@pytest.mark.parametrize("place", ["_leave", "_look"])
def test_an_error_of_the_scheduler_ends_the_run(lab: Lab, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that `run` raises a bug of the scheduler instead of waiting for ever; its jobs run again."""
    pipe = pipeline_of(lab, 3)
    lab.store.checkpoint()
    with monkeypatch.context() as patch:
        patch.setattr(PipelineRunner, place, lambda pipeline, members: {}["a bug"])
        with pytest.raises(KeyError, match="a bug"):
            pipe.run(until="idle")
    pipe.run(until="idle")
    assert all(lab.rows(f"j{number}_out") == lab.rows("r") for number in range(3))


CHILD = """
import sys
import epochlog as el
from lab import SCHEMA, KEY, mirror
store = el.open(sys.argv[1], durability="os")
pipe = el.Pipeline(store, threads=3)
def noted(name):
    def refresh(ctx):
        print(name, flush=True)
        mirror("r", f"{name}_out")(ctx)
    return refresh
for number in range(int(sys.argv[2])):
    job = store.create_job(f"j{number}", ["r"], {f"j{number}_out": (SCHEMA, KEY)}, exist_ok=True)
    pipe.add(job, noted(f"j{number}"))
while True:
    store.checkpoint()
    pipe.run(until="idle")
    store.table("r").delete(store.table("r").to_arrow().select(KEY).slice(0, 1))
"""


@pytest.mark.slow
@pytest.mark.local_only
def test_a_pipeline_that_is_killed_in_a_round_is_continued(tmp_path: Path) -> None:
    """SIGKILL in rounds of 30 jobs on three threads: a new pipeline takes over, and every view is right."""
    with el.open(tmp_path / "store", durability="os") as store:
        table = store.create_table("r", SCHEMA, KEY)
        table.upsert(table_of({key: (0, key) for key in range(200)}))
        jobs = 30
        for kill in (11, 47, 75):
            path = ":".join(entry for entry in sys.path if entry)
            child = subprocess.Popen(
                [sys.executable, "-c", CHILD, store.root, str(jobs)],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": path},
            )
            assert child.stdout is not None
            for _ in range(kill):
                assert child.stdout.readline()
            child.kill()
            child.communicate()
        pipe = el.Pipeline(store, threads=3)
        for number in range(jobs):
            pipe.add(store.job(f"j{number}"), mirror("r", f"j{number}_out"))
        pipe.run(until="idle")
        assert not [row for row in pipe.status() if row.last_error], pipe.status()
        wanted = state_of(store.table("r").to_arrow())
        assert wanted and all(state_of(store.table(f"j{n}_out").to_arrow()) == wanted for n in range(jobs))
