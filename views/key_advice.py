"""Reasons why a view's steps may fail for its key: a column of it can be NULL, or two rows can have one key (pure).

A query implies a key if equal values of the key mean one row, whatever its tables have. What is said here is advice: a
query may keep its key by what its tables happen to have, and then its steps go on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from epochlog.store.types.schema import TableSchema

from . import syntax
from .normal_form import NormalForm
from .stability import grouped_by, has_grouping_sets, is_aggregated, is_global

Place = tuple[str, str]
"""Column of a source: the source's alias, and the column's name."""
_COMPARISONS = (exp.EQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_NEVER_NULL = (exp.Count, exp.CountIf, exp.RowNumber, exp.Rank, exp.DenseRank, exp.Ntile, exp.Exists)
_OF_PARTS = (exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Paren, exp.Upper, exp.Lower, exp.Trim, exp.Length, exp.DPipe)


@dataclass(frozen=True, slots=True)
class KeyAdvice:
    """Sentences about a key: on its columns that can be NULL, and on a query that does not imply it. "": nothing."""

    nullable: str = ""
    repeated: str = ""

    @property
    def sentences(self) -> list[str]:
        return [sentence for sentence in (self.nullable, self.repeated) if sentence]


def key_advice(form: NormalForm, primary_key: Sequence[str], schemas: Mapping[str, TableSchema]) -> KeyAdvice:
    """Return the advice on the key of a view."""
    reader = _Reader(form, schemas)
    nullable, repeated = "", ""
    if names := ", ".join(name for name in primary_key if reader.can_be_null(form.query, name)):
        nullable = (
            f"{names} of its key can be NULL, and a step with such a row fails: leave these rows out (WHERE … IS NOT "
            "NULL), or give them a value (COALESCE)"
        )
    if not reader.implies(form.query, frozenset(primary_key)):
        repeated = (
            f"its query does not imply the key ({', '.join(primary_key)}), and a step with two rows of one key fails: "
            "group by these columns, number the rows with ROW_NUMBER and take the first, or add the columns that tell "
            "the rows apart to the key"
        )
    return KeyAdvice(nullable, repeated)


class _Reader:
    def __init__(self, form: NormalForm, schemas: Mapping[str, TableSchema]) -> None:
        self._tables = {alias: schemas[name] for alias, name in form.occurrences.items()}

    # ---- NULL ------------------------------------------------------------------------------------------------------

    def can_be_null(self, query: exp.Expr, name: str) -> bool:
        query = syntax.unwrapped(query)
        if isinstance(query, exp.SetOperation):
            sides = [query.this] if isinstance(query, exp.Except) else [query.this, query.expression]
            return any(self.can_be_null(side, name) for side in sides)
        assert isinstance(query, exp.Select)
        value = next(output.this for output in query.expressions if output.alias == name)
        if has_grouping_sets(query) and not syntax.has_aggregate(value):
            return True
        return self._is_nullable(value, query)

    def _is_nullable(self, value: exp.Expr, block: exp.Select) -> bool:
        if isinstance(value, exp.Window | exp.Filter):
            value = value.this
        if isinstance(value, (exp.Literal, exp.Boolean, *_NEVER_NULL)):
            return False
        if isinstance(value, exp.Coalesce):
            return all(self._is_nullable(part, block) for part in (value.this, *value.expressions))
        if isinstance(value, exp.Cast) and not isinstance(value, exp.TryCast):
            return self._is_nullable(value.this, block)
        if isinstance(value, _OF_PARTS):
            return any(self._is_nullable(part, block) for part in value.iter_expressions())
        if isinstance(value, exp.Min | exp.Max) and not is_global(block):
            return self._is_nullable(value.this, block)
        if value in _not_null(block):
            return False
        return not isinstance(value, exp.Column) or self._is_nullable_column(value, block)

    def _is_nullable_column(self, column: exp.Column, block: exp.Select) -> bool:
        if column.table in _extended(block):
            return True
        if column.table in self._tables:
            return self._tables[column.table].schema.field(column.name).nullable
        source = next((source for source in syntax.sources_of(block) if source.alias == column.table), None)
        return source is None or self.can_be_null(source.this, column.name)

    # ---- keys ------------------------------------------------------------------------------------------------------

    def implies(self, query: exp.Expr, names: frozenset[str]) -> bool:
        """Return True if equal values of the outputs `names` mean one row of the query."""
        query = syntax.unwrapped(query)
        if isinstance(query, exp.SetOperation):
            side = query
            while isinstance(side, exp.SetOperation):
                side = syntax.unwrapped(side.this)
            is_distinct = bool(query.args.get("distinct")) and names >= {output.alias for output in side.expressions}
            return is_distinct or (not isinstance(query, exp.Union) and self.implies(query.this, names))
        assert isinstance(query, exp.Select)
        outputs = {output.alias: output.this for output in query.expressions}
        if is_global(query) or (query.args.get("distinct") and names >= set(outputs)):
            return True
        known = [outputs[name] for name in names]
        places, everything = self._determined(query, known)
        if is_aggregated(query):
            return not has_grouping_sets(query) and all(_is_known(key, known, places) for key in grouped_by(query))
        numbered = [value for value in known if isinstance(value, exp.Window) and isinstance(value.this, exp.RowNumber)]
        partitions = [window.args.get("partition_by") or [] for window in numbered]
        return everything or any(all(_is_known(part, known, places) for part in parts) for parts in partitions)

    def _determined(self, block: exp.Select, known: Sequence[exp.Expr]) -> tuple[set[Place], bool]:
        """Return the columns of FROM that the known values determine, and True if they determine one row of FROM."""
        places = {(value.table, value.name) for value in known if isinstance(value, exp.Column)}
        sources = {source.alias: source for source in syntax.sources_of(block)}
        fixed, steps = set[str](), list(_equalities(block))
        while True:
            before = len(places), len(fixed)
            for value, place in steps:
                if _is_known(value, known, places):
                    places.add(place)
            for alias, source in sources.items():
                mine = frozenset(name for of, name in places if of == alias)
                if alias not in fixed and self._is_key(alias, source, mine):
                    fixed.add(alias)
            places |= {(alias, name) for alias in fixed for name in self._columns(alias, sources[alias])}
            if (len(places), len(fixed)) == before:
                return places, fixed == set(sources)

    def _is_key(self, alias: str, source: exp.Expr, names: frozenset[str]) -> bool:
        if alias in self._tables:
            return names >= set(self._tables[alias].primary_key)
        return self.implies(source.this, names)

    def _columns(self, alias: str, source: exp.Expr) -> Iterator[str]:
        if alias in self._tables:
            yield from self._tables[alias].schema.names
            return
        query = syntax.unwrapped(source.this)
        while isinstance(query, exp.SetOperation):
            query = syntax.unwrapped(query.this)
        yield from (output.alias for output in query.expressions)


def _is_known(value: exp.Expr, known: Collection[exp.Expr], places: Collection[Place]) -> bool:
    """Return True if a value is known where these values and columns are."""
    if value in known:
        return True
    columns = list(syntax.columns(value))
    return not syntax.has_query(value) and all((column.table, column.name) in places for column in columns)


def _equalities(block: exp.Select) -> Iterator[tuple[exp.Expr, Place]]:
    """Yield values, each with a column that is equal to it in each row, or NULL where an outer join extends the row."""
    joins = syntax.joins_of(block)
    before = {source.alias for source in syntax.sources_of(block)} - {join.this.alias for join in joins}
    for join in joins:
        side, right = join.side, {join.this.alias}
        allowed = {"LEFT": right, "RIGHT": before, "FULL": set[str]()}.get(side, before | right)
        for part in syntax.conjuncts(join.args.get("on")) if not _is_extended_later(join, joins) else ():
            yield from (pair for pair in _pairs(part) if pair[1][0] in allowed)
        before = before | right
    for part in syntax.conjuncts(syntax.condition_of(block, "where")):
        yield from _pairs(part)


def _is_extended_later(join: exp.Join, joins: Sequence[exp.Join]) -> bool:
    """Return True if a later join extends rows of this one by NULLs, in which its condition does not hold."""
    place = next(at for at, other in enumerate(joins) if other is join)
    return any(other.side in ("RIGHT", "FULL") for other in joins[place + 1 :])


def _pairs(part: exp.Expr) -> Iterator[tuple[exp.Expr, Place]]:
    if isinstance(part, exp.EQ | exp.NullSafeEQ):
        for value, column in ((part.this, part.expression), (part.expression, part.this)):
            if isinstance(column, exp.Column):
                yield value, (column.table, column.name)


def _not_null(block: exp.Select) -> list[exp.Expr]:
    """Return the values that are not NULL in each row that WHERE lets through."""
    values: list[exp.Expr] = []
    for part in syntax.conjuncts(syntax.condition_of(block, "where")):
        if isinstance(part, exp.Not) and isinstance(part.this, exp.Is) and isinstance(part.this.expression, exp.Null):
            values.append(part.this.this)
        elif isinstance(part, _COMPARISONS):
            values += [part.this, part.expression]
    return values


def _extended(block: exp.Select) -> set[str]:
    """Return the sources whose columns an outer join can make NULL."""
    joins, extended = syntax.joins_of(block), set[str]()
    before = {source.alias for source in syntax.sources_of(block)} - {join.this.alias for join in joins}
    for join in joins:
        if join.side in ("LEFT", "FULL"):
            extended.add(join.this.alias)
        if join.side in ("RIGHT", "FULL"):
            extended |= before
        before = before | {join.this.alias}
    return extended
