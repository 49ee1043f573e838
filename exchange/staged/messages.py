"""Messages of the staged exchange: their fields, and the codec that checks bytes from an untrusted peer.

A message is a msgpack map with exactly the fields of its kind; every field is checked before it is used. The file of a
batch is sent beside its message as rows of one column of bytes, so neither end copies it. docs/formats/flight.md has
the fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgpack
import pyarrow as pa

from epochlog.errors import BadMessage, EpochlogError, InvalidInput, by_name
from epochlog.exchange.transport.errors import encode_error
from epochlog.exchange.transport.message_fields import (
    MAX_TEXT,
    Check,
    exactly,
    flag,
    from_msgpack,
    number,
    optional,
    text,
    up_to,
)
from epochlog.store.env.log_events import DEFECT

from .state import MAX_CHANNELS, MAX_SEQ, ChannelProgress, is_name

MAX_BATCH = 64 << 20
"""Bytes of a batch's file."""
MAX_MESSAGE_BYTES = 1 << 20
"""Bytes of a message without its file."""
FILE_SCHEMA = pa.schema([pa.field("file", pa.uint8(), nullable=False)])
"""Column in which a file is sent."""
PUSH, PULL = b"staged.push.2", b"staged.mail.2"
"""Names of the exchanges, with the version of their messages: the server refuses clients of other versions at once."""
MAX_STAGE = 1 << 31
_ALIGN = 8

Fields = dict[str, Any]


# ---- checks of one field -------------------------------------------------------------------------------------------


def name(value: Any) -> str:
    if not is_name(value):
        raise BadMessage("a name is not 1 to 63 letters, digits, _ . : or -")
    return value


seq = up_to(MAX_SEQ, "a sequence")


def last(value: Any) -> int:
    return -1 if type(value) is int and value == -1 else seq(value)


def stage(value: Any) -> int:
    if type(value) is not int or not -MAX_STAGE <= value <= MAX_STAGE:
        raise BadMessage("a stage is not an int within its range")
    return value


def padding(value: Any) -> bytes:
    if type(value) is not bytes or len(value) > 2 * _ALIGN:
        raise BadMessage("padding is not bytes, or too long")
    return value


def cursor(value: Any) -> dict[str, int]:
    if type(value) is not dict or len(value) > MAX_CHANNELS:
        raise BadMessage("a cursor is not a map of channels, or too large")
    return {name(channel): seq(next_seq) for channel, next_seq in value.items()}


def stages(value: Any) -> dict[int, tuple[str, ...]]:
    """Check a list of [stage, channels] with distinct channels; return {stage: channels} in rising order of stages.
    Raises BadMessage.
    """
    if type(value) is not list or not 0 < len(value) <= MAX_CHANNELS:
        raise BadMessage("stages are not a list, or an empty or too long one")
    channels_by_stage: dict[int, tuple[str, ...]] = {}
    for pair in value:
        if type(pair) is not list or len(pair) != 2 or type(pair[1]) is not list or len(pair[1]) > MAX_CHANNELS:
            raise BadMessage("a stage is not a pair of a number and channels")
        channels_by_stage[stage(pair[0])] = tuple(map(name, pair[1]))
    names = [channel for channels in channels_by_stage.values() for channel in channels]
    if len(channels_by_stage) != len(value) or len(set(names)) != len(names):
        raise BadMessage("a stage or a channel is named twice")
    if not 0 < len(names) <= MAX_CHANNELS:
        raise BadMessage(f"a query has 1 to {MAX_CHANNELS} channels, and this one has {len(names)}")
    return dict(sorted(channels_by_stage.items()))


def names(value: Any) -> tuple[str, ...]:
    if type(value) is not list or not 0 < len(value) <= MAX_CHANNELS:
        raise BadMessage("names are not a list, or an empty or too long one")
    checked = tuple(map(name, value))
    if len(set(checked)) != len(checked):
        raise BadMessage("a name is given twice")
    return checked


def incarnations(value: Any) -> dict[str, int]:
    if type(value) is not dict or len(value) > MAX_CHANNELS:
        raise BadMessage("incarnations are not a map of consumers, or too large")
    return {name(consumer): number(incarnation) for consumer, incarnation in value.items()}


def progress(value: Any) -> dict[str, ChannelProgress]:
    """Check a list of [channel, stage, next sequence, last sequence or None]. Raises BadMessage."""
    if type(value) is not list or len(value) > MAX_CHANNELS:
        raise BadMessage("the channels of a query are not a list, or too many")
    if any(type(channel) is not list or len(channel) != 4 for channel in value):
        raise BadMessage("a channel is not a list of its name, stage, next and last sequence")
    return {
        name(channel): ChannelProgress(stage(number), seq(next_seq), optional(last)(last_seq))
        for channel, number, next_seq, last_seq in value
    }


# ---- messages ------------------------------------------------------------------------------------------------------

DECLARE: Mapping[str, Check] = {
    "query": name,
    "consumer": name,
    "stages": stages,
    "lease_ms": optional(number),
    "budget": optional(number),
}
END: Mapping[str, Check] = {"query": name, "channel": name, "last": last, "attempt": number, "rows": optional(number)}
ACK: Mapping[str, Check] = {"query": name, "consumer": name, "incarnation": number, "cursor": cursor}
CLAIM: Mapping[str, Check] = {"query": name, "consumers": names, "claimant": name}
CLAIMED: Mapping[str, Check] = {"incarnations": incarnations}
QUERY: Mapping[str, Check] = {"query": name}
"""Of the actions that read the stage counter or the channels, or drop a query."""
STAGE: Mapping[str, Check] = {"stage": stage}
WAIT: Mapping[str, Check] = {"query": name, "stage": stage, "wait_ms": number}
PROGRESS: Mapping[str, Check] = {"channels": progress}
PUSH_HELLO: Mapping[str, Check] = {"query": name}
PUSHED: Mapping[str, Check] = {
    "id": number,
    "channel": name,
    "stage": stage,
    "seq": seq,
    "attempt": number,
    "crc32": number,
    "wait_ms": number,
}
ANSWER: Mapping[str, Check] = {"id": number, "error": optional(text), "text": optional(text), "final": flag}
"""Answer to a push. Without an error the batch is durable; an error that is not final is the reason why it waits. An
answer with id 0 is a heartbeat of the server.
"""
PULL_HELLO: Mapping[str, Check] = {
    "query": name,
    "consumer": name,
    "incarnation": optional(number),
    "cursor": optional(cursor),
    "window": number,
    "mail": text,
    "line": number,
}
"""First message of a stage reader. Without an incarnation it reads and does not claim the consumer. `mail` is the
reader's id, `line` the number of its stream: a stream that arrives late does not replace a later one.
"""
CREDIT: Mapping[str, Check] = {"bytes": number}
"""Bytes that the consumer has taken from the reader, by which the server may send more."""
STARTED: Mapping[str, Check] = {"kind": text, "cursor": cursor, "stages": stages}
ENDED: Mapping[str, Check] = {"kind": text, "channel": name, "last": last}
ALIVE: Mapping[str, Check] = {"kind": text}
ITEM: Mapping[str, Check] = {
    "kind": text,
    "channel": name,
    "seq": seq,
    "crc32": number,
    "path": text,
    "pad": padding,
}
DAMAGED: Mapping[str, Check] = {"kind": text, "path": text, "what": text}
REFUSED: Mapping[str, Check] = {"kind": text, "error": text, "text": text}
READER_MESSAGES: Mapping[str, Mapping[str, Check]] = {
    "started": STARTED,
    "item": ITEM,
    "ended": ENDED,
    "alive": ALIVE,
    "damaged": DAMAGED,
    "refused": REFUSED,
}
"""Messages to a stage reader, by kind; only an item has a file beside it."""


def pack(**fields: Any) -> bytes:
    """Encode the fields as a message."""
    packed = msgpack.packb(fields, use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


def unpack(message: bytes | memoryview, checks: Mapping[str, Check]) -> Fields:
    """Decode a message of an untrusted peer and check its fields. Raises BadMessage only."""
    return exactly(_decode_map(message), checks)


def decode_reader_message(message: bytes | memoryview) -> Fields:
    """Decode a message to a stage reader, of any kind in READER_MESSAGES, and check its fields. Raises BadMessage
    only.
    """
    fields = _decode_map(message)
    kind = fields.get("kind")
    checks = READER_MESSAGES.get(kind) if isinstance(kind, str) else None
    if checks is None:
        raise BadMessage("a message has a kind that this version does not know")
    return exactly(fields, checks)


def _decode_map(message: bytes | memoryview) -> Fields:
    if len(message) > MAX_MESSAGE_BYTES:
        raise BadMessage(f"a message has {len(message)} bytes; at most {MAX_MESSAGE_BYTES} are accepted")
    fields = from_msgpack(message)
    if type(fields) is not dict:
        raise BadMessage("a message is not a msgpack map")
    return fields


# ---- files ---------------------------------------------------------------------------------------------------------


def rows_from_file(file: pa.Buffer) -> pa.RecordBatch:
    """Wrap a file as rows of one column, in which it is sent; copies nothing."""
    return pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.uint8(), file.size, [None, file])], schema=FILE_SCHEMA)


def file_from_rows(rows: pa.RecordBatch | None) -> pa.Buffer:
    """Return the file that an untrusted peer sent beside a message; copies nothing. Raises BadMessage."""
    if rows is None or rows.schema != FILE_SCHEMA:
        raise BadMessage("a message of a batch lacks the bytes of its file, as rows of one column")
    (column,) = rows.columns
    values = column.buffers()[1] or pa.py_buffer(b"")
    if column.null_count or column.offset or values.size < len(column):
        raise BadMessage("the rows of a batch are not the bytes of a file")
    if len(column) > MAX_BATCH:
        raise BadMessage(f"a batch has {len(column)} bytes; at most {MAX_BATCH} are accepted")
    return values.slice(0, len(column))


def pack_aligned(size: int, **fields: Any) -> bytes:
    """Encode a message with a field `pad` that aligns the following file of `size` bytes to 8 bytes in gRPC's buffer.
    The consumer can then use the file without a copy.
    """
    before = 1 + _varint_bytes(_ROWS_HEAD) + _ROWS_HEAD + 2 + _varint_bytes(-(-size // _ALIGN) * _ALIGN)
    candidates = (pack(**fields, pad=bytes(length)) for length in range(2 * _ALIGN))
    return next(
        message for message in candidates if not (before + 1 + _varint_bytes(len(message)) + len(message)) % _ALIGN
    )


def _varint_bytes(number: int) -> int:
    """Return the size of a protobuf varint."""
    return max(1, -(-number.bit_length() // 7))


_ROWS_HEAD = pa.ipc.get_record_batch_size(rows_from_file(pa.py_buffer(bytes(_ALIGN)))) - 2 * _ALIGN
"""Bytes of Arrow's metadata of a file's rows. Flight sends this metadata, then our message, then the file."""


def error_to_fields(error: BaseException | None) -> tuple[str | None, str | None]:
    """Return an error as name and text for a message, (None, None) for None. The text of an untyped error refers to the
    server's log.
    """
    if error is None:
        return None, None
    if isinstance(error, EpochlogError):
        name, text = encode_error(error)
        return name, text[:MAX_TEXT]
    DEFECT.log(what="a push", error=error)
    return EpochlogError.__name__, "the server failed at this push; its own log says why"


def error_from_fields(name: str, text: str) -> EpochlogError:
    """Build the error of a message's name and text."""
    return by_name(name, text) or EpochlogError(text)


def stages_to_field(declared: object) -> list[list[Any]]:
    """Convert the {stage: channels} of a user into a field. Raises InvalidInput."""
    if not isinstance(declared, Mapping):
        raise InvalidInput(f"stages is a dict of stages to channels, such as {{-1: ['build']}}, not {declared!r}")
    if any(isinstance(channels, str) or not isinstance(channels, Iterable) for channels in declared.values()):
        raise InvalidInput(f"stages gives each stage a list of channels, not {declared!r}")
    pairs = [[number, list(channels)] for number, channels in declared.items()]
    try:
        stages(pairs)
    except BadMessage as error:
        raise InvalidInput(f"stages {declared!r} cannot be declared: {error}") from None
    return pairs
