"""Jobs that several parts refresh side by side: the result is that of one runner, whoever dies in between."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import epochlog as el
from control_fixture import TOKEN, open_worker, settings
from epochlog.checkpoint.job import runner as jobs
from epochlog.checkpoint.worker.row_partitioning import PartRefreshContext, split
from epochlog.errors import Fenced, InvalidInput
from epochlog.store.commit.transaction import commit_changes
from epochlog.store.sst.segment import Segment
from wait_until import WAIT_LIMIT_S, wait_until

ORDERS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("cents", pa.int64())])
REVENUE = pa.schema([("day", pa.string()), ("cents", pa.int64())])


class Killed(BaseException):
    """A part's process has died."""


def query(orders: pa.Table) -> pa.Table:
    sums = orders.group_by("day").aggregate([("cents", "sum")]).rename_columns(["day", "cents"])
    return sums.cast(REVENUE).sort_by("day")


def refresh(ctx: Any) -> None:
    """Sum anew the days of this part's share that have changed."""
    changed = ctx.share(ctx.changes("orders", pre_images=True), by=["day"])
    days = pc.unique(changed["day"])
    if not len(days):
        return
    orders = ctx.table("orders")
    revenue = query(orders.filter(pc.is_in(orders["day"], value_set=days)))
    ctx.upsert("revenue", revenue)
    gone = days.filter(pc.invert(pc.is_in(days, value_set=revenue["day"].combine_chunks())))
    ctx.delete("revenue", pa.table({"day": gone}))


@contextmanager
def world(folder: Path) -> Iterator[tuple[el.Store, el.StoreServer]]:
    with el.open(folder / "store", durability="os", checkpoint_interval_ms=20) as store:
        store.create_table("orders", ORDERS, ["id"])
        store.create_job("revenue", ["orders"], {"revenue": (REVENUE, ["day"])})
        with el.serve(store, token=TOKEN, control=settings(attempt_ms=30_000)) as server:
            yield store, server


def write(store: el.Store, chance: random.Random) -> None:
    """Orders that come, change their day or amount, and go."""
    some = [chance.randrange(200) for _ in range(60)]
    fresh = {each: (f"day-{chance.randrange(12):02}", chance.randrange(1000)) for each in some}
    table = store.table("orders")
    table.upsert(
        pa.table({"id": [*fresh], "day": [day for day, _ in fresh.values()], "cents": [c for _, c in fresh.values()]})
    )
    table.delete(pa.table({"id": pa.array(chance.sample(range(200), 10), pa.int64())}))


def run(
    store: el.Store,
    server: el.StoreServer,
    parts: int,
    change: Callable[[], None],
    work: Callable[[Any], None] = refresh,
) -> None:
    """Have `parts` parts run the job until it has taken in what `change` does."""
    stop, failures = threading.Event(), []

    def run_part(index: int) -> None:
        while not stop.is_set():
            try:
                with open_worker(server, store) as mine:
                    part = mine.attach(job="revenue", index=index, of=parts, timeout=WAIT_LIMIT_S)
                    while not stop.is_set():
                        part.step(work, timeout=0.02)
            except Killed:
                continue  # it is started again
            except el.RolledBack:
                continue
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=run_part, args=(index,)) for index in range(parts)]
    for thread in threads:
        thread.start()
    try:
        change()
        store.checkpoint()
        wanted = store.table("orders").info.max_committed_epoch
        wait_until(lambda: failures or store.job("revenue").info.committed_epoch >= wanted)
        assert not failures, failures
    finally:
        stop.set()
        for thread in threads:
            thread.join(WAIT_LIMIT_S)


def check(store: el.Store) -> None:
    """The law: at the job's epoch its output is the query of its input there."""
    epoch = store.job("revenue").info.committed_epoch
    revenue = store.table("revenue").to_arrow(epoch=epoch).cast(REVENUE)
    assert revenue.equals(query(store.table("orders").to_arrow(epoch=epoch)))


@pytest.mark.rule("5.35")
@pytest.mark.medium
def test_one_part_then_four_then_one_and_one_of_them_killed(tmp_path: Path) -> None:
    chance = random.Random(7)
    deaths_left = [2]  # the calls of part 2 that die

    def deadly(ctx: Any) -> None:
        refresh(ctx)
        if ctx.part == 2 and deaths_left[0]:
            deaths_left[0] -= 1
            raise Killed

    with world(tmp_path) as (store, server):
        write(store, chance)
        for parts in (1, 4, 1, 3):
            for _ in range(2):
                run(store, server, parts, lambda: write(store, chance), deadly)
                check(store)
        assert deaths_left == [0]
        epochs = store.table("revenue").history()["epoch"].to_pylist()
        assert len(set(epochs)) == len(epochs)


@pytest.mark.medium
def test_an_attempt_that_fails_keeps_what_the_others_reported(tmp_path: Path) -> None:
    """A part whose refresh raises declines; the barrier comes again, and only it refreshes again."""
    calls: list[int] = []
    bad = [True]

    def work(ctx: Any) -> None:
        calls.append(ctx.part)
        if ctx.part == 1 and bad[0]:
            wait_until(lambda: waiting(server) == {("revenue", 1)})
            bad[0] = False
            raise ZeroDivisionError("not now")
        refresh(ctx)

    def waiting(server: el.StoreServer) -> frozenset[Any]:
        return next(iter(server.coordinator.status())).waiting_for

    with world(tmp_path) as (store, server):
        write(store, random.Random(1))
        with open_worker(server, store) as first_worker, open_worker(server, store) as second_worker:
            first = first_worker.attach(job="revenue", index=0, of=2, timeout=WAIT_LIMIT_S)
            second = second_worker.attach(job="revenue", index=1, of=2, timeout=WAIT_LIMIT_S)
            done = threading.Thread(target=first.step, args=(work, WAIT_LIMIT_S))
            done.start()
            with pytest.raises(ZeroDivisionError):
                second.step(work, WAIT_LIMIT_S)
            epoch = second.step(work, WAIT_LIMIT_S)
            done.join(WAIT_LIMIT_S)
            assert epoch == store.job("revenue").info.committed_epoch
            assert sorted(calls) == [0, 1, 1]
            check(store)


@pytest.mark.medium
def test_a_refused_commit_is_tried_again_with_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures_left, calls = [2], []

    def refuse(*args: Any) -> Any:
        if failures_left[0]:
            failures_left[0] -= 1
            raise el.CatalogUnavailable("not now")
        return commit_changes(*args)

    monkeypatch.setattr(jobs, "commit_changes", refuse)
    with world(tmp_path) as (store, server), open_worker(server, store) as worker:
        write(store, random.Random(1))
        part = worker.attach(job="revenue", index=0, of=1, timeout=WAIT_LIMIT_S)
        wait_until(lambda: part.step(lambda ctx: (calls.append(1), refresh(ctx))[1], 0.05) is not None)
        assert failures_left == [0] and calls == [1]
        check(store)


@pytest.mark.rule("5.3")
def test_a_runner_of_its_own_fences_the_parts_only_when_told_to(tmp_path: Path) -> None:
    with world(tmp_path) as (store, server), open_worker(server, store) as worker:
        write(store, random.Random(1))
        part = worker.attach(job="revenue", index=0, of=1, timeout=WAIT_LIMIT_S)
        wait_until(lambda: part.step(refresh, 0.05) is not None)
        job = store.job("revenue")
        write(store, random.Random(2))
        store.checkpoint()
        with pytest.raises(el.JobRunning, match="a coordinator of process"):
            job.step_local(refresh_all_days)
        with pytest.raises(Fenced):
            wait_until(
                lambda: job.step_local(refresh_all_days, take_over=True) and part.step(refresh, WAIT_LIMIT_S) is None
            )
        check(store)


@pytest.mark.medium
def test_an_altered_interval_holds_from_the_next_barrier_on(tmp_path: Path) -> None:
    """The coordinator looks at it when it decides one, however long the parts have been attached."""
    with world(tmp_path) as (store, server), open_worker(server, store) as worker:
        job = store.job("revenue")
        job.alter(interval=timedelta(hours=1))
        part = worker.attach(job="revenue", index=0, of=1, timeout=WAIT_LIMIT_S)
        job.alter(interval=1)
        write(store, random.Random(1))
        server.coordinator.checkpoint("job", "revenue")  # the one that would be due within the hour
        wait_until(lambda: part.step(refresh, 0.05) is not None)
        for seed in (2, 3):  # and nobody asks for these
            write(store, random.Random(seed))
            wait_until(lambda: part.step(refresh, 0.05) is not None)
        check(store)


def refresh_all_days(ctx: Any) -> None:
    ctx.delete("revenue", ctx.output("revenue").select(["day"]))
    ctx.upsert("revenue", query(ctx.table("orders")))


def test_a_job_whose_data_ends_finishes_all_parts(tmp_path: Path) -> None:
    with world(tmp_path) as (store, server), open_worker(server, store) as worker:
        write(store, random.Random(1))
        parts = [worker.attach(job="revenue", index=index, of=2, timeout=WAIT_LIMIT_S) for index in range(2)]
        store.table("orders").finish()
        other = threading.Thread(
            target=lambda: wait_until(lambda: parts[1].finished or parts[1].step(refresh, 0.05) == 0)
        )
        other.start()
        wait_until(lambda: parts[0].finished or parts[0].step(refresh, 0.05) == 0)
        other.join(WAIT_LIMIT_S)
        assert store.job("revenue").info.state == "finished" and parts[0].step(refresh) is None
        check(store)


def test_all_parts_attach_to_a_job_that_has_finished(tmp_path: Path) -> None:
    """The second one had no answer until its timeout: the check of the lease failed, which a finished job has not."""
    with world(tmp_path) as (store, server):
        write(store, random.Random(1))
        store.table("orders").finish()
        with open_worker(server, store) as worker:
            part = worker.attach(job="revenue", index=0, of=1, timeout=WAIT_LIMIT_S)
            wait_until(lambda: part.finished or part.step(refresh, 0.05) == 0)
        with el.serve(store, token=TOKEN, control=settings()) as later, open_worker(later, store) as worker:
            parts = [worker.attach(job="revenue", index=index, of=2, timeout=WAIT_LIMIT_S) for index in range(2)]
            assert [part.finished for part in parts] == [True, True]


@pytest.mark.medium
def test_a_job_is_drained_through_its_coordinator(tmp_path: Path) -> None:
    """Its parts take in what is there, and the commit of that is the last; what comes later is not its input."""
    with world(tmp_path) as (store, server), open_worker(server, store) as worker:
        write(store, random.Random(1))
        part = worker.attach(job="revenue", index=0, of=1, timeout=WAIT_LIMIT_S)
        wait_until(lambda: part.step(refresh, 0.05) is not None)
        for seed in range(2, 5):  # boundaries of their own: the barriers before the last one do not end the data
            write(store, random.Random(seed))
            store.checkpoint()
        worker.stop(job="revenue", drain=True)
        wait_until(lambda: part.finished or part.step(refresh, 0.05) == 0)
        assert store.job("revenue").info.state == "finished" and store.table("revenue").info.state == "finished"
        check(store)
        last = store.table("revenue").to_arrow()
        write(store, random.Random(3))
        with store.snapshot(["revenue", "orders"], consistency="aligned") as snapshot:
            assert snapshot["revenue"].to_arrow() == last and snapshot.lag_ms["revenue"] == 0


def test_a_part_that_reports_a_file_of_an_earlier_barrier_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its rows of then would come back, over those of since."""
    finish, made, repeated = PartRefreshContext._finish, [], []

    def again(ctx: Any) -> dict[str, list[Segment]]:
        outputs = finish(ctx)
        if not outputs.get("revenue"):
            return outputs
        made.append(outputs["revenue"])
        if ctx.table("orders")["cents"].to_pylist() == [3] and not repeated:
            repeated.append(made[0][0].path)
            return {"revenue": [*outputs["revenue"], *made[0]]}
        return outputs

    monkeypatch.setattr(PartRefreshContext, "_finish", again)
    with world(tmp_path) as (store, server), open_worker(server, store) as worker:
        part = worker.attach(job="revenue", index=0, of=1, timeout=WAIT_LIMIT_S)
        for cents in (1, 2, 3):
            store.table("orders").upsert(pa.table({"id": [1], "day": ["a day"], "cents": [cents]}))
            store.checkpoint()
            wanted = store.table("orders").info.max_committed_epoch

            def step(wanted: int = wanted) -> bool:
                part.step(refresh, 0.05)
                return store.job("revenue").info.committed_epoch >= wanted

            if cents == 3:
                with pytest.raises(el.RolledBack, match="committed already") as error:
                    wait_until(step)
                assert repeated[0] in str(error.value)
            wait_until(step)
            check(store)


# ---- shares ----------------------------------------------------------------------------------------------------------

COLUMNS = {
    pa.int64(): st.integers(-5, 5), pa.int8(): st.integers(-5, 5), pa.uint64(): st.integers(0, (1 << 64) - 1),
    pa.string(): st.text(max_size=3), pa.large_string(): st.text(max_size=3), pa.binary(): st.binary(max_size=3),
    pa.float64(): st.floats(), pa.float32(): st.floats(width=32), pa.bool_(): st.booleans(),
    pa.date32(): st.dates(), pa.timestamp("us"): st.datetimes(), pa.decimal128(10, 2): st.decimals(-99, 99, places=2),
}  # fmt: skip


@pytest.mark.rule("5.35")
@given(st.sampled_from(list(COLUMNS)), st.data(), st.integers(1, 5))
def test_every_row_is_in_one_share_and_equal_values_are_together(
    kind: pa.DataType, data: st.DataObject, parts: int
) -> None:
    values = data.draw(st.lists(st.none() | COLUMNS[kind], max_size=20))
    table = pa.table({"key": pa.array(values, kind), "place": np.arange(len(values))})
    shares = [split(table, ["key"], part, parts) for part in range(parts)]
    assert sorted(place for share in shares for place in share["place"].to_pylist()) == list(range(len(values)))
    chunked = pa.concat_tables([table.slice(at, 1) for at in range(len(values))] or [table])
    assert [split(chunked, ["key"], part, parts)["place"].to_pylist() for part in range(parts)] == [
        share["place"].to_pylist() for share in shares
    ]
    row_sets = [
        {repr(key + 0.0 if isinstance(key, float) else key) for key in share["key"].to_pylist()} for share in shares
    ]
    assert sum(map(len, row_sets)) == len(set().union(*row_sets))


def plain(key: Any) -> Any:
    """-0.0 equals 0.0."""
    return key + 0.0 if isinstance(key, float) else key


def test_shares_are_even_and_take_columns_that_are_there() -> None:
    table = pa.table({"a": np.arange(4000), "b": ["x", "y"] * 2000})
    assert all(800 < split(table, ["a", "b"], part, 4).num_rows < 1200 for part in range(4))
    for by in ([], ["c"]):
        with pytest.raises(InvalidInput):
            split(table, by, 0, 2)
