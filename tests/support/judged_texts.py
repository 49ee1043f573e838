"""All texts of views that tests judge without Spark, by the set of tables that they read."""

from __future__ import annotations

from collections.abc import Iterator

import view_worlds
from confirmed import kept
from view_cases import COUNTED, OF_AN_OUTER_JOIN, OF_KEYS, OF_OTHERS, OF_ROWS
from view_queries import random_query, random_sums
from view_texts import TEXTS
from view_ties import TIES, certain_part

QUERIES, SUMS = 300, 60
"""Numbers of the random queries, and of the random sums, that tests without Spark play. Their seeds begin at 0."""


def texts_of_sets() -> dict[str, list[str]]:
    """Return the texts of each set of tables, in one order."""
    texts: dict[str, dict[str, None]] = {}
    for text in TEXTS.values():
        texts.setdefault(text.tables, {})[text.asked] = None
    texts["integers"].update(dict.fromkeys(_of_integers()))
    worlds = {f"world {number}": world.texts for number, world in enumerate(view_worlds.worlds())}
    pairs = list(kept("pairs", of_any_spark=True).replies)
    return {**{name: list(of_set) for name, of_set in texts.items()}, **worlds, "pairs": pairs}


def _of_integers() -> Iterator[str]:
    yield from (*OF_KEYS.values(), *OF_OTHERS.values(), OF_AN_OUTER_JOIN, COUNTED)
    yield from (sql for sql, _ in OF_ROWS.values())
    yield from (certain_part(*case) for case in TIES.values() if case[1])
    yield from random_texts()


def random_texts() -> Iterator[str]:
    """Yield the texts of the random queries and sums."""
    yield from (random_query(seed).sql for seed in range(QUERIES))
    yield from (random_sums(seed).sql for seed in range(SUMS))
