"""Epochs of 100 tables that hinder one another: what a policy chooses from, made without a store."""

from __future__ import annotations

import numpy as np

from epochlog.store.epochs.table_epochs import TableEpochs
from epochlog.store.epochs.view import EpochView
from epochlog.store.types.epoch import EPOCH_ORIGIN_MS, from_unix_ms

TABLES, ROOTS = 100, 20


def epochs(ms: np.ndarray) -> np.ndarray:
    return np.array([from_unix_ms(EPOCH_ORIGIN_MS + int(at)) for at in ms], np.int64)


def lineage(commits: int) -> EpochView:
    """20 root tables that change at any time; 80 views, each of two tables before it, which commit at seconds of
    their own choice: they hinder one another, so that the newest epochs are not valid.
    """
    chance, tables = np.random.default_rng(11), {}
    last_ms = commits * 1000
    for table_id in range(1, TABLES + 1):
        derived = table_id > ROOTS
        if derived:
            ups = tuple(sorted(int(up) for up in chance.choice(np.arange(1, table_id), 2, replace=False)))
            ms = np.sort(chance.choice(commits, round(commits * 0.9), replace=False)) * 1000
        else:
            ups, ms = (), np.sort(chance.choice(last_ms, commits, replace=False))
        at = epochs(ms)
        tables[table_id] = TableEpochs(table_id, f"t{table_id}", derived=derived, upstreams=ups, commits=at, changes=at)
    return EpochView(from_unix_ms(EPOCH_ORIGIN_MS + last_ms), EPOCH_ORIGIN_MS + last_ms, tables)


def sharing_one(view: EpochView, ms: int = 0) -> EpochView:
    """Add a commit of every table `ms` after the first epoch, so that at least one epoch is valid for all tables."""
    shared = from_unix_ms(EPOCH_ORIGIN_MS + ms) + 1
    tables = {}
    for table in view.tables.values():
        at = np.unique(np.append(table.commits, shared))
        tables[table.table_id] = TableEpochs(
            table.table_id, table.name, derived=table.derived, upstreams=table.upstreams, commits=at, changes=at
        )
    return EpochView(view.last_epoch, view.clock_ms, tables)
