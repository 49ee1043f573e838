"""P27: the log of many small commits: replays of it, what it takes, and the work beside its packing."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pytest
from bench_spark import Driver, Sessions
from bench_throughput import cpu_ms
from data import SCHEMA, make_rows
from deltalake import DeltaTable, write_deltalake
from file_peers import IPC, IpcFile
from pairs import Samples, turned
from plots import Panel, Plot, at
from report import Book, Figure, Target, quartiles
from small_commits import KEYS, ROWS, SmallCommits, without_packing

import epochlog as el
from epochlog.store.catalog.redis.catalog import RedisCatalog
from epochlog.store.env.filesystem import open_files
from epochlog.store.env.lru_cache import process_caches
from epochlog.store.maintenance.scheduler import Maintenance
from redis_server import RedisProcess
from s3_server import S3Server

YOUNG, FEW, SOME, HOURS, DAY, MANY = 100, 2_000, 20_000, 21_600, 86_400, 100_000
PACKED, SINGLE, DELTA = "changes", "changes, not packed", "deltalake's change feed"
FLIGHT, SPARK, VIEW, SOURCE, SUBSCRIBED = "Flight", "Spark stream", "stopped view", "UpstreamLog", "subscription"
START, WITHOUT_START = "Spark stream of 20 commits", "Spark stream without its start"
START_COMMITS = 20
"""Commits of the stream whose time is that of a query's start."""
ROUNDS, STEPS, BLOCKS, BLOCK = 5, 21, 17, 256
DELAY_S = 0.02
WRITERS, COMMITS_OF_WRITER = 16, 40
ON, OFF = "packing", "without packing"
FIGURES = 13
LIMITS_MS = {
    SOME: {PACKED: 60, SINGLE: 1400},
    HOURS: {PACKED: 1000, FLIGHT: 1000, WITHOUT_START: 1000, VIEW: 1000, SOURCE: 2500, SUBSCRIBED: 2500},
}
"""CPU ms that a replay of so many commits may take."""


def sized(commits: int, scale: float) -> int:
    return max(ROWS, round(commits * scale))


# ---- replays ---------------------------------------------------------------------------------------------------------


def forget_files() -> None:
    """Empty the caches of this process."""
    for _, cache in process_caches():
        cache.clear()


def rows_of_source(log: SmallCommits) -> int:
    rows = 0
    with el.UpstreamLog(log.store, ["t"], after=0) as source:
        while (item := source.poll()) is not None:
            rows += item.data.num_rows if isinstance(item, el.Chunk) else 0
    return rows


def rows_of_subscription(log: SmallCommits, client: el.Client) -> int:
    rows = 0
    with client.subscribe("t", after=0) as subscription:
        while subscription.epoch is None or subscription.epoch < log.store.last_epoch:
            batch = subscription.poll(60)
            rows += batch.num_rows if batch is not None else 0
    return rows


def rows_of_stream(log: SmallCommits, driver: Driver, folder: Path, commits: int) -> int:
    """Let a new query of the driver read so many of the newest commits; the driver raises an error unless it takes in
    all rows.
    """
    since = "earliest" if commits == log.count else str(log.epochs()[-commits])
    options = {"path": str(log.folder), "table": "t", "startingVersion": since}
    checkpoint = str(folder / f"checkpoint-{uuid4().hex}")
    driver.order(
        query="stream",
        source=("epochlog", options),
        into=("noop", {}),
        checkpoint=checkpoint,
        rows=commits * ROWS,
    )
    return commits * ROWS


def rows_of_view(log: SmallCommits, views: Iterator[el.View]) -> int:
    view = next(views)
    while view.step() is not None:
        pass
    assert pc.sum(log.store.table(view.name).to_arrow()["n"]).as_py() == log.table.count()
    return log.count * ROWS


def replayed(work: dict[str, Callable[[], int]], rows: int, rounds: int, driver: Driver) -> tuple[Samples, Samples]:
    """Return the CPU time and the time, in ms, of each work in turns, which begins with the files. One round warms up;
    all work returns `rows`.
    """
    cpu: Samples = {name: [] for name in work}
    took: Samples = {name: [] for name in work}
    for place in range(-1, rounds):
        for name in turned(list(work), place):
            forget_files()
            gc.collect()
            spark_ms = cpu_ms(driver.process.pid)
            start, used = time.perf_counter(), time.process_time()
            count = work[name]()
            used_ms, took_ms = (time.process_time() - used) * 1000, (time.perf_counter() - start) * 1000
            wanted = START_COMMITS * ROWS if name == START else rows
            assert count == wanted, f"{name} read {count} rows, not {wanted}"
            if place >= 0:
                cpu[name].append(used_ms + cpu_ms(driver.process.pid) - spark_ms)
                took[name].append(took_ms)
    for samples in (cpu, took):
        samples[WITHOUT_START] = [whole - start for whole, start in zip(samples[SPARK], samples[START], strict=True)]
    return cpu, took


def delta_feed(folder: Path, rows: pa.Table) -> Callable[[], int]:
    """Append the rows in commits of ROWS to a table of deltalake with a change feed; return its replay."""
    for place in range(0, rows.num_rows, ROWS):
        write_deltalake(
            str(folder), rows.slice(place, ROWS), mode="append", configuration={"delta.enableChangeDataFeed": "true"}
        )
    return lambda: pa.table(DeltaTable(str(folder)).load_cdf(starting_version=0).read_all()).num_rows


def at_size(
    single: SmallCommits,
    viewed: SmallCommits | None,
    folder: Path,
    rounds: int,
    driver: Driver,
    limits: Mapping[str, int],
    *,
    with_delta: bool = False,
) -> list[Figure]:
    """Replay the whole log of the commits that there are, by each reader; return figures of CPU time and of time."""
    with ExitStack() as stack:
        packed = single.copied(folder / f"packed-{single.count}").packed()
        stack.callback(packed.close)
        rows, file = packed.count * ROWS, IpcFile(folder, compressed=True)
        log = packed.table.changes(0).read_all()
        assert log.equals(single.table.changes(0).read_all())
        file.write(log)
        server = stack.enter_context(el.serve(packed.store))
        client = stack.enter_context(el.connect(server.location))
        work: dict[str, Callable[[], int]] = {
            PACKED: lambda: packed.table.changes(0).read_all().num_rows,
            SINGLE: lambda: single.table.changes(0).read_all().num_rows,
            FLIGHT: lambda: client.changes("t", 0).read_all().num_rows,
            SPARK: lambda: rows_of_stream(packed, driver, folder, packed.count),
            START: lambda: rows_of_stream(packed, driver, folder, START_COMMITS),
            SOURCE: lambda: rows_of_source(packed),
            SUBSCRIBED: lambda: rows_of_subscription(packed, client),
            IPC: lambda: file.read().num_rows,
        }
        if viewed is not None:
            copy = viewed.copied(folder / f"viewed-{viewed.count}").packed()
            stack.callback(copy.close)
            views = iter([copy.store.view(f"v{number}") for number in range(rounds + 1)])
            work[VIEW] = lambda: rows_of_view(copy, views)
        if with_delta:
            work[DELTA] = delta_feed(folder / f"delta-{single.count}", log.select(SCHEMA.names))
        cpu, took = replayed(work, rows, rounds, driver)
    what = f"of a replay of {single.count:,} commits of {ROWS} rows"
    targets = tuple(Target(who, None, limit, f"≤ {limit:,} ms") for who, limit in limits.items())
    return [Figure("P27", f"CPU time {what}", cpu, targets), Figure("P27", f"time {what}", took, ())]


# ---- what the log takes ----------------------------------------------------------------------------------------------


def used_ms(call: Callable[[], object]) -> float:
    """Return the CPU ms of a call in this process."""
    gc.collect()
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1000


class Stepped:
    """Packed copy of a log, with a view that makes a step after each further commit."""

    def __init__(self, single: SmallCommits, folder: Path) -> None:
        self.log = single.copied(folder / f"stepped-{single.count}").packed()
        (self._view,) = self.log.add_views(1)

    def step(self) -> float:
        """Return the CPU ms of a step over one commit."""
        self.log.commit()
        self.log.store.checkpoint()
        used = used_ms(self._steps)
        self.log.store.compact("t")
        return used

    def _steps(self) -> None:
        while self._view.step() is not None:
            pass


@dataclass(frozen=True, slots=True)
class Kept:
    """Files of a packed log, bytes of the catalog's records, and CPU ms of those who look at all of it."""

    files: int
    catalog_bytes: int
    vacuum_ms: float
    verify_ms: float

    @classmethod
    def of(cls, log: SmallCommits) -> Kept:
        vacuum_ms = statistics.median(used_ms(partial(log.store.vacuum, grace=0)) for _ in range(3))
        return cls(log.files, log.catalog_bytes, vacuum_ms, used_ms(log.store.verify))


def plots(kept: dict[int, Kept], steps: dict[int, list[float]]) -> list[Plot]:
    """Draw what a packed log takes over the number of its commits."""
    counts = list(kept)
    last, first_step = kept[counts[-1]], statistics.median(steps[min(steps)])
    size = [
        Panel("files of the packed log", [at(count, kept[count].files) for count in counts], 300, "300 for a day"),
        Panel(
            "bytes of the catalog for each commit",
            [at(count, kept[count].catalog_bytes / count) for count in counts],
            kept[counts[0]].catalog_bytes / counts[0],
            "the first",
        ),
    ]
    work = [
        Panel("CPU ms of vacuum", [at(count, kept[count].vacuum_ms) for count in counts], last.vacuum_ms, "the last"),
        Panel("CPU ms of verify", [at(count, kept[count].verify_ms) for count in counts], last.verify_ms, "the last"),
        Panel(
            "CPU ms of a view's step",
            [(float(count), *quartiles(took)) for count, took in steps.items()],
            1.1 * first_step,
            "1.1 × the first",
        ),
    ]
    at_most = max(statistics.median(took) for took in steps.values()) / first_step
    return [
        Plot("log_size", f"{counts[-1]:,} commits of {ROWS} rows: {last.files} files", "commits", size, log_x=True),
        Plot("log_work", f"A view's step takes at most {at_most:.2f} × the first", "commits", work, log_x=True),
    ]


# ---- requests of an object store -------------------------------------------------------------------------------------


def requests_of(log: SmallCommits, ranges: int) -> Samples:
    """Return the number of GETs, and the ms, of replays of ranges of a packed log whose files are on S3, where each
    request takes DELAY_S longer.
    """
    handle, chance = log.store._handle, np.random.default_rng(27)
    epochs = [0, *log.epochs()]
    samples: Samples = {"GETs": [], "ms": []}
    server, local = S3Server(), handle.files
    try:
        bucket = server.new_bucket()
        fs, _ = pafs.FileSystem.from_uri(server.uri(bucket))
        pafs.copy_files(str(log.folder / handle.store_id), f"{bucket}/{handle.store_id}", destination_filesystem=fs)
        handle.files = open_files(server.uri(bucket))
        server.delay(DELAY_S)
        for place in range(ranges):
            low, high = (0, len(epochs) - 1) if place == 0 else sorted(chance.choice(len(epochs), 2, replace=False))
            forget_files()
            server.requests()
            start = time.perf_counter()
            rows = log.table.changes(epochs[low], epochs[high]).read_all().num_rows
            samples["ms"].append((time.perf_counter() - start) * 1000)
            samples["GETs"].append(sum(request.startswith("GET") for request in server.requests()))
            assert rows == (high - low) * ROWS
    finally:
        handle.files = local
        server.stop()
        log.close()
    return samples


# ---- beside packing --------------------------------------------------------------------------------------------------


def maintained_commits(folder: Path, blocks: int, block: int) -> Samples:
    """Return the CPU ms of a commit with its share of the maintenance, in blocks of so many commits, in turns."""
    logs = {name: SmallCommits(folder / name.replace(" ", "-")) for name in (ON, OFF)}
    samples: Samples = {name: [] for name in logs}

    def work(log: SmallCommits, maintenance: Maintenance) -> None:
        for number in range(block):
            log.commit()
            if number % 8 == 7:
                while maintenance.run_once():
                    pass

    maintained = {name: Maintenance(log.store._handle) for name, log in logs.items()}
    for place in range(-1, blocks):
        for name in turned([ON, OFF], place):
            with ExitStack() as stack:
                if name == OFF:
                    stack.enter_context(without_packing())
                used = used_ms(partial(work, logs[name], maintained[name])) / block
            if place >= 0:
                samples[name].append(used)
    assert logs[ON].files < logs[OFF].files
    for log in logs.values():
        log.close()
    return samples


def retried_writes(folder: Path, url: str, *, packing: bool, commits: int) -> float:
    """Return the number of transactions that 16 writers of one table repeat, beside compaction with or without
    packing.
    """
    plainly, repeats, writing = RedisCatalog._write, [], threading.local()

    def counted(catalog: RedisCatalog, *arguments: Any) -> Any:
        again = plainly(catalog, *arguments)
        if again is not None and getattr(writing, "now", False):
            repeats.append(1)
        return again

    def write(number: int) -> None:
        writing.now, chance = True, np.random.default_rng(number)
        with el.open(folder, catalog=url, durability="os") as store:
            table = store.table("t")
            for _ in range(commits):
                table.upsert(make_rows(chance.choice(KEYS, ROWS, replace=False), chance))

    with ExitStack() as stack:
        if not packing:
            stack.enter_context(without_packing())
        stack.enter_context(patch.object(RedisCatalog, "_write", counted))
        with el.open(folder, catalog=url, durability="os") as store, ThreadPoolExecutor(WRITERS) as pool:
            store.create_table("t", SCHEMA, ["id"])
            writers = [pool.submit(write, number) for number in range(WRITERS)]
            while not all(writer.done() for writer in writers):
                store.compact("t")
            for writer in writers:
                writer.result()
            table = store.table("t")
            assert table.changes(0).read_all().num_rows == WRITERS * commits * ROWS
            assert (table.info.log_segments < WRITERS * commits) == packing
    return float(len(repeats))


# ---- all figures -----------------------------------------------------------------------------------------------------


def replays(folder: Path, scale: float, sessions: Sessions) -> Iterator[Figure | Plot]:
    """Let one log grow, and look at copies of it, packed, on its way."""
    full, driver = scale >= 1, sessions.of("epochlog")
    rounds = ROUNDS if full else 1
    single = SmallCommits(folder / "single")
    viewed = SmallCommits(folder / "viewed", views=rounds + 1)
    kept: dict[int, Kept] = {}
    stepped: dict[int, Stepped] = {}
    for stage in (YOUNG, FEW, SOME, HOURS, DAY, MANY):
        single.grow(sized(stage, scale))
        count = single.count
        if stage != HOURS:
            stepped[count] = Stepped(single, folder)
        if stage in (FEW, SOME, DAY, MANY):
            kept[count] = Kept.of(stepped[count].log)
        if stage in (FEW, SOME, HOURS, MANY):
            if stage in (FEW, HOURS):
                viewed.grow(count)
            yield from at_size(
                single, viewed if stage in (FEW, HOURS) else None, folder, rounds, driver, LIMITS_MS.get(stage, {}),
                with_delta=stage == FEW,
            )  # fmt: skip
        if stage == HOURS:
            yield requested(single.copied(folder / "hours").packed(), 9 if full else 3)
    by_name = {after(count): each for count, each in stepped.items()}
    steps: Samples = {name: [] for name in by_name}
    for place in range(-1, STEPS if full else 2):
        for name in turned(list(by_name), place):
            took = by_name[name].step()
            steps[name] += [took] if place >= 0 else []
    day, young = sized(DAY, scale), sized(YOUNG, scale)
    same = Target(after(day), after(young), 1.1, "≤ 1.1")
    yield Figure("P27", "CPU time of a view's step over one commit", steps, (same,))
    files: Samples = {"epochlog": [kept[day].files]}
    with_images = SmallCommits(folder / "images", changelog="full").grow(day).packed()
    files["old rows stored"] = [with_images.files]
    limits = (Target("epochlog", None, 300, "≤ 300"), Target("old rows stored", None, 550, "≤ 550"))
    yield Figure("P27", f"files of a log of {day:,} commits of {ROWS} rows", files, limits, "files")
    yield from plots(kept, {count: steps[after(count)] for count in stepped})
    for log in (single, viewed, with_images, *(each.log for each in stepped.values())):
        log.close()
    sessions.done()


def after(commits: int) -> str:
    return f"after {commits:,} commits"


def requested(log: SmallCommits, ranges: int) -> Figure:
    samples = requests_of(log, ranges)
    what = f"GETs of a replay of a range of {log.count:,} commits on S3, {DELAY_S * 1000:g} ms longer each"
    return Figure("P27", what, {"epochlog": samples["GETs"]}, (Target("epochlog", None, 400, "≤ 400"),), "GETs")


def beside_packing(folder: Path, scale: float) -> Iterator[Figure]:
    full = scale >= 1
    cpu = maintained_commits(folder, BLOCKS if full else 2, BLOCK if full else 128)
    what = f"CPU time of a commit of {ROWS} rows, with its maintenance"
    yield Figure("P27", what, cpu, (Target(ON, OFF, 1.03, "≤ 1.03"),))
    repeats: Samples = {ON: [], OFF: []}
    server, commits = RedisProcess(folder / "redis"), COMMITS_OF_WRITER if full else 10
    try:
        for place in range(ROUNDS if full else 1):
            for name in turned([ON, OFF], place):
                root = folder / f"written-{place}-{len(repeats[name])}-{name == ON}"
                repeats[name].append(retried_writes(root, server.url(), packing=name == ON, commits=commits))
    finally:
        server.stop()
    what = f"transactions that {WRITERS} writers of one table repeat on Redis in {WRITERS * commits} commits"
    yield Figure("P27", what, repeats, (Target(ON, OFF, 1.1, "≤ 1.1"),), "repeats")


@pytest.fixture(scope="module")
def measured(
    tmp_path_factory: pytest.TempPathFactory, scale: float, book: Book, sessions: Sessions
) -> dict[str, Figure]:
    folder, figures = tmp_path_factory.mktemp("small_commits"), dict[str, Figure]()
    for made in chain(replays(folder, scale, sessions), beside_packing(folder, scale)):
        if isinstance(made, Plot):
            book.plot(made)
        else:
            book.add(made)
            figures[made.what] = made
    return figures


def test_p27_small_commits(measured: dict[str, Figure]) -> None:
    assert len(measured) == FIGURES
