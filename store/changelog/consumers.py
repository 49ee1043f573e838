"""Consumers: durable named cursors over the logs of tables, for readers that go away and come back.

Opening one claims a new incarnation and fences the earlier one. Rules: docs/SEMANTICS.md, 4.11 to 4.17.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Self

from epochlog.errors import Fenced, InvalidInput, LimitExceeded, LogTruncated
from epochlog.store.catalog.keys import after_prefix, consumer_key, hold_key, table_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.env.clock import FOR_EVER, seconds
from epochlog.store.env.failpoints import hit
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.consumer_record import (
    ConsumerRecord,
    all_consumers,
    check_consumer_name,
    get_consumer,
    require_tables,
)
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.lookups import find_table, get_table, get_version
from epochlog.store.session.leases import LEASE_MS
from epochlog.store.types.epoch import as_epoch, show_epoch, to_unix_ms
from epochlog.store.types.epoch_set import FAR, first_after

from .log_position import Reach, reach

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

KEEP = timedelta(days=7)
"""How long a consumer that nobody has open holds its logs, unless it says otherwise."""
MOST_CONSUMERS = 1_000
"""Consumers of one store."""
MOST_FOR_READERS = MOST_CONSUMERS * 3 // 4
"""Consumers that there may be, whoever made them, when somebody who may only read makes one more."""
TOO_OLD = ("error", "snapshot")


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer as of now; times are Unix milliseconds.

    state: "open" (somebody reads under its name), "away" (nobody does; its log is held), "expired" (away for longer
    than keep_ms: nothing is held), "lost" (changes after its position were truncated), "dropped" (a table of it was).
    position: the acknowledged epoch; None: it begins with the tables' rows. lag_ms: the age of the oldest change that
    is not acknowledged, 0 when all are; lag_commits: how many commits with changes there are past the position. Both
    are None while there is no position. until_ms: when it stops holding if nobody comes back, None: never.
    """

    name: str
    tables: tuple[str, ...]
    state: str
    position: int | None
    incarnation: int
    lag_ms: int | None
    lag_commits: int | None
    too_old: str
    keep_ms: int | None
    until_ms: int | None
    acked_ms: int | None


class Consumer:
    """A consumer that is open here, under an incarnation of its own. Safe to use from several threads.

    Close it, or use it in a `with` block; a process that dies leaves it open until its lease ends.
    """

    def __init__(self, handle: Handle, record: ConsumerRecord) -> None:
        self._handle = handle
        self._record = record
        self._position = record.position
        self._closed = False

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def incarnation(self) -> int:
        return self._record.incarnation

    @property
    def position(self) -> int | None:
        """Return the acknowledged epoch known to this object; None: nothing is acknowledged, begin with the tables'
        rows.
        """
        return self._position

    def check(self) -> None:
        """Raise Fenced, ConsumerNotFound or TableDropped unless this incarnation is the newest of the consumer."""
        self._handle.catalog.read(self.mine)

    def mine(self, view: View) -> ConsumerRecord:
        """Return the consumer's record in a read or transaction. Raises Fenced, ConsumerNotFound or TableDropped."""
        record = get_consumer(view, self.name)
        require_tables(record)
        if record.holder != self._record.holder:
            raise _fenced(record, self.incarnation)
        return record

    def ack(self, epoch: int) -> None:
        """Acknowledge all changes through `epoch`: the caller has made their effects durable and needs them no more.

        Durable when it returns. An epoch at or below the position changes nothing. Raises Fenced, ConsumerNotFound,
        TableDropped, and InvalidInput for an epoch that is not there yet or after `close`.
        """
        epoch = as_epoch("epoch", epoch)
        if self._closed:
            raise InvalidInput(
                f"consumer {self.name!r} was closed here; open it again to go on at {show_epoch(self.position)}"
            )
        last = self._handle.catalog.read(lambda view: Counters.read(view).last_epoch)
        if epoch > last:
            raise InvalidInput(
                f"consumer {self.name!r}: epoch {show_epoch(epoch)} is not there yet; the newest is {show_epoch(last)}"
            )

        def body(tx: Txn) -> int:
            record = self.mine(tx)
            if record.position is not None and epoch <= record.position:
                return record.position
            now_ms = self._handle.catalog.now_ms()
            moved = replace(record, position=epoch, snapshot=None, last_ms=now_ms, acked_ms=now_ms)
            tx.put(consumer_key(self.name), moved.to_record())
            return epoch

        self._position = self._handle.catalog.transact(body)
        hit("consumer:acked")

    def begin(self, epoch: int, *, snapshot: bool = False) -> None:
        """Hold the log that a reader with a position of its own needs to go on from `epoch`, even below the earlier
        position. snapshot: the reader is taking in the tables' rows at that epoch, and has acknowledged nothing.
        """

        def body(tx: Txn) -> int | None:
            place = {"position": None, "snapshot": epoch} if snapshot else {"position": epoch, "snapshot": None}
            moved = replace(self.mine(tx), last_ms=self._handle.catalog.now_ms(), **place)
            tx.put(consumer_key(self.name), moved.to_record())
            return moved.position

        self._position = self._handle.catalog.transact(body)

    def close(self) -> None:
        """Release the consumer's lease; a second call does nothing."""
        self._closed = True
        self._handle.leases.release(self._record.holder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<epochlog consumer {self.name} incarnation {self.incarnation} at {self.position}>"


# ---- what users do -----------------------------------------------------------------------------------------------


def open_consumer(
    handle: Handle,
    name: str,
    tables: Sequence[str],
    *,
    too_old: str = "error",
    keep: float | timedelta | None = KEEP,
    states: bool = False,
    incarnation: int | None = None,
    may_write: bool = True,
) -> Consumer:
    """Open the consumer of that name, made if there is none, under a new incarnation: an earlier one is fenced.

    too_old: what to do where changes after its position were truncated while it was away: "error" raises LogTruncated,
    "snapshot" begins anew with the tables' rows. keep: how long (seconds or a timedelta) it may be away before it holds
    the log no longer; None: for good. states: it reads old rows, so where they are not stored with the log, the states
    at its position are held too. What the newest opener says of these counts. may_write: for whom it is made may; who
    may only read leaves a quarter of the places. Raises InvalidName, InvalidInput, LimitExceeded, TableNotFound,
    TableDropped.
    """
    check_consumer_name(name)
    if too_old not in TOO_OLD:
        raise InvalidInput(f"consumer {name!r}: too_old must be one of {TOO_OLD}, not {too_old!r}")
    if isinstance(tables, str) or not tables or len(set(tables)) != len(tables):
        raise InvalidInput(f"consumer {name!r}: tables is a list of one or more different tables, not {tables!r}")
    keep_ms = None if keep is None else _keep_ms(keep)
    holder = handle.new_holder("consumer")

    def body(tx: Txn) -> ConsumerRecord:
        now_ms, known = handle.catalog.now_ms(), tx.get(consumer_key(name))
        if incarnation is not None:
            _require_newest(get_consumer(tx, name), incarnation)
        if known is None:
            record, found = _founded(tx, name, tables, too_old, MOST_CONSUMERS if may_write else MOST_FOR_READERS)
        else:
            record = ConsumerRecord.from_record(known)
            found = _same_tables(tx, record, tables)
        lost = next((one for one in _reaches(tx, record) if one.lost), None)
        if lost is not None:
            if too_old == "error":
                raise _too_old(record, lost)
            record = replace(record, position=None, snapshot=None)
        claimed = replace(
            record,
            too_old=too_old,
            keep_ms=keep_ms,
            states=tuple(table.id for table in found) if states else (),
            incarnation=record.incarnation + 1 if incarnation is None else incarnation,
            holder=holder,
            expires_ms=now_ms + LEASE_MS,
            last_ms=now_ms,
        )
        tx.put(consumer_key(name), claimed.to_record())
        return claimed

    record = handle.catalog.transact(body)
    hit("consumer:opened")
    handle.leases.keep(holder, [consumer_key(name)], at_end="mark")
    return Consumer(handle, record)


def reset_consumer(handle: Handle, name: str, to: str | int) -> None:
    """Move a consumer: to "snapshot" (it begins anew with the tables' rows), "earliest" (what the logs still have),
    "latest" (only what is new from now on), or an epoch. A process that has it open is fenced.

    Raises ConsumerNotFound, TableDropped, InvalidInput, and LogTruncated for an epoch that the logs do not reach.
    """
    if isinstance(to, str) and to not in ("snapshot", "earliest", "latest"):
        raise InvalidInput(f'a consumer is reset to "snapshot", "earliest", "latest" or an epoch, not {to!r}')

    def body(tx: Txn) -> None:
        record = get_consumer(tx, name)
        require_tables(record)
        now_ms = handle.catalog.now_ms()
        moved = replace(
            record,
            position=_target(handle, tx, record, to),
            snapshot=None,
            incarnation=record.incarnation + 1,
            holder="",
            expires_ms=now_ms,
            last_ms=now_ms,
        )
        for lost in (one for one in _reaches(tx, moved) if one.lost):
            raise lost.truncated(f'Reset consumer {name!r} to "earliest" or "snapshot"')
        tx.put(consumer_key(name), moved.to_record())

    handle.catalog.transact(body)


def drop_consumer(handle: Handle, name: str) -> None:
    """Delete the consumer and release its hold on the log. A process that has it open gets ConsumerNotFound."""

    def body(tx: Txn) -> None:
        tx.delete(consumer_key(get_consumer(tx, name).name))

    handle.catalog.transact(body)


def list_consumers(handle: Handle) -> list[ConsumerInfo]:
    """Return all consumers, by name."""
    return handle.catalog.read(lambda view: [_info(handle, view, record) for record in all_consumers(view)])


def _require_newest(record: ConsumerRecord, incarnation: int) -> None:
    if record.incarnation != incarnation:
        raise _fenced(record, incarnation)


def _fenced(record: ConsumerRecord, incarnation: int) -> Fenced:
    return Fenced(
        f"consumer {record.name!r} was reset or taken over: it is at incarnation {record.incarnation}, this one is "
        f"{incarnation} and has no effect any more"
    )


# ---- what it comes to --------------------------------------------------------------------------------------------


def _founded(
    tx: Txn, name: str, tables: Sequence[str], too_old: str, most: int
) -> tuple[ConsumerRecord, list[TableDef]]:
    there = sum(1 for _ in tx.scan(b"consumer/", after_prefix(b"consumer/")))
    if there >= most:
        kept = "" if most == MOST_CONSUMERS else f", and the last {MOST_CONSUMERS - most} places are for who may write"
        raise LimitExceeded(f"there are {there:,} consumers already{kept}; drop one with store.drop_consumer(name)")
    found = [find_table(tx, table) for table in tables]
    position = None
    for table in found:  # before there were records of consumers, a hold without an end was all there was of one
        key = hold_key(table.id, f"consumer:{name}")
        position = (tx.get(key) or {}).get("log_epoch", position)
        tx.delete(key)
    return ConsumerRecord(name, tuple(table.id for table in found), too_old, None, position), found


def _same_tables(view: View, record: ConsumerRecord, tables: Sequence[str]) -> list[TableDef]:
    """Raise InvalidInput unless the consumer reads these tables, TableDropped when one of its own is gone."""
    require_tables(record)
    found = [find_table(view, table) for table in tables]
    if {table.id for table in found} != set(record.tables):
        known = ", ".join(_names(view, record))
        raise InvalidInput(
            f"consumer {record.name!r} reads {known}, not {', '.join(tables)}; take another name, or forget it with "
            f"store.drop_consumer({record.name!r})"
        )
    return found


def _reaches(view: View, record: ConsumerRecord) -> Iterator[Reach]:
    """Yield the readable part of each table's log after the consumer's position; nothing if it has no position."""
    if record.position is not None:
        for table_id in record.tables:
            yield reach(view, get_table(view, table_id, f"of consumer {record.name}"), record.position)


def _too_old(record: ConsumerRecord, lost: Reach) -> LogTruncated:
    name = record.name
    return lost.truncated(
        f"Consumer {name!r} was away for longer than it is kept: begin anew with store.reset_consumer({name!r}, "
        f'"snapshot"), or go on without them with "earliest"; too_old="snapshot" does the first by itself'
    )


def _target(handle: Handle, view: View, record: ConsumerRecord, to: str | int) -> int | None:
    """Return the position that a reset asks for."""
    if to == "snapshot":
        return None
    if to == "earliest":
        return max(get_version(view, table, "of a consumer").log_start for table in record.tables)
    epochs = read_epoch_view(view, handle.memory, handle.catalog.now_ms(), above=record.tables)
    if to == "latest":
        return min(epochs.complete_through(table) for table in record.tables)
    epoch = as_epoch("to", to)
    if epoch > epochs.last_epoch:
        raise InvalidInput(f"epoch {show_epoch(epoch)} is not there yet; the newest is {show_epoch(epochs.last_epoch)}")
    return epoch


def _info(handle: Handle, view: View, record: ConsumerRecord) -> ConsumerInfo:
    now_ms, alive = handle.catalog.now_ms(), handle.leases.live
    lag_ms, commits = None, None
    lost = False
    if record.dropped is None and record.position is not None:
        lag_ms, commits = _lag(handle, view, record, record.position, now_ms)
        lost = any(one.lost for one in _reaches(view, record))
    opened = record.open(now_ms, alive)
    idle = "away" if record.at is None or record.holds(now_ms, alive) else "expired"
    state = "dropped" if record.dropped is not None else "lost" if lost else "open" if opened else idle
    return ConsumerInfo(
        record.name,
        tuple(_names(view, record)),
        state,
        record.position,
        record.incarnation,
        lag_ms,
        commits,
        record.too_old,
        record.keep_ms,
        None if opened or not record.holds(now_ms, alive) else record.until_ms,
        record.acked_ms or None,
    )


def _lag(handle: Handle, view: View, record: ConsumerRecord, position: int, now_ms: int) -> tuple[int, int]:
    """Return (age of the oldest change that is not acknowledged in ms, number of commits with such changes)."""
    oldest, commits = FAR, 0
    for table_id in record.tables:
        version = get_version(view, table_id, "of a consumer")
        changes = handle.memory.of(view, table_id, version.known_from, version.max_committed_epoch).changes
        commits += len(changes) - int(changes.searchsorted(position, "right"))
        oldest = min(oldest, first_after(changes, position) if version.known_from <= position else position + 1)
    return (0 if oldest == FAR else max(0, now_ms - to_unix_ms(int(oldest)))), commits


def _names(view: View, record: ConsumerRecord) -> Iterator[str]:
    for table_id in record.tables:
        found = view.get(table_key(table_id))
        yield TableDef.from_record(found).name if found is not None else record.dropped or f"table {table_id}"


def _keep_ms(keep: float | timedelta) -> int:
    return min(round(seconds(keep, "keep") * 1000), FOR_EVER // timedelta(milliseconds=1))
