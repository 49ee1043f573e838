"""Mutants of compaction, and the random histories that catch them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.compaction import rewriter, subcompactions
from epochlog.store.compaction.executor import compact_table
from epochlog.store.compaction.rewriter import Source
from epochlog.store.compaction.universal import UniversalStrategy
from epochlog.store.metadata.lookups import find_table
from epochlog.store.metadata.version import TableVersion
from epochlog.store.sst.merge import Rows
from epochlog.store.types.epoch import EPOCH_ORIGIN_MS
from faults.mutant import Mutant

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("n", pa.int64())])
HISTORY_MS = 400


def random_histories(base: Path) -> None:
    """Commits and slices of compactions in any order: every epoch that is readable reads as it was."""
    for seed in range(4):
        one_history(base / str(seed), seed)


def one_history(root: Path, seed: int) -> None:
    rng, now_ms = random.Random(seed), EPOCH_ORIGIN_MS + 1_000_000

    def clock() -> int:
        return now_ms

    with pytest.MonkeyPatch.context() as patch, el.open(root, durability="os", clock=clock) as store:
        patch.setattr(subcompactions, "SUBCOMPACTION_ROWS", 9)
        patch.setattr(rewriter, "PART_ROWS", 7)
        options = el.TableOptions(history_retention=timedelta(milliseconds=HISTORY_MS), compact_segments=2)
        table = store.create_table("t", SCHEMA, ["id"], options=options)
        definition = store._handle.catalog.read(lambda view: find_table(view, "t"))
        state: dict[int, int] = {}
        states: dict[int, dict[int, int]] = {}
        for n in range(60):
            now_ms += rng.randint(1, 30)
            ids = rng.sample(range(40), rng.randint(1, 8))
            if rng.random() < 0.3:
                epoch = table.delete(pa.table({"id": ids}))
                state = {key: value for key, value in state.items() if key not in ids}
            else:
                epoch = table.upsert(pa.table({"id": ids, "n": [n] * len(ids)}, schema=SCHEMA))
                state = {**state, **dict.fromkeys(ids, n)}
            states[epoch] = state
            if rng.random() < 0.5:
                budget = rng.choice([None, 1, 3])
                compact_table(store._handle, definition, l0_only=rng.random() < 0.5, budget=budget)
            check(table, states, rng.sample(sorted(states), min(2, len(states))), seed)
        check(table, states, sorted(states), seed)


def check(table: el.Table, states: dict[int, dict[int, int]], epochs: Sequence[int], seed: int) -> None:
    safe = table.info.safe_epoch
    for epoch in epochs:
        if epoch >= safe:
            result = table.to_arrow(epoch=epoch)
            rows = dict(zip(result["id"].to_pylist(), result["n"].to_pylist(), strict=True))
            assert rows == states[epoch], f"seed {seed}: at {epoch}"
            assert result["id"].to_pylist() == sorted(rows), f"seed {seed}: at {epoch}, each key once and in order"


# ---- bugs ----------------------------------------------------------------------------------------------------------


def deletes_go_above_the_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rewriter.Rewriter.rewrite
    monkeypatch.setattr(
        rewriter.Rewriter, "rewrite", lambda *args, **options: real(*args, **{**options, "bottom": True})
    )


def history_is_dropped_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rewriter.visible_history

    def early(history: Sequence[Rows], safe_epoch: int, kept: Sequence[int] = (), *, bottom: bool) -> Rows | None:
        ends = [rows.data.column("_until").to_numpy() for rows in history]
        later = int(np.median(np.concatenate(ends))) if ends else 0
        return real(history, max(safe_epoch, later), kept, bottom=bottom)

    monkeypatch.setattr(rewriter, "visible_history", early)


def a_row_ends_when_it_was_replaced_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when it was replaced first: two versions of one key are visible at once."""
    monkeypatch.setattr(rewriter, "_first_epochs", lambda source: source.live.data.column("_epoch").to_numpy())


def the_lower_source_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rewriter._merge_over
    monkeypatch.setattr(rewriter, "_merge_over", lambda lower, upper: real(upper, lower))


def what_a_run_replaces_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    real = rewriter._merge_over

    def forgetful(lower: Source, upper: Source) -> Source:
        return replace(real(lower, upper), history=(*lower.history, *upper.history))

    monkeypatch.setattr(rewriter, "_merge_over", forgetful)


def parts_are_kept_though_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subcompactions, "_touched", lambda span, spans: False)


def pieces_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    real = subcompactions._split

    def wide(*args: Any) -> list[subcompactions.Subcompaction]:
        return [piece if piece.high is None else replace(piece, high=piece.high + 1) for piece in real(*args)]

    monkeypatch.setattr(subcompactions, "_split", wide)


def the_safe_epoch_is_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    real = UniversalStrategy.pick

    def greedy(self: UniversalStrategy, version: TableVersion, *args: Any, **options: Any) -> Any:
        return real(self, replace(version, safe_epoch=version.max_committed_epoch), *args, **options)

    monkeypatch.setattr(UniversalStrategy, "pick", greedy)


MUTANTS = [
    Mutant("deletes-go-above-the-bottom", deletes_go_above_the_bottom, random_histories),
    Mutant("history-is-dropped-too-early", history_is_dropped_too_early, random_histories),
    Mutant("a-row-ends-when-it-was-replaced-last", a_row_ends_when_it_was_replaced_last, random_histories),
    Mutant("the-lower-source-wins", the_lower_source_wins, random_histories),
    Mutant("what-a-run-replaces-is-forgotten", what_a_run_replaces_is_forgotten, random_histories),
    Mutant("parts-are-kept-though-touched", parts_are_kept_though_touched, random_histories),
    Mutant("pieces-overlap", pieces_overlap, random_histories),
    Mutant("the-safe-epoch-is-the-newest", the_safe_epoch_is_the_newest, random_histories),
]
