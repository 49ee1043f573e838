"""`step(until="newest")`: one call takes in all that was there when it was made, past alters and earlier boundaries."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import epochlog as el
from epochlog.checkpoint.job import steps
from seeds import seeds

SCHEMA = pa.schema([("id", pa.int64()), ("g", pa.string())])
QUERY = "SELECT g, COUNT(*) AS n FROM t GROUP BY g"


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[el.Store]:
    with el.open(tmp_path, durability="os", clock=clock, checkpoint_interval_ms=1_000) as store:
        store.create_table("t", SCHEMA, ["id"])
        yield store


def counted(store: el.Store) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for row in store.table("t").to_arrow(columns=["g"]).to_pylist():
        wanted[row["g"]] = wanted.get(row["g"], 0) + 1
    return wanted


def read(store: el.Store, name: str) -> dict[str, int]:
    return {row["g"]: row["n"] for row in store.table(name).to_arrow().to_pylist()}


def altered(store: el.Store, times: int = 3) -> None:
    """Alters among commits; each alter ends a step."""
    table = store.table("t")
    for number in range(times):
        table.upsert([dict.fromkeys(table.schema.names) | {"id": number, "g": "a"}])
        table.alter(add=[pa.field(f"x{store.last_epoch}", pa.int8())])
    table.upsert([dict.fromkeys(table.schema.names) | {"id": times, "g": "b"}])


@pytest.mark.medium
@pytest.mark.rule("5.40")
def test_a_view_over_an_altered_table_reaches_the_checkpoint_in_one_call(store: el.Store) -> None:
    view = store.create_view("v", QUERY, ["g"])
    altered(store, 1)
    store.checkpoint()
    view.step()
    for _ in range(2):
        altered(store)
        boundary = store.checkpoint()
        first = view.step()  # one barrier ends at the first alter
        assert first is not None and first < boundary
        assert view.step(until="newest") == boundary == view.info.committed_epoch
        assert read(store, "v") == counted(store) == {"a": 3, "b": 1}
        assert view.step(until="newest") is None


@pytest.mark.rule("5.40")
def test_a_job_in_pieces_and_one_that_merges_nothing(store: el.Store, clock: Clock) -> None:
    altered(store)
    outputs = {"o": (pa.schema([("id", pa.int64())]), ["id"])}
    job = store.create_job("j", ["t"], outputs, snapshot_rows=1, max_lag=10_000)

    def refresh(ctx: Any) -> None:
        changes = ctx.changes("t").to_pylist()
        ctx.upsert("o", [{"id": row["id"]} for row in changes if row["_change_type"] != "delete"])

    boundary = store.checkpoint()
    assert job.step_local(refresh, until="newest") == boundary
    assert store.table("o").count() == 4
    for _ in range(5):
        altered(store, 1)
        clock.now_ms += 1_000
    boundary = store.checkpoint()
    reached = job.step_local(refresh, until="newest")
    assert reached == job.info.committed_epoch and reached <= boundary  # nothing has changed between the two
    with store.snapshot(["t", "o"]) as moment:
        assert moment.epochs["o"] >= boundary and job.step_local(refresh) is None


@pytest.mark.rule("5.40")
def test_it_ends_beside_a_writer(store: el.Store, clock: Clock) -> None:
    """Commits that come during the call are left to the next one."""
    view = store.create_view("v", QUERY, ["g"])
    altered(store)
    target, real, calls = store.checkpoint(), view._runner.step_local, []

    def step(*given: Any, **options: Any) -> int | None:
        calls.append(real(*given, **options))
        altered(store, 1)
        clock.now_ms += 1_000
        return calls[-1]

    view._runner.step_local = step  # type: ignore[method-assign]
    reached = view.step(until="newest")
    assert reached is not None and target <= reached < store.last_epoch
    assert len(calls) < 12


def test_what_until_takes(store: el.Store) -> None:
    view = store.create_view("v", QUERY, ["g"])
    for until in ("oldest", 5, True):
        with pytest.raises(el.InvalidInput, match="until must be 'newest'"):
            view.step(until=until)  # type: ignore[arg-type]


def test_an_error_keeps_the_steps_before_it(store: el.Store) -> None:
    job = store.create_job("j", ["t"], {"o": (SCHEMA, ["id"])})
    store.checkpoint()
    job.step_local(lambda ctx: None)
    altered(store)
    store.checkpoint()
    seen = []

    def refresh(ctx: Any) -> None:
        seen.append(ctx.barrier)
        if len(seen) == 2:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        job.step_local(refresh, until="newest")
    assert 0 < job.info.committed_epoch < store.last_epoch


def history(store: el.Store, clock: Clock, rng: random.Random) -> None:
    table = store.table("t")
    for _ in range(rng.randrange(1, 6)):
        kind = rng.choice(["write", "write", "alter", "checkpoint", "time"])
        names = table.schema.names
        if kind == "write":
            table.upsert([dict.fromkeys(names) | {"id": rng.randrange(9), "g": rng.choice("abc")}])
        elif kind == "alter" and len(names) < 6:
            table.alter(add=[pa.field(f"x{store.last_epoch}", pa.int8())])
        elif kind == "alter":
            table.alter(drop=[names[-1]])
        elif kind == "checkpoint":
            store.checkpoint()
        clock.now_ms += rng.choice([0, 1, 700, 5_000])


def play(store: el.Store, clock: Clock, rng: random.Random) -> None:
    """Random histories, and views of other intervals: after a call each has the rows of the checkpoint before it."""
    store.create_view("v", QUERY, ["g"], refresh=rng.choice(["full", "incremental"]))
    store.create_view("w", "SELECT g, SUM(n) AS n FROM v GROUP BY g", ["g"])
    for _ in range(6):
        history(store, clock, rng)
        boundary = store.checkpoint()
        wanted = counted(store)
        for name in ("v", "w"):
            store.view(name).step(until="newest")
            assert read(store, name) == wanted, name
        with store.snapshot(["t", "v", "w"]) as moment:
            assert moment.epochs["w"] >= boundary


@pytest.mark.medium
@pytest.mark.parametrize("seed", seeds(range(6), 2))
def test_random_histories(store: el.Store, clock: Clock, seed: int) -> None:
    play(store, clock, random.Random(seed))


def one_barrier(runner: Any, step: Callable[[bool], int | None], until: str | None, *, take_over: bool) -> int | None:
    return step(take_over)


@pytest.mark.planted
def test_a_call_that_ends_at_the_first_alter_is_found(
    store: el.Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochlog.view.run_steps", one_barrier)
    assert steps.run_steps is not one_barrier
    rng = random.Random(0)
    with pytest.raises(AssertionError):
        play(store, clock, rng)
