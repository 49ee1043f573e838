"""Messages of the staged exchange, and the codec between them and bytes from a stranger.

A message is a msgpack map with exactly the fields of its kind; every field is checked before it is used. The file of a
batch travels beside its message as rows of one column of bytes: so gRPC sends it from where it lies, and what comes
is used where it came to lie. docs/formats/flight.md has the fields.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgpack
import pyarrow as pa

from epochlog.errors import BadMessage, EpochlogError, InvalidInput, by_name
from epochlog.exchange.transport.errors import encode_error

from .state import MAX_SEQ, MOST_CHANNELS, is_name

MAX_BATCH = 64 << 20
"""Bytes of a batch's file."""
MAX_FIELDS = 1 << 20
"""Bytes of a message."""
FILE = pa.schema([pa.field("file", pa.uint8(), nullable=False)])
"""The column in which a file travels."""
PUSH, MAIL = b"staged.push.2", b"staged.mail.2"
"""The names of the exchanges, with the version of what they carry: a client of another one is told so at once."""
MAX_NUMBER = (1 << 63) - 1
MAX_STAGE = 1 << 31
MAX_TEXT = 4_000
_ALIGN = 8
_log = logging.getLogger("epochlog")

Check = Callable[[Any], Any]
Fields = dict[str, Any]


# ---- checks of one field -------------------------------------------------------------------------------------------


def name(value: Any) -> str:
    if not is_name(value):
        raise BadMessage("a name is none")
    return value


def number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise BadMessage("a number is no whole number from 0")
    return value


def seq(value: Any) -> int:
    if number(value) > MAX_SEQ:
        raise BadMessage(f"a sequence is above {MAX_SEQ}")
    return value


def last(value: Any) -> int:
    return -1 if type(value) is int and value == -1 else seq(value)


def stage(value: Any) -> int:
    if type(value) is not int or not -MAX_STAGE <= value <= MAX_STAGE:
        raise BadMessage("a stage is no whole number")
    return value


def flag(value: Any) -> bool:
    if type(value) is not bool:
        raise BadMessage("a flag is neither true nor false")
    return value


def text(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_TEXT:
        raise BadMessage("a text is none, or too long")
    return value


def padding(value: Any) -> bytes:
    if type(value) is not bytes or len(value) > 2 * _ALIGN:
        raise BadMessage("padding is no bytes, or too many")
    return value


def maybe(check: Check) -> Check:
    """Return a check that accepts None, and any value that `check` accepts."""
    return lambda value: None if value is None else check(value)


def cursor(value: Any) -> dict[str, int]:
    if type(value) is not dict or len(value) > MOST_CHANNELS:
        raise BadMessage("a cursor is no map of channels")
    return {name(channel): seq(at) for channel, at in value.items()}


def stages(value: Any) -> dict[int, tuple[str, ...]]:
    """Check a list of [stage, channels], in which each channel stands once; return {stage: channels} in rising order.
    Raises BadMessage.
    """
    if type(value) is not list or not 0 < len(value) <= MOST_CHANNELS:
        raise BadMessage("stages are no list, or an empty one")
    found: dict[int, tuple[str, ...]] = {}
    for each in value:
        if type(each) is not list or len(each) != 2 or type(each[1]) is not list or len(each[1]) > MOST_CHANNELS:
            raise BadMessage("a stage is no pair of a number and channels")
        found[stage(each[0])] = tuple(map(name, each[1]))
    names = [channel for channels in found.values() for channel in channels]
    if len(found) != len(value) or len(set(names)) != len(names) or not 0 < len(names) <= MOST_CHANNELS:
        raise BadMessage("a stage or a channel is named twice, or there is none")
    return {at: found[at] for at in sorted(found)}


# ---- messages ------------------------------------------------------------------------------------------------------

DECLARE: Mapping[str, Check] = {
    "query": name,
    "consumer": name,
    "stages": stages,
    "lease_ms": maybe(number),
    "budget": maybe(number),
}
END: Mapping[str, Check] = {"query": name, "channel": name, "last": last, "attempt": number, "rows": maybe(number)}
ACK: Mapping[str, Check] = {"query": name, "consumer": name, "incarnation": number, "cursor": cursor}
QUERY: Mapping[str, Check] = {"query": name}
"""Of the actions that ask for the stage, or drop a query."""
STAGE: Mapping[str, Check] = {"stage": stage}
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
ANSWER: Mapping[str, Check] = {"id": number, "error": maybe(text), "text": maybe(text), "final": flag}
"""Of a push: without an error it is durable; an error that is not final is why it waits. id 0 is no push's, and says
that the server is alive.
"""
MAIL_HELLO: Mapping[str, Check] = {
    "query": name,
    "consumer": name,
    "incarnation": number,
    "cursor": maybe(cursor),
    "window": number,
    "mail": text,
    "line": number,
}
"""`line` counts the lines of one `mail`: one that comes late does not replace a later one."""
TAKEN: Mapping[str, Check] = {"bytes": number}
"""What the consumer's own process has taken off the window."""
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
LETTERS: Mapping[str, Mapping[str, Check]] = {
    "started": STARTED,
    "item": ITEM,
    "ended": ENDED,
    "alive": ALIVE,
    "damaged": DAMAGED,
    "refused": REFUSED,
}
"""What a consumer is sent, by kind; only an item has a file beside it."""


def pack(**fields: Any) -> bytes:
    """Encode the fields as a message."""
    packed = msgpack.packb(fields, use_bin_type=True)
    assert isinstance(packed, bytes)
    return packed


def unpack(message: bytes | memoryview, checks: Mapping[str, Check]) -> Fields:
    """Decode a message from a stranger and check its fields. Raises BadMessage, and nothing else."""
    return _checked(_map(message), checks)


def decode_batch(message: bytes | memoryview) -> Fields:
    """Decode a message to a consumer, of any kind in LETTERS, and check its fields. Raises BadMessage, and nothing
    else.
    """
    found = _map(message)
    kind = found.get("kind")
    checks = LETTERS.get(kind) if isinstance(kind, str) else None
    if checks is None:
        raise BadMessage("a message is of no kind that this version knows")
    return _checked(found, checks)


def _map(message: bytes | memoryview) -> Fields:
    if len(message) > MAX_FIELDS:
        raise BadMessage(f"a message has {len(message)} bytes; at most {MAX_FIELDS} are taken")
    try:
        found = msgpack.unpackb(message, raw=False, strict_map_key=True, max_ext_len=0)
    except Exception:  # noqa: BLE001 (whatever a decoder makes of a stranger's bytes)
        raise BadMessage("a message is no msgpack map") from None
    if type(found) is not dict:
        raise BadMessage("a message is no msgpack map")
    return found


def _checked(found: Fields, checks: Mapping[str, Check]) -> Fields:
    if found.keys() != checks.keys():
        raise BadMessage("a message lacks a field, or has one that none has")
    return {field: check(found[field]) for field, check in checks.items()}


# ---- files ---------------------------------------------------------------------------------------------------------


def as_rows(file: pa.Buffer) -> pa.RecordBatch:
    """Wrap a file as rows of one column, the form in which it travels; nothing is copied."""
    return pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.uint8(), file.size, [None, file])], schema=FILE)


def file_of(rows: pa.RecordBatch | None) -> pa.Buffer:
    """Return the file that came beside a message from a stranger; nothing is copied. Raises BadMessage."""
    if rows is None or rows.schema != FILE:
        raise BadMessage("a batch comes as rows of one column, the bytes of its file")
    (column,) = rows.columns
    values = column.buffers()[1] or pa.py_buffer(b"")
    if column.null_count or column.offset or values.size < len(column):
        raise BadMessage("the rows of a batch are not the bytes of a file")
    if len(column) > MAX_BATCH:
        raise BadMessage(f"a batch has {len(column)} bytes; at most {MAX_BATCH} are taken")
    return values.slice(0, len(column))


def padded(size: int, **fields: Any) -> bytes:
    """Encode a message with a field `pad` of such a length that the file of `size` bytes that follows it begins at a
    multiple of 8 bytes of gRPC's buffer: then its consumer can use the file without copying it once more.
    """
    before = 1 + _varint(_ROWS_HEAD) + _ROWS_HEAD + 2 + _varint(-(-size // _ALIGN) * _ALIGN)
    longer = (pack(**fields, pad=bytes(length)) for length in range(2 * _ALIGN))
    return next(message for message in longer if not (before + 1 + _varint(len(message)) + len(message)) % _ALIGN)


def _varint(number: int) -> int:
    """Return the number of bytes that protobuf needs for a number."""
    return max(1, -(-number.bit_length() // 7))


_ROWS_HEAD = pa.ipc.get_record_batch_size(as_rows(pa.py_buffer(bytes(_ALIGN)))) - 2 * _ALIGN
"""The bytes that say what the rows of a file are: Flight's message has them, then ours, then the file."""


def as_fields(error: BaseException | None) -> tuple[str | None, str | None]:
    """Return an error of a push as name and text for its answer; for an untyped error the text points to the server's
    log. None gives (None, None).
    """
    if error is None:
        return None, None
    if isinstance(error, EpochlogError):
        name, text = encode_error(error)
        return name, text[:MAX_TEXT]
    _log.error("a push failed", exc_info=error)
    return EpochlogError.__name__, "the server failed at this push; its own log says why"


def as_error(name: str, text: str) -> EpochlogError:
    """Build the error that an answer names."""
    return by_name(name, text) or EpochlogError(text)


def stages_of(given: object) -> list[list[Any]]:
    """Convert stages as a user gives them, {stage: channels}, into a field. Raises InvalidInput."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"stages is a dict of stages to channels, such as {{-1: ['build']}}, not {given!r}")
    if any(isinstance(channels, str) or not isinstance(channels, Iterable) for channels in given.values()):
        raise InvalidInput(f"stages gives each stage a list of channels, not {given!r}")
    found = [[at, list(channels)] for at, channels in given.items()]
    try:
        stages(found)
    except BadMessage as error:
        raise InvalidInput(f"stages {given!r} cannot be declared: {error}") from None
    return found
