"""Pathway in a process of its own: `PYTHON pathway_driver.py FOLDER VIEW…` in an environment with pathway.

It keeps views over the tables of Arrow streams in FOLDER/base and FOLDER/steps. It feeds the base, waits for a line on
standard input, feeds the steps, each in one commit of each table, and waits for one more line before it ends. Without
a view it feeds the tables into nothing. With `--output FOLDER` each view's changes are written there, and it does not
wait. The first line on standard output has its process id.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pathway as pw  # pyright: ignore[reportMissingImports]  # in its own environment alone
import pyarrow as pa

SIGN = "_sign"
ROWS_AT_ONCE = 10_000
DAY_US, MINUTE_US = 86_400_000_000, 60_000_000
KEYS = {"person": ["key"], "auction": ["key"], "bid": ["auction", "number"]}
"""Primary keys; pathway has an `id` of its own in each table, so a column of that name is called `key` here."""


class Feeder(pw.io.python.ConnectorSubject):
    """Source of one table's rows."""

    def __init__(self, folder: Path, name: str, lines: Lines | None) -> None:
        super().__init__()
        self._folder, self._name, self._lines = folder, name, lines

    def run(self) -> None:
        for number, part in enumerate(("base", "steps")):
            if self._lines is not None:
                self._lines.wait(number)
            with pa.OSFile(str(self._folder / part / f"{self._name}.arrows")) as file:
                for batch in pa.ipc.open_stream(file):
                    self._feed(batch)
                    self.commit()
        if self._lines is not None:
            self._lines.wait(2)

    def _feed(self, batch: pa.RecordBatch) -> None:
        for start in range(0, len(batch), ROWS_AT_ONCE):
            for row in renamed(batch.slice(start, ROWS_AT_ONCE)).to_pylist():
                if row.pop(SIGN) > 0:
                    self.next(**row)
                else:
                    self.delete(**row)


class Lines(threading.Thread):
    """Reader of standard input; others wait until it has read so many lines."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._count, self._changed = 0, threading.Condition()

    def run(self) -> None:
        for _ in sys.stdin:
            self._advance(1)
        self._advance(3)

    def _advance(self, count: int) -> None:
        with self._changed:
            self._count += count
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._count >= count)


def q3(tables: dict[str, Any]) -> Any:
    auction, person = tables["auction"], tables["person"]
    near = person.filter((pw.this.state == "OR") | (pw.this.state == "ID") | (pw.this.state == "CA"))
    chosen = auction.filter(pw.this.category == 10)
    return chosen.join(near, chosen.seller == near.key).select(chosen.key, near.name, near.city, near.state)


def bids_in_time(tables: dict[str, Any], **columns: Any) -> Any:
    """Return the bids that came while their auction was open. columns: more of them, by their names."""
    a, b = tables["auction"], tables["bid"]
    joined = a.join(b, a.key == b.auction).select(
        key=a.key, category=a.category, date_time=a.date_time, expires=a.expires, price=b.price, bid_time=b.date_time,
        **columns,
    )  # fmt: skip
    return joined.filter((pw.this.bid_time >= pw.this.date_time) & (pw.this.bid_time <= pw.this.expires))


def q4(tables: dict[str, Any]) -> Any:
    bids = bids_in_time(tables)
    last = bids.groupby(bids.key, bids.category).reduce(bids.category, final=pw.reducers.max(bids.price))
    return last.groupby(last.category).reduce(last.category, final=pw.reducers.avg(last.final))


def q9(tables: dict[str, Any]) -> Any:
    a, b = tables["auction"], tables["bid"]
    bids = bids_in_time(
        tables, item_name=a.item_name, initial_bid=a.initial_bid, reserve=a.reserve, seller=a.seller,
        bidder=b.bidder, number=b.number,
    )  # fmt: skip
    place = pw.make_tuple(bids.price, -bids.bid_time, -bids.number)
    best = bids.groupby(bids.key).reduce(row=pw.reducers.argmax(place))
    row = bids.ix(best.row)
    return best.select(
        row.key, row.item_name, row.initial_bid, row.reserve, row.date_time, row.expires, row.seller, row.category,
        row.bidder, row.price, row.bid_time,
    )  # fmt: skip


def ranked(bids: Any) -> Any:
    """Add to the bids their day and, for each class of prices, 1 or 0."""
    return bids.with_columns(
        day=bids.date_time - bids.date_time % DAY_US,
        minute=bids.date_time - bids.date_time % MINUTE_US,
        low=pw.if_else(bids.price < 10_000, 1, 0),
        middle=pw.if_else((bids.price >= 10_000) & (bids.price < 1_000_000), 1, 0),
        high=pw.if_else(bids.price >= 1_000_000, 1, 0),
    )


def prices() -> dict[str, Any]:
    this = pw.this
    return {
        "total_bids": pw.reducers.count(),
        "rank1_bids": pw.reducers.sum(this.low),
        "rank2_bids": pw.reducers.sum(this.middle),
        "rank3_bids": pw.reducers.sum(this.high),
    }


def distinct() -> dict[str, Any]:
    """Return the numbers of different bidders and auctions, of all bids and of each class of prices."""
    counts = dict[str, Any]()
    for name in ("bidder", "auction"):
        column = pw.this[name]
        counts[f"total_{name}s"] = pw.reducers.count_distinct(column)
        for place, chosen in enumerate((pw.this.low, pw.this.middle, pw.this.high), start=1):
            own = pw.reducers.count_distinct(pw.if_else(chosen == 1, column, None))
            counts[f"rank{place}_{name}s"] = own - pw.reducers.max(1 - chosen)  # a null counts as a value
    return counts


def q15(tables: dict[str, Any]) -> Any:
    return ranked(tables["bid"]).groupby(pw.this.day).reduce(pw.this.day, **prices(), **distinct())


def q16(tables: dict[str, Any]) -> Any:
    grouped = ranked(tables["bid"]).groupby(pw.this.channel, pw.this.day)
    return grouped.reduce(
        pw.this.channel, pw.this.day, minute=pw.reducers.max(pw.this.minute), **prices(), **distinct()
    )


def q17(tables: dict[str, Any]) -> Any:
    price = pw.this.price
    return (
        ranked(tables["bid"])
        .groupby(pw.this.auction, pw.this.day)
        .reduce(
            pw.this.auction, pw.this.day, **prices(), min_price=pw.reducers.min(price),
            max_price=pw.reducers.max(price), avg_price=pw.reducers.avg(price), sum_price=pw.reducers.sum(price),
        )
    )  # fmt: skip


def q18(tables: dict[str, Any]) -> Any:
    bid = tables["bid"]
    place = pw.make_tuple(bid.date_time, bid.number)
    last = bid.groupby(bid.bidder, bid.auction).reduce(row=pw.reducers.argmax(place))
    row = bid.ix(last.row)
    return last.select(row.auction, row.bidder, row.price, row.channel, row.url, row.date_time)


def q20(tables: dict[str, Any]) -> Any:
    b, a = tables["bid"], tables["auction"].filter(pw.this.category == 10)
    return b.join(a, b.auction == a.key).select(
        b.auction, b.number, b.bidder, b.price, b.channel, b.url, bid_time=b.date_time,
        item_name=a.item_name, initial_bid=a.initial_bid, reserve=a.reserve, auction_time=a.date_time,
        expires=a.expires, seller=a.seller, category=a.category,
    )  # fmt: skip


VIEWS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "q3": q3, "q4": q4, "q9": q9, "q15": q15, "q16": q16, "q17": q17, "q18": q18, "q20": q20,
}  # fmt: skip


def renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.rename_columns(["key" if name == "id" else name for name in batch.schema.names])


def table(folder: Path, name: str, lines: Lines | None) -> Any:
    with pa.OSFile(str(folder / "base" / f"{name}.arrows")) as file:
        fields = [field for field in renamed(pa.ipc.open_stream(file).read_next_batch()).schema if field.name != SIGN]
    columns = {
        field.name: pw.column_definition(
            dtype=int if pa.types.is_integer(field.type) else str, primary_key=field.name in KEYS[name]
        )
        for field in fields
    }
    schema = pw.schema_builder(columns, name=name)
    return pw.io.python.read(Feeder(folder, name, lines), schema=schema, autocommit_duration_ms=None, name=name)


def main(folder: Path, views: list[str], output: Path | None) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints goes to standard error
    lines = None if output else Lines()
    tables = {name: table(folder, name, lines) for name in KEYS}
    for name, rows in {name: VIEWS[name](tables) for name in views}.items():
        if output:
            pw.io.jsonlines.write(rows, str(output / name))
        else:
            pw.io.null.write(rows)
    for rows in () if views else tables.values():
        pw.io.null.write(rows)
    if lines is not None:
        lines.start()
    print(json.dumps({"pid": os.getpid()}), file=answers, flush=True)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("views", nargs="*")
    parser.add_argument("--output", type=Path)
    main(**vars(parser.parse_args()))
