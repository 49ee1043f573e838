"""Parts: one actor of a load or job, as its user sees it; and the writers and reports of a part of a load."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.control_messages import PartName
from epochlog.checkpoint.manager.unacked_reports import Outbox
from epochlog.errors import Cancelled, EpochlogError, Fenced, InvalidInput, RolledBack, ServerUnavailable, by_name
from epochlog.exchange.transport.message_fields import MAX_TEXT
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.commit.loads import MAX_STATE
from epochlog.store.commit.root_commit import refuse_unwritable
from epochlog.store.env.clock import Deadline
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import SegmentWriter

AGAIN_S = 60.0
"""Longest time in seconds that a part that rolls back waits for its coordinator."""


class PartOwner(Protocol):
    """Interface of the worker that owns the parts."""

    handle: Handle
    changed: threading.Condition

    def send(self, message: wire.Message) -> None:
        """Queue a message for the coordinator."""

    def wait(self, condition: Callable[[], object], deadline: Deadline | None, awaited: str) -> None:
        """Wait until a message makes the condition true. Raises ServerUnavailable after the deadline."""


class Part:
    """Actor that a worker has attached. Use it from one thread. `worker.changed` guards its state."""

    def __init__(
        self,
        worker: PartOwner,
        name: PartName,
        parts: int,
        tables: tuple[str, ...] = (),
        *,
        finish_tables: bool = False,
        take_over: bool = True,
    ) -> None:
        self._worker = worker
        self._request = wire.Attach(name, parts, tables, finish_tables, 0, take_over)
        self.alive: Callable[[], bool] = lambda: True
        self.gives_up: Callable[[], bool] = lambda: False
        self.notify: Callable[[], None] = lambda: None
        self.name = name
        self.of = parts
        self._incarnation = 0
        self._started: wire.Started | None = None
        self._inject: wire.Injected | None = None  # not reported yet
        self._report: wire.Reported | None = None
        self._outbox = Outbox()
        self._committed: tuple[int, int] = (0, 0)  # barrier id and epoch of the newest commit
        self._aborted = 0  # the newest aborted barrier id
        self._ended = False
        self._has_changes = False
        self._restarted: wire.Restarted | None = None
        self._rollback_reason: str | None = None  # set until RolledBack is raised
        self._final_error: EpochlogError | None = None
        self.finished = False

    def __repr__(self) -> str:
        return f"<part {self.name.number} of {self.of} of {self.name.kind} {self.name.name}>"

    @property
    def state(self) -> bytes | None:
        """Return the state of the part's newest commit at its (latest) start; None without a commit, and if the part
        had finished.
        """
        return None if self._started is None else self._started.state

    @property
    def epoch(self) -> int:
        """Return the epoch of the newest commit with a report of this part; 0 before the first."""
        return self._committed[1]

    @property
    def over(self) -> bool:
        """Return True if the part takes no more rows: it has finished, or was fenced or cancelled."""
        return self.finished or self._final_error is not None

    def attach(self, deadline: Deadline | None = None) -> None:
        """Attach, also after a rollback, and wait until the part may begin."""
        with self._worker.changed:
            self._request_attach()
            self._await_start(deadline)

    def _request_attach(self) -> None:
        self._reset()
        self._worker.send(self._request)

    def _await_start(self, deadline: Deadline | None) -> None:
        self._worker.wait(
            lambda: self._started or self._final_error or self.gives_up(), deadline, f"attach of {self!r}"
        )
        if self._final_error is not None:
            raise self._final_error
        if self._started is None:
            raise ServerUnavailable(f"the coordinator was lost before {self!r} could begin")

    # ---- messages, under `changed` -------------------------------------------------------------------------------

    def reconnected(self, *, same_coordinator: bool) -> None:
        """Resume on a new stream. same_coordinator: the coordinator has not been restarted since the attach."""
        if self.over:
            return
        if self._started is None:
            self._worker.send(self._request)
        elif not same_coordinator:
            self._restarted = wire.Restarted(
                self.name,
                self._incarnation,
                False,
                "the coordinator was restarted; the part's uncommitted work is dropped",
            )
        elif self._restarted is None:
            self._worker.send(replace(self._request, incarnation=self._incarnation))
            self._resend_notices()

    def handle_message(self, message: wire.Message) -> None:
        """Handle a message for this part."""
        if isinstance(message, wire.Refused):
            self._final_error = decode_error(message.error, message.reason)
        elif isinstance(message, wire.Started):
            if self._started is None:
                self._incarnation, self._started = message.incarnation, message
                self.finished = message.finished
        elif isinstance(message, wire.Stopped):
            self._final_error = Cancelled(f"{self.name.kind} {self.name.name!r} has ended: {message.reason}")
        elif getattr(message, "incarnation", None) != self._incarnation or self._started is None:
            return
        elif isinstance(message, wire.Injected):
            if self._report is not None and message.barrier_id == self._report.barrier_id:
                self._worker.send(self._report)
            else:
                self._inject = message
        elif isinstance(message, wire.Committed):
            self._committed = max(self._committed, (message.barrier_id, message.epoch))
            self.finished = self.finished or message.finished
            self._close_attempt(message.barrier_id)
        elif isinstance(message, wire.Aborted):
            self._aborted = max(self._aborted, message.barrier_id)
            self._close_attempt(message.barrier_id)
        elif isinstance(message, wire.Restarted):
            self._restarted = message

    def fence(self) -> None:
        """End the part, because another driver on this worker takes over. Call under `changed`."""
        if not self.over:
            self._final_error = Fenced(f"{self!r} was taken over by another driver of this process")
            self._worker.changed.notify_all()

    def detach(self, reason: str) -> None:
        """Tell the coordinator that the part leaves, because its worker is being closed."""
        if self._started is not None and not self.over and self._restarted is None:
            self._worker.send(wire.Detached(self.name, self._incarnation, reason[:MAX_TEXT]))

    def _close_attempt(self, barrier_id: int) -> None:
        if self._inject is not None and self._inject.barrier_id <= barrier_id:
            self._inject = None

    def _resend_notices(self) -> None:
        """Send again the notice that a disconnection may have lost."""
        if self._ended:
            self._worker.send(wire.Ended(self.name, self._incarnation))
        elif self._has_changes:
            self._worker.send(wire.Progress(self.name, self._incarnation))

    def _reset(self) -> None:
        self._incarnation, self._started, self._restarted = 0, None, None
        self._inject, self._report, self._outbox = None, None, Outbox()
        self._ended = self._has_changes = False

    # ---- for the user's thread -----------------------------------------------------------------------------------

    def _raise_pending(self) -> None:
        """Raise Fenced or Cancelled if the part has ended. After a rollback, attach again and raise RolledBack."""
        restarted = self._restarted
        if self._final_error is None and restarted is not None:
            if restarted.fenced:
                self._final_error = Fenced(
                    f"{self!r} belongs to another worker now, so this one may not write: {restarted.reason}"
                )
            else:
                self._worker.handle.leases.renew()  # vacuum may have revoked its write intent
                self._rollback_reason = restarted.reason
                self._request_attach()
        if self._rollback_reason is not None:  # also after an earlier call has timed out here
            self._discard_uncommitted()
            self._await_start(Deadline.after(AGAIN_S))
            reason, self._rollback_reason = self._rollback_reason, None
            if not self.finished:
                raise RolledBack(f"{self!r} rolled back to its last commit: {reason}. Continue from part.state")
        if self._final_error is not None:
            raise self._final_error

    def _discard_uncommitted(self) -> None:
        """Discard the rows that are written but not committed."""

    def _report_barrier(
        self, inject: wire.Injected, sealed: dict[str, list[Segment]], state: bytes | wire.RefreshReport | None
    ) -> None:
        """Report for a barrier. Call under `changed`."""
        self._ended = self._ended or inject.drain
        segments = self._outbox.report(inject.barrier_id, inject.taken, sealed)
        self._report = wire.Reported(
            self.name, self._incarnation, inject.barrier_id, dict(segments), state, self._ended
        )
        self._has_changes = False
        if self._inject is not None and self._inject.barrier_id == inject.barrier_id:
            self._inject = None
        self._worker.send(self._report)


class LoadPart(Part):
    """Part of a load: writes rows of root tables, which become visible at the load's next checkpoint."""

    def __init__(
        self, worker: PartOwner, name: PartName, parts: int, tables: tuple[str, ...], *, finish_tables: bool
    ) -> None:
        super().__init__(worker, name, parts, tables, finish_tables=finish_tables)
        self._writers: dict[str, PartWriter] = {}
        self._latest_state: bytes | None = None

    def writer(self, table: str) -> PartWriter:
        """Return the writer of one of the load's tables. Raises InvalidInput, NotWritable, TableFinished."""
        if table not in self._request.tables:
            raise InvalidInput(f"{self!r} writes {sorted(self._request.tables)}, not {table!r}")
        if table not in self._writers:
            handle = self._worker.handle

            def read_table(view: ReadTxn) -> TableDef:
                return refuse_unwritable(view, find_table(view, table))

            self._writers[table] = PartWriter(
                self, lambda: SegmentWriter(handle.write_target(handle.catalog.read(read_table)))
            )
        return self._writers[table]

    def poll(self, state: bytes | None = None) -> bool:
        """Report the written rows if a checkpoint waits for them. Call it after each batch.

        Return False if the load is being drained: write no more rows and call `finish`. state: the source's position
        after all rows written so far, at most 64 KiB; an empty one counts as none. It is committed together with those
        rows. Raises Fenced if another worker owns the part now, Cancelled if the load was stopped, RolledBack if the
        part begins again: uncommitted rows are dropped, continue from `part.state`.
        """
        if state is not None:
            self._latest_state = checked_state(state)
        with self._worker.changed:
            self._raise_pending()
            if state is not None and state != self._reported_state():
                self._notify_changes()
            inject = self._inject
        if inject is not None:
            self._seal(inject)
        return not (self._ended or self.finished)

    def finish(self, state: bytes | None = None, timeout: float | None = None) -> int:
        """End this part's data; wait for its last commit and return the epoch.

        timeout: seconds to wait. Raises Fenced, Cancelled, RolledBack (see `poll`) and ServerUnavailable.
        """
        deadline = None if timeout is None else Deadline.after(timeout)
        if state is not None:
            self._latest_state = checked_state(state)
        while True:
            with self._worker.changed:
                if self.finished:
                    return self._committed[1]
                self._raise_pending()
                if not self._ended:
                    self._ended = True
                    self._worker.send(wire.Ended(self.name, self._incarnation))
                self._worker.wait(
                    lambda: self._inject or self.finished or self._restarted or self._final_error,
                    deadline,
                    "the last commit",
                )
                inject = self._inject
            if inject is not None:
                self._seal(inject)

    def _reported_state(self) -> object:
        return self._report.state if self._report is not None else self.state

    def _seal(self, inject: wire.Injected) -> None:
        """Seal the written rows and report them. If sealing fails, the part rolls back to its last commit."""
        try:
            sealed = {table: writer.finish() for table, writer in self._writers.items()}
        except BaseException as error:
            with self._worker.changed:
                reason = f"{type(error).__name__}: {error}"[:MAX_TEXT]
                self._worker.send(wire.Detached(self.name, self._incarnation, reason))
                self._restarted = wire.Restarted(self.name, self._incarnation, False, reason)
            raise
        with self._worker.changed:
            state = self._latest_state if self._latest_state is not None else self.state
            self._report_barrier(inject, {table: segments for table, segments in sealed.items() if segments}, state)

    def _discard_uncommitted(self) -> None:
        self._latest_state = None
        for writer in self._writers.values():
            writer.discard()

    def require_open(self) -> None:
        """Raise InvalidInput if the part has finished, so that no commit would take its rows."""
        if self.finished:
            raise InvalidInput(
                f"{self!r} has finished and takes no more rows; load under another name, or drop the load with "
                f"store.drop_load({self.name.name!r}) and attach again"
            )

    def note_rows(self) -> None:
        """Notify the coordinator of the first rows since the last report."""
        if not self._has_changes:
            with self._worker.changed:
                self._notify_changes()

    def _notify_changes(self) -> None:
        if not self._has_changes:
            self._has_changes = True
            self._worker.send(wire.Progress(self.name, self._incarnation))


class PartWriter:
    """Writer of one table's rows for a part. The rows become visible at the checkpoint that the part reports for."""

    def __init__(self, part: LoadPart, make_writer: Callable[[], SegmentWriter]) -> None:
        self._part = part
        self._make_writer = make_writer
        self._writer = make_writer()

    def upsert(self, data: object) -> None:
        """Upsert rows (Arrow-shaped, all columns). Raises SchemaMismatch, and InvalidInput if the part has finished."""
        self._part.require_open()
        self._writer.upsert(data)
        self._part.note_rows()

    def delete(self, keys: object) -> None:
        """Delete rows by key (exactly the primary-key columns); unknown keys are ignored."""
        self._part.require_open()
        self._writer.delete(keys)
        self._part.note_rows()

    def finish(self) -> list[Segment]:
        """Seal the written rows and return their segments."""
        return self._writer.finish()

    def discard(self) -> None:
        """Discard the written rows. Later rows use the write intent that this process has then."""
        self._writer.discard()
        self._writer = self._make_writer()


def checked_state(state: object) -> bytes:
    """Return the state; raise InvalidInput if it is not bytes or too long for a commit."""
    if not isinstance(state, bytes) or len(state) > MAX_STATE:
        raise InvalidInput(f"a part's state is bytes, at most {MAX_STATE} of them")
    return state


def decode_error(name: str, reason: str) -> EpochlogError:
    """Convert the coordinator's error to the public class of that name."""
    return by_name(name, reason) or EpochlogError(f"{name}: {reason}")
