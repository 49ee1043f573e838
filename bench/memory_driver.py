"""One piece of work on a large store, in a process of its own: prints its time and the memory it took at most, as JSON.

    memory_driver.py load | scan | compact | replay | plain  ROOT  ROWS

Counted is what the process holds above what it held before the work: anonymous pages (RssAnon), which nothing can take
from it, and pages of mapped files (RssFile), which the system drops when it needs room. The largest batch that the
work was given is taken off the first. `plain` writes the rows as one Parquet file, synced, beside the store.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from data import SCHEMA
from report import text_of

import epochlog as el

PIECES = 20
EVERY_S = 0.002


class Watch:
    """Looks at some memory, this process's if nothing else is said, every two milliseconds or less often."""

    def __init__(self, look: Callable[[], tuple[float, float]] | None = None, every_s: float = EVERY_S) -> None:
        self._done, self._resident, self._every_s = threading.Event(), look or resident_mib, every_s
        self.start = self.peak = self._resident()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(self._every_s):
            now = self._resident()
            self.peak = (max(self.peak[0], now[0]), max(self.peak[1], now[1]))


def resident_mib(process: int | str = "self") -> tuple[float, float]:
    """Anonymous and file-mapped pages of a process; nothing of one that has ended."""
    text = text_of(f"/proc/{process}/status")
    matches = (re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE) for name in ("RssAnon", "RssFile"))
    anonymous, mapped = (int(each[1]) / 1024 if each else 0.0 for each in matches)
    assert process != "self" or (anonymous and mapped)
    return anonymous, mapped


def load(root: str, rows: int) -> None:
    """Pieces that each spread over all keys: every part of a read meets all of them."""
    chance = np.random.default_rng(15)
    with el.open(root, durability="os") as store:
        table = store.create_table("t", SCHEMA, primary_key=["id"])
        for piece in range(PIECES):
            ids = np.arange(rows // PIECES) * PIECES * 8 + piece * 8
            names = pa.array(chance.integers(10**9, 10**10, len(ids))).cast(pa.string())
            table.upsert(pa.table([pa.array(ids), pa.array(chance.random(len(ids))), names], schema=SCHEMA))


def drained(batches: Iterable[pa.RecordBatch]) -> tuple[int, float]:
    """Rows, and MiB of the largest batch."""
    rows, largest = 0, 0
    for batch in batches:
        rows, largest = rows + batch.num_rows, max(largest, batch.nbytes)
    return rows, largest / 2**20


def plain_write(rows: pa.Table, path: Path) -> None:
    with path.open("wb") as file:
        pq.write_table(rows, file)
        file.flush()
        os.fsync(file.fileno())


def main() -> None:
    work, root, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if work == "load":
        load(root, rows)
        print("{}")
        return
    total, rows_read, batch_mib = rows // PIECES * PIECES, None, 0.0
    with el.open(root) as store:
        table = store.table("t")
        given = table.to_arrow() if work == "plain" else None
        with Watch() as watch:  # nothing is read before: what reading leaves behind would be taken off
            start = perf_counter()
            if given is not None:
                plain_write(given, Path(f"{root}.parquet"))
            elif work == "compact":
                store.compact("t", full=True)
            else:
                rows_read, batch_mib = drained(table.scan() if work == "scan" else table.changes(0))
            took_ms = (perf_counter() - start) * 1000
        assert {rows_read, table.count()} <= {total, None}, f"{rows_read} rows of {table.count()}, not {total}"
    anonymous, mapped = (peak - start for peak, start in zip(watch.peak, watch.start, strict=True))
    report = {"ms": took_ms, "anonymous_mib": max(0, anonymous - batch_mib), "mapped_mib": mapped}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
