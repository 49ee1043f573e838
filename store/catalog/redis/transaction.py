"""One run of a body against the Redis catalog: what it has read, as of one version, and what it wants to write.

All that a run has read is the state of one version of the catalog. When a later fetch finds a newer version, the server
says whether anything of what was read has changed since: if not, the run goes on as of the newer version; else the body
runs again, with all that it read so far fetched in one step, so that it gets further each time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from epochlog.errors import Corrupt, LimitExceeded
from epochlog.store.catalog.records import Record, pack, unpack
from epochlog.store.env.clock import monotonic_s

from .client import Argument
from .scripts import CONFLICT, FETCH, MAX_RECORD, MAX_REPLY, MOVED, Script

T = TypeVar("T")
_FIRST_PAGE, _LAST_PAGE = 64, 1 << 20
_WHOLE = 1 << 16
_CHECKED_AT_ONCE = 256
"""A read set of up to so many keys and spans goes with every fetch; a longer one only when it is needed."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The head that every answer has, and what follows it."""

    status: int
    version: int
    op: bytes
    op_ms: int
    now_ms: int
    tick_ms: int  # the server's time, never going back
    rest: list[Any]
    at_s: float = field(default_factory=monotonic_s)


Call = Callable[[Script, list[Argument]], Reply]


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """Request for at most `limit` records with lo <= key < hi, from either end."""

    lo: bytes
    hi: bytes
    backward: bool = False
    limit: int = _FIRST_PAGE

    def arguments(self) -> list[Argument]:
        return [self.lo, self.hi, "1" if self.backward else "0", self.limit]


@dataclass(slots=True)
class _KeySpan:
    """Known part of the key space: all records with lo <= key < hi, in order."""

    lo: bytes
    hi: bytes
    keys: list[bytes]


@dataclass(slots=True)
class _Used:
    """Key range [lo, hi) of a scan that the body has consumed."""

    lo: bytes
    hi: bytes


class RestartTransaction(BaseException):
    """Ends a body whose state has changed under it. Not an Exception: no body may catch it."""

    def __init__(self, run: ReadSet) -> None:
        super().__init__()
        self.run = run


class ReadSet:
    """Records that one run of a body has read or prefetched. `keys` and `spans` are fetched with the first request."""

    def __init__(
        self, call: Call, keys: Iterable[bytes] = (), spans: Iterable[RangeRequest] = (), attempt: int = 0
    ) -> None:
        self._call = call
        self._attempt = min(attempt, 6)
        self._wanted_keys = list(keys)
        self._wanted_spans = list(spans)
        self._known: dict[bytes, bytes | None] = {}
        self._spans: list[_KeySpan] = []
        self._used: list[_Used] = []
        self._asked: dict[bytes, None] = {}
        self._head: Reply | None = None

    # ---- reading -----------------------------------------------------------------------------------------------------

    def head(self) -> Reply:
        """Return the version that this run sees, with the server's time."""
        if self._head is None:
            self._fetch([], [])
        assert self._head is not None
        return self._head

    def get(self, key: bytes) -> bytes | None:
        if self._head is None or key not in self._known:
            self._fetch([key], [])
        self._asked[key] = None
        return self._known[key]

    def rows(self, start: bytes, stop: bytes, backward: bool) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records with start <= key < stop, fetched in pages on demand."""
        if start >= stop:
            return
        at, pages = stop if backward else start, self._attempt
        used = _Used(at, at)
        self._used.append(used)
        while used.lo > start if backward else used.hi < stop:
            at = used.lo if backward else used.hi
            span = self._covering(at, backward)
            if span is None:
                size = min(_FIRST_PAGE << 3 * pages, _LAST_PAGE)  # the more often it runs again, the more at once
                pages += 1
                self._fetch(
                    [], [RangeRequest(start, at, True, size) if backward else RangeRequest(at, stop, False, size)]
                )
                span = self._covering(at, backward)
                assert span is not None
            first, last = max(span.lo, start), min(span.hi, stop)
            if backward:
                page = span.keys[bisect_left(span.keys, first) : bisect_left(span.keys, at)][::-1]
                used.lo = first
            else:
                page = span.keys[bisect_left(span.keys, at) : bisect_left(span.keys, last)]
                used.hi = last
            known = self._known
            for key, value in [(key, known[key]) for key in page]:
                assert value is not None
                yield key, value

    def _covering(self, at: bytes, backward: bool) -> _KeySpan | None:
        """Find a known span that holds the keys following (or preceding) this place."""
        for span in reversed(self._spans):
            if span.lo < at <= span.hi if backward else span.lo <= at < span.hi:
                return span
        return None

    # ---- fetching ----------------------------------------------------------------------------------------------------

    def _fetch(self, keys: list[bytes], spans: list[RangeRequest]) -> None:
        if self._head is None:
            keys = list(dict.fromkeys([*keys, *self._wanted_keys]))
            reply = self._call(FETCH, ["", "0", self._budget, 0, 0, *_request(keys, [*spans, *self._wanted_spans])])
            spans = [*spans, *self._wanted_spans]
        else:
            read_keys, read_spans = self.read_set()
            asked, version = _request(keys, spans), self._head.version
            checked = len(read_keys) + len(read_spans) <= _CHECKED_AT_ONCE
            read = _request(read_keys, read_spans)
            reply = None if checked else self._call(FETCH, [version, "0", self._budget, 0, 0, *asked])
            if reply is None or reply.status == MOVED:
                reply = self._call(FETCH, [version, "1", self._budget, *read, *asked])
            if reply.status == CONFLICT:
                raise RestartTransaction(self.renewed(reply, [*read_keys, *keys], [*read_spans, *spans]))
            if reply.version != version:  # what the server has not compared is not known any more
                self._known = {key: value for key, value in self._known.items() if key in self._asked}
                self._spans.clear()
        self._learn(reply, keys, spans)

    def renewed(self, reply: Reply, keys: list[bytes], spans: list[RangeRequest]) -> ReadSet:
        """Return a run that begins with the records that the server sent when it found this run out of date."""
        run = ReadSet(self._call, attempt=self._attempt + 1)
        run._learn(reply, keys, spans)
        return run

    def restarted(self) -> ReadSet:
        """Return a run that fetches first all that this one has read."""
        return ReadSet(self._call, *self.read_set(), attempt=self._attempt + 1)

    def request(self) -> list[Argument]:
        """Return the arguments by which the server validates a commit of this run: its version and its reads."""
        return [self.head().version, self._budget, *_request(*self.read_set())]

    @property
    def _budget(self) -> int:
        """Return the bytes after which the server ends a page: more each time that a run was out of date."""
        return MAX_REPLY << self._attempt

    def read_set(self) -> tuple[list[bytes], list[RangeRequest]]:
        limit = _WHOLE << self._attempt
        return list(self._asked), [
            RangeRequest(used.lo, used.hi, False, limit) for used in self._used if used.lo < used.hi
        ]

    def _learn(self, reply: Reply, keys: list[bytes], spans: list[RangeRequest]) -> None:
        found = reply.rest
        if len(found) != 2 or not all(isinstance(part, list) for part in found):
            raise _damaged("a fetch was answered with something else")
        if len(found[0]) != len(keys) or len(found[1]) != len(spans):
            raise _damaged("a fetch was answered with too much or too little")
        self._head = reply
        for key, value in zip(keys, found[0], strict=True):
            self._known[key] = _value(key, value, none=True)
        for wish, rows in zip(spans, found[1], strict=True):
            self._learn_span(wish, rows)

    def _learn_span(self, wish: RangeRequest, rows: Any) -> None:
        if not isinstance(rows, list) or len(rows) % 2 == 0 or rows[0] not in (0, 1):
            raise _damaged("a range was answered with something else")
        keys = rows[1::2]
        if not all(isinstance(key, bytes) and wish.lo <= key < wish.hi for key in keys):
            raise _damaged("a range was answered with keys from outside it")
        if wish.backward:
            keys.reverse()
        if any(a >= b for a, b in pairwise(keys)):
            raise _damaged("a range was answered out of order")
        lo, hi = wish.lo, wish.hi
        if rows[0] and not keys:
            raise _damaged("a range was answered with nothing, and more to come")
        if rows[0]:
            lo, hi = (keys[0], hi) if wish.backward else (lo, keys[-1] + b"\0")
        for key, value in zip(rows[1::2], rows[2::2], strict=True):
            self._known[key] = _value(key, value)
        if lo < hi:
            self._spans.append(_KeySpan(lo, hi, keys))


def _request(keys: list[bytes], spans: list[RangeRequest]) -> list[Argument]:
    found: list[Argument] = [len(keys), *keys, len(spans)]
    for span in spans:
        found += span.arguments()
    return found


def _value(key: bytes, value: Any, *, none: bool = False) -> bytes | None:
    if isinstance(value, bytes) or (none and value is None):
        return value
    raise Corrupt(f"catalog record {key!r}", "it is missing from the server")


def _damaged(what: str) -> Corrupt:
    return Corrupt("the answer of the catalog server", what)


def decode(key: bytes, value: bytes) -> Record:
    """Decode a record from the server, whose bytes are not trusted."""
    try:
        return unpack(key, value)
    except (ValueError, TypeError, RecursionError) as error:
        raise Corrupt(f"catalog record {key!r}", f"it cannot be decoded: {error}") from error


class RedisView:
    """Records as one run sees them, its own writes included."""

    def __init__(self, run: ReadSet) -> None:
        self._run = run
        self.writes: dict[bytes, bytes | None] = {}

    @property
    def version(self) -> int:
        return self._run.head().version

    def get(self, key: bytes) -> Record | None:
        value = self.writes[key] if key in self.writes else self._run.get(key)
        return None if value is None else decode(key, value)

    def scan(self, start: bytes, stop: bytes, *, reverse: bool = False) -> Iterator[tuple[bytes, Record]]:
        mine = sorted((key for key in self.writes if start <= key < stop), reverse=reverse)
        at = 0
        for key, value in self._run.rows(start, stop, reverse):
            while at < len(mine) and (mine[at] > key if reverse else mine[at] < key):
                yield from self._written(mine[at])
                at += 1
            if at < len(mine) and mine[at] == key:
                at += 1
            if key in self.writes:
                yield from self._written(key)
            else:
                yield key, decode(key, value)
        for key in mine[at:]:
            yield from self._written(key)

    def put(self, key: bytes, record: Record) -> None:
        value = pack(key, record)
        if len(value) > MAX_RECORD:
            raise LimitExceeded(f"catalog record {key!r} has {len(value)} bytes; {MAX_RECORD} are the most")
        self.writes[key] = value

    def delete(self, key: bytes) -> None:
        self.writes[key] = None

    def _written(self, key: bytes) -> Iterator[tuple[bytes, Record]]:
        value = self.writes[key]
        if value is not None:
            yield key, decode(key, value)
