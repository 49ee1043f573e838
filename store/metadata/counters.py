"""Advance of the store's counters, in every transaction that changes the data visible to readers."""

from __future__ import annotations

from dataclasses import replace

from epochlog.store.catalog.keys import HEAD, table_key
from epochlog.store.catalog.protocol import Txn

from .definitions import Counters
from .lookups import all_tables


def move_counters(txn: Txn, counters: Counters, last_epoch: int | None = None) -> int:
    """Advance the store's counters and return the new version. Call it in every transaction that changes the data
    visible to readers.
    """
    newest = counters.last_epoch if last_epoch is None else max(counters.last_epoch, last_epoch)
    if newest and not counters.last_epoch:
        _lower_created(txn, newest)
    advanced = replace(counters, last_epoch=newest, version=counters.version + 1)
    txn.put(HEAD, advanced.to_record())
    return advanced.version


def _lower_created(txn: Txn, first: int) -> None:
    """Lower `created` of every table to the first epoch of the store. A label, or a clock set back, may put that epoch
    before the creation of the tables.
    """
    for table in list(all_tables(txn)):
        if table.created > first:
            txn.put(table_key(table.id), replace(table, created=first).to_record())
