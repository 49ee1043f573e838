"""Views whose driver attaches to a coordinator, and that are replaced or rebuilt while an attempt is under way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from attached_fixture import ORDERS, Driver
from control_fixture import TOKEN, open_worker, settings
from epochlog.checkpoint.coordinator.managed_jobs import JobTask
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.manager.job_state_machine import JobProtocol
from epochlog.checkpoint.worker import job_part
from raw_check import raw_check
from wait_until import wait_until

SMALL = "SELECT day, SUM(cents) AS cents FROM orders WHERE cents < 10 GROUP BY day"
LARGE = "SELECT day, SUM(cents) AS cents FROM orders WHERE cents > 10 GROUP BY day"
SMALL_ROWS = [{"day": "mon", "cents": 5}, {"day": "wed", "cents": 7}]
LARGE_ROWS = [{"day": "mon", "cents": 60}, {"day": "tue", "cents": 50}]


class Attached:
    """View `v` of the small orders, its server, and a driver whose refresh calls `meanwhile` once it has its rows."""

    def __init__(
        self, store: el.Store, server: el.StoreServer, worker: el.Worker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.store = store
        self.server = server
        self.view = store.create_view("v", SMALL, ["day"])
        self.meanwhile: list[Callable[[], object]] = []
        self.driver = Driver(store, worker, self.refresh, name="v")
        self.failures = 0
        count_failure = JobProtocol._count_failure

        def counted(machine: JobProtocol, *args: Any) -> Any:
            self.failures += 1
            return count_failure(machine, *args)

        monkeypatch.setattr(JobProtocol, "_count_failure", counted)
        self.recorded: list[str] = []
        fail = JobRunner.fail

        def noted(runner: JobRunner, *args: Any, **options: Any) -> None:
            fail(runner, *args, **options)
            self.recorded += [error for error in [runner.record().last_error] if error is not None]

        monkeypatch.setattr(JobRunner, "fail", noted)

    def refresh(self, ctx: Any) -> None:
        self.view.refresh(ctx)
        while self.meanwhile:
            self.meanwhile.pop()()

    def order(self, *orders: tuple[int, str, int]) -> None:
        self.store.table("orders").upsert(pa.table(list(zip(*orders, strict=True)), schema=ORDERS))

    def settle(self) -> None:
        """Wait until the view has the rows of its query, as of now."""

        def is_settled() -> bool:
            self.store.checkpoint()
            info = self.view.info
            newest = self.store.table("orders").info.max_committed_epoch
            return not self.meanwhile and not info.rebuilding and info.committed_epoch >= newest

        wait_until(is_settled)

    def rows(self) -> list[Any]:
        """Return the rows of the newest commit, also while the view has none of its new query."""
        with self.store.snapshot(["v"], consistency="latest") as newest:
            return newest["v"].to_arrow().to_pylist()

    def overtake(self, meanwhile: Callable[[], object]) -> None:
        """Let the view commit, and then overtake its next attempt once that has its rows."""
        self.order((1, "mon", 5), (2, "tue", 50))
        self.settle()
        assert self.rows() == [{"day": "mon", "cents": 5}]
        self.meanwhile.append(meanwhile)
        self.order((3, "wed", 7), (4, "mon", 60))
        self.settle()

    def replace(self) -> None:
        self.store.replace_views({"v": LARGE})

    def replace_late(self) -> None:
        """Replace the view once the attempt was given up: its report comes too late, and would be repeated."""
        before = self.aborts()
        wait_until(lambda: self.aborts() > before)
        self.replace()

    def aborts(self) -> int:
        return sum(status.aborts for status in self.server.coordinator.status())

    def replace_and_fail(self) -> None:
        self.replace()
        raise el.InvalidInput("the old query fails on the rows of today")


@contextmanager
def driven(folder: Path, monkeypatch: pytest.MonkeyPatch, **times: Any) -> Iterator[Attached]:
    with el.open(folder / "store", durability="os", checkpoint_interval_ms=20) as store:
        store.create_table("orders", ORDERS, ["id"])
        with el.serve(store, token=TOKEN, control=settings(**times)) as server, open_worker(server, store) as worker:
            worker.await_answer()
            attached = Attached(store, server, worker, monkeypatch)
            attached.driver.start()
            try:
                yield attached
            finally:
                attached.driver.stop()


@pytest.fixture
def attached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attached]:
    with driven(tmp_path, monkeypatch) as attached:
        yield attached


@pytest.mark.rule("5.36")
@pytest.mark.parametrize("overtake, rows", [
    (Attached.replace, LARGE_ROWS),
    (Attached.replace_and_fail, LARGE_ROWS),
    (lambda attached: attached.view.rebuild(), SMALL_ROWS),
])  # fmt: skip
def test_an_overtaken_attempt_leaves_neither_rows_nor_an_error(
    attached: Attached, overtake: Callable[[Attached], object], rows: list[Any]
) -> None:
    """The rows of the attempt are those of the old query, and none of them is one of the new query."""
    attached.overtake(lambda: overtake(attached))
    assert attached.rows() == rows and raw_check(attached.view).ok
    assert attached.driver.error is None and not attached.recorded and not attached.failures


@pytest.mark.medium
def test_a_view_that_is_replaced_before_its_refresh_counts_no_failure(
    attached: Attached, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh, replaced = job_part.JobPart._refresh, []

    def replaced_before(part: job_part.JobPart, *args: Any) -> Any:
        if not attached.meanwhile and not replaced and attached.rows() == [{"day": "mon", "cents": 5}]:
            replaced.append(attached.replace())
        return refresh(part, *args)

    monkeypatch.setattr(job_part.JobPart, "_refresh", replaced_before)
    attached.order((1, "mon", 5), (2, "tue", 50))
    attached.settle()
    attached.order((3, "wed", 7), (4, "mon", 60))
    wait_until(lambda: attached.store.checkpoint() and replaced)
    attached.settle()
    assert attached.rows() == LARGE_ROWS and not attached.recorded and not attached.failures


@pytest.mark.medium
def test_a_report_that_came_too_late_is_not_repeated_for_the_new_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with driven(tmp_path, monkeypatch, attempt_ms=5000) as attached:
        attached.overtake(attached.replace_late)
        assert attached.rows() == LARGE_ROWS and not attached.recorded


@pytest.mark.medium
def test_a_rebuild_of_a_job_has_no_rows_of_the_attempt_before_it(tmp_path: Path) -> None:
    """`rebuild` is for new logic: the rows of the old one are gone with its attempt."""
    schema = pa.schema([("id", pa.int64())])
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=20) as store:
        store.create_table("orders", ORDERS, ["id"])
        job = store.create_job("ids", ["orders"], {"ids": (schema, ["id"])})
        seen: list[str] = []

        def refresh(ctx: Any) -> None:
            ids = ctx.table("orders").select(["id"])
            ctx.upsert("ids", ids if not seen else ids.slice(1))
            if not seen:
                seen.append("first")
                job.rebuild()

        store.table("orders").upsert(pa.table([[1, 2], ["mon", "mon"], [1, 1]], schema=ORDERS))
        with el.serve(store, token=TOKEN, control=settings()) as server, open_worker(server, store) as worker:
            worker.await_answer()
            driver = Driver(store, worker, refresh, name="ids").start()
            try:
                wait_until(lambda: store.checkpoint() and job.info.committed_epoch)
            finally:
                driver.stop()
        assert store.table("ids").to_arrow()["id"].to_pylist() == [2]


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the segments of the barrier before are kept": lambda patch: patch.setattr(
        JobProtocol, "_drop_carried", lambda machine, reason: []
    ),
    "an overtaken attempt counts": lambda patch: patch.setattr(JobTask, "is_overtaken", lambda task: False),
    "an overtaken attempt is an error of the job": lambda patch: patch.setattr(
        JobTask, "failed", lambda task, error: task._runner.fail(error, keep_barrier=True)
    ),
}


@pytest.mark.planted
@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bugs_are_found(attached: Attached, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    PLANTED[bug](monkeypatch)
    attached.overtake(attached.replace)
    assert attached.rows() != LARGE_ROWS or attached.recorded or attached.failures


@pytest.mark.planted
def test_segments_that_a_part_repeats_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: the outbox of a part keeps the segments of the barrier before. It shows unless the coordinator has
    put another barrier in the place of the one that repeats them, which the next store decides anew.
    """
    assert any(_repeats(tmp_path / str(number), monkeypatch) for number in range(5))


def _repeats(folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return True if segments that were repeated are in the view."""
    folder.mkdir()
    with driven(folder, monkeypatch, attempt_ms=5000) as attached, monkeypatch.context() as planted:
        attached.order((1, "mon", 5), (2, "tue", 50))
        attached.settle()
        part = attached.driver.job._part
        assert part is not None
        kept = part._outbox
        planted.setattr(job_part, "Outbox", lambda: kept)
        attached.meanwhile.append(attached.replace_late)
        attached.order((3, "wed", 7), (4, "mon", 60))
        attached.settle()
        return attached.rows() != LARGE_ROWS
