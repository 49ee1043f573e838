"""Catalog transactions of the staged exchange: each function is part of one.

They read records, have `state` decide, and write; a refusal is raised before anything is written, so that several of
them may share a transaction. Nothing else writes the records of an exchange.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from epochlog.errors import Corrupt, InvalidInput, LimitExceeded, SegmentUnknown, SequenceReleased
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.metadata.exchange_records import (
    DIGEST_BYTES,
    channel_key,
    consumer_key,
    digests_key,
    pushed_key,
    query_key,
    records_of,
    usage_key,
)
from epochlog.store.session.write_intents import revoked

from .state import (
    MOST_CHANNELS,
    Channel,
    Cursor,
    Pushed,
    StageConsumer,
    StagedQuery,
    acknowledged,
    check_producer,
    check_repeat,
    claimed,
    has_room,
    no_channel,
    no_consumer,
    no_query,
    releasable,
    with_consumer,
    with_end,
    with_push,
)

DIGEST = struct.Struct("<II")
assert DIGEST.size == DIGEST_BYTES
"""Size and CRC-32 of a batch that was released."""
BLOCK = 512
"""Digests of one record."""
RELEASED = 2_000
"""Batches that one transaction lets go of at most."""


@dataclass(frozen=True, slots=True)
class Push:
    """Batch that a producer pushes. path: its durable file; None when the sequence was known to be there, so that none
    was written.
    """

    channel: str
    stage: int
    seq: int
    attempt: int
    path: str | None
    bytes: int
    crc32: int
    rows: int


@dataclass(frozen=True, slots=True)
class PushResult:
    """Outcome of a push. kept: its file is reached now; if not, the sequence was there already and the file is of no
    use. full: neither, because the disk budget has no room for it now. passed: the channel has passed with it.
    """

    kept: bool
    full: bool = False
    passed: bool = False


# ---- looking -------------------------------------------------------------------------------------------------------


def find_query(view: View, query: str) -> StagedQuery:
    """Read a query. Raises QueryNotFound when there is none, or it is being dropped."""
    record = view.get(query_key(query))
    if record is None or record["dropped"]:
        raise no_query(query)
    return _query_of(view, query, record)


def _query_of(view: View, query: str, record: Mapping[str, Any]) -> StagedQuery:
    """Decode a query's record. Version 0.1 kept the channels that have end marks instead of those that have passed."""
    if "passed" not in record:
        ended = [Channel.from_record(view.get(channel_key(query, name)) or {}) for name in record["ended"]]
        record = {**record, "passed": [channel.name for channel in ended if channel.passed]}
    return StagedQuery.from_record(query, record)


def find_channel(view: View, query: StagedQuery, channel: str) -> Channel:
    """Read a channel. Raises ChannelUnknown when nobody declared it."""
    record = view.get(channel_key(query.name, channel))
    if record is None:
        raise no_channel(query.name, channel, (name for names in query.stages.values() for name in names))
    return Channel.from_record(record)


def find_consumer(view: View, query: StagedQuery, consumer: str) -> StageConsumer:
    """Read a consumer. Raises InvalidInput when it was not declared."""
    record = view.get(consumer_key(query.name, consumer))
    if record is None:
        raise no_consumer(query.name, consumer)
    return StageConsumer.from_record(consumer, record)


def find_pushed(view: View, query: str, channel: str, seq: int) -> Pushed | None:
    """Read the record of a batch; None if it was not pushed or was released."""
    record = view.get(pushed_key(query, channel, seq))
    return None if record is None else Pushed(**record)


def consumers_of(view: View, query: str) -> list[StageConsumer]:
    return [StageConsumer.from_record(name, record) for name, record in records_of(view, b"xk", query)]


def used_bytes(view: View, query: str) -> int:
    """Return the bytes of a query's batches on disk."""
    record = view.get(usage_key(query))
    return record["bytes"] if record else 0


def digest_of(view: View, query: str, channel: Channel, seq: int) -> tuple[int, int] | None:
    """Return size in bytes and CRC-32 of a sequence that was pushed, released or not; None when it was not."""
    if not channel.has(seq):
        return None
    if seq >= channel.released:
        found = find_pushed(view, query, channel.name, seq)
        return None if found is None else (found.bytes, found.crc32)
    block = view.get(digests_key(query, channel.name, seq // BLOCK))
    place = seq % BLOCK * DIGEST.size
    return None if block is None else DIGEST.unpack_from(block["digests"], place)


# ---- declaring -----------------------------------------------------------------------------------------------------


def declare(tx: Txn, new: StagedQuery, consumer: StageConsumer) -> StagedQuery:
    """Declare a consumer, and the query with its first one; a repeat changes nothing but the lease. `new` is the
    query's initial state. Raises InvalidInput, SequenceReleased, LimitExceeded.
    """
    record = tx.get(query_key(new.name))
    if record is not None and record["dropped"]:
        raise InvalidInput(f"query {new.name!r} is being dropped; declare it when that is done, or take another name")
    query = new if record is None else _query_of(tx, new.name, record)
    found = tx.get(consumer_key(query.name, consumer.name))
    known = None if found is None else StageConsumer.from_record(consumer.name, found)
    channels = {}
    for name in consumer.channels:
        there = tx.get(channel_key(query.name, name))
        if there is not None:
            channels[name] = Channel.from_record(there)
    after = with_consumer(query, known, consumer, channels)
    if known is None and len(consumers_of(tx, query.name)) >= MOST_CHANNELS:
        raise LimitExceeded(f"query {query.name!r} would have more than {MOST_CHANNELS} consumers")
    after = replace(after, expires_ms=max(after.expires_ms, new.expires_ms))
    tx.put(query_key(query.name), after.to_record())
    if known is None:
        tx.put(consumer_key(query.name, consumer.name), consumer.to_record())
        for stage, names in consumer.stages.items():
            for name in names:
                if name not in channels:
                    tx.put(channel_key(query.name, name), Channel(name, stage).to_record())
    return after


# ---- producers -----------------------------------------------------------------------------------------------------


def push(tx: Txn, query_name: str, given: Push) -> PushResult:
    """Record a batch as pushed. Raises QueryNotFound, ChannelUnknown, Fenced, ContentMismatch, EndMarkMismatch,
    InvalidInput, LimitExceeded; SegmentUnknown when vacuum has revoked the intent of its file.
    """
    query = find_query(tx, query_name)
    channel = find_channel(tx, query, given.channel)
    check_producer(channel, given.stage, given.attempt)
    if channel.has(given.seq):
        known = digest_of(tx, query.name, channel, given.seq)
        check_repeat(channel, given.seq, known, (given.bytes, given.crc32))
        if given.attempt > channel.attempt:
            tx.put(channel_key(query.name, channel.name), replace(channel, attempt=given.attempt).to_record())
        return PushResult(kept=False)
    after = with_push(channel, given.seq, given.rows, given.attempt)
    used = used_bytes(tx, query.name)
    if not has_room(query, used, channel, given.seq, given.bytes):
        if given.attempt > channel.attempt:
            tx.put(channel_key(query.name, channel.name), replace(channel, attempt=given.attempt).to_record())
        return PushResult(kept=False, full=True)
    if given.path is None or revoked(tx, [given.path]):
        raise SegmentUnknown(f"channel {given.channel!r}: the file of sequence {given.seq} is gone; push it again")
    kept = Pushed(given.path, given.bytes, given.crc32, given.rows, given.attempt)
    tx.put(pushed_key(query.name, channel.name, given.seq), kept.to_record())
    tx.put(channel_key(query.name, channel.name), after.to_record())
    tx.put(usage_key(query.name), {"bytes": used + given.bytes})
    _count(tx, query, after)
    return PushResult(kept=True, passed=after.passed)


def end(tx: Txn, query_name: str, channel_name: str, last: int, attempt: int, rows: int | None) -> StagedQuery:
    """Record an end mark; return the query with it. Raises as `push`."""
    query = find_query(tx, query_name)
    channel = find_channel(tx, query, channel_name)
    check_producer(channel, None, attempt)
    after = with_end(channel, last, attempt, rows)
    if after != channel:
        tx.put(channel_key(query.name, channel.name), after.to_record())
    return _count(tx, query, after)


def _count(tx: Txn, query: StagedQuery, channel: Channel) -> StagedQuery:
    """Record the channel among the query's passed ones if it has passed; return the query. The push or end mark that
    completes a channel counts it.
    """
    if not channel.passed or channel.name in query.passed:
        return query
    counted = replace(query, passed=query.passed | {channel.name})
    tx.put(query_key(query.name), counted.to_record())
    return counted


# ---- consumers -----------------------------------------------------------------------------------------------------


def claim(tx: Txn, query_name: str, consumer_name: str, incarnation: int, cursor: Cursor | None) -> StageConsumer:
    """Claim a consumer for an incarnation; lower ones are refused from then on. Raises as `claimed`."""
    query = find_query(tx, query_name)
    consumer = find_consumer(tx, query, consumer_name)
    channels = {name: find_channel(tx, query, name) for name in consumer.channels}
    after = claimed(consumer, incarnation, cursor, channels)
    if after != consumer:
        tx.put(consumer_key(query.name, consumer.name), after.to_record())
    return after


def acknowledge(tx: Txn, query_name: str, consumer_name: str, incarnation: int, cursor: Cursor) -> list[str]:
    """Record the cursor that a consumer's durable state covers; return the files of batches released by it, see
    `release`.
    """
    query = find_query(tx, query_name)
    consumer = find_consumer(tx, query, consumer_name)
    channels = {name: find_channel(tx, query, name) for name in cursor if name in consumer.channels}
    after = acknowledged(consumer, incarnation, cursor, channels)
    if after == consumer:
        return []
    tx.put(consumer_key(query.name, consumer.name), after.to_record())
    return release(tx, query_name, channels)


def release(tx: Txn, query_name: str, channels: Iterable[str]) -> list[str]:
    """Release batches that every consumer has acknowledged, of these channels, RELEASED of them at most; return the
    paths of their files, which are unreachable then. An empty list means that there are no more.
    """
    query = find_query(tx, query_name)
    consumers = consumers_of(tx, query.name)
    freed: list[Pushed] = []
    for name in channels:
        channel = find_channel(tx, query, name)
        below = min(releasable(name, consumers), channel.released + RELEASED - len(freed))
        freed += _release(tx, query.name, channel, below)
    if freed:
        used = used_bytes(tx, query.name) - sum(one.bytes for one in freed)
        tx.put(usage_key(query.name), {"bytes": used})
    return [one.path for one in freed]


def _release(tx: Txn, query: str, channel: Channel, below: int) -> list[Pushed]:
    """Release a channel's batches below a sequence; their digests stay."""
    freed: list[Pushed] = []
    blocks: dict[int, bytes] = {}
    for seq, found in list(_pushed(tx, query, channel, channel.released, below)):
        number = seq // BLOCK
        if number not in blocks:
            record = tx.get(digests_key(query, channel.name, number))
            blocks[number] = record["digests"] if record else b""
        blocks[number] += DIGEST.pack(found.bytes, found.crc32)
        tx.delete(pushed_key(query, channel.name, seq))
        freed.append(found)
    for number, digests in blocks.items():
        tx.put(digests_key(query, channel.name, number), {"digests": digests})
    if below > channel.released:
        tx.put(channel_key(query, channel.name), replace(channel, released=below).to_record())
    return freed


def _pushed(view: View, query: str, channel: Channel, first: int, stop: int) -> Iterator[tuple[int, Pushed]]:
    """Yield pushed batches in sequence, none left out. Raises SequenceReleased when one was released since, Corrupt
    when a record is missing.
    """
    if first >= stop:
        return
    seq = first
    for key, record in view.scan(pushed_key(query, channel.name, first), pushed_key(query, channel.name, stop)):
        if int(key[-16:], 16) != seq:
            break
        yield seq, Pushed(**record)
        seq += 1
    if seq == stop:
        return
    if seq < channel.released:
        raise SequenceReleased(
            f"channel {channel.name!r}: sequence {seq} was acknowledged by all consumers and let go of; begin at the "
            "acknowledged cursor"
        )
    raise Corrupt(f"catalog record {pushed_key(query, channel.name, seq)!r}", "it is missing, and its batch was pushed")


# ---- what a consumer may be given ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConsumerBacklog:
    """Backlog of a consumer beyond its cursor. ends: the channels that have ended, with their last sequence."""

    incarnation: int
    ends: Mapping[str, int]
    pushed: tuple[tuple[str, int, Pushed], ...]


def look(
    view: View, query_name: str, consumer_name: str, cursor: Cursor, wanted: Iterable[str], most: int
) -> ConsumerBacklog:
    """Read the consumer's end marks, and of the wanted channels up to `most` batches each, from the cursor on."""
    query = find_query(view, query_name)
    consumer = find_consumer(view, query, consumer_name)
    ends, pushed = {}, []
    channels = {name: find_channel(view, query, name) for name in consumer.channels}
    for name, channel in channels.items():
        if channel.last is not None:
            ends[name] = channel.last
    for name in wanted:
        first, stop = cursor[name], min(channels[name].next, cursor[name] + most)
        pushed += ((name, seq, found) for seq, found in _pushed(view, query.name, channels[name], first, stop))
    return ConsumerBacklog(consumer.incarnation, ends, tuple(pushed))
