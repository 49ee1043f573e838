"""Options of a sink for change events, by the names of Spark's AUTO CDC (`create_auto_cdc_flow`)."""

from __future__ import annotations

from epochlog.errors import InvalidInput
from epochlog.store.changelog.event_shape import EventShape
from epochlog.store.types.schema import TableSchema

from .options import Options, bool_option, names_option, text_option


def parse_event_shape(options: Options, *, overwrite: bool) -> EventShape:
    """Parse the options that say how events apply. Raises InvalidInput for options that do not go together."""
    shape = EventShape(
        deletes=text_option(options, "applyAsDeletes"),
        columns=names_option(options, "columnList"),
        without=names_option(options, "exceptColumnList") or (),
        partial=bool_option(options, "partial", False),
        ignore_nulls=bool_option(options, "ignoreNullUpdates", False),
    )
    if shape.columns is not None and shape.without:
        raise InvalidInput(
            "columnList and exceptColumnList do not go together: name the columns, or those to leave out"
        )
    if text_option(options, "storedAsScdType") not in (None, "1"):
        raise InvalidInput(
            "storedAsScdType: a table has the newest row of each key (1); read older ones from its change feed, or "
            "with versionAsOf"
        )
    if overwrite and shape.updates:
        raise InvalidInput(
            "overwrite replaces all rows of the table, so it takes neither partial nor ignoreNullUpdates; write in "
            "mode append"
        )
    if shape.updates and bool_option(options, "mergeSchema", False):
        raise InvalidInput(
            "mergeSchema takes whole rows, so it does not go with partial or ignoreNullUpdates; add the columns first "
            "with ALTER TABLE … ADD COLUMN or table.alter(add=…), and leave mergeSchema out"
        )
    return shape


def check_event_options(options: Options, table: TableSchema, shape: EventShape) -> None:
    """Raise InvalidInput if the options contradict the table: key and sequence are chosen when a table is created."""
    keys, sequence_by = names_option(options, "keys"), text_option(options, "sequenceBy")
    if keys is not None and set(keys) != set(table.primary_key):
        raise InvalidInput(
            f"table {table.name}: its primary key is {', '.join(table.primary_key)}, not {', '.join(keys)}"
        )
    if sequence_by is not None and sequence_by != table.sequence_by:
        actual = "it has no sequence" if table.sequence_by is None else f"its sequence is {table.sequence_by}"
        raise InvalidInput(
            f"table {table.name}: {actual}, not {sequence_by}; create a table with sequence_by={sequence_by!r}"
        )
    if shape.updates and table.sequence_by is not None:
        raise InvalidInput(
            f"table {table.name}: a table with a sequence takes whole rows, neither partial nor ignoreNullUpdates; "
            "keep columns with partial events in a table of their own"
        )
