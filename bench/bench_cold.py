"""P25: a new process imports epochlog, opens a store and looks up one row."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from contenders import Delta, Epochlog
from data import PLAIN, make_workload
from pairs import ReplayClock, Took, measure
from report import Book, Figure, Target

OURS, DELTA, LIBRARIES = "epochlog", "deltalake", "import of pyarrow and pandas"
IMPORTED, LOOKED_UP = "import epochlog in a new process", "open a store and look up one key in a new process"
ROUNDS = 7
PROGRAM = """
import os, sys, time
start = time.perf_counter()
{body}
print((time.perf_counter() - start) * 1000, flush=True)
os._exit(0)  # a library may abort the process when its threads end
"""
IMPORT = "import epochlog as el"
FLOOR = "import pyarrow as pa, pyarrow.compute, pandas; pa.array([1])"
OF_DELTA = """
from deltalake import DeltaTable
rows = DeltaTable(sys.argv[1]).to_pyarrow_table(filters=[("id", "=", int(sys.argv[2]))])
assert len(rows) == 1
"""
OF_OURS = """
import epochlog as el
store = el.open(sys.argv[1])
assert len(store.table("rows").get([{"id": int(sys.argv[2])}])) == 1
"""
WORK = {IMPORTED: {OURS: IMPORT, LIBRARIES: FLOOR}, LOOKED_UP: {OURS: OF_OURS, DELTA: OF_DELTA, LIBRARIES: FLOOR}}
TARGETS = {
    IMPORTED: (Target(OURS, None, 150, "≤ 150 ms"),),
    LOOKED_UP: (Target(OURS, None, 100, "≤ 100 ms"), Target(OURS, DELTA, 1, "≤ 1")),
}


def in_a_new_process(body: str, *arguments: str) -> Took:
    """Return the ms that this part of a program took, which leaves out the interpreter's own start."""
    command = [sys.executable, "-c", PROGRAM.format(body=body), *arguments]
    return Took(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> dict[str, Figure]:
    folder: Path = tmp_path_factory.mktemp("cold")
    base: pa.Table = make_workload(scale, 0, shape=PLAIN).base
    ours, delta = Epochlog(folder / "e"), Delta(folder / "d")
    for store in (ours, delta):
        store.load(base)
    ours.close()
    key, rounds = str(base["id"][len(base) // 2].as_py()), ROUNDS if scale >= 1 else 2
    made: dict[str, Figure] = {}
    for what, programs in WORK.items():
        work = {
            who: partial(in_a_new_process, body, str(folder / ("d" if who == DELTA else "e")), key)
            for who, body in programs.items()
        }
        samples = measure(work, rounds)  # the round that warms up has files read from the disk, and modules compiled
        full = what if what == IMPORTED else f"{what}, of {len(base):,} rows"
        made[what] = Figure("P25", full, samples, TARGETS[what])
        book.add(made[what])
    return made


@pytest.mark.parametrize(("what", "who"), [(what, who) for what, programs in WORK.items() for who in programs])
def test_p25_cold_start(what: str, who: str, clock: ReplayClock, benchmark, figures: dict[str, Figure]) -> None:
    clock.play(benchmark, figures[what].samples[who])
