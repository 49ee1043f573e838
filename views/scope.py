"""Names that the expressions of a block can use: sources, columns of FROM in their order, and those merged by USING."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from epochlog.errors import InvalidInput

from . import syntax


@dataclass(frozen=True, slots=True)
class FromSource:
    """Source of a block: its name in the text, its alias in the normal form, its columns, and those of its key."""

    name: str
    alias: str
    columns: Sequence[str]
    key: Sequence[str]
    by_lower_case: dict[str, list[str]] = field(init=False)
    """Columns by their names without case."""

    def __post_init__(self) -> None:
        by_lower_case: dict[str, list[str]] = {}
        for name in self.columns:
            by_lower_case.setdefault(name.lower(), []).append(name)
        object.__setattr__(self, "by_lower_case", by_lower_case)

    def column(self, name: str) -> exp.Column | None:
        """Return the column of this name; None if there is none. Raises InvalidInput for a name that several have."""
        matches = self.by_lower_case.get(name.lower(), [])
        if len(matches) > 1:
            raise case_twins(self.name, matches)
        return syntax.column(self.alias, matches[0]) if matches else None


@dataclass(frozen=True, slots=True)
class FromColumn:
    """Column of FROM: its name, the name of its source, and the source's alias; of a merged column, its value alone."""

    name: str
    source: str = ""
    alias: str = ""
    merged: exp.Expr | None = None

    @property
    def value(self) -> exp.Expr:
        return syntax.column(self.alias, self.name) if self.merged is None else self.merged


@dataclass(slots=True)
class Scope:
    """Names of a block."""

    outer: Scope | None
    sources: list[FromSource] = field(default_factory=list)
    columns: list[FromColumn] = field(default_factory=list)
    """Columns that `*` gives, in order."""
    hidden: list[FromColumn] = field(default_factory=list)
    """Columns of USING that only their source's name gives."""
    by_lower_case: dict[str, list[FromColumn]] = field(init=False)
    """The columns by their names without case."""

    def __post_init__(self) -> None:
        self._set_columns(self.columns)

    def _set_columns(self, columns: list[FromColumn]) -> None:
        self.columns, self.by_lower_case = columns, {}
        for column in columns:
            self.by_lower_case.setdefault(column.name.lower(), []).append(column)

    def copy(self) -> Scope:
        return Scope(self.outer, list(self.sources), list(self.columns), list(self.hidden))

    def add(self, source: FromSource) -> None:
        """Add a source, whose columns come behind the others."""
        self.sources.append(source)
        self._set_columns([*self.columns, *_columns_of(source)])

    def merge(self, source: FromSource, names: Sequence[str], kind: str, past: Callable[[str], str]) -> list[exp.Expr]:
        """Add a source that is joined with USING; return the conditions of the join.

        The merged columns come first, then the others of the left side, then those of the source. past: tells of a
        column that a table had.
        """
        merged: list[FromColumn] = []
        pairs: list[tuple[FromColumn, FromColumn]] = []
        right = _columns_of(source)
        by_name = {column.name.lower(): column for column in reversed(right)}
        for name in names:
            left_column, right_column = self.find(name), by_name.get(name.lower())
            if left_column is None or right_column is None:
                raise InvalidInput(f"USING ({name}): both sides of the join must have the column{past(name)}")
            pairs.append((left_column, right_column))
            both = exp.Coalesce(this=left_column.value.copy(), expressions=[right_column.value.copy()])
            chosen = {"RIGHT": right_column, "FULL": FromColumn(left_column.name, merged=both)}
            merged.append(chosen.get(kind, left_column))
        kept = set(map(id, merged))
        lost = [column for pair in pairs for column in pair if id(column) not in kept]
        self.hidden = [column for column in lost if column.source] + self.hidden
        used = {id(column) for pair in pairs for column in pair}
        self._set_columns(merged + [column for column in [*self.columns, *right] if id(column) not in used])
        self.sources.append(source)
        return [exp.EQ(this=left.value.copy(), expression=right.value.copy()) for left, right in pairs]

    def put_first(self, names: Sequence[str]) -> None:
        """Put the columns of a SEMI or ANTI join's USING before the others."""
        first = [column for name in names if (column := self.find(name)) is not None]
        self._set_columns(first + [column for column in self.columns if column not in first])

    def find(self, name: str) -> FromColumn | None:
        """Return the column of this name. Raises InvalidInput for a name that several columns have."""
        matches = self.by_lower_case.get(name.lower(), [])
        if len(matches) > 1:
            if len({match.alias for match in matches}) == 1:
                raise case_twins(matches[0].source, [match.name for match in matches])
            raise InvalidInput(f"the column {name!r} is ambiguous: write the table's name before it")
        return matches[0] if matches else None

    def find_in(self, table: str, name: str) -> tuple[bool, exp.Expr | None]:
        """Return True if a source has the name `table`, and its column; None if it has no such column."""
        sources = [source for source in self.sources if source.name.lower() == table.lower()]
        if len(sources) > 1:
            raise InvalidInput(f"the table name {table!r} is ambiguous: give each occurrence an alias")
        return bool(sources), sources[0].column(name) if sources else None

    def star(self, node: exp.Expr) -> list[exp.Expr]:
        """Return the outputs that `*` or `table.*` stands for, in Spark's order."""
        star = node if isinstance(node, exp.Star) else node.this
        extra = [clause for clause, value in star.args.items() if value and clause != "except_"]
        if extra:
            raise InvalidInput(f"a view cannot have {star.sql(syntax.DIALECT)}")
        columns = self.columns
        if isinstance(node, exp.Column):
            if not self.find_in(node.table, "")[0]:
                raise InvalidInput(f"{node.sql(syntax.DIALECT)} names no source of its block")
            columns = [c for c in [*self.hidden, *self.columns] if c.source.lower() == node.table.lower()]
        left_out = {column.name.lower() for column in star.args.get("except_") or []}
        for name in left_out:
            twins = [column for column in columns if column.name.lower() == name]
            if len(twins) > 1 and len({column.alias for column in twins}) == 1:
                raise case_twins(twins[0].source, [column.name for column in twins])
        # A stored view does not read the columns that it leaves out: its tables need not have them any more.
        return [syntax.named(c.value, c.name) for c in columns if c.name.lower() not in left_out]


def sources_in(scope: Scope) -> dict[str, Sequence[str]]:
    """Return the columns that can be read in a scope, by the names of its sources; an inner name hides an outer one."""
    outer = {} if scope.outer is None else sources_in(scope.outer)
    return {**outer, **{source.name: source.columns for source in scope.sources}}


def _columns_of(source: FromSource) -> list[FromColumn]:
    return [FromColumn(name, source.name, source.alias) for name in source.columns]


def case_twins(table: str, names: Sequence[str]) -> InvalidInput:
    """Return the error of a name that several columns of one source have, in upper and lower case."""
    listed = " and ".join(map(repr, dict.fromkeys(names)))
    return InvalidInput(
        f"{table!r} has the columns {listed}, which a query takes for one name: rename all but one of them, those of a "
        f"table by store.table('…').alter(rename={{{names[-1]!r}: '…'}})"
    )
