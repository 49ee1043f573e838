"""Test of the dates of a column before it is widened to timestamps that hold fewer years than dates do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from epochlog.errors import InvalidInput
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_table
from epochlog.store.metadata.schema_change import SchemaChange
from epochlog.store.retention.stale_reads import retry_stale_plan
from epochlog.store.scan.scan_plan import plan_scan
from epochlog.store.types.casting import Unfit, cast_values
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.widening import loses_dates

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


def require_dates_fit(handle: Handle, table: TableDef, change: SchemaChange) -> int | None:
    """Raise InvalidInput if a newest row has a date that a widened column cannot hold. Return the newest commit, which
    must still be the newest when the change takes effect; None for a change that widens no dates to such timestamps.
    """
    wide = dict(change.widen)
    if not wide:
        return None

    def test() -> int | None:
        plan = handle.catalog.read(lambda view: plan_scan(view, get_table(view, table.id, table.name), None))
        schema = plan.table.schema
        types = {field.name: field.type for field in schema}
        tested = [name for name in wide if name in types and loses_dates(types[name], wide[name])]
        if not tested:
            return None
        names = [*plan.table.primary_key, *tested]
        for batch in plan.batches(handle.files, ReadOptions(names)):
            for name in tested:
                try:
                    cast_values(pa.chunked_array([batch.column(name)]), wide[name])
                except Unfit as unfit:
                    key = [batch.column(column)[unfit.row].as_py() for column in plan.table.primary_key]
                    raise InvalidInput(
                        f"table {table.name!r}, column {name!r}: the date of the row with the key "
                        f"{key[0] if len(key) == 1 else tuple(key)!r} does not fit {wide[name]}; widen it to "
                        "timestamp('ms') or timestamp('s'), which hold every date"
                    ) from None
        return plan.epoch

    return retry_stale_plan(handle, test)
