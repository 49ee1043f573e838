"""P23: queries of Spark SQL through the catalog, beside the same queries of frames that `format("epochlog")` loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench_spark import Sessions
from data import PLAIN
from pairs import ReplayClock, Samples, turned
from report import Book, Figure, Target

import epochlog as el

ROWS = {"1,000": 1_000, "2 M": 2_000_000}
QUERIES = {
    "greatest value of a table": "SELECT COUNT(*), MAX(value) FROM {a}",
    "join of two tables": "SELECT COUNT(*), MAX(x.value - y.value) FROM {a} x JOIN {b} y USING (id)",
}
CATALOG, LOADED = "catalog", 'format("epochlog")'
HOW = {CATALOG: "sql_of_catalog", LOADED: "sql_of_loads"}
TARGETS = (Target(CATALOG, LOADED, 1.3, "≤ 1.3"),)
ROUNDS, WARM_UP, CALLS = 4, 1, 2


def measured_figures(folder: Path, scale: float, sessions: Sessions) -> list[Figure]:
    """Time each query both ways in turns, in one session. All four answers of a query are compared first."""
    rounds, warm_up = (ROUNDS, WARM_UP) if scale >= 1 else (2, 1)
    driver, figures = sessions.of("epochlog"), []
    for place, (size, rows) in enumerate(ROWS.items()):
        chance = np.random.default_rng(23)
        with el.open(folder / f"store{place}") as store:
            for name in ("a", "b"):
                table = store.create_table(name, PLAIN.schema, primary_key=list(PLAIN.primary_key))
                table.upsert(PLAIN.make(np.arange(max(1_000, round(rows * scale)), dtype=np.int64), chance))
                store.compact(name, full=True)
            root = store.root
        for what, text in QUERIES.items():
            order = {"store": root, "text": text, "tables": ["a", "b"], "calls": CALLS}
            answers = [driver.order(query=how, **{**order, "calls": 0}) for how in HOW.values()]
            assert answers[0] == answers[1] and answers[0], f"{what}: {answers}"
            samples: Samples = {name: [] for name in HOW}
            for round_ in range(-warm_up, rounds):
                for name in turned(list(HOW), round_):
                    took = driver.order(query=HOW[name], **order)
                    if round_ >= 0:
                        samples[name] += took
            figures.append(Figure("P23", f"{what} of {size} rows in Spark SQL", samples, TARGETS))
    sessions.done()
    return figures


@pytest.fixture(scope="module")
def measured(
    tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book, sessions: Sessions
) -> dict[str, Figure]:
    figures = measured_figures(tmp_path_factory.mktemp("catalog"), scale, sessions)
    for figure in figures:
        book.add(figure)
    return {figure.what: figure for figure in figures}


@pytest.mark.parametrize("who", HOW)
@pytest.mark.parametrize("what", [f"{what} of {size} rows in Spark SQL" for size in ROWS for what in QUERIES])
def test_p23_queries(what: str, who: str, clock: ReplayClock, benchmark, measured: dict[str, Figure]) -> None:
    clock.play(benchmark, measured[what].samples[who])
