"""Part of a job, as its user sees it: the refresh and report of its share of each barrier."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from epochlog.checkpoint import control_messages as wire
from epochlog.checkpoint.job.refresh_adapter import RefreshAdapter
from epochlog.checkpoint.job.refresh_context import RefreshContext
from epochlog.checkpoint.job.refresh_plan import barrier_of, plan_chunk
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.job.step_work import CommittedStep
from epochlog.checkpoint.manager.unacked_reports import Outbox
from epochlog.errors import BarrierChanged, EpochlogError, Fenced
from epochlog.exchange.transport.message_fields import MAX_TEXT
from epochlog.store.env.clock import Deadline
from epochlog.store.metadata.lookups import find_job
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.epoch import show_epoch

from .actor import Part
from .row_partitioning import PartRefreshAdapter, PartRefreshContext

PartRefresh = Callable[[PartRefreshContext], None]


class JobPart(Part):
    """Part of a job: refreshes its share of each barrier."""

    _reported: tuple[int, int] | None = None
    _context: RefreshContext[Any, Any, Any] | None = None  # of the newest refresh, until its segments are committed
    _refreshed: CommittedStep | None = None  # of the newest refresh, without its epoch
    _of_refresh: wire.RefreshReport | None = None  # of the newest refresh

    def step(self, refresh: PartRefresh, timeout: float | None = None) -> int | None:
        """Run the next barrier; return its epoch, or None after `timeout` seconds or when the job has finished.

        refresh(ctx) is that of `job.step_local`; ctx also has `part`, `parts` and `share`, see PartRefreshContext. An
        error of the refresh aborts the attempt and is raised; the next call tries the barrier again.
        """
        return self.step_with(refresh, PartRefreshAdapter(self._worker.handle, self.name.number, self.of), timeout)

    def step_with(
        self, refresh: Callable[[Any], Any], adapter: RefreshAdapter, timeout: float | None = None
    ) -> int | None:
        """Run the next barrier with this adapter, as `step` does. Return None also once `gives_up` returns True."""
        deadline = None if timeout is None else Deadline.after(timeout)
        while True:
            with self._worker.changed:
                self._raise_pending()
                committed = self._committed
                has_landed = self._report is not None and committed[0] >= self._report.barrier_id
            if has_landed:
                self.end_context()
            with self._worker.changed:
                if not self._wait(lambda committed=committed: self._inject or self._committed != committed, deadline):
                    return None
                if self.finished:
                    return self._committed[1] if self._committed != committed else None
                inject = self._inject
            if inject is not None and (epoch := self._refresh_and_report(inject, refresh, adapter)) is not None:
                return epoch

    def _refresh_and_report(
        self, inject: wire.Injected, refresh: Callable[[Any], Any], adapter: RefreshAdapter
    ) -> int | None:
        """Refresh and report; return the epoch of the commit, or None if the attempt was aborted or given up."""
        sealed: dict[str, list[Segment]] = {}
        if self._reported != (inject.prev, inject.curr):  # else only the attempt failed, and its segments are reported
            self._outbox = Outbox()  # those of an earlier barrier are no part of this one
            try:
                segments = self._refresh(inject, refresh, adapter)
            except BaseException as error:
                self.end_context()
                self._decline(inject, f"{type(error).__name__}: {error}")
                raise
            if segments is None:
                return None
            sealed = segments
        with self._worker.changed:
            self._report_barrier(inject, sealed, self._of_refresh)
            self._reported = (inject.prev, inject.curr)
            self._wait(lambda: self._committed[0] >= inject.barrier_id or self._aborted >= inject.barrier_id, None)
            epoch = self._committed[1] if self._committed[0] >= inject.barrier_id or self.finished else None
        if epoch is not None:
            self.end_context()
            if self._refreshed is not None:
                adapter.committed(replace(self._refreshed, epoch=epoch))
        return epoch

    def _refresh(
        self, inject: wire.Injected, refresh: Callable[[Any], Any], adapter: RefreshAdapter
    ) -> dict[str, list[Segment]] | None:
        """Return the segments of this part; None if the catalog has recorded another barrier, or is to record one, or
        if the attempt was aborted.

        The only part of a job takes in a backfill by chunks. It records them itself, and has no segments to report.
        """
        handle = self._worker.handle
        while True:
            job = handle.catalog.read(lambda view: find_job(view, self.name.name))
            barrier = None if job.barrier is None else barrier_of(job)
            if barrier is None or (barrier.prev, barrier.curr) != (inject.prev, inject.curr):
                self._decline(inject, f"the job is at {show_epoch(job.position)}, and this is not its recorded barrier")
                return None
            runner = JobRunner(handle, job.id, job.name)
            plan = runner.plan(job)
            is_alone = self.of == 1
            plan = replace(plan_chunk(handle.files, plan) if is_alone else plan, engine=adapter.engine)
            if plan.fully_loaded:
                self._of_refresh = wire.RefreshReport("refresh", plan.engine)
                self._refreshed = CommittedStep.of(plan, 0, {}, "refresh")
                return {}
            self.end_context()
            self._context = context = adapter.context(plan)
            context.keeps_state = is_alone
            try:
                segments = runner.run_refresh(plan, context, refresh, adapter)
            except EpochlogError as error:
                if not runner.is_overtaken(plan):
                    raise
                self.end_context()
                self._decline(inject, f"the view was replaced or is to be rebuilt: {error}")
                return None
            self._refreshed = CommittedStep.of(context.plan, 0, segments, context.operation, context.work)
            self._of_refresh = wire.RefreshReport(context.operation, context.plan.engine, context.state.kept)
            if context.plan.next_cursor is None:
                remove_segments(handle.files, context.state.unrecorded(is_last=False))
                return segments
            try:
                runner.commit(context.plan, segments)
                adapter.committed(self._refreshed)
            except (BarrierChanged, Fenced) as error:
                self.end_context()
                self._decline(inject, f"another runner has the job: {error}")
                return None
            with self._worker.changed:
                if self._aborted >= inject.barrier_id:
                    return None

    @property
    def has_step(self) -> bool:
        """Return True if a step would refresh, roll back, raise, or release what the newest refresh holds."""
        report = self._report
        has_landed = self._context is not None and report is not None and self._committed[0] >= report.barrier_id
        return bool(self._inject or self._restarted or self._rollback_reason or self._final_error or has_landed)

    def end_context(self) -> None:
        """Release the resources of the newest refresh, whose segments this part does not report any more."""
        context, self._context = self._context, None
        if context is not None:
            context._end()

    def _decline(self, inject: wire.Injected, reason: str) -> None:
        with self._worker.changed:
            reason = reason[:MAX_TEXT]
            self._worker.send(wire.Declined(self.name, self._incarnation, inject.barrier_id, reason))
            if self._inject is inject:
                self._inject = None

    def _wait(self, condition: Callable[[], object], deadline: Deadline | None) -> bool:
        """Wait until the condition is true or the part has finished; return False after the deadline or on giving up.

        Call under `changed`. Raises the error that ends the part.
        """
        while not (condition() or self.finished or self._restarted or self._final_error):
            if (deadline is not None and deadline.passed) or self.gives_up():
                return False
            self._worker.changed.wait(None if deadline is None else deadline.remaining_s)
        if not self.finished:
            self._raise_pending()
        return True

    def _discard_uncommitted(self) -> None:
        self._reported = self._of_refresh = None
        self.end_context()
