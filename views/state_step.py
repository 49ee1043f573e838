"""Step of a view by its state, in this process: it adds the changes of a barrier, or makes the state anew (R12)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.checkpoint.job.refresh_context import RefreshContext
from epochlog.checkpoint.job.state_rows import StateRows
from epochlog.checkpoint.job.step_work import BlockWork
from epochlog.errors import Corrupt, InvalidInput, LimitExceeded
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.log_events import VIEW_STATE_DISAGREES, VIEW_STATE_LOST
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.metadata.state_tables import StateTable, StateWrites, ViewState
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import WriteTarget
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.retyping import as_schema
from epochlog.store.types.schema import TableSchema

from .aggregate_state import FOLDED
from .compiled_plan import CompiledPlan, CompiledQuery
from .restriction import TOUCHED
from .state_changes import (
    ChangedGroups,
    Disagreement,
    Find,
    StateChange,
    coded,
    extremes_of_rows,
    folded_groups,
    handed_on,
    key_columns,
    named_groups,
    no_groups,
    scattered,
    state_change,
    stored_groups,
)
from .state_tables import Layout

STATE = 1
"""Version of the state's tables and of what they have. A state of another version is made anew."""
LEAST_BYTES = 64 << 20
"""Bytes that a state may have; one of more may have as many as the files of the tables that its view reads."""
PART_ROWS = 1 << 20
"""About the most rows of a table that are taken at once into a state that is made anew."""
MOST_ROWS = 4 << 20
"""Most rows of a join that a step takes into this process at once."""
MOST_DISAGREEMENTS = 2
"""Disagreements with the changes after which a view keeps no state until it is rebuilt."""
MOST_FAILURES = 8
"""Changes that could not be added, with disagreements, after which a view keeps no state until it is rebuilt: the state
is made anew after each, of all rows.
"""


class EngineFailed(Exception):
    """Error of an engine whose cause is not in the rows, and so may be gone at the next step."""


@dataclass(frozen=True, slots=True)
class NewBlock:
    """State tables of a block that an engine has made of all rows."""

    inputs: int
    """Rows of the join that they are made of."""
    tables: Sequence[StateTable]
    written: Sequence[Sequence[Segment]]
    """Segments of new files of each table, also those that it has not any more."""


class StateSQL(Protocol):
    """Engine of the queries of a state, whose rows come to this process."""

    @property
    def here(self) -> CompiledPlan:
        """Return the plan of the queries over rows that this process has."""
        ...

    @property
    def most_changes(self) -> int | None:
        """Most changed rows that a step adds to a state; None without a bound."""
        ...

    def run(self, query: CompiledQuery, known: Mapping[str, pa.Table] | None = None) -> pa.Table:
        """Return the rows of a query over tables of the view. Raises InvalidInput."""
        ...

    def run_here(self, query: CompiledQuery, known: Mapping[str, pa.Table]) -> pa.Table:
        """Return the rows of a query of the plan `here` over the known tables alone. Raises InvalidInput."""
        ...

    def inputs(
        self, query: CompiledQuery, layout: Layout, known: Mapping[str, pa.Table] | None = None, *, most: int
    ) -> pa.Table:
        """Return the rows that the first block takes of tables. Raises InvalidInput; LimitExceeded if they are more
        than `most`; EngineFailed.
        """
        ...

    def may_read_all(self, query: CompiledQuery) -> bool:
        """Return True if this step may read all rows of the query's tables for a state that is made anew."""
        ...

    def make_block(self, query: CompiledQuery, layout: Layout, target: WriteTarget) -> NewBlock | None:
        """Make the state tables of the first block of all rows of the query; None if this process does. Raises
        InvalidInput, LimitExceeded, EngineFailed.
        """
        ...

    def schema_of(self, query: CompiledQuery, known: Mapping[str, pa.Table]) -> pa.Schema:
        """Return the columns of a query of the plan, without reading a row. known: tables that are no upstreams."""
        ...

    def conform(self, output: TableSchema, rows: pa.Table) -> pa.Table:
        """Return the rows with exactly the columns and types of an output. Raises InvalidInput."""
        ...


@dataclass(frozen=True, slots=True)
class GroupRows:
    """Rows of the groups that a barrier changes."""

    rows: pa.Table
    groups: pa.Table
    """Groups that get these rows, or none; of no columns for an aggregate of all rows."""


class StateStep:
    """Step of a view whose plan keeps a state."""

    def __init__(
        self, ctx: RefreshContext[Any, Any, Any], plan: CompiledPlan, sql: StateSQL, output: TableSchema
    ) -> None:
        self._ctx, self._plan, self._sql, self._output = ctx, plan, sql, output
        self._here = sql.here
        self._planned = ctx.plan.output(output.name)
        self._layouts = self._here.layouts(sql.schema_of)
        self._stamp = stamp_of(ctx.plan.job, self._here, self._layouts)
        state = self._planned.state
        self._before = (
            state if state is not None and state.stamp == self._stamp and has_shape(state, self._layouts) else None
        )
        self.blocks: list[BlockWork] = []
        """Work of this step on the state, by block."""

    def by_changes(self, changed: Sequence[str]) -> GroupRows | None:
        """Add the changes to the state; return the rows of their groups. None if the view has no state, or the changes
        cannot be computed.
        """
        before, most = self._before, self._sql.most_changes
        if before is None or before.without or not self._layouts:
            return None
        if most is not None and sum(self._ctx.plan.upstream(name).changes.rows for name in changed) > most:
            return None
        try:
            inputs = self._sql.inputs(self._plan.state_changes(changed), self._layouts[0], most=MOST_ROWS)
            result = self._added(inputs, before.tables)
        except Disagreement as error:
            count = before.disagreements + 1
            without = "its rows disagreed with the changes twice" if count >= MOST_DISAGREEMENTS else ""
            tables = () if without else before.tables
            self._before = replace(before, tables=tables, disagreements=count, without=without)
            VIEW_STATE_DISAGREES.log(view=self._ctx.plan.job.name, reason=error)
            raise
        except (Corrupt, EngineFailed) as error:
            VIEW_STATE_LOST.log(view=self._ctx.plan.job.name, error=error)
            return None
        except (InvalidInput, LimitExceeded) as error:
            # The query itself may not fail: these expressions are evaluated of other rows.
            count = before.disagreements + 1
            without = f"steps could not add their changes: {error}" if count >= MOST_FAILURES else ""
            self._before = replace(before, tables=(), disagreements=count, without=without)
            return None
        if result is None:
            return None
        rows, tables = result
        self._keep(tables)
        return rows

    def make_anew(self) -> None:
        """Make the state of all rows, if the view can have one."""
        before = self._before
        if not self._layouts:
            self._ctx.state = StateWrites(ViewState(0, self._stamp, (), "a value of it has a type that no state keeps"))
            return
        if before is not None and before.without:
            if before != self._planned.state:
                VIEW_STATE_LOST.log(view=self._ctx.plan.job.name, error=before.without)
            self._ctx.state = StateWrites(before)
            return
        if not self._sql.may_read_all(self._plan.state_rows()):
            return
        tables: list[StateTable] = []
        below: BlockState | None = None
        self.blocks.clear()  # of changes that were given up
        try:
            for layout in self._layouts:
                below = (
                    self._first_block(layout) if below is None else self._folded(layout, self._rows_of_groups(below))
                )
                tables += below.tables
        except EngineFailed as error:
            VIEW_STATE_LOST.log(view=self._ctx.plan.job.name, error=error)
            return
        except (LimitExceeded, InvalidInput, pa.ArrowInvalid) as error:
            VIEW_STATE_LOST.log(view=self._ctx.plan.job.name, error=error)
            kept = ViewState(0, self._stamp, (), f"it cannot be made: {error}")
            self._ctx.state = replace(self._ctx.state, kept=kept)
            return
        self._keep(tuple(tables))

    def _first_block(self, layout: Layout) -> BlockState:
        """Make the state of the first block of all rows; its engine does if it can."""
        new = self._sql.make_block(self._plan.state_rows(), layout, self._planned.target)
        if new is None:
            return self._folded(layout, self._rows_of_tables(layout))
        block = self._block(layout, new.tables)
        for rows, written in zip(block.rows, new.written, strict=True):
            rows.written += written
        self._note_written([segment for written in new.written for segment in written])
        self.blocks.append(block.work(new.inputs, new.tables[0].rows_at_most))
        return block

    def _folded(self, layout: Layout, parts: Iterable[pa.Table]) -> BlockState:
        """Make the state of a block of its inputs, in parts."""
        block = self._block(layout, tuple(map(StateTable, layout.schemas)))
        rows = groups = 0
        for inputs in parts:
            change = state_change(layout, inputs, block.finds)
            self._write(block, change)
            rows, groups = rows + inputs.num_rows, groups + len(change.keys)
        self.blocks.append(block.work(rows, groups))
        return block

    def _write(self, block: BlockState, change: StateChange) -> None:
        """Write the rows of a block that have changed."""
        before = [len(rows.written) for rows in block.rows]
        try:
            block.write(change)
        finally:
            self._note_written(
                [new for rows, count in zip(block.rows, before, strict=True) for new in rows.written[count:]]
            )

    def _note_written(self, segments: Sequence[Segment]) -> None:
        self._ctx.state = replace(self._ctx.state, segments=(*self._ctx.state.segments, *segments))

    def _rows_of_tables(self, layout: Layout) -> Iterator[pa.Table]:
        """Yield the rows of the join of the first block, in parts."""
        for _ in self._parts():
            yield self._sql.inputs(self._plan.state_rows(), layout, most=MOST_ROWS)

    def _rows_of_groups(self, below: BlockState, keys: pa.Table | None = None) -> Iterator[pa.Table]:
        """Yield the rows that the block above takes of all groups of a block, in parts. keys: first columns of the
        groups' keys, for those of these groups alone.
        """
        query = self._here.state_from_below(below.layout.place + 1)
        some = False
        for rows in [below.groups.among(keys)] if keys is not None else map(_as_table, below.groups.batches()):
            yield self._sql.run_here(query, {FOLDED: stored_groups(below.layout, rows)})
            some = True
        if not some:
            yield self._sql.run_here(query, {FOLDED: no_groups(below.layout)})

    def _block(self, layout: Layout, tables: Sequence[StateTable]) -> BlockState:
        rows = [StateRows(self._ctx.files, self._planned.target, table) for table in tables]
        return BlockState(layout, rows, monotonic_s())

    def _parts(self) -> Iterator[None]:
        """Yield for each part of the rows, while the context's plan has that part of its largest table: the rows of a
        join are those over the parts of a table that it has once.
        """
        whole = self._ctx.plan
        names = [occurrence.table for occurrence in self._plan.coverage.occurrences]
        name = max(whole.upstreams, key=lambda name: whole.upstreams[name].current.rows_at_most)
        upstream = whole.upstreams[name]
        count = -(-upstream.current.rows_at_most // PART_ROWS) if names.count(name) == 1 else 1
        try:
            for keys in upstream.current.splits(count) if count > 1 else [upstream.keys]:
                self._ctx.plan = replace(whole, upstreams={**whole.upstreams, name: replace(upstream, keys=keys)})
                yield
        finally:
            self._ctx.plan = whole

    def _keep(self, tables: tuple[StateTable, ...]) -> None:
        """Let the commit record the state, if it is not larger than what the view reads."""
        known = self._before.disagreements if self._before is not None else 0
        most = max(
            LEAST_BYTES, sum(file.bytes for up in self._ctx.plan.upstreams.values() for file in up.current.files)
        )
        without = f"it would take more than {most:,} bytes" if sum(table.bytes for table in tables) > most else ""
        state = ViewState(0, self._stamp, () if without else tables, without, known)
        self._ctx.state = replace(self._ctx.state, kept=state)

    # ---- computation -------------------------------------------------------------------------------------------------

    def _added(self, inputs: pa.Table, tables: Sequence[StateTable]) -> tuple[GroupRows, tuple[StateTable, ...]] | None:
        """Return the rows of the changed groups, and the new state tables; None if the query itself must say what does
        not fit. inputs: of the first block.
        """
        pending, after = list(tables), list[StateTable]()
        below: BlockState | None = None
        for layout in self._layouts:
            own, pending = pending[: len(layout.schemas)], pending[len(layout.schemas) :]
            block = self._block(layout, own)
            change = state_change(layout, inputs, block.finds)
            if pc.any(change.groups.redone).as_py():
                change = replace(change, groups=self._redone(layout, change, below))
            of_all = not pending and self._here.of_all_groups
            result = None if pending or of_all else self._outputs(layout, change)
            if result is None and not pending and not of_all:
                return None
            if inputs.num_rows:
                self._write(block, change)
            recomputed = pc.sum(change.groups.redone.cast(pa.int64())).as_py() or 0
            self.blocks.append(block.work(inputs.num_rows, len(change.keys), recomputed))
            after += block.tables
            if of_all:
                result = self._outputs_of_all(block)
            if not pending:
                return None if result is None else (result, tuple(after))
            try:
                inputs = self._sql.run_here(
                    self._here.state_from_below(layout.place + 1), {FOLDED: handed_on(layout, change)}
                )
            except pa.ArrowInvalid:
                return None
            below = block
        raise AssertionError("a state has the tables of all its blocks")

    def _redone(self, layout: Layout, change: StateChange, below: BlockState | None) -> ChangedGroups:
        """Return the groups with the least and greatest values that do not follow from the state."""
        schema, redone = layout.schemas[0], change.groups.redone
        keys = change.keys.keys.filter(redone)
        if below is None:
            scope = tuple(layout.kept.groups)
            touched = named_groups(layout, change.keys.columns.filter(redone))
            known = {TOUCHED: touched} if scope else None
            rows = self._sql.inputs(self._plan.state_rows(scope), layout, known, most=MOST_ROWS)
        else:
            own = change.keys.columns.filter(redone) if below.layout.kept.leading else None
            rows = pa.concat_tables(_of_groups(layout, rows, keys) for rows in self._rows_of_groups(below, own))
        by_group = coded(schema, key_columns(layout, rows))
        places = change.keys.places(schema, by_group.columns)
        columns = dict(change.groups.columns)
        for name, values in extremes_of_rows(layout, rows, by_group).items():
            new = scattered(values, places, len(change.keys))
            columns[name] = pc.if_else(redone, new, columns[name])
        return replace(change.groups, columns=columns)

    def _outputs_of_all(self, block: BlockState) -> GroupRows | None:
        """Return the view's rows of all groups; None if they have a NULL in its key. Raises LimitExceeded."""
        most = min(MOST_ROWS, self._sql.most_changes or MOST_ROWS)
        if block.groups.table.rows_at_most > most:
            raise LimitExceeded(f"the view's rows are computed of more than {most} groups")
        rows = pa.Table.from_batches(block.groups.batches(), block.layout.schemas[0].schema)
        try:
            folded = stored_groups(block.layout, rows)
        except pa.ArrowInvalid:
            return None  # The query itself says what does not fit.
        result = self._sql.conform(self._output, self._sql.run_here(self._here.state_outputs(), {FOLDED: folded}))
        if any(result.column(name).null_count for name in self._output.primary_key):
            return None  # The view's own refresh refuses a key that is NULL.
        return GroupRows(result, pa.table({}))

    def _outputs(self, layout: Layout, change: StateChange) -> GroupRows | None:
        """Return the view's rows of the groups; None if they have a NULL in its key."""
        names, groups = list(layout.kept.groups), change.groups
        try:
            folded = folded_groups(layout, change.keys.columns, groups.columns)
        except pa.ArrowInvalid:
            return None  # The query itself says what does not fit.
        known = named_groups(layout, change.keys.columns)
        has_rows = pc.greater(groups.columns["n"], 0)
        if not names:
            is_exact = not pc.any(groups.inexact).as_py()
            outputs = self._here.state_outputs()
            rows = self._sql.run_here(outputs, {FOLDED: folded}) if is_exact else self._sql.run(self._plan.query())
            return GroupRows(self._sql.conform(self._output, rows), known)
        exact = folded.filter(pc.and_(has_rows, pc.invert(groups.inexact)))
        parts = [self._sql.run_here(self._here.state_outputs(), {FOLDED: exact})]
        if pc.any(groups.inexact).as_py():
            touched = known.filter(groups.inexact)
            parts.append(self._sql.run(self._plan.refresh_query(names), {TOUCHED: touched}))
        rows = pa.concat_tables([self._sql.conform(self._output, part) for part in parts])
        if any(rows.column(name).null_count for name in self._output.primary_key):
            return None  # The view's own refresh refuses a key that is NULL.
        schema = pa.schema([self._output.schema.field(name).with_nullable(True) for name in names])
        touched = as_schema(known, schema)
        for name in self._output.primary_key:
            touched = touched.filter(pc.is_valid(touched.column(name)))
        return GroupRows(rows, touched)


@dataclass(frozen=True, slots=True)
class BlockState:
    """State tables of one block in one step."""

    layout: Layout
    rows: Sequence[StateRows]
    began_s: float
    """Monotonic time at which the work on it began."""

    @classmethod
    def empty(cls, target: WriteTarget, layout: Layout) -> BlockState:
        """Return a block without groups, whose files are written to a folder of the target."""
        rows = [StateRows(target.files, target, StateTable(schema)) for schema in layout.schemas]
        return cls(layout, rows, monotonic_s())

    def add(self, inputs: pa.Table) -> None:
        """Add rows that the block takes."""
        self.write(state_change(self.layout, inputs, self.finds))

    @property
    def groups(self) -> StateRows:
        return self.rows[0]

    @property
    def finds(self) -> list[Find]:
        return [rows.find for rows in self.rows]

    @property
    def tables(self) -> list[StateTable]:
        return [rows.table for rows in self.rows]

    def work(self, rows: int, groups: int, recomputed: int = 0) -> BlockWork:
        """Return the work on the block. rows, groups: that it took in."""
        size = sum(segment.bytes for part in self.rows for segment in part.written)
        took_ms = (monotonic_s() - self.began_s) * 1000
        return BlockWork(self.layout.schemas[0].name, rows, groups, recomputed, size, took_ms)

    def write(self, change: StateChange) -> None:
        """Write the rows that have changed."""
        for rows, (changed, leaves) in zip(self.rows, change.rows(self.layout), strict=True):
            rows.write(changed, leaves)


def _as_table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _of_groups(layout: Layout, inputs: pa.Table, keys: pa.Array) -> pa.Table:
    """Return the inputs of a block that belong to these groups."""
    schema = layout.schemas[0]
    return inputs.filter(
        pc.is_in(KeyCodec(schema.schema, schema.primary_key).encode(key_columns(layout, inputs)), keys)
    )


def has_shape(state: ViewState, layouts: Sequence[Layout]) -> bool:
    """Return True if a state has the tables of these blocks, or none and says why."""
    schemas = [schema for layout in layouts for schema in layout.schemas]
    return bool(state.without) or [table.schema for table in state.tables] == schemas


def stamp_of(job: JobRecord, plan: CompiledPlan, layouts: Sequence[Layout]) -> str:
    """Return what a state must have been made by and of, to be used."""
    above = [plan.state_from_below(place).text for place in range(1, len(plan.state))]
    texts = (plan.state_rows().text, *above, plan.state_outputs().text)
    read = (job.upstreams, job.bound, job.columns)
    types = tuple((name, str(kind)) for layout in layouts for name, kind in layout.types.items())
    return hashlib.sha256(repr((STATE, texts, read, types)).encode()).hexdigest()[:32]
