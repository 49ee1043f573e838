"""Derivation of a view's incremental refresh from its query (pure).

A refresh recomputes groups of the view's rows, those with equal values in the scope. The scope of a barrier (rule R2)
is the columns of the primary key whose touched values each changed table's occurrences give; if there are none, such
columns outside of the key; if there are none either, the refresh recomputes all rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from epochlog.errors import InvalidInput
from epochlog.store.types.schema import TableSchema

from . import syntax
from .aggregate_state import StatePlan, state_below, state_of
from .batches import Batch, batches_of
from .changed_keys import changed_keys
from .clock_texts import require_no_clock
from .flat_blocks import flattened
from .key_advice import KeyAdvice, key_advice
from .normal_form import NormalForm, normal_form
from .opening import Path, covered, holds, path_of
from .parsing import parse
from .refresh_choice import LEAST_ROWS, SHARE_PERCENT
from .restriction import TOUCHED, restricted
from .row_changes import RowChanges, row_changes_of
from .stability import has_grouping_sets, is_global, windows_of
from .table_names import CHANGED, EITHER, EMPTY, NOW
from .touched import NotCovered, touched, with_tables

Query = exp.Expr
"""Query of a plan, which `render` turns into an engine's text."""


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Occurrence of a table in the query."""

    alias: str
    table: str
    covered: tuple[str, ...]
    """Outputs whose touched values can be computed of its changes."""
    reason: str
    """Why it covers no further outputs, as a clause for `explain`; "" if it covers all."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """Outputs of a view that the changes of its tables tell."""

    outputs: tuple[str, ...]
    primary_key: tuple[str, ...]
    occurrences: tuple[Occurrence, ...]
    full_reason: str | None
    """Why each refresh recomputes all rows; None for an incremental view."""
    batches: tuple[Batch, ...] = ()
    """Each occurrence, in one batch."""

    def scope_of(self, changed: Collection[str]) -> tuple[str, ...]:
        """Return the scope of a barrier in which these tables have changed; () for a refresh of all rows (rule R2).

        Theorem: a row that the barrier adds, alters or removes has values in the scope that are touched values of an
        occurrence that changed, for each column of the scope is stable for all of these. So the rows with all other
        values are the same before and after, and recomputing the groups of the touched values gives the whole view.
        """
        if self.full_reason is not None:
            return ()
        sets = [set(occurrence.covered) for occurrence in self.occurrences if occurrence.table in changed]
        common = set(self.outputs).intersection(*sets)
        return self._chosen(name for name in self.outputs if name in common)

    def scope_of_occurrence(self, occurrence: Occurrence) -> tuple[str, ...]:
        """Return the scope of a barrier in which this occurrence has changed alone."""
        return self._chosen(occurrence.covered)

    def changed_batches(self, changed: Collection[str]) -> tuple[Batch, ...]:
        """Return the batches of the occurrences of these tables."""
        aliases = {occurrence.alias for occurrence in self.occurrences if occurrence.table in changed}
        return tuple(batch for batch in self.batches if batch[0] in aliases)

    def _chosen(self, covered: Iterable[str]) -> tuple[str, ...]:
        names = tuple(covered)
        return tuple(name for name in self.primary_key if name in names) or names


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """Plan of a view's refresh."""

    sql: str
    form: NormalForm
    schemas: Mapping[str, TableSchema]
    coverage: Coverage
    paths: Mapping[str, Path] = field(compare=False)
    """Path to each occurrence in the query, by alias."""
    state: StatePlan | None = None
    """Plan that keeps a state of the groups where it can; None for a query of another kind."""
    row_changes: RowChanges | None = None
    """Plan that computes rows of the changes alone where it can; None for a query of another kind."""
    by_rows: bool = False
    """True if a step whose changes touch most of the view's rows recomputes all of them."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the names of the tables that the query reads."""
        return tuple(dict.fromkeys(self.form.occurrences.values()))

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """Return the columns that the query reads, by table. Every query of the plan reads these, or fewer.

        The normal form has all of them: a `*` is expanded in it, and orders are completed by keys.
        """
        read: dict[str, set[str]] = {name: set() for name in self.tables}
        for column in self.form.query.find_all(exp.Column):
            if column.table in self.form.occurrences:
                read[self.form.occurrences[column.table]].add(column.name)
        return {
            table: tuple(name for name in self.schemas[table].schema.names if name in names)
            for table, names in read.items()
        }

    @property
    def scope(self) -> tuple[str, ...]:
        """Return the scope of a barrier in which each table has changed; () if such a barrier recomputes all rows."""
        return self.coverage.scope_of(self.tables)

    def touched_by(self, batch: Batch, scope: Sequence[str]) -> exp.Query:
        """Return the query of the scope's values that changes of a batch touch, each once, in the types of the view's
        query. It reads tables CHANGED, EITHER and EMPTY. Raises NotCovered.
        """
        values = self.keys_of(batch[0], scope) if len(batch) == 1 else None
        try:
            path = Path().union(*(self.paths[alias] for alias in batch))
            values = values or touched(self.form.query, path, scope, self.form.occurrences)
        except NotCovered:
            if len(batch) == 1:
                raise
            return syntax.union([self.touched_by((alias,), scope) for alias in batch])
        if isinstance(values, exp.Select):  # of distinct values
            return values
        query = syntax.select(syntax.named(syntax.column("t", name), name) for name in scope)
        query.set("distinct", exp.Distinct())
        syntax.put_from(query, syntax.derived(values, "t"))
        return query

    def keys_of(self, alias: str, scope: Sequence[str]) -> exp.Select | None:
        """Return the query of the values that a change of an occurrence touches, over the table CHANGED alone; None if
        it takes other tables.
        """
        return changed_keys(self.form.query, self.paths[alias], scope, self.form.occurrences, self.schemas)

    def query(self) -> exp.Expr:
        """Return the view's query over the tables NOW."""
        return with_tables(self.form.query, self.form.occurrences, NOW)

    def refresh_query(self, scope: Sequence[str]) -> exp.Expr:
        """Return the query of the rows whose values of the scope are in the table TOUCHED, over the tables NOW."""
        query = restricted(self.form.query, scope, self.form.occurrences, self.schemas)
        return with_tables(query, self.form.occurrences, NOW)

    def state_rows(self, scope: Sequence[str]) -> exp.Expr:
        """Return the query of all rows of the join of the state's first block, or of those whose groups are in the
        table TOUCHED, over the tables NOW. The plan has a state. scope: the block's groups, or none.
        """
        assert self.state is not None
        query: exp.Query = self.state.all_rows()
        if scope:
            query = restricted(query, scope, self.form.occurrences, self.schemas)
        return with_tables(query, self.form.occurrences, NOW)

    def key_advice(self) -> KeyAdvice:
        """Return the reasons why steps may fail for the view's key, each with what to write."""
        return key_advice(self.form, self.coverage.primary_key, self.schemas)

    def explain(self) -> str:
        """Describe what the refresh recomputes when each of the tables changes."""
        if self.coverage.full_reason is not None and self.state is not None:
            of_all = "" if self.state.above is None else ", and its rows are computed of all of them"
            return f"incremental: changes are added to a state of the groups, which the view keeps{of_all}"
        if self.coverage.full_reason is not None:
            return f"full: each refresh recomputes all rows, because {self.coverage.full_reason}"
        scope = self.scope
        lines = [f"incremental by ({', '.join(scope)})" if scope else "incremental, by the tables that have changed:"]
        for occurrence in self.coverage.occurrences:
            own = self.coverage.scope_of_occurrence(occurrence)
            if own:
                lines.append(f"  {occurrence.table}: a change touches ({', '.join(own)})")
            else:
                lines.append(f"  {occurrence.table}: a change recomputes all rows, because {occurrence.reason}")
        if self.state is not None:
            lines.append("  changes are added to a state of the groups, which the view keeps")
        if self.row_changes is not None:
            lines.append("  rows are computed of the changed rows and those that they join with")
        if self.by_rows:
            share = f"{SHARE_PERCENT} % of {LEAST_ROWS:,} rows or more"
            without_state = f"a step that touches {share} recomputes all rows"
            with_state = f"a step whose changes are {share} makes rows and state anew"
            lines.append(f"  {without_state if self.state is None else with_state}")
        return "\n".join(lines)


def render(query: exp.Expr, dialect: str) -> str:
    """Return the text of a query for an engine: "duckdb" or "spark". Raises InvalidInput for a query that the engine's
    SQL cannot say.
    """
    return syntax.text_of(query, syntax.DIALECT if dialect == "spark" else dialect, identify=True)


def derive(
    sql: str,
    tables: Mapping[str, TableSchema],
    primary_key: Sequence[str],
    refresh: str = "auto",
    *,
    query: exp.Query | None = None,
) -> ViewPlan:
    """Derive the plan of a view from its query, in Spark's dialect. refresh: auto | incremental | full.

    query: the text as `parse` returns it, if the caller has it. Raises InvalidInput with the name of the clause that a
    view cannot have, or that makes an incremental view impossible; TableNotFound.
    """
    form = normal_form(parse(sql) if query is None else query, tables)
    unknown = [name for name in primary_key if name not in form.outputs]
    if unknown or not primary_key:
        raise InvalidInput(
            f"primary_key {list(primary_key)}: the query's columns are {', '.join(form.outputs)}; choose among them"
        )
    if not form.occurrences:
        raise InvalidInput("a view reads at least one table")
    require_no_clock(form.query, form.occurrences, tables)
    nodes = {node.alias: node for node in form.query.find_all(exp.Table)}
    paths = {alias: path_of(nodes[alias]) for alias in form.occurrences}
    occurrences = tuple(_occurrences(form, paths))
    reason = None
    if refresh == "full":
        reason = "its refresh is 'full'"
    elif not any(occurrence.covered for occurrence in occurrences):
        reason = "; ".join(dict.fromkeys(f"{o.table}: {o.reason}" for o in occurrences))
    if refresh == "incremental":
        lacking = [occurrence for occurrence in occurrences if not occurrence.covered]
        if lacking:
            raise InvalidInput(
                f"the view cannot be incremental: a change of {lacking[0].table!r} recomputes all rows, because "
                f"{lacking[0].reason}; create it with refresh='auto' or change the query"
            )
    query = flattened(form.query) if form.query.find(exp.Subquery) else form.query
    batches = batches_of(form.query, form.occurrences)
    coverage = Coverage(tuple(form.outputs), tuple(primary_key), occurrences, reason, batches)
    state = None if refresh == "full" else state_of(query, form.occurrences, tables, primary_key)
    if state is None and reason is not None and refresh != "full":
        state = state_below(query, form.occurrences, tables)
    rows = None if refresh == "full" else row_changes_of(query, form.occurrences, tables, primary_key)
    by_rows = refresh == "auto" and reason is None
    return ViewPlan(sql, form, dict(tables), coverage, paths, state, rows, by_rows)


def _occurrences(form: NormalForm, paths: Mapping[str, Path]) -> Iterator[Occurrence]:
    reasons = [(block, reason) for block in form.query.find_all(exp.Select) if (reason := _reason(block))]
    for alias, table in form.occurrences.items():
        path = paths[alias]
        outputs = covered(form.query, path)
        names = tuple(name for name in form.outputs if name in outputs and not outputs[name])
        unconnected = "no equality connects its rows to the view's columns"
        reason = next((reason for block, reason in reasons if holds(block, path)), unconnected)
        yield Occurrence(alias, table, names, reason if len(names) < len(form.outputs) else "")


def _reason(block: exp.Select) -> str:
    """Return why changes inside of a block may touch rows of any values, as a clause for `explain`; "" if they do not.

    Example: under LIMIT, a new row pushes another one out.
    """
    if syntax.is_limited(block):
        return "a row more or less changes others through LIMIT"
    if is_global(block):
        return "an aggregate without GROUP BY is computed of all its rows"
    if has_grouping_sets(block):
        return "GROUPING SETS, ROLLUP or CUBE have totals of all rows"
    if any(not window.args.get("partition_by") for window in windows_of(block)):
        return "a window without PARTITION BY is computed of all its rows"
    return "a window's PARTITION BY has none of the view's columns" if windows_of(block) else ""


def tables_of(sql: str) -> tuple[str, ...]:
    """Return the names of the tables that a query reads, as it spells them, without the names of its CTEs."""
    return tables_in(parse(sql))


def tables_in(query: exp.Query) -> tuple[str, ...]:
    """Return the names of the tables that a parsed query reads. See `tables_of`."""
    return tuple(dict.fromkeys(_tables_in(query, frozenset())))


def _tables_in(node: exp.Expr, ctes: frozenset[str]) -> Iterator[str]:
    clause = node.args.get("with_")
    if isinstance(clause, exp.With):
        for cte in clause.expressions:
            yield from _tables_in(cte.this, ctes)
            ctes |= {cte.alias.lower()}
    if isinstance(node, exp.Table) and node.name and node.name.lower() not in ctes:
        yield node.name
    for child in node.iter_expressions():
        if child is not clause:
            yield from _tables_in(child, ctes)


__all__ = [
    "CHANGED",
    "EITHER",
    "EMPTY",
    "NOW",
    "TOUCHED",
    "Coverage",
    "NotCovered",
    "Occurrence",
    "ViewPlan",
    "derive",
    "render",
    "tables_in",
    "tables_of",
]
