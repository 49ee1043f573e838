"""Patches of PySpark for sessions with catalogs: advice on statements that Spark refuses without asking the table, and
the catalogs of a query in the session of its micro-batches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql.merge import MergeIntoWriter
from pyspark.sql.session import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from epochlog.errors import EpochlogError, InvalidInput, TableNotFound
from epochlog.spark.column_names import quoted
from epochlog.spark.create_guard import NAME, name_parts, without_texts
from epochlog.spark.types import TIME
from epochlog.spark.versions import HAS_TIME, java_member, needs
from epochlog.store.commit.root_commit import refuse_unwritable
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table
from epochlog.store.types.schema import TableSchema

from .advice import case_twins, no_like, no_merge, no_replace, unknown_condition
from .catalog import StoreCatalog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

installed: WeakValueDictionary[str, StoreCatalog] = WeakValueDictionary()
"""Catalogs of all sessions, by the text with which Java shows them."""

_DELETE = re.compile(rf"\bDELETE\s+FROM\s+(?P<table>{NAME})", re.IGNORECASE)
_SUBQUERY = "Delete by condition with subquery is not supported"
_UNTRANSLATED = re.compile(r"cannot translate expression to source filter: (?P<condition>.*)\.")
_UNSUPPORTED = re.compile(
    rf"Table (?P<table>{NAME}) does not support (?P<operation>MERGE INTO TABLE|INSERT INTO \.\.\.)"
)
_AMBIGUOUS = re.compile(rf"\[AMBIGUOUS_REFERENCE\] .* could be: \[(?P<column>{NAME})")
_UNRESOLVED = re.compile(rf"\[UNRESOLVED_COLUMN\.\w+\] .* with name (?P<column>{NAME}) cannot be resolved")
_NAMED = re.compile(rf"\b(INTO|OVERWRITE|FROM|JOIN)\s+(TABLE\s+)?(?P<table>{NAME})", re.IGNORECASE)
"""Tables that a statement names."""
_NO_TIME = re.compile(r'\[UNSUPPORTED_DATATYPE\] Unsupported data type "TIME\b|\[UNSUPPORTED_TIME_TYPE\]')
_TIME_SETTING = "spark.sql.timeType.enabled"
_TWICE = re.compile(r"\[COLUMN_ALREADY_EXISTS\] The column `(?P<column>.+?)` already exists")
_LATER_SYNTAX = (
    (
        re.compile(r"\bCHANGES\s+FROM\b", re.IGNORECASE),
        "Changelog",
        "4.2",
        "CHANGES FROM",
        "or read them by spark.read.format('epochlog') with .option('readChangeFeed', 'true')",
    ),
    (
        re.compile(r"\bPRIMARY\s+KEY\b", re.IGNORECASE),
        "constraints.Constraint",
        "4.1",
        "PRIMARY KEY",
        "or write TBLPROPERTIES (primary_key = 'id')",
    ),
)
"""Syntax that Spark has from a version on: its pattern, Java's class below `connector.catalog` that came with it, the
version, its name, and what to write before it.
"""
_MERGED = re.compile(rf"\bMERGE\s+(WITH\s+SCHEMA\s+EVOLUTION\s+)?INTO\s+(?P<table>{NAME})", re.IGNORECASE)
_NO_MERGE = "MERGE INTO TABLE is not supported"
"""Text of Spark 4.0, which does not name the table."""
_UNNAMED = re.compile(rf"\[INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_FIND_DATA\] .* the table (?P<table>{NAME}): ")
_LIKE = re.compile(rf"\bCREATE\s+TABLE\s+(IF\s+NOT\s+EXISTS\s+)?{NAME}\s+LIKE\s+(?P<table>{NAME})", re.IGNORECASE)
"""A statement that Spark before 4.2 runs in its own catalog alone, where it finds no name of another one."""
_ATTRIBUTE_ID = re.compile(r"#\d+L?")


def patch_sessions(install: Callable[[SparkSession, str, StoreCatalog], None]) -> None:
    """Patch PySpark's classic sessions; a second call has no effect. install: puts a catalog like that of another
    session into a session.
    """
    patched: Any = DataStreamWriter.foreachBatch
    if not getattr(patched, "carries_catalogs", False):
        for kind, method in ((SparkSession, "sql"), (MergeIntoWriter, "merge")):
            setattr(kind, method, _advise(getattr(kind, method)))
        DataStreamWriter.foreachBatch = _carry_catalogs(DataStreamWriter.foreachBatch, install)


def catalogs_of(session: SparkSession) -> Iterator[tuple[str, StoreCatalog]]:
    """Yield the catalogs of a session, with their names."""
    inner: Any = session
    manager = inner._jsparkSession.sessionState().catalogManager()
    for shown, catalog in list(installed.items()):
        of_session: Any = catalog.jvm.session
        if of_session._jsparkSession.equals(inner._jsparkSession) and _shown(manager, catalog.name()) == shown:
            yield catalog.name(), catalog


def _shown(manager: Any, name: str) -> str:
    return manager.catalog(name).toString() if manager.isCatalogRegistered(name) else ""


# ---- the session of a micro-batch ------------------------------------------------------------------------------------


def _carry_catalogs(
    original: Callable[..., Any], install: Callable[[SparkSession, str, StoreCatalog], None]
) -> Callable[..., Any]:
    """Wrap a stream writer's `foreachBatch`: the session of its frames gets the catalogs of the writer's session."""

    @wraps(original)
    def patched(self: Any, func: Callable[[DataFrame, int], None]) -> Any:
        session, known = self._spark, set[str]()

        @wraps(func)
        def within(frame: DataFrame, batch: int) -> None:
            inner: Any = frame.sparkSession
            uuid = str(inner._jsparkSession.sessionUUID())
            if uuid not in known:
                manager = inner._jsparkSession.sessionState().catalogManager()
                for name, catalog in catalogs_of(session):
                    if not manager.isCatalogRegistered(name):
                        install(frame.sparkSession, name, catalog)
                known.add(uuid)
            func(frame, batch)

        return original(self, within)

    patched.carries_catalogs = True  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]: a mark
    return patched


# ---- advice ----------------------------------------------------------------------------------------------------------


def _advise(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that runs a statement: what Spark refuses of a table of a catalog is refused with what to write."""

    @wraps(original)
    def patched(self: Any, *args: Any, **keywords: Any) -> Any:
        try:
            return original(self, *args, **keywords)
        except CapturedException as error:
            session = self if isinstance(self, SparkSession) else self._spark
            statement = args[0] if args else keywords.get("sqlQuery", "")
            advice = _find_advice(session, statement if isinstance(statement, str) else "", str(error))
            if advice is not None:
                inner: Any = error
                inner._desc = f"epochlog.errors.{type(advice).__name__}: {advice}\n\n{inner._desc}"
            raise

    return patched


def _find_advice(session: SparkSession, statement: str, text: str) -> EpochlogError | None:
    """Return the error that says what to write; None if Spark's error is of another kind, or of no table of a store."""
    unsupported, untranslated = _UNSUPPORTED.search(text), _UNTRANSLATED.search(text)
    if unsupported is not None:
        refuse = no_merge if unsupported["operation"].startswith("MERGE") else no_replace
        return _advise_writer(session, unsupported["table"], lambda label, schema: refuse(label, schema.name))
    later = _find_later_syntax(session, statement) if "[PARSE_SYNTAX_ERROR]" in text else None
    if later is not None:
        return later
    if _NO_TIME.search(text) is not None:
        on = f"Spark has {TIME} turned off in SQL: set {_TIME_SETTING} to true in this session"
        return InvalidInput(on) if HAS_TIME else needs(TIME, "4.1")
    merged = _MERGED.search(without_texts(statement)) if _NO_MERGE in text else None
    if merged is not None:
        return _advise_writer(session, merged["table"], lambda label, schema: no_merge(label, schema.name))
    unnamed = _UNNAMED.search(text)
    if unnamed is not None:
        return _find_unnamed(session, unnamed["table"])
    named = _find_case_twins(session, statement, text) or _find_late_column(session, statement, text)
    if named is not None:
        return named
    like = _LIKE.search(without_texts(statement)) if "_NOT_FOUND]" in text else None
    if like is not None:
        with suppress(TableNotFound):
            return _advise_writer(session, like["table"], lambda label, schema: no_like())
    deleted = _DELETE.search(without_texts(statement))
    if deleted is None or not (untranslated or _SUBQUERY in text):
        return None
    condition = "a subquery" if untranslated is None else _ATTRIBUTE_ID.sub("", untranslated["condition"])
    return _advise_writer(session, deleted["table"], lambda label, schema: unknown_condition(label, schema, condition))


def _find_later_syntax(session: SparkSession, statement: str) -> EpochlogError | None:
    """Return the error of a statement that this Spark cannot parse and a later one can."""
    inner: Any = session
    plain = without_texts(statement)
    for pattern, java_class, version, name, instead in _LATER_SYNTAX:
        catalog = inner._jvm.org.apache.spark.sql.connector.catalog
        if pattern.search(plain) and java_member(catalog, java_class) is None:
            return needs(name, version, instead)
    return None


def _find_unnamed(session: SparkSession, table: str) -> EpochlogError | None:
    """Return the error of an INSERT without some columns of a table of a store, which Spark 4.0 does not fill."""
    inner: Any = session
    if java_member(inner._jvm.org.apache.spark.sql.connector.catalog, "TableInfo") is not None:
        return None
    refused = needs("an INSERT that does not name all columns", "4.1", "or name all, with NULL for the others")
    return _advise_writer(session, table, lambda label, schema: refused)


def _advise_writer(
    session: SparkSession, table: str, advise: Callable[[str, TableSchema], EpochlogError]
) -> EpochlogError | None:
    """Return the advice on a write into a table of a store, or the error of a table that takes no write."""
    known = _find_table(session, table)
    if known is None:
        return None
    label, definition, catalog = known
    try:
        catalog.tables.handle.catalog.read(lambda view: refuse_unwritable(view, definition))
    except EpochlogError as error:
        return error
    return advise(label, definition.schema)


def _find_case_twins(session: SparkSession, statement: str, text: str) -> EpochlogError | None:
    """Return the error of a statement that needs one column of a name, for which another one differs by case alone."""
    ambiguous, twice = _AMBIGUOUS.search(text), _TWICE.search(text)
    if ambiguous is not None:
        *path, column = name_parts(ambiguous["column"])
        tables = [".".join(map(quoted, path))] if path else []
    elif twice is not None:
        tables, column = _named(statement), twice["column"]
    else:
        return None
    for name in tables:
        with suppress(TableNotFound):  # a view of Spark in the catalog's session
            table = _find_table(session, name)
            twins = None if table is None else case_twins(table[0], table[1].schema, column)
            if twins is not None:
                return twins
    return None


def _find_late_column(session: SparkSession, statement: str, text: str) -> EpochlogError | None:
    """Return the error of a statement that reads a column of a table before the epoch at which it was added."""
    unresolved = _UNRESOLVED.search(text)
    if unresolved is None:
        return None
    for name in _named(statement):
        with suppress(EpochlogError):  # such as a view of Spark in the catalog's session, which is no table
            table = _find_table(session, name)
            column = name_parts(unresolved["column"])[-1]
            late = None if table is None else table[2].tables.explain_late_column(table[0], table[1], column)
            if late is not None:
                return late
    return None


def _named(statement: str) -> list[str]:
    """Return the names of the tables that a statement names."""
    return [named["table"] for named in _NAMED.finditer(without_texts(statement))]


def _find_table(session: SparkSession, table: str) -> tuple[str, TableDef, StoreCatalog] | None:
    """Return the name with its catalog, the definition and the catalog of a table of a store; None for any other."""
    inner: Any = session
    manager, parts = inner._jsparkSession.sessionState().catalogManager(), name_parts(table)
    names_catalog = len(parts) > 1 and manager.isCatalogRegistered(parts[0])
    shown = _shown(manager, parts[0]) if names_catalog else manager.currentCatalog().toString()
    catalog = installed.get(shown)
    if catalog is None:
        return None
    name = parts[-1]
    definition = catalog.tables.handle.catalog.read(lambda view: find_table(view, name))
    return f"{catalog.name()}.{name}", definition, catalog
