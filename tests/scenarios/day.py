"""Day of a store in small: a commit a second on a virtual clock, five views, and maintenance, sampled at each hour.

PYTHONPATH=tests:tests/support:src python -m scenarios.day day    # the whole day; `tenth`, `tiny`: 8,640, 600 commits
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from time import process_time
from unittest import mock

import pyarrow as pa

import epochlog as el
from epochlog.store.catalog.keys import HIST_PREFIX, LOG_PREFIX, TRACE_PREFIX
from epochlog.store.compaction import packing
from epochlog.store.env.lru_cache import SWEEP_S, process_caches
from epochlog.store.maintenance.scheduler import Maintenance
from epochlog.store.metadata.commit_log import is_pack
from raw_check import raw_check

ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("day", pa.int64()), ("cents", pa.int64())])
CUSTOMERS = pa.schema([("id", pa.int64()), ("region", pa.string())])
REGIONS = ("africa", "america", "asia", "europe")
START_MS = 1_800_000_000_000
VIEWS = {
    "daily": ("SELECT day, SUM(cents) AS cents, COUNT(*) AS orders FROM orders GROUP BY day", ["day"]),
    "spent": ("SELECT customer, SUM(cents) AS cents, COUNT(*) AS orders FROM orders GROUP BY customer", ["customer"]),
    "large": ("SELECT id, customer, cents FROM orders WHERE cents >= 9000", ["id"]),
    "named": ("SELECT o.id, o.day, o.cents, c.region FROM orders o JOIN customers c ON o.customer = c.id", ["id"]),
    "by_region": (
        "SELECT region, day, SUM(cents) AS cents, COUNT(*) AS orders FROM named GROUP BY region, day",
        ["region", "day"],
    ),
}


@dataclass(frozen=True, slots=True)
class Scale:
    """Size of a day. Times are of the virtual clock, in seconds; a commit comes each second."""

    hours: int
    hour_s: int
    history_s: int
    log_s: int
    grace_s: int
    step_s: int
    """Time between two steps of the views."""
    round_s: int
    """Time between two rounds of maintenance."""
    orders: int
    customers: int
    packs: tuple[tuple[str, int], ...] = ()
    """Sizes of packs in place of those of `packing`."""


DAY = Scale(24, 3600, history_s=3600, log_s=7200, grace_s=900, step_s=300, round_s=30, orders=2000, customers=100)
TINY = Scale(
    12, 50, history_s=50, log_s=100, grace_s=20, step_s=10, round_s=5, orders=60, customers=10,
    packs=(("LEAST_COMMITS", 3), ("MOST_COMMITS", 4), ("MERGED", 2), ("SPAN", 8)),
)  # fmt: skip
SCALES = {"day": DAY, "tenth": replace(DAY, hour_s=360, history_s=360, log_s=720, grace_s=90, step_s=60), "tiny": TINY}


@dataclass(frozen=True, slots=True)
class Hour:
    """State of the store and of the process at the end of an hour."""

    files: int
    catalog_records: int
    catalog_bytes: int
    """Keys and values of all records but remembered commits and traces, of which a table has 256 in the end."""
    cache_bytes: int
    packs: int
    """Packs in the logs of all tables."""
    commits: int
    """Remembered commits of all tables."""
    cpu_s: float
    """CPU time of the hour."""
    rss_mb: float


class LivedDay:
    """Store on a virtual clock, and the process that writes, steps and maintains it."""

    def __init__(self, root: Path, scale: Scale) -> None:
        self.scale, self.now_ms, self._dice = scale, START_MS, random.Random(scale.hours)
        self.store = el.open(root, durability="os", clock=lambda: self.now_ms)
        self._maintenance = Maintenance(self.store._handle)
        self._root, self._at_s = root, 0
        options = el.TableOptions(
            history_retention=timedelta(seconds=scale.history_s), log_retention=timedelta(seconds=scale.log_s)
        )
        self._orders = self.store.create_table("orders", ORDERS, ["id"], options=options)
        customers = self.store.create_table("customers", CUSTOMERS, ["id"], changelog="full", options=options)
        customers.upsert([{"id": id_, "region": REGIONS[id_ % 4]} for id_ in range(scale.customers)])
        self._orders.upsert([self._order(id_) for id_ in range(scale.orders)])
        self._customers = customers
        for name, (sql, key) in VIEWS.items():
            self.store.create_view(name, sql, key, options=options, interval=timedelta(seconds=scale.step_s))

    def _order(self, id_: int) -> dict[str, int]:
        dice = self._dice
        customer = dice.randrange(self.scale.customers)
        return {"id": id_, "customer": customer, "day": dice.randrange(30), "cents": dice.randrange(10_000)}

    def hours(self) -> Iterator[Hour]:
        """Live through the day; yield the state at the end of each hour."""
        for _ in range(self.scale.hours):
            began = process_time()
            for _ in range(self.scale.hour_s):
                self._second()
            yield self._sample(process_time() - began)

    def _second(self) -> None:
        self.now_ms += 1000
        self._at_s += 1
        dice, scale = self._dice, self.scale
        kind = dice.random()
        if kind < 0.85:
            self._orders.upsert([self._order(dice.randrange(scale.orders)) for _ in range(dice.choice([1, 2, 5]))])
        elif kind < 0.95:
            self._orders.delete([dice.randrange(scale.orders)])
        else:
            self._customers.upsert([{"id": dice.randrange(scale.customers), "region": dice.choice(REGIONS)}])
        if self._at_s % scale.step_s == 0:
            self.catch_up()
        if self._at_s % scale.round_s == 0:
            while self._maintenance.run_once():
                continue
            self.store._handle.leases.renew()
        if self._at_s % scale.grace_s == 0:
            self.store.vacuum(grace=scale.grace_s)
        if self._at_s % round(SWEEP_S) == 0 or self._at_s % scale.hour_s == 0:
            for _, cache in process_caches():  # their time is that of the machine
                cache.sweep()

    def catch_up(self) -> None:
        """Step the views until they have all commits."""
        for name in VIEWS:  # those that another reads come first
            while self.store.view(name).step() is not None:
                continue

    def _sample(self, cpu_s: float) -> Hour:
        assert not self._maintenance.errors, self._maintenance.errors
        every = self.records()
        commits = sum(key.startswith(HIST_PREFIX) for key, _ in every)
        records = [record for record in every if not record[0].startswith((HIST_PREFIX, TRACE_PREFIX))]
        return Hour(
            files=sum(path.is_file() for path in self._root.rglob("t0*/*")),
            catalog_records=len(records),
            catalog_bytes=sum(len(key) + len(value) for key, value in records),
            cache_bytes=sum(cache.bytes for _, cache in process_caches()),
            packs=sum(map(is_pack, (value for key, value in records if key.startswith(LOG_PREFIX)))),
            commits=commits,
            cpu_s=round(cpu_s, 2),
            rss_mb=round(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6, 1),
        )

    def records(self) -> list[tuple[bytes, bytes]]:
        """Return the packed records of the catalog."""
        return self.store._handle.catalog.read(lambda view: list(view.scan_packed(b"", b"\xff")))

    def check(self) -> None:
        """Check the store, and each view by its text as it was given."""
        self.catch_up()
        report = self.store.verify()
        assert report.ok, report.problems
        for name in VIEWS:
            result = raw_check(self.store.view(name))
            assert result.ok, (name, result)


def live(root: Path, scale: Scale) -> list[Hour]:
    """Live a day, check the store at its end, and return the hours."""
    with ExitStack() as stack:
        for name, size in scale.packs:
            stack.enter_context(mock.patch.object(packing, name, size))
        for _, cache in process_caches():
            cache.clear()
        day = LivedDay(root, scale)
        stack.callback(day.store.close)
        hours = []
        for number, hour in enumerate(day.hours(), 1):
            print(number, json.dumps(asdict(hour)), flush=True)
            hours.append(hour)
        print(Counter(key.split(b"/")[0].decode() for key, _ in day.records()))
        day.check()
    return hours


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
        live(Path(folder) / "store", SCALES[sys.argv[1]])
