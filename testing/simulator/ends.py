"""End of a run: what every load and job must have done by then."""

from __future__ import annotations

from collections.abc import Mapping

from .books import Books
from .catalog import Catalog
from .shapes import QUIET_MS, START_MS


def behind(
    books_of: Mapping[str, Books], limits_of: Mapping[str, list[int | None]], catalog: Catalog, now: int
) -> list[str]:
    """Say what has not caught up; nothing when all has."""
    out = []
    for name, books in books_of.items():
        shape, record = books.shape, catalog.records[name]
        limits = limits_of[name]
        made = (QUIET_MS - START_MS) * shape.per_second // 1_000
        for actor in shape.sources:
            limit = shape.rows[actor[1]]
            count = catalog.counts.get((shape.table, actor[1]), 0)
            if count != (made if limit is None else min(made, limit)) and not books.drains:
                out.append(f"{name}: {count} rows of {actor}")
        bounded = all(limit is not None and limit <= made for limit in shape.rows) and not shape.derived
        ends = bounded or books.drains or catalog.inputs_ended(shape, catalog.last_epoch)
        if ends and not record.over:
            out.append(f"{name} has not finished {limits}")
        if not ends and record.over:
            out.append(f"{name} has finished")
        if books.asks and not record.over:
            out.append(f"{name}: {books.asks} forced checkpoints were not served")
    if not catalog.caught_up(now):
        out.append(f"the newest epoch is not valid everywhere, {catalog.last_epoch}")
    return out
