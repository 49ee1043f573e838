"""Catalog records of staged exchanges: their keys, the files that they reach, and the removal of a query.

    xq/<query>                        a query: stages, ended channels, lease and disk budget
    xu/<query>                        the query's bytes on disk
    xc/<query>/<channel>              a channel: stage, highest attempt, end mark, last sequences pushed and released
    xp/<query>/<channel>/<sequence>   a batch that was pushed and not released: its file
    xd/<query>/<channel>/<block>      checksums of released batches
    xk/<query>/<consumer>             a consumer: its channels, incarnation and acknowledged cursor

Names have no slash; sequences are 16 hex digits wide. The files lie in the folder of a table 0, which does not exist.
exchange/staged decides the meaning of the records.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from itertools import islice

from epochlog.store.catalog.protocol import Catalog, ReadTxn, Txn, scan_prefix
from epochlog.store.catalog.records import Record

from .counters import move_counters
from .definitions import Counters
from .unreachable_files import mark_unreachable

FILES = 0
"""Table id of the files of all queries. Tables have ids from 1."""
BATCH = 500
"""Largest number of batches whose records one transaction deletes when a query ends."""
DIGEST_BYTES = 8
"""Bytes of the digest of a released batch: its size and its CRC-32, little endian."""


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


def records_of(view: ReadTxn, kind: bytes, query: str) -> Iterator[tuple[str, Record]]:
    """Yield (key after the prefix, record) of every channel, batch or consumer of a query, by key."""
    prefix = kind + b"/" + query.encode() + b"/"
    for key, record in scan_prefix(view, prefix):
        yield key[len(prefix) :].decode(), record


def all_queries(view: ReadTxn) -> Iterator[tuple[str, Record]]:
    """Yield (name, record) of every query, also of queries that are being dropped."""
    for key, record in scan_prefix(view, b"xq/"):
        yield key[len(b"xq/") :].decode(), record


def exchange_files(view: ReadTxn) -> Iterator[tuple[str, int]]:
    """Yield path and bytes of every file that the records of an exchange refer to."""
    for _, record in scan_prefix(view, b"xp/"):
        yield record["path"], record["bytes"]


# ---- the end of a query --------------------------------------------------------------------------------------------


def end_query(tx: Txn, query: str) -> None:
    """Mark the query as dropped: no call can use it, and `purge` deletes its records. Call inside a transaction."""
    record = tx.get(query_key(query))
    if record is not None and not record["dropped"]:
        tx.put(query_key(query), {**record, "dropped": True})


def purge(catalog: Catalog, query: str) -> list[str]:
    """Delete the records of an ended query, in several transactions. Mark their files as unreachable and return the
    paths.
    """
    freed: list[str] = []
    while True:
        paths = catalog.transact(lambda tx: _purge_batches(tx, query, catalog.now_ms()))
        if paths is None:
            return freed
        freed += paths


def _purge_batches(tx: Txn, query: str, now_ms: int) -> list[str] | None:
    """Delete the records of some batches of the query; with the last batches delete its other records too. Return the
    paths of the files, or None if the query has no record.
    """
    record = tx.get(query_key(query))
    if record is None or not record["dropped"]:
        return None
    batches = list(islice(records_of(tx, b"xp", query), BATCH))
    mark_unreachable(tx, FILES, [(file["path"], file["bytes"]) for _, file in batches], now_ms)
    for name, _ in batches:
        tx.delete(b"xp/" + query.encode() + b"/" + name.encode())
    if len(batches) < BATCH:
        for kind in (b"xc", b"xd", b"xk"):
            for name, _ in list(records_of(tx, kind, query)):
                tx.delete(kind + b"/" + query.encode() + b"/" + name.encode())
        tx.delete(usage_key(query))
        tx.delete(query_key(query))
    if batches:
        move_counters(tx, Counters.read(tx))
    return [file["path"] for _, file in batches]


def end_expired(catalog: Catalog, live_holders: Container[str], slowest_ms: Callable[[ReadTxn], int]) -> list[str]:
    """End the queries whose lease has expired, and complete interrupted removals. Return the names of these queries.

    live: holders whose leases this process renews. slowest_ms: returns the time by which leases end.
    """

    def list_expired(view: ReadTxn) -> list[str]:
        now_ms = slowest_ms(view)
        return [
            name
            for name, record in all_queries(view)
            if record["dropped"] or (record["expires_ms"] <= now_ms and query_holder(name) not in live_holders)
        ]

    def end(tx: Txn) -> list[str]:
        names = list_expired(tx)
        for name in names:
            end_query(tx, name)
        return names

    if not catalog.read(list_expired):
        return []
    names = catalog.transact(end)
    for name in names:
        purge(catalog, name)
    return names


def query_holder(query: str) -> str:
    """Return the name under which this process keeps the lease of a query."""
    return f"exchange:{query}"
