"""Query for the values that a table's change can touch (rules R3 to R7).

Theorem: let the rows of one occurrence change, the other tables having any rows between their old and their new ones.
If the rows of a query with some values of covered outputs differ then, these values are among the rows of `touched`,
which reads the changed rows in place of the occurrence, and each other table's old and new rows together. The query of
touched values is monotone: more rows in its tables give it more rows, never fewer.

Each clause that is not monotone is replaced by what it can give at most: an outer join by its matches and its
null-extended rows, EXCEPT by its left side, a subquery's condition by TRUE, an aggregate by the rows of its groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from . import syntax
from .opening import (
    LEFT_IS_NULL,
    RIGHT_IS_NULL,
    ChainSource,
    Condition,
    Flat,
    Join,
    Path,
    aliases_of,
    connected,
    is_dropped,
    of_on,
    opened,
    reached_from_change,
    read_sides,
    settled,
)
from .table_names import CHANGED, EITHER, EMPTY

NO_COLUMN = "epochlog_any"


class NotCovered(Exception):
    """The touched values of these outputs cannot be computed; the message is the reason."""


def touched(query: exp.Query, path: Path | None, wanted: Sequence[str], tables: Mapping[str, str]) -> exp.Query:
    """Return the query of the touched values of the outputs `wanted`. tables: by alias of an occurrence.

    path None: the query of all values that the outputs can have. Raises NotCovered.
    """
    query = syntax.unwrapped(query)
    if isinstance(query, exp.SetOperation):
        return _touched_by_side(query, path, wanted, tables)
    assert isinstance(query, exp.Select)
    flat = settled(opened(query, path))
    missing = [name for name in wanted if name not in flat.outputs]
    if missing:
        raise NotCovered(f"the column {missing[0]} is not stable")
    flat.outputs = {name: flat.outputs[name] for name in wanted}
    needed = {alias for expression in flat.outputs.values() for alias in aliases_of(expression)}
    if path is not None:
        reached = reached_from_change(flat)
        if not needed <= reached:
            raise NotCovered("no condition connects them")
        flat = _without_unneeded(_restricted(flat, reached), needed)
    else:
        flat = _restricted(flat, _possible(flat, needed))
    return _written(flat, tables, path)


def _touched_by_side(
    query: exp.SetOperation, path: Path | None, wanted: Sequence[str], tables: Mapping[str, str]
) -> exp.Query:
    """Return the touched values of one side, in the types that the engine gives the whole operation."""
    parts = list[exp.Select]()
    for side, is_read in _sides_of(query, path):
        inner = touched(side, path, wanted, tables) if is_read else with_tables(side, tables, EMPTY)
        alias = f"u{len(parts)}"
        outputs = [syntax.named(syntax.column(alias, name), name) for name in wanted]
        part = syntax.select(outputs or [syntax.named(exp.Literal.number(1), NO_COLUMN)])
        syntax.put_from(part, syntax.derived(inner, alias))
        if not is_read:
            part.set("where", exp.Where(this=exp.false()))
        parts.append(part)
    return syntax.union(parts[::-1], distinct=False)


def _sides_of(query: exp.Query, path: Path | None) -> list[tuple[exp.Query, bool]]:
    """Return the sides of a chain of set operations, the last one first, and whether they have touched values."""
    sides: list[tuple[exp.Query, bool]] = []
    is_read = True
    while is_read and isinstance(query, exp.SetOperation):
        read = read_sides(query, path)
        left, right = syntax.unwrapped(query.this), syntax.unwrapped(query.expression)
        sides.append((right, any(side is right for side in read)))
        query, is_read = left, any(side is left for side in read)
    return [*sides, (query, is_read)]


def with_tables(query: exp.Expr, tables: Mapping[str, str], prefix: str) -> exp.Expr:
    """Return a copy of the query over tables of another prefix."""
    query = query.copy()
    for node in list(query.find_all(exp.Table)):
        if node.alias in tables:
            node.set("this", exp.to_identifier(prefix + tables[node.alias], quoted=True))
    return query


def _possible(flat: Flat, needed: Collection[str]) -> set[str]:
    """Return the sources that are read for the values that outputs can have."""
    kept = connected(flat.links(), needed)
    for chain in flat.chains.values():
        for number, join in reversed(list(enumerate(chain))):
            before = {earlier.source.alias for earlier in chain[:number]}
            if join.text in ("RIGHT", "FULL") and before & kept:
                kept.add(join.source.alias)
            elif join.side == "LEFT" and join.source.alias not in needed:
                trial = kept - {join.source.alias}
                kept = trial & connected(_restricted(flat, trial).links(), needed)
    return kept


def _without_unneeded(flat: Flat, needed: Collection[str]) -> Flat:
    """Return the block without sources that neither restrict the touched values nor connect them to the change."""
    for join in reversed(flat.joins):
        alias = join.source.alias
        links = [link for link in flat.links() if alias in aliases_of(link) and len(aliases_of(link)) > 1]
        restricts = any(isinstance(link, exp.EQ | exp.NullSafeEQ) for link in links) and join.side != "LEFT"
        if join.source.changed or alias in needed or restricts:
            continue
        trial = _restricted(flat, {other.source.alias for other in flat.joins} - {alias})
        reached = reached_from_change(trial)
        if reached.issuperset(needed):
            flat = _restricted(trial, reached)
    return flat


def _restricted(flat: Flat, kept: Collection[str]) -> Flat:
    """Return the block with some of its sources; the conditions that read others are dropped."""
    chains = {}
    for name, chain in flat.chains.items():
        chains[name] = [
            replace(join, on=tuple(part for part in join.on if aliases_of(part) <= set(kept))) for join in chain
        ]
    conditions = [c for c in flat.conditions if aliases_of(c.expression) <= set(kept)]
    dropped = {join.source.alias for join in flat.joins} - set(kept)
    return Flat(
        {
            name: [_dropped(join) if join.source.alias in dropped else join for join in chain]
            for name, chain in chains.items()
        },
        conditions,
        flat.outputs,
    )


def _dropped(join: Join) -> Join:
    """Return the place of a join whose source is left out: later joins keep their numbers."""
    source = replace(join.source, node=exp.Null(), columns=frozenset())
    return replace(join, source=source, on=())


def _written(flat: Flat, tables: Mapping[str, str], path: Path | None) -> exp.Select:
    flagged = _flagged(flat)

    def masked(expression: exp.Expr, levels: Mapping[str, int]) -> exp.Expr:
        def visit(column: exp.Column) -> exp.Expr | None:
            return _masked_column(flat, flagged, column, levels)

        return syntax.replaced(expression, visit)

    outputs = [syntax.named(masked(expression, {}), name) for name, expression in flat.outputs.items()]
    query = syntax.select(outputs or [syntax.named(exp.Literal.number(1), NO_COLUMN)])
    query.set("distinct", exp.Distinct())
    reads = _reads(flat)
    chains = [_written_chain(chain, flagged, reads, tables, path, masked) for chain in flat.chains.values()]
    items = [chain for chain in chains if chain]
    for number, (first, *joins) in enumerate(items):
        if number == 0:
            syntax.put_from(query, first)
            query.set("joins", joins)
            continue
        if joins:
            first.set("joins", joins)
            first = exp.Subquery(this=first)
        query.append("joins", exp.Join(this=first, kind="CROSS"))
    where = [masked(condition.expression, condition.levels) for condition in flat.where()]
    if where:
        query.set("where", exp.Where(this=exp.and_(*(exp.paren(part, copy=False) for part in where), copy=False)))
    return query


def _reads(flat: Flat) -> dict[str, list[str]]:
    """Return the columns that are read of each source."""
    reads: dict[str, dict[str, None]] = {}
    for expression in [*flat.outputs.values(), *flat.links()]:
        for column in syntax.columns(expression):
            reads.setdefault(column.table, {})[column.name] = None
    return {alias: list(names) for alias, names in reads.items()}


def _sides(chain: Sequence[Join], number: int) -> tuple[set[str], set[str]]:
    """Return the aliases that a join's patterns make NULL: left side, right side."""
    before = {join.source.alias for join in chain[:number]}
    side = chain[number].side
    left = before if side in ("RIGHT", "FULL") else set[str]()
    return left, {chain[number].source.alias} if side in ("LEFT", "FULL") else set()


def _flagged(flat: Flat) -> set[str]:
    """Return the flags of the joins whose null-extended rows an output or a condition sees."""
    flagged: set[str] = set()
    outer_ons = [Condition(part, join.levels) for join in flat.joins if join.text for part in join.on]
    seen = [*flat.all_conditions(), *outer_ons, *(Condition(e, {}) for e in flat.outputs.values())]
    for name, chain in flat.chains.items():
        for number, join in enumerate(chain):
            left, right = _sides(chain, number)
            for condition in seen:
                if condition.levels.get(name, len(chain)) > number and aliases_of(condition.expression) & (
                    left | right
                ):
                    flagged.add(join.flag)
    return flagged


def _masked_column(
    flat: Flat, flagged: Collection[str], column: exp.Column, levels: Mapping[str, int]
) -> exp.Expr | None:
    """Return the column as a condition of these levels sees it: NULL in the null-extended patterns of earlier joins."""
    for name, chain in flat.chains.items():
        if not any(join.source.alias == column.table for join in chain):
            continue
        masked: exp.Expr = column.copy()
        for number in range(levels.get(name, len(chain))):
            left, right = _sides(chain, number)
            flag = chain[number].flag
            if column.table not in left | right or flag not in flagged:
                continue
            pattern = LEFT_IS_NULL if column.table in left else RIGHT_IS_NULL
            matches = exp.NEQ(this=syntax.column(flag, "n"), expression=exp.Literal.number(pattern))
            masked = exp.Case(ifs=[exp.If(this=matches, true=masked)])
        return masked
    return None


def _patterns(join: Join) -> exp.Subquery:
    rows = [syntax.select([syntax.named(exp.Literal.number(number), "n")]) for number in join.patterns]
    return syntax.derived(syntax.union(rows, distinct=False), join.flag)


def _written_chain(
    chain: Sequence[Join],
    flagged: Collection[str],
    reads: Mapping[str, Sequence[str]],
    tables: Mapping[str, str],
    path: Path | None,
    masked: Callable[[exp.Expr, Mapping[str, int]], exp.Expr],
) -> list[exp.Expr]:
    """Return the first source of a chain and its joins; none if all its sources are left out."""
    items: list[exp.Expr] = []
    for number, join in enumerate(chain):
        if is_dropped(join):
            if join.flag in flagged and items:
                items.append(exp.Join(this=_patterns(join), kind="CROSS"))
            continue
        node = _written_source(join.source, reads.get(join.source.alias, ()), tables, path)
        text = join.text
        if not items:
            if text in ("LEFT", "FULL") and join.flag in flagged:
                # Without its left side the row of NULLs is there even if the right side has no rows.
                real = exp.EQ(this=syntax.column(join.flag, "n"), expression=exp.Literal.number(0))
                items = [_patterns(join), exp.Join(this=node, side="LEFT", on=real)]
                continue
            items = [node]
        elif text or of_on(chain, number):
            on = [masked(part, join.levels) for part in (join.on if text else of_on(chain, number))]
            condition = exp.and_(*(exp.paren(part, copy=False) for part in on), copy=False) if on else exp.true()
            items.append(exp.Join(this=node, side=text or None, on=condition))
        else:
            items.append(exp.Join(this=node, kind="CROSS"))
        if join.flag in flagged:
            items.append(exp.Join(this=_patterns(join), kind="CROSS"))
    return items


def _written_source(
    source: ChainSource, reads: Sequence[str], tables: Mapping[str, str], path: Path | None
) -> exp.Expr:
    if isinstance(source.node, exp.Table):
        prefix = CHANGED if source.changed else EITHER
        return syntax.table(prefix + tables[source.alias], source.alias)
    inner = touched(syntax.unwrapped(source.node.this), path if source.changed else None, reads, tables)
    return syntax.derived(inner, source.alias)
