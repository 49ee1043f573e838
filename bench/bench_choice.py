"""P11: the aligned choice over 100 tables that each remember 10,000 epochs."""

from __future__ import annotations

import numpy as np
import pytest
from pairs import ReplayClock, measure
from report import Book, Figure, Target

from epochlog.batch.policy import Aligned
from epochlog.store.epochs.table_epochs import TableEpochs
from epochlog.store.epochs.view import EpochView
from epochlog.store.types.epoch import EPOCH_ORIGIN_MS, from_unix_ms

TABLES, EPOCHS, ROOTS = 100, 10_000, 20
WHO = ("choice of all", "choice, view made anew")


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


def sharing_one(view: EpochView) -> EpochView:
    """Add a commit of every table at the first epoch, so that at least one epoch is valid for all tables."""
    shared = from_unix_ms(EPOCH_ORIGIN_MS) + 1
    tables = {}
    for table in view.tables.values():
        at = np.unique(np.append(table.commits, shared))
        tables[table.table_id] = TableEpochs(
            table.table_id, table.name, derived=table.derived, upstreams=table.upstreams, commits=at, changes=at
        )
    return EpochView(view.last_epoch, view.clock_ms, tables)


@pytest.fixture(scope="module")
def figure(scale: float, book: Book) -> Figure:
    epochs_each = max(20, round(EPOCHS * scale))
    view = sharing_one(lineage(epochs_each))
    names = list(view.ids)
    chosen = Aligned().choose(view, names)
    assert len(set(chosen.values())) == 1
    assert all(view.valid(name, chosen[name]) for name in names)

    def anew() -> dict[str, int]:
        return Aligned().choose(EpochView(view.last_epoch, view.clock_ms, view.tables), names)

    samples = measure({WHO[0]: lambda: Aligned().choose(view, names), WHO[1]: anew}, 15 if scale >= 1 else 3)
    targets = tuple(Target(who, None, 10, "≤ 10 ms") for who in WHO)
    choice_figure = Figure("P11", f"aligned choice over {TABLES} tables × {epochs_each:,} epochs", samples, targets)
    book.add(choice_figure)
    return choice_figure


@pytest.mark.parametrize("who", WHO)
def test_p11_choice(who: str, clock: ReplayClock, benchmark, figure: Figure) -> None:
    clock.play(benchmark, figure.samples[who])
