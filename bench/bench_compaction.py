"""P10: compaction beside a plain Parquet write; how often a byte is written, and how much disk a live one takes."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data import COMMITS, SCHEMA, expected, make_workload
from pairs import ReplayClock, Samples, timed
from report import Book, Figure, Target

import epochlog as el

OURS, PLAIN = "epochlog", "pyarrow write_table, synced"
CYCLES, COMMIT_ROWS, KEYS = 1_000, 2_000, 400_000
COMPACT_EVERY = 8
WRITTEN, HELD = "bytes written per byte ingested", "bytes on disk per live byte"
START_MS = 1_767_225_600_000


def plain_write(rows: pa.Table, path: Path) -> None:
    with path.open("wb") as file:
        pq.write_table(rows, file)
        file.flush()
        os.fsync(file.fileno())


def throughput(folder: Path, scale: float) -> Samples:
    """ms of compacting the base and 20 commits into one run, and of writing the same rows as one Parquet file."""
    rounds = 3 if scale >= 1 else 1
    work = make_workload(scale, COMMITS)
    rows = expected(work.base, work.commits)
    samples: Samples = {OURS: [], PLAIN: []}
    for place in range(rounds):
        with el.open(folder / f"{place}") as store:
            table = store.create_table("t", SCHEMA, primary_key=["id"])
            for commit in (work.base, *work.commits):
                table.upsert(commit)
            samples[OURS].append(timed(lambda store=store: store.compact("t", full=True)))
            assert table.count() == rows.num_rows
        samples[PLAIN].append(timed(lambda place=place: plain_write(rows, folder / f"{place}.parquet")))
    return samples


def sizes(root: Path, ending: str) -> int:
    return sum(path.stat().st_size for path in root.rglob(f"*{ending}"))


def amplification(folder: Path, scale: float) -> dict[str, float]:
    """Bytes that compaction and commits write for each byte that commits bring; bytes kept for each live byte.

    Nothing is vacuumed before the end, so the folder holds every file that was ever written.
    """
    chance, now_ms = np.random.default_rng(10), START_MS
    keys = np.arange(max(1000, round(KEYS * scale))) * 64
    with el.open(folder, durability="os", clock=lambda: now_ms) as store:
        options = el.TableOptions(history_retention=timedelta(minutes=1), log_retention=timedelta(days=1))
        table = store.create_table("t", SCHEMA, primary_key=["id"], options=options)
        for place in range(max(50, round(CYCLES * scale))):
            ids = chance.choice(keys, min(COMMIT_ROWS, len(keys) // 2), replace=False)
            values = chance.random(len(ids))
            names = pa.array(chance.integers(10**9, 10**10, len(ids))).cast(pa.string())
            table.upsert(pa.table([pa.array(ids), pa.array(values), names], schema=SCHEMA))
            now_ms += 1000
            if place % COMPACT_EVERY == 0:
                store.compact()
        ingested, rewritten = sizes(folder, ".arrow"), sizes(folder, ".parquet")
        found = {WRITTEN: (ingested + rewritten) / ingested}
        pq.write_table(table.to_arrow(), folder.parent / "live", compression="zstd")
        if hasattr(store, "vacuum"):
            now_ms += 7 * 86_400_000  # whatever waits for a grace period has waited
            store.vacuum()
            found[HELD] = sizes(folder, ".parquet") / (folder.parent / "live").stat().st_size
    return found


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book) -> list[Figure]:
    took = throughput(tmp_path_factory.mktemp("compaction"), scale)
    ratios = amplification(tmp_path_factory.mktemp("amplification"), scale)
    speed = Target(OURS, PLAIN, 2.5, "≤ 2.5 (0.4 of its throughput)")
    limits = {WRITTEN: Target(OURS, None, 12, "≤ 12"), HELD: Target(OURS, None, 2, "≤ 2")}
    found = [Figure("P10", "compact base and 20 commits", took, (speed,))]
    found += [Figure("P10", what, {OURS: [value]}, (limits[what],), "×") for what, value in ratios.items()]
    for figure in found:
        book.add(figure)
    return found


@pytest.mark.parametrize("who", [OURS, PLAIN])
def test_p10_throughput(who: str, clock: ReplayClock, benchmark, figures: list[Figure]) -> None:
    clock.play(benchmark, figures[0].samples[who])
