"""Settings of a table: options, changelog, drop_unchanged and checks, chosen at its creation and alterable later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa

from epochlog.errors import InvalidInput
from epochlog.store.types.epoch import show_span
from epochlog.store.types.predicate import parse_predicate
from epochlog.store.types.schema import TableSchema, check_name

from .definitions import TableDef
from .table_options import TableOptions

CHANGELOGS = ("upsert", "full")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that a caller requests; None: not requested."""

    options: TableOptions | None = None
    changelog: str | None = None
    drop_unchanged: bool | None = None
    checks: Mapping[str, str] | None = None

    def check(self, table: str, *, derived: bool, schema: TableSchema | None = None) -> None:
        """Raise InvalidInput unless a table can have these settings. derived: True for an output of a job. schema: of a
        root table, whose columns checks may name.
        """
        if self.changelog is not None and self.changelog not in CHANGELOGS:
            raise InvalidInput(f"table {table!r}: changelog must be one of {CHANGELOGS}, not {self.changelog!r}")
        if self.options is not None and not isinstance(self.options, TableOptions):
            raise InvalidInput(f"table {table!r}: options must be epochlog.TableOptions, not {self.options!r}")
        if derived and self.options is not None and self.options.ttl is not None:
            raise InvalidInput(
                f"table {table!r} is an output of a job, whose rows are those of its query: a ttl is for root tables. "
                "Give the upstream one, or leave out old rows in the query"
            )
        if self.drop_unchanged is not None and not isinstance(self.drop_unchanged, bool):
            raise InvalidInput(f"table {table!r}: drop_unchanged must be True or False, not {self.drop_unchanged!r}")
        if self.drop_unchanged is not None and not derived:
            raise InvalidInput(
                f"table {table!r} is a root table, whose commits keep all rows; leave drop_unchanged out, it is for "
                "outputs of jobs"
            )

        if self.checks is not None:
            _check_checks(table, None if derived else schema, self.checks)

    def check_columns(self, schema: TableSchema) -> None:
        """Raise InvalidInput unless the schema has the column that the options name, with a time or a date.

        A table with a sequence has no ttl: deletes of its rows carry sequences.
        """
        column = None if self.options is None else self.options.ttl_column
        if column is None:
            return
        if schema.sequence_by is not None:
            raise InvalidInput(
                f"table {schema.name!r} orders its changes by a sequence, so it has no ttl: delete old rows with their "
                "sequences"
            )
        if column not in schema.schema.names:
            raise InvalidInput(
                f"table {schema.name!r} has no column {column!r} for its ttl; it has {schema.schema.names}"
            )
        kind = schema.schema.field(column).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise InvalidInput(
                f"table {schema.name!r}: the ttl needs a column with a timestamp or a date; {column!r} has {kind}"
            )

    def of(self, table: TableDef, newest: int) -> TableDef:
        """Return the definition of the table with these settings. newest: the table's newest commit."""
        after = replace(
            table,
            options=table.options if self.options is None else self.options,
            drop_unchanged=table.drop_unchanged if self.drop_unchanged is None else self.drop_unchanged,
            checks=table.checks if self.checks is None else tuple(self.checks.items()),
        )
        if self.changelog is None or self.changelog == table.changelog:
            return after
        return replace(after, changelog=self.changelog, full_since=newest if self.changelog == "full" else None)


def _check_checks(table: str, schema: TableSchema | None, checks: object) -> None:
    """Raise InvalidInput unless a table of this schema can have these checks. schema: None for an output of a job."""
    if not isinstance(checks, Mapping):
        raise InvalidInput(f"table {table!r}: checks must be a dict {{name: condition}}, not {checks!r}")
    if schema is None:
        raise InvalidInput(
            f"table {table!r} is the output of a job, whose refresh decides its rows; checks are for root tables"
        )
    for name, text in checks.items():
        check_name("check", name)
        if not isinstance(text, str) or not text.strip():
            raise InvalidInput(f"table {table!r}: check {name!r} must be a condition such as 'cents >= 0'")
        parse_predicate(text, schema.schema)


def show_option(value: object, other: object = None) -> str:
    """Format the value of an option; None is that of a history without a retention of its own. A duration is shown in
    milliseconds if `other`, another duration, would look equal.
    """
    if value is None:
        return "auto"
    if not isinstance(value, timedelta):
        return str(value)
    ms = value // timedelta(milliseconds=1)
    looks_equal = isinstance(other, timedelta) and show_span(other // timedelta(milliseconds=1)) == show_span(ms)
    return f"{ms:,} ms" if looks_equal else show_span(ms)
