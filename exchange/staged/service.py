"""Service of the staged exchange: its actions, its streams and its maintenance.

Push handlers (`push_handler`) receive batches and stage senders (`pull_handler`) send them. Every change of the catalog
goes through one group commit, which wakes the stage senders of the query afterwards.
"""

from __future__ import annotations

import itertools
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa

from epochlog.errors import EpochlogError
from epochlog.exchange.transport.duplex import DuplexStream
from epochlog.exchange.transport.services import Action, Call, Exchange, Role, Wait, WaitingAction
from epochlog.store.backup.incremental import ship
from epochlog.store.catalog.protocol import Txn
from epochlog.store.env.clock import Deadline, wait_with_checks
from epochlog.store.env.log_events import RETRY
from epochlog.store.env.paths import SEGMENT_ENDING
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters
from epochlog.store.metadata.exchange_records import FILES, end_expired, end_query, purge
from epochlog.store.metadata.unreachable_files import mark_unreachable
from epochlog.store.session.handle import Handle

from . import messages, transactions
from .group_commit import GroupCommit
from .pull_handler import StageSender
from .push_handler import HeldPush, MemoryBudget, PushHandler
from .query_leases import QueryLeases
from .state import Cursor, StageConsumer, StagedQuery

LEASE_MS = 86_400_000
"""Default time until an unused query ends."""
BUDGET = 64 << 30
"""Default disk budget of a query, in bytes."""
WRITERS = 8
"""Files that are written and synced at the same time."""
LONGEST_WAIT_S = 30.0
"""Longest time that one call may wait for a stage."""
ASK_ANYWAY_S = 1.0
"""Seconds after which a wait reads the stage anew without a channel that has passed: it may have passed through another
server of the store."""
SLOTS = 1024
"""Counts that a server keeps, however many queries it has served."""
MAINTENANCE_S = 5.0
"""Seconds between two checks for expired queries, and for disk budget freed by other servers."""


class _Counts:
    """Counts of what happened to each query, in a fixed number of slots. Queries of one slot share its count, so a
    waiter may look for nothing; none misses a change.
    """

    def __init__(self) -> None:
        self._slots = [0] * SLOTS

    def add(self, query: str) -> None:
        self._slots[zlib.crc32(query.encode()) % SLOTS] += 1

    def of(self, query: str) -> int:
        return self._slots[zlib.crc32(query.encode()) % SLOTS]


class StagedExchange:
    """Service of the staged exchanges of one open store. `exchanges` and `actions` are registered at its server."""

    def __init__(self, handle: Handle, waiting: Wait) -> None:
        self.handle = handle
        self.changed = threading.Condition()
        self.closing = threading.Event()
        self._waiting = waiting
        self._commit_counts = _Counts()
        self._pass_counts = _Counts()
        self.claim_numbers: Iterator[int] = itertools.count(1)  # of consumers, in the order of their commits
        self._senders: dict[tuple[str, ...], StageSender] = {}
        self._commits = GroupCommit(handle.catalog)
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="epochlog-exchange-writes")
        self._to_delete: list[str] = []
        self._held: list[HeldPush] = []
        self._budget_versions = _Counts()
        self._maintenance_due = False
        self.query_leases = QueryLeases(handle)
        self.memory_budget = MemoryBudget()
        self._maintenance = threading.Thread(
            target=self._run_maintenance, name="epochlog-exchange-maintenance", daemon=True
        )
        self._maintenance.start()

    @property
    def exchanges(self) -> dict[bytes, Exchange]:
        return {
            messages.PUSH: Exchange(self._serve_push, Role.WRITE, messages.MAX_MESSAGE_BYTES),
            messages.PULL: Exchange(self._serve_pull, Role.WRITE, messages.MAX_MESSAGE_BYTES),
        }

    @property
    def actions(self) -> dict[str, Action | WaitingAction]:
        about = "staged exchange: "
        return {
            "staged.declare": Action(self._declare, about=about + "declare a consumer"),
            "staged.end": Action(self._end, about=about + "set the end mark of a channel"),
            "staged.drop": Action(self._drop, about=about + "drop a query"),
            "staged.stage": Action(self._stage, Role.READ, about=about + "return the stage counter"),
            "staged.wait": WaitingAction(self._wait_stage, Role.READ, about=about + "wait for a stage"),
            "staged.progress": Action(self._progress, Role.READ, about=about + "return the progress of all channels"),
            "staged.claim": Action(self._claim, about=about + "claim the next incarnation of consumers"),
            "staged.ack": Action(self._ack, about=about + "acknowledge a consumer's durable cursor"),
        }

    def stop(self) -> None:
        """End the streams; call `close` after they have ended."""
        with self.changed:
            self.closing.set()
            self.changed.notify_all()

    def close(self) -> None:
        """End the threads. A push without an answer may be durable or not."""
        self.stop()
        self._writers.shutdown(wait=True)
        self._commits.close()
        self._maintenance.join()
        self.query_leases.close()

    # ---- for streams ---------------------------------------------------------------------------------------------

    def submit(self, body: Callable[[Txn], Any]) -> Future[Any]:
        """Queue a body for the group commit and return a future of its result, which is set when it is durable. Call
        `notify_commit` then.
        """
        return self._commits.submit(body)

    def transact(self, query: str, body: Callable[[Txn], Any]) -> Any:
        """Commit a body for a query, wait until it is durable, wake the query's senders, and return its result."""
        result = self._commits.submit(body).result()
        self.notify_commit(query)
        return result

    def notify_commit(self, query: str) -> None:
        """Count a commit to the query, and wake its stage senders."""
        with self.changed:
            self._commit_counts.add(query)
            self.changed.notify_all()

    def commit_count(self, query: str) -> int:
        """Return a number that changes with each commit to the query in this process."""
        with self.changed:
            return self._commit_counts.of(query)

    def run_in_writer(self, task: Callable[[], None]) -> None:
        """Run a function in one of the threads that write files."""
        self._writers.submit(task)

    def write(self, data: pa.Buffer) -> str:
        """Write a new durable file of an exchange; return its path."""
        path = self.handle.new_path(FILES, SEGMENT_ENDING)
        self.handle.files.write(path, data)
        return path

    def delete_later(self, paths: Iterable[str]) -> None:
        """Hand unreachable files over to maintenance, which deletes them soon."""
        with self.changed:
            self._to_delete += paths
            self._maintenance_due = True
            self.changed.notify_all()

    def wake_maintenance(self) -> None:
        """Run maintenance at once."""
        with self.changed:
            self._maintenance_due = True
            self.changed.notify_all()

    def budget_version(self, query: str) -> int:
        """Return a number that changes when more batches may fit into the query's disk budget."""
        with self.changed:
            return self._budget_versions.of(query)

    def hold_push(self, held: HeldPush) -> None:
        """Hold a push that does not fit into the budget until it may fit, or its deadline passes."""
        with self.changed:
            self._held.append(held)
            self._maintenance_due = True
            self.changed.notify_all()

    def channel_passed(self, query: str) -> None:
        """Retry held pushes to later stages, and wake the waits for a stage, after a channel of the query may have
        passed, or the query was dropped.
        """
        self._retry_held_pushes(query)
        with self.changed:
            self._pass_counts.add(query)
            self.changed.notify_all()

    def _retry_held_pushes(self, query: str) -> None:
        with self.changed:
            self._budget_versions.add(query)
            self._maintenance_due = True
            self.changed.notify_all()

    # ---- actions -------------------------------------------------------------------------------------------------

    def _declare(self, body: bytes) -> bytes:
        fields = messages.unpack(body, messages.DECLARE)
        lease_ms = fields["lease_ms"] or LEASE_MS
        expires_ms = self.handle.catalog.now_ms() + lease_ms
        new = StagedQuery(fields["query"], {}, frozenset(), lease_ms, expires_ms, fields["budget"] or BUDGET)
        consumer = StageConsumer(fields["consumer"], fields["stages"])
        self.query_leases.touch(self.transact(new.name, lambda tx: transactions.declare(tx, new, consumer)))
        return b""

    def _end(self, body: bytes) -> bytes:
        fields = messages.unpack(body, messages.END)
        name, channel, last = fields["query"], fields["channel"], fields["last"]
        attempt, rows = fields["attempt"], fields["rows"]
        self.query_leases.touch(
            self.transact(name, lambda tx: transactions.end(tx, name, channel, last, attempt, rows))
        )
        self.channel_passed(name)
        return b""

    def _stage(self, body: bytes) -> bytes:
        return messages.pack(stage=self._read_stage(messages.unpack(body, messages.QUERY)["query"]))

    def _wait_stage(self, body: bytes, call: Call) -> bytes:
        """Wait until the stage counter has reached a stage, or the time of the wait has passed; return the counter."""
        fields = messages.unpack(body, messages.WAIT)
        name, deadline = fields["query"], Deadline.after(min(fields["wait_ms"] / 1000, LONGEST_WAIT_S))
        passes, stage = self._pass_count(name), self._read_stage(name)
        if stage < fields["stage"]:
            with self._waiting(call, "a stage") as check:
                while stage < fields["stage"] and not deadline.passed:
                    wait_s = min(deadline.remaining_s, ASK_ANYWAY_S)
                    wait_with_checks(partial(self._wait_for_pass, name, passes), wait_s, check)
                    passes, stage = self._pass_count(name), self._read_stage(name)
        return messages.pack(stage=stage)

    def _read_stage(self, name: str) -> int:
        return self.handle.catalog.read(lambda view: transactions.find_query(view, name)).stage

    def _pass_count(self, query: str) -> int:
        """Return a number that changes with each call of `channel_passed` for the query."""
        with self.changed:
            return self._pass_counts.of(query)

    def _wait_for_pass(self, query: str, passes: int, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until the query's pass count is not `passes`; return False if it still is."""
        with self.changed:
            return self.changed.wait_for(lambda: self._pass_counts.of(query) != passes, timeout_s)

    def _progress(self, body: bytes) -> bytes:
        name = messages.unpack(body, messages.QUERY)["query"]
        channels = self.handle.catalog.read(lambda view: transactions.channels_of(view, name))
        return messages.pack(
            channels=[[channel.name, channel.stage, channel.next, channel.last] for channel in channels]
        )

    def _drop(self, body: bytes) -> bytes:
        name = messages.unpack(body, messages.QUERY)["query"]
        self.transact(name, lambda tx: end_query(tx, name))
        self.query_leases.forget(name)
        self.delete_later(purge(self.handle.catalog, name))
        self.channel_passed(name)
        return b""

    def _claim(self, body: bytes) -> bytes:
        fields = messages.unpack(body, messages.CLAIM)
        name, consumers, claimant = fields["query"], fields["consumers"], fields["claimant"]
        claimed = self.transact(name, lambda tx: transactions.claim_next(tx, name, consumers, claimant))
        return messages.pack(incarnations=claimed)

    def _ack(self, body: bytes) -> bytes:
        fields = messages.unpack(body, messages.ACK)
        self._acknowledge(fields["query"], fields["consumer"], fields["incarnation"], fields["cursor"])
        return b""

    def _acknowledge(self, query: str, consumer: str, incarnation: int, cursor: Cursor) -> None:
        """Commit an acknowledgement; durable on return. Maintenance deletes the files of batches that all consumers
        have acknowledged.
        """
        paths = self.transact(query, lambda tx: transactions.acknowledge(tx, query, consumer, incarnation, cursor))
        self.delete_later(paths)
        while len(paths) >= transactions.MAX_RELEASED:
            paths = self.transact(query, lambda tx: transactions.release(tx, query, cursor))
            self.delete_later(paths)
        self._retry_held_pushes(query)

    # ---- streams -------------------------------------------------------------------------------------------------

    def _serve_push(self, stream: DuplexStream, arguments: bytes) -> None:
        hello = stream.read_first()
        if hello is not None:
            PushHandler(self, stream, messages.unpack(hello, messages.PUSH_HELLO)["query"]).serve()

    def _serve_pull(self, stream: DuplexStream, arguments: bytes) -> None:
        hello = stream.read_first()
        if hello is None:
            return
        sender = StageSender(self, stream, messages.unpack(hello, messages.PULL_HELLO))
        with self.changed:
            current = self._senders.get(sender.key)
            if current is not None and sender.is_older_than(current):
                return
            self._senders[sender.key] = sender
        if current is not None:
            current.replace()
        try:
            sender.serve()
        finally:
            with self.changed:
                if self._senders.get(sender.key) is sender:
                    del self._senders[sender.key]

    # ---- maintenance ---------------------------------------------------------------------------------------------

    def _run_maintenance(self) -> None:
        """Delete released files, retry held pushes, and end expired queries, until the service closes."""
        next_check = Deadline.after(MAINTENANCE_S)
        while not self.closing.is_set():
            with self.changed:
                deadlines = [held.deadline.remaining_s for held in self._held]
                wait_s = min([next_check.remaining_s, self.query_leases.period_s, *deadlines])
                self.changed.wait_for(lambda: self._maintenance_due or self.closing.is_set(), wait_s)
                self._maintenance_due = False
                paths, self._to_delete = self._to_delete, []
                # another server of the store may have freed budget, so each check retries all
                due = self._held if next_check.passed else self._due_pushes()
                self._held = [held for held in self._held if held not in due]
            for held in due:
                if held.deadline.passed or held.is_abandoned():
                    held.give_up()
                else:
                    held.retry()
            try:
                self._delete(paths)
                self.query_leases.renew()
                if next_check.passed:
                    next_check = Deadline.after(MAINTENANCE_S)
                    end_expired(self.handle.catalog, self.handle.leases.live, self.handle.clock_guard.slowest_ms)
            except EpochlogError as error:
                RETRY.log(what="the maintenance of staged exchanges", error=error)

    def _due_pushes(self) -> list[HeldPush]:
        return [
            held
            for held in self._held
            if held.deadline.passed
            or held.is_abandoned()
            or self._budget_versions.of(held.query) != held.budget_version
        ]

    def _delete(self, paths: list[str]) -> None:
        """Delete files; mark those that cannot be deleted as unreachable, for vacuum."""
        remaining = list(paths)
        try:
            if remaining:
                ship(self.handle)  # so that no incremental backup refers to a deleted file
            while remaining:
                self.handle.files.delete(remaining[-1])
                remaining.pop()
        finally:
            if remaining:
                self.handle.catalog.transact(lambda tx: self._mark_unreachable(tx, remaining))

    def _mark_unreachable(self, tx: Txn, paths: list[str]) -> None:
        mark_unreachable(tx, FILES, [(path, 0) for path in paths], self.handle.catalog.now_ms())
        move_counters(tx, Counters.read(tx))
