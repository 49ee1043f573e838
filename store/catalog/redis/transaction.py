"""Read set and writes of one run of a body against the Redis catalog.

All records of a read set are the state of one version of the catalog. If a later fetch finds a newer version, the
server compares the read set with the changes since. Without an overlap the run goes on as of the newer version. Else
the body runs again with a new read set, which fetches all records read so far in one step: so each run gets further.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from epochlog.errors import Corrupt, LimitExceeded
from epochlog.store.catalog.protocol import PackedReads
from epochlog.store.catalog.records import Record, pack
from epochlog.store.env.clock import monotonic_s

from .client import Argument
from .scripts import CONFLICT, FETCH, MAX_RECORD, MAX_REPLY, MOVED, Script

T = TypeVar("T")
_FIRST_PAGE, _LAST_PAGE = 64, 1 << 20
_MAX_RANGE = 1 << 16
_CHECKED_AT_ONCE = 256
"""Largest number of keys and ranges of a read set that is sent with every fetch; a larger one only on demand."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Decoded answer of a script: the head that every answer has, and its payload."""

    status: int
    version: int
    op: bytes
    op_ms: int
    now_ms: int
    tick_ms: int  # the server's time, which never goes back
    payload: list[Any]
    at_s: float = field(default_factory=monotonic_s)


Call = Callable[[Script, list[Argument]], Reply]


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """Request for at most `limit` records with lo <= key < hi, from the lower or (backward) the upper end."""

    lo: bytes
    hi: bytes
    backward: bool = False
    limit: int = _FIRST_PAGE

    def arguments(self) -> list[Argument]:
        return [self.lo, self.hi, "1" if self.backward else "0", self.limit]


@dataclass(slots=True)
class _KeySpan:
    """Fetched part of the key space: the keys of all records with lo <= key < hi, in order."""

    lo: bytes
    hi: bytes
    keys: list[bytes]


@dataclass(slots=True)
class _ScannedRange:
    """Key range [lo, hi) of a scan that the body has consumed."""

    lo: bytes
    hi: bytes


class RestartTransaction(BaseException):
    """Signal that ends a body whose read set is out of date. Not an Exception, so that no body catches it."""

    def __init__(self, read_set: ReadSet) -> None:
        super().__init__()
        self.read_set = read_set


class ReadSet:
    """Records that one run of a body has read or prefetched. keys, ranges: prefetched with the first request."""

    def __init__(
        self, call: Call, keys: Iterable[bytes] = (), ranges: Iterable[RangeRequest] = (), attempt: int = 0
    ) -> None:
        self._call = call
        self._attempt = min(attempt, 6)
        self._prefetch_keys = list(keys)
        self._prefetch_ranges = list(ranges)
        self._values: dict[bytes, bytes | None] = {}
        self._spans: list[_KeySpan] = []
        self._scanned: list[_ScannedRange] = []
        self._read_keys: dict[bytes, None] = {}
        self._head: Reply | None = None

    # ---- reading -----------------------------------------------------------------------------------------------------

    def head(self) -> Reply:
        """Return the head of the newest answer: the version of this read set, and the server's time."""
        if self._head is None:
            self._fetch([], [])
        assert self._head is not None
        return self._head

    def get(self, key: bytes) -> bytes | None:
        if self._head is None or key not in self._values:
            self._fetch([key], [])
        self._read_keys[key] = None
        return self._values[key]

    def rows(self, start: bytes, stop: bytes, backward: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records with start <= key < stop, fetched in pages on demand."""
        if start >= stop:
            return
        position, pages = stop if backward else start, self._attempt
        scanned = _ScannedRange(position, position)
        self._scanned.append(scanned)
        while scanned.lo > start if backward else scanned.hi < stop:
            position = scanned.lo if backward else scanned.hi
            span = self._find_span(position, backward)
            if span is None:
                size = min(_FIRST_PAGE << 3 * pages, _LAST_PAGE)  # pages grow with each attempt
                pages += 1
                self._fetch(
                    [],
                    [
                        RangeRequest(start, position, True, size)
                        if backward
                        else RangeRequest(position, stop, False, size)
                    ],
                )
                span = self._find_span(position, backward)
                assert span is not None
            first, last = max(span.lo, start), min(span.hi, stop)
            if backward:
                page = span.keys[bisect_left(span.keys, first) : bisect_left(span.keys, position)][::-1]
                scanned.lo = first
            else:
                page = span.keys[bisect_left(span.keys, position) : bisect_left(span.keys, last)]
                scanned.hi = last
            values = self._values
            for key, value in [(key, values[key]) for key in page]:
                assert value is not None
                yield key, value

    def _find_span(self, position: bytes, backward: bool) -> _KeySpan | None:
        """Return a fetched span with the keys after (or before) this position; None if there is none."""
        for span in reversed(self._spans):
            if span.lo < position <= span.hi if backward else span.lo <= position < span.hi:
                return span
        return None

    # ---- fetching ----------------------------------------------------------------------------------------------------

    def _fetch(self, keys: list[bytes], ranges: list[RangeRequest]) -> None:
        if self._head is None:
            keys = list(dict.fromkeys([*keys, *self._prefetch_keys]))
            reply = self._call(
                FETCH, ["", "0", self._budget, 0, 0, *_fetch_arguments(keys, [*ranges, *self._prefetch_ranges])]
            )
            ranges = [*ranges, *self._prefetch_ranges]
        else:
            read_keys, read_ranges = self.reads()
            request, version = _fetch_arguments(keys, ranges), self._head.version
            sends_reads = len(read_keys) + len(read_ranges) <= _CHECKED_AT_ONCE
            reads = _fetch_arguments(read_keys, read_ranges)
            reply = None if sends_reads else self._call(FETCH, [version, "0", self._budget, 0, 0, *request])
            if reply is None or reply.status == MOVED:
                reply = self._call(FETCH, [version, "1", self._budget, *reads, *request])
            if reply.status == CONFLICT:
                raise RestartTransaction(self.refreshed(reply, [*read_keys, *keys], [*read_ranges, *ranges]))
            if reply.version != version:  # the server has compared only the read keys and ranges
                self._values = {key: value for key, value in self._values.items() if key in self._read_keys}
                self._spans.clear()
        self._add_reply(reply, keys, ranges)

    def refreshed(self, reply: Reply, keys: list[bytes], ranges: list[RangeRequest]) -> ReadSet:
        """Return a new read set with the records that the server sent because this one is out of date."""
        fresh = ReadSet(self._call, attempt=self._attempt + 1)
        fresh._add_reply(reply, keys, ranges)
        return fresh

    def restarted(self) -> ReadSet:
        """Return a new read set that prefetches all reads of this one."""
        return ReadSet(self._call, *self.reads(), attempt=self._attempt + 1)

    def commit_arguments(self) -> list[Argument]:
        """Return the arguments with which the server validates a commit: version, budget and reads of this read set."""
        return [self.head().version, self._budget, *_fetch_arguments(*self.reads())]

    @property
    def _budget(self) -> int:
        """Return the bytes after which the server ends a page. They double with each attempt."""
        return MAX_REPLY << self._attempt

    def reads(self) -> tuple[list[bytes], list[RangeRequest]]:
        limit = _MAX_RANGE << self._attempt
        return list(self._read_keys), [
            RangeRequest(scanned.lo, scanned.hi, False, limit) for scanned in self._scanned if scanned.lo < scanned.hi
        ]

    def _add_reply(self, reply: Reply, keys: list[bytes], ranges: list[RangeRequest]) -> None:
        payload = reply.payload
        if len(payload) != 2 or not all(isinstance(part, list) for part in payload):
            raise _damaged("its answer to a fetch is malformed")
        if len(payload[0]) != len(keys) or len(payload[1]) != len(ranges):
            raise _damaged("its answer to a fetch has too many or too few records")
        self._head = reply
        for key, value in zip(keys, payload[0], strict=True):
            self._values[key] = _checked_value(key, value, optional=True)
        for request, rows in zip(ranges, payload[1], strict=True):
            self._add_range(request, rows)

    def _add_range(self, request: RangeRequest, rows: Any) -> None:
        if not isinstance(rows, list) or len(rows) % 2 == 0 or rows[0] not in (0, 1):
            raise _damaged("its answer to a range is malformed")
        keys = rows[1::2]
        if not all(isinstance(key, bytes) and request.lo <= key < request.hi for key in keys):
            raise _damaged("its answer to a range has keys outside of the range")
        if request.backward:
            keys.reverse()
        if any(a >= b for a, b in pairwise(keys)):
            raise _damaged("its answer to a range is out of order")
        if rows[0] and not keys:
            raise _damaged("its answer to a range is an empty page, and not the last one")
        lo = keys[0] if rows[0] and request.backward else request.lo
        hi = keys[-1] + b"\0" if rows[0] and not request.backward else request.hi
        for key, value in zip(rows[1::2], rows[2::2], strict=True):
            self._values[key] = _checked_value(key, value)
        if lo < hi:
            self._spans.append(_KeySpan(lo, hi, keys))


def _fetch_arguments(keys: list[bytes], ranges: list[RangeRequest]) -> list[Argument]:
    arguments: list[Argument] = [len(keys), *keys, len(ranges)]
    for range_ in ranges:
        arguments += range_.arguments()
    return arguments


def _checked_value(key: bytes, value: Any, *, optional: bool = False) -> bytes | None:
    if isinstance(value, bytes) or (optional and value is None):
        return value
    raise Corrupt(f"catalog record {key!r}", "it is missing from the server")


def _damaged(damage: str) -> Corrupt:
    return Corrupt("the catalog server", damage)


class RedisView(PackedReads):
    """ReadTxn and Txn of one run of a body: its read set with its own writes."""

    def __init__(self, read_set: ReadSet) -> None:
        self._read_set = read_set
        self.writes: dict[bytes, bytes | None] = {}

    @property
    def version(self) -> int:
        return self._read_set.head().version

    def get_packed(self, key: bytes) -> bytes | None:
        return self.writes[key] if key in self.writes else self._read_set.get(key)

    def scan_packed(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, bytes]]:
        written_keys = sorted((key for key in self.writes if start <= key < stop), reverse=reverse)
        position = 0
        for key, value in self._read_set.rows(start, stop, reverse):
            while position < len(written_keys) and (
                written_keys[position] > key if reverse else written_keys[position] < key
            ):
                yield from self._written(written_keys[position])
                position += 1
            if position < len(written_keys) and written_keys[position] == key:
                position += 1
            if key in self.writes:
                yield from self._written(key)
            else:
                yield key, value
        for key in written_keys[position:]:
            yield from self._written(key)

    def put(self, key: bytes, record: Record) -> None:
        value = pack(key, record)
        if len(value) > MAX_RECORD:
            raise LimitExceeded(f"catalog record {key!r} has {len(value)} bytes; {MAX_RECORD} are the most")
        self.writes[key] = value

    def delete(self, key: bytes) -> None:
        self.writes[key] = None

    def _written(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        value = self.writes[key]
        if value is not None:
            yield key, value
