"""Streams of changes of rows with a sequence, and the table that each gives: a model without an order of arrival."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from hypothesis import strategies as st

import epochlog as el

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string()), ("at", pa.int64())])
CHANGES = SCHEMA.append(pa.field("_change_type", pa.string()))
Table = dict[int, tuple[str, int]]


@dataclass(frozen=True)
class CdcEvent:
    """Change of key `k` with the sequence `at`: a row, whose value follows from both, or a delete."""

    k: int
    at: int
    deleted: bool = False

    @property
    def v(self) -> str:
        return f"{self.k}@{self.at}"


def events(keys: int = 4, sequences: int = 8) -> st.SearchStrategy[CdcEvent]:
    return st.builds(CdcEvent, st.integers(0, keys - 1), st.integers(0, sequences - 1), st.booleans())


def expected(arrived: Iterable[CdcEvent]) -> Table:
    """Return the table that these events give: of each key the greatest sequence, and at a tie the delete."""
    newest: dict[int, CdcEvent] = {}
    for event in arrived:
        last = newest.get(event.k)
        if last is None or (event.at, event.deleted) > (last.at, last.deleted):
            newest[event.k] = event
    return {k: (event.v, event.at) for k, event in newest.items() if not event.deleted}


def rows_of(batch: Sequence[CdcEvent]) -> pa.Table:
    """Return the events as rows of a change feed, in their order."""
    return pa.table(
        {
            "k": [event.k for event in batch],
            "v": [None if event.deleted else event.v for event in batch],
            "at": [event.at for event in batch],
            "_change_type": ["delete" if event.deleted else "upsert" for event in batch],
        },
        CHANGES,
    )


def upserts(batch: Sequence[CdcEvent]) -> pa.Table:
    return rows_of([event for event in batch if not event.deleted]).drop_columns(["_change_type"])


def deletes(batch: Sequence[CdcEvent]) -> pa.Table:
    return rows_of([event for event in batch if event.deleted]).select(["k", "at"])


def contents(table: el.Table, epoch: int | None = None) -> Table:
    return {row["k"]: (row["v"], row["at"]) for row in table.to_arrow(epoch=epoch).to_pylist()}


def replayed(table: el.Table, after: int = 0) -> Table:
    """Apply the table's log; fail at a change that changes nothing."""
    state: Table = {}
    for change in table.changes(after).read_all().to_pylist():
        k, row = change["k"], (change["v"], change["at"])
        if change["_change_type"] == "delete":
            assert k in state, f"the log deletes the absent key {k}"
            assert change["v"] is None
            assert change["at"] >= state.pop(k)[1]
        else:
            assert state.get(k) != row, f"the log repeats the row {row}"
            state[k] = row
    return state
