"""Random histories of a job graph, each at several moments, with the library's choice of every barrier.

EPOCHLOG_MODEL_SEEDS sets the number of histories; EPOCHLOG_MODEL_FIRST_SEED is the first one's seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from epoch_histories import INTERVAL_MS, History, play, random_history
from epochlog.checkpoint.job.next_barrier import InputPosition, next_barrier
from epochlog.store.epochs.view import EpochView
from seeds import seeds

FIRST_SEED = int(os.environ.get("EPOCHLOG_MODEL_FIRST_SEED", "0"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("EPOCHLOG_MODEL_SEEDS", "120")))
BATCH = 20
Decide = Callable[[History, str], int | None]


def by_library(history: History, job: str) -> int | None:
    return decide_barrier(history, history.view(), job, history.position(job), first=not history.log[job])


def decide_barrier(history: History, view: EpochView, job: str, after: int, first: bool) -> int | None:
    spec = history.jobs[job]
    upstreams = [view.table(up).table_id for up in spec.upstreams]
    position = InputPosition(upstreams, after, INTERVAL_MS * spec.interval, forced=history.forced)
    drain = history.drains.get(job)
    barrier = next_barrier(
        view, position, max_lag=spec.max_lag, first=first, snapshot=spec.snapshot, drain=drain, stride=spec.stride
    )
    assert barrier is None or (barrier.prev == after and barrier.kind == ("initial" if first else "checkpoint"))
    return None if barrier is None else barrier.curr


def batches() -> list[Any]:
    """Return parts of the seeds; where no number of seeds is asked for, all but the first two are for `make long`."""
    parts = [SEEDS[at : at + BATCH] for at in range(0, len(SEEDS), BATCH)]
    return seeds(parts, len(parts) if "EPOCHLOG_MODEL_SEEDS" in os.environ else 2)


def runs(chosen: Iterable[int], decide: Decide = by_library) -> Iterator[tuple[int, random.Random, History]]:
    """The histories of these seeds, each at several moments."""
    for seed in chosen:
        rng = random.Random(seed)
        for history in play(random_history(rng), rng, decide):
            yield seed, rng, history


def forget(history: History, rng: random.Random) -> None:
    """Lets some tables forget old changes and old states."""
    for table in rng.sample(history.names, rng.choice([0, 0, 1, 2]) % (len(history.names) + 1)):
        history.known_from[table] = rng.randint(0, history.last_epoch)
    for table in rng.sample(history.names, rng.choice([0, 0, 1, 2]) % (len(history.names) + 1)):
        history.safe_epoch[table] = rng.randint(0, history.position(table))
