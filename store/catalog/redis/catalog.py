"""Shared catalog: one Redis server, any number of processes on any number of hosts.

Bodies run in this process, optimistically (transaction.py). A transaction ends in one script on the server
(scripts.py): it checks that no record of the body's read set has changed, and writes. Every script call has the store's
generation and the newest version that this process has seen, so an emptied, exchanged or older server is detected and
refused. If an answer is lost, the process asks for the outcome, and this decides it: a commit that has not landed by
then never lands.

The server needs `appendonly yes`, `appendfsync always` and `maxmemory-policy noeviction`, else it may lose acknowledged
commits.
"""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from epochlog.errors import CatalogInUse, CatalogLost, CatalogRolledBack, CatalogUnavailable, OutcomeUnknown
from epochlog.store.catalog.keys import CLOCKS
from epochlog.store.catalog.protocol import ReadTxn, RecordChanges, Txn
from epochlog.store.catalog.records import unpack
from epochlog.store.env.clock import Clock, monotonic_s
from epochlog.store.env.paths import is_store_id
from epochlog.store.env.read_only import refuse_write

from .client import RECONNECT_S, Argument, Cut, RedisServer
from .scripts import (
    ABORTED,
    BEHIND,
    CHANGES,
    CLAIM,
    COMMIT,
    CONFLICT,
    CREATE,
    DAMAGED,
    DEADLINE_MS,
    DECIDE,
    EXPIRED,
    FORGET,
    FORGOTTEN,
    INCOMPLETE,
    KEY_NAMES,
    LOST,
    MISSING,
    OK,
    OTHER,
    PEEK,
    REFILL_BEGIN,
    REFILL_END,
    REFILL_PUT,
    TOO_BIG,
    Script,
)
from .transaction import RangeRequest, ReadSet, RedisView, Reply, RestartTransaction

T = TypeVar("T")
_REMEMBERED_BODIES, _REMEMBERED_KEYS, _REMEMBERED_ROWS = 256, 2_000, 64
_CHANGES_AT_ONCE, _REFILLED_AT_ONCE = 2_000, 500


def store_keys(store_id: str) -> list[bytes]:
    return [f"epochlog:{{{store_id}}}:{name}".encode() for name in KEY_NAMES]


def claim_root(server: RedisServer, root: str, store_id: str = "", replacing: str = "") -> str:
    """Claim a root for a store, and return the id of the store that has the root.

    A claim of another store stays, unless that is the store `replacing`. Without `store_id` return the present claim,
    or "".
    """
    key = b"epochlog:root:" + hashlib.sha256(root.encode()).hexdigest().encode()
    claimed = server.call(CLAIM, [key], [store_id, replacing])[1]
    if not isinstance(claimed, bytes) or (claimed and not is_store_id(claimed.decode(errors="replace"))):
        raise server.damaged("the claim of a root holds an invalid store id")
    return claimed.decode()


def create_catalog(server: RedisServer, store_id: str) -> str:
    """Create the store's catalog unless it exists; return its generation."""
    reply = server.call(CREATE, store_keys(store_id), [uuid.uuid4().hex])
    if reply[0] == MISSING:
        raise _catalog_lost(server, store_id, "some of its keys are gone")
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
    """Replace all records of the store on the server. The catalog exists after the last step. Of two concurrent calls
    the one that began later succeeds.
    """
    keys = [*store_keys(store_id), f"epochlog:{{{store_id}}}:restore".encode()]
    superseded = CatalogInUse(f"a later restore of store {store_id} on {server.name} has begun and replaces this one")
    server.call(REFILL_BEGIN, keys, [generation])
    for first in range(0, len(records), _REFILLED_AT_ONCE):
        chunk = [part for record in records[first : first + _REFILLED_AT_ONCE] for part in record]
        if server.call(REFILL_PUT, keys, [generation, version, *chunk])[0] != OK:
            raise superseded
    if server.call(REFILL_END, keys, [generation, version, len(records)])[0] != OK:
        raise superseded


def _catalog_lost(server: RedisServer, store_id: str, reason: str) -> CatalogLost:
    return CatalogLost(
        f"the catalog of store {store_id} on {server.name} is lost: {reason}. Restore it with epochlog.restore_catalog"
    )


@dataclass(slots=True)
class _RememberedReads:
    """Keys and ranges that the last two runs of a body read. The next run prefetches those that both runs read."""

    keys: tuple[dict[bytes, None], dict[bytes, None]]
    ranges: tuple[set[RangeRequest], set[RangeRequest]]


class RedisCatalog:
    """Catalog of one store on a Redis server. generation: that of the store's marker. clock: replaces the server's.
    reads_only: the place of a store that was opened read-only.
    """

    def __init__(
        self,
        server: RedisServer,
        store_id: str,
        generation: str,
        clock: Clock | None = None,
        reads_only: str | None = None,
    ) -> None:
        self.generation = generation
        self.on_commit: Callable[[], None] = lambda: None
        self._server = server
        self._store_id = store_id
        self._keys = store_keys(store_id)
        self._clock = clock
        self._reads_only = reads_only
        self._pid = os.getpid()
        self._reset_process_state()
        self._seen: tuple[int, bytes, int] = (0, b"", 0)

    def _reset_process_state(self) -> None:
        """Create the state that belongs to one process: client id, locks and remembered reads."""
        self._client, self._count = uuid.uuid4().hex, 0
        self._lock, self._transaction_lock = threading.Lock(), threading.RLock()
        self._current = threading.local()
        self._remembered_reads: OrderedDict[object, _RememberedReads] = OrderedDict()

    # ---- the Catalog protocol ----------------------------------------------------------------------------------------

    def read(self, body: Callable[[ReadTxn], T]) -> T:
        self._reset_after_fork()
        read_set = self._new_read_set(body)
        while True:
            try:
                result = self._run_body(read_set, body, RedisView(read_set))
            except RestartTransaction as restart:
                read_set = restart.read_set
                continue
            self._remember(body, read_set)
            return result

    def transact(self, body: Callable[[Txn], T]) -> T:
        if self._reads_only is not None:
            refuse_write(self._reads_only)
        self._reset_after_fork()
        with self._serialized():
            read_set = self._new_read_set(body, (CLOCKS,))
            while True:
                txn = RedisView(read_set)
                try:
                    result = self._run_body(read_set, body, txn)
                except RestartTransaction as restart:
                    read_set = restart.read_set
                    continue
                self._remember(body, read_set)
                next_read_set = self._write(read_set, txn.writes) if txn.writes else None
                if next_read_set is None:
                    self.on_commit()
                    return result
                read_set = next_read_set

    def now_ms(self) -> int:
        if self._clock is not None:
            return self._clock()
        read_set: ReadSet | None = getattr(self._current, "read_set", None)
        return read_set.head().now_ms if read_set is not None else self._server.time_ms()

    def verify_storage(self) -> None:
        """Read every record of the index; raise Corrupt for a missing or damaged one."""
        changes = self.changes_since(0, without_deletions=True)
        for key, value in changes.records.items() if changes else ():
            if value is not None:
                unpack(key, value)

    def close(self) -> None:
        self._server.close()

    # ---- versions and changes ----------------------------------------------------------------------------------------

    def version(self) -> int:
        """Return the newest version. Every transaction that writes increases it."""
        return ReadSet(self._call).head().version

    def changes_since(self, version: int, *, without_deletions: bool = False) -> RecordChanges | None:
        """Return the records changed after `version`; None if the catalog has forgotten deletions since then.

        without_deletions: list no deletions, and so never return None.
        """
        since, page_size, records = version, _CHANGES_AT_ONCE, dict[bytes, bytes | None]()
        while True:
            reply = self._call(CHANGES, [since, page_size, int(without_deletions)])
            if reply.status == INCOMPLETE:
                return None
            changed, deleted = reply.payload
            page_ends = []
            records.update(zip(changed[::3], changed[2::3], strict=True))
            records.update(dict.fromkeys(deleted[::2]))
            if not all(isinstance(part, bytes) for part in (*changed, *deleted)):
                raise self._server.damaged("its answer to the script 'changes' is malformed")
            if len(changed) == 3 * page_size:
                page_ends.append(int(changed[-2]))
            if len(deleted) == 2 * page_size:
                page_ends.append(int(deleted[-1]))
            if not page_ends:
                return RecordChanges(reply.version, records)
            if min(page_ends) - 1 > since:  # a full page may end within a version
                since = min(page_ends) - 1
            else:
                page_size *= 4

    def forget_deleted(self, version: int) -> None:
        """Forget the deletions up to this version, which are in the backup."""
        if self._reads_only is not None:
            refuse_write(self._reads_only)
        self._call(FORGET, [version])

    def expect_version(self, version: int) -> None:
        """Raise CatalogRolledBack from now on for a catalog older than `version`."""
        with self._lock:
            if version > self._seen[0]:
                self._seen = version, b"", 0

    # ---- running bodies ----------------------------------------------------------------------------------------------

    def _run_body(self, read_set: ReadSet, body: Callable[[Any], T], view: RedisView) -> T:
        outer_read_set = getattr(self._current, "read_set", None)
        self._current.read_set = read_set
        try:
            return body(view)
        finally:
            self._current.read_set = outer_read_set

    @contextmanager
    def _serialized(self) -> Iterator[None]:
        """Serialize the transactions of this process's threads, which would conflict. The wait for a stuck thread has a
        limit.
        """
        lock = self._transaction_lock
        acquired = lock.acquire(timeout=RECONNECT_S)
        try:
            yield
        finally:
            if acquired:
                lock.release()

    def _new_read_set(self, body: object, also: Iterable[bytes] = ()) -> ReadSet:
        """Create the read set of a body, which prefetches the remembered reads. also: keys that few runs read, and that
        must cost these no request of their own.
        """
        with self._lock:
            remembered = self._remembered_reads.get(getattr(body, "__code__", body))
        if remembered is None:
            return ReadSet(self._call, also)
        keys = [*also, *(key for key in remembered.keys[0] if key in remembered.keys[1])]
        ranges = [
            RangeRequest(range_.lo, range_.hi, range_.backward, _REMEMBERED_ROWS)
            for range_ in remembered.ranges[0] & remembered.ranges[1]
        ]
        return ReadSet(self._call, keys, ranges)

    def _remember(self, body: object, read_set: ReadSet) -> None:
        keys, ranges = read_set.reads()
        if not keys and not ranges:  # the body read only the version; its next run may read more
            return
        if len(keys) + _REMEMBERED_ROWS * len(ranges) > _REMEMBERED_KEYS:
            return
        body_key, reads = getattr(body, "__code__", body), (dict.fromkeys(keys), set(ranges))
        with self._lock:
            earlier = self._remembered_reads.pop(body_key, None)
            self._remembered_reads[body_key] = _RememberedReads(
                (reads[0], earlier.keys[0] if earlier else reads[0]),
                (reads[1], earlier.ranges[0] if earlier else reads[1]),
            )
            while len(self._remembered_reads) > _REMEMBERED_BODIES:
                self._remembered_reads.popitem(last=False)

    def _reset_after_fork(self) -> None:
        """Reset the state of this process in a forked child, which needs its own locks and op ids."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._reset_process_state()

    # ---- writing -----------------------------------------------------------------------------------------------------

    def _write(self, read_set: ReadSet, writes: dict[bytes, bytes | None]) -> ReadSet | None:
        """Commit the writes of a body. Return None if they have landed, else the read set for the next run."""
        head = read_set.head()
        with self._lock:
            self._count += 1
            op = f"{self._client}-{self._count:x}".encode()
        deadline_ms = head.tick_ms + round((monotonic_s() - head.at_s) * 1000) + DEADLINE_MS
        puts = [part for key, value in writes.items() if value is not None for part in (key, value)]
        deletes = [key for key, value in writes.items() if value is None]
        arguments = [op, deadline_ms, *read_set.commit_arguments(), len(puts) // 2, *puts, len(deletes), *deletes]
        try:
            reply = self._server.retry(lambda: self._send_once(COMMIT, arguments))
        except _Unknown as cut:
            reply = self._resolve_outcome(op, deadline_ms, cut)
        if reply.status == CONFLICT:
            return read_set.refreshed(reply, *read_set.reads())
        return read_set.restarted() if reply.status in (EXPIRED, ABORTED) else None

    def _send_once(self, script: Script, arguments: list[Argument]) -> Reply:
        """Send a script once. Raise NotSent if a repetition is safe, or _Unknown if the answer was cut off."""
        try:
            return self._decode_reply(
                script, self._server.run_once(script, self._keys, self._arguments_with_seen(arguments))
            )
        except Cut as cut:
            raise _Unknown(str(cut)) from cut  # `retry` would repeat a Cut

    def _resolve_outcome(self, op: bytes, deadline_ms: int, cut: _Unknown) -> Reply:
        """Return the outcome of a transaction whose answer was cut off. One that has not landed yet never will."""
        try:
            reply = self._call(DECIDE, [op, deadline_ms])
        except CatalogUnavailable as error:
            raise OutcomeUnknown(_unknown_message(self._server.name, str(cut))) from error
        if reply.status == FORGOTTEN:
            raise OutcomeUnknown(_unknown_message(self._server.name, str(cut)))
        return reply

    # ---- scripts -----------------------------------------------------------------------------------------------------

    def _call(self, script: Script, arguments: list[Argument]) -> Reply:
        """Run a script that is safe to repeat."""
        self._reset_after_fork()
        reply = self._server.retry(
            lambda: self._server.run_once(script, self._keys, self._arguments_with_seen(arguments))
        )
        return self._decode_reply(script, reply)

    def _arguments_with_seen(self, arguments: Sequence[Argument]) -> list[Argument]:
        version, op, op_ms = self._seen
        return [self.generation, version, op, op_ms, *arguments]

    def _decode_reply(self, script: Script, reply: list[Any]) -> Reply:
        """Decode an answer. Raise a typed error if it is malformed, or not from this catalog."""
        status = reply[0]
        if status in (LOST, OTHER, MISSING):
            reasons = {LOST: "the server has no data of it", MISSING: "some of its keys are gone"}
            raise _catalog_lost(
                self._server, self._store_id, reasons.get(status, "the server has another catalog in its place")
            )
        if status == BEHIND:
            raise CatalogRolledBack(
                f"the catalog of store {self._store_id} on {self._server.name} has lost commits: this process has seen "
                f"version {self._seen[0]}, which the server does not have. epochlog refuses to read or write it; bring "
                "the newer data back, or restore the catalog with epochlog.restore_catalog"
            )
        if status in (TOO_BIG, DAMAGED):
            damage = "a record is larger than the limit" if status == TOO_BIG else "a field is not a number"
            raise self._server.damaged(damage)
        numbers = reply[:2] + reply[3:6]
        if len(reply) < 6 or not all(isinstance(n, int) and 0 <= n < 1 << 62 for n in numbers[1:]):
            raise self._server.damaged(f"its answer to the script {script.name!r} is malformed")
        if not isinstance(status, int) or not isinstance(reply[2], bytes):
            raise self._server.damaged(f"its answer to the script {script.name!r} is malformed")
        head = Reply(status, reply[1], reply[2], reply[3], reply[4], reply[5], reply[6:])
        with self._lock:
            if head.version >= self._seen[0]:
                self._seen = head.version, head.op, head.op_ms
        return head


class _Unknown(Exception):
    """Error: a commit was sent, and its answer was cut off."""


def _unknown_message(server: str, reason: str) -> str:
    return (
        f"the catalog server {server} has not answered a commit ({reason}), so its outcome is unknown. When the server "
        "is back, retry with the same txn=(application, id), or get the outcome with store.resolve"
    )
