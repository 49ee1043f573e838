"""Jobs on Spark: a refresh gets DataFrames and gives DataFrames; what it gave is committed at the barrier when it
returns.

Frames are planned from the barrier's own plans and built on the session that the caller gave (a foreachBatch frame
belongs to a cloned session). Outputs are run and written at `upsert`, as segments that nothing points to until the
commit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import EpochlogError, InvalidInput, SparkLost
from ..exchange.frames import FrameWriter, read_frame
from ..exchange.pieces import Piece, bytes_to_read, narrowed
from ..exchange.spark_errors import typed
from ..exchange.spark_options import place_options
from ..exchange.spark_types import arrow_schema, spark_schema
from ..store.handle import Handle
from ..store.log import LogPlan
from ..store.scan import EVERYTHING, KeyRange, ScanPlan
from ..store.segment import Segment
from ..store.writer import WriteTarget
from .barrier_run import BarrierRun
from .context import RefreshContext
from .job import JobRunner
from .live import live
from .spark_doorbell import DOORBELL, Doorbell

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Refresh = Callable[["SparkJobContext"], Any]
BROADCAST_BYTES = 8 << 20


class SparkJobContext(RefreshContext[FrameWriter]):
    """What a refresh function sees: DataFrames of its upstreams and outputs, fixed at the barrier."""

    def __init__(self, session: SparkSession, handle: Handle, run: BarrierRun) -> None:
        super().__init__(handle.files, run, self._frame_writer)
        self._session = session
        self._handle = handle
        self._intent: str | None = None

    def _frame_writer(self, target: WriteTarget) -> FrameWriter:
        """Writes under an intent of this refresh: attempts of tasks that lost have left files, which the open store's
        own intent would keep for as long as this process lives.
        """
        if self._intent is None:
            self._intent = self._handle.intents.register("spark")
        return FrameWriter(replace(target, intent=self._intent))

    def _end(self) -> None:
        """The refresh is committed, or never will be. An intent that cannot be ended now runs out."""
        if self._intent is not None:
            with suppress(EpochlogError):
                self._handle.intents.release(self._intent)

    @property
    def spark(self) -> SparkSession:
        """The session that the frames belong to."""
        return self._session

    def changes(
        self,
        upstream: str,
        mode: str = "net",
        *,
        pre_images: bool = False,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
    ) -> DataFrame:
        """What changed in the upstream in (prev, curr], with the change columns; in a backfill its rows at curr, as
        inserts.

        `filter` (a pyarrow expression) may name key columns only.
        """
        if mode not in ("epochs", "net"):
            raise InvalidInput(f"mode must be 'epochs' or 'net', not {mode!r}")
        found = self._run.upstream(upstream)
        return self._frame(found.changes, columns, filter, mode=mode, pre_images=pre_images, keys=found.keys)

    def table(
        self, upstream: str, *, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> DataFrame:
        """The upstream at curr."""
        return self._frame(self._run.upstream(upstream).current, columns, filter)

    def previous(
        self, upstream: str, *, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> DataFrame:
        """The upstream at prev; empty when prev is 0."""
        return self._frame(self._run.upstream(upstream).previous, columns, filter)

    def output(
        self, output: str, *, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
    ) -> DataFrame:
        """The job's own output at prev; when prev is 0 it is empty, or what earlier pieces of the snapshot made."""
        return self._frame(self._run.output(output).previous, columns, filter)

    def upsert(self, output: str, frame: DataFrame) -> None:
        """Write rows of an output; committed with all others when the refresh returns, or not at all."""
        self._writer(output).write(frame)

    def delete(self, output: str, keys: DataFrame) -> None:
        """Delete rows of an output by primary key (exactly its columns); unknown keys are fine."""
        self._writer(output).write(keys, deletes=True)

    def _frame(
        self,
        plan: ScanPlan | LogPlan,
        columns: Sequence[str] | None,
        filter: pc.Expression | None,
        *,
        mode: str = "net",
        pre_images: bool = False,
        keys: KeyRange = EVERYTHING,
    ) -> DataFrame:
        plan, table = narrowed(plan, keys), plan.table
        names = tuple(table.schema.names if columns is None else columns)
        whole: pa.Schema = plan.schema(names)
        # a delete leaves all but the key empty; the key itself is never null
        schema = spark_schema(table.name, whole, table.primary_key)
        piece = Piece(self._files, plan, arrow_schema(schema), names, filter, mode, pre_images, keys)
        frame = read_frame(self._session, piece, schema)
        return frame.hint("broadcast") if bytes_to_read(plan, names, filter) < BROADCAST_BYTES else frame


def step(runner: JobRunner, session: SparkSession, refresh: Refresh) -> int | None:
    """One barrier in the foreground: the committed epoch, or None when there is nothing to do or the job is finished.

    Raises Fenced, JobParked, SparkLost, what the refresh raises, and epochlog's own errors with their types even if a
    Spark task met them.
    """
    runner.again = lambda: step(runner, session, refresh)
    run = runner.begin()
    if run is None:
        return None
    if run.taken_in:
        return runner.commit(run, {})
    context = SparkJobContext(session, runner.handle, run)
    try:
        return runner.commit(run, _refreshed(runner, context, refresh))
    finally:
        context._end()


def _refreshed(runner: JobRunner, context: SparkJobContext, refresh: Refresh) -> dict[str, list[Segment]]:
    """What the refresh has written, not committed. Whatever it raises is noted on the job."""
    session = context.spark
    runner.refreshing = threading.get_ident()
    try:
        refresh(context)
        segments = context._finish()
        if _gone(session):
            raise _lost(runner)
    except BaseException as error:
        context._discard()
        known = (typed(error) if isinstance(error, Exception) else None) or error
        if known is error and isinstance(error, Exception) and _gone(session):
            known = _lost(runner)
        runner.fail(known)
        known = runner.cause(known)
        if known is error:
            raise
        raise known from error
    finally:
        context._over, runner.refreshing = True, None
    return segments


def own_pool(session: SparkSession, name: str) -> None:
    """Let what this thread runs share the cores with other threads instead of queueing, where the session is fair."""
    try:
        session.sparkContext.setLocalProperty("spark.scheduler.pool", name)
    except Exception:  # noqa: BLE001  # a session that has gone: the step will say so
        return


def _gone(session: SparkSession) -> bool:
    """Whether the session's JVM died or its context was stopped: a driver that has lost it commits nothing more."""
    try:
        context: Any = session.sparkContext
        return bool(context._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001  # py4j has errors of many kinds for a JVM that does not answer
        return True


def _lost(runner: JobRunner) -> SparkLost:
    return SparkLost(
        f"the Spark session of job {runner.name!r} has gone (it was stopped, or its JVM died), and nothing of this "
        "barrier was committed. Make a new session and step or start the job again: it goes on from the catalog"
    )


# ---- running on its own --------------------------------------------------------------------------------------------


_with_doorbell: WeakSet[SparkSession] = WeakSet()


def start(
    runner: JobRunner,
    session: SparkSession,
    refresh: Refresh,
    *,
    trigger: str = "continuous",
    poll: str = "100 milliseconds",
) -> StreamingQuery:
    """Run the job as a StreamingQuery: a doorbell stream rings, its function commits barrier after barrier.

    The doorbell keeps no checkpoint that matters: the catalog is the only truth. An error of a barrier fails the query
    and stands as the job's last_error. Raises JobRunning when the job has a live query in this process.
    """
    if trigger not in ("continuous", "available_now"):
        raise InvalidInput(f"trigger must be 'continuous' or 'available_now', not {trigger!r}")
    live.claim(runner)
    runner.again = lambda: step(runner, session, refresh)
    try:
        query = _start(runner, session, refresh, trigger, poll)
    except BaseException:
        live.set(runner, None)
        raise
    live.set(runner, query)
    return query


def _start(runner: JobRunner, session: SparkSession, refresh: Refresh, trigger: str, poll: str) -> StreamingQuery:
    def ring(_frame: DataFrame, _batch: int) -> None:
        while step(runner, session, refresh) is not None:
            query = live.get(runner)
            if query is not None and not query.isActive:  # stopped meanwhile
                return

    if session not in _with_doorbell:  # Spark warns of a second time
        session.dataSource.register(Doorbell)
        _with_doorbell.add(session)
    reader = session.readStream.format(DOORBELL).options(**place_options(runner.handle))
    stream = reader.option("job", str(runner.job_id)).option("name", runner.name).load()
    writer = stream.writeStream.foreachBatch(ring).queryName(f"{runner.name}@{runner.handle.store_id[:8]}")
    if trigger == "available_now":
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=poll).start()
