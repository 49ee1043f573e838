"""Common parts of data files (segments and run files): checksums, key bounds, blocks and statistics."""

from __future__ import annotations

import base64
import threading
import zlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import Corrupt
from epochlog.store.env.files import SMALL_BYTES, Files
from epochlog.store.env.lru_cache import CacheKey
from epochlog.store.types.arrays import from_numpy, to_numpy
from epochlog.store.types.key_codec import Key, KeyCodec, contiguous, search
from epochlog.store.types.key_range import KeyRange
from epochlog.store.types.schema import TableSchema

from .download_cache import downloads
from .merge import Rows

Stats = dict[str, tuple[Any, Any]]
"""Least and greatest value of each key column: int, float, str, bytes or bool; times and dates as their integers."""

REPLACED = b"epochlog.replaced"
"""Entry of the schema's metadata in a file of pre-images: a bit for each change of its log epoch in the file's range of
keys, in key order, set if the change replaces a row. The rows of the file are those of the set bits.
"""
KEY = "_key"
OP = "_op"
UPSERT, DELETE = 0, 1
EPOCH, UNTIL = "_epoch", "_until"
"""Hidden int64 columns of run files: the first epoch that sees a row, and (in history) the first that no longer sees
it.
"""

_VERIFIED_LIMIT = 100_000
_verified: OrderedDict[tuple[object, ...], None] = OrderedDict()
_verified_lock = threading.Lock()


class FileMissing(Corrupt):
    """Error: a data file is missing. Only the catalog can tell if the store is damaged (retention/stale_reads.py)."""


def verified(files: Files, path: str, size: int, crc32: int, *, recheck: bool = False) -> pa.Buffer:
    """Return all bytes of a file, after a check of its size and checksum against the catalog's.

    The first read by this process computes the checksum; of a small file every read does, and with `recheck` of any. A
    remote file is then cached in memory. Raises Corrupt for a damaged or missing file, and ReadFailed if the file
    system does not answer or refuses.
    """
    try:
        if files.remote:
            return _download(files, path, size, crc32, recheck=recheck)
        stamp = identity(files, path, size, crc32) if size > SMALL_BYTES else None
        data = files.read(path)
    except FileNotFoundError as error:
        raise FileMissing(path, "the file is gone") from error
    if data.size != size:
        raise Corrupt(path, f"it has {data.size} bytes, not {size}")
    if stamp is None:
        _check_crc32(path, data, crc32)
        return data
    with _verified_lock:
        if stamp in _verified and not recheck:
            return data
    _check_crc32(path, data, crc32)
    with _verified_lock:
        _verified[stamp] = None
        while len(_verified) > _VERIFIED_LIMIT:
            _verified.popitem(last=False)
    return data


def compression(files: Files, *, seldom_read: bool = False) -> Literal["lz4", "zstd"]:
    """Return the compression of data files: zstd for remote or seldom read files, to have fewer bytes; else lz4, which
    decodes in at most half of zstd's time. Every reader decodes both.
    """
    return "zstd" if files.remote or seldom_read else "lz4"


def identity(files: Files, path: str, size: int, crc32: int) -> CacheKey:
    """Return a cache key for the current content of a file. It changes if the content changes."""
    if files.remote:
        return files.place, path, size, crc32
    try:
        return *files.stamp(path), size, crc32
    except FileNotFoundError as error:
        raise FileMissing(path, "the file is gone") from error


def _download(files: Files, path: str, size: int, crc32: int, *, recheck: bool) -> pa.Buffer:
    """Return a remote file from the cache, or download it."""
    cache_key = identity(files, path, size, crc32)
    cached = None if recheck else downloads.get(cache_key)
    if cached is not None:
        return cached
    data = files.read(path)
    if data.size != size:
        raise Corrupt(path, f"it has {data.size} bytes, not {size}")
    _check_crc32(path, data, crc32)
    downloads.put(cache_key, data)
    return data


def _check_crc32(path: str, data: pa.Buffer, crc32: int) -> None:
    actual = zlib.crc32(data)
    if actual != crc32:
        raise Corrupt(path, f"its checksum is {actual:08x}, not {crc32:08x}")


def key_stats(codec: KeyCodec, data: pa.Table) -> Stats:
    """Return the (min, max) of each key column. Decimals, halves and floats with a NaN have no bounds."""
    stats: Stats = {}
    for name in codec.primary_key:
        column, kind = data.column(name), codec.schema.field(name).type
        if (
            pa.types.is_decimal(kind)
            or pa.types.is_float16(kind)
            or (pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py())
        ):
            continue
        if pa.types.is_temporal(kind):
            storage = pa.int32() if kind.bit_width == 32 else pa.int64()
            column = pa.chunked_array([chunk.view(storage) for chunk in column.chunks], storage)
        bounds = pc.min_max(column).as_py()
        stats[name] = (bounds["min"], bounds["max"])
    return stats


def without(record: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return the record without these fields, which have their defaults: records of earlier releases lack them."""
    return {name: value for name, value in record.items() if name not in names}


def block_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the fields `stats`, `blocks` and `sizes` of a descriptor's record; raise ValueError if they disagree."""
    stats = {name: tuple(bounds) for name, bounds in record["stats"].items()}
    blocks = tuple(record["blocks"])
    sizes = {
        name: tuple(block_bytes) for name, block_bytes in record.get("sizes", {}).items()
    }  # version 0.1 wrote none
    for name, block_bytes in sizes.items():
        if len(block_bytes) != len(blocks) or not all(type(size) is int and size >= 0 for size in block_bytes):
            raise ValueError(f"{len(blocks)} blocks, and in {name!r} sizes {block_bytes!r:.100}")
    return {"stats": stats, "blocks": blocks, "sizes": sizes}


def file_table(schema: TableSchema, codec: KeyCodec, rows: Rows, extra: Sequence[str] = ()) -> pa.Table:
    """Build the Arrow table of a file: the table's columns, `_key` for hidden keys, `_op` if there are tombstones, and
    the int64 columns `extra`.
    """
    deleted = rows.deleted
    optional = set() if deleted is None else set(schema.schema.names) - set(codec.primary_key)
    fields = [field.with_nullable(field.nullable or field.name in optional) for field in schema.schema]
    columns: list[pa.ChunkedArray | pa.Array] = list(rows.data.select(schema.schema.names).columns)
    if codec.hidden:
        fields.append(pa.field(KEY, codec.key_type, nullable=False))
        columns.append(rows.keys)
    if deleted is not None:
        fields.append(pa.field(OP, pa.uint8(), nullable=False))
        columns.append(from_numpy(np.where(deleted, DELETE, UPSERT).astype(np.uint8)))
    for name in extra:
        fields.append(pa.field(name, pa.int64(), nullable=False))
        columns.append(rows.data.column(name))
    return pa.table(columns, schema=pa.schema(fields))


def blocks_of(
    blocks: Sequence[Key], key_range: KeyRange, passing: Sequence[KeyRange] | None, *, repeated: bool = False
) -> list[int]:
    """List the blocks that may have keys of the range, and of one of the `passing` ranges if these are given.

    blocks: the first key of each block, ascending. repeated: a key may occur several times, in adjacent blocks too.
    """
    chosen = range(*_block_span(blocks, key_range, repeated))
    if passing is None:
        return list(chosen)
    matching = {block for keys in passing for block in range(*_block_span(blocks, keys, repeated))}
    return [block for block in chosen if block in matching]


def block_groups(chosen: Sequence[int], blocks: int, rows: int, together: int) -> list[Sequence[int]]:
    """Cut a list of blocks of a file into groups of about `together` rows, each of at least one block.

    blocks, rows: numbers of the whole file.
    """
    count = max(1, together * blocks // max(1, rows))
    return [chosen[place : place + count] for place in range(0, len(chosen), count)]


def _block_span(blocks: Sequence[Key], key_range: KeyRange, repeated: bool) -> tuple[int, int]:
    low, high = key_range
    before = bisect_left if repeated else bisect_right
    first = 0 if low is None else max(0, before(blocks, low) - 1)
    end = len(blocks) if high is None else bisect_left(blocks, high)
    return first, max(first, end)


def row_span(codec: KeyCodec, keys: pa.Array, key_range: KeyRange) -> tuple[int, int]:
    """Return the row numbers [first, end) of the sorted `keys` within the range."""
    low, high = key_range
    first = 0 if low is None else int(search(keys, codec.array([low]))[0])
    end = len(keys) if high is None else int(search(keys, codec.array([high]))[0])
    return first, max(first, end)


def key_columns(codec: KeyCodec) -> set[str]:
    """Return the columns of a file from which its keys are read."""
    return {KEY} if codec.hidden else set(codec.primary_key)


def keys_of(codec: KeyCodec, table: pa.Table) -> pa.Array:
    """Return the encoded keys of a table that was read from a file with its `key_columns`."""
    return contiguous(table.column(KEY)) if codec.hidden else codec.encode(table)


def replaced_entry(replaced: np.ndarray) -> dict[bytes, bytes]:
    """Return the entry REPLACED for bool[changes]: the number of changes, and their bits in base64."""
    bits = np.packbits(replaced, bitorder="little").tobytes()
    return {REPLACED: b"%d:%s" % (len(replaced), base64.b64encode(bits))}


def replaced_of(schema: pa.Schema) -> np.ndarray | None:
    """Return bool[changes] of the entry REPLACED; None for a file without it. Raises ValueError for a wrong entry."""
    entry = (schema.metadata or {}).get(REPLACED)
    if entry is None:
        return None
    count, _, bits = entry.partition(b":")
    data = np.frombuffer(base64.b64decode(bits, validate=True), np.uint8)
    if not count.isdigit() or len(data) != -(-int(count) // 8):
        raise ValueError(f"{len(data)} bytes of bits for {count!r:.20} changes")
    return np.unpackbits(data, count=int(count), bitorder="little").view(np.bool_)


def tombstones(table: pa.Table) -> np.ndarray | None:
    """Return the tombstone marks of a table that was read from a file, bool[rows]; None without a tombstone."""
    return marks(table.column(OP)) if OP in table.column_names else None


def marks(column: pa.ChunkedArray) -> np.ndarray | None:
    """Convert an `_op` column to tombstone marks, bool[rows]; None without a tombstone."""
    deleted = to_numpy(column) == DELETE
    return deleted if deleted.any() else None
