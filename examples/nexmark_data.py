"""Events of Nexmark as tables of a store: people, the auctions that they open, and the bids on these.

Written after Nexmark's public description, with numpy. Of 50 events one is a person, three are auctions and 46 are
bids; 10,000 events make a second. Half of the bids are on a hot auction, three in four by a hot bidder, and three in
four auctions are by a hot seller. The others are on one of the 100 newest auctions, or of the ten that follow, and by
one of the 1,000 newest people. Ids start at 1,000, categories at 10. Bids have a number, as rows of a store have a key.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

FIRST_ID, FIRST_CATEGORY, CATEGORIES = 1000, 10, 5
PEOPLE, AUCTIONS, BIDS = 1, 3, 46
EVENTS = PEOPLE + AUCTIONS + BIDS
HOT_AUCTION, HOT_SELLER, HOT_BIDDER = 2, 4, 4  # one in so many is not of a hot one
HOT_OF = 100  # one auction and one person of so many is hot
IN_FLIGHT, ACTIVE, LEAD = 100, 1000, 10
EVENT_US = 100
START = np.datetime64("2026-01-01T00:00:00", "us")
STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
]
CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
INSTANT = pa.timestamp("us", "UTC")
SCHEMAS = {
    "person": pa.schema([
        pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("city", pa.string()),
        ("state", pa.string()), ("date_time", INSTANT),
    ]),
    "auction": pa.schema([
        pa.field("id", pa.int64(), nullable=False), ("item_name", pa.string()), ("initial_bid", pa.int64()),
        ("reserve", pa.int64()), ("date_time", INSTANT), ("expires", INSTANT), ("seller", pa.int64()),
        ("category", pa.int64()),
    ]),
    "bid": pa.schema([
        pa.field("auction", pa.int64(), nullable=False), pa.field("number", pa.int64(), nullable=False),
        ("bidder", pa.int64()), ("price", pa.int64()), ("channel", pa.string()), ("url", pa.string()),
        ("date_time", INSTANT),
    ]),
}  # fmt: skip
KEYS = {"person": ["id"], "auction": ["id"], "bid": ["auction", "number"]}


class Events:
    """Generator of the events of one seed, in order."""

    def __init__(self, seed: int) -> None:
        self._chance = np.random.default_rng(seed)

    def batches(self, first: int, count: int, size: int) -> Iterator[dict[str, pa.Table]]:
        """Generate `count` events from the number `first` on, in batches of `size`: for each table its new rows."""
        end = first + count
        for at in range(first, end, size or 1):
            yield self._batch(np.arange(at, min(at + size, end)))

    def _batch(self, events: np.ndarray) -> dict[str, pa.Table]:
        kind = events % EVENTS
        return {
            "person": self._people(events[kind < PEOPLE]),
            "auction": self._auctions(events[(kind >= PEOPLE) & (kind < PEOPLE + AUCTIONS)]),
            "bid": self._bids(events[kind >= PEOPLE + AUCTIONS]),
        }

    def _people(self, events: np.ndarray) -> pa.Table:
        ids = FIRST_ID + newest_person(events)
        cities = self._choice(CITIES, len(events))
        names = [f"person {number}" for number in ids]
        return table("person", ids, names, cities, self._choice(STATES, len(events)), instants(events))

    def _auctions(self, events: np.ndarray) -> pa.Table:
        ids = FIRST_ID + newest_auction(events)
        newest = newest_person(events)
        hot = self._chance.integers(HOT_SELLER, size=len(events)) > 0
        sellers = FIRST_ID + np.where(hot, newest // HOT_OF * HOT_OF, self._active(newest))
        first_bids = self._prices(len(events))
        horizon = IN_FLIGHT * EVENTS // AUCTIONS * EVENT_US
        lengths = 1000 * (1 + self._chance.integers(0, 2 * horizon // 1000, len(events)))
        names = [f"item {number}" for number in ids]
        categories = FIRST_CATEGORY + self._chance.integers(0, CATEGORIES, len(events))
        began, reserves = instants(events), first_bids + self._prices(len(events))
        return table("auction", ids, names, first_bids, reserves, began, began + lengths, sellers, categories)

    def _bids(self, events: np.ndarray) -> pa.Table:
        count, newest, person = len(events), newest_auction(events), newest_person(events)
        hot = self._chance.integers(HOT_AUCTION, size=count) > 0
        oldest = np.maximum(newest - IN_FLIGHT, 0)
        other = oldest + self._chance.integers(0, newest - oldest + 1 + LEAD)
        auctions = FIRST_ID + np.where(hot, newest // HOT_OF * HOT_OF, other)
        hot = self._chance.integers(HOT_BIDDER, size=count) > 0
        bidders = FIRST_ID + np.where(hot, person // HOT_OF * HOT_OF + 1, self._active(person))
        channels = self._choice(CHANNELS, count)
        urls = [
            f"https://auctions.example/{channel}/{number % 1000}"
            for channel, number in zip(channels, events, strict=True)
        ]
        return table("bid", auctions, events, bidders, self._prices(count), channels, urls, instants(events))

    def _active(self, newest: np.ndarray) -> np.ndarray:
        """Choose people among the active ones, and those that follow."""
        oldest = np.maximum(newest - ACTIVE, 0)
        return oldest + self._chance.integers(0, newest - oldest + 1 + LEAD)

    def _prices(self, count: int) -> np.ndarray:
        return np.round(10 ** (self._chance.random(count) * 6) * 100).astype(np.int64)

    def _choice(self, texts: list[str], count: int) -> list[str]:
        return np.array(texts, dtype=object)[self._chance.integers(0, len(texts), count)].tolist()


def newest_person(events: np.ndarray) -> np.ndarray:
    """Return the number of the newest person at each event."""
    return events // EVENTS


def newest_auction(events: np.ndarray) -> np.ndarray:
    """Return the number of the newest auction at each event; 0 before the first."""
    place = np.minimum(events % EVENTS - PEOPLE, AUCTIONS - 1)
    return np.maximum(events // EVENTS * AUCTIONS + place, 0)


def instants(events: np.ndarray) -> np.ndarray:
    return START + events * EVENT_US


def table(name: str, *columns: object) -> pa.Table:
    schema = SCHEMAS[name]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)
