"""Files of catalog records, exported or shipped: their listing and their format (docs/formats/dump.md).

A file is the magic, the SHA-256 of the remaining bytes, and a zstandard frame of msgpack: a header, then [key, packed
record] pairs, with nil for a deleted record. A record keeps its checksum of the catalog.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass

import msgpack
import zstandard

from epochlog.errors import Corrupt, UnsupportedFormat
from epochlog.store.env.files import Files
from epochlog.store.env.paths import is_store_id, ship_folder, shipped_of

MAGIC = b"epochlog catalog"
DUMP_FORMAT = 1
_HEAD_BYTES = len(MAGIC) + hashlib.sha256().digest_size
_MAX_RECORD_BYTES = (
    1 << 30
)  # the reader's memory grows with the bytes read, not with the size that a damaged file claims
_MOST_DECODED, _MOST_RATIO = 64 << 20, 250
"""Bytes that a file may decode to: so many, and so many for each of its own. Records are not so much alike."""


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a file of catalog records: those written after version `since` (0: all), as of `version`."""

    store_id: str
    generation: str
    since: int
    version: int
    last_epoch: int
    at_ms: int
    count: int
    format: int = DUMP_FORMAT


@dataclass(frozen=True, slots=True)
class Shipped:
    """Shipped file of catalog records, described by its name. `path` is relative to the root."""

    path: str
    bytes: int
    generation: str
    since: int
    version: int


# ---- files -------------------------------------------------------------------------------------------------------


def shipped_files(files: Files, store_id: str) -> list[Shipped]:
    """List the shipped files of all generations, by generation, since and version."""
    shipped = []
    for info in files.list(ship_folder(store_id)):
        name_parts = shipped_of(info.path)
        if name_parts is not None:
            shipped.append(Shipped(info.path, info.size, *name_parts))
    return sorted(shipped, key=lambda file: (file.generation, file.since, file.version))


def newest_shipped(files: Files, store_id: str, generation: str) -> int:
    """Return the newest shipped version of this generation; 0 if there is none."""
    return max((f.version for f in shipped_files(files, store_id) if f.generation == generation), default=0)


# ---- bytes -------------------------------------------------------------------------------------------------------


def encode_dump(header: Header, records: Iterable[tuple[bytes, bytes | None]]) -> bytes:
    packer, body = msgpack.Packer(use_bin_type=True), io.BytesIO()
    with zstandard.ZstdCompressor(level=3).stream_writer(body, closefd=False) as stream:
        stream.write(packer.pack(asdict(header)))
        for key, value in records:
            stream.write(packer.pack([key, value]))
    data = body.getvalue()
    return MAGIC + hashlib.sha256(data).digest() + data


def decode_dump(path: str, data: bytes) -> tuple[Header, Iterator[tuple[bytes, bytes | None]]]:
    """Decode a file of catalog records to its header and an iterator of its packed records. Corrupt names the file."""
    if data[: len(MAGIC)] != MAGIC:
        raise Corrupt(path, "it is no file of catalog records")
    body = memoryview(data)[_HEAD_BYTES:]
    if hashlib.sha256(body).digest() != data[len(MAGIC) : _HEAD_BYTES]:
        raise Corrupt(path, "its checksum does not match")
    items = _decode_items(path, body)
    header = _decode_header(path, next(items, None))

    def records() -> Iterator[tuple[bytes, bytes | None]]:
        count = 0
        for item in items:
            if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], bytes):
                raise Corrupt(path, "it has an item that is not a catalog record")
            if item[1] is not None and not isinstance(item[1], bytes):
                raise Corrupt(path, "it has an item that is not a catalog record")
            count += 1
            yield item[0], item[1]
        if count != header.count:
            raise Corrupt(path, f"it has {count} records, not {header.count}")

    return header, records()


def _decode_items(path: str, body: memoryview) -> Iterator[object]:
    most = _MOST_DECODED + _MOST_RATIO * len(body)
    unpacker = msgpack.Unpacker(
        raw=False,
        strict_map_key=False,
        max_buffer_size=min(_MAX_RECORD_BYTES, most),
        max_array_len=2,  # room for as many items as an array claims to have is taken at once
        max_map_len=len(Header.__dataclass_fields__),
        max_ext_len=0,
    )
    decoded = 0
    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as stream:
            while block := stream.read(1 << 20):
                decoded += len(block)
                if decoded > most:
                    raise Corrupt(path, f"its {len(body):,} bytes stand for more than {most:,}")
                unpacker.feed(block)
                yield from unpacker
    except (zstandard.ZstdError, ValueError, RecursionError, msgpack.UnpackException) as error:
        raise Corrupt(path, f"it cannot be decoded: {error}") from error


def _decode_header(path: str, item: object) -> Header:
    fields = Header.__dataclass_fields__
    if not isinstance(item, Mapping) or not isinstance(item.get("format"), int):
        raise Corrupt(path, "it has no header")
    if item["format"] > DUMP_FORMAT:
        raise UnsupportedFormat(f"{path} has format {item['format']}, newer than {DUMP_FORMAT}: upgrade epochlog")
    if set(item) != set(fields) or not is_store_id(item["store_id"]) or not isinstance(item["generation"], str):
        raise Corrupt(path, "its header is incomplete")
    numbers = [item[name] for name in ("since", "version", "last_epoch", "at_ms", "count")]
    if not all(isinstance(number, int) and 0 <= number < 1 << 62 for number in numbers):
        raise Corrupt(path, "its header is incomplete")
    return Header(**item)
