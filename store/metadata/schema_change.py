"""Changes of a table's columns: columns to add, drop, rename and widen, and the schema that results (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from epochlog.errors import InvalidInput, InvalidSchema, LimitExceeded
from epochlog.store.types.column_types import fits_always, stored_type
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.schema import TableSchema

MAX_VERSIONS = 256
"""Most versions of one table's schema. All of them are kept, and a plan of a read has them."""

_T = pa.types


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """Columns to add, drop, rename and widen, all named as they are before the change.

    Raises InvalidInput, InvalidSchema.
    """

    add: tuple[pa.Field, ...] = ()
    drop: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    widen: tuple[tuple[str, pa.DataType], ...] = ()

    @classmethod
    def of(cls, table: str, add: object, drop: object, rename: object, widen: object) -> SchemaChange:
        """Check the arguments of `alter`; None and empty ones request nothing."""
        fields: Any = () if add is None else add
        if not isinstance(fields, Sequence | pa.Schema) or not all(isinstance(field, pa.Field) for field in fields):
            raise InvalidInput(f"table {table!r}: add is a list of pyarrow fields, [pa.field(name, type)], not {add!r}")
        names = () if drop is None else drop
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
            raise InvalidInput(f"table {table!r}: drop is a list of column names, not {drop!r}")
        renamed = {} if rename is None else rename
        if not isinstance(renamed, Mapping) or not all(isinstance(n, str) for pair in renamed.items() for n in pair):
            raise InvalidInput(f"table {table!r}: rename is a dict {{old name: new name}}, not {rename!r}")
        types = {} if widen is None else widen
        if not isinstance(types, Mapping) or not all(
            isinstance(name, str) and isinstance(kind, pa.DataType) for name, kind in types.items()
        ):
            raise InvalidInput(f"table {table!r}: widen is a dict {{column: pyarrow type}}, not {widen!r}")
        change = cls(tuple(fields), tuple(names), tuple(renamed.items()), tuple(types.items()))
        change._check(table)
        return change

    def __bool__(self) -> bool:
        return bool(self.add or self.drop or self.rename or self.widen)

    def _check(self, table: str) -> None:
        for field in self.add:
            if not field.nullable:
                raise InvalidSchema(
                    f"table {table!r}, column {field.name!r}: a column that is added is nullable, for the rows before "
                    "have no value; leave nullable=False out"
                )
        added = [field.name for field in self.add]
        for kind, names in (("added", added), ("dropped", list(self.drop))):
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise InvalidInput(f"table {table!r}: column {twice[0]!r} is {kind} twice")
        changed = {name for name, _ in (*self.rename, *self.widen)}
        both = sorted(changed.intersection(self.drop))
        if both:
            raise InvalidInput(f"table {table!r}: column {both[0]!r} is dropped, and renamed or widened too")

    def changed_ids(self, schema: TableSchema) -> dict[int, str]:
        """Return the field ids that the change drops or widens, each with that word."""
        ids = dict(zip(schema.schema.names, schema.ids, strict=True))
        dropped = {ids[name]: "dropped" for name in self.drop if name in ids}
        wide = ((name, kind) for name, kind in self.widen if name in ids)
        return dropped | {ids[name]: "widened" for name, kind in wide if schema.schema.field(name).type != kind}

    @property
    def names_of_renames(self) -> set[str]:
        """Return the names before and after the renames."""
        return {name for pair in self.rename for name in pair}

    @property
    def reused(self) -> set[str]:
        """Return the names that the change takes from one column and gives to another."""
        taken = {*self.drop, *(old for old, new in self.rename if old != new)}
        return taken.intersection((*(field.name for field in self.add), *(new for _, new in self.rename)))

    def applied(self, schema: TableSchema, created: int, newest: int) -> TableSchema | None:
        """Return the next version of an altered table's schema, whose `version` the caller sets; None if the table has
        the change already. created: epoch of the table's creation: a clone has versions up to it that no alter of its
        own has made. newest: epoch of the table's newest commit.

        A change that reuses a name could be made again by its repetition, and take values away. So it has no effect as
        a retry, before the next commit, and raises InvalidInput later.
        """
        lineage = schema.lineage or (schema,)
        altered = schema.version > created
        if altered and len(lineage) > 1 and (newest == schema.version or not self.reused) and self._made(lineage):
            return None
        if self.reused:
            self._refuse_repetition(lineage, created)
        pending = self if self.reused else self._without_done(schema, lineage)
        if not pending:
            return None
        if len(lineage) >= MAX_VERSIONS:
            raise LimitExceeded(
                f"table {schema.name!r} was altered {MAX_VERSIONS - 1} times, which is the limit; copy it into another"
            )
        return pending._next(schema, lineage)

    def _refuse_repetition(self, lineage: tuple[TableSchema, ...], created: int) -> None:
        """Raise InvalidInput if an alter made this change, which reuses a name, and the table still has it."""
        now = self._ids_of_reused(lineage[-1])
        for place in range(len(lineage) - 1, 0, -1):
            before, after = lineage[place - 1 : place + 1]
            if after.version <= created or self._ids_of_reused(after) != now or self._ids_of_reused(before) == now:
                continue
            if self._made(lineage[: place + 1]):
                raise InvalidInput(
                    f"table {after.name!r} has this change already, from epoch {show_epoch(after.version)}: leave it "
                    f"out. To make it again, first rename or drop {min(self.reused)!r} in an alter of its own"
                )

    def _ids_of_reused(self, schema: TableSchema) -> dict[str, int]:
        places = {name: schema.schema.get_field_index(name) for name in self.reused}
        return {name: schema.ids[place] for name, place in places.items() if place >= 0}

    def _made(self, lineage: tuple[TableSchema, ...]) -> bool:
        """Return True if this change, the whole of it, made the newest of these versions."""
        try:
            again = self._next(lineage[-2], lineage[:-1])
        except (InvalidInput, InvalidSchema):
            return False
        return again.schema == lineage[-1].schema and again.ids == lineage[-1].ids

    def _without_done(self, schema: TableSchema, lineage: tuple[TableSchema, ...]) -> SchemaChange:
        """Return the change without the parts that earlier alters have made."""
        columns = schema.schema
        ids = dict(zip(columns.names, schema.ids, strict=True))

        def had_name(name: str, of: int | None = None) -> bool:
            """Return True if a column, or the one with the id `of`, had the name in any version."""
            places = ((version, version.schema.get_field_index(name)) for version in lineage)
            return any(at >= 0 and of in (None, version.ids[at]) for version, at in places)

        def is_added(field: pa.Field) -> bool:
            kind = stored_type(field.type)
            had = field.name in ids and ids[field.name] not in lineage[0].ids
            return had and columns.field(field.name).type == kind

        def is_renamed(old: str, new: str) -> bool:
            return old == new or (old not in ids and new in ids and had_name(old, ids[new]))

        def is_wide(name: str, kind: pa.DataType) -> bool:
            return name in ids and columns.field(name).type == kind

        return SchemaChange(
            tuple(field for field in self.add if not is_added(field)),
            tuple(name for name in self.drop if name in ids or not had_name(name)),
            tuple(pair for pair in self.rename if not is_renamed(*pair)),
            tuple(pair for pair in self.widen if not is_wide(*pair)),
        )

    def _next(self, schema: TableSchema, lineage: tuple[TableSchema, ...]) -> TableSchema:
        table, columns, renamed, types = schema.name, schema.schema, dict(self.rename), dict(self.widen)
        for name in (*self.drop, *renamed, *types):
            if name not in columns.names:
                raise InvalidInput(f"table {table!r} has no column {name!r}; it has {columns.names}")
        for name in (*self.drop, *types):
            if name in schema.primary_key:
                raise InvalidInput(
                    f"table {table!r}, column {name!r}: a column of the primary key can only be renamed, for files are "
                    "sorted by it"
                )
            if name == schema.sequence_by:
                raise InvalidInput(
                    f"table {table!r}, column {name!r}: the sequence can only be renamed, for changes that arrive late "
                    "are compared with it"
                )
        kept = [(field, id_) for field, id_ in zip(columns, schema.ids, strict=True) if field.name not in self.drop]
        fields = [
            field.with_name(renamed.get(field.name, field.name)).with_type(_widened(table, field, types))
            for field, _ in kept
        ]
        names = {field.name: field.type for field in fields}
        for field in self.add:
            if field.name in names:
                raise InvalidSchema(
                    f"table {table!r} has a column {field.name!r} already, of type {names[field.name]}; widen= changes "
                    "its type, and an added column needs another name"
                )
        free = max(id_ for version in lineage for id_ in version.ids) + 1
        ids = (*(id_ for _, id_ in kept), *range(free, free + len(self.add)))
        key = tuple(renamed.get(name, name) for name in schema.primary_key)
        sequence_by = None if schema.sequence_by is None else renamed.get(schema.sequence_by, schema.sequence_by)
        return TableSchema(table, pa.schema([*fields, *self.add]), key, sequence_by, ids=ids)


def _widened(table: str, field: pa.Field, types: Mapping[str, pa.DataType]) -> pa.DataType:
    kind = types.get(field.name, field.type)
    if kind == field.type:
        return kind
    numbers = (_T.is_integer, _is_wide_float, _is_decimal)
    same_scale = not _T.is_decimal(kind) or not _T.is_decimal(field.type) or kind.scale == field.type.scale
    if (
        any(is_kind(kind) and is_kind(field.type) for is_kind in numbers)
        and same_scale
        and fits_always(field.type, kind)
    ):
        return kind
    raise InvalidInput(
        f"table {table!r}, column {field.name!r}: {field.type} cannot be widened to {kind}; integers and floats take a "
        "wider type, decimals a greater precision"
    )


def _is_wide_float(kind: pa.DataType) -> bool:
    return _T.is_floating(kind) and not _T.is_float16(kind)


def _is_decimal(kind: pa.DataType) -> bool:
    return _T.is_decimal128(kind) or _T.is_decimal256(kind)


def is_extension(before: TableSchema, after: TableSchema) -> bool:
    """Return True if `after` only adds columns to `before`: a reader with the columns of `before` can go on."""
    columns = dict(zip(after.ids, after.schema, strict=True))
    return all(
        id_ in columns and columns[id_].name == field.name and columns[id_].type == field.type
        for id_, field in zip(before.ids, before.schema, strict=True)
    )


def extended(schema: TableSchema, start: int, until: int) -> TableSchema:
    """Return the schema in force at `start` with the columns that alters through `until` add, up to the first alter
    that does more.
    """
    chosen = schema.at(start)
    for version in schema.lineage:
        if start < version.version <= until:
            if not is_extension(chosen, version):
                break
            chosen = version
    return chosen.with_lineage(schema.lineage)


def first_unreadable(schema: TableSchema, epochs: Sequence[int]) -> int | None:
    """Return the first alter of the table by which a change at one of these epochs (rising) has columns that a reader
    with this schema cannot continue with; None if there is none.
    """
    newest = epochs[-1] if epochs else 0
    later = (version for version in schema.lineage if schema.version < version.version <= newest)
    return next((version.version for version in later if not is_extension(schema, version)), None)


def next_version(schema: TableSchema, lineage: tuple[TableSchema, ...], epoch: int) -> TableSchema:
    """Return the schema that `SchemaChange.applied` made as the version of an epoch, with the new lineage."""
    version = replace(schema, version=epoch)
    return version.with_lineage((*lineage, version))
