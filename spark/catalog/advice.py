"""Errors of statements that a table of a catalog does not take: each says what to write instead (pure)."""

from __future__ import annotations

from epochlog.errors import InvalidInput, NotWritable
from epochlog.spark.column_names import quoted
from epochlog.store.types.schema import TableSchema


def unknown_condition(label: str, table: TableSchema, condition: str) -> InvalidInput:
    """Return the error of a DELETE whose condition is not evaluated. label: the table's name in the catalog."""
    columns = ", ".join(name if name.isidentifier() else quoted(name) for name in table.delete_columns)
    return InvalidInput(
        f"DELETE FROM {label} cannot evaluate {condition}: write it with comparisons, IN, LIKE 'text%', IS NULL, AND, "
        "OR and NOT, or delete the keys of a query, in one commit: "
        f"store.table({table.name!r}).delete(spark.sql('SELECT {columns} FROM {label} WHERE …').toArrow())"
    )


def no_merge(label: str, name: str) -> NotWritable:
    """Return the error of an UPDATE and a MERGE. label: the table's name in the catalog."""
    return NotWritable(
        f"{name!r} takes neither UPDATE nor MERGE: INSERT INTO {label} SELECT … replaces the rows that have the key of "
        "a new row, so select all columns, with the new values; DELETE FROM … WHERE … deletes. "
        f"{_in_one_commit(name)}"
    )


def no_replace(label: str, name: str) -> NotWritable:
    """Return the error of an overwrite of those rows that pass a condition, or meet the new ones."""
    return NotWritable(
        f"{label} replaces rows by their key, or all rows: INSERT INTO {label} SELECT … replaces the rows that have "
        f"the key of a new row, INSERT OVERWRITE all rows. {_in_one_commit(name)}"
    )


def no_like() -> NotWritable:
    """Return the error of a table that is made like another one, which gives it no key."""
    return NotWritable("CREATE TABLE … LIKE has no primary key: write CREATE TABLE … TBLPROPERTIES (primary_key = …)")


def no_partitions(label: str) -> NotWritable:
    """Return the error of an overwrite of partitions."""
    return NotWritable(
        f"{label} has no partitions, so there are none to overwrite: frame.writeTo({label!r}).append() replaces the "
        f"rows that have the key of a new row, frame.writeTo({label!r}).overwrite(F.lit(True)) all rows, and so does "
        "INSERT OVERWRITE with spark.sql.sources.partitionOverwriteMode=static"
    )


def case_twins(label: str, table: TableSchema, name: str) -> InvalidInput | None:
    """Return the error of a statement that names a column for which another one differs by case alone; None if there is
    none. label: the table's name in the catalog.
    """
    twins = [column for column in table.schema.names if column.lower() == name.lower()]
    if len(twins) < 2:
        return None
    return InvalidInput(
        f"{label} has the columns {' and '.join(map(repr, twins))}, which Spark takes for one name. Set "
        "spark.sql.caseSensitive to true in this session (spark.conf.set('spark.sql.caseSensitive', 'true')), give "
        f"each column another name in the statement (FROM {label} AS t(c1, c2, …)), or rename all but one of them: "
        f"store.table({table.name!r}).alter(rename={{{twins[-1]!r}: '…'}})"
    )


def _in_one_commit(name: str) -> str:
    return (
        "To replace some rows and delete others in one commit, write a frame with the column _change_type, 'delete' or "
        f"'upsert': frame.write.format('epochlog').options(path='…', table={name!r}).mode('append').save()"
    )
