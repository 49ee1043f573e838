"""Blocks opened around a changed table (rules R3 to R7): their joins, conditions and stable outputs.

Theorem: a changed row of a table changes only rows of a block that come from it: by the joins and conditions that read
stable columns, in each pattern of NULLs that an outer join can give, and through the conditions that correlate a
subquery with its block. A source that no such condition connects to the changed rows tells nothing about them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from . import syntax
from .null_rejection import narrowed
from .stability import grouped_by, has_grouping_sets, is_aggregated, is_global, stable_outputs

RIGHT_IS_NULL, LEFT_IS_NULL = 1, 2
"""Patterns of an outer join, beside 0 for a match."""

Path = frozenset[int]
"""Identities (`id`) of the nodes from the query down to a changed occurrence, or to those of a batch.

Of `SELECT … WHERE k IN (SELECT k FROM t)` with a changed `t`: the query, its WHERE, the subquery and `t`.
"""


@dataclass(frozen=True, slots=True)
class ChainSource:
    """Table or subquery in a chain of joins: `orders` and `regions` in `FROM orders JOIN regions ON …`."""

    alias: str
    node: exp.Expr
    columns: frozenset[str] | None
    """Columns of the source that conditions may read; None: all."""
    changed: bool
    """True if the source is the changed occurrence, or holds it."""
    constants: frozenset[str] = frozenset()
    """Columns that have one value in all rows."""

    def has(self, column: exp.Column) -> bool:
        return column.table == self.alias and (self.columns is None or column.name in self.columns)


@dataclass(frozen=True, slots=True)
class Join:
    """Join of a chain, or the first source of a FROM."""

    source: ChainSource
    side: str = ""
    """LEFT, RIGHT, FULL, or none for an inner join."""
    changed: str = ""
    """Place of the changed occurrence: in the sources left of the join, in the right one, or in a subquery of ON (left
    | right | on); "" if it is in another place of the query.
    """
    on: tuple[exp.Expr, ...] = ()
    levels: Mapping[str, int] = field(default_factory=dict)
    """Levels of the parts of ON; see `Condition.levels`."""

    @property
    def text(self) -> str:
        """Return the side of the join in the query of touched values. Only rows of the changed occurrence are of use
        there. Example: in `t LEFT JOIN u` with a changed `u`, a row of `t` without a match has no row of `u`, so an
        inner join ("") is enough.
        """
        if not self.changed or not self.side:
            return self.side
        extended = {"left": "LEFT", "right": "RIGHT", "on": ""}[self.changed]
        return extended if self.side in (extended, "FULL") else ""

    @property
    def flag(self) -> str:
        """Return the alias of the table that has one row for each of the join's `patterns`."""
        return f"n_{self.source.alias}"

    @property
    def patterns(self) -> tuple[int, ...]:
        """Return the kinds of rows of an outer join: 0 for a match, and those with NULLs on one side."""
        return {"LEFT": (0, RIGHT_IS_NULL), "RIGHT": (0, LEFT_IS_NULL)}.get(self.side, (0, RIGHT_IS_NULL, LEFT_IS_NULL))


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition that each row of the touched values meets."""

    expression: exp.Expr
    levels: Mapping[str, int]
    """For a chain, the number of its joins that come before the condition; without an entry, all its joins do. Later
    outer joins extend rows that meet the condition by NULLs. Example: in `a LEFT JOIN b ON p LEFT JOIN c ON q`, the
    level of p in the chain `a` is 1, and that of q is 2.
    """


@dataclass(slots=True)
class Flat:
    """Block whose subqueries around the changed occurrence are opened into chains of joins and conditions over them.

    `SELECT … FROM a WHERE a.k IN (SELECT t.k FROM t JOIN u ON …)` with a changed `t` has the chains `a` and `t, u`, and
    the condition `a.k = t.k`.
    """

    chains: dict[str, list[Join]] = field(default_factory=dict)
    """Joins of each chain, by the alias of its first source."""
    conditions: list[Condition] = field(default_factory=list)
    outputs: dict[str, exp.Expr] = field(default_factory=dict)

    @property
    def joins(self) -> list[Join]:
        return [join for chain in self.chains.values() for join in chain]

    def all_conditions(self) -> list[Condition]:
        """Return the conditions, with those of the ON of inner joins."""
        inner = [
            Condition(part, join.levels)
            for chain in self.chains.values()
            for number, join in enumerate(chain)
            for part in (*of_on(chain, number), *of_where(chain, number))
        ]
        return [*self.conditions, *inner]

    def where(self) -> list[Condition]:
        """Return the conditions that are written in WHERE."""
        inner = [
            Condition(part, join.levels)
            for chain in self.chains.values()
            for number, join in enumerate(chain)
            for part in of_where(chain, number)
        ]
        return [*self.conditions, *inner]

    def links(self) -> list[exp.Expr]:
        """Return all conditions by which a source is connected to others."""
        return [c.expression for c in self.conditions] + [part for join in self.joins for part in join.on]


def is_dropped(join: Join) -> bool:
    """Return True if the join's source is left out."""
    return isinstance(join.source.node, exp.Null)


def of_on(chain: Sequence[Join], number: int) -> list[exp.Expr]:
    """Return the conditions of an inner join that stay in its ON: those that read only sources joined so far."""
    join, before = chain[number], {earlier.source.alias for earlier in chain[:number] if not is_dropped(earlier)}
    if join.text or not before or is_dropped(join):
        return []
    return [part for part in join.on if aliases_of(part) <= before | {join.source.alias}]


def of_where(chain: Sequence[Join], number: int) -> list[exp.Expr]:
    """Return the conditions of an inner join that move to WHERE: those that read other chains too. There are none if a
    later RIGHT or FULL join adds rows with NULLs to the chain: these need not meet them.
    """
    if chain[number].text or any(join.text in ("RIGHT", "FULL") for join in chain[number + 1 :]):
        return []
    in_on = of_on(chain, number)
    return [part for part in chain[number].on if not any(part is other for other in in_on)]


def path_of(table: exp.Table) -> Path:
    """Return the path to a table of a query."""
    node: exp.Expr | None = table
    path: set[int] = set()
    while node is not None:
        path.add(id(node))
        node = node.parent
    return frozenset(path)


def holds(node: exp.Expr, path: Path | None) -> bool:
    """Return True if the changed occurrence is inside of the node."""
    return path is not None and id(node) in path


def covered(query: exp.Query, path: Path | None) -> dict[str, bool]:
    """Return the outputs whose touched values can be computed when the occurrence changes; True for a constant.

    path None: nothing in the query changes; return the outputs that conditions around the query may read.
    """
    query = syntax.unwrapped(query)
    if isinstance(query, exp.SetOperation):
        first, *others = [covered(side, path) for side in read_sides(query, path)]
        kept = [name for name in first if all(name in other for other in others)]
        return {name: first[name] and all(other[name] for other in others) for name in kept}
    assert isinstance(query, exp.Select)
    flat = settled(opened(query, path))
    reached = reached_from_change(flat) if path is not None else None
    constants = {(join.source.alias, name) for join in flat.joins for name in join.source.constants}
    return {
        name: all((column.table, column.name) in constants for column in syntax.columns(expression))
        for name, expression in flat.outputs.items()
        if reached is None or aliases_of(expression) <= reached
    }


def output_names(query: exp.Query) -> list[str]:
    """Return the names of a query's outputs; the sides of a set operation have the same names."""
    query = syntax.unwrapped(query)
    while isinstance(query, exp.SetOperation):
        query = syntax.unwrapped(query.this)
    return [output.alias for output in query.expressions]


def read_sides(query: exp.SetOperation, path: Path | None) -> list[exp.Query]:
    """Return the sides with touched values: those that hold changed occurrences (R6). path None: those with values that
    the operation can have, both of a UNION and the left one of the others.
    """
    if path is None:
        sides = [query.this, query.expression] if isinstance(query, exp.Union) else [query.this]
    else:
        sides = [side for side in (query.this, query.expression) if holds(side, path)]
    return [syntax.unwrapped(side) for side in sides]


def aliases_of(expression: exp.Expr) -> set[str]:
    return {column.table for column in syntax.columns(expression)}


def opened(block: exp.Select, path: Path | None) -> Flat:
    """Return the joins, conditions and stable outputs of a block; the subquery around the occurrence is opened (R4)."""
    flat = Flat()
    inside = any(holds(source, path) for source in syntax.sources_of(block))
    place = None if inside else _place(block, path)
    own, levels = "", {}
    if syntax.sources_of(block) and (not is_global(block) or inside or (place and place.clause in ("where", "on"))):
        chain = _chain(block, path, place)
        own = chain[0].source.alias
        flat.chains[own] = chain
        levels = {own: len(chain)}
        conditions = syntax.conjuncts(syntax.condition_of(block, "where"))
        flat.conditions = [Condition(part, levels) for part in conditions if not syntax.has_query(part)]
    if place is not None:
        if place.join is not None:
            levels = {own: place.join}
        _open_subquery(flat, block, place, path, levels)
    changes = path is not None and holds(block, path)

    def readable(column: exp.Column) -> bool:
        return any(join.source.has(column) for join in flat.chains.get(own, []))

    is_stable = stable_outputs(block, readable, changes=changes)
    flat.outputs = {output.alias: output.this for output in block.expressions if is_stable(output.this)}
    return flat


@dataclass(frozen=True, slots=True)
class _Place:
    """Place of a subquery in its block."""

    clause: str
    part: exp.Expr
    """Conjunct or output that holds the subquery."""
    query: exp.Query
    join: int | None = None
    """Number of the join in whose ON it lies."""


def _place(block: exp.Select, path: Path | None) -> _Place | None:
    if not holds(block, path):
        return None
    parts: list[tuple[str, exp.Expr, int | None]] = []
    parts += [("where", part, None) for part in syntax.conjuncts(syntax.condition_of(block, "where"))]
    for number, join in enumerate(syntax.joins_of(block)):
        parts += [("on", part, number + 1) for part in syntax.conjuncts(join.args.get("on"))]
    parts += [("having", part, None) for part in syntax.conjuncts(syntax.condition_of(block, "having"))]
    parts += [("select", output, None) for output in block.expressions]
    parts += [(name, block.args[name], None) for name in ("group", "order") if block.args.get(name)]
    for clause, part, join in parts:
        for node in syntax.walk(part):
            if isinstance(node, exp.Query) and holds(node, path):
                return _Place(clause, part, node, join)
    raise AssertionError(block)


def _chain(block: exp.Select, path: Path | None, place: _Place | None) -> list[Join]:
    """Return the joins of a block's FROM. Conditions with subqueries are dropped."""
    first, *others = syntax.sources_of(block)
    chain = [Join(_source(first, path))]
    for number, (join, node) in enumerate(zip(syntax.joins_of(block), others, strict=True), start=1):
        source = _source(node, path)
        changed = "left" if any(earlier.source.changed or earlier.changed for earlier in chain) else ""
        if source.changed:
            changed = "right"
        elif place is not None and place.join == number:
            changed = "on"
        on = tuple(part for part in syntax.conjuncts(join.args.get("on")) if not syntax.has_query(part))
        chain.append(Join(source, (join.side or "").upper(), changed, on, {chain[0].source.alias: number}))
    return chain


def _source(node: exp.Expr, path: Path | None) -> ChainSource:
    changed = holds(node, path)
    if isinstance(node, exp.Table):
        return ChainSource(node.alias, node, None, changed)
    inner = covered(syntax.unwrapped(node.this), path if changed else None)
    constants = frozenset(name for name, constant in inner.items() if constant)
    return ChainSource(node.alias, node, frozenset(inner), changed, constants)


def _open_subquery(flat: Flat, block: exp.Select, place: _Place, path: Path | None, levels: Mapping[str, int]) -> None:
    """Join the changed rows of a subquery to the block's, by the conditions that correlate them."""
    query = syntax.unwrapped(place.query)
    while isinstance(query, exp.SetOperation):
        (query,) = read_sides(query, path)
    assert isinstance(query, exp.Select)
    inner = opened(query, path)
    conditions = [*inner.conditions, *_membership(place, query, inner)]
    if is_aggregated(block) and place.clause not in ("where", "on", "group") and has_grouping_sets(block):
        kept, own = grouped_by(block), {source.alias for source in syntax.sources_of(block)}
        conditions = [
            condition
            for condition in conditions
            if all(column in kept for column in syntax.columns(condition.expression) if column.table in own)
        ]
        inner.chains = {
            name: [replace(join, on=tuple(part for part in join.on if not aliases_of(part) & own)) for join in chain]
            for name, chain in inner.chains.items()
        }
    flat.conditions += [replace(c, levels={**c.levels, **levels}) for c in conditions]
    for name, chain in inner.chains.items():
        flat.chains[name] = [replace(join, levels={**join.levels, **levels}) for join in chain]


def _membership(place: _Place, query: exp.Select, inner: Flat) -> list[Condition]:
    """Return the equality that IN requires of a changed row of its subquery.

    Example: `a.k IN (SELECT t.k FROM t)` requires `a.k = t.k`. Under NOT, OR or CASE a NULL on one side changes the
    result too, so there `a.k = t.k OR a.k IS NULL OR t.k IS NULL` is required.
    """
    test = place.query.parent
    if not isinstance(test, exp.In) or test.args.get("query") is not place.query:
        return []
    left = test.this.expressions if isinstance(test.this, exp.Tuple) else [test.this]
    names = [output.alias for output in query.expressions]
    pairs = [(x, inner.outputs[name]) for x, name in zip(left, names, strict=True) if name in inner.outputs]
    own = query.args.get("from_")
    name = own.this.alias if own else ""
    levels = {name: len(inner.chains[name])} if name in inner.chains else {}
    positive = place.clause in ("where", "on", "having") and place.part is test
    if len(left) > 1 and not positive:
        return []
    conditions = []
    for x, y in pairs:
        if any(isinstance(part, exp.Query | exp.AggFunc | exp.Window) for part in syntax.walk(x)):
            continue
        equal: exp.Expr = exp.EQ(this=exp.paren(x.copy()), expression=exp.paren(y.copy()))
        if not positive:
            nulls = [exp.Is(this=exp.paren(side.copy()), expression=exp.Null()) for side in (x, y)]
            equal = exp.paren(exp.or_(equal, *nulls, copy=False))
        conditions.append(Condition(equal, levels))
    return conditions


def settled(flat: Flat) -> Flat:
    """Drop the conditions with columns that cannot be read, and narrow outer joins by the others; return the block.

    Example: `t LEFT JOIN u ON … WHERE u.k = 3` has no row with NULLs for `u`, so it becomes an inner join.
    """
    sources = [join.source for join in flat.joins]

    def is_readable(part: exp.Expr) -> bool:
        reads = list(syntax.columns(part))
        return bool(reads) and all(any(source.has(column) for source in sources) for column in reads)

    flat.conditions = [condition for condition in flat.conditions if is_readable(condition.expression)]
    for chain in flat.chains.values():
        before: set[str] = set()
        for number, join in enumerate(chain):
            before.add(join.source.alias)
            on = tuple(part for part in join.on if is_readable(part) and (not join.text or aliases_of(part) <= before))
            chain[number] = replace(join, on=on)
    changed = True
    while changed:
        changed = False
        for name, chain in flat.chains.items():
            for number, join in enumerate(chain):
                side = _narrowed_side(flat, name, number)
                if side != join.side:
                    chain[number] = replace(join, side=side)
                    changed = True
    return flat


def _narrowed_side(flat: Flat, name: str, number: int) -> str:
    """Return the side of a join that is left when the conditions after it exclude rows with NULLs on one side."""
    chain = flat.chains[name]
    if not chain[number].side:
        return ""
    seeing = [c.expression for c in flat.all_conditions() if c.levels.get(name, len(chain)) > number]
    before = {join.source.alias for join in chain[:number]}
    return narrowed(chain[number].side, before, {chain[number].source.alias}, seeing)


def reached_from_change(flat: Flat) -> set[str]:
    """Return the sources that conditions connect to the changed rows (R7)."""
    reached = connected(flat.links(), {join.source.alias for join in flat.joins if join.source.changed})
    for chain in flat.chains.values():
        for number, join in enumerate(chain):
            before = {earlier.source.alias for earlier in chain[:number]}
            # Rows of the left side are extended by rows of a side that is left out: they cannot be known.
            if join.text in ("RIGHT", "FULL") and join.source.alias not in reached:
                reached -= {alias for alias in before if not join.changed}
    return reached


def connected(links: Sequence[exp.Expr], start: Collection[str]) -> set[str]:
    reached, grew = set(start), True
    edges = [aliases_of(link) for link in links]
    while grew:
        grew = False
        for edge in edges:
            if edge & reached and not edge <= reached:
                reached |= edge
                grew = True
    return reached
