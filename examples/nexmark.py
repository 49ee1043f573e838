"""Eight queries of Nexmark as views in SQL, with DuckDB in this process: `python examples/nexmark.py`.

Events arrive in batches, each one commit of three tables. After each the eight views are stepped, one by one: each
recomputes the groups that the new rows touch, and commits those that differ. At the end all eight are read at one epoch
and compared with DuckDB's answers over the tables of that epoch.

    --base 100000     number of events that are there before the first batch
    --events 20000    number of events that arrive
    --batch 1000      events of one batch
    --seed 1          seed of the events
    --compare         also recompute all rows of each view, and merge the rows that differ into Delta tables
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from nexmark_data import KEYS, SCHEMAS, Events

import epochlog as el

PRICES = """
    COUNT(*) AS total_bids,
    COUNT(*) FILTER (WHERE price < 10000) AS rank1_bids,
    COUNT(*) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_bids,
    COUNT(*) FILTER (WHERE price >= 1000000) AS rank3_bids
"""
DISTINCT = ", ".join(
    f"""
    COUNT(DISTINCT {column}) AS total_{column}s,
    COUNT(DISTINCT {column}) FILTER (WHERE price < 10000) AS rank1_{column}s,
    COUNT(DISTINCT {column}) FILTER (WHERE price >= 10000 AND price < 1000000) AS rank2_{column}s,
    COUNT(DISTINCT {column}) FILTER (WHERE price >= 1000000) AS rank3_{column}s
    """
    for column in ("bidder", "auction")
)
VIEWS: dict[str, tuple[str, list[str]]] = {
    "q3": (
        """
        SELECT a.id, p.name, p.city, p.state
        FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND (p.state = 'OR' OR p.state = 'ID' OR p.state = 'CA')
        """,
        ["id"],
    ),
    "q4": (
        """
        SELECT q.category, AVG(q.final) AS final
        FROM (
            SELECT a.id, a.category, MAX(b.price) AS final
            FROM auction a JOIN bid b ON a.id = b.auction
            WHERE b.date_time BETWEEN a.date_time AND a.expires
            GROUP BY a.id, a.category
        ) q
        GROUP BY q.category
        """,
        ["category"],
    ),
    "q9": (
        """
        SELECT id, item_name, initial_bid, reserve, date_time, expires, seller, category, bidder, price, bid_time
        FROM (
            SELECT a.*, b.bidder, b.price, b.date_time AS bid_time,
                   ROW_NUMBER() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time, b.number) AS place
            FROM auction a JOIN bid b ON a.id = b.auction
            WHERE b.date_time BETWEEN a.date_time AND a.expires
        )
        WHERE place = 1
        """,
        ["id"],
    ),
    "q15": (
        f"""
        SELECT DATE_TRUNC('DAY', date_time) AS day, {PRICES}, {DISTINCT}
        FROM bid
        GROUP BY DATE_TRUNC('DAY', date_time)
        """,
        ["day"],
    ),
    "q16": (
        f"""
        SELECT channel, DATE_TRUNC('DAY', date_time) AS day, MAX(DATE_TRUNC('MINUTE', date_time)) AS minute,
               {PRICES}, {DISTINCT}
        FROM bid
        GROUP BY channel, DATE_TRUNC('DAY', date_time)
        """,
        ["channel", "day"],
    ),
    "q17": (
        f"""
        SELECT auction, DATE_TRUNC('DAY', date_time) AS day, {PRICES},
               MIN(price) AS min_price, MAX(price) AS max_price, AVG(price) AS avg_price, SUM(price) AS sum_price
        FROM bid
        GROUP BY auction, DATE_TRUNC('DAY', date_time)
        """,
        ["auction", "day"],
    ),
    "q18": (
        """
        SELECT auction, bidder, price, channel, url, date_time
        FROM (
            SELECT *, ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, number DESC) AS place
            FROM bid
        )
        WHERE place = 1
        """,
        ["auction", "bidder"],
    ),
    "q20": (
        """
        SELECT b.auction, b.number, b.bidder, b.price, b.channel, b.url, b.date_time AS bid_time,
               a.item_name, a.initial_bid, a.reserve, a.date_time AS auction_time, a.expires, a.seller, a.category
        FROM bid b JOIN auction a ON b.auction = a.id
        WHERE a.category = 10
        """,
        ["auction", "number"],
    ),
}
"""Query and primary key of each view."""


@dataclass
class Took:
    """Times in seconds: by view those of its steps, and those of all views after each batch."""

    steps: dict[str, list[float]] = field(default_factory=dict)
    batches: list[float] = field(default_factory=list)


class Nexmark:
    """A store with Nexmark's tables and the views over them."""

    def __init__(self, root: Path, refresh: str = "auto", durability: str = "disk") -> None:
        self.store = el.open(root, checkpoint_interval_ms=10, durability=durability)
        for name, schema in SCHEMAS.items():
            self.store.create_table(name, schema, KEYS[name])
        self.views = {name: self.store.create_view(name, *VIEWS[name], refresh=refresh) for name in VIEWS}

    def commit(self, rows: Mapping[str, pa.Table]) -> None:
        """Commit one batch of events, and end the epoch."""
        with self.store.transaction() as tx:
            for name, part in rows.items():
                tx.upsert(name, part)
        self.store.checkpoint()

    def step(self, took: Took) -> None:
        """Step all views until they have the last batch, and add the times."""
        began = time.monotonic()
        for name, view in self.views.items():
            start = time.monotonic()
            while view.step() is not None:
                pass
            took.steps.setdefault(name, []).append(time.monotonic() - start)
        took.batches.append(time.monotonic() - began)

    def differing(self) -> dict[str, int]:
        """Count by view the rows that differ from DuckDB's answer over the tables, all read at one epoch."""
        with self.store.snapshot([*SCHEMAS, *self.views], consistency="aligned") as moment:
            assert len(set(moment.epochs.values())) == 1, moment.epochs
            with moment.duckdb() as connection:
                return {name: differing_rows(connection, name) for name in self.views}


def differing_rows(connection: Any, name: str) -> int:
    """Count the rows by which the view differs from its query."""
    answer = f"({VIEWS[name][0]})"  # one text of both engines
    columns = ", ".join(connection.sql(f"FROM {answer}").columns)
    sides = [f"(SELECT {columns} FROM {source})" for source in (name, answer)]
    pairs = " UNION ALL ".join(f"({a} EXCEPT ALL {b})" for a, b in (sides, sides[::-1]))
    (count,) = connection.execute(f"SELECT COUNT(*) FROM ({pairs})").fetchone()
    return count


class DeltaTables:
    """Delta tables of the views' rows: each batch's changes are merged, without computing them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}

    def changes(self, nexmark: Nexmark) -> dict[str, pa.Table]:
        """Return the views' changes since the last call."""
        changes: dict[str, pa.Table] = {}
        for name in nexmark.views:
            table = nexmark.store.table(name)
            changes[name] = table.changes(self._read.get(name, 0), mode="net").read_all()
            self._read[name] = table.info.max_committed_epoch
        return changes

    def merge(self, changes: Mapping[str, pa.Table]) -> float:
        """Merge the changes of the views; return the seconds that it took."""
        began = time.monotonic()
        for name, rows in changes.items():
            if len(rows):
                self._merge(name, rows)
        return time.monotonic() - began

    def _merge(self, name: str, changes: pa.Table) -> None:
        from deltalake import DeltaTable, write_deltalake

        rows = changes.drop_columns(["_commit_version", "_commit_timestamp"])
        path = self._folder / name
        if not DeltaTable.is_deltatable(str(path)):
            write_deltalake(path, rows.drop_columns(["_change_type"]))
            return
        values = {column: f"s.{column}" for column in rows.column_names if column != "_change_type"}
        same = " AND ".join(f"t.{column} = s.{column}" for column in VIEWS[name][1])
        merger = DeltaTable(path).merge(rows, same, source_alias="s", target_alias="t")
        merger = merger.when_matched_delete("s._change_type = 'delete'").when_matched_update(values)
        merger.when_not_matched_insert(values, "s._change_type <> 'delete'").execute()


def show(label: str, took: Sequence[float], events: int) -> None:
    """Print the rate of events and the latency of a batch."""
    median, slow = np.percentile(np.array(took) * 1000, [50, 99])
    print(f"{label:28} {events / sum(took):10,.0f} events/s   p50 {median:7.1f} ms   p99 {slow:7.1f} ms")


def measure(folder: Path, base: int, events: int, batch: int, seed: int, *, compare: bool) -> dict[str, list[float]]:
    """Run the events; return for each view and for all of them together the seconds of each batch.

    compare: also recompute all rows of each view in a second store, and merge the rows that differ into Delta tables.
    """
    nexmark = Nexmark(folder / "store")
    anew = Nexmark(folder / "anew", refresh="full") if compare else None
    delta = DeltaTables(folder) if compare else None
    took, took_anew, merges = Took(), Took(), list[float]()
    generator = Events(seed)
    for number, rows in enumerate([*generator.batches(0, base, base), *generator.batches(base, events, batch)]):
        both = [(nexmark, took), *([(anew, took_anew)] if anew is not None else [])]
        for each, times in both if number % 2 else both[::-1]:
            each.commit(rows)
            each.step(times)
        if delta is not None:
            merges.append(delta.merge(delta.changes(nexmark)))
    differences = {name: count for name, count in nexmark.differing().items() if count}
    assert not differences, differences
    for each in (nexmark, anew):
        if each is not None:
            each.store.close()
    skip = 1 if base else 0
    samples = {**took.steps, "all eight": took.batches}
    if compare:
        samples |= {"all eight, all rows anew": took_anew.batches, "Delta MERGE of these rows": merges}
    return {name: seconds[skip:] for name, seconds in samples.items()}


def main(folder: Path, base: int, events: int, batch: int, seed: int, *, compare: bool) -> None:
    for name, seconds in measure(folder, base, events, batch, seed, compare=compare).items():
        show(name, seconds, events)
    print("all eight views, read at one epoch, are equal to DuckDB's answers")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--base", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compare", action="store_true")
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch), **vars(parser.parse_args()))
