"""History of tables without a history_retention: rows of two days while they take little space, else of one hour."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pytest

import epochlog as el
from epochlog.store.catalog.keys import kept_history_key, table_key
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table, get_runs, get_version
from epochlog.store.retention import kept_history
from epochlog.store.retention.kept_history import SMALL_BYTES, HistorySize, KeptHistory, next_history
from epochlog.store.retention.retention import apply_retention
from epochlog.store.types.epoch import to_unix_ms
from lab import Lab

T = TypeVar("T")
M = 1 << 20
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
QUICK = el.TableOptions(compact_segments=1)
KEYS = 30_000
"""Rows of a table whose files are larger than what every table may keep of replaced rows."""


def of_table(lab: Lab, body: Callable[[ReadTxn, TableDef], T]) -> T:
    return lab.store._handle.catalog.read(lambda view: body(view, find_table(view, "r")))


def kept_ms(lab: Lab) -> int:
    """Return the age of the oldest epoch that can be read."""

    def oldest(view: ReadTxn, table: TableDef) -> int:
        return max(get_version(view, table.id, "r").safe_epoch, table.created)

    return lab.now_ms - to_unix_ms(of_table(lab, oldest))


def history_retention(lab: Lab) -> timedelta | None:
    return of_table(lab, lambda _, table: table.options.history_retention)


def maintain(lab: Lab) -> None:
    lab.store.compact("r")
    apply_retention(lab.store._handle, of_table(lab, lambda _, table: table))


def live(lab: Lab, hours: float, keys: int, every_ms: int = 20 * MINUTE_MS) -> None:
    """Replace the first rows every so often for some hours, with maintenance after each commit."""
    end_ms = lab.now_ms + hours * HOUR_MS
    while lab.now_ms < end_ms:
        lab.now_ms += every_ms
        put(lab, keys)
        maintain(lab)


def put(lab: Lab, keys: int) -> None:
    """Replace the first rows by random ones."""
    values = np.random.default_rng(lab.now_ms).integers(0, 2**40, (2, keys))
    rows = {"k": np.arange(keys), "g": values[0], "v": values[1]}
    lab.store.table("r").upsert(pa.table({name: pa.array(column, pa.int64()) for name, column in rows.items()}))


@pytest.mark.rule("2.13")
@pytest.mark.medium
def test_yesterday_can_be_restored_where_little_changes(lab: Lab) -> None:
    table = lab.root_table(options=QUICK)
    put(lab, KEYS)
    live(lab, 6, 1, HOUR_MS)
    noon = lab.rows("r")
    at = datetime.fromtimestamp(lab.now_ms / 1000, UTC)
    live(lab, 24, 1, HOUR_MS)
    assert lab.rows("r") != noon
    table.restore(at)
    assert lab.rows("r") == noon
    live(lab, 24, 1, HOUR_MS)
    assert 47 * HOUR_MS <= kept_ms(lab) <= 49 * HOUR_MS, "and of not more than two days"


@pytest.mark.rule("2.13")
def test_a_table_whose_rows_are_all_replaced_keeps_an_hour(lab: Lab) -> None:
    lab.root_table(options=QUICK)
    put(lab, KEYS)
    live(lab, 5, KEYS)
    assert HOUR_MS <= kept_ms(lab) <= 2 * HOUR_MS
    assert len(lab.rows("r", lab.store.table("r").info.safe_epoch)) == KEYS


@pytest.mark.rule("2.13")
@pytest.mark.medium
def test_compactions_alone_release_what_has_become_too_large(lab: Lab) -> None:
    """No maintenance, `compact` or retention runs: the commits compact, as those of a pipeline do."""
    lab.root_table(options=el.TableOptions(compact_segments=1, max_segments=1))
    for _ in range(13):
        put(lab, KEYS)
        lab.now_ms += 30 * MINUTE_MS
    assert HOUR_MS <= kept_ms(lab) <= 2 * HOUR_MS
    size = of_table(lab, lambda view, table: HistorySize.of(get_runs(view, table.id)))
    assert size.history < 5 * size.live, "rows of an hour and a half"


@pytest.mark.rule("2.13")
@pytest.mark.medium
def test_a_long_history_is_released_as_slowly_as_it_was_earned(lab: Lab) -> None:
    lab.root_table(options=QUICK)
    put(lab, KEYS)
    live(lab, 10, 1, HOUR_MS)
    earned_ms, began_ms = kept_ms(lab), lab.now_ms
    assert earned_ms >= 10 * HOUR_MS
    while kept_ms(lab) > 1.5 * HOUR_MS:
        before_ms, then_ms = kept_ms(lab), lab.now_ms
        live(lab, 0.5, KEYS, 30 * MINUTE_MS)
        assert before_ms - kept_ms(lab) <= lab.now_ms - then_ms + HOUR_MS / 2, "an epoch is that of a commit"
    assert lab.now_ms - began_ms >= 8 * HOUR_MS
    live(lab, 3, 0, HOUR_MS)
    assert kept_ms(lab) > 2 * HOUR_MS, "it grows again when there is little to keep"


def test_the_length_is_at_least_an_hour_and_never_falls_faster_than_it_rose() -> None:
    """Random sizes and visits, with clocks that go back."""
    rng = random.Random(seed := random.SystemRandom().randrange(2**32))
    print("seed", seed)
    for _ in range(200):
        now_ms = oldest_ms = 1_800_000_000_000
        recorded: KeptHistory | None = None
        turned_ms = oldest_ms
        for _ in range(60):
            now_ms += round(rng.choice([1, MINUTE_MS, HOUR_MS, 9 * HOUR_MS, -HOUR_MS]) * rng.random())
            size = HistorySize(M * rng.choice([0, 70, 80, 100, 101, 500]), M * rng.choice([0, 100]))
            decided = next_history(recorded, size, oldest_ms, now_ms)
            edge_ms = decided.edge_at(now_ms)
            assert HOUR_MS <= now_ms - edge_ms <= 48 * HOUR_MS
            if recorded is not None and not recorded.grows:
                fastest_ms = recorded.edge_ms + 2 * max(0, now_ms - turned_ms)
                assert edge_ms <= max(fastest_ms, now_ms - 48 * HOUR_MS, oldest_ms), (recorded, decided)
            if recorded is None or decided.grows != recorded.grows:
                recorded, turned_ms = decided, now_ms
            oldest_ms = max(oldest_ms, min(edge_ms, now_ms))


@pytest.mark.parametrize("history, live, growing, grows", [
    (0, 0, True, True), (100 * M, 100 * M, True, True), (101 * M, 100 * M, True, False), (M, 0, True, False),
    (80 * M, 100 * M, False, False), (75 * M, 100 * M, False, False), (74 * M, 100 * M, False, True),
    (0, 0, False, True), (SMALL_BYTES, 0, True, True), (SMALL_BYTES + 1, 0, True, False),
])  # fmt: skip
def test_it_turns_at_the_size_of_the_rows_and_turns_back_at_three_quarters(
    history: int, live: int, growing: bool, grows: bool
) -> None:
    assert HistorySize(history, live).grows(growing=growing) == grows


@pytest.mark.medium
def test_tables_of_earlier_releases_and_explicit_options_keep_theirs(lab: Lab) -> None:
    """An earlier release stores no choice; its tables have the hour, also for scripts that leave the option out."""
    table = lab.root_table(options=QUICK)
    handle = lab.store._handle

    def as_before(tx) -> None:
        key = table_key(find_table(tx, "r").id)
        record = tx.get(key)
        assert record["options"].pop("history") == "auto"
        assert record["options"]["history_ms"] == HOUR_MS, "what an earlier release would keep"
        tx.put(key, record)

    handle.catalog.transact(as_before)
    assert history_retention(lab) == timedelta(hours=1)
    lab.root_table(options=QUICK, exist_ok=True)
    assert history_retention(lab) == timedelta(hours=1), "a script of before goes on, and changes nothing"
    put(lab, KEYS)
    live(lab, 4, 1)
    assert kept_ms(lab) < 2 * HOUR_MS
    table.alter(options=QUICK)
    assert history_retention(lab) is None
    live(lab, 4, 1)
    assert kept_ms(lab) > 4 * HOUR_MS


@pytest.mark.medium
def test_the_record_goes_with_its_table(lab: Lab) -> None:
    lab.root_table(options=QUICK)
    put(lab, KEYS)
    live(lab, 3, KEYS)
    key = kept_history_key(of_table(lab, lambda _, table: table.id))
    handle = lab.store._handle
    assert handle.catalog.read(lambda view: view.get(key))["grows"] is False
    lab.store.drop_table("r")
    assert handle.catalog.read(lambda view: view.get(key)) is None


def released_at_once(before: KeptHistory | None, size: HistorySize, oldest_ms: int, now_ms: int) -> KeptHistory:
    """Plant: a history that became too large falls to an hour at once."""
    decided = next_history(before, size, oldest_ms, now_ms)
    return decided if decided.grows else replace(decided, edge_ms=now_ms)


@pytest.mark.planted
@pytest.mark.medium
def test_a_planted_error_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_history, "next_history", released_at_once)
    with pytest.raises(AssertionError):
        test_a_long_history_is_released_as_slowly_as_it_was_earned(lab)
