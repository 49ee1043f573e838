"""Checks at the end of a run: every load and job has taken in all its input."""

from __future__ import annotations

from collections.abc import Mapping

from .books import Books
from .catalog import SimulatedCatalog
from .shapes import QUIET_MS, START_MS


def unfinished_work(
    books_of: Mapping[str, Books], limits_of: Mapping[str, list[int | None]], catalog: SimulatedCatalog, now: int
) -> list[str]:
    """Return a sentence for each load or job that has not caught up."""
    findings = []
    for name, books in books_of.items():
        shape, record = books.shape, catalog.records[name]
        limits = limits_of[name]
        rows_made = (QUIET_MS - START_MS) * shape.per_second // 1_000
        for actor in shape.sources:
            limit = shape.rows[actor[1]]
            count = catalog.counts.get((shape.table, actor[1]), 0)
            if count != (rows_made if limit is None else min(rows_made, limit)) and not books.drains:
                findings.append(f"{name}: {count} rows of {actor}")
        bounded = all(limit is not None and limit <= rows_made for limit in shape.rows) and not shape.derived
        ends = bounded or books.drains or catalog.inputs_ended(shape, catalog.last_epoch)
        if ends and not record.over:
            findings.append(f"{name} has not finished {limits}")
        if not ends and record.over:
            findings.append(f"{name} has finished")
        if books.pending_forced and not record.over:
            findings.append(f"{name}: {books.pending_forced} forced checkpoints were not served")
    if not catalog.caught_up(now):
        findings.append(f"the newest epoch is not valid everywhere, {catalog.last_epoch}")
    return findings
