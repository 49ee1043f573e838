"""Tags: the epochs of a snapshot that are kept under a name, for good or for a given time, without a process.

A tag is one hold of each of its tables. It keeps the rows that its epochs see and no versions between them, and it pins
no file: each read plans anew. Reading it takes a snapshot with `Exact(token)`, which has a lease of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TypeGuard

from epochlog.errors import InvalidInput, InvalidName, LimitExceeded, SnapshotExpired, TagNotFound
from epochlog.store.catalog.keys import hold_key, table_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.env.clock import seconds
from epochlog.store.env.failpoints import hit
from epochlog.store.env.log_events import TAG_CREATED, TAG_DROPPED
from epochlog.store.metadata.lookups import all_tables, get_table, get_version
from epochlog.store.retention.holds import TAG, Hold, all_holds
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import show_epoch

from .token import Token, encode_token

LONGEST = timedelta(days=366)
"""Longest time for which a tag with an end is kept; tagging the epochs again moves the end, or removes it."""
MOST_TAGS = 1_000
"""Most tags of one store: each keeps rows, so thousands are a leak."""
_NAME = re.compile(r"(?![0-9]+$)[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Tag:
    """Tag as of now; times are Unix milliseconds."""

    name: str
    epochs: Mapping[str, int]
    """By table, without tables that were dropped since."""
    token: str = field(repr=False)
    """`consistency=epochlog.Exact(token)` repeats the snapshot, in any process, until `until_ms` (None: for good). The
    token that `snapshot.tag` returns also has the reasons for tables left out; the catalog does not keep them, so the
    tokens of `store.tags()` have none.
    """
    since_ms: int
    until_ms: int | None


def is_tag_name(name: object) -> TypeGuard[str]:
    """Return True for a valid name of a tag. No name is a number, which would be an epoch, or as long as a token."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def put_tag(handle: Handle, token: Token, name: str, lasting: float | timedelta | None = None) -> Tag:
    """Keep the epochs of the token's tables under a name: for good, or for `lasting` (seconds or a timedelta) from now.

    The name of a tag with the same tables and epochs moves its end. Raises InvalidName, LimitExceeded, TableDropped;
    InvalidInput when another tag has the name; SnapshotExpired when the epochs have been released already.
    """
    length_ms = None if lasting is None else round(seconds(lasting, "lasting") * 1000)
    if length_ms is not None and not 0 < length_ms <= LONGEST // timedelta(milliseconds=1):
        raise InvalidInput(
            f"lasting must be more than 0 and at most {LONGEST.days} days, or None for good, not {lasting}"
        )
    if not is_tag_name(name):
        raise InvalidName(
            f"a tag cannot be named {name!r}: use 1 to 63 of a-z, 0-9, _ and -, a letter or digit first, and not only "
            "digits"
        )
    epochs = {entry.table_id: entry.epoch for entry in token.entries.values()}
    names_taken = {tag.name for tag in list_tags(handle)}
    if name not in names_taken and len(names_taken) >= MOST_TAGS:
        raise LimitExceeded(f"this store has {MOST_TAGS:,} tags; drop some of them")

    def body(tx: Txn) -> Tag:
        now_ms, latest_ms = handle.clock_guard.slowest_ms(tx), handle.clock_guard.latest_ms(tx)
        names = {table.id: table.name for table in all_tables(tx)}
        before = {hold.table_id: hold for _, hold in _holds_of(tx, names, name, now_ms)}
        if before and {table_id: hold.read_epoch for table_id, hold in before.items()} != epochs:
            raise InvalidInput(
                f"the tag {name!r} has other tables or epochs: drop it (store.drop_tag, or `epochlog tag --drop`), or "
                "use another name"
            )
        holds = []
        until_ms = None if length_ms is None else latest_ms + length_ms
        for table, entry in token.entries.items():
            _require_readable(tx, table, entry.table_id, entry.epoch)
            since_ms = before[entry.table_id].since_ms if before else min(handle.catalog.now_ms(), latest_ms)
            holds.append(Hold(TAG + name, entry.table_id, None, entry.epoch, since_ms, until_ms))
            tx.put(hold_key(entry.table_id, holds[-1].holder), holds[-1].to_record())
            _raise_format(tx, table, entry.table_id)
        hit("tag:before-transaction")
        return _describe(name, holds, names, handle.store_id, token.left_out)

    tag = handle.catalog.transact(body)
    hit("tag:put")
    handle.log(TAG_CREATED, tag=name, tables=list(token.entries))
    return tag


def list_tags(handle: Handle) -> list[Tag]:
    """Return all tags that are kept now, by name."""
    return handle.catalog.read(lambda view: tags_within(view, handle))


def tags_within(view: ReadTxn, handle: Handle) -> list[Tag]:
    """Return all tags that are kept now, by name, within a catalog transaction."""
    now_ms = handle.clock_guard.slowest_ms(view)
    holds_by_name: dict[str, list[Hold]] = {}
    for _, hold in all_holds(view):
        if hold.is_tag and _is_kept(hold, now_ms) and view.get(table_key(hold.table_id)) is not None:
            holds_by_name.setdefault(hold.holder.removeprefix(TAG), []).append(hold)
    tables = {hold.table_id for holds in holds_by_name.values() for hold in holds}
    names = {table: get_table(view, table, f"table {table}").name for table in tables}
    return [_describe(name, holds_by_name[name], names, handle.store_id) for name in sorted(holds_by_name)]


def find_tag(handle: Handle, name: str) -> Tag:
    """Return the tag of that name, or raise TagNotFound."""
    tags = {tag.name: tag for tag in list_tags(handle)}
    if name not in tags:
        raise _not_found(name, tags)
    return tags[name]


def drop_tag(handle: Handle, name: str) -> None:
    """Delete a tag; open snapshots of its epochs have leases of their own. Raises TagNotFound."""

    def body(tx: Txn) -> bool:
        holds = list(_holds_of(tx, (table.id for table in all_tables(tx)), name, handle.clock_guard.slowest_ms(tx)))
        for key, _ in holds:
            tx.delete(key)
        return bool(holds)

    if not handle.catalog.transact(body):
        raise _not_found(name, [tag.name for tag in list_tags(handle)])
    handle.log(TAG_DROPPED, tag=name)
    hit("tag:dropped")


def _not_found(name: str, known: Iterable[str]) -> TagNotFound:
    return TagNotFound(f"there is no tag {name!r}; the tags are: {', '.join(known) or 'none'}")


def _require_readable(view: ReadTxn, table: str, table_id: int, epoch: int) -> None:
    """Raise SnapshotExpired if the rows of `epoch` were released: the lease of the snapshot may have ended before."""
    get_table(view, table_id, table)
    version = get_version(view, table_id, table)
    if not version.keeps(epoch):
        raise SnapshotExpired(
            f"{table} at {show_epoch(epoch)}: its history below {show_epoch(version.safe_epoch)} has been released; "
            "take a new snapshot and tag that"
        )


def _raise_format(tx: Txn, name: str, table_id: int) -> None:
    """Raise the format of the table's record: an older process, which would release rows that tags keep, refuses it."""
    table = get_table(tx, table_id, name)
    if not table.tagged:
        tx.put(table_key(table_id), replace(table, tagged=True).to_record())


def _holds_of(view: ReadTxn, tables: Iterable[int], name: str, now_ms: int) -> Iterator[tuple[bytes, Hold]]:
    """Yield the holds of these tables under that name, with their keys. It reads single keys, so concurrent leases
    cause no conflict.
    """
    for table_id in tables:
        key = hold_key(table_id, f"{TAG}{name}")
        record = view.get(key)
        if record is not None and _is_kept(hold := Hold(**record), now_ms):
            yield key, hold


def _is_kept(hold: Hold, now_ms: int) -> bool:
    """Return True if the time of a tag has not passed."""
    return hold.expires_ms is None or hold.expires_ms > now_ms


def _describe(
    name: str, holds: Sequence[Hold], names: Mapping[int, str], store_id: str, left_out: Mapping[str, str] | None = None
) -> Tag:
    epochs = {hold.table_id: hold.read_epoch or 0 for hold in sorted(holds, key=lambda hold: hold.table_id)}
    ends = [hold.expires_ms for hold in holds if hold.expires_ms is not None]
    return Tag(
        name,
        {names[table_id]: epoch for table_id, epoch in epochs.items()},
        encode_token(epochs, names, store_id, left_out),
        min(hold.since_ms for hold in holds),
        min(ends, default=None),
    )
