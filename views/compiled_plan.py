"""Plan of a view as its steps run it: each query as a text of one engine, with the tables that it reads.

Checking, translating and rendering a query takes longer than a small step. A text is made when a step first needs it,
for the scope of that step, and kept. The queries' trees, which are twenty times as large as their texts, are not kept:
a plan that needs another text is derived again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import pyarrow as pa
from sqlglot import exp

from epochlog.errors import InvalidInput
from epochlog.store.types.schema import TableSchema

from . import syntax
from .aggregate_state import FOLDED, Aggregates, StatePlan
from .batches import Batch
from .derivation import Coverage, NotCovered, ViewPlan, render
from .duckdb_functions import duckdb_text, require_local
from .restriction import TOUCHED
from .row_changes import RowChanges
from .state_changes import no_groups
from .state_tables import Layout, layout_of
from .table_reads import TableRead, table_reads

Dialect = Literal["duckdb", "spark"]
NUMBER = f"_{uuid.uuid4().hex}"
"""End of each table's name in a text for Spark, which a step replaces by a number: its temporary views are visible to
all steps of a session. No text of a user has it.
"""


@dataclass(frozen=True, slots=True)
class CompiledQuery:
    """Query of a plan for an engine."""

    text: str
    reads: Mapping[str, TableRead]
    """Reads of the store's tables, by the name of the table in the query."""
    joins: bool
    """True if the query joins tables."""


class CompiledPlan:
    """Plan of a view with the texts of its queries for one engine. Threads may share it.

    derive: returns the plan. The methods that return queries raise InvalidInput for what the engine's SQL cannot say;
    those for DuckDB, for a view on which it could give another answer than Spark.
    """

    def __init__(self, derive: Callable[[], ViewPlan], dialect: Dialect) -> None:
        plan = derive()
        self.derive = derive
        self.tables: tuple[str, ...] = plan.tables
        self.schemas: Mapping[str, TableSchema] = plan.schemas
        self.coverage: Coverage = plan.coverage
        self.state: tuple[Aggregates, ...] = () if plan.state is None else tuple(b.kept for b in plan.state.blocks)
        """Of each block whose groups a state keeps, its aggregates; the block over tables first."""
        self.of_all_groups: bool = plan.state is not None and plan.state.above is not None
        """True if the view's rows are computed of all groups of the state."""
        self.by_rows: bool = plan.by_rows
        self.has_row_changes: bool = plan.row_changes is not None
        self._dialect: Dialect = dialect
        self._queries: dict[tuple[str, ...], CompiledQuery | None] = {}
        self._layouts: tuple[Layout, ...] | None = None
        self._is_local = False

    def query(self) -> CompiledQuery:
        """Return the view's query over the tables NOW."""
        return self._required(("query",), ViewPlan.query)

    def refresh_query(self, scope: Sequence[str]) -> CompiledQuery:
        """Return the query of the rows whose values of the scope are in the table TOUCHED, over the tables NOW."""
        return self._required(("refresh", *scope), lambda plan: plan.refresh_query(scope))

    def touched_query(self, changed: Collection[str], scope: tuple[str, ...]) -> CompiledQuery:
        """Return the query of the scope's touched values, in the types of the view's query. It reads tables CHANGED,
        EITHER and EMPTY. Raises NotCovered.
        """
        parts: list[CompiledQuery] = []
        for batch in self.coverage.changed_batches(changed):
            part = self._compiled(("touched", batch[0], *scope), partial(_touched_by, batch, scope))
            if part is None:
                raise NotCovered(f"no condition connects the changed rows of {batch[0]!r} with the view's rows")
            parts.append(part)
        return _union(parts)

    def key_queries(self, changed: Collection[str], scope: Sequence[str]) -> dict[str, CompiledQuery] | None:
        """Return by changed occurrence the query, for DuckDB, of its touched values, if each of them reads the table
        CHANGED alone and DuckDB gives Spark's answer; else None. Together they have the values of `touched_query`.
        """
        queries: dict[str, CompiledQuery] = {}
        for batch in self.coverage.changed_batches(changed):
            for alias in batch:
                query = self._kept(("keys", alias, *scope), partial(_keys_of, alias, scope))
                if query is None:
                    return None
                queries[alias] = query
        return queries

    def state_changes(self, changed: Collection[str]) -> CompiledQuery:
        """Return the query of the rows that the join of the state's first block gains and loses."""
        return self._required(("state", *sorted(changed)), lambda plan: _state_of(plan).changes(changed))

    def state_rows(self, scope: Sequence[str] = ()) -> CompiledQuery:
        """Return the query of all rows of the join of the state's first block, or of those of groups in the table
        TOUCHED. scope: the block's groups.
        """
        return self._required(("state rows", *scope), lambda plan: plan.state_rows(scope))

    def state_from_below(self, place: int) -> CompiledQuery:
        """Return the query of the rows that a block of the state takes of the groups of the one before it, whose
        aggregates are in the table FOLDED, with IS_NEW.
        """
        return self._required(("state", str(place)), lambda plan: _state_of(plan).from_below(place))

    def layouts(self, schema_of: Callable[[CompiledQuery, Mapping[str, pa.Table]], pa.Schema]) -> tuple[Layout, ...]:
        """Return the layout of each block of the state; none if the values of a block's types cannot be a part of one.
        schema_of: returns the columns of a query, which it runs without rows over its tables and the given ones.
        """
        if self._layouts is None:
            layouts: list[Layout] = []
            for place, kept in enumerate(self.state):
                query = self.state_from_below(place) if layouts else self.state_rows()
                known = {FOLDED: no_groups(layouts[-1])} if layouts else {}
                layout = layout_of(kept, schema_of(query, known), place)
                if layout is None:
                    layouts = []
                    break
                layouts.append(layout)
            self._layouts = tuple(layouts)
        return self._layouts

    def state_outputs(self) -> CompiledQuery:
        """Return the query of the view's rows whose aggregates are in the table FOLDED. The plan has a state."""
        return self._required(("state outputs",), lambda plan: _state_of(plan).outputs)

    def row_changes(self, changed: Collection[str]) -> CompiledQuery:
        """Return the query of the rows that the view gains and loses. The plan has row changes."""
        return self._required(("rows", *sorted(changed)), lambda plan: _row_changes_of(plan).deltas(changed))

    def _required(self, name: tuple[str, ...], query_of: Callable[[ViewPlan], exp.Expr]) -> CompiledQuery:
        query = self._compiled(name, query_of)
        assert query is not None
        return query

    def _compiled(self, name: tuple[str, ...], query_of: Callable[[ViewPlan], exp.Expr | None]) -> CompiledQuery | None:
        """Return the query of this name for the engine; None if there is none."""

        def compiled(plan: ViewPlan) -> CompiledQuery | None:
            query = query_of(plan)
            return None if query is None else self._compile_own(query, plan)

        return self._kept(name, compiled)

    def _compile_own(self, query: exp.Expr, plan: ViewPlan) -> CompiledQuery:
        """Compile a query of the plan for its engine."""
        if self._dialect == "duckdb" and not self._is_local:
            require_local(plan.form.query, plan.form.occurrences, plan.schemas)
            self._is_local = True
        return _compile(query, plan, self._dialect)

    def _kept(
        self, name: tuple[str, ...], compiled: Callable[[ViewPlan], CompiledQuery | None]
    ) -> CompiledQuery | None:
        """Return the query of this name, from the texts that are kept if it is there."""
        if name not in self._queries:
            self._queries[name] = compiled(self.derive())
        return self._queries[name]


def _compile(query: exp.Expr, plan: ViewPlan, dialect: Dialect) -> CompiledQuery:
    is_spark = dialect == "spark"
    text = spark_text(query) if is_spark else duckdb_text(query, plan.form.occurrences, plan.schemas)
    return CompiledQuery(text, table_reads(query, (TOUCHED, FOLDED)), syntax.has_join(query))


def spark_text(query: exp.Expr) -> str:
    """Return the text of a query of a plan for Spark, in which NUMBER ends each table's name. Raises InvalidInput."""
    return render(syntax.with_names(query, lambda name: name + NUMBER), "spark")


def _touched_by(batch: Batch, scope: Sequence[str], plan: ViewPlan) -> exp.Expr | None:
    try:
        return plan.touched_by(batch, scope)
    except NotCovered:
        return None


def _keys_of(alias: str, scope: Sequence[str], plan: ViewPlan) -> CompiledQuery | None:
    query = plan.keys_of(alias, scope)
    if query is None:
        return None
    try:
        require_local(query, {alias: plan.form.occurrences[alias]}, plan.schemas)
        return _compile(query, plan, "duckdb")
    except InvalidInput:
        return None


def _state_of(plan: ViewPlan) -> StatePlan:
    assert plan.state is not None
    return plan.state


def _row_changes_of(plan: ViewPlan) -> RowChanges:
    assert plan.row_changes is not None
    return plan.row_changes


def _union(queries: Sequence[CompiledQuery]) -> CompiledQuery:
    """Return the distinct rows of all queries, each of distinct rows. A table that several of them read is looked up by
    none.
    """
    reads: dict[str, TableRead] = {}
    for name in dict.fromkeys(name for query in queries for name in query.reads):
        own = [query.reads[name] for query in queries if name in query.reads]
        columns = frozenset[str]().union(*(read.columns for read in own))
        reads[name] = own[0] if len(own) == 1 else TableRead(name, columns, ())
    text = " UNION ".join(query.text for query in queries)
    return CompiledQuery(text, reads, any(query.joins for query in queries))
