"""Snapshot tokens: tables and their epochs as a short URL-safe string; reading by a token repeats its snapshot."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgpack

from epochlog.errors import InvalidInput
from epochlog.store.types.epoch import MAX_EPOCH

FORMAT = 2
"""Newest format; 1 has no policy."""
MAX_TOKEN_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class Entry:
    """Table of a token: its id, since a table created again under an old name is another table, and its epoch."""

    table_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Token:
    """Decoded token: the store's id ("" when unknown), the entries by table name, the reasons for tables left out, by
    name, and the policy that chose the epochs, in words ("" when unknown).
    """

    store_id: str
    entries: Mapping[str, Entry]
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    policy: str = ""


def encode_token(
    epochs: Mapping[int, int],
    names: Mapping[int, str],
    store_id: str = "",
    left_out: Mapping[str, str] | None = None,
    policy: str = "",
) -> str:
    """Return the token of a snapshot that read table `id` at `epochs[id]`: about 40 characters a table, the reasons,
    and the policy.
    """
    rows = [[names[table_id], table_id, epoch] for table_id, epoch in epochs.items()]
    reasons = list(map(list, (left_out or {}).items()))
    if policy:
        record = [FORMAT, store_id, rows, reasons, policy]
    else:
        record = [1, store_id, rows, *([reasons] if reasons else [])]
    body: bytes = msgpack.packb(record)  # pyright: ignore[reportAssignmentType]: its stub adds None
    return _to_base64(zlib.crc32(body).to_bytes(4, "big") + body)


def decode_token(token: str) -> Token:
    """Decode the text that `encode_token` wrote. Raises InvalidInput for text that is cut, changed or of a newer
    format.
    """
    if not isinstance(token, str) or len(token) > MAX_TOKEN_CHARS or not token.isascii():
        raise _invalid("it is not ASCII text of a token's length")
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _invalid("it is not base64") from None
    body = raw[4:]
    if _to_base64(raw) != token:  # the last character can hold bits that decoding drops
        raise _invalid("its end was changed")
    if len(raw) < 5 or zlib.crc32(body).to_bytes(4, "big") != raw[:4]:
        raise _invalid("its checksum does not match")
    try:
        record = msgpack.unpackb(body)
    except (ValueError, msgpack.UnpackException):
        raise _invalid("it contains no record") from None
    if isinstance(record, list) and record and record[0] not in (1, FORMAT):
        raise _invalid(f"this version does not know its format {record[0]!r}")
    match record:
        case [1, str(store_id), list(rows)]:
            return Token(store_id, dict(map(_entry, rows)))
        case [1, str(store_id), list(rows), list(left_out)]:
            return Token(store_id, dict(map(_entry, rows)), dict(map(_reason, left_out)))
        case [2, str(store_id), list(rows), list(left_out), str(policy)]:
            return Token(store_id, dict(map(_entry, rows)), dict(map(_reason, left_out)), policy)
    raise _invalid("it contains no list of tables")


def _entry(row: object) -> tuple[str, Entry]:
    match row:
        case [str(name), int(table_id), int(epoch)] if 0 <= epoch <= MAX_EPOCH:
            return name, Entry(table_id, epoch)
    raise _invalid("one of its entries is not a table with an epoch")


def _reason(row: object) -> tuple[str, str]:
    match row:
        case [str(name), str(reason)]:
            return name, reason
    raise _invalid("a table that it leaves out has no reason")


def _to_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _invalid(problem: str) -> InvalidInput:
    return InvalidInput(
        f"invalid snapshot token: {problem}. Pass `snapshot.token` of an earlier snapshot unchanged, or, to read a "
        "tag, `tag.token` of one of store.tags()"
    )
