"""Refusal of `CREATE TABLE t (…) USING epochlog` in Spark's own catalog, before PySpark passes the statement on.

Spark 4.3 asks a Python source nothing while it creates a table whose columns the statement has: V2SessionCatalog takes
the columns from the statement, and PythonDataSourceV2 infers no partitions. So no code of the source could refuse it,
and the table would have columns, and no options with which to read any row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from epochlog.errors import InvalidInput

from .options import NO_CATALOG

SPARK_CATALOG = "spark_catalog"
_QUOTED = r"`(?:[^`]|``)*`"
_PART = rf"(?:{_QUOTED}|[\w$]+)"
NAME = rf"{_PART}(?:\s*\.\s*{_PART})*"
_SKIPPED = re.compile(rf"(?P<kept>{_QUOTED})|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""Parts of a statement that may contain any word: texts and comments. A quoted name is kept."""
_CREATE = re.compile(
    r"\s*(?:CREATE\s+(?:OR\s+REPLACE\s+)?|REPLACE\s+)TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?"
    rf"(?!IDENTIFIER\s*\()(?P<table>{NAME})(?![\w$.]).*?"
    r"\bUSING\s+(?P<source>`?epochlog(?:\.exchange)?`?)(?![\w.`])",
    re.DOTALL | re.IGNORECASE,
)
_SOURCES = ("epochlog", "epochlog.exchange")


def find_created_table(statement: str) -> tuple[list[str], str] | None:
    """Return the name, in parts, and the source of the table that a statement creates with one of epochlog's sources;
    None for any other statement. Pure.
    """
    match = _CREATE.match(without_texts(statement))
    if match is None:
        return None
    return name_parts(match["table"]), match["source"].strip("`").lower()


def without_texts(statement: str) -> str:
    """Return the statement without its texts and comments, which may contain any word."""
    return _SKIPPED.sub(lambda skipped: skipped["kept"] or " ", statement)


def name_parts(name: str) -> list[str]:
    """Return the parts of a table's name, without their quotes."""
    return [part.strip("`").replace("``", "`") for part in re.findall(_PART, name)]


def guard_creation(session_class: Any, catalog_class: Any) -> None:
    """Patch `spark.sql` and `spark.catalog.createTable`: they raise InvalidInput for a table of Spark's own catalog
    with one of epochlog's sources. Tables of other catalogs are created, or refused, by those. A second call has no
    effect.
    """
    if not getattr(session_class.sql, "knows_epochlog", False):
        session_class.sql = _guard_sql(session_class.sql)
        catalog_class.createTable = _guard_create_table(catalog_class.createTable)


def _guard_sql(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def patched(self: Any, *args: Any, **keywords: Any) -> Any:
        statement = args[0] if args else keywords.get("sqlQuery")
        if isinstance(statement, str) and (created := find_created_table(statement)) is not None:
            _refuse(self, *created)
        return original(self, *args, **keywords)

    patched.knows_epochlog = True  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]: a mark
    return patched


def _guard_create_table(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def patched(self: Any, *args: Any, **keywords: Any) -> Any:
        source = (args[2] if len(args) > 2 else keywords.get("source")) or ""
        if source.lower() in _SOURCES:
            table = args[0] if args else keywords.get("tableName", "")
            _refuse(self._sparkSession, name_parts(table), source.lower())
        return original(self, *args, **keywords)

    return patched


def _refuse(session: Any, table: list[str], source: str) -> None:
    """Raise InvalidInput if the table would be one of Spark's own catalog."""
    known = {catalog.name for catalog in session.catalog.listCatalogs()}
    named = table[0] if len(table) > 1 and table[0] in known else session.catalog.currentCatalog()
    if named == SPARK_CATALOG:
        raise InvalidInput(f"CREATE TABLE {'.'.join(table)} USING {source} does not work. {NO_CATALOG}")
