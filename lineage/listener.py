"""Listener that tells an OpenLineageClient about the runs of jobs of one open store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from openlineage.client.event_v2 import RunState

from epochlog.checkpoint.job.refresh_plan import RefreshPlan
from epochlog.errors import BarrierChanged, Cancelled, EpochlogError, Fenced, JobNotFound, JobParked
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.env.log_events import DEFECT, LINEAGE_FAILED
from epochlog.store.metadata.commit_log import commit_at
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.metadata.lookups import get_table
from epochlog.store.session.handle import Handle
from epochlog.store.session.run_listener import Run
from epochlog.views.present_text import present_text

from .events import RunEnd, RunFacts, WrittenOutput, event, namespace_of, run_id
from .sender import Sender

if TYPE_CHECKING:
    from openlineage.client import OpenLineageClient

T = TypeVar("T")
ABORTS = (BarrierChanged, Cancelled, Fenced, JobNotFound, JobParked)
"""Errors of a run that say nothing about its refresh: the job goes on elsewhere, with another query, or not at all."""


class LineageListener:
    """Listener of one open store."""

    def __init__(self, handle: Handle, client: OpenLineageClient) -> None:
        self._handle = handle
        self._namespace = namespace_of(handle.files.place)
        self._sender = Sender(client, handle.files.place, handle.recorder)
        self._lock = threading.Lock()
        self._attempts: dict[int, tuple[int, str, int]] = {}

    def began(self, plan: RefreshPlan) -> Run:
        """Send the START of a run."""
        facts = noted(self._handle.files.place, lambda: self._facts(plan))
        run = LineageRun(self._handle, self._sender, facts, [output.table.id for output in plan.outputs.values()])
        run.send(None)
        return run

    def killed(self, job: JobRecord, holder: str) -> None:
        """Send the FAIL of a run whose process has died.

        Its id is known only of the first attempt of the barrier by that holder; a later one has an error on the record.
        """
        if job.barrier is not None and job.last_error is None:
            facts = noted(self._handle.files.place, lambda: self._facts_of_killed(job, holder))
            LineageRun(self._handle, self._sender, facts, []).failed(f"its process has died: {holder}")

    def close(self) -> None:
        """Send the events that are left, within a bounded time."""
        self._sender.close()

    def _facts(self, plan: RefreshPlan) -> RunFacts:
        job, barrier = plan.job, plan.barrier
        holder = "" if job.runner is None else job.runner.holder
        return RunFacts(
            run_id(self._handle.store_id, job.id, barrier.curr, holder, self._attempt(job.id, barrier.curr, holder)),
            self._namespace,
            job.name,
            barrier.prev,
            barrier.curr,
            {name: upstream.table.schema.schema for name, upstream in plan.upstreams.items()},
            {name: output.table.schema.schema for name, output in plan.outputs.items()},
            self._query(job),
        )

    def _facts_of_killed(self, job: JobRecord, holder: str) -> RunFacts:
        assert job.barrier is not None
        _, curr, _ = job.barrier

        def schemas(view: ReadTxn, ids: Iterable[int]) -> dict[str, pa.Schema]:
            tables = [get_table(view, table, job.name) for table in ids]
            return {table.name: table.schema.schema for table in tables}

        inputs, outputs = self._handle.catalog.read(
            lambda view: (schemas(view, job.upstreams), schemas(view, job.outputs))
        )
        prev = 0 if job.reads_all_rows else job.position
        identity = run_id(self._handle.store_id, job.id, curr, holder, 0)
        return RunFacts(identity, self._namespace, job.name, prev, curr, inputs, outputs, self._query(job))

    def _attempt(self, job_id: int, curr: int, holder: str) -> int:
        """Return the number of attempts of the barrier that this holder has begun before."""
        with self._lock:
            before = self._attempts.get(job_id)
            number = before[2] + 1 if before is not None and before[:2] == (curr, holder) else 0
            self._attempts[job_id] = curr, holder, number
        return number

    def _query(self, job: JobRecord) -> str | None:
        if job.view is None:
            return None
        try:
            return self._handle.catalog.read(lambda view: present_text(view, job))
        except EpochlogError:  # an upstream was dropped, or its columns do not fit any more
            return job.view.sql


class LineageRun:
    """Run whose events are sent. facts: None if they could not be read; then it sends nothing."""

    def __init__(self, handle: Handle, sender: Sender, facts: RunFacts | None, outputs: list[int]) -> None:
        self._handle = handle
        self._sender = sender
        self._facts = facts
        self._outputs = outputs

    def completed(self, epoch: int) -> None:
        written = (noted(self._handle.files.place, lambda: self._written(epoch)) or {}) if epoch else {}
        self.send(RunEnd(RunState.COMPLETE, written))

    def failed(self, error: BaseException | str) -> None:
        if isinstance(error, ABORTS) or not isinstance(error, Exception | str):
            self.send(RunEnd(RunState.ABORT))
        else:
            text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
            self.send(RunEnd(RunState.FAIL, error=text))

    def send(self, end: RunEnd | None) -> None:
        """Queue the event of the run's begin, or of its end, with the time of now."""
        facts = self._facts
        if facts is not None:
            now_ms = noted(self._handle.files.place, self._handle.catalog.now_ms)
            if now_ms is not None:
                self._sender.send(lambda: event(facts, end, now_ms))

    def _written(self, epoch: int) -> dict[str, WrittenOutput]:
        """Read the rows, bytes and files of the commit of each output."""

        def body(view: ReadTxn) -> dict[str, WrittenOutput]:
            written = {}
            for table_id in self._outputs:
                commit = commit_at(view, table_id, epoch)
                if commit is not None:
                    name = get_table(view, table_id, "output").name
                    rows = commit.rows_upserted + commit.rows_deleted
                    written[name] = WrittenOutput(rows, commit.bytes, commit.segments)
            return written

        return self._handle.catalog.read(body)


def noted(place: str, read: Callable[[], T]) -> T | None:
    """Return the facts of an event; None, and a line in the log, if they cannot be read: the run goes on without."""
    try:
        return read()
    except EpochlogError as error:
        LINEAGE_FAILED.log(store=place, error=error)
    except Exception as error:  # noqa: BLE001 (lineage fails no run)
        DEFECT.log(what="the facts of a lineage event", error=error)
    return None
