"""Aggregates of a view whose groups a state keeps, so that a step computes of its changes alone (rule R12, pure).

Theorem: let a block be over one table, or over an inner join of tables, and let its outputs be functions of its
GROUP BY expressions and aggregates. The rows that the join gains and loses (`delta_join.py`) are a change of signed
rows. Of each group, the numbers of rows that pass a condition, and sums of exact numbers over them, are linear in the
rows. Of each group and value, so is the number of rows with the value. It is above 0 if the group has the value, so a
COUNT(DISTINCT) changes by those of its values whose number passes 0. The least value follows if the group did not lose
it, or gained one that is not above it; else it is computed of all rows of the group.

The state has a row of each group, with these numbers and sums, and one of each group and value of a DISTINCT aggregate.
A group whose number of rows is 0 has no row, but for an aggregate without GROUP BY.

A block over the groups of another block has a state of its own. The rows that it gains and loses are the rows of the
groups that the block below has changed: the old ones, of the old numbers and sums, and the new ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from sqlglot import exp

from epochlog.store.types.schema import TableSchema

from . import syntax
from .delta_join import delta_join, is_inner_join
from .groups_below import groups_below
from .stability import grouped_by, has_grouping_sets, is_aggregated, windows_of
from .table_names import IS_NEW
from .value_kinds import ValueKinds

FOLDED = "epochlog_folded"
"""Name of the table of groups with the values of their aggregates."""
INPUT = "epochlog_input_"
"""Prefix of the columns with the arguments and conditions of aggregates."""
GROUP = "epochlog_group_"
"""Prefix of the columns with the groups of a block below another one."""
VALUE = "epochlog_value_"
"""Prefix of the columns with the values of aggregates."""
_ALIAS = "epochlog_folded_row"

Kind = Literal["rows", "count", "true", "all_true", "any_true", "sum", "average", "least", "greatest"]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Aggregate of a block."""

    name: str
    """Column of its value in the table FOLDED."""
    kind: Kind
    inputs: tuple[str, ...]
    """Columns with its arguments: none for COUNT(*), several for COUNT(DISTINCT …) alone. They are NULL in rows that
    the FILTER of an aggregate without DISTINCT does not pass.
    """
    condition: str | None = None
    """Column with the condition of the FILTER of one with DISTINCT; None without."""
    distinct: bool = False
    """True if it takes each value of a group once."""

    @property
    def is_extreme(self) -> bool:
        """Return True for MIN and MAX."""
        return self.kind in ("least", "greatest")


@dataclass(frozen=True, slots=True)
class Aggregates:
    """Groups and aggregates of a block."""

    groups: tuple[str, ...]
    """Outputs that are the GROUP BY expressions; none for an aggregate of all rows."""
    aggregates: tuple[Aggregate, ...]
    leading: int = 0
    """Number of the first groups that are all those of the block above, in its order; 0 if that has others."""


@dataclass(frozen=True, slots=True)
class KeptBlock:
    """Block of a query whose groups a state keeps."""

    block: exp.Select
    kept: Aggregates
    groups: Mapping[str, exp.Expr]
    """Expressions of GROUP BY, by output."""
    inputs: Mapping[str, exp.Expr]
    """Arguments and conditions of the aggregates, by column."""
    rows: exp.Select
    """Query of the block's rows, over the table FOLDED."""

    @property
    def outputs(self) -> dict[str, exp.Expr]:
        """Return what a row of the block's FROM is taken for, by column."""
        return {**self.groups, **self.inputs}

    def over(self, source: exp.Expr, mark: exp.Expr) -> exp.Select:
        """Return the query of what the block takes of a source in the place of its own: the columns `outputs`, and
        IS_NEW with the value of `mark`.
        """
        outputs = [syntax.named(value, name) for name, value in self.outputs.items()]
        query = syntax.select([*outputs, syntax.named(mark, IS_NEW)])
        syntax.put_from(query, source.copy())
        for clause in ("joins", "where"):
            if self.block.args.get(clause) is not None:
                part = self.block.args[clause]
                query.set(clause, [child.copy() for child in part] if isinstance(part, list) else part.copy())
        return query


@dataclass(frozen=True, slots=True)
class StatePlan:
    """Plan of a refresh that keeps a state."""

    blocks: tuple[KeptBlock, ...]
    """The block over tables, then each block over the one before it; the last one has the view's rows."""
    tables: Mapping[str, str]
    """Table of each occurrence, by alias."""
    above: exp.Query | None = None
    """Query of the view's rows over all groups of the last block, in the table FOLDED; None if each of its groups is a
    row of the view, or none.
    """

    @property
    def outputs(self) -> exp.Query:
        """Return the query of the view's rows over the table FOLDED."""
        return self.blocks[-1].rows if self.above is None else self.above

    def changes(self, changed: Collection[str]) -> exp.Query:
        """Return the query of the rows that the join of the first block gains and loses in a barrier in which these
        tables have changed: its `outputs`, and IS_NEW. It reads tables SIGNED, NOW and OLD.
        """
        lowest = self.blocks[0]
        return delta_join(lowest.block, lowest.outputs, self.tables, changed)

    def all_rows(self) -> exp.Select:
        """Return the query of all rows of the join of the first block: its `outputs`, and IS_NEW."""
        lowest = self.blocks[0]
        return lowest.over(syntax.sources_of(lowest.block)[0], exp.true())

    def from_below(self, number: int) -> exp.Select:
        """Return the query of the rows that a block takes of the groups of the one before it, whose numbers and sums
        are in the table FOLDED, with IS_NEW: its `outputs`, and IS_NEW.
        """
        block = self.blocks[number]
        alias = syntax.sources_of(block.block)[0].alias
        rows = self.blocks[number - 1].rows.copy()
        rows.append("expressions", syntax.named(syntax.column(_ALIAS, IS_NEW), IS_NEW))
        return block.over(syntax.derived(rows, alias), syntax.column(alias, IS_NEW))


def state_of(
    query: exp.Query, tables: Mapping[str, str], schemas: Mapping[str, TableSchema], primary_key: Sequence[str]
) -> StatePlan | None:
    """Return the plan that keeps a state for a flat query in normal form; None if the query is of another kind, or each
    group has one row of the tables.

    tables: by alias of an occurrence.
    """
    chain = _chain(syntax.unwrapped(query))
    return _plan(chain, ValueKinds(query, tables, schemas), tables, schemas, primary_key)


def state_below(query: exp.Query, tables: Mapping[str, str], schemas: Mapping[str, TableSchema]) -> StatePlan | None:
    """Return the plan that keeps a state of the groups below a flat query in normal form, of all of which its rows are
    computed (R14); None if the query is of another kind.
    """
    for whole, inner in groups_below(query):
        plan = _plan(_chain(inner), ValueKinds(whole, tables, schemas), tables, schemas, None)
        if plan is not None:
            inner.replace(plan.blocks[-1].rows.copy())
            return replace(plan, above=whole)
    return None


def _plan(
    chain: Sequence[exp.Select],
    kinds: ValueKinds,
    tables: Mapping[str, str],
    schemas: Mapping[str, TableSchema],
    primary_key: Sequence[str] | None,
) -> StatePlan | None:
    """Return the plan of a chain of blocks of groups. primary_key: of the view whose rows are those of the last one;
    None if another query reads these.
    """
    blocks: list[KeptBlock] = []
    for block, above in zip(chain, [*chain[1:], None], strict=False):
        kept = _kept_block(block, kinds, above, None if above is not None else primary_key)
        if kept is None:
            return None
        blocks.append(kept)
    if not blocks:
        return None
    own_keys = [syntax.column(alias, name) for alias, table in tables.items() for name in schemas[table].primary_key]
    lowest = list(blocks[0].groups.values())
    if lowest and all(column in lowest for column in own_keys):
        return None
    return StatePlan(tuple(blocks), dict(tables))


def _chain(query: exp.Query) -> list[exp.Select]:
    """Return the blocks of groups of a query, the one over tables first; none if it has other blocks too."""
    chain: list[exp.Select] = []
    block: exp.Expr = query
    while isinstance(block, exp.Select):
        chain.insert(0, block)
        sources = syntax.sources_of(block)
        if not sources or not isinstance(sources[0], exp.Subquery):
            break
        block = syntax.unwrapped(sources[0])
    fits = [
        is_inner_join(each) if place == 0 else len(syntax.sources_of(each)) == 1 for place, each in enumerate(chain)
    ]
    return chain if all(map(_is_of_groups, chain, fits)) and isinstance(block, exp.Select) else []


def _is_of_groups(block: exp.Select, of_sources: bool) -> bool:
    """Return True for a block of groups without clauses whose rows depend on others. of_sources: whether its FROM is
    one that can be.
    """
    distinct = block.args.get("distinct")
    is_distinct = distinct is not None and distinct.args.get("on") is None and not is_aggregated(block)
    clauses = [value for name, value in block.args.items() if name not in ("from_", "distinct")]
    parts = [part for value in clauses for part in (value if isinstance(value, list) else [value])]
    return (
        of_sources
        and (is_distinct or (is_aggregated(block) and distinct is None))
        and not any(block.args.get(name) for name in ("qualify", "laterals"))
        and not syntax.is_limited(block)
        and not windows_of(block)
        and not has_grouping_sets(block)
        and not any(part.find(exp.Query) for part in parts if isinstance(part, exp.Expr))
    )


def _kept_block(
    block: exp.Select, kinds: ValueKinds, above: exp.Select | None, primary_key: Sequence[str] | None
) -> KeptBlock | None:
    """Return a block of groups with its aggregates; None if no state keeps them. above: the block of groups that reads
    it, if one does. primary_key: of the view whose rows are those of the block; None if they are not.
    """
    keys = _keys_of(block)
    leading = [] if above is None else _grouped_above(block, above)
    groups = _groups_below(keys, leading) if primary_key is None else _view_groups(block, keys, primary_key)
    nodes = list(dict.fromkeys(_aggregates(block)))
    if groups is None or (primary_key is not None and not nodes):
        return None
    if primary_key is not None and keys and not set(primary_key) <= set(groups):
        return None
    inputs: dict[exp.Expr, str] = {}
    aggregates: list[Aggregate] = []
    for number, node in enumerate(nodes):
        aggregate = _aggregate(node, f"{VALUE}{number}", inputs, kinds)
        if aggregate is None or (aggregate.kind == "average" and primary_key is None):
            return None  # an average may not follow of the state
        aggregates.append(aggregate)
    rows = _rows(block, {value: name for name, value in groups.items()}, dict(zip(nodes, aggregates, strict=True)))
    by_column = {name: value for value, name in inputs.items()}
    if rows is None or not _are_exact(kinds, groups.values(), aggregates, by_column):
        return None
    kept = Aggregates(tuple(groups), tuple(aggregates), len(leading))
    return KeptBlock(block, kept, groups, by_column, rows)


def _grouped_above(block: exp.Select, above: exp.Select) -> list[exp.Expr]:
    """Return the GROUP BY expressions of a block that the block above groups by, in its order; none if it groups by
    another value too, or by one of them twice.
    """
    outputs = {output.alias: output.this for output in block.expressions}
    keys = _keys_of(block)
    read = [outputs.get(key.name) if isinstance(key, exp.Column) else None for key in _keys_of(above)]
    leading = list(dict.fromkeys(value for value in read if value is not None and value in keys))
    return leading if len(leading) == len(read) else []


def _keys_of(block: exp.Select) -> list[exp.Expr]:
    """Return the GROUP BY expressions of a block, each once; the outputs of SELECT DISTINCT."""
    is_distinct = block.args.get("distinct") is not None
    return list(dict.fromkeys((o.this for o in block.expressions) if is_distinct else grouped_by(block)))


def _groups_below(keys: Sequence[exp.Expr], leading: Sequence[exp.Expr]) -> dict[str, exp.Expr]:
    """Return the GROUP BY expressions of a block below another one by column, those that the other groups by first."""
    return {f"{GROUP}{number}": key for number, key in enumerate(dict.fromkeys([*leading, *keys]))}


def _view_groups(block: exp.Select, keys: Sequence[exp.Expr], primary_key: Sequence[str]) -> dict[str, exp.Expr] | None:
    """Return the GROUP BY expressions by output, one of the primary key if there is one; None if one is no output."""
    names: dict[exp.Expr, str] = {}
    for output in sorted(block.expressions, key=lambda output: output.alias not in primary_key):
        if output.this in keys:
            names.setdefault(output.this, output.alias)
    return {names[key]: key for key in keys} if len(names) == len(keys) else None


def _aggregates(block: exp.Select) -> Iterator[exp.Expr]:
    """Yield the aggregates of the outputs and of HAVING, with their FILTER."""
    having = syntax.condition_of(block, "having")
    for place in (*(output.this for output in block.expressions), *([] if having is None else [having])):
        for node in place.find_all(exp.AggFunc):
            yield node.parent if isinstance(node.parent, exp.Filter) and node is not place else node


def _aggregate(node: exp.Expr, name: str, inputs: dict[exp.Expr, str], kinds: ValueKinds) -> Aggregate | None:
    """Return an aggregate, and note its arguments among the inputs; None if no state keeps it."""

    def column(value: exp.Expr) -> str:
        return inputs.setdefault(value, f"{INPUT}{len(inputs)}")

    condition = None
    if isinstance(node, exp.Filter):
        condition, node = node.expression.this, node.this
    if isinstance(node.parent, exp.IgnoreNulls | exp.RespectNulls | exp.Window):
        return None
    kind: Kind | None = next((kind for kind, types in _KINDS.items() if type(node) in types), None)
    argument = node.this
    if kind is None or node.expressions or not isinstance(argument, exp.Expr):
        return None
    distinct = isinstance(argument, exp.Distinct)
    values = argument.expressions if isinstance(argument, exp.Distinct) else [argument]
    if kind == "count" and isinstance(argument, exp.Star):
        kind, values = "rows", []
    if kind in ("least", "greatest", "all_true", "any_true"):
        distinct = False  # each value counts as one of them does
    if distinct and (kind not in ("count", "sum") or argument.args.get("on")):
        return None
    if len(values) > 1 and kind != "count":
        return None
    if any(syntax.has_aggregate(value) for value in (*values, *([] if condition is None else [condition]))):
        return None
    values = _counted(values, kinds, alone=kind == "count" and not distinct)
    if condition is not None and not distinct:
        if kind == "rows":
            return Aggregate(name, "true", (column(condition),))
        values = [exp.Case(ifs=[exp.If(this=condition.copy(), true=value.copy())]) for value in values]
        condition = None
    columns = tuple(column(value) for value in values)
    return Aggregate(name, kind, columns, None if condition is None else column(condition), distinct)


def _counted(values: list[exp.Expr], kinds: ValueKinds, *, alone: bool) -> list[exp.Expr]:
    """Return the arguments of an aggregate; in place of one whose value is of a kind that no state keeps, whether there
    is a value. alone: it counts rows with a value.
    """
    return [
        exp.Case(
            ifs=[
                exp.If(this=exp.Not(this=exp.Is(this=value.copy(), expression=exp.Null())), true=exp.Literal.number(1))
            ]
        )
        if alone and kinds.of(value) not in _KEPT
        else value
        for value in values
    ]


_KINDS: dict[Kind, tuple[type[exp.Expr], ...]] = {
    "count": (exp.Count,),
    "true": (exp.CountIf,),
    "all_true": (exp.LogicalAnd,),
    "any_true": (exp.LogicalOr,),
    "sum": (exp.Sum,),
    "average": (exp.Avg,),
    "least": (exp.Min,),
    "greatest": (exp.Max,),
}


def _are_exact(
    kinds: ValueKinds,
    groups: Iterable[exp.Expr],
    aggregates: Sequence[Aggregate],
    inputs: Mapping[str, exp.Expr],
) -> bool:
    """Return False if a value is of a kind that no state keeps. Others have types that decide (`layout_of`)."""
    if not all(kinds.of(group) in _KEPT for group in groups):
        return False
    for aggregate in aggregates:
        own = {kinds.of(inputs[name]) for name in aggregate.inputs}
        if not own <= set(_KEPT) or (aggregate.kind == "average" and "decimal" in own):
            return False
    return True


_KEPT = ("integer", "decimal", "text", "date", "timestamp", "boolean", "null", None)


def _rows(
    block: exp.Select, groups: Mapping[exp.Expr, str], aggregates: Mapping[exp.Expr, Aggregate]
) -> exp.Select | None:
    """Return the query of the view's rows over the table FOLDED; None if an output has another column."""

    def visit(node: exp.Expr) -> exp.Expr:
        if node in groups:
            return syntax.column(_ALIAS, groups[node])
        return syntax.column(_ALIAS, aggregates[node].name) if node in aggregates else node

    outputs = [output.this.copy().transform(visit, copy=False) for output in block.expressions]
    having = syntax.condition_of(block, "having")
    conditions = [] if having is None else [having.copy().transform(visit, copy=False)]
    if any(column.table != _ALIAS for part in (*outputs, *conditions) for column in part.find_all(exp.Column)):
        return None
    rows = syntax.select(syntax.named(o, own.alias) for o, own in zip(outputs, block.expressions, strict=True))
    syntax.put_from(rows, syntax.table(FOLDED, _ALIAS))
    if conditions:
        rows.set("where", exp.Where(this=conditions[0]))
    return rows


__all__ = ["FOLDED", "VALUE", "Aggregate", "KeptBlock", "StatePlan", "state_below", "state_of"]
