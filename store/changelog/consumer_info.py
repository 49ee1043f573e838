"""Description of a store's consumers: state, position and lag, and the readable part of their logs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochlog.store.catalog.keys import table_key
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.metadata.consumer_record import ConsumerRecord, all_consumers
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.types.epoch import to_unix_ms
from epochlog.store.types.epoch_set import FAR, first_after

from .log_position import Reach, reach

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """State of a consumer at the time of the call; times are Unix milliseconds."""

    name: str
    tables: tuple[str, ...]
    state: str
    """open (a process has it open) | away (no process has; its log is held) | expired (no process has had it open for
    keep_ms; nothing is held) | lost (changes after its position were truncated) | dropped (one of its tables was).
    """
    position: int | None
    """Acknowledged epoch; None: it begins with the tables' rows."""
    incarnation: int
    lag_ms: int | None
    """Age of the oldest change that is not acknowledged, 0 if all are."""
    lag_commits: int | None
    """Number of commits with changes past the position. Both are None without a position."""
    too_old: str
    """Reaction when changes after the position were truncated, "error" or "snapshot"."""
    keep_ms: int | None
    """Time for which it holds its log after it was closed; None: without end."""
    until_ms: int | None
    """Time at which its hold ends unless it is opened again; None: never, or it is open, or holds nothing."""
    acked_ms: int | None
    """Time of the newest acknowledgement; None before the first."""


def list_consumers(handle: Handle) -> list[ConsumerInfo]:
    """Return all consumers of the store, by name."""
    return handle.catalog.read(lambda view: consumers_within(view, handle))


def consumers_within(view: ReadTxn, handle: Handle) -> list[ConsumerInfo]:
    """Return all consumers of the store, by name, within a catalog transaction."""
    return [_consumer_info(handle, view, record) for record in all_consumers(view)]


def consumer_reaches(view: ReadTxn, record: ConsumerRecord) -> Iterator[Reach]:
    """Yield the readable part of each table's log after the consumer's position; nothing if it has no position."""
    if record.position is not None:
        for table_id in record.tables:
            yield reach(view, get_table(view, table_id, f"of consumer {record.name}"), record.position)


def consumer_table_names(view: ReadTxn, record: ConsumerRecord) -> Iterator[str]:
    """Yield the names of the consumer's tables; a dropped table keeps the name in the consumer's record, or its id."""
    for table_id in record.tables:
        table_record = view.get(table_key(table_id))
        if table_record is not None:
            yield TableDef.from_record(table_record).name
        else:
            yield record.dropped or f"table {table_id}"


def _consumer_info(handle: Handle, view: ReadTxn, record: ConsumerRecord) -> ConsumerInfo:
    now_ms, alive = handle.catalog.now_ms(), handle.leases.live
    lag_ms, lag_commits = None, None
    lost = False
    if record.dropped is None and record.position is not None:
        lag_ms, lag_commits = _lag(handle, view, record, record.position, now_ms)
        lost = any(log_reach.lost for log_reach in consumer_reaches(view, record))
    opened = record.open(now_ms, alive)
    idle = "away" if record.at is None or record.holds(now_ms, alive) else "expired"
    state = "dropped" if record.dropped is not None else "lost" if lost else "open" if opened else idle
    return ConsumerInfo(
        record.name,
        tuple(consumer_table_names(view, record)),
        state,
        record.position,
        record.incarnation,
        lag_ms,
        lag_commits,
        record.too_old,
        record.keep_ms,
        None if opened or not record.holds(now_ms, alive) else record.until_ms,
        record.acked_ms or None,
    )


def _lag(handle: Handle, view: ReadTxn, record: ConsumerRecord, position: int, now_ms: int) -> tuple[int, int]:
    """Return (age of the oldest change that is not acknowledged in ms, number of commits with such changes)."""
    oldest, commits = FAR, 0
    for table_id in record.tables:
        version = get_version(view, table_id, "of a consumer")
        changes = handle.memory.of(view, table_id, version.known_from, version.max_committed_epoch).changes
        commits += len(changes) - int(changes.searchsorted(position, "right"))
        oldest = min(oldest, first_after(changes, position) if version.known_from <= position else position + 1)
    return (0 if oldest == FAR else max(0, now_ms - to_unix_ms(int(oldest)))), commits
