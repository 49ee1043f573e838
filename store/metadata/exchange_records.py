"""Catalog records of staged exchanges: their keys, the files that they reach, and the removal of a query.

    xq/<query>                        a query: stages, which channels have ended, lease and disk budget
    xu/<query>                        how many bytes of it lie on disk
    xc/<query>/<channel>              a channel: stage, highest attempt, end mark, how far it was pushed and released
    xp/<query>/<channel>/<sequence>   a batch that was pushed and not released: its file
    xd/<query>/<channel>/<block>      checksums of batches that were released
    xk/<query>/<consumer>             a consumer: its channels, incarnation and acknowledged cursor

Names have no slash in them; sequences are 16 hex digits wide. The files lie in a folder of their own, as if there were
a table 0. What the records mean is decided in exchange/staged.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import islice

from epochlog.store.catalog.keys import after_prefix
from epochlog.store.catalog.protocol import Catalog, Txn, View
from epochlog.store.catalog.records import Record

from .counters import move_counters
from .definitions import Counters
from .unreachable_files import mark_unreachable

FILES = 0
"""The id under which the files of all queries lie; tables have ids from 1."""
BATCH = 500
"""Batches that one transaction lets go of at most, when a query ends."""
DIGEST_BYTES = 8
"""Of a batch that was released: its size and its CRC-32, little endian."""


def query_key(query: str) -> bytes:
    return b"xq/" + query.encode()


def usage_key(query: str) -> bytes:
    return b"xu/" + query.encode()


def channel_key(query: str, channel: str) -> bytes:
    return b"xc/" + query.encode() + b"/" + channel.encode()


def pushed_key(query: str, channel: str, seq: int) -> bytes:
    return b"xp/" + query.encode() + b"/" + channel.encode() + b"/%016x" % seq


def digests_key(query: str, channel: str, block: int) -> bytes:
    return b"xd/" + query.encode() + b"/" + channel.encode() + b"/%016x" % block


def consumer_key(query: str, consumer: str) -> bytes:
    return b"xk/" + query.encode() + b"/" + consumer.encode()


def records_of(view: View, kind: bytes, query: str) -> Iterator[tuple[str, Record]]:
    """Yield (rest of the key, record) of every channel, batch or consumer of a query, by key."""
    prefix = kind + b"/" + query.encode() + b"/"
    for key, record in view.scan(prefix, after_prefix(prefix)):
        yield key[len(prefix) :].decode(), record


def all_queries(view: View) -> Iterator[tuple[str, Record]]:
    """Yield every query by its name, those that are being dropped too."""
    for key, record in view.scan(b"xq/", after_prefix(b"xq/")):
        yield key[len(b"xq/") :].decode(), record


def exchange_files(view: View) -> Iterator[tuple[str, int]]:
    """Yield path and bytes of every file that an exchange reaches."""
    for _, record in view.scan(b"xp/", after_prefix(b"xp/")):
        yield record["path"], record["bytes"]


# ---- the end of a query --------------------------------------------------------------------------------------------


def end_query(tx: Txn, query: str) -> None:
    """Mark the query as dropped: it cannot be used any more, and `purge` removes its records. Part of a transaction."""
    record = tx.get(query_key(query))
    if record is not None and not record["dropped"]:
        tx.put(query_key(query), {**record, "dropped": True})


def purge(catalog: Catalog, query: str) -> list[str]:
    """Remove the records of a query that has ended, in as many transactions as it takes; return the paths of the files
    that they reached, which are noted as unreachable.
    """
    freed: list[str] = []
    while True:
        found = catalog.transact(lambda tx: _purge_some(tx, query, catalog.now_ms()))
        if found is None:
            return freed
        freed += found


def _purge_some(tx: Txn, query: str, now_ms: int) -> list[str] | None:
    """Remove some batches of the query, or at last the rest; return the paths freed, None when nothing is left."""
    record = tx.get(query_key(query))
    if record is None or not record["dropped"]:
        return None
    some = list(islice(records_of(tx, b"xp", query), BATCH))
    mark_unreachable(tx, FILES, [(file["path"], file["bytes"]) for _, file in some], now_ms)
    for rest, _ in some:
        tx.delete(b"xp/" + query.encode() + b"/" + rest.encode())
    if len(some) < BATCH:
        for kind in (b"xc", b"xd", b"xk"):
            for rest, _ in list(records_of(tx, kind, query)):
                tx.delete(kind + b"/" + query.encode() + b"/" + rest.encode())
        tx.delete(usage_key(query))
        tx.delete(query_key(query))
    if some:
        move_counters(tx, Counters.read(tx))
    return [file["path"] for _, file in some]


def end_expired(catalog: Catalog, live: Container[str]) -> list[str]:
    """End the queries whose lease has run out, and those that a crash left half removed; return their names.

    live: holders whose leases this process keeps alive.
    """

    def spent(view: View) -> list[str]:
        now_ms = catalog.now_ms()
        return [
            name
            for name, record in all_queries(view)
            if record["dropped"] or (record["expires_ms"] <= now_ms and query_holder(name) not in live)
        ]

    def end(tx: Txn) -> list[str]:
        names = spent(tx)
        for name in names:
            end_query(tx, name)
        return names

    if not catalog.read(spent):
        return []
    names = catalog.transact(end)
    for name in names:
        purge(catalog, name)
    return names


def query_holder(query: str) -> str:
    """Return the name under which this process keeps the lease of a query."""
    return f"exchange:{query}"
