"""Catalog transactions of the staged exchange: each function runs inside a transaction.

A function reads records, calls the decisions of `state`, and writes. It raises a refusal before it writes, so several
functions may share a transaction. No other module writes the records of an exchange.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from epochlog.errors import Corrupt, InvalidInput, LimitExceeded, SegmentUnknown, SequenceReleased
from epochlog.store.catalog.protocol import ReadTxn, Txn
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
from epochlog.store.session.write_intents import find_revoked_intent

from .state import (
    MAX_CHANNELS,
    Channel,
    Cursor,
    Pushed,
    StageConsumer,
    StagedQuery,
    check_producer,
    check_repeat,
    fits_budget,
    no_channel,
    no_consumer,
    no_query,
    releasable,
    with_acknowledgement,
    with_claim,
    with_consumer,
    with_end,
    with_next_claim,
    with_push,
)

DIGEST = struct.Struct("<II")
assert DIGEST.size == DIGEST_BYTES
"""Size and CRC-32 of a batch that was released."""
DIGESTS_PER_RECORD = 512
"""Digests of released batches in one catalog record."""
MAX_RELEASED = 2_000
"""Batches that one transaction releases."""


@dataclass(frozen=True, slots=True)
class Push:
    """Batch that a producer pushes."""

    channel: str
    stage: int
    seq: int
    attempt: int
    path: str | None
    """Durable file of the batch; None if no file was written because the sequence had been pushed before."""
    bytes: int
    crc32: int
    rows: int


@dataclass(frozen=True, slots=True)
class PushResult:
    """Outcome of a push."""

    stored: bool
    """True if the catalog refers to its file now; else the sequence was pushed before, and the file is an orphan."""
    full: bool = False
    """True if the batch does not fit into the disk budget now, and its file waits."""
    passed: bool = False
    """True if the push has completed its channel."""


# ---- reading -------------------------------------------------------------------------------------------------------


def find_query(view: ReadTxn, query: str) -> StagedQuery:
    """Read a query. Raises QueryNotFound for a query that does not exist or is being dropped."""
    record = view.get(query_key(query))
    if record is None or record["dropped"]:
        raise no_query(query)
    return _decode_query(view, query, record)


def _decode_query(view: ReadTxn, query: str, record: Mapping[str, Any]) -> StagedQuery:
    """Decode a query's record. Version 0.1 recorded the channels with end marks instead of those that have passed."""
    if "passed" not in record:
        ended = [Channel.from_record(view.get(channel_key(query, name)) or {}) for name in record["ended"]]
        record = {**record, "passed": [channel.name for channel in ended if channel.passed]}
    return StagedQuery.from_record(query, record)


def find_channel(view: ReadTxn, query: StagedQuery, channel: str) -> Channel:
    """Read a channel. Raises ChannelUnknown when no consumer has declared it."""
    record = view.get(channel_key(query.name, channel))
    if record is None:
        raise no_channel(query.name, channel, (name for names in query.stages.values() for name in names))
    return Channel.from_record(record)


def find_consumer(view: ReadTxn, query: StagedQuery, consumer: str) -> StageConsumer:
    """Read a consumer. Raises InvalidInput when it was not declared."""
    record = view.get(consumer_key(query.name, consumer))
    if record is None:
        raise no_consumer(query.name, consumer)
    return StageConsumer.from_record(consumer, record)


def find_pushed(view: ReadTxn, query: str, channel: str, seq: int) -> Pushed | None:
    """Read the record of a batch; None if it was not pushed or was released."""
    record = view.get(pushed_key(query, channel, seq))
    return None if record is None else Pushed(**record)


def consumers_of(view: ReadTxn, query: str) -> list[StageConsumer]:
    return [StageConsumer.from_record(name, record) for name, record in records_of(view, b"xk", query)]


def used_bytes(view: ReadTxn, query: str) -> int:
    """Return the bytes of a query's batches on disk."""
    record = view.get(usage_key(query))
    return record["bytes"] if record else 0


def find_digest(view: ReadTxn, query: str, channel: Channel, seq: int) -> tuple[int, int] | None:
    """Return size in bytes and CRC-32 of a pushed sequence, also after its release; None if it was not pushed."""
    if not channel.has(seq):
        return None
    if seq >= channel.released:
        pushed = find_pushed(view, query, channel.name, seq)
        return None if pushed is None else (pushed.bytes, pushed.crc32)
    record = view.get(digests_key(query, channel.name, seq // DIGESTS_PER_RECORD))
    offset = seq % DIGESTS_PER_RECORD * DIGEST.size
    return None if record is None else DIGEST.unpack_from(record["digests"], offset)


def channels_of(view: ReadTxn, query_name: str) -> list[Channel]:
    """Read all channels of a query. Raises QueryNotFound."""
    query = find_query(view, query_name)
    return [find_channel(view, query, name) for names in query.stages.values() for name in names]


# ---- declaring -----------------------------------------------------------------------------------------------------


def declare(tx: Txn, new: StagedQuery, consumer: StageConsumer) -> StagedQuery:
    """Declare a consumer; the first consumer creates the query. A repeat extends the lease and changes nothing else.

    new: the query's initial state. Raises InvalidInput, SequenceReleased, LimitExceeded.
    """
    record = tx.get(query_key(new.name))
    if record is not None and record["dropped"]:
        raise InvalidInput(f"query {new.name!r} is being dropped; declare it again after that, or use another name")
    query = new if record is None else _decode_query(tx, new.name, record)
    consumer_record = tx.get(consumer_key(query.name, consumer.name))
    declared = None if consumer_record is None else StageConsumer.from_record(consumer.name, consumer_record)
    channels = {}
    for name in consumer.channels:
        channel_record = tx.get(channel_key(query.name, name))
        if channel_record is not None:
            channels[name] = Channel.from_record(channel_record)
    after = with_consumer(query, declared, consumer, channels)
    if declared is None and len(consumers_of(tx, query.name)) >= MAX_CHANNELS:
        raise LimitExceeded(f"query {query.name!r} would have more than {MAX_CHANNELS} consumers")
    after = replace(after, expires_ms=max(after.expires_ms, new.expires_ms))
    tx.put(query_key(query.name), after.to_record())
    if declared is None:
        tx.put(consumer_key(query.name, consumer.name), consumer.to_record())
        for stage, names in consumer.stages.items():
            for name in names:
                if name not in channels:
                    tx.put(channel_key(query.name, name), Channel(name, stage).to_record())
    return after


# ---- producers -----------------------------------------------------------------------------------------------------


def push(tx: Txn, query_name: str, batch: Push) -> PushResult:
    """Record a batch as pushed. Raises QueryNotFound, ChannelUnknown, Fenced, ContentMismatch, EndMarkMismatch,
    InvalidInput, LimitExceeded; SegmentUnknown when vacuum has revoked the write intent of its file.
    """
    query = find_query(tx, query_name)
    channel = find_channel(tx, query, batch.channel)
    check_producer(channel, batch.stage, batch.attempt)
    if channel.has(batch.seq):
        stored = find_digest(tx, query.name, channel, batch.seq)
        check_repeat(channel, batch.seq, stored, (batch.bytes, batch.crc32))
        if batch.attempt > channel.attempt:
            tx.put(channel_key(query.name, channel.name), replace(channel, attempt=batch.attempt).to_record())
        return PushResult(stored=False)
    after = with_push(channel, batch.seq, batch.rows, batch.attempt)
    used = used_bytes(tx, query.name)
    if not fits_budget(query, used, channel, batch.seq, batch.bytes):
        if batch.attempt > channel.attempt:
            tx.put(channel_key(query.name, channel.name), replace(channel, attempt=batch.attempt).to_record())
        return PushResult(stored=False, full=True)
    if batch.path is None or find_revoked_intent(tx, [batch.path]):
        raise SegmentUnknown(
            f"channel {batch.channel!r}: vacuum has deleted the file of sequence {batch.seq}; push it again"
        )
    pushed = Pushed(batch.path, batch.bytes, batch.crc32, batch.rows, batch.attempt)
    tx.put(pushed_key(query.name, channel.name, batch.seq), pushed.to_record())
    tx.put(channel_key(query.name, channel.name), after.to_record())
    tx.put(usage_key(query.name), {"bytes": used + batch.bytes})
    _record_passed(tx, query, after)
    return PushResult(stored=True, passed=after.passed)


def end(tx: Txn, query_name: str, channel_name: str, last: int, attempt: int, rows: int | None) -> StagedQuery:
    """Record an end mark; return the query after it. Raises the errors of `push`."""
    query = find_query(tx, query_name)
    channel = find_channel(tx, query, channel_name)
    check_producer(channel, None, attempt)
    after = with_end(channel, last, attempt, rows)
    if after != channel:
        tx.put(channel_key(query.name, channel.name), after.to_record())
    return _record_passed(tx, query, after)


def _record_passed(tx: Txn, query: StagedQuery, channel: Channel) -> StagedQuery:
    """Add a completed channel to the query's passed channels; return the query. Called by the push or end mark that
    completes the channel.
    """
    if not channel.passed or channel.name in query.passed:
        return query
    after = replace(query, passed=query.passed | {channel.name})
    tx.put(query_key(query.name), after.to_record())
    return after


# ---- consumers -----------------------------------------------------------------------------------------------------


def claim(tx: Txn, query_name: str, consumer_name: str, incarnation: int, cursor: Cursor | None) -> StageConsumer:
    """Claim a consumer for an incarnation and fence the lower ones. Raises the errors of `with_claim`."""
    query = find_query(tx, query_name)
    consumer = find_consumer(tx, query, consumer_name)
    channels = {name: find_channel(tx, query, name) for name in consumer.channels}
    after = with_claim(consumer, incarnation, cursor, channels)
    if after != consumer:
        tx.put(consumer_key(query.name, consumer.name), after.to_record())
    return after


def claim_next(tx: Txn, query_name: str, consumer_names: Iterable[str], claimant: str) -> dict[str, int]:
    """Claim the next incarnation of each consumer for the claimant and fence the lower ones; return {consumer:
    incarnation}. Raises the errors of `with_next_claim`, and then claims none.
    """
    query = find_query(tx, query_name)
    consumers = [find_consumer(tx, query, name) for name in consumer_names]
    claimed = [
        with_next_claim(consumer, claimant, {name: find_channel(tx, query, name) for name in consumer.channels})
        for consumer in consumers
    ]
    for before, after in zip(consumers, claimed, strict=True):
        if after != before:
            tx.put(consumer_key(query.name, after.name), after.to_record())
    return {consumer.name: consumer.incarnation for consumer in claimed}


def begin_read(view: ReadTxn, query_name: str, consumer_name: str, cursor: Cursor | None) -> StageConsumer:
    """Return a consumer as a claim by its newest incarnation would leave it, and change nothing. Raises the errors of
    `with_claim`.
    """
    query = find_query(view, query_name)
    consumer = find_consumer(view, query, consumer_name)
    channels = {name: find_channel(view, query, name) for name in consumer.channels}
    return with_claim(consumer, consumer.incarnation, cursor, channels)


def acknowledge(tx: Txn, query_name: str, consumer_name: str, incarnation: int, cursor: Cursor) -> list[str]:
    """Record the cursor of a consumer's durable state; return the paths of the files released by it, as `release`
    does.
    """
    query = find_query(tx, query_name)
    consumer = find_consumer(tx, query, consumer_name)
    channels = {name: find_channel(tx, query, name) for name in cursor if name in consumer.channels}
    after = with_acknowledgement(consumer, incarnation, cursor, channels)
    if after == consumer:
        return []
    tx.put(consumer_key(query.name, consumer.name), after.to_record())
    return release(tx, query_name, channels)


def release(tx: Txn, query_name: str, channels: Iterable[str]) -> list[str]:
    """Release at most MAX_RELEASED batches of these channels that every consumer has acknowledged; return the paths of
    their files, which are unreachable then. An empty list means that no such batch remains.
    """
    query = find_query(tx, query_name)
    consumers = consumers_of(tx, query.name)
    released: list[Pushed] = []
    for name in channels:
        channel = find_channel(tx, query, name)
        below = min(releasable(name, consumers), channel.released + MAX_RELEASED - len(released))
        released += _release(tx, query.name, channel, below)
    if released:
        used = used_bytes(tx, query.name) - sum(batch.bytes for batch in released)
        tx.put(usage_key(query.name), {"bytes": used})
    return [batch.path for batch in released]


def _release(tx: Txn, query: str, channel: Channel, below: int) -> list[Pushed]:
    """Release a channel's batches below a sequence and keep their digests."""
    released: list[Pushed] = []
    blocks: dict[int, bytes] = {}
    for seq, batch in list(_scan_pushed(tx, query, channel, channel.released, below)):
        number = seq // DIGESTS_PER_RECORD
        if number not in blocks:
            record = tx.get(digests_key(query, channel.name, number))
            blocks[number] = record["digests"] if record else b""
        blocks[number] += DIGEST.pack(batch.bytes, batch.crc32)
        tx.delete(pushed_key(query, channel.name, seq))
        released.append(batch)
    for number, digests in blocks.items():
        tx.put(digests_key(query, channel.name, number), {"digests": digests})
    if below > channel.released:
        tx.put(channel_key(query, channel.name), replace(channel, released=below).to_record())
    return released


def _scan_pushed(view: ReadTxn, query: str, channel: Channel, first: int, stop: int) -> Iterator[tuple[int, Pushed]]:
    """Yield the pushed batches from `first` to below `stop`, without a gap. Raises SequenceReleased for a batch that
    was released meanwhile, Corrupt for a missing record.
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
            f"channel {channel.name!r}: sequence {seq} was acknowledged by all consumers and deleted; begin at the "
            "acknowledged cursor"
        )
    raise Corrupt(
        f"catalog record {pushed_key(query, channel.name, seq)!r}", "it is missing, although its batch was pushed"
    )


# ---- a consumer's backlog --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConsumerBacklog:
    """Batches and end marks of a consumer beyond its cursor."""

    incarnation: int
    ends: Mapping[str, int]
    """Last sequence of each channel that has ended."""
    pushed: tuple[tuple[str, int, Pushed], ...]


def read_backlog(
    view: ReadTxn, query_name: str, consumer_name: str, cursor: Cursor, names: Iterable[str], limit: int
) -> ConsumerBacklog:
    """Read the consumer's end marks, and up to `limit` batches of each named channel, from the cursor on."""
    query = find_query(view, query_name)
    consumer = find_consumer(view, query, consumer_name)
    ends, pushed = {}, []
    channels = {name: find_channel(view, query, name) for name in consumer.channels}
    for name, channel in channels.items():
        if channel.last is not None:
            ends[name] = channel.last
    for name in names:
        first, stop = cursor[name], min(channels[name].next, cursor[name] + limit)
        pushed += ((name, seq, batch) for seq, batch in _scan_pushed(view, query.name, channels[name], first, stop))
    return ConsumerBacklog(consumer.incarnation, ends, tuple(pushed))
