"""Parts: what one actor of a load or job writes and reports, as its user sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.control_messages import PartName
from epochlog.checkpoint.job.refresh_plan import barrier_of, plan_barrier
from epochlog.checkpoint.manager.unacked_reports import Outbox
from epochlog.errors import Cancelled, EpochlogError, Fenced, InvalidInput, RolledBack, by_name
from epochlog.store.catalog.protocol import View
from epochlog.store.commit.loads import MAX_STATE
from epochlog.store.commit.root_commit import refuse_unwritable
from epochlog.store.env.clock import Deadline
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_job, find_table
from epochlog.store.session.handle import Handle
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import SegmentWriter
from epochlog.store.types.epoch import show_epoch

from .row_partitioning import PartRefreshContext

AGAIN_S = 60.0
"""How long a part that rolls back waits for its coordinator."""
PartRefresh = Callable[[PartRefreshContext], None]


class PartOwner(Protocol):
    """The worker that parts belong to, as far as they ask it."""

    handle: Handle
    changed: threading.Condition

    def send(self, message: wire.Message) -> None:
        """Queue a message for the coordinator."""

    def wait(self, until: Callable[[], object], deadline: Deadline | None, what: str) -> None:
        """Wait for something that a message brings. Raises ServerUnavailable after the deadline."""


class Part:
    """One actor. Use it from one thread; the worker's thread changes what it knows too, under `worker.changed`."""

    def __init__(
        self,
        worker: PartOwner,
        name: PartName,
        parts: int,
        tables: tuple[str, ...] = (),
        *,
        finish_tables: bool = False,
    ) -> None:
        self._worker = worker
        self._asked = wire.Attach(name, parts, tables, finish_tables, 0)
        self.name = name
        self.of = parts
        self._incarnation = 0
        self._started: wire.Started | None = None
        self._inject: wire.Injected | None = None  # not reported yet
        self._report: wire.Reported | None = None
        self._outbox = Outbox()
        self._committed: tuple[int, int] = (0, 0)  # barrier id and epoch of the newest commit
        self._aborted = 0  # the newest barrier id that was given up
        self._ended = False
        self._news = False
        self._restarted: wire.Restarted | None = None
        self._rolled_back: str | None = None  # why, until the user has been told so
        self._final: EpochlogError | None = None
        self.finished = False

    def __repr__(self) -> str:
        return f"<part {self.name.number} of {self.of} of {self.name.kind} {self.name.name}>"

    @property
    def state(self) -> bytes | None:
        """Return the bytes given with the part's newest commit when it began (or began again); None at first."""
        return None if self._started is None else self._started.state

    @property
    def epoch(self) -> int:
        """Return the newest epoch at which something that this part reported was committed; 0 before the first."""
        return self._committed[1]

    @property
    def over(self) -> bool:
        """Return True if the part takes no more rows: it has finished, or was fenced or cancelled."""
        return self.finished or self._final is not None

    def begin(self, deadline: Deadline | None = None) -> None:
        """Attach, for the first time or again, and wait until the part may begin."""
        with self._worker.changed:
            self._ask_anew()
            self._await_start(deadline)

    def _ask_anew(self) -> None:
        self._reset()
        self._worker.send(self._asked)

    def _await_start(self, deadline: Deadline | None) -> None:
        self._worker.wait(lambda: self._started or self._final, deadline, f"attach of {self!r}")
        if self._final is not None:
            raise self._final

    # ---- messages, under `changed` -------------------------------------------------------------------------------

    def come_back(self, *, same: bool) -> None:
        """Use a new line; `same`: to the coordinator that this part is attached at."""
        if self.over:
            return
        if self._started is None:
            self._worker.send(self._asked)
        elif not same:
            self._restarted = wire.Restarted(
                self.name,
                self._incarnation,
                False,
                "the coordinator was started again; this part's work since is dropped",
            )
        elif self._restarted is None:
            asked = self._asked
            self._worker.send(
                wire.Attach(asked.part, asked.parts, asked.tables, asked.finish_tables, self._incarnation)
            )
            self._repeat()

    def take(self, message: wire.Message) -> None:
        """Take a message for this part."""
        if isinstance(message, wire.Refused):
            self._final = typed(message.error, message.reason)
        elif isinstance(message, wire.Started):
            if self._started is None:
                self._incarnation, self._started = message.incarnation, message
                self.finished = message.finished
        elif isinstance(message, wire.Stopped):
            self._final = Cancelled(f"{self.name.kind} {self.name.name!r} takes nothing more: {message.reason}")
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
            self._settled(message.barrier_id)
        elif isinstance(message, wire.Aborted):
            self._aborted = max(self._aborted, message.barrier_id)
            self._settled(message.barrier_id)
        elif isinstance(message, wire.Restarted):
            self._restarted = message

    def give_up(self, reason: str) -> None:
        """Give the part up, as its worker is being closed."""
        if self._started is not None and not self.over and self._restarted is None:
            self._worker.send(wire.Detached(self.name, self._incarnation, reason[: wire.MAX_TEXT]))

    def _settled(self, barrier_id: int) -> None:
        if self._inject is not None and self._inject.barrier_id <= barrier_id:
            self._inject = None

    def _repeat(self) -> None:
        """Send again the message that a cut line may have lost."""
        if self._ended:
            self._worker.send(wire.Ended(self.name, self._incarnation))
        elif self._news:
            self._worker.send(wire.Progress(self.name, self._incarnation))

    def _reset(self) -> None:
        self._incarnation, self._started, self._restarted = 0, None, None
        self._inject, self._report, self._outbox = None, None, Outbox()
        self._ended = self._news = False

    # ---- for the user's thread -----------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise what has happened to this part: Fenced, Cancelled; RolledBack once it may begin again."""
        restarted = self._restarted
        if self._final is None and restarted is not None:
            if restarted.fenced:
                self._final = Fenced(
                    f"{self!r} is run by another worker now and has no effect any more: {restarted.reason}"
                )
            else:
                self._worker.handle.leases.renew()  # vacuum may have revoked the intent it wrote under
                self._rolled_back = restarted.reason
                self._ask_anew()
        if self._rolled_back is not None:  # also when an earlier call has waited in vain
            self._forget()
            self._await_start(Deadline.after(AGAIN_S))
            reason, self._rolled_back = self._rolled_back, None
            if not self.finished:
                raise RolledBack(f"{self!r} went back to its last commit: {reason}. Go on from part.state")
        if self._final is not None:
            raise self._final

    def _forget(self) -> None:
        """Let go of what was written and not committed."""

    def _hand_over(self, inject: wire.Injected, sealed: dict[str, list[Segment]], state: bytes | None) -> None:
        """Report for a barrier, under `changed`."""
        self._ended = self._ended or inject.drain
        found = self._outbox.report(inject.barrier_id, inject.taken, sealed)
        self._report = wire.Reported(self.name, self._incarnation, inject.barrier_id, dict(found), state, self._ended)
        self._news = False
        if self._inject is not None and self._inject.barrier_id == inject.barrier_id:
            self._inject = None
        self._worker.send(self._report)


class LoadPart(Part):
    """A part of a load: writes rows of root tables, which become visible at the load's next checkpoint."""

    def __init__(
        self, worker: PartOwner, name: PartName, parts: int, tables: tuple[str, ...], *, finish_tables: bool
    ) -> None:
        super().__init__(worker, name, parts, tables, finish_tables=finish_tables)
        self._writers: dict[str, PartWriter] = {}
        self._given: bytes | None = None

    def writer(self, table: str) -> PartWriter:
        """Return the writer of one of the load's tables. Raises InvalidInput, NotWritable, TableFinished."""
        if table not in self._asked.tables:
            raise InvalidInput(f"{self!r} writes {sorted(self._asked.tables)}, not {table!r}")
        if table not in self._writers:
            handle = self._worker.handle

            def find(view: View) -> TableDef:
                found = find_table(view, table)
                refuse_unwritable(view, found)
                return found

            found = handle.catalog.read(find)
            self._writers[table] = PartWriter(self, lambda: SegmentWriter(handle.write_target(found)))
        return self._writers[table]

    def poll(self, state: bytes | None = None) -> bool:
        """Hand over what was written, if a checkpoint waits for it; call it after each batch. False: the load is being
        drained, write nothing more and call `finish`.

        state: where the source goes on after all that was written so far, at most 64 KiB; an empty one is none. It is
        committed with those rows, or not at all. Raises Fenced when another worker is this part now, Cancelled when the
        load was stopped, RolledBack when the part begins again: what is not committed is dropped, go on from `state`.
        """
        if state is not None:
            self._given = checked_state(state)
        with self._worker.changed:
            self._check()
            if state is not None and state != self._known_state():
                self._tell_news()
            inject = self._inject
        if inject is not None:
            self._seal(inject)
        return not (self._ended or self.finished)

    def finish(self, state: bytes | None = None, timeout: float | None = None) -> int:
        """End this part's data; returns the epoch of its last commit once that has landed.

        timeout: seconds to wait for that. Raises what `poll` raises, and ServerUnavailable.
        """
        deadline = None if timeout is None else Deadline.after(timeout)
        if state is not None:
            self._given = checked_state(state)
        while True:
            with self._worker.changed:
                if self.finished:
                    return self._committed[1]
                self._check()
                if not self._ended:
                    self._ended = True
                    self._worker.send(wire.Ended(self.name, self._incarnation))
                self._worker.wait(
                    lambda: self._inject or self.finished or self._restarted or self._final, deadline, "the last commit"
                )
                inject = self._inject
            if inject is not None:
                self._seal(inject)

    def _known_state(self) -> bytes | None:
        return self._report.state if self._report is not None else self.state

    def _seal(self, inject: wire.Injected) -> None:
        """Seal what was written and report it. When that fails the part's work since its last commit is lost."""
        try:
            sealed = {table: writer.finish() for table, writer in self._writers.items()}
        except BaseException as error:
            with self._worker.changed:
                reason = f"{type(error).__name__}: {error}"[: wire.MAX_TEXT]
                self._worker.send(wire.Detached(self.name, self._incarnation, reason))
                self._restarted = wire.Restarted(self.name, self._incarnation, False, reason)
            raise
        with self._worker.changed:
            given = self._given if self._given is not None else self.state
            self._hand_over(inject, {table: found for table, found in sealed.items() if found}, given)

    def _forget(self) -> None:
        self._given = None
        for writer in self._writers.values():
            writer.discard()

    def require_open(self) -> None:
        """Refuse rows that nothing would ever commit."""
        if self.finished:
            raise InvalidInput(
                f"{self!r} has finished, and takes no rows any more; load under another name, or drop the load with "
                f"store.drop_load({self.name.name!r}) and attach again"
            )

    def note_rows(self) -> None:
        """Tell the coordinator of the first rows since the last report: there is something to commit."""
        if not self._news:
            with self._worker.changed:
                self._tell_news()

    def _tell_news(self) -> None:
        if not self._news:
            self._news = True
            self._worker.send(wire.Progress(self.name, self._incarnation))


class PartWriter:
    """Writes rows of one table for a part. Nothing is visible before the checkpoint that the part reports them for."""

    def __init__(self, part: LoadPart, make: Callable[[], SegmentWriter]) -> None:
        self._part = part
        self._make = make
        self._writer = make()

    def upsert(self, data: object) -> None:
        """Take rows (anything Arrow-shaped, all columns); raises SchemaMismatch, and InvalidInput once all is over."""
        self._part.require_open()
        self._writer.upsert(data)
        self._part.note_rows()

    def delete(self, keys: object) -> None:
        """Take keys to delete (exactly the primary-key columns); unknown keys are fine."""
        self._part.require_open()
        self._writer.delete(keys)
        self._part.note_rows()

    def finish(self) -> list[Segment]:
        """Seal what was taken."""
        return self._writer.finish()

    def discard(self) -> None:
        """Drop what was taken; what comes next is written under the intent that this process has by then."""
        self._writer.discard()
        self._writer = self._make()


class JobPart(Part):
    """A part of a job: refreshes its share of each barrier."""

    _reported: tuple[int, int] | None = None

    def step(self, refresh: PartRefresh, timeout: float | None = None) -> int | None:
        """Run the next barrier: the committed epoch, or None when none came within `timeout` seconds or the job has
        finished.

        refresh(ctx) is that of `job.step_local`, and ctx knows `part`, `parts` and `share`; see PartRefreshContext.
        When it raises, the barrier is given up for now, the error goes on to the caller, and the next call tries again.
        """
        deadline = None if timeout is None else Deadline.after(timeout)
        while True:
            with self._worker.changed:
                self._check()
                done = self._committed
                if not self._wait(lambda done=done: self._inject or self._committed != done, deadline):
                    return None
                if self.finished:
                    return self._committed[1] if self._committed != done else None
                inject = self._inject
            if inject is not None and (epoch := self._run(inject, refresh)) is not None:
                return epoch

    def _run(self, inject: wire.Injected, refresh: PartRefresh) -> int | None:
        """Refresh and report; the epoch once that is committed, None when the attempt was given up."""
        sealed: dict[str, list[Segment]] = {}
        if self._reported != (inject.prev, inject.curr):  # else only the attempt failed: what it made is kept
            try:
                found = self._refresh(inject, refresh)
            except BaseException as error:
                self._decline(inject, f"{type(error).__name__}: {error}")
                raise
            if found is None:
                return None
            sealed = found
        with self._worker.changed:
            self._hand_over(inject, sealed, None)
            self._reported = (inject.prev, inject.curr)
            self._wait(lambda: self._committed[0] >= inject.barrier_id or self._aborted >= inject.barrier_id, None)
            if self._committed[0] >= inject.barrier_id or self.finished:
                return self._committed[1]
        return None

    def _refresh(self, inject: wire.Injected, refresh: PartRefresh) -> dict[str, list[Segment]] | None:
        """Return the segments of this part; None when the catalog knows of another barrier by now."""
        handle = self._worker.handle
        handle.intents.own()  # registered before the look at the catalog that its writers are planned in
        job = handle.catalog.read(lambda view: find_job(view, self.name.name))
        found = None if job.barrier is None else barrier_of(job)
        if found is None or (found.prev, found.curr) != (inject.prev, inject.curr):
            self._decline(inject, f"the job stands at {show_epoch(job.position)}, and this is not its barrier")
            return None
        plan = handle.catalog.read(lambda view: plan_barrier(view, handle, job))
        context = PartRefreshContext(handle, plan, self.name.number, self.of)
        try:
            refresh(context)
            return context._finish()
        finally:
            context._over = True

    def _decline(self, inject: wire.Injected, reason: str) -> None:
        with self._worker.changed:
            reason = reason[: wire.MAX_TEXT]
            self._worker.send(wire.Declined(self.name, self._incarnation, inject.barrier_id, reason))
            if self._inject is inject:
                self._inject = None

    def _wait(self, until: Callable[[], object], deadline: Deadline | None) -> bool:
        """Wait under `changed`; False after the deadline. Whatever ends the part is raised."""
        while not (until() or self.finished or self._restarted or self._final):
            if deadline is not None and deadline.passed:
                return False
            self._worker.changed.wait(None if deadline is None else deadline.left_s)
        if not self.finished:
            self._check()
        return True

    def _forget(self) -> None:
        self._reported = None


def checked_state(state: object) -> bytes:
    """Return the state; raise InvalidInput unless it can be kept with a commit."""
    if not isinstance(state, bytes) or len(state) > MAX_STATE:
        raise InvalidInput(f"a part's state is bytes, at most {MAX_STATE} of them")
    return state


def typed(name: str, reason: str) -> EpochlogError:
    """Convert the coordinator's error to a typed one."""
    return by_name(name, reason) or EpochlogError(f"{name}: {reason}")
