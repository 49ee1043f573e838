"""State tables of a view: what its steps keep of groups beside the view's rows. No reader of the view sees them.

Their files lie in the folder of the view's output. A state has no history: a commit of the view replaces it, and its
old files are unreachable. It is used only at the epoch of the view's newest commit, so a commit that leaves it behind,
also one of a release without states, makes it void.
"""

from __future__ import annotations

from dataclasses import dataclass

from epochlog.store.catalog.keys import STATE_PREFIX, state_key, state_table_key, table_prefix
from epochlog.store.catalog.protocol import ReadTxn, Txn, scan_prefix
from epochlog.store.catalog.records import Record, checked
from epochlog.store.sst.segment import Segment
from epochlog.store.types.schema import TableSchema

from .definitions import decoded_schema
from .unreachable_files import mark_unreachable


@dataclass(frozen=True, slots=True)
class StateTable:
    """State table: its columns, and its segments."""

    schema: TableSchema
    segments: tuple[Segment, ...] = ()
    """Oldest first: later segments win."""

    @property
    def rows_at_most(self) -> int:
        return sum(segment.rows - segment.deletes for segment in self.segments)

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    def to_record(self) -> Record:
        return {"schema": self.schema.to_bytes(), "segments": [segment.to_record() for segment in self.segments]}

    @classmethod
    @checked
    def from_record(cls, record: Record) -> StateTable:
        segments = tuple(Segment.from_record(segment) for segment in record["segments"])
        return cls(decoded_schema(record["schema"]), segments)


@dataclass(frozen=True, slots=True)
class ViewState:
    """State of a view."""

    epoch: int
    """Epoch of the view's commit that has it."""
    stamp: str
    """What the view's plan, and all that it reads, were then. A plan of another stamp cannot use the state."""
    tables: tuple[StateTable, ...] = ()
    without: str = ""
    """Why the view keeps no state until it is rebuilt, as a clause; "" if it keeps one."""
    disagreements: int = 0
    """How often changes have not fitted the state, or could not be added, since the view was last rebuilt."""

    @property
    def files(self) -> dict[str, int]:
        """Return the bytes of each file, by path."""
        return {segment.path: segment.bytes for segment in self.segments}

    @property
    def segments(self) -> list[Segment]:
        """Return the segments of all tables."""
        return [segment for table in self.tables for segment in table.segments]

    def new_segments(self, before: ViewState | None) -> list[Segment]:
        """Return the segments of files that the state before does not have."""
        known = {} if before is None else before.files
        return [segment for segment in self.segments if segment.path not in known]

    def to_record(self) -> Record:
        """Return the state as a report of a worker has it: without an epoch, which its commit gives it."""
        tables = [table.to_record() for table in self.tables]
        return {**_head(self, ("stamp", "without", "disagreements")), "tables": tables}

    @classmethod
    @checked
    def from_record(cls, record: Record) -> ViewState:
        tables = tuple(StateTable.from_record(table) for table in record["tables"])
        return cls(0, record["stamp"], tables, record["without"], record["disagreements"])


@dataclass(frozen=True, slots=True)
class StateWrites:
    """State that a refresh has computed, for the commit of its view."""

    kept: ViewState | None = None
    """State after the refresh; None if the view keeps none."""
    segments: tuple[Segment, ...] = ()
    """Segments of new files for it, also those that it has not any more."""

    def unrecorded(self, *, is_last: bool) -> list[Segment]:
        """Return the segments that the commit has not recorded: a merge has replaced them in the same step, or the view
        keeps no state. is_last: the view has finished, and keeps none.
        """
        recorded = {} if self.kept is None or is_last else self.kept.files
        return [segment for segment in self.segments if segment.path not in recorded]


NO_STATE = StateWrites()
"""Writes of a refresh that keeps no state."""


def read_state(view: ReadTxn, table_id: int) -> ViewState | None:
    """Return the state of the view with this output; None without one. It may be of an earlier commit."""
    head = view.get(state_key(table_id))
    if head is None:
        return None
    tables = _tables(view, table_id)
    return ViewState(int(head["epoch"]), str(head["stamp"]), tables, str(head["without"]), int(head["disagreements"]))


def replace_state(tx: Txn, table_id: int, state: ViewState | None, now_ms: int) -> None:
    """Put a view's state in place of the one before; None: the view keeps none. Files that it leaves are unreachable.
    Call inside a transaction that moves the counters.
    """
    head = tx.get(state_key(table_id))
    if state is None and (head is None or head["without"]):
        return
    before = ViewState(0, "") if head is None else ViewState(0, "", _tables(tx, table_id))
    after = state or ViewState(0, "")
    left = {path: size for path, size in before.files.items() if path not in after.files}
    mark_unreachable(tx, table_id, left.items(), now_ms)
    for number, table in enumerate(after.tables):
        if number >= len(before.tables) or table != before.tables[number]:
            tx.put(state_table_key(table_id, number), table.to_record())
    for number in range(len(after.tables), len(before.tables)):
        tx.delete(state_table_key(table_id, number))
    if state is None:
        tx.delete(state_key(table_id))
    else:
        tx.put(state_key(table_id), _head(state, ("epoch", "stamp", "without", "disagreements")))


def _head(state: ViewState, names: tuple[str, ...]) -> Record:
    return {name: getattr(state, name) for name in names}


def _tables(view: ReadTxn, table_id: int) -> tuple[StateTable, ...]:
    return tuple(
        StateTable.from_record(record) for _, record in scan_prefix(view, table_prefix(STATE_PREFIX, table_id))
    )
