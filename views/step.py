"""Step of a view on either engine: the decision which rows its barrier computes, and the driver that writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic

import pyarrow as pa

from epochlog.checkpoint.job.refresh_context import RefreshContext
from epochlog.checkpoint.job.row_groups import several_rows
from epochlog.checkpoint.job.step_work import StepWork
from epochlog.errors import InvalidInput, LimitExceeded
from epochlog.store.env.log_events import VIEW_RECOMPUTED
from epochlog.store.metadata.state_tables import StateWrites
from epochlog.store.types.retyping import as_schema
from epochlog.store.types.schema import TableSchema

from .chunks import Merges, chunked_tables
from .compiled_plan import CompiledPlan, CompiledQuery
from .derivation import NotCovered
from .engine import StepEngine
from .reads import R
from .refresh_choice import recomputes_all
from .restriction import TOUCHED
from .row_changes import gained_and_lost, with_marks
from .state_changes import Disagreement
from .state_step import StateStep


@dataclass(frozen=True, slots=True)
class AllRows:
    """Step that replaces all rows, in a backfill or rebuild, or if the changes touch no groups, or most rows."""

    operation: str
    """Name of the commit in the view's history."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Step that replaces the rows of the groups that the changes touch (R2 to R8)."""

    scope: tuple[str, ...]
    """Columns of the view that identify a group."""
    touched: pa.Table
    """Values of the scope."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Step that adds the changes to the state of their groups (R9)."""

    rows: Mapping[str, pa.Table]
    """New rows by output, of groups that have rows still."""
    groups: pa.Table
    """Groups that get these rows, or none; of no columns for an aggregate of all rows."""
    of_all: bool = False
    """True if the rows are all that the view has, also if there are none."""


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Step that writes the rows of the primary keys that the changes touch (R11)."""

    gained: pa.Table
    """Rows that the view has then, of some of these keys."""
    lost: pa.Table
    """Keys of which the view has no row then."""


@dataclass(frozen=True, slots=True)
class ChunkRows:
    """Step that adds the rows of a backfill chunk to those of earlier chunks (R10)."""

    merges: Merges


Step = AllRows | Groups | Changes | ChangedRows | ChunkRows
_WAYS: Mapping[type[Step], str] = {
    AllRows: "all rows",
    Groups: "groups",
    Changes: "state",
    ChangedRows: "rows",
    ChunkRows: "chunk",
}
"""What the rows of a step are computed by, in the statistics of a view."""


def refresh(
    ctx: RefreshContext[Any, Any, Any], output: str, plan: CompiledPlan, engine: AbstractContextManager[StepEngine[Any]]
) -> None:
    """Write the rows of a view that its barrier alters. engine: entered only if the barrier has changes."""
    initial = ctx.barrier.kind == "initial"
    changed = [] if initial else [name for name in plan.tables if ctx.plan.upstream(name).changes.rows]
    if initial or changed:
        with engine as entered:
            schema = ctx.plan.output(output).table.schema
            state = None
            if plan.state and ctx.keeps_state and (sql := entered.state_sql) is not None:
                state = StateStep(ctx, plan, sql, schema)
            driver = _Driver(ctx, plan, entered, schema, state)
            driver.write(driver.decide(changed))
    elif plan.state:
        ctx.state = StateWrites(ctx.plan.output(output).state)


@dataclass(frozen=True, slots=True)
class _Driver(Generic[R]):
    """Driver of one step: it decides, computes and writes by the calls of an engine."""

    ctx: RefreshContext[Any, Any, Any]
    plan: CompiledPlan
    engine: StepEngine[R]
    output: TableSchema
    state: StateStep | None
    """Step by the view's state; None if the view keeps none."""

    def decide(self, changed: Sequence[str]) -> Step:
        """Return the step of a barrier in which these tables have changed; of a backfill or rebuild for none."""
        if not changed:
            tables = chunked_tables(self.plan.derive(), self.output) if self.ctx.plan.by_chunks else {}
            table = self.ctx.take_chunk(tables)
            return AllRows("refresh") if table is None else ChunkRows(tables[table])
        changes: Step | None = None
        if self.state is not None and not self._changes_most_rows(changed):
            try:
                changes = self._by_state(self.state, changed)
            except Disagreement:
                return AllRows("recompute")
        if changes is None and self.plan.has_row_changes:
            changes = self._row_changes(changed)
        if changes is not None:
            return changes
        scope = self.plan.coverage.scope_of(changed)
        touched = self._touched(changed, scope) if scope else None
        view_rows = self.ctx.rows_of_output(self.output.name)
        if touched is None or (self.plan.by_rows and recomputes_all(touched.num_rows, view_rows)):
            return AllRows("recompute")
        return Groups(scope, touched)

    def write(self, step: Step) -> None:
        """Compute and write the rows of a step. The state of a step that does not come of the state is made anew."""
        self._write(step)
        if self.state is not None and self.ctx.state.kept is None and not isinstance(step, ChunkRows):
            self.state.make_anew()
        self.ctx.work = StepWork(_WAYS[type(step)], () if self.state is None else tuple(self.state.blocks))

    def _write(self, step: Step) -> None:
        if isinstance(step, AllRows):
            self.ctx.operation = step.operation
            for output, rows in self._rows(self.plan.query()).items():
                self.ctx.recompute(output, by=[], from_=rows)
        elif isinstance(step, ChunkRows):
            self._write_chunk(step.merges)
        elif isinstance(step, ChangedRows):
            if step.gained.num_rows:
                self.ctx.upsert(self.output.name, step.gained)
            if step.lost.num_rows:
                self.ctx.delete(self.output.name, step.lost)
        elif isinstance(step, Changes):
            if step.of_all or step.groups.num_rows or any(rows.num_rows for rows in step.rows.values()):
                for output, rows in step.rows.items():
                    self.engine.replace(output, rows, step.groups)
        elif step.touched.num_rows:
            for output, rows in self._rows(self.plan.refresh_query(step.scope), {TOUCHED: step.touched}).items():
                self._require_own_keys(rows, step.scope, step.touched)
                self.ctx.recompute(output, by=list(step.scope), from_=rows, touched=step.touched)

    def _write_chunk(self, merges: Merges) -> None:
        """Write the rows of a chunk, merged with those of earlier chunks; the whole view if a value of the chunk or a
        merged one does not fit its type, for the view's own value may.
        """
        try:
            chunk = self._rows(self.plan.query())
            if merges:
                chunk = {output: self.engine.merged(output, rows, merges) for output, rows in chunk.items()}
        except LimitExceeded:
            raise
        except InvalidInput:
            self._write_at_once()
            return
        try:
            for output, rows in chunk.items():
                self.ctx.insert(output, rows)
        except self.engine.late_overflows:
            self._write_at_once()

    def _write_at_once(self) -> None:
        self.ctx.take_all()
        self.write(AllRows("refresh"))

    def _rows(self, query: CompiledQuery, known: Mapping[str, pa.Table] | None = None) -> dict[str, R]:
        """Return the rows of a block by output. A view has one block and one output."""
        return {self.output.name: self.engine.conform(self.output, self.engine.run(query, known))}

    def _row_changes(self, changed: Sequence[str]) -> ChangedRows | None:
        """Return the step that writes the rows of the changes; None if they are too many, or cannot be computed."""
        most = self.engine.most_rows
        if most is not None and sum(self.ctx.plan.upstream(name).changes.rows for name in changed) > most:
            return None
        marked = with_marks(self.output)
        try:
            deltas = self.engine.conform(marked, self.engine.run(self.plan.row_changes(changed)))
            rows = self.engine.collect(deltas, most=None if most is None else most + 1, output=marked)
        except (InvalidInput, pa.ArrowInvalid):
            return None  # The query itself may not fail: these expressions are evaluated of rows of other joins.
        if most is not None and rows.num_rows > most:
            return None
        if any(rows.column(name).null_count for name in self.output.primary_key):
            return None  # The view's own refresh refuses a key that is NULL.
        return ChangedRows(*gained_and_lost(self.output, as_schema(rows, marked.schema)))

    def _by_state(self, state: StateStep, changed: Sequence[str]) -> Changes | None:
        """Return the step that adds the changes to the view's state; None if they do not give the view's rows."""
        rows = state.by_changes(changed)
        if rows is None:
            return None
        self._require_own_keys(rows.rows, rows.groups.column_names, rows.groups)
        return Changes({self.output.name: rows.rows}, rows.groups, not rows.groups.column_names)

    def _changes_most_rows(self, changed: Sequence[str]) -> bool:
        """Return True if the changes are most rows of the tables, so that all rows are computed sooner."""
        upstreams = self.ctx.plan.upstreams.values()
        changes = sum(self.ctx.plan.upstream(name).changes.rows for name in changed)
        return recomputes_all(changes, sum(upstream.current.rows_at_most for upstream in upstreams))

    def _touched(self, changed: Sequence[str], scope: tuple[str, ...]) -> pa.Table | None:
        """Return the touched values of the scope; None if they cannot be computed in this step.

        That is so if no condition connects them with the changed rows, or if an expression that is evaluated for more
        rows than the view's query evaluates it for fails.
        """
        types = pa.schema([self.output.schema.field(name) for name in scope])
        keys = self.engine.reads.changed_keys(changed, scope, types)
        if keys is not None:
            return keys
        try:
            return self.engine.collect(self.engine.run(self.plan.touched_query(changed, scope)))
        except NotCovered:
            return None
        except InvalidInput as error:
            VIEW_RECOMPUTED.log(view=self.ctx.plan.job.name, error=error)
            return None

    def _require_own_keys(self, rows: Any, scope: Sequence[str], touched: pa.Table) -> None:
        """Raise InvalidInput if a row has the key of a row of the view whose group is not recomputed.

        That can be only if the scope has columns outside of the key.
        """
        if not set(scope) <= set(self.output.primary_key):
            key = self.engine.key_outside(self.output, rows, scope, touched)
            if key is not None:
                raise several_rows(self.output.name, key, of_view=True)
