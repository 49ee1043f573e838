"""P10: compaction beside a plain Parquet write; how often a byte is written, and how much disk a live one takes."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data import COMMITS, PLAIN, SCHEMA, Shape, expected, make_workload
from memory_driver import plain_write
from pairs import ReplayClock, Samples, timed
from plots import Panel, Plot, at
from report import Book, Figure, Target

import epochlog as el

OURS, ALONE = "epochlog", "pyarrow write_table, synced"
CYCLES, COMMIT_ROWS, KEYS = 1_000, 2_000, 400_000
COMPACT_EVERY = 8
LOOK_EVERY = 40
WRITTEN, KEPT = "bytes written per byte ingested", "bytes on disk per live byte, at most"
WRITTEN_LIMIT, KEPT_LIMIT = 12, 2
SPEED = (Target(OURS, ALONE, 2.5, "≤ 2.5 (0.4 of its throughput)"),)
START_MS = 1_767_225_600_000


def throughput(folder: Path, scale: float, shape: Shape = PLAIN) -> Samples:
    """ms of compacting the base and 20 commits into one run, and of writing the same rows as one Parquet file."""
    rounds = 3 if scale >= 1 else 1
    work = make_workload(scale, COMMITS, shape=shape)
    rows = expected(work.base, work.commits, shape)
    samples: Samples = {OURS: [], ALONE: []}
    for place in range(rounds):
        with el.open(folder / f"{place}") as store:
            table = store.create_table("t", shape.schema, primary_key=list(shape.primary_key))
            for commit in (work.base, *work.commits):
                table.upsert(commit)
            samples[OURS].append(timed(lambda store=store: store.compact("t", full=True)))
            assert table.count() == rows.num_rows
        samples[ALONE].append(timed(lambda place=place: plain_write(rows, folder / f"{place}.parquet")))
    return samples


class Amplification:
    """Bytes that compaction and commits write for each byte that commits bring, as Arrow has it in memory; bytes kept
    for each byte of one Parquet file (zstd) of the live rows.

    Now and then all files are counted, and those that nothing reaches deleted. The log is left out of what is kept.
    """

    def __init__(self, folder: Path, scale: float) -> None:
        self._folder, self._chance, self._now_ms = folder, np.random.default_rng(10), START_MS
        self._keys = np.arange(max(1000, round(KEYS * scale))) * 64
        self._rows = max(10, round(COMMIT_ROWS * scale))
        self._seen: dict[Path, int] = {}
        self._brought = 0
        self.points: list[tuple[int, float, float]] = []  # commits, written by ingested, kept by live

    def run(self) -> None:
        with el.open(self._folder / "store", durability="os", clock=lambda: self._now_ms) as store:
            options = el.TableOptions(history_retention=timedelta(minutes=1), log_retention=timedelta(days=1))
            table = store.create_table("t", SCHEMA, primary_key=["id"], options=options)
            for commit in range(1, CYCLES + 1):
                table.upsert(self._commit())
                self._now_ms += 1000
                if commit % COMPACT_EVERY == 0:
                    store.compact()
                if commit % LOOK_EVERY == 0:
                    self._look(commit, store, table)

    def _commit(self) -> pa.Table:
        ids = self._chance.choice(self._keys, self._rows, replace=False)
        names = pa.array(self._chance.integers(10**9, 10**10, len(ids))).cast(pa.string())
        rows = pa.table([pa.array(ids), pa.array(self._chance.random(len(ids))), names], schema=SCHEMA)
        self._brought += rows.nbytes
        return rows

    def _look(self, commit: int, store: el.Store, table: el.Table) -> None:
        self._seen |= self._files()
        store.vacuum(grace=0)
        live = self._folder / "live.parquet"
        pq.write_table(table.to_arrow(), live, compression="zstd")
        kept = sum(size for path, size in self._files().items() if path.suffix == ".parquet")
        written = sum(self._seen.values())
        self.points.append((commit, written / self._brought, kept / live.stat().st_size))

    def _files(self) -> dict[Path, int]:
        paths = (self._folder / "store").rglob("*.*")
        return {path: path.stat().st_size for path in paths if path.suffix in {".arrow", ".parquet"}}

    def totals(self) -> tuple[float, float]:
        """Bytes written by those brought, of all; the most that was kept for a live byte at any look."""
        return self.points[-1][1], max(kept for _, _, kept in self.points)

    def plot(self) -> Plot:
        written, worst = self.totals()
        written_at, kept_at = ([at(each[0], each[place]) for each in self.points] for place in (1, 2))
        return Plot(
            name="amplification",
            title=f"Over {CYCLES:,} commits each byte is written {written:.1f} times, and at most {worst:.2f} are kept "
            "for a live one",
            x_says="commits",
            panels=[
                Panel(WRITTEN, written_at, WRITTEN_LIMIT, f"target: at most {WRITTEN_LIMIT}"),
                Panel(
                    "bytes on disk per live byte (without the log)",
                    kept_at,
                    KEPT_LIMIT,
                    f"target: at most {KEPT_LIMIT}",
                ),
            ],
        )


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> list[Figure]:
    took = throughput(tmp_path_factory.mktemp("compaction"), scale)
    amplification = Amplification(tmp_path_factory.mktemp("amplification"), scale)
    amplification.run()
    written, kept = amplification.totals()
    limits = (
        Target(OURS, None, WRITTEN_LIMIT, f"≤ {WRITTEN_LIMIT}"),
        Target(OURS, None, KEPT_LIMIT, f"≤ {KEPT_LIMIT}"),
    )
    measured = [
        Figure("P10", "compact base and 20 commits", took, SPEED),
        Figure("P10", WRITTEN, {OURS: [written]}, limits[:1], "×"),
        Figure("P10", KEPT, {OURS: [kept]}, limits[1:], "×"),
    ]
    book.plot(amplification.plot())
    for figure in measured:
        book.add(figure)
    return measured


@pytest.mark.parametrize("who", [OURS, ALONE])
def test_p10_throughput(who: str, clock: ReplayClock, benchmark, figures: list[Figure]) -> None:
    clock.play(benchmark, figures[0].samples[who])
