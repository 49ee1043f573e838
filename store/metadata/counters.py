"""Advance of the store's counters, a part of every transaction that changes the data that readers may reach."""

from __future__ import annotations

from dataclasses import replace

from epochlog.store.catalog.keys import HEAD, table_key
from epochlog.store.catalog.protocol import Txn

from .definitions import Counters
from .lookups import all_tables


def move_counters(txn: Txn, counters: Counters, last_epoch: int | None = None) -> int:
    """Advance the store's counters and return its new version. Part of every transaction that changes the data that
    readers may reach.
    """
    at = counters.last_epoch if last_epoch is None else max(counters.last_epoch, last_epoch)
    if at and not counters.last_epoch:
        _lower_created(txn, at)
    moved = replace(counters, last_epoch=at, version=counters.version + 1)
    txn.put(HEAD, moved.to_record())
    return moved.version


def _lower_created(txn: Txn, first: int) -> None:
    """Let every table be there at the first epoch of the store: a label, or a clock set back, may put it before now."""
    for table in list(all_tables(txn)):
        if table.created > first:
            txn.put(table_key(table.id), replace(table, created=first).to_record())
