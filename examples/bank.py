"""A bank whose money must add up, as views in SQL that commit alone: `python examples/bank.py`.

The case is that of jamii/streaming-consistency: transfers of 1 $ between ten accounts, which arrive up to ten seconds
late. `credits` and `debits` are sums by account, `balance` is their join, `total` the sum of all balances, and
`matched` an outer join of the transfers with themselves by id. The total is always 0, and the outer join never shows a
null.

Each view commits alone. Three processes keep them: one all but two, one `debits`, with a pause after each step, and one
`balance`, which is killed again and again while transfers arrive. Every 200 ms a reader reads all views under each
policy, and counts the reads in which what was credited is not what was debited, the balances are not their difference,
or the total is not 0.

    --transfers 1000000  number of transfers; 10000000 is the size of the original
    --seconds 30         time over which they arrive
    --spark              also keep the sums by four plain streaming queries of Spark that write Delta tables
    --json FILE          write what was counted
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import epochlog as el

SEED = 42
ACCOUNTS = 10
MOST_LATE_S = 10.0
READ_EVERY_S = 0.2
PAUSE_S = 0.3  # after each step of the slow view
KILL_EVERY_S = 4.0
PARTS_PER_S = 10
TRANSFERS = pa.schema([
    pa.field("id", pa.int64(), nullable=False), ("from_account", pa.int64()), ("to_account", pa.int64()),
    ("amount", pa.int64()), ("ts", pa.timestamp("us", "UTC")),
])  # fmt: skip
VIEWS: dict[str, tuple[str, list[str]]] = {
    "credits": ("SELECT to_account AS account, SUM(amount) AS credits FROM transfers GROUP BY to_account", ["account"]),
    "debits": (
        "SELECT from_account AS account, SUM(amount) AS debits FROM transfers GROUP BY from_account",
        ["account"],
    ),
    "balance": (
        "SELECT c.account, c.credits - d.debits AS balance FROM credits c JOIN debits d ON c.account = d.account",
        ["account"],
    ),
    "total": ("SELECT 'all' AS accounts, COALESCE(SUM(balance), 0) AS total FROM balance", ["accounts"]),
    "matched": ("SELECT a.id, b.id AS other_id FROM transfers a LEFT JOIN transfers b ON a.id = b.id", ["id"]),
}
"""Query and primary key of each view."""
CREWS = {"most": ("credits", "total", "matched"), "slow": ("debits",), "killed": ("balance",)}
POLICIES = ("aligned", "global", "latest")
SPARK = "Spark and Delta"


def transfers(count: int) -> Iterator[pa.Table]:
    """Generate the transfers in the order of their arrival, by parts of up to a million."""
    chance = np.random.default_rng(SEED)
    ids = np.arange(count)
    seconds = 60 * ids // count
    order = np.argsort(seconds + chance.uniform(0, MOST_LATE_S, count), kind="stable")
    sides = chance.integers(0, ACCOUNTS, (2, count))
    midnight = np.datetime64("2021-01-01", "us")
    for at in range(0, count, 1_000_000):
        part = order[at : at + 1_000_000]
        times = midnight + seconds[part].astype("timedelta64[s]")
        columns = [ids[part], sides[0][part], sides[1][part], np.ones(len(part), np.int64), times]
        yield pa.table([pa.array(c, f.type) for c, f in zip(columns, TRANSFERS, strict=True)], schema=TRANSFERS)


def create_views(store: el.Store) -> None:
    """Create the table of transfers and all views of it."""
    store.create_table("transfers", TRANSFERS, ["id"])
    for name, (sql, key) in VIEWS.items():
        store.create_view(name, sql, key)


# ---- reading -------------------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """Counts of the reads of one kind, until one of them has seen all transfers."""

    done: bool = False
    reads: int = 0
    wrong: int = 0
    nulls: int = 0
    behind_s: list[float] = field(default_factory=list)
    """Age of the oldest transfer that a read did not see."""
    off: list[tuple[float, int]] = field(default_factory=list)
    """Of each read, its second and the dollars by which what was credited and what was debited differ."""

    @property
    def share(self) -> float:
        return self.wrong / max(self.reads, 1)

    def add(self, sums: dict[str, pa.Table], arrivals: Arrivals) -> None:
        """Judge one read of all sums."""
        is_right, seen = adds_up(**sums), pc.sum(sums["credits"]["credits"]).as_py() or 0
        self.off.append((arrivals.running_s(), abs(seen - (pc.sum(sums["debits"]["debits"]).as_py() or 0))))
        self.reads += 1
        self.wrong += not is_right
        self.behind_s.append(arrivals.behind_s(seen))
        self.done = is_right and seen == arrivals.expected


class Arrivals:
    """Times at which transfers were committed."""

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self._counts, self._times = [0], [time.monotonic()]

    def add(self, count: int) -> None:
        self._times.append(time.monotonic())
        self._counts.append(self._counts[-1] + count)

    def running_s(self) -> float:
        return time.monotonic() - self._times[0]

    def behind_s(self, seen: int) -> float:
        """Return the time since the oldest transfer was committed that is not among the first `seen`; 0 without."""
        place = int(np.searchsorted(self._counts, seen, side="right"))
        return time.monotonic() - self._times[place] if place < len(self._times) else 0.0


def adds_up(credits: pa.Table, debits: pa.Table, balance: pa.Table, total: pa.Table) -> bool:
    """Return True if the sums that were read together are those of one set of transfers."""
    earned = dict(zip(*credits.select(["account", "credits"]).to_pydict().values(), strict=True))
    spent = dict(zip(*debits.select(["account", "debits"]).to_pydict().values(), strict=True))
    balances = dict(zip(*balance.select(["account", "balance"]).to_pydict().values(), strict=True))
    return (
        sum(earned.values()) == sum(spent.values())
        and balances == {account: earned[account] - spent[account] for account in earned.keys() & spent.keys()}
        and set(total["total"].to_pylist()) <= {0}
    )


def read_once(store: el.Store, policy: str, tally: Tally, arrivals: Arrivals) -> None:
    """Read all views under one policy and judge what was read."""
    if tally.done:
        return
    try:
        snapshot = store.snapshot(list(VIEWS), consistency=policy)
    except el.NoConsistentEpoch:
        return  # a view has no rows yet
    with snapshot as moment:
        sums = {name: moment[name].to_arrow() for name in VIEWS if name != "matched"}
        nulls = moment["matched"].to_arrow(columns=["id"], filter=pc.field("other_id").is_null())
    tally.nulls += len(nulls)
    tally.add(sums, arrivals)


# ---- the processes that keep the views -----------------------------------------------------------------------------


def keep(root: str, crew: str) -> None:
    """Keep the views of one crew fresh until the process is killed."""
    with el.open(root) as store:
        views = [store.view(name) for name in CREWS[crew]]
        print("up", flush=True)
        pause = threading.Event()
        while True:
            for view in views:
                stepped = view.step(take_over=True)  # from a process that was killed
                if stepped is None or crew == "slow":
                    pause.wait(PAUSE_S if crew == "slow" else 0.02)


@contextmanager
def crews(root: str) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Run the processes of all crews, and kill them at the end."""
    processes = {crew: start_crew(root, crew) for crew in CREWS}
    try:
        for process in processes.values():
            wait_until_up(process)
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()


def start_crew(root: str, crew: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, "--keep", crew, root], stdout=subprocess.PIPE, text=True)


def wait_until_up(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    if process.stdout.readline() != "up\n":
        raise RuntimeError("a process that keeps views did not start")


# ---- the run -------------------------------------------------------------------------------------------------------


class Bank:
    """Run of the bank: writes the transfers as they arrive, and reads while the views follow."""

    def __init__(self, store: el.Store, count: int, seconds: float) -> None:
        self._store, self._count = store, count
        self._parts = max(1, round(seconds * PARTS_PER_S))
        self._pause_s = seconds / self._parts
        self._arrivals = Arrivals(count)
        self._arrived, self._done = threading.Event(), threading.Event()
        self.tallies = {policy: Tally() for policy in POLICIES}
        self.kills = 0

    def run(self, also: Callable[[pa.Table], None] | None = None, beside: Sequence[Callable[[], Any]] = ()) -> None:
        """Write all transfers, read meanwhile, and return when the views have caught up.

        also: gets each part too. beside: other readers.
        """
        with crews(self._store.root) as processes:
            threads = [
                threading.Thread(target=self._read, args=(list(beside),)),
                threading.Thread(target=self._kill, args=(processes,)),
            ]
            for thread in threads:
                thread.start()
            try:
                self._write(also)
                self._arrived.set()
                self._wait_for_views()
            finally:
                self._arrived.set()
                self._done.set()
                for thread in threads:
                    thread.join()

    @property
    def arrivals(self) -> Arrivals:
        return self._arrivals

    def _write(self, also: Callable[[pa.Table], None] | None) -> None:
        size, next_s, pause = -(-self._count // self._parts), time.monotonic(), threading.Event()
        for chunk in transfers(self._count):
            for at in range(0, len(chunk), size):
                part = chunk.slice(at, size)
                self._store.table("transfers").upsert(part)
                self._arrivals.add(len(part))
                if also is not None:
                    also(part)
                next_s += self._pause_s
                pause.wait(max(0.0, next_s - time.monotonic()))

    def _wait_for_views(self) -> None:
        epoch = self._store.checkpoint()
        with self._store.snapshot(list(VIEWS), consistency=el.AtLeast(epoch, timeout=600)):
            return

    def _read(self, beside: list[Callable[[], Any]]) -> None:
        is_done = False
        while not is_done:
            is_done = self._done.wait(READ_EVERY_S)  # the views are read once more at their end
            for policy, tally in self.tallies.items():
                read_once(self._store, policy, tally, self._arrivals)
            for read in beside:
                read()

    def _kill(self, processes: dict[str, subprocess.Popen[str]]) -> None:
        while not self._arrived.wait(KILL_EVERY_S) or not self.kills:
            processes["killed"].kill()
            processes["killed"].communicate()
            processes["killed"] = start_crew(self._store.root, "killed")
            wait_until_up(processes["killed"])
            self.kills += 1


def check_end(store: el.Store, count: int) -> None:
    """Raise AssertionError if the views do not have all transfers at the end."""
    with store.snapshot([*VIEWS, "transfers"], consistency="aligned") as moment:
        sums = {name: moment[name].to_arrow() for name in VIEWS if name != "matched"}
        rows = (
            moment["transfers"].to_arrow(columns=["to_account"]).group_by("to_account").aggregate([([], "count_all")])
        )
        matched = moment["matched"].count()
    wanted = dict(zip(rows["to_account"].to_pylist(), rows["count_all"].to_pylist(), strict=True))
    earned = dict(zip(sums["credits"]["account"].to_pylist(), sums["credits"]["credits"].to_pylist(), strict=True))
    assert adds_up(**sums) and earned == wanted, (earned, wanted)
    assert sum(wanted.values()) == matched == count, (wanted, matched)


def main(folder: Path, count: int, seconds: float, *, spark: bool) -> tuple[dict[str, Tally], int]:
    """Run the bank; return what each kind of read saw, and the number of kills."""
    with el.open(folder / "store", checkpoint_interval_ms=100, maintenance=True) as store:
        create_views(store)
        bank = Bank(store, count, seconds)
        if spark:
            from bank_on_spark import DeltaBank

            with DeltaBank(folder, bank.arrivals) as plain:
                bank.run(plain.write, [plain.read])
                tallies = {**bank.tallies, SPARK: plain.tally}
        else:
            bank.run()
            tallies = bank.tallies
        check_end(store, count)
        return tallies, bank.kills


def show(tallies: dict[str, Tally], kills: int) -> None:
    print(f"{'read':16} {'reads':>6} {'wrong':>6} {'share':>6} {'nulls':>6} {'behind, median':>15} {'at most':>8}")
    for name, tally in tallies.items():
        behind = tally.behind_s or [0.0]
        print(
            f"{name:16} {tally.reads:6} {tally.wrong:6} {tally.share:6.1%} {tally.nulls:6} "
            f"{statistics.median(behind):13.2f} s {max(behind):6.2f} s"
        )
    print(f"the process of balance was killed {kills} times; all views have all transfers")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--transfers", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", nargs=2, metavar=("CREW", "ROOT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.keep:
        keep(args.keep[1], args.keep[0])
    with tempfile.TemporaryDirectory() as scratch:
        seen, killed = main(Path(scratch), args.transfers, args.seconds, spark=args.spark)
    show(seen, killed)
    if args.json:
        answers = {name: {**vars(tally), "kills": killed} for name, tally in seen.items()}
        args.json.write_text(json.dumps(answers), "utf-8")
