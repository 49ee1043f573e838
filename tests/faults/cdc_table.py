"""Part of the story that a table with a sequence plays: its events come late, repeated, and again after a crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import epochlog as el
from cdc import SCHEMA, CdcEvent, contents, deletes, expected, replayed, upserts

CDC = "cdc"
EVENTS = (CdcEvent(1, 3), *(CdcEvent(k, 2 + k % 2, deleted=True) for k in range(9)), CdcEvent(1, 2), CdcEvent(3, 9))
Attempt = Callable[[Callable[[], Any]], Any]


def run_cdc(store: el.Store, attempt: Attempt) -> None:
    """Write each event in a commit of its own: late ones, and enough deletes that their files are merged."""
    table = attempt(lambda: store.create_table(CDC, SCHEMA, ["k"], sequence_by="at", exist_ok=True))
    for event in EVENTS:
        attempt(lambda event=event: write(table, event))
    attempt(lambda: store.compact(CDC, full=True))
    assert contents(table) == expected(EVENTS)


def resume_cdc(store: el.Store) -> None:
    """Recover after a crash: send all events again, in another order."""
    if CDC in {info.name for info in store.tables()}:
        table = store.table(CDC)
        for event in EVENTS[::-1]:
            write(table, event)
        assert contents(table) == expected(EVENTS)


def check_cdc(store: el.Store) -> None:
    """The table is what some first part of the events gives, with a last part that a recovery has sent again; and so is
    its log.
    """
    if CDC in {info.name for info in store.tables()}:
        table = store.table(CDC)
        rows = contents(table)
        ends = range(len(EVENTS) + 1)
        assert any(rows == expected(EVENTS[:first] + EVENTS[last:]) for first in ends for last in ends), rows
        assert replayed(table) == rows


def write(table: el.Table, event: CdcEvent) -> int:
    return table.delete(deletes([event])) if event.deleted else table.upsert(upserts([event]))
