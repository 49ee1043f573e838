"""The shared catalog: one Redis server, any number of processes on any number of hosts.

Bodies run here, optimistically (transaction.py); a transaction ends in one script on the server (scripts.py) that
checks that nothing of what the body read has changed, and writes. Every script carries the store's generation and the
newest version that this process has seen, so an emptied, exchanged or older server is noticed and refused. An outcome
that got lost on the way is asked for, and asking decides it: what has not landed then never shall.

The server needs `appendonly yes`, `appendfsync always` and `maxmemory-policy noeviction`, else it may forget what it
has acknowledged.
"""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from epochlog.errors import CatalogInUse, CatalogLost, CatalogRolledBack, CatalogUnavailable, OutcomeUnknown
from epochlog.store.catalog.protocol import RecordChanges, Txn, View
from epochlog.store.env.clock import Clock, monotonic_s
from epochlog.store.env.paths import is_store_id

from .client import RECONNECT_S, Argument, Cut, RedisServer
from .scripts import (
    ABORTED,
    BEHIND,
    CHANGES,
    CLAIM,
    COMMIT,
    CONFLICT,
    DAMAGED,
    DEADLINE_MS,
    DECIDE,
    EXPIRED,
    FORGET,
    FORGOTTEN,
    FOUND,
    KEY_NAMES,
    LET_GO,
    LOST,
    MISSING,
    OK,
    OTHER,
    PEEK,
    RESTORE_BEGIN,
    RESTORE_END,
    RESTORE_PUT,
    TOO_BIG,
    Script,
)
from .transaction import RangeRequest, ReadSet, RedisView, Reply, RestartTransaction, decode

T = TypeVar("T")
_REMEMBERED_BODIES, _REMEMBERED_KEYS, _REMEMBERED_ROWS = 256, 2_000, 64
_CHANGES_AT_ONCE, _RESTORED_AT_ONCE = 2_000, 500


def store_keys(store_id: str) -> list[bytes]:
    return [f"epochlog:{{{store_id}}}:{name}".encode() for name in KEY_NAMES]


def claim_root(server: RedisServer, root: str, store_id: str = "", instead_of: str = "") -> str:
    """Claim a root for a store and return the id of its store: the given one, unless another has the root already (and
    is not `instead_of`).

    Without a store: the one so far, or "".
    """
    key = b"epochlog:root:" + hashlib.sha256(root.encode()).hexdigest().encode()
    found = server.call(CLAIM, [key], [store_id, instead_of])[1]
    if not isinstance(found, bytes) or (found and not is_store_id(found.decode(errors="replace"))):
        raise server.damaged("a root is claimed by something that is no store id")
    return found.decode()


def found_catalog(server: RedisServer, store_id: str) -> str:
    """Make the store's catalog unless it exists; return its generation."""
    reply = server.call(FOUND, store_keys(store_id), [uuid.uuid4().hex])
    if reply[0] == MISSING:
        raise _lost(server, store_id, "some of its keys are gone")
    if len(reply) != 2 or not isinstance(reply[1], bytes):
        raise server.damaged("a catalog has no generation")
    return reply[1].decode(errors="replace")


def peek_catalog(server: RedisServer, store_id: str) -> tuple[str, int] | None:
    """Return generation and version of the store's catalog on this server; None if there is none."""
    generation, version = server.call(PEEK, store_keys(store_id), [])[1]
    if generation is None:
        return None
    if not isinstance(generation, bytes) or not isinstance(version, bytes) or not version.isdigit():
        raise server.damaged("a catalog has no generation or version")
    return generation.decode(errors="replace"), int(version)


def refill_catalog(
    server: RedisServer, store_id: str, generation: str, version: int, records: Sequence[tuple[bytes, bytes]]
) -> None:
    """Replace all that the server has of the store by these records. The catalog exists from the last step on; of two
    concurrent calls the one that began later succeeds.
    """
    keys = [*store_keys(store_id), f"epochlog:{{{store_id}}}:restore".encode()]
    taken = CatalogInUse(f"another restore of store {store_id} on {server.name} has begun; this one has ended")
    server.call(RESTORE_BEGIN, keys, [generation])
    for first in range(0, len(records), _RESTORED_AT_ONCE):
        chunk = [part for record in records[first : first + _RESTORED_AT_ONCE] for part in record]
        if server.call(RESTORE_PUT, keys, [generation, version, *chunk])[0] != OK:
            raise taken
    if server.call(RESTORE_END, keys, [generation, version, len(records)])[0] != OK:
        raise taken


def _lost(server: RedisServer, store_id: str, why: str) -> CatalogLost:
    return CatalogLost(
        f"the catalog of store {store_id} on {server.name} is lost: {why}. Restore it with epochlog.restore_catalog"
    )


@dataclass(slots=True)
class _Memory:
    """Keys and scans that the last two runs of a body read. Those of both runs are prefetched in the next run."""

    keys: tuple[dict[bytes, None], dict[bytes, None]]
    spans: tuple[set[RangeRequest], set[RangeRequest]]


class RedisCatalog:
    """Catalog of one store. `generation` is the one in its marker; `clock` replaces the server's time."""

    def __init__(self, server: RedisServer, store_id: str, generation: str, clock: Clock | None = None) -> None:
        self.generation = generation
        self.landed: Callable[[], None] = lambda: None
        self._server = server
        self._store_id = store_id
        self._keys = store_keys(store_id)
        self._clock = clock
        self._pid = os.getpid()
        self._begin()
        self._seen: tuple[int, bytes, int] = (0, b"", 0)

    def _begin(self) -> None:
        """Create the state that belongs to one process: client id, locks and remembered reads."""
        self._client, self._count = uuid.uuid4().hex, 0
        self._lock, self._turn = threading.Lock(), threading.RLock()
        self._current = threading.local()
        self._memories: OrderedDict[object, _Memory] = OrderedDict()

    # ---- the catalog's face ------------------------------------------------------------------------------------------

    def read(self, body: Callable[[View], T]) -> T:
        self._leave_to_parent()
        run = self._first_run(body)
        while True:
            try:
                result = self._inside(run, body, RedisView(run))
            except RestartTransaction as again:
                run = again.run
                continue
            self._remember(body, run)
            return result

    def transact(self, body: Callable[[Txn], T]) -> T:
        self._leave_to_parent()
        with self._in_turn():
            run = self._first_run(body)
            while True:
                txn = RedisView(run)
                try:
                    result = self._inside(run, body, txn)
                except RestartTransaction as again:
                    run = again.run
                    continue
                self._remember(body, run)
                newer = self._write(run, txn.writes) if txn.writes else None
                if newer is None:
                    self.landed()
                    return result
                run = newer

    def now_ms(self) -> int:
        if self._clock is not None:
            return self._clock()
        run: ReadSet | None = getattr(self._current, "run", None)
        return run.head().now_ms if run is not None else self._server.time_ms()

    def check(self) -> None:
        """Read every record and raise Corrupt unless it is where the index says, and whole."""
        whole = self.changes_since(0, whole=True)
        for key, value in whole.records.items() if whole else ():
            if value is not None:
                decode(key, value)

    def close(self) -> None:
        self._server.close()

    # ---- versions and changes ----------------------------------------------------------------------------------------

    def version(self) -> int:
        """Return the newest version; it grows with every transaction that wrote."""
        return ReadSet(self._call).head().version

    def changes_since(self, version: int, *, whole: bool = False) -> RecordChanges | None:
        """Return the records changed after `version`; None if deletions since are forgotten. `whole`: without
        deletions.
        """
        at, most, found = version, _CHANGES_AT_ONCE, dict[bytes, bytes | None]()
        while True:
            reply = self._call(CHANGES, [at, most, int(whole)])
            if reply.status == LET_GO:
                return None
            live, dead = reply.rest
            ends = []
            found.update(zip(live[::3], live[2::3], strict=True))
            found.update(dict.fromkeys(dead[::2]))
            if not all(isinstance(part, bytes) for part in (*live, *dead)):
                raise self._server.damaged("changes were answered with something else")
            if len(live) == 3 * most:
                ends.append(int(live[-2]))
            if len(dead) == 2 * most:
                ends.append(int(dead[-1]))
            if not ends:
                return RecordChanges(reply.version, found)
            if min(ends) - 1 > at:  # the last version of a full page may not be there whole
                at = min(ends) - 1
            else:
                most *= 4

    def forget_deleted(self, version: int) -> None:
        """Forget the deletions up to this version: they have been shipped."""
        self._call(FORGET, [version])

    def expect_version(self, version: int) -> None:
        """Refuse a catalog older than `version` from now on."""
        with self._lock:
            if version > self._seen[0]:
                self._seen = version, b"", 0

    # ---- runs --------------------------------------------------------------------------------------------------------

    def _inside(self, run: ReadSet, body: Callable[[Any], T], view: RedisView) -> T:
        outer = getattr(self._current, "run", None)
        self._current.run = run
        try:
            return body(view)
        finally:
            self._current.run = outer

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Serialize the transactions of this process's threads, which would conflict; a stuck thread does not stop the
        others.
        """
        turn = self._turn
        taken = turn.acquire(timeout=RECONNECT_S)
        try:
            yield
        finally:
            if taken:
                turn.release()

    def _first_run(self, body: object) -> ReadSet:
        with self._lock:
            memory = self._memories.get(getattr(body, "__code__", body))
        if memory is None:
            return ReadSet(self._call)
        keys = [key for key in memory.keys[0] if key in memory.keys[1]]
        spans = [
            RangeRequest(span.lo, span.hi, span.backward, _REMEMBERED_ROWS)
            for span in memory.spans[0] & memory.spans[1]
        ]
        return ReadSet(self._call, keys, spans)

    def _remember(self, body: object, run: ReadSet) -> None:
        keys, spans = run.read_set()
        if not keys and not spans:  # it has asked for the version alone, and will ask for more when that is another
            return
        if len(keys) + _REMEMBERED_ROWS * len(spans) > _REMEMBERED_KEYS:
            return
        name, now = getattr(body, "__code__", body), (dict.fromkeys(keys), set(spans))
        with self._lock:
            before = self._memories.pop(name, None)
            self._memories[name] = _Memory(
                (now[0], before.keys[0] if before else now[0]), (now[1], before.spans[0] if before else now[1])
            )
            while len(self._memories) > _REMEMBERED_BODIES:
                self._memories.popitem(last=False)

    def _leave_to_parent(self) -> None:
        """Begin anew in a forked child, with locks and op ids of its own."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._begin()

    # ---- writing -----------------------------------------------------------------------------------------------------

    def _write(self, run: ReadSet, writes: dict[bytes, bytes | None]) -> ReadSet | None:
        """Commit a run's writes; return None when they have landed, else the run to begin again with."""
        head = run.head()
        with self._lock:
            self._count += 1
            op = f"{self._client}-{self._count:x}".encode()
        deadline_ms = head.tick_ms + round((monotonic_s() - head.at_s) * 1000) + DEADLINE_MS
        puts = [part for key, value in writes.items() if value is not None for part in (key, value)]
        deletes = [key for key, value in writes.items() if value is None]
        arguments = [op, deadline_ms, *run.request(), len(puts) // 2, *puts, len(deletes), *deletes]
        try:
            reply = self._server.again(lambda: self._sent(COMMIT, arguments))
        except _Unknown as cut:
            reply = self._decide(op, deadline_ms, cut)
        if reply.status == CONFLICT:
            return run.renewed(reply, *run.read_set())
        return run.restarted() if reply.status in (EXPIRED, ABORTED) else None

    def _sent(self, script: Script, arguments: list[Argument]) -> Reply:
        """Send a script once. Raise NotSent, after which it may be repeated, or _Unknown if the answer was cut off."""
        try:
            return self._checked(script, self._server.once(script, self._keys, self._with_seen(arguments)))
        except Cut as cut:
            raise _Unknown(str(cut)) from cut  # `again` would send it once more

    def _decide(self, op: bytes, deadline_ms: int, cut: _Unknown) -> Reply:
        """Ask for the outcome of a transaction whose answer was cut off; one that has not landed never will."""
        try:
            reply = self._call(DECIDE, [op, deadline_ms])
        except CatalogUnavailable as error:
            raise OutcomeUnknown(_unknown(self._server.name, str(cut))) from error
        if reply.status == FORGOTTEN:
            raise OutcomeUnknown(_unknown(self._server.name, str(cut)))
        return reply

    # ---- scripts -----------------------------------------------------------------------------------------------------

    def _call(self, script: Script, arguments: list[Argument]) -> Reply:
        """Run a script that may run twice."""
        self._leave_to_parent()
        reply = self._server.again(lambda: self._server.once(script, self._keys, self._with_seen(arguments)))
        return self._checked(script, reply)

    def _with_seen(self, arguments: Sequence[Argument]) -> list[Argument]:
        version, op, op_ms = self._seen
        return [self.generation, version, op, op_ms, *arguments]

    def _checked(self, script: Script, reply: list[Any]) -> Reply:
        """Decode an answer, and raise an error unless it is well formed and of this catalog."""
        status = reply[0]
        if status in (LOST, OTHER, MISSING):
            why = {LOST: "the server knows nothing of it", MISSING: "some of its keys are gone"}
            raise _lost(self._server, self._store_id, why.get(status, "the server has another catalog in its place"))
        if status == BEHIND:
            raise CatalogRolledBack(
                f"the catalog of store {self._store_id} on {self._server.name} has lost commits: this process has seen "
                f"version {self._seen[0]}, and it is not there any more. Nothing is read from it or written to it; "
                "bring the newer data back, or make it anew with epochlog.restore_catalog"
            )
        if status in (TOO_BIG, DAMAGED):
            what = "a record is larger than any that is written" if status == TOO_BIG else "a number is none"
            raise self._server.damaged(what)
        numbers = reply[:2] + reply[3:6]
        if len(reply) < 6 or not all(isinstance(n, int) and 0 <= n < 1 << 62 for n in numbers[1:]):
            raise self._server.damaged(f"the script {script.name!r} was answered with something else")
        if not isinstance(status, int) or not isinstance(reply[2], bytes):
            raise self._server.damaged(f"the script {script.name!r} was answered with something else")
        head = Reply(status, reply[1], reply[2], reply[3], reply[4], reply[5], reply[6:])
        with self._lock:
            if head.version >= self._seen[0]:
                self._seen = head.version, head.op, head.op_ms
        return head


class _Unknown(Exception):
    """Error: a transaction was sent, and its answer did not come."""


def _unknown(server: str, why: str) -> str:
    return (
        f"the catalog server {server} went away while it was told to commit ({why}), and has not come back: the commit "
        "has landed or it has not. When the server is back, retry with the same txn=(application, id), or ask "
        "store.resolve for its fate"
    )
