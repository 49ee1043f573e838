"""States of views whose driver attaches to a coordinator: the part that steps reports them, and they are committed."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from attached_fixture import ORDERS, Driver
from control_fixture import TOKEN, open_worker, settings
from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.coordinator import coordinator
from epochlog.checkpoint.coordinator.managed_jobs import JobTask
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.worker.job_part import JobPart
from epochlog.store.metadata.state_tables import ViewState, read_state
from epochlog.store.session.write_intents import all_intents, end_intents
from epochlog.store.sst import data_file
from epochlog.store.sst.segment import Segment
from epochlog.views.state_step import StateStep
from raw_check import raw_check
from view_states import count_steps, fail_on_disagreements
from wait_until import wait_until

TEXT = (
    "SELECT day, COUNT(*) AS n, SUM(cents) AS cents, MIN(cents) AS low, COUNT(DISTINCT cents) AS prices FROM orders "
    "WHERE day IS NOT NULL GROUP BY day"
)
OTHER = TEXT.replace("WHERE", "WHERE cents > 3 AND")


class World:
    """View `v` with a state, its server, and a driver that is led by it."""

    def __init__(self, store: el.Store, server: el.StoreServer, worker: el.Worker) -> None:
        self.store, self.server, self.worker = store, server, worker
        self.view = store.create_view("v", TEXT, ["day"])
        self.driver = Driver(store, worker, self.view.refresh, name="v")
        self.chance = random.Random(0)

    def change(self) -> None:
        some = self.chance.sample(range(20), 3)
        columns = [some[:2], self.chance.choices(["mon", "tue", "wed", None], k=2), self.chance.choices(range(6), k=2)]
        with self.store.transaction() as tx:
            tx.upsert("orders", pa.table(columns, schema=ORDERS))
            tx.delete("orders", pa.table({"id": [some[2]]}))

    def settle(self) -> None:
        """Wait until the view has all changes."""

        def is_settled() -> bool:
            self.store.checkpoint()
            assert self.driver.error is None, self.driver.error
            info = self.view.info
            newest = self.store.table("orders").info.max_committed_epoch
            return not info.rebuilding and info.committed_epoch >= newest

        wait_until(is_settled)

    def check(self) -> None:
        """Compare the view's rows, and its state, with the orders."""
        assert raw_check(self.view).ok
        report = self.view.check(state=True)
        assert report.ok and len(report.outputs) > 1, report

    def play(self, rounds: int) -> None:
        for _ in range(rounds):
            self.change()
            self.settle()

    def state(self) -> ViewState | None:
        (output,) = self.view._runner.record().outputs
        return self.store._handle.catalog.read(lambda view: read_state(view, output))


@contextmanager
def led(folder: Path, **times: Any) -> Iterator[World]:
    with el.open(folder / "store", durability="os", checkpoint_interval_ms=20) as store:
        store.create_table("orders", ORDERS, ["id"])
        with el.serve(store, token=TOKEN, control=settings(**times)) as server, open_worker(server, store) as worker:
            worker.await_answer()
            world = World(store, server, worker)
            world.driver.start()
            try:
                yield world
            finally:
                world.driver.stop()


@pytest.fixture(autouse=True)
def no_repair_hides_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_on_disagreements(monkeypatch)
    data_file._verified.clear()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counted: Counter[str] = Counter()
    count_steps(monkeypatch, counted)
    return counted


@pytest.mark.medium
@pytest.mark.rule("R12")
def test_steps_under_a_coordinator_add_changes_to_the_state(tmp_path: Path, steps: Counter[str]) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    with led(tmp_path) as world:
        world.chance.seed(seed)
        world.play(12)
        world.check()
        assert set(steps) == {"Changes"} and steps["Changes"] >= 11, steps
        assert "state: groups" in world.view.explain()
        history = world.store.table("v").history().select(["job", "operation", "engine"])
        assert set(map(tuple, (row.values() for row in history.to_pylist()))) == {("v", "refresh", "local")}


@pytest.mark.medium
def test_steps_with_and_without_a_coordinator_go_on_with_one_state(tmp_path: Path, steps: Counter[str]) -> None:
    with led(tmp_path) as world:
        world.play(3)
        world.driver.stop()
        for _ in range(3):
            world.change()
            world.store.checkpoint()
            world.view.step(take_over=True, until="newest")
        world.check()
        world.driver = Driver(world.store, world.worker, world.view.refresh, name="v", take_over=True).start()
        world.play(3)
        world.check()
        assert set(steps) == {"Changes"}, steps


@pytest.mark.medium
@pytest.mark.parametrize("overtake", [
    lambda world: world.store.replace_views({"v": OTHER}),
    lambda world: world.view.rebuild(),
])  # fmt: skip
def test_a_view_that_changes_has_a_state_of_its_new_query(tmp_path: Path, overtake: Callable[[World], object]) -> None:
    with led(tmp_path) as world:
        world.play(2)
        overtake(world)
        world.settle()
        world.play(3)
        world.check()


@pytest.mark.medium
def test_an_attempt_that_was_given_up_reports_its_state_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that cannot read the files now makes another attempt, for which the part refreshes nothing."""
    refusals: list[Exception] = []
    check_reported = coordinator.check_reported

    def check(*arguments: Any) -> None:
        if refusals:
            raise refusals.pop()
        check_reported(*arguments)

    monkeypatch.setattr(coordinator, "check_reported", check)
    with led(tmp_path) as world:
        world.play(2)
        refusals.append(el.ReadFailed("too many open files"))
        world.play(1)
        assert not refusals
        world.check()


@pytest.mark.medium
def test_a_commit_that_was_refused_is_tried_again_with_its_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals: list[el.EpochlogError] = []
    commit = JobRunner.commit

    def refused(runner: JobRunner, *arguments: Any, **options: Any) -> int:
        if refusals:
            raise refusals.pop()
        return commit(runner, *arguments, **options)

    monkeypatch.setattr(JobRunner, "commit", refused)
    with led(tmp_path) as world:
        world.play(2)
        refusals.append(el.CatalogUnavailable("for a while"))
        world.play(1)
        assert not refusals
        world.check()


def spoil_first(world: World, spoil: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Spoil the first new file of the state of the next report; return a list that then has its path."""
    report = JobPart._report_barrier
    spoilt: list[str] = []

    def reported(part: JobPart, inject: wire.Injected, sealed: Any, state: Any) -> None:
        kept = None if state is None else state.state
        if not spoilt and kept is not None and (new := kept.new_segments(world.state())):
            spoil(Path(world.store.root) / new[0].path)
            spoilt.append(new[0].path)
            data_file._verified.clear()
        report(part, inject, sealed, state)

    monkeypatch.setattr(JobPart, "_report_barrier", reported)
    return spoilt


def shorten(file: Path) -> None:
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data[:-1])


@pytest.mark.local_only
@pytest.mark.medium
@pytest.mark.parametrize("spoil", [Path.unlink, shorten])
def test_a_state_that_is_not_what_was_reported_is_not_committed(
    tmp_path: Path, spoil: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with led(tmp_path) as world:
        world.play(2)
        spoilt = spoil_first(world, spoil, monkeypatch)
        while not spoilt:
            world.play(1)
        state = world.state()
        assert state is not None and spoilt[0] not in state.files
        world.play(2)
        world.check()


Lie = Callable[[ViewState, dict[str, list[Segment]], ViewState], ViewState]


def _no_tables(state: ViewState, rows: dict[str, list[Segment]], before: ViewState) -> ViewState:
    return replace(state, tables=())


def _tables_twice(state: ViewState, rows: dict[str, list[Segment]], before: ViewState) -> ViewState:
    return replace(state, tables=(*state.tables, *state.tables))


def _a_file_of_rows(state: ViewState, rows: dict[str, list[Segment]], before: ViewState) -> ViewState:
    first = replace(state.tables[0], segments=(*state.tables[0].segments, *rows["v"][:1]))
    return replace(state, tables=(first, *state.tables[1:]))


def _another_record_of_an_old_file(state: ViewState, rows: dict[str, list[Segment]], before: ViewState) -> ViewState:
    old = {segment.path for segment in before.segments}
    tables = [
        replace(
            table,
            segments=tuple(replace(each, rows=each.rows + 1) if each.path in old else each for each in table.segments),
        )
        for table in state.tables
    ]
    return replace(state, tables=tuple(tables))


@pytest.mark.medium
@pytest.mark.parametrize("lie", [_no_tables, _tables_twice, _a_file_of_rows, _another_record_of_an_old_file])
def test_a_false_state_is_refused_or_made_anew(tmp_path: Path, lie: Lie, monkeypatch: pytest.MonkeyPatch) -> None:
    report = JobPart._report_barrier
    lies: list[ViewState] = []
    with led(tmp_path) as world:

        def reported(part: JobPart, inject: wire.Injected, sealed: Any, of_refresh: Any) -> None:
            before, kept = world.state(), None if of_refresh is None else of_refresh.state
            if kept is not None and before is not None and sealed.get("v") and not lies:
                false = lie(kept, sealed, before)
                if false != kept:
                    lies.append(false)
                    of_refresh = replace(of_refresh, state=false)
            report(part, inject, sealed, of_refresh)

        monkeypatch.setattr(JobPart, "_report_barrier", reported)
        while not lies:
            world.play(1)
        world.play(3)
        world.check()
        assert not world.store.verify().problems


@pytest.mark.medium
def test_a_state_whose_write_intent_was_revoked_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step alone: its state has a new file, and its rows none, for no group has enough of them."""
    with el.open(tmp_path / "store", durability="os", checkpoint_interval_ms=20) as store:
        table = store.create_table("orders", ORDERS, ["id"])
        view = store.create_view(
            "v", "SELECT day, MIN(cents) AS low FROM orders GROUP BY day HAVING COUNT(*) > 2", ["day"]
        )
        table.upsert(pa.table([[1], ["mon"], [5]], schema=ORDERS))
        store.checkpoint()
        view.step()
        table.upsert(pa.table([[2], ["mon"], [7]], schema=ORDERS))
        store.checkpoint()
        by_changes = StateStep.by_changes

        def with_revoked(step: StateStep, changed: Any) -> Any:
            rows = by_changes(step, changed)
            catalog = store._handle.catalog
            revoked = [intent.id for intent in catalog.read(all_intents)]
            catalog.transact(lambda tx: end_intents(tx, revoked))
            return rows

        with monkeypatch.context() as patch:
            patch.setattr(StateStep, "by_changes", with_revoked)
            with pytest.raises(el.SegmentUnknown, match="write intent"):
                view.step()
        view.step()
        assert raw_check(view).ok and view.check(state=True).ok


# ---- planted errors ----------------------------------------------------------------------------------------------


def _the_state_is_left_out(patch: pytest.MonkeyPatch) -> None:
    commit = JobTask.commit
    patch.setattr(JobTask, "commit", lambda task, barrier: commit(task, replace(barrier, states={})))


def _the_state_of_the_step_before_is_reported(patch: pytest.MonkeyPatch) -> None:
    report, last = JobPart._report_barrier, list[Any]([None])

    def reported(part: JobPart, inject: wire.Injected, sealed: Any, state: Any) -> None:
        report(part, inject, sealed, last[0])
        last[0] = state

    patch.setattr(JobPart, "_report_barrier", reported)


@pytest.mark.planted
@pytest.mark.medium
@pytest.mark.rule("R12")
@pytest.mark.parametrize("plant", [_the_state_is_left_out, _the_state_of_the_step_before_is_reported])
def test_a_planted_error_is_found(
    tmp_path: Path, steps: Counter[str], plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    is_right = False
    with led(tmp_path) as world, contextlib.suppress(AssertionError):
        world.play(6)
        world.check()
        is_right = True
    assert not is_right or set(steps) != {"Changes"}
