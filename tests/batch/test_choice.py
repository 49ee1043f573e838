"""Choices of epochs: each door marks the late jobs of the state from which it chooses, whatever comes of the choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import epochlog as el
from default_doors import BOUND_MS, DefaultWorld
from epochlog.batch import choice, default_policy
from epochlog.batch.policy import Global
from epochlog.errors import CatalogUnavailable, EpochExpired, NoConsistentEpoch, TableNotReadable
from epochlog.serving import StoreServer
from epochlog.spark import batch_source
from epochlog.spark.catalog.query_epochs import CatalogTables
from epochlog.store.env.clock import SystemClock
from epochlog.store.epochs.view import EpochView
from epochlog.store.metadata.lookups import all_jobs

pytestmark = pytest.mark.local_only
LAG_MS = 30_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DefaultWorld]:
    """Return a store whose `late` lags LAG_MS, half of the bound."""
    made = DefaultWorld(tmp_path / "lake", 7, SystemClock()() - 3_600_000)
    for view in ("revenue", "late", "margin"):
        made.store.checkpoint()
        made.step(view)
    made.now_ms = SystemClock()() - LAG_MS - 1_000  # Spark's reads have the clock of the machine
    made.commit("orders")
    made.now_ms += 1_000
    for view in ("revenue", "margin"):
        made.store.checkpoint()
        made.step(view)
    made.now_ms += LAG_MS
    yield made
    made.store.close()


def marked(world: DefaultWorld) -> set[str]:
    jobs = world.store._handle.catalog.read(lambda view: list(all_jobs(view)))
    return {job.name for job in jobs if job.outside_ms is not None}


# ---- doors


def snapshot(world: DefaultWorld, consistency: Any, table: str) -> None:
    world.store.snapshot([table], consistency=consistency).close()


def load_of_spark(world: DefaultWorld, consistency: Any, table: str) -> None:
    batch_source.resolve_load({"path": world.root, "table": table, "consistency": consistency})


def catalog_of_spark(world: DefaultWorld, consistency: Any, table: str) -> None:
    CatalogTables(world.store._handle, policy_of(consistency), (table,)).newest()


def flight(world: DefaultWorld, consistency: Any, table: str) -> None:
    with el.serve(world.store) as server:
        assert isinstance(server, StoreServer)
        server._choose(table, consistency, {}, lambda: None).release()


def default_read(world: DefaultWorld, consistency: str, table: str) -> None:
    world.store.alter(default_consistency=consistency)
    world.store.table(table).count()


Door = Callable[[DefaultWorld, Any, str], None]
DOORS: list[Door] = [snapshot, load_of_spark, catalog_of_spark, flight]
each_door = pytest.mark.parametrize("door", DOORS)


def policy_of(consistency: Any) -> Global:
    return Global() if consistency == "global" else consistency


class Patient(Global):
    """Policy of a user: `global`, which waits until the job has been left out."""

    timeout = 20.0

    def choose(self, view: EpochView, tables: Any, /) -> dict[str, int]:
        if "late" not in view.membership.left_out:
            raise NoConsistentEpoch("the view is still there")
        return super().choose(view, tables)


@each_door
@pytest.mark.rule("3.11")
def test_a_job_that_becomes_late_during_the_wait_is_marked(
    door: Door, world: DefaultWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lower_the_bound(*_: object) -> None:
        assert not marked(world)
        world.store.alter(global_max_lag=LAG_MS / 2_000)

    monkeypatch.setattr(choice, "wait_with_checks", lower_the_bound)
    for module in (batch_source, default_policy):
        monkeypatch.setattr(module, "resolve_policy", lambda name, **_: Patient())
    door(world, "patient" if door in (load_of_spark, flight) else Patient(), "orders")
    assert marked(world) == {"job_late"}


@pytest.mark.parametrize("door", [*DOORS, default_read])
@pytest.mark.rule("3.11")
def test_a_read_that_is_refused_marks_the_late_job(door: Door, world: DefaultWorld) -> None:
    world.store.alter(global_max_lag=LAG_MS / 2_000)
    with pytest.raises(TableNotReadable, match="late cannot be read: it lags"):
        door(world, "global", "late")
    assert marked(world) == {"job_late"}


@pytest.mark.rule("3.11", "3.16")
def test_a_choice_inside_of_the_transaction_that_pins_it_marks_too(
    world: DefaultWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention overtakes each choice outside of it; the job becomes late with the last of them."""
    before, pins = world.store._handle.pin, list[int]()

    def pin(body: Any) -> Any:
        pins.append(1)
        if len(pins) <= choice.CHOICES:
            world.now_ms += BOUND_MS if len(pins) == choice.CHOICES else 0
            raise EpochExpired("retention was faster")
        return before(body)

    monkeypatch.setattr(world.store._handle, "pin", pin)
    with world.store.snapshot(["prices"], consistency="global"):
        assert len(pins) == choice.CHOICES + 1 and marked(world) == {"job_late"}


def test_a_mark_that_fails_leaves_no_hold_and_hides_no_refusal(
    world: DefaultWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holds of a pin stayed without an owner when the mark after it failed."""

    def fail(*_: object) -> None:
        raise CatalogUnavailable("away")

    before, pins, held = world.store._handle.pin, list[int](), world.store._handle.catalog.read(holds)

    def pin(body: Any) -> Any:
        pins.append(1)
        if len(pins) <= choice.CHOICES:
            raise EpochExpired("retention was faster")
        monkeypatch.setattr(choice, "mark_late", fail)
        return before(body)

    monkeypatch.setattr(world.store._handle, "pin", pin)
    with pytest.raises(CatalogUnavailable):
        world.store.snapshot(["prices"], consistency="global")
    assert world.store._handle.catalog.read(holds) == held
    world.store.alter(global_max_lag=LAG_MS / 2_000)
    with pytest.raises(TableNotReadable, match="late cannot be read: it lags"):
        world.store.snapshot(["late"], consistency="global")


def holds(view: Any) -> list[bytes]:
    return [key for key, _ in view.scan(b"hold/", b"hold0")]


# ---- planted bugs


def a_refusal_marks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(handle: Any, policy: Any, answer: Any) -> Any:
        reads = list[Any]()

        def body(view: Any) -> Any:
            reads.append(choice.ChoiceRead(handle, view, policy))
            return answer(reads[-1])

        answered = handle.catalog.read(body)
        reads[-1].mark_late()
        return answered

    monkeypatch.setattr(choice, "_ask", ask)


def only_the_first_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    plainly, marking = choice.ChoiceRead.mark_late, list[Any]()

    def mark_late(asked: choice.ChoiceRead) -> None:
        marking.append(asked)
        if len(marking) == 1:
            plainly(asked)

    monkeypatch.setattr(choice.ChoiceRead, "mark_late", mark_late)


def refused(world: DefaultWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    test_a_read_that_is_refused_marks_the_late_job(snapshot, world)


def waiting_long(world: DefaultWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    test_a_job_that_becomes_late_during_the_wait_is_marked(snapshot, world, monkeypatch)


@pytest.mark.planted
@pytest.mark.parametrize(
    ("mutant", "check"), [(a_refusal_marks_nothing, refused), (only_the_first_question_marks, waiting_long)]
)
def test_a_late_job_that_stays_unmarked_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None],
    check: Callable[[DefaultWorld, pytest.MonkeyPatch], None],
    world: DefaultWorld,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        check(world, monkeypatch)
