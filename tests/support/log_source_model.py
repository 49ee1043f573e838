"""Reads of upstream logs as plain tuples, a job's view of these logs, and random histories to read."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import epochlog as el
from epochlog.store.types.epoch import to_unix_ms
from lab import Lab, commits, keys_of, mirror, table_of

Item = el.Chunk | el.Barrier | el.EndOfData
Shown = tuple[Any, ...]
LONG = 5_000_000  # epochs: longer than the distance of two boundaries


def received(log: el.UpstreamLog) -> list[Item]:
    """Return all items received so far."""
    return list(iter(log.poll, None))


def read(lab: Lab, tables: Sequence[str] = ("r",), **options: Any) -> list[Item]:
    with el.UpstreamLog(lab.store, tables, **options) as log:
        return received(log)


def shown(items: Iterable[Item]) -> list[Shown]:
    """Each change, and each barrier, as a tuple."""
    shown_items: list[Shown] = []
    for item in items:
        if isinstance(item, el.Chunk):
            for row in item.data.to_pylist():
                assert row["_commit_version"] == item.epoch
                shown_items.append((item.table, item.epoch, row["_change_type"], row["k"], row["v"]))
        else:
            shown_items.append((item.prev, item.curr, item.kind) if isinstance(item, el.Barrier) else ("end",))
    return shown_items


def barriers(items: Iterable[Item]) -> list[tuple[int, int]]:
    return [(item.prev, item.curr) for item in items if isinstance(item, el.Barrier)]


class RecordingRefresh:
    """Refresh that records its inputs in the form of `shown`."""

    def __init__(self, tables: Sequence[str], output: str, *, pre_images: bool = False) -> None:
        self.tables, self.output, self.pre_images = tables, output, pre_images
        self.heard: list[Shown] = []

    def __call__(self, ctx: Any) -> None:
        rows: list[Shown] = []
        for name in self.tables:
            changes = ctx.changes(name, mode="epochs", pre_images=self.pre_images).to_pylist()
            rows += [(name, row["_commit_version"], row["_change_type"], row["k"], row["v"]) for row in changes]
        barrier = ctx.barrier
        self.heard += sorted(rows, key=lambda row: (row[1], self.tables.index(row[0]), row[3]))
        self.heard.append((barrier.prev, barrier.curr, barrier.kind))


class History:
    """Random commits of two root tables and of a job's output, of every kind there is."""

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab, self.rng = lab, random.Random(seed)
        self.tables = ["r", "q", "view"]
        self.view = lab.job("deriving", ["r"], ["view"], interval=self.rng.choice((1, 2)), backfill="log")

    def turn(self) -> None:
        rng, lab = self.rng, self.lab
        table = rng.choice(("r", "r", "q"))
        rows = {rng.randrange(9): (0, rng.randrange(100)) for _ in range(rng.randint(1, 4))}
        kind = rng.choice(("put", "put", "delete", "empty", "both", "labels", "checkpoint", "step", "tick", "tick"))
        if kind == "put":
            lab.put(rows, table)
        elif kind == "delete":
            lab.store.table(table).delete(keys_of(rows))
        elif kind == "empty":
            lab.put({}, table)
        elif kind == "both":
            with lab.store.transaction() as tx:
                tx.upsert("r", table_of(rows))
                tx.upsert("q", table_of(rows))
        elif kind == "labels":
            self.labels(table)
        elif kind == "checkpoint":
            lab.store.checkpoint()
        elif kind == "step":
            self.view.step_local(mirror("r", "view"))
        else:
            lab.tick(rng.choice((0.3, 1, 1, 2.5)))

    def labels(self, table: str) -> None:
        writer, at, segments = self.lab.store.table(table).writer(), self.lab.store.last_epoch, []
        for number in range(1, self.rng.randint(2, 4)):
            writer.upsert(table_of({self.rng.randrange(9): (0, number)}))
            at += 10 if self.rng.random() < 0.7 else LONG
            segments += writer.seal(at)
        self.lab.store.commit({table: segments}, epoch=at)
        self.lab.now_ms = max(self.lab.now_ms, to_unix_ms(at))

    def settle(self) -> None:
        self.lab.tick(2)
        commits({"view": lambda: self.view.step_local(mirror("r", "view"))})
