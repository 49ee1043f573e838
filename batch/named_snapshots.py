"""Named snapshots: the epochs of a token held under a name for a given time, without a process.

A named snapshot is one hold of each of its tables, on rows alone: each use of the token plans anew, so the holds keep
only files that the epochs need. Reading it takes a snapshot with `Exact(token)`, which has a lease of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from epochlog.errors import InvalidInput, InvalidName, LimitExceeded, SnapshotExpired, SnapshotNotFound
from epochlog.store.catalog.keys import hold_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.env.clock import seconds
from epochlog.store.metadata.lookups import all_tables, get_table, get_version
from epochlog.store.retention.holds import NO_PLAN, Hold, all_holds
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.schema import is_name

from .token import Token, encode_token

KIND = "snapshot:"
LONGEST = timedelta(days=366)
"""Longest time for which a snapshot is held; holding it again moves its end."""
MOST_HELD = 1_000
"""Most named snapshots of one store: each keeps history, so thousands are a leak."""


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """Named snapshot as of now; times are Unix milliseconds.

    epochs: by table, without tables that were dropped since. token: `consistency=epochlog.Exact(token)` repeats the
    snapshot, in any process, until `until_ms`. The token that `snapshot.hold` returns also has the reasons for tables
    left out; the catalog does not keep them, so the tokens of `store.held_snapshots()` have none.
    """

    name: str
    epochs: Mapping[str, int]
    token: str = field(repr=False)
    since_ms: int
    until_ms: int


def hold_snapshot(handle: Handle, token: Token, lasting: float | timedelta, name: str | None = None) -> HeldSnapshot:
    """Hold the epochs of the token's tables for `lasting` (seconds or a timedelta) from now on.

    name: None draws one. The name of a held snapshot with the same tables and epochs moves its end. Raises InvalidName,
    LimitExceeded, TableDropped; InvalidInput when another snapshot has the name; SnapshotExpired when the epochs have
    been released already.
    """
    length_ms = round(seconds(lasting, "lasting") * 1000)
    if not 0 < length_ms <= LONGEST // timedelta(milliseconds=1):
        raise InvalidInput(f"lasting must be more than 0 and at most {LONGEST.days} days, not {lasting}")
    hold_name = name if name is not None else f"held_{handle.new_holder('').strip(':')[:12]}"
    if not is_name(hold_name):
        raise InvalidName(f"a snapshot cannot be held as {hold_name!r}: use 1 to 63 of a-z, 0-9 and _, a letter first")
    epochs = {entry.table_id: entry.epoch for entry in token.entries.values()}
    names_held = {snapshot.name for snapshot in held_snapshots(handle)}
    if hold_name not in names_held and len(names_held) >= MOST_HELD:
        raise LimitExceeded(f"{MOST_HELD:,} snapshots of this store are held; release some of them")

    def body(tx: Txn) -> HeldSnapshot:
        now_ms = handle.catalog.now_ms()
        names = {table.id: table.name for table in all_tables(tx)}
        before = {hold.table_id: hold for _, hold in _holds_of(tx, names, hold_name, now_ms)}
        if before and {table_id: hold.read_epoch for table_id, hold in before.items()} != epochs:
            raise InvalidInput(
                f"another snapshot is held as {hold_name!r}: release it (store.release_snapshot, or `epochlog snapshot "
                "--drop`), or use another name"
            )
        holds = []
        for table, entry in token.entries.items():
            _require_readable(tx, table, entry.table_id, entry.epoch)
            since_ms = before[entry.table_id].since_ms if before else now_ms
            holds.append(Hold(KIND + hold_name, entry.table_id, None, entry.epoch, since_ms, now_ms + length_ms))
            tx.put(hold_key(entry.table_id, holds[-1].holder), holds[-1].to_record())
        return _describe(hold_name, holds, names, handle.store_id, token.left_out)

    return handle.catalog.transact(body)


def held_snapshots(handle: Handle) -> list[HeldSnapshot]:
    """Return all named snapshots that are held now, by name."""

    def body(view: ReadTxn) -> list[HeldSnapshot]:
        now_ms = handle.catalog.now_ms()
        names = {table.id: table.name for table in all_tables(view)}
        holds_by_name: dict[str, list[Hold]] = {}
        for _, hold in all_holds(view):
            if hold.holder.startswith(KIND) and hold.table_id in names and _is_held(hold, now_ms):
                holds_by_name.setdefault(hold.holder.removeprefix(KIND), []).append(hold)
        return [_describe(name, holds_by_name[name], names, handle.store_id) for name in sorted(holds_by_name)]

    return handle.catalog.read(body)


def release_snapshot(handle: Handle, name: str) -> None:
    """Release a named snapshot; open snapshots of its epochs have leases of their own. Raises SnapshotNotFound."""

    def body(tx: Txn) -> bool:
        holds = list(_holds_of(tx, (table.id for table in all_tables(tx)), name, handle.catalog.now_ms()))
        for key, _ in holds:
            tx.delete(key)
        return bool(holds)

    if not handle.catalog.transact(body):
        known = ", ".join(snapshot.name for snapshot in held_snapshots(handle)) or "none"
        raise SnapshotNotFound(f"no snapshot is held as {name!r}; held are: {known}")


def _require_readable(view: ReadTxn, table: str, table_id: int, epoch: int) -> None:
    """Raise SnapshotExpired if `epoch` lies below the safe epoch: the lease of the snapshot may have ended before."""
    get_table(view, table_id, table)
    safe = get_version(view, table_id, table).safe_epoch
    if epoch < safe:
        raise SnapshotExpired(
            f"{table} at {show_epoch(epoch)}: its history below {show_epoch(safe)} has been released; take a new "
            "snapshot and hold that"
        )


def _holds_of(view: ReadTxn, tables: Iterable[int], name: str, now_ms: int) -> Iterator[tuple[bytes, Hold]]:
    """Yield the holds of these tables under that name, with their keys. It reads single keys, so concurrent leases
    cause no conflict.
    """
    for table_id in tables:
        key = hold_key(table_id, f"{KIND}{name}")
        record = view.get(key)
        if record is not None and _is_held(hold := Hold(**record), now_ms):
            yield key, hold


def _is_held(hold: Hold, now_ms: int) -> bool:
    """Return True for an unexpired hold of a named snapshot. The hold of an open snapshot has a lease and a version."""
    return hold.version == NO_PLAN and hold.expires_ms is not None and hold.expires_ms > now_ms


def _describe(
    name: str, holds: Sequence[Hold], names: Mapping[int, str], store_id: str, left_out: Mapping[str, str] | None = None
) -> HeldSnapshot:
    epochs = {hold.table_id: hold.read_epoch or 0 for hold in sorted(holds, key=lambda hold: hold.table_id)}
    return HeldSnapshot(
        name,
        {names[table_id]: epoch for table_id, epoch in epochs.items()},
        encode_token(epochs, names, store_id, left_out),
        min(hold.since_ms for hold in holds),
        min(hold.expires_ms or 0 for hold in holds),
    )
