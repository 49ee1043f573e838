"""Settings of a table that are chosen when it is made and can be altered: options, changelog and drop_unchanged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

from epochlog.errors import InvalidInput
from epochlog.store.types.epoch import show_span

from .definitions import TableDef, TableOptions

CHANGELOGS = ("upsert", "full")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings as somebody asks for them; what is None was not asked for."""

    options: TableOptions | None = None
    changelog: str | None = None
    drop_unchanged: bool | None = None

    def check(self, table: str, *, derived: bool) -> None:
        """Raise InvalidInput unless a table can have these settings; `derived`: it is the output of a job."""
        if self.changelog is not None and self.changelog not in CHANGELOGS:
            raise InvalidInput(f"table {table!r}: changelog must be one of {CHANGELOGS}, not {self.changelog!r}")
        if self.options is not None and not isinstance(self.options, TableOptions):
            raise InvalidInput(f"table {table!r}: options must be epochlog.TableOptions, not {self.options!r}")
        if self.drop_unchanged is not None and not isinstance(self.drop_unchanged, bool):
            raise InvalidInput(f"table {table!r}: drop_unchanged must be True or False, not {self.drop_unchanged!r}")
        if self.drop_unchanged is not None and not derived:
            raise InvalidInput(
                f"table {table!r} is a root table, whose commits keep all that is written; drop_unchanged is for "
                "outputs of jobs"
            )

    def of(self, table: TableDef, newest: int) -> TableDef:
        """Return the table with these settings from now on; `newest` is its newest commit."""
        after = replace(
            table,
            options=table.options if self.options is None else self.options,
            drop_unchanged=table.drop_unchanged if self.drop_unchanged is None else self.drop_unchanged,
        )
        if self.changelog is None or self.changelog == table.changelog:
            return after
        return replace(after, changelog=self.changelog, full_since=newest if self.changelog == "full" else None)


def show_option(value: object, unlike: object = None) -> str:
    """Tell an option's value; a length of time in milliseconds where `unlike`, another length, would read alike."""
    if not isinstance(value, timedelta):
        return str(value)
    ms = value // timedelta(milliseconds=1)
    alike = isinstance(unlike, timedelta) and show_span(unlike // timedelta(milliseconds=1)) == show_span(ms)
    return f"{ms:,} ms" if alike else show_span(ms)
