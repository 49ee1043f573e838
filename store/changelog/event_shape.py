"""Shape of change events that are written to a table: the columns to write, the deletes, and partial rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import InvalidInput, SchemaMismatch
from epochlog.store.types.predicate import parse_predicate

from .change_rows import CHANGE_TYPE, DELETE, UPSERT

_PLACE = "_place"


@dataclass(frozen=True, slots=True)
class EventShape:
    """Shape of the rows of a sink, by the options of Spark's AUTO CDC. Picklable: Spark's tasks apply it."""

    deletes: str | None = None
    """Predicate over the columns of the rows; those for which it is true are deletes."""
    columns: tuple[str, ...] | None = None
    """Columns to write (None: all)."""
    without: tuple[str, ...] = ()
    """Columns to leave out."""
    partial: bool = False
    """Rows may lack columns, which keep their values."""
    ignore_nulls: bool = False
    """True if a null leaves a value as it is."""

    @property
    def updates(self) -> bool:
        """Return True if rows update columns, in place of replacing whole rows."""
        return self.partial or self.ignore_nulls

    def written(self, names: list[str]) -> list[str]:
        """Return the columns to write of rows with these columns. Raises SchemaMismatch for a listed one that they
        lack.
        """
        listed, given = (*(self.columns or ()), *self.without), set(names)
        missing = [name for name in listed if name not in given]
        if missing:
            raise SchemaMismatch(f"column {missing[0]!r} is listed, but the rows have {', '.join(names)}")
        chosen = given.intersection(names if self.columns is None else self.columns).difference(self.without)
        return [name for name in names if name in chosen]

    def apply(self, table: pa.Table) -> pa.Table:
        """Return rows with the columns to write, and with the column `_change_type` if some rows may be deletes."""
        names = self.written(table.column_names)
        if self.deletes is None:
            return table.select(names)
        if CHANGE_TYPE in table.column_names:
            raise InvalidInput(f"the rows have the column {CHANGE_TYPE}, so leave applyAsDeletes out")
        places = pa.array(np.arange(table.num_rows))
        passed = table.append_column(_PLACE, places).filter(parse_predicate(self.deletes, table.schema))
        deleted = np.zeros(table.num_rows, np.bool_)
        deleted[passed.column(_PLACE).to_numpy()] = True
        kinds = pc.if_else(pa.array(deleted), DELETE, UPSERT)
        return table.select(names).append_column(CHANGE_TYPE, kinds)


WHOLE_ROWS = EventShape()
"""Shape of rows that have all columns of the table, and of rows of a change feed."""
