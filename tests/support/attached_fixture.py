"""Drivers of the job `revenue` that attach to a coordinator, with pyarrow refreshes, in threads and processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import epochlog as el
from control_fixture import TOKEN, open_worker, settings
from epochlog.checkpoint.job.refresh_adapter import LocalRefreshAdapter
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.worker.attached_job import AttachedJob
from wait_until import WAIT_LIMIT_S

ORDERS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("cents", pa.int64())])
REVENUE = pa.schema([("day", pa.string()), ("cents", pa.int64())])
RATES = pa.schema([("day", pa.string())])


def query(orders: pa.Table) -> pa.Table:
    sums = orders.group_by("day").aggregate([("cents", "sum")]).rename_columns(["day", "cents"])
    return sums.cast(REVENUE).sort_by("day")


def add_changes(ctx: Any) -> None:
    """Add the new orders to the sums so far: rows that are taken in twice, or never, show for good."""
    changes = ctx.changes("orders").select(ORDERS.names).cast(ORDERS)
    if len(changes):
        days = changes.select(["day"]).group_by("day").aggregate([])
        ctx.upsert(
            "revenue", query(pa.concat_tables([changes.drop(["id"]), ctx.output("revenue", among=days).cast(REVENUE)]))
        )


def make_store(root: Any, *, interval_ms: int = 20) -> el.Store:
    store = el.open(root, durability="os", checkpoint_interval_ms=interval_ms)
    store.create_table("orders", ORDERS, ["id"])
    store.create_job("revenue", ["orders"], {"revenue": (REVENUE, ["day"])})
    return store


def add_orders(store: el.Store, first: int, count: int) -> None:
    ids = range(first, first + count)
    columns = {"id": list(ids), "day": [f"day-{i % 7}" for i in ids], "cents": [1 + i % 13 for i in ids]}
    store.table("orders").upsert(pa.table(columns, schema=ORDERS))


def make_rated(store: el.Store) -> el.Job:
    """A job beside `revenue`: the sums of the rated days. The log of the rates is kept for a second."""
    short = timedelta(seconds=1)
    options = el.TableOptions(history_retention=short, log_retention=short)
    store.create_table("rates", RATES, ["day"], options=options)
    return store.create_job("rated", ["orders", "rates"], {"rated": (REVENUE, ["day"])})


def rate(store: el.Store, *days: int) -> None:
    store.table("rates").upsert(pa.table({"day": [f"day-{day}" for day in days]}, schema=RATES))


def rated_query(orders: pa.Table, rates: pa.Table) -> pa.Table:
    return query(orders.filter(pc.is_in(orders["day"], rates["day"].combine_chunks())))


def recompute_rated(ctx: Any) -> None:
    ctx.upsert("rated", rated_query(ctx.table("orders"), ctx.table("rates")))


def make_chain(store: el.Store, views: int = 1) -> dict[str, Callable[[Any], None]]:
    """Jobs on the job `revenue`: copies of its output, and a copy of the first copy. Return all refreshes by job."""
    sources = {"again": "copy0", **{f"copy{number}": "revenue" for number in range(views)}}
    for name, source in sorted(sources.items(), reverse=True):
        store.create_job(name, [source], {name: (REVENUE, ["day"])})
    return {"revenue": add_changes, **{name: copy(source, name) for name, source in sources.items()}}


def copy(source: str, output: str) -> Callable[[Any], None]:
    return lambda ctx: ctx.upsert(output, ctx.changes(source, mode="net").select(REVENUE.names).cast(REVENUE))


def check_chain(store: el.Store, refreshes: Collection[str]) -> None:
    """The law of each job, at its newest commit."""
    for name in refreshes:
        epoch = store.job(name).info.committed_epoch
        rows = store.table(name).to_arrow(epoch=epoch).cast(REVENUE).sort_by("day")
        assert rows.equals(query(store.table("orders").to_arrow(epoch=epoch))), name
        epochs = store.table(name).history()["epoch"].to_pylist()
        assert len(set(epochs)) == len(epochs)


def caught_up(store: el.Store, name: str = "revenue") -> bool:
    store.checkpoint()
    return store.job(name).info.committed_epoch >= store.table("orders").info.max_committed_epoch


def check(store: el.Store, name: str = "revenue") -> None:
    """The law of a job that keeps the revenue, at its newest commit. No two commits are at one epoch."""
    check_chain(store, [name])


class Driver:
    """Driver in a thread: steps the job until it is stopped, or an error ends it."""

    def __init__(
        self,
        store: el.Store,
        worker: el.Worker,
        refresh: Callable[[Any], None] = add_changes,
        *,
        name: str = "revenue",
        **options: Any,
    ) -> None:
        job = store.job(name)
        self.runner = JobRunner(store._handle, job._runner.job_id, name)
        self.job = AttachedJob(self.runner, refresh, "query", worker, **options)
        self.adapter = LocalRefreshAdapter(store._handle)
        self.error: BaseException | None = None
        self.steps = self.refused = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.step()
        except BaseException as error:
            self.error = error
        finally:
            self.job.leave()

    def step(self) -> None:
        try:
            self.job.step(self.adapter)
            self.steps += 1
        except el.JobRunning:
            self.refused += 1
            self._stop.wait(0.02)
        except ZeroDivisionError:
            self._stop.wait(0.02)

    def start(self) -> Driver:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_LIMIT_S)
        assert not self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(WAIT_LIMIT_S)
        assert not self._thread.is_alive()


@contextmanager
def driving(store: el.Store, worker: el.Worker, *args: Any, **options: Any) -> Iterator[Driver]:
    driver = Driver(store, worker, *args, **options).start()
    try:
        yield driver
    finally:
        driver.stop()


def run(what: str, root: str, location: str) -> subprocess.Popen[str]:
    """Run one of the functions below in a process of its own."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    arguments = [sys.executable, __file__, what, root, location]
    return subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )


def said(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        pipe.close()


def drive(root: str, location: str) -> None:
    """Drive the job until this process is killed."""
    with el.open(root, create=False, durability="os") as store, open_worker(location, store) as worker:
        driver = Driver(store, worker)
        worker.await_answer()
        print("ready", flush=True)
        while True:
            driver.step()


def drive_rated(root: str, location: str) -> None:
    """Drive the job `rated`, whose refresh fails while the file `broken` stands beside the store. Say why it ended."""

    def refresh(ctx: Any) -> None:
        recompute_rated(ctx)
        if Path(root).with_name("broken").exists():
            raise ZeroDivisionError("the rates are broken")

    with el.open(root, create=False, durability="os") as store, open_worker(location, store) as worker:
        driver = Driver(store, worker, refresh, name="rated")
        worker.await_answer()
        print("ready", flush=True)
        try:
            while True:
                driver.step()
        except el.EpochlogError as error:
            print(type(error).__name__, flush=True)


def drive_pipeline(root: str, location: str) -> None:
    """Run the jobs of `make_chain(store, 3)` in a pipeline until this process is killed."""
    with el.open(root, create=False, durability="os") as store, open_worker(location, store) as worker:
        pipe = el.Pipeline(store, coordinator=worker)
        for name, source in {"again": "copy0", **{f"copy{number}": "revenue" for number in range(3)}}.items():
            pipe.add(store.job(name), copy(source, name))
        pipe.add(store.job("revenue"), add_changes)
        print("ready", flush=True)
        pipe.run()


def serve(root: str, location: str) -> None:
    """Serve the store until this process is killed."""
    with (
        el.open(root, create=False, durability="os") as store,
        el.serve(store, location, token=TOKEN, control=settings(timeout_ms=1_500)) as server,
    ):
        print(server.location, flush=True)
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    {"drive": drive, "drive_rated": drive_rated, "drive_pipeline": drive_pipeline, "serve": serve}[sys.argv[1]](
        sys.argv[2], sys.argv[3]
    )
