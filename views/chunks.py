"""Tables of a view whose rows its backfill may take in by chunks (rule R10, pure).

Theorem: let a table occur once in a query, where no outer join can extend the rows of others for a lack of its rows.
Then the rows of the query's FROM over the whole table are those over a chunk of it, and those over the rest. So the
view's rows of chunks, one after another, are the view if rows of two chunks differ in their primary keys, because the
table's key is part of them, or if the rows are groups and their sums, counts, minima and maxima are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from epochlog.store.types.schema import TableSchema

from . import syntax
from .derivation import ViewPlan
from .stability import grouped_by, has_grouping_sets, is_aggregated, is_function_of, windows_of
from .value_kinds import ValueKinds

MERGES: Mapping[type[exp.Expr], str] = {exp.Sum: "sum", exp.Count: "sum", exp.Min: "min", exp.Max: "max"}
"""Merge of an aggregate's values of two chunks, by its class."""

Merges = Mapping[str, str]
"""Merge of each output that is a sum, count, minimum or maximum: sum, min or max. Empty: chunks are not merged."""


class NotByChunks(Exception):
    """The rows of a table's chunks do not make the view's rows; the message is the reason."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Block whose rows over a chunk are part of its rows over the whole table, with its outputs that are the table's
    key, by column of the key; None if some column of the key is no output.
    """

    key: Mapping[str, str] | None


def chunked_tables(plan: ViewPlan, output: TableSchema) -> dict[str, Merges]:
    """Return the tables that a backfill of the view may take in by chunks, with the merges of the rows of two chunks.

    output: schema of the view's table.
    """
    merges: dict[str, Merges] = {}
    for table in plan.tables:
        try:
            merges[table] = _merges(plan, output, table)
        except NotByChunks:
            continue
    return merges


def explain_chunks(plan: ViewPlan, output: TableSchema) -> str:
    """Describe for each table of a view how its backfill takes in the rows."""
    lines: list[str] = []
    for table in plan.tables:
        try:
            _merges(plan, output, table)
            lines.append(f"  {table}: a backfill can take in its rows by chunks")
        except NotByChunks as error:
            lines.append(f"  {table}: a backfill takes in all its rows at once, because {error}")
    return "\n".join(lines)


def _merges(plan: ViewPlan, output: TableSchema, table: str) -> Merges:
    """Return the merges of the rows of two chunks of a table. Raises NotByChunks."""
    aliases = [alias for alias, name in plan.form.occurrences.items() if name == table]
    if len(aliases) > 1:
        raise NotByChunks("the query reads it more than once")
    query, key = syntax.unwrapped(plan.form.query), plan.schemas[table].primary_key
    try:
        block = _partitioned(query, aliases[0], key)
    except NotByChunks as error:
        if not isinstance(query, exp.Select) or not is_aggregated(query):
            raise
        _require_rows(query, aliases[0], key)
        kinds = ValueKinds(plan.form.query, plan.form.occurrences, plan.schemas)
        return _merged_outputs(query, output, kinds, str(error))
    if block.key is None or not set(block.key.values()) <= set(plan.coverage.primary_key):
        raise NotByChunks(f"the view's primary key lacks its key ({', '.join(key)})")
    return {}


def _partitioned(query: exp.Query, alias: str, key: Sequence[str]) -> _Block:
    """Return the block if its rows over a chunk are part of those over the whole table. Raises NotByChunks."""
    if not isinstance(query, exp.Select):
        raise NotByChunks("a set operation reads it")
    columns = _require_rows(query, alias, key)
    if is_aggregated(query):
        _require_within(columns, grouped_by(query), "a group has rows of several chunks")
    for window in windows_of(query):
        _require_within(columns, window.args.get("partition_by") or [], "a window has rows of several chunks")
    outputs = {output.this: output.alias for output in reversed(query.expressions)}
    if columns is None or not all(column in outputs for column in columns.values()):
        if query.args.get("distinct"):
            raise NotByChunks("DISTINCT compares rows of several chunks")
        return _Block(None)
    return _Block({name: outputs[column] for name, column in columns.items()})


def _require_within(columns: Mapping[str, exp.Column] | None, groups: Iterable[exp.Expr], reason: str) -> None:
    """Raise NotByChunks unless the table's key is among the groups."""
    if columns is None or not set(columns.values()) <= set(groups):
        raise NotByChunks(reason)


def _require_rows(query: exp.Select, alias: str, key: Sequence[str]) -> dict[str, exp.Column] | None:
    """Return the columns of the block's FROM that are the table's key, None if they are not there; raise NotByChunks
    unless the rows of FROM over a chunk are part of those over the whole table.
    """
    if syntax.is_limited(query):
        raise NotByChunks("LIMIT compares rows of several chunks")
    if query.args.get("qualify") or query.args.get("laterals") or has_grouping_sets(query):
        raise NotByChunks("a clause of its block compares rows of several chunks")
    sources = syntax.sources_of(query)
    place = next((place for place, source in enumerate(sources) if _holds(source, alias)), None)
    if place is None:
        raise NotByChunks("a subquery of an expression reads it")
    if _extends_others(syntax.joins_of(query), place):
        raise NotByChunks("an outer join extends rows of another table where it has none")
    source = sources[place]
    if isinstance(source, exp.Table):
        return {name: syntax.column(source.alias, name) for name in key}
    if not isinstance(source, exp.Subquery):
        raise NotByChunks("a clause of FROM reads it")
    inner = _partitioned(syntax.unwrapped(source.this), alias, key)
    if inner.key is None:
        return None
    return {name: syntax.column(source.alias, output) for name, output in inner.key.items()}


def _extends_others(joins: Sequence[exp.Join], place: int) -> bool:
    """Return True if rows of other sources are null-extended where the source at this place has no match."""
    own = joins[place - 1].side if place else ""
    return own in ("LEFT", "FULL") or any(join.side in ("RIGHT", "FULL") for join in joins[place:])


def _holds(source: exp.Expr, alias: str) -> bool:
    """Return True if a source of FROM is the occurrence, or a subquery that reads it."""
    return any(node.alias == alias for node in source.find_all(exp.Table))


def _merged_outputs(query: exp.Select, output: TableSchema, kinds: ValueKinds, reason: str) -> Merges:
    """Return the merges of a block of groups; raise NotByChunks if some value of a group follows from no merge."""
    keys = grouped_by(query)
    group = query.args.get("group")
    grouped = [] if group is None else group.expressions
    if query.args.get("having") or query.args.get("distinct") or windows_of(query) or len(keys) != len(grouped):
        raise NotByChunks(reason)
    groups = {item.alias for item in query.expressions if item.this in keys}
    if groups != set(output.primary_key) or {item.this for item in query.expressions if item.alias in groups} != set(
        keys
    ):
        raise NotByChunks(f"{reason}, and the view's primary key is not its groups")
    merges: dict[str, str] = {}
    for item in query.expressions:
        kind = output.schema.field(item.alias).type
        if item.alias in groups:
            if not _is_one_of(kind, _EXACT):
                raise NotByChunks(f"{reason}, by {item.alias}, which is of type {kind}")
            continue
        if is_function_of(item.this, set(keys)):
            continue
        value = _uncast(item.this.unnest(), kinds)
        merge = MERGES.get(type(value))
        if merge is None or value.expressions or isinstance(value.this, exp.Distinct):
            raise NotByChunks(f"{reason}, and {item.alias} does not follow from its values of two chunks")
        if not _is_one_of(kind, _SUMMED if merge == "sum" else _EXACT):
            raise NotByChunks(f"{reason}, and {item.alias} is of type {kind}")
        merges[item.alias] = merge
    return merges


def _uncast(value: exp.Expr, kinds: ValueKinds) -> exp.Expr:
    """Return the sum inside of a cast that keeps each of its values, or refuses it; else the expression itself."""
    inner = value.this.unnest() if isinstance(value, exp.Cast) and not value.args.get("safe") else None
    if not isinstance(inner, exp.Sum):
        return value
    summed = inner.this.unnest()
    if kinds.of(summed) == "integer" and kinds.of(value) in ("integer", "decimal"):
        return inner
    known = isinstance(summed, exp.Column | exp.Cast) and kinds.of(summed) == kinds.of(value) == "decimal"
    return inner if known and kinds.digits(summed)[1] <= kinds.digits(value)[1] else value


_T = pa.types


def _is_addable(kind: pa.DataType) -> bool:
    """Return True for a number whose sums both engines have exactly. Spark gives those of 38 digits fewer decimals."""
    return _T.is_integer(kind) or (_T.is_decimal128(kind) and kind.precision < 38)


_SUMMED = (_is_addable,)
_EXACT = (_T.is_integer, _T.is_decimal128, _T.is_string, _T.is_large_string, _T.is_boolean, _T.is_date, _T.is_timestamp)


def _is_one_of(kind: pa.DataType, checks: Sequence[Callable[[pa.DataType], bool]]) -> bool:
    return any(check(kind) for check in checks)
