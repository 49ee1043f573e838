"""What of a table can be chosen when it is made and changed later: its options, its changelog, and drop_unchanged."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import InvalidInput
from .definitions import TableDef, TableOptions

CHANGELOGS = ("upsert", "full")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings as somebody asks for them; what is None was not asked for."""

    options: TableOptions | None = None
    changelog: str | None = None
    drop_unchanged: bool | None = None

    def check(self, table: str, *, derived: bool) -> None:
        """InvalidInput unless such a table, which is the output of a job (`derived`) or not, can have them."""
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
        """The table with these settings from now on; `newest` is its newest commit."""
        after = replace(
            table,
            options=table.options if self.options is None else self.options,
            drop_unchanged=table.drop_unchanged if self.drop_unchanged is None else self.drop_unchanged,
        )
        if self.changelog is None or self.changelog == table.changelog:
            return after
        return replace(after, changelog=self.changelog, full_since=newest if self.changelog == "full" else None)
