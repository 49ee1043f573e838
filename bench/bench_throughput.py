"""P26: rows per second into a table and out of it on Spark, by batches and streams, beside Spark's own Parquet files of
these rows; on the newest Spark and, at the full size, on the oldest one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from bench_spark import Driver
from bench_spark_read import descendants
from contenders import same_rows
from data import SCHEMA
from pairs import ReplayClock, Samples, turned
from report import Book, Figure, text_of
from throughput import (
    APPEND,
    APPEND_MORE,
    CATALOG,
    NUMBER,
    OWN,
    PARQUET,
    READ,
    STREAM_IN,
    STREAM_OUT,
    WORKS,
    SparkWork,
    on_oldest,
)

import epochlog as el

OLDEST_PYTHON = Path(__file__).parents[1] / ".venv-spark" / "4.0" / "bin" / "python"
PARTITIONS = 4
"""Tasks of an append, files of Parquet, and micro-batches of a stream that writes."""
ROUNDS, ROUNDS_ON_OLDEST = 3, 2
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


Place = tuple[str, dict[str, str]]
"""Format of Spark with its options."""


def parquet(path: str, **options: str) -> Place:
    return "parquet", {"path": path, **options}


class Course:
    """Store and Parquet files with equal rows, and all work of P26 on them by one driver at a time."""

    def __init__(self, folder: Path, scale: float) -> None:
        self._folder, self._scale, self._number = folder, scale, 0
        self._store = el.open(folder / "store")
        self._files, self._few_files = str(folder / "rows.parquet"), str(folder / "few.parquet")

    def fill(self, driver: Driver) -> None:
        """Write the rows that the reads read, once: into a table, which is compacted, and into files."""
        self._store.create_table("rows", SCHEMA, ["id"])
        driver.order(query="append", rows=self._size(READ), into=self._table("rows"))
        self._store.compact("rows", full=True)
        for work, files in ((READ, self._files), (STREAM_IN, self._few_files)):
            driver.order(query="append", rows=self._size(work), into=parquet(files))
        written = pq.read_table(self._files).sort_by("id")
        assert same_rows(self._store.table("rows").to_arrow(), written), "Spark wrote other rows"

    def measure(self, driver: Driver, rounds: int) -> Iterator[tuple[SparkWork, str, float, float]]:
        """Yield work, leg, and milliseconds of time and CPU time, in rounds of which the first one warms up."""
        for place in range(-1, rounds):
            for work in WORKS:
                for leg in turned(work.legs, place):
                    order, table = self._order(work, leg)
                    before_ms = cpu_ms(driver.process.pid)
                    (took_ms,) = driver.order(**order, rows=self._size(work))
                    used_ms = cpu_ms(driver.process.pid) - before_ms
                    if table:
                        assert self._store.table(table).count() == self._size(work), f"{work.what}: {leg}"
                    if place >= 0:
                        yield work, leg, took_ms, used_ms

    def _size(self, work: SparkWork) -> int:
        return max(1000, round(work.rows * self._scale))

    def _table(self, name: str, **options: str) -> Place:
        return OWN, {"path": self._store.root, "table": name, **options}

    def _order(self, work: SparkWork, leg: str) -> tuple[dict[str, Any], str]:
        """Return the order to the driver, and the new table that it fills, if any."""
        self._number += 1
        table, new = "", str(self._folder / f"new-{self._number}")
        stream = {"query": "stream", "checkpoint": f"{new}-checkpoint"}
        if work in (APPEND, APPEND_MORE, STREAM_IN):
            into = parquet(new)
            if leg == OWN:
                table = self._store.create_table(f"new_{self._number}", SCHEMA, ["id"]).name
                into = self._table(table)
            if work is STREAM_IN:
                return {**stream, "source": parquet(self._few_files, maxFilesPerTrigger="1"), "into": into}, table
            return {"query": "append", "into": into}, table
        if work is STREAM_OUT:
            log = self._table("rows", startingVersion="earliest")
            return {**stream, "source": log if leg == OWN else parquet(self._files), "into": ("noop", {})}, ""
        sources = {OWN: self._table("rows"), CATALOG: ("catalog", {}), PARQUET: parquet(self._files)}
        return {"query": "scan", "source": sources[leg], "store": self._store.root}, ""

    def close(self) -> None:
        self._store.close()


def cpu_ms(driver: int) -> float:
    """Return the CPU time of a driver, its JVM and its Python workers, with their children that have ended."""
    ticks = 0
    for pid in (driver, *descendants(driver)):
        if stat := text_of(f"/proc/{pid}/stat"):
            ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return 1000 * ticks / TICKS_PER_S


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> dict[str, Figure]:
    folder = tmp_path_factory.mktemp("throughput")
    times: dict[SparkWork, Samples] = {work: {} for work in WORKS}
    cpu: dict[SparkWork, Samples] = {work: {} for work in WORKS}
    course = Course(folder, scale)
    for python in (Path(sys.executable), OLDEST_PYTHON) if scale >= 1 else (Path(sys.executable),):
        driver = Driver.start("epochlog", folder / f"driver-{len(times[READ])}", python)
        try:
            is_newest = not times[READ]
            if is_newest:
                course.fill(driver)
            rounds = (ROUNDS if is_newest else ROUNDS_ON_OLDEST) if scale >= 1 else 1
            for work, leg, took_ms, used_ms in course.measure(driver, rounds):
                name = leg if is_newest else on_oldest(leg)
                times[work].setdefault(name, []).append(took_ms)
                cpu[work].setdefault(name, []).append(used_ms)
        finally:
            driver.stop()
    course.close()
    figures = [Figure(NUMBER, work.time, times[work], ()) for work in WORKS]
    figures += [Figure(NUMBER, work.cpu, cpu[work], ()) for work in WORKS]
    for figure in figures:
        book.add(figure)
    return {figure.what: figure for figure in figures}


@pytest.mark.parametrize("work, leg", [(work, leg) for work in WORKS for leg in work.legs])
def test_p26_throughput(work: SparkWork, leg: str, clock: ReplayClock, benchmark, measured: dict[str, Figure]) -> None:
    clock.play(benchmark, measured[work.time].samples[leg])
