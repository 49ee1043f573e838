"""Checking staged exchanges: their records agree with each other, and every batch's file is what was pushed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from epochlog.errors import Corrupt, ReadFailed
from epochlog.store.catalog.keys import after_prefix
from epochlog.store.catalog.protocol import View
from epochlog.store.catalog.records import Record
from epochlog.store.metadata.exchange_records import (
    DIGEST_BYTES,
    FILES,
    all_queries,
    exchange_files,
    pushed_key,
    records_of,
    usage_key,
)
from epochlog.store.sst.data_file import verified

from .records import Finding

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


def check_exchanges(view: View) -> list[Finding]:
    """Return the problems of the records of all exchanges but those that are being dropped."""
    found: list[Finding] = []
    known = dict(all_queries(view))
    for kind in (b"xc", b"xp", b"xd", b"xk", b"xu"):
        names = {key.split(b"/")[1].decode() for key, _ in view.scan(kind + b"/", after_prefix(kind + b"/"))}
        found += [
            (f"exchange {name}", f"has {kind.decode()} records and no query") for name in sorted(names - set(known))
        ]
    for name, record in known.items():
        if not record["dropped"]:
            found += ((f"exchange {name}", what) for what in _query(view, name, record))
    return found


def _query(view: View, query: str, record: Record) -> Iterator[str]:
    channels = dict(records_of(view, b"xc", query))
    declared = {name: stage for stage, names in record["stages"] for name in names}
    if declared != {name: channel["stage"] for name, channel in channels.items()}:
        yield "has other channels than it declares"
    ended = {name for name, channel in channels.items() if channel["last"] is not None}
    passed = {name for name in ended if channels[name]["next"] > channels[name]["last"]}
    if "passed" not in record:  # of version 0.1
        if ended != set(record["ended"]):
            yield f"counts {sorted(record['ended'])} as ended, and they are {sorted(ended)}"
    elif passed != set(record["passed"]):
        yield f"counts {sorted(record['passed'])} as passed, and they are {sorted(passed)}"
    for name, consumer in records_of(view, b"xk", query):
        lost = [channel for _, names in consumer["stages"] for channel in names if channel not in channels]
        if lost:
            yield f"has the consumer {name}, whose channels {lost} are not there"
    pushed, digests, size = Counter[str](), Counter[str](), 0
    for rest, batch in records_of(view, b"xp", query):
        pushed[rest.rpartition("/")[0]] += 1
        size += batch["bytes"]
    for rest, block in records_of(view, b"xd", query):
        digests[rest.rpartition("/")[0]] += len(block["digests"]) // DIGEST_BYTES
    usage = view.get(usage_key(query))
    if size != (usage["bytes"] if usage else 0):
        yield f"counts {usage and usage['bytes']} bytes on disk, and they are {size}"
    for name, channel in channels.items():
        yield from _channel(view, query, name, channel, pushed.pop(name, 0), digests.pop(name, 0))
    if pushed or digests:
        yield f"has batches of channels that are not there: {sorted(pushed | digests)}"


def _channel(view: View, query: str, name: str, channel: Record, pushed: int, digests: int) -> Iterator[str]:
    there = [*range(channel["released"], channel["next"]), *channel["ahead"]]
    missing = [seq for seq in there if view.get(pushed_key(query, name, seq)) is None]
    if missing:
        yield f"lacks {len(missing)} batches of channel {name}, the first at {missing[0]}"
    if pushed != len(there) - len(missing):
        yield f"has {pushed} batches of channel {name}, which counts {len(there)}"
    if digests != channel["released"]:
        yield f"remembers {digests} released batches of channel {name}, which are {channel['released']}"
    if channel["last"] is not None and max([channel["next"] - 1, *channel["ahead"]]) > channel["last"]:
        yield f"has batches of channel {name} behind its end mark {channel['last']}"


def check_exchange_files(handle: Handle) -> tuple[dict[str, int], list[Finding], list[Finding]]:
    """Return path and bytes of every file that an exchange reaches, the damaged files, and those that the system
    refused to read. Damage to a batch that was released meanwhile is not reported.
    """
    folder = handle.table_folder(FILES)
    batches = handle.catalog.read(lambda view: [r for _, r in view.scan(b"xp/", after_prefix(b"xp/"))])
    found: list[Finding] = []
    refused: list[Finding] = []
    for batch in batches:
        path = batch["path"]
        try:
            if not path.startswith(folder + "/"):
                raise Corrupt(path, "it is reached by an exchange, and does not lie in the folder of exchanges")
            verified(handle.files, path, batch["bytes"], batch["crc32"], again=True)
        except Corrupt as error:
            found.append((path, error.what))
        except ReadFailed as error:
            refused.append((path, str(error)))
    if found:
        now = dict(handle.catalog.read(lambda view: list(exchange_files(view))))
        found = [(path, what) for path, what in found if path in now]
    return {batch["path"]: batch["bytes"] for batch in batches}, found, refused
