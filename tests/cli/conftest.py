"""A small real store for the command line's tests: a root table, a view over it, a failing job, and an empty table."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

import epochlog as el
from epochlog import api
from epochlog.__main__ import main
from epochlog.store.env.clock import SystemClock

ORDERS = pa.schema([("id", pa.int64()), ("day", pa.string()), ("cents", pa.int64())])
REVENUE = pa.schema([("day", pa.string()), ("cents", pa.int64())])
SEEN = pa.schema([("id", pa.int64())])


def refresh(ctx: el.LocalRefreshContext) -> None:
    sums = ctx.table("orders", among=ctx.touched("orders", "day")).group_by("day").aggregate([("cents", "sum")])
    ctx.recompute("revenue", by="day", from_=sums.rename_columns(["day", "cents"]))


def orders(ids: list[int], days: list[str], cents: list[int]) -> pa.Table:
    return pa.table({"id": ids, "day": days, "cents": cents})


def fill(root: str) -> dict[str, int]:
    """Make the store, leave it closed, and tell its epochs by name. Its clock stands, so that they lie as they should:
    the view's first commit at that of its upstream, a few milliseconds between the others, in the middle of a second.
    """
    epochs = {}
    now_ms = [SystemClock()() // 1000 * 1000 - 1500]
    with api.open(root, durability="os", clock=lambda: now_ms[0]) as store:
        table = store.create_table("orders", ORDERS, ["id"])
        store.create_table("nothing_yet", SEEN, ["id"])
        job = store.create_job("daily", ["orders"], {"revenue": (REVENUE, ["day"])})
        broken = store.create_job("broken", ["orders"], {"seen": (SEEN, ["id"])})
        epochs["first"] = table.upsert(orders([1, 2], ["mon", "tue"], [500, 700]))
        store.checkpoint()
        committed = job.step_local(refresh)
        assert committed is not None
        epochs["view"] = committed
        assert committed == epochs["first"]
        with pytest.raises(ZeroDivisionError):
            broken.step_local(lambda ctx: 1 // 0)
        now_ms[0] += 20
        epochs["second"] = table.upsert(orders([1, 3], ["mon", "wed"], [501, 100]))
        now_ms[0] += 5
        epochs["delete"] = table.delete(pa.table({"id": [2]}))
    return epochs


@dataclass(frozen=True)
class Lake:
    """The store's root, and the epochs of its commits."""

    root: str
    epochs: dict[str, int] = field(default_factory=dict)


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    root = str(tmp_path_factory.mktemp("filled") / "lake")
    return Lake(root, fill(root))


@pytest.fixture
def lake(filled: Lake, tmp_path: Path) -> Lake:
    """A copy of the store, for one test to do with as it likes."""
    root = str(tmp_path / "lake")
    shutil.copytree(filled.root, root)
    return Lake(root, filled.epochs)


@dataclass(frozen=True)
class Done:
    """Exit code and output of a run of the command."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process."""

    def call(*argv: object) -> Done:
        code = main([str(part) for part in argv])
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call


@pytest.fixture
def spawn() -> Run:
    """Runs the command in a process of its own."""

    def call(*argv: object) -> Done:
        command = [sys.executable, "-m", "epochlog", *(str(part) for part in argv)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return Done(done.returncode, done.stdout, done.stderr)

    return call
