"""Changes of a table's columns: columns to add, drop, rename and widen, and the schema that results (pure)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import accumulate
from typing import Any

import pyarrow as pa

from epochlog.errors import InvalidInput, InvalidSchema, LimitExceeded
from epochlog.store.types.column_types import stored_type
from epochlog.store.types.defaults import encoded_default
from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.schema import TableSchema
from epochlog.store.types.widening import WIDENINGS, is_old_widening, widened_type

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
    defaults: tuple[tuple[str, bytes], ...] = ()
    """Defaults of added columns, as (name, encoded value)."""

    @classmethod
    def of(
        cls, table: str, add: object, drop: object, rename: object, widen: object, defaults: object = None
    ) -> SchemaChange:
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
        values = _encoded_defaults(table, {field.name: field for field in fields}, {} if defaults is None else defaults)
        change = cls(tuple(fields), tuple(names), tuple(renamed.items()), tuple(types.items()), values)
        change._check(table)
        return change

    def __bool__(self) -> bool:
        return bool(self.add or self.drop or self.rename or self.widen)

    def _check(self, table: str) -> None:
        for field in self.add:
            if not field.nullable:
                raise InvalidSchema(
                    f"table {table!r}, column {field.name!r}: a column that is added is nullable, for the rows before "
                    "have no value; leave nullable=False out, and give a value for them with defaults={…}"
                )
        added = [field.name for field in self.add]
        for kind, names in (("added", added), ("dropped", list(self.drop))):
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise InvalidInput(f"table {table!r}: column {twice[0]!r} is {kind} twice")
        changed = {name for name, _ in (*self.rename, *self.widen)}
        both = sorted(changed.intersection(self.drop))
        if both:
            raise InvalidInput(f"table {table!r}: column {both[0]!r} is dropped, and renamed or widened too")

    @property
    def names_of_renames(self) -> set[str]:
        """Return the names before and after the renames."""
        return {name for pair in self.rename for name in pair}

    @property
    def reused(self) -> set[str]:
        """Return the names that the change takes from one column and gives to another."""
        taken = {*self.drop, *(old for old, new in self.rename if old != new)}
        return taken.intersection((*(field.name for field in self.add), *(new for _, new in self.rename)))

    def fingerprint(self, table_id: int, settings: object) -> bytes:
        """Return bytes that differ for different changes of columns and settings, and for different tables."""
        added = [
            (field.name, str(field.type), field.nullable, sorted((field.metadata or {}).items())) for field in self.add
        ]
        widened = sorted((name, str(kind)) for name, kind in self.widen)
        parts = table_id, added, sorted(self.drop), sorted(self.rename), widened, str(settings), *sorted(self.defaults)
        return sha256(repr(parts).encode()).digest()

    def applied(self, schema: TableSchema, created: int, *, again: bool) -> TableSchema | None:
        """Return the next version of an altered table's schema, whose `version` the caller sets; None if the table has
        the change already.

        A change that reuses a name could be made again by its repetition, and take values away; ignored, it could be
        one that was meant. So it raises InvalidInput while the table has it, unless the caller can tell it from a
        repetition (`again`). created: epoch of the table's creation: a clone has versions up to it that no alter of
        its own has made.
        """
        lineage = schema.lineage or (schema,)
        if not self.reused:
            pending = self._without_done(schema, lineage)
        else:
            pending = self
            if not again:
                self._refuse_repetition(lineage, created)
        if not pending:
            return None
        if len(lineage) >= MAX_VERSIONS:
            raise LimitExceeded(
                f"table {schema.name!r} was altered {MAX_VERSIONS - 1} times, which is the limit; copy it into another"
            )
        return pending._next(schema, lineage)

    def _refuse_repetition(self, lineage: tuple[TableSchema, ...], created: int) -> None:
        """Raise InvalidInput if an alter made this change, which reuses a name, and the table still has it."""
        names = self.reused
        owners = [_owners(version, names) for version in lineage]
        for place in range(len(lineage) - 1, 0, -1):
            after = lineage[place]
            if after.version <= created or owners[place] != owners[-1] or owners[place - 1] == owners[-1]:
                continue
            if self._yields(lineage[: place + 1]):
                raise InvalidInput(
                    f"table {after.name!r} has this change already, from epoch {show_epoch(after.version)}: leave it "
                    "out. To make it once more, pass txn=(application, id) with a new id to table.alter, which tells "
                    "it from a repetition"
                )

    def _yields(self, lineage: tuple[TableSchema, ...]) -> bool:
        """Return True if this change, the whole of it, yields the newest of these versions from the one before."""
        try:
            again = self._next(lineage[-2], lineage[:-1])
        except (InvalidInput, InvalidSchema):
            return False
        newest = lineage[-1]
        return (again.schema, again.ids, again.defaults) == (newest.schema, newest.ids, newest.defaults)

    def _without_done(self, schema: TableSchema, lineage: tuple[TableSchema, ...]) -> SchemaChange:
        """Return the change without the parts that earlier alters have made. A widened column has its present name."""
        columns = schema.schema
        ids, present = dict(zip(columns.names, schema.ids, strict=True)), set(schema.ids)
        newest = list(accumulate((max(version.ids) for version in lineage), max))  # ids rise from version to version

        def had(name: str) -> Iterator[int]:
            """Yield the ids of the columns that had the name."""
            places = ((version, version.schema.get_field_index(name)) for version in lineage)
            return (version.ids[place] for version, place in places if place >= 0)

        given, known = dict(self.defaults), dict(schema.defaults)

        def is_added(field: pa.Field) -> bool:
            if field.name not in ids or columns.field(field.name).type != stored_type(field.type):
                return False
            if known.get(ids[field.name]) != given.get(field.name):
                return False
            began = bisect_left(newest, ids[field.name])  # the version with which the column began
            return began > 0 and _owners(lineage[began], [field.name]) == {field.name: ids[field.name]}

        def is_dropped(name: str) -> bool:
            return name not in ids and any(id_ not in present for id_ in had(name))

        def is_renamed(old: str, new: str) -> bool:
            return old == new or (old not in ids and new in ids and ids[new] in had(old))

        def is_wide(name: str, kind: pa.DataType) -> bool:
            return name in ids and columns.field(name).type == stored_type(kind)

        renames = {old: new for old, new in self.rename if is_renamed(old, new)}
        widen = [(renames.get(name, name), kind) for name, kind in self.widen]
        added = tuple(field for field in self.add if not is_added(field))
        pending = {field.name for field in added}
        return SchemaChange(
            added,
            tuple(name for name in self.drop if not is_dropped(name)),
            tuple(pair for pair in self.rename if pair[0] not in renames),
            tuple(pair for pair in widen if not is_wide(*pair)),
            tuple(pair for pair in self.defaults if pair[0] in pending),
        )

    def _next(self, schema: TableSchema, lineage: tuple[TableSchema, ...]) -> TableSchema:
        table, columns, renamed, types = schema.name, schema.schema, dict(self.rename), dict(self.widen)
        present, dropped = set(columns.names), set(self.drop)
        for name in (*self.drop, *renamed, *types):
            if name not in present:
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
        kept = [(field, id_) for field, id_ in zip(columns, schema.ids, strict=True) if field.name not in dropped]
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
        added = dict(zip((field.name for field in self.add), range(free, free + len(self.add)), strict=True))
        defaults = *schema.defaults, *((added[name], value) for name, value in self.defaults)
        before = {field.name: field.type for field, _ in kept}
        new_kinds = (name for name, kind in types.items() if not is_old_widening(before[name], kind))
        return TableSchema(
            table,
            pa.schema([*fields, *self.add]),
            key,
            sequence_by,
            ids=ids,
            defaults=tuple(defaults),  # those of dropped columns too, which compaction keeps for older epochs
            evolved=schema.evolved or bool(self.defaults) or any(True for _ in new_kinds),
        )


def _owners(schema: TableSchema, names: Iterable[str]) -> dict[str, int]:
    """Return the field ids of the columns that have these names."""
    places = {name: schema.schema.get_field_index(name) for name in names}
    return {name: schema.ids[place] for name, place in places.items() if place >= 0}


def _encoded_defaults(table: str, added: Mapping[str, pa.Field], defaults: object) -> tuple[tuple[str, bytes], ...]:
    """Encode the defaults of added columns. Raises InvalidInput, and SchemaMismatch for a value of another type."""
    if not isinstance(defaults, Mapping):
        raise InvalidInput(f"table {table!r}: defaults is a dict {{new column: value}}, not {defaults!r}")
    for name, value in defaults.items():
        if name not in added:
            raise InvalidInput(
                f"table {table!r}: a default is for a column that this alter adds, and it does not add {name!r}; rows "
                "get a value there with upsert or update"
            )
        if value is None:
            raise InvalidInput(
                f"table {table!r}, column {name!r}: an added column is null without a default; leave it out"
            )
    fields = {name: field.with_type(stored_type(field.type)) for name, field in added.items()}
    return tuple((name, encoded_default(table, fields[name], value)) for name, value in defaults.items())


def _widened(table: str, field: pa.Field, types: Mapping[str, pa.DataType]) -> pa.DataType:
    if field.name not in types:
        return field.type
    kind = widened_type(field.type, stored_type(types[field.name]))
    if kind is None:
        raise InvalidInput(
            f"table {table!r}, column {field.name!r}: {field.type} cannot be widened to {types[field.name]}; "
            f"{WIDENINGS}"
        )
    return kind


def changed_ids(before: TableSchema, after: TableSchema) -> dict[int, str]:
    """Return the field ids of `before` that `after` drops or widens, each with that word."""
    types = dict(zip(after.ids, after.schema.types, strict=True))
    columns = zip(before.ids, before.schema.types, strict=True)
    return {id_: "widened" if id_ in types else "dropped" for id_, kind in columns if types.get(id_) != kind}


def is_extension(before: TableSchema, after: TableSchema, *, widened: bool = False) -> bool:
    """Return True if `after` only adds columns to `before`: a reader with the columns of `before` can go on. widened:
    allow wider types too, for writers.
    """
    columns = dict(zip(after.ids, after.schema, strict=True))
    return all(
        id_ in columns and columns[id_].name == field.name and (widened or columns[id_].type == field.type)
        for id_, field in zip(before.ids, before.schema, strict=True)
    )


def extended(schema: TableSchema, start: int, until: int, *, widened: bool = False) -> TableSchema:
    """Return the schema in force at `start` with the columns that alters through `until` add, up to the first alter
    that does more. widened: with the wider types too.
    """
    chosen = schema.at(start)
    for version in schema.lineage:
        if start < version.version <= until:
            if not is_extension(chosen, version, widened=widened):
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
