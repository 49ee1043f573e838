"""Base of the refresh contexts: one writer for each output, finished or discarded together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import pyarrow.compute as pc

from epochlog.errors import InvalidInput, SchemaMismatch
from epochlog.store.changelog.log_plan import LogPlan
from epochlog.store.env.files import Files
from epochlog.store.env.process_local import OneProcess
from epochlog.store.metadata.state_tables import NO_STATE, StateWrites
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import WriteTarget, remove_segments
from epochlog.store.types.key_range import ALL_KEYS
from epochlog.store.types.read_options import ReadOptions

from .next_barrier import Barrier
from .refresh_plan import PlannedOutput, RefreshPlan, Upstream, plan_view_chunk
from .row_groups import group_columns
from .step_work import NO_WORK, StepWork


class OutputWriter(Protocol):
    """Interface of a writer of one output's rows."""

    def upsert(self, data: Any) -> None: ...
    def delete(self, keys: Any) -> None: ...
    def finish(self) -> list[Segment]: ...
    def discard(self) -> None: ...


W = TypeVar("W", bound=OutputWriter)
Rows = TypeVar("Rows")
Groups = TypeVar("Groups")


class RefreshContext(OneProcess, Generic[W, Rows, Groups]):
    """Base of a context. Its runner sets `_ended` after the refresh, and calls `_finish` or `_discard`."""

    _instead = "read the rows before and pass them to the function, or join with the frames that ctx returns"

    def __init__(self, files: Files, plan: RefreshPlan, make_writer: Callable[[WriteTarget], W]) -> None:
        self.files = files
        """Files of the store, for reads of the plan."""
        self.plan = plan
        """Plan of this refresh: all that it reads and writes, at its barrier."""
        self._whole_plan = plan
        self._make_writer = make_writer
        self._touched: dict[tuple[str, ...], Rows] = {}  # by upstream and columns
        self._writers: dict[str, W] = {}
        self._written: set[str] = set()  # outputs with a successful write
        self._finished: dict[str, list[Segment]] = {}
        self._ended = False
        self.operation = "refresh"  # of the commit in the outputs' histories
        self.keeps_state = False
        """True if the commit of this refresh records the state of a view."""
        self.state: StateWrites = NO_STATE
        """State of a view after this refresh, which its commit records."""
        self.work: StepWork = NO_WORK
        """Work of this refresh of a view."""

    @property
    def barrier(self) -> Barrier:
        """Return the barrier of this refresh; its changes are those of (prev, curr], both epochs.

        Its kind is "initial" in a backfill or rebuild (prev is 0), else "checkpoint".
        """
        return self.plan.barrier

    def table(
        self,
        upstream: str,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        among: Groups | None = None,
    ) -> Rows:
        """Return the upstream at curr.

        among: groups as `touched` returns them, or an Arrow table of columns of the upstream. Only rows with one of
        these combinations of values are returned. If the columns are a prefix of the primary key, few other rows are
        scanned; with Spark if the groups are a table, or few changes of `touched`.
        """
        return self._rows(self.plan.upstream(upstream).current, ReadOptions(columns, filter), among)

    def previous(
        self,
        upstream: str,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        among: Groups | None = None,
    ) -> Rows:
        """Return the upstream at prev; empty if prev is 0. `among` is that of `table`."""
        return self._rows(self.plan.upstream(upstream).previous, ReadOptions(columns, filter), among)

    def output(
        self,
        output: str,
        *,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        among: Groups | None = None,
    ) -> Rows:
        """Return the job's output at prev; if prev is 0, the rows that earlier backfill chunks made.

        `among` is that of `table`.
        """
        return self._rows(self.plan.output(output).previous, ReadOptions(columns, filter), among)

    def changes(
        self,
        upstream: str,
        mode: str = "net",
        *,
        pre_images: bool = False,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
    ) -> Rows:
        """Return the upstream's changes in (prev, curr], with the change columns; in a backfill its rows at curr, as
        inserts.

        mode: "net" returns one change for each key, "epochs" all changes. Without pre_images a delete has its key
        alone, and an update its new row alone. `filter` (a pyarrow expression) may name key columns only.
        """
        if mode not in ("epochs", "net"):
            raise InvalidInput(f"mode must be 'epochs' or 'net', not {mode!r}")
        planned_upstream = self.plan.upstream(upstream)
        options = ReadOptions(columns, filter, planned_upstream.keys)
        return self._changes(planned_upstream.changes, options, mode, pre_images=pre_images)

    def touched(self, upstream: str, columns: str | Sequence[str]) -> Rows:
        """Return the distinct values of these columns in the old and new rows of the changes in (prev, curr].

        They are the groups that a refresh must recompute; nulls are among them. In a backfill they are the values of
        all rows at curr, or of the rows in the current chunk. With Spark, the driver reads few changes at once, without
        a Spark job. A frame of more changes is read at each use: `.toArrow()` turns it into a table, which `among` and
        `recompute` take too.
        """
        planned_upstream = self.plan.upstream(upstream)
        names = group_columns(upstream, planned_upstream.table.schema.schema, columns, least=1)
        if (upstream, *names) not in self._touched:
            self._touched[upstream, *names] = self._find_touched(planned_upstream, names)
        return self._touched[upstream, *names]

    def upsert(self, output: str, data: Any) -> None:
        """Write rows of an output; they are committed with all other writes when the refresh returns.

        With Spark, an optional column `_change_type` marks each row of a frame as an "upsert" or a "delete".
        """
        with self._writing(output) as writer:
            writer.upsert(data)

    def delete(self, output: str, keys: Any) -> None:
        """Delete rows of an output by primary key (exactly its columns); unknown keys are ignored."""
        with self._writing(output) as writer:
            writer.delete(keys)

    def recompute(self, output: str, *, by: str | Sequence[str], from_: Any, touched: Groups | None = None) -> None:
        """Replace the output's rows of the touched groups with `from_`: upsert its rows, delete the others.

        by: the output's columns that identify a group; [] replaces the whole output. touched: the recomputed groups, a
        table (with Spark, a frame too) with the columns `by`; a group without a row in `from_` loses all its rows. The
        default, for a job with one upstream that has the columns `by`, is `ctx.touched(upstream, by)`. The columns `by`
        need not be of the primary key, and null is a group like others. The call makes one write.

        Raises InvalidInput for a row of a group that was not touched, for two rows with one primary key, if the job
        needs `touched`, and if this refresh has written rows of the output before: call it once for an output, with
        all its groups.
        """
        target = self.plan.output(output)
        self._require_unwritten(output)
        names = group_columns(output, target.table.schema.schema, by)
        if not names and touched is not None:
            raise InvalidInput(f"recompute({output!r}, by=[]) replaces the whole output; leave out `touched`")
        with self._name_job_in_errors():
            rows = self._conformed(target, from_)
        groups: Any = touched
        if names and touched is None:
            groups = self.touched(self._only_upstream(output, names), names)
        self._recompute(target, names, rows, groups)

    def take_chunk(self, tables: Collection[str]) -> str | None:
        """Narrow the backfill of a view to its next chunk of one of these upstreams, and return its name; None if this
        refresh must take in all rows.
        """
        plan = plan_view_chunk(self.files, self.plan, tables)
        if plan is None:
            return None
        self._whole_plan, self.plan = self.plan, plan
        return next(name for name, upstream in plan.upstreams.items() if upstream.keys != ALL_KEYS)

    def take_all(self) -> None:
        """Take in all rows, in place of the chunk that `take_chunk` has chosen."""
        self.plan = self._whole_plan

    def insert(self, output: str, rows: Any) -> None:
        """Write rows of an output. Raises InvalidInput for two rows with one primary key."""
        target = self.plan.output(output)
        with self._name_job_in_errors():
            self._insert(target, self._conformed(target, rows))

    def rows_of_output(self, output: str) -> int:
        """Return an upper bound of the output's rows at prev, from the statistics of its files."""
        return self.plan.output(output).previous.rows_at_most

    def _rows(self, plan: ScanPlan, options: ReadOptions, among: Groups | None) -> Rows:
        """Read the rows of a plan, of all groups or `among` these."""
        raise NotImplementedError

    def _changes(self, plan: LogPlan, options: ReadOptions, mode: str, *, pre_images: bool) -> Rows:
        """Read the changes of a plan."""
        raise NotImplementedError

    def _find_touched(self, upstream: Upstream, names: list[str]) -> Rows:
        """Read the distinct values of these columns in the changes."""
        raise NotImplementedError

    def _conformed(self, output: PlannedOutput, rows: Any) -> Rows:
        """Return new rows in the output's columns. Raises SchemaMismatch if they are others."""
        raise NotImplementedError

    def _insert(self, output: PlannedOutput, rows: Rows) -> None:
        """Write rows, each key once."""
        raise NotImplementedError

    def _recompute(self, output: PlannedOutput, by: list[str], rows: Rows, touched: Any) -> None:
        """Write the rows of these groups, all rows for no columns, and delete those that have none."""
        raise NotImplementedError

    def _writer(self, output: str) -> W:
        if self._ended:
            raise self.plan.late_write()
        if output not in self._writers:
            self._writers[output] = self._make_writer(self.plan.output(output).target)
        return self._writers[output]

    @contextmanager
    def _writing(self, output: str) -> Iterator[W]:
        """Yield the writer of an output, and note the output as written when the block succeeds."""
        with self._name_job_in_errors():
            yield self._writer(output)
        self._written.add(output)

    @contextmanager
    def _name_job_in_errors(self) -> Iterator[None]:
        """Add the job's name to a SchemaMismatch, which names only the output."""
        try:
            yield
        except SchemaMismatch as error:
            raise SchemaMismatch(f"job {self.plan.job.name!r}: {error}") from error

    def _require_unwritten(self, output: str) -> None:
        """Raise InvalidInput if this refresh has written the output: `recompute` would not replace those rows."""
        if self._ended:
            raise self.plan.late_write()
        if output in self._written:
            raise InvalidInput(
                f"this refresh has written {output!r} already, and recompute replaces only rows of earlier commits: "
                "call recompute once for an output, with all its groups, and before any upsert or delete of it"
            )

    def _only_upstream(self, output: str, by: Sequence[str]) -> str:
        """Return the single upstream whose changes touch the output's groups; raise InvalidInput without one."""
        upstreams = self.plan.upstreams
        if len(upstreams) > 1:
            raise InvalidInput(
                f"job {self.plan.job.name!r} reads {sorted(upstreams)}, and a change of each may touch a group: call "
                f"recompute({output!r}, …, touched=groups) with the values of {list(by)} that ctx.touched returns for "
                "each upstream"
            )
        ((name, upstream),) = upstreams.items()
        known = set(upstream.table.schema.schema.names)
        missing = [column for column in by if column not in known]
        if missing:
            raise InvalidInput(
                f"recompute({output!r}): its upstream {name!r} has no column {missing[0]!r}; derive the touched groups "
                f"from those that ctx.touched({name!r}, …) returns, and pass them with touched="
            )
        return name

    def _finish(self) -> dict[str, list[Segment]]:
        for name, writer in self._writers.items():
            self._finished[name] = writer.finish()
        return self._finished

    def _end(self) -> None:
        """Release the context's resources after the commit or the failure."""

    def _discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()
        remove_segments(self.files, (segment for segments in self._finished.values() for segment in segments))
        remove_segments(self.files, self.state.segments)
