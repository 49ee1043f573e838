"""Checks of staged exchanges: their records agree with each other, and every batch's file matches its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from epochlog.errors import Corrupt, ReadFailed
from epochlog.store.catalog.protocol import ReadTxn, scan_prefix
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


def check_exchanges(view: ReadTxn) -> list[Finding]:
    """Return the problems of the records of all exchanges, except those that are being dropped."""
    findings: list[Finding] = []
    known = dict(all_queries(view))
    for kind in (b"xc", b"xp", b"xd", b"xk", b"xu"):
        names = {key.split(b"/")[1].decode() for key, _ in scan_prefix(view, kind + b"/")}
        findings += [
            (f"exchange {name}", f"has {kind.decode()} records and no query") for name in sorted(names - set(known))
        ]
    for name, record in known.items():
        if not record["dropped"]:
            findings += ((f"exchange {name}", problem) for problem in _check_query(view, name, record))
    return findings


def _check_query(view: ReadTxn, query: str, record: Record) -> Iterator[str]:
    channels = dict(records_of(view, b"xc", query))
    declared = {name: stage for stage, names in record["stages"] for name in names}
    if declared != {name: channel["stage"] for name, channel in channels.items()}:
        yield "has channels other than those it declares"
    ended = {name for name, channel in channels.items() if channel["last"] is not None}
    passed = {name for name in ended if channels[name]["next"] > channels[name]["last"]}
    if "passed" not in record:  # of version 0.1
        if ended != set(record["ended"]):
            yield f"counts {sorted(record['ended'])} as ended, but {sorted(ended)} are"
    elif passed != set(record["passed"]):
        yield f"counts {sorted(record['passed'])} as passed, but {sorted(passed)} are"
    for name, consumer in records_of(view, b"xk", query):
        lost = [channel for _, names in consumer["stages"] for channel in names if channel not in channels]
        if lost:
            yield f"has the consumer {name}, whose channels {lost} are missing"
    pushed, digests, size = Counter[str](), Counter[str](), 0
    for suffix, batch in records_of(view, b"xp", query):
        pushed[suffix.rpartition("/")[0]] += 1
        size += batch["bytes"]
    for suffix, block in records_of(view, b"xd", query):
        digests[suffix.rpartition("/")[0]] += len(block["digests"]) // DIGEST_BYTES
    usage = view.get(usage_key(query))
    if size != (usage["bytes"] if usage else 0):
        yield f"counts {usage and usage['bytes']} bytes on disk, but there are {size}"
    for name, channel in channels.items():
        yield from _check_channel(view, query, name, channel, pushed.pop(name, 0), digests.pop(name, 0))
    if pushed or digests:
        yield f"has batches of missing channels: {sorted(pushed | digests)}"


def _check_channel(view: ReadTxn, query: str, name: str, channel: Record, pushed: int, digests: int) -> Iterator[str]:
    sequences = [*range(channel["released"], channel["next"]), *channel["ahead"]]
    missing = [seq for seq in sequences if view.get(pushed_key(query, name, seq)) is None]
    if missing:
        yield f"lacks {len(missing)} batches of channel {name}, the first at {missing[0]}"
    if pushed != len(sequences) - len(missing):
        yield f"has {pushed} batches of channel {name}, which counts {len(sequences)}"
    if digests != channel["released"]:
        yield f"remembers {digests} released batches of channel {name}, which are {channel['released']}"
    if channel["last"] is not None and max([channel["next"] - 1, *channel["ahead"]]) > channel["last"]:
        yield f"has batches of channel {name} behind its end mark {channel['last']}"


def check_exchange_files(handle: Handle) -> tuple[dict[str, int], list[Finding], list[Finding]]:
    """Return the path and bytes of every file that an exchange reaches, the damaged files, and the files that the
    system refused to read.

    Damage to a batch that was released meanwhile is not reported.
    """
    folder = handle.table_folder(FILES)
    batches = handle.catalog.read(lambda view: [r for _, r in scan_prefix(view, b"xp/")])
    damaged: list[Finding] = []
    refused: list[Finding] = []
    for batch in batches:
        path = batch["path"]
        try:
            if not path.startswith(folder + "/"):
                raise Corrupt(path, "an exchange reaches it, but it lies outside of the folder of exchanges")
            verified(handle.files, path, batch["bytes"], batch["crc32"], recheck=True)
        except Corrupt as error:
            damaged.append((path, error.what))
        except ReadFailed as error:
            refused.append((path, str(error)))
    if damaged:
        current = dict(handle.catalog.read(lambda view: list(exchange_files(view))))
        damaged = [(path, problem) for path, problem in damaged if path in current]
    return {batch["path"]: batch["bytes"] for batch in batches}, damaged, refused
