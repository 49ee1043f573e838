"""P29: time from a boundary to a reader in another process that has three views of it, kept by Spark or a pipeline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import pyarrow as pa
import pytest
from freshness_driver import VIEWS
from pairs import ReplayClock, Samples
from report import Book, Figure, Target

import epochlog as el

DRIVER = Path(__file__).with_name("freshness_driver.py")
ROWS, COMMITTED, DAYS, CUSTOMERS = 500_000, 1_000, 100, 20_000
ROUNDS, FEW = 30, 3
LOOK_S = 0.002
SPARK, PIPELINE = "queries of Spark", "a pipeline, without Spark"
KINDS = {SPARK: "spark", PIPELINE: "pipeline"}
ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("day", pa.int64()), ("cents", pa.int64())])


class Shop:
    """Store with orders and the views, which another process keeps up to date."""

    def __init__(self, root: Path, rows: int, kind: str) -> None:
        self._chance, self._rows = np.random.default_rng(29), 0
        self.store = el.open(root, checkpoint_interval_ms=3_600_000)  # boundaries are those that are asked for
        self.store.create_table("orders", ORDERS, ["id"])
        views = [self.store.create_view(name, *query) for name, query in VIEWS.items()]
        self.order(rows)
        self.store.checkpoint()
        for view in views:
            view.step(until="newest")
        self.order(COMMITTED)
        self._log = root.with_suffix(".log").open("w")
        command = [sys.executable, str(DRIVER), kind, str(root)]
        self._views = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=self._log, text=True)
        self.commit_and_read()

    def order(self, rows: int) -> None:
        ids = self._rows + np.arange(rows)
        self._rows += rows
        values = [self._chance.integers(0, most, rows) for most in (CUSTOMERS, DAYS, 10_000)]
        self.store.table("orders").upsert(pa.table([ids, *values], schema=ORDERS))

    def commit_and_read(self) -> float:
        """Seal a boundary; return the milliseconds until all views can be read at it."""
        began_s = perf_counter()
        boundary = self.store.checkpoint()
        while True:
            assert self._views.poll() is None, "the process of the views has ended"
            with self.store.snapshot([*VIEWS], consistency="aligned") as moment:
                if moment.epochs["by_day"] >= boundary:
                    took_ms = 1000 * (perf_counter() - began_s)
                    assert sum(moment["by_day"].to_arrow()["n"].to_pylist()) == self._rows
                    return took_ms
            sleep(LOOK_S)

    def stop(self) -> None:
        assert self._views.stdin is not None
        self._views.stdin.close()
        assert self._views.wait() == 0
        for name in VIEWS:
            report = self.store.view(name).check()
            assert report.ok, report
        self.store.close()
        self._log.close()


@pytest.fixture(scope="module")
def freshness(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> Figure:
    samples: Samples = {}
    for name, kind in KINDS.items():
        shop = Shop(tmp_path_factory.mktemp("fresh") / kind, round(ROWS * scale), kind)
        samples[name] = []
        for place in range(-3, ROUNDS if scale >= 1 else FEW):
            shop.order(COMMITTED)
            took_ms = shop.commit_and_read()
            samples[name] += [took_ms] if place >= 0 else []
        shop.stop()
    what = f"from a boundary with {COMMITTED:,} rows over {ROWS:,} to a reader of three views in another process"
    result = Figure("P29", what, samples, (Target(SPARK, None, 500, "≤ 500 ms"),))
    book.add(result)
    return result


@pytest.mark.parametrize("who", [*KINDS])
def test_p29(who: str, clock: ReplayClock, benchmark, freshness: Figure) -> None:
    clock.play(benchmark, freshness.samples[who])
