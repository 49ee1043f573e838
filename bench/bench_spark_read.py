"""P7: a batch read of 5 M rows into Spark's noop sink, beside Spark's own Parquet reader on the same rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench_spark import Driver
from data import SCHEMA, make_rows
from pairs import ReplayClock, Samples, turned
from report import Book, Figure, Target

import epochlog as el

ROWS = 5_000_000
OWN, USERS = "epochlog, el.spark()", "epochlog, user's session"
PARQUET, PARQUET_USERS = "Spark's Parquet, el.spark()", "Spark's Parquet, user's session"
LEGS = {
    OWN: ("epochlog", "read"),
    PARQUET: ("epochlog", "read_parquet"),
    USERS: ("user", "read"),
    PARQUET_USERS: ("user", "read_parquet"),
}
TARGETS = (Target(OWN, PARQUET, 1.3, "≤ 1.3"), Target(USERS, PARQUET_USERS, 1.3, "≤ 1.3"))
WARM_UP = 3


def filled(folder: Path, rows: int) -> str:
    """A store with a compacted table of so many rows."""
    chance = np.random.default_rng(1)
    with el.open(folder / "store") as store:
        table = store.create_table("rows", SCHEMA, primary_key=["id"])
        table.upsert(make_rows(np.arange(rows), chance))
        store.compact("rows", full=True)
        assert table.count() == rows
        return store.root


def run(folder: Path, scale: float) -> Samples:
    rows, rounds = max(1000, round(ROWS * scale)), 15 if scale >= 1 else 3
    store = filled(folder, rows)
    samples: Samples = {name: [] for name in LEGS}
    for kind in ("epochlog", "user"):  # one session at a time: each keeps its workers and its cores busy
        driver = Driver.start(kind, folder / kind)
        try:
            parquet = str(folder / f"{kind}.parquet")
            driver.order(query="write_parquet", store=store, into=parquet)
            legs = [name for name, (whose, _) in LEGS.items() if whose == kind]
            for place in range(-WARM_UP, rounds):
                for name in turned(legs, place):
                    took = driver.order(query=LEGS[name][1], store=store, parquet=parquet, rows=rows)
                    if place >= 0:
                        samples[name] += took
        finally:
            driver.stop()
    return samples


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> Samples:
    samples = run(tmp_path_factory.mktemp("spark_read"), scale)
    book.add(Figure("P7", "Spark batch read of 5 M rows into noop", samples, TARGETS))
    return samples


@pytest.mark.parametrize("who", LEGS)
def test_p7_batch_read(who: str, clock: ReplayClock, benchmark, measured) -> None:
    clock.play(benchmark, measured[who])
