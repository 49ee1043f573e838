"""P11: the aligned choice over 100 tables that each remember 10,000 epochs."""

from __future__ import annotations

import pytest
from pairs import ReplayClock, measure
from report import Book, Figure, Target
from table_epochs import TABLES, lineage, sharing_one

from epochlog.batch.policy import Aligned
from epochlog.store.epochs.view import EpochView

EPOCHS = 10_000
WHO = ("choice of all", "choice, view made anew")


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
