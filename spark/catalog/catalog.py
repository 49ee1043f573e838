"""Spark catalog over the tables of a store. A namespace is a tag: its tables at the epochs that it keeps."""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

from py4j.java_collections import JavaSet

from epochlog.batch.tags import list_tags
from epochlog.errors import InvalidInput, NoConsistentEpoch, NotWritable, TableNotFound, TableNotReadable
from epochlog.spark.options import STREAM_ADVICE
from epochlog.store.commit.root_commit import refuse_unwritable
from epochlog.store.commit.table_ddl import drop_table
from epochlog.store.env.read_only import refuse_write
from epochlog.store.env.whole_number import whole_number
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table

from .advice import no_like, no_merge
from .changes import TableChanges
from .ddl import SeparateInfo, alter_from_sql, create_from_sql
from .jvm import CONNECTOR, Jvm, Proxy, Refusal, answer
from .planned_query import PlannedQueries, PlannedQuery
from .query_epochs import CatalogTables, LoadedTable, NamedMoment, QueryEpochs
from .query_group import QueryGroups
from .table import CatalogTable, JavaShapes

READS_NO_ROWS = ("lookupTableOrView", "DataStreamReader.table(", "DataStreamWriter.toTable(")
"""Methods of Spark that load a table for a statement about its definition, or for a stream."""


class StoreCatalog(Proxy):
    """Tables of a store as a catalog. Spark calls all methods by Java's names; overloads differ in their arguments."""

    class Java:
        implements = (f"{CONNECTOR}catalog.TableCatalog", f"{CONNECTOR}catalog.SupportsNamespaces")

    def __init__(self, jvm: Jvm, name: str, tables: CatalogTables) -> None:
        super().__init__(jvm)
        self._name = name
        self._tables = tables
        self._groups = QueryGroups(jvm, tables.newest)
        self._planned = PlannedQueries(jvm, tables)
        self._shapes = JavaShapes(jvm)
        self._no_names = jvm.java.util.HashSet()
        self._capabilities = jvm.java.util.HashSet()
        for kind in jvm.spark.connector.catalog.TableCatalogCapability.values():
            self._capabilities.add(kind)

    def name(self) -> str:
        return self._name

    def initialize(self, name: str, options: Any) -> None:
        """Do nothing: the catalog was made with its name and options."""

    def defaultNamespace(self) -> Any:
        return self.jvm.strings([])

    @property
    def tables(self) -> CatalogTables:
        return self._tables

    def capabilities(self) -> Any:
        """Return all that Spark knows, so that `createTable` gets each clause, and refuses it with what to write."""
        return self._capabilities

    def tableStateOptionKeys(self) -> Any:
        return self._no_names

    def changelogStateOptionKeys(self) -> Any:
        return self._no_names

    def useNullableQuerySchema(self) -> bool:
        return True

    # ---- tables ------------------------------------------------------------------------------------------------------

    @answer
    def listTables(self, namespace: Any) -> Any:
        names = self._names(list(namespace))
        identifiers = [self.jvm.identifier(namespace, name) for name in names]
        return self.jvm.array(self.jvm.spark.connector.catalog.Identifier, identifiers)

    @answer
    def listTableSummaries(self, namespace: Any) -> Any:
        kinds = self.jvm.spark.connector.catalog.TableSummary
        summaries = [
            kinds.of(self.jvm.identifier(namespace, name), kinds.MANAGED_TABLE_TYPE)
            for name in self._names(list(namespace))
        ]
        return self.jvm.array(kinds, summaries)

    @answer
    def tableExists(self, identifier: Any) -> bool:
        namespace = _path(identifier.namespace())
        return self._namespace_known(namespace) and identifier.name() in self._names(namespace)

    def invalidateTable(self, identifier: Any) -> None:
        """Do nothing: each query loads its tables anew."""

    @answer
    def loadTable(self, identifier: Any, *context: Any) -> CatalogTable:
        """Load a table for a query. context: Java's TableContext (a version or a time, the privileges of a write), and
        options; before Spark 4.3 a version (text), a time (Unix microseconds), or the set of privileges.
        """
        namespace, name = _path(identifier.namespace()), identifier.name()
        if not self._namespace_known(namespace):
            raise self._no_such_table(identifier)
        travel = _time_travel(context[0]) if context else None
        privileges = _privileges(context[0]) if context else set[str]()
        if travel is not None and self.jvm.is_called_by("NamedStreamingRelation"):
            raise InvalidInput(
                f"{self._name}.{name}: a stream reads changes, not one moment, so it takes neither versionAsOf nor "
                f"timestampAsOf: {STREAM_ADVICE}"
            )
        past = self._past(namespace, name, named=travel is not None)
        try:
            self._refuse_write(name, privileges, past)
            loaded = self._tables.defined(name) if privileges else self._load(namespace, name, travel)
            return self._table([*namespace, name], loaded, past)
        except TableNotFound:
            raise self._no_such_table(identifier) from None

    @answer
    def loadChangelog(self, identifier: Any, context: Any, options: Any) -> TableChanges:
        """Load the changes of a table. Without an end, they end at the epoch that the query's scans choose."""
        namespace, name = _path(identifier.namespace()), identifier.name()
        if namespace:
            raise InvalidInput(f"{namespace[0]} is a tag, one moment: read the changes of {self._name}.{name}")
        try:
            loaded = self._tables.load(name, self._groups.current())
        except TableNotFound:
            raise self._no_such_table(identifier) from None
        label = f"{self._name}.{name}"
        return TableChanges(self.jvm, self._tables.handle, label, loaded, context, self._planned.current)

    @answer
    def createTable(self, identifier: Any, *info: Any) -> CatalogTable:
        """Create a root table. info: Java's TableInfo; in Spark 4.0 columns, partitions and properties."""
        namespace, name = _path(identifier.namespace()), identifier.name()
        if namespace:
            raise NotWritable(f"{namespace[0]} is a tag: create the table in the catalog itself, {self._name}")
        self._refuse_fixed(name)
        if self._tables.names is not None and name not in self._tables.names:
            raise NotWritable(f"this catalog has only the tables {', '.join(self._tables.names)}")
        if self.jvm.is_called_by(".saveAsTable(", ".toTable("):
            label = f"{self._name}.{name}"
            raise TableNotFound(
                f"there is no table {name!r} in the catalog {self._name!r}, and this write names no primary key: "
                f"create it first, CREATE TABLE {label} (…) TBLPROPERTIES (primary_key = 'id'), or from a frame, "
                f"frame.writeTo('{label}').tableProperty('primary_key', 'id').create()"
            )
        return self._new_table(create_from_sql(self._tables.handle, name, self._info(*info)))

    @answer
    def dropTable(self, identifier: Any) -> bool:
        """Drop a table; return False if there is none. Raises TableInUse.

        Spark replaces a table by a drop and a creation, of which the second may fail, so a replacement is refused.
        """
        namespace, name = _path(identifier.namespace()), identifier.name()
        if self.jvm.is_called_by("ReplaceTable"):
            raise NotWritable(
                f"{name!r} cannot be replaced in one commit: write INSERT OVERWRITE {self._name}.{name}, or DROP it "
                "first"
            )
        if namespace:
            raise NotWritable(f"{namespace[0]} is a tag: drop {self._name}.{name}")
        self._refuse_fixed(name)
        if name not in self._names([]):
            return False
        drop_table(self._tables.handle, name)
        return True

    @partial(answer, unsupported=True)
    def alterTable(self, identifier: Any, changes: Any) -> CatalogTable:
        """Add, drop, rename or widen columns. changes: Java's TableChanges. Raises InvalidInput, SchemaInUse.

        Spark wraps an IllegalArgumentException of this method into an exception that PySpark does not know.
        """
        namespace, name = _path(identifier.namespace()), identifier.name()
        if namespace:
            raise NotWritable(f"{namespace[0]} is a tag, which does not change: alter {self._name}.{name}")
        self._refuse_fixed(name)
        if name not in self._names([]):
            raise self._no_such_table(identifier)
        return self._new_table(alter_from_sql(self._tables.handle, name, changes))

    def purgeTable(self, identifier: Any) -> bool:
        return self.dropTable(identifier)

    def _info(self, first: Any, *others: Any) -> Any:
        """Return Java's TableInfo, or an object like it."""
        return SeparateInfo(self.jvm, first, *others) if others else first

    def _load(self, namespace: Sequence[str], name: str, travel: str | int | None) -> LoadedTable:
        if namespace:
            if travel is not None:
                raise InvalidInput(
                    f"{namespace[0]} is a tag, so its tables have one epoch: leave out VERSION or TIMESTAMP"
                )
            tagged = self._tables.tagged(namespace[0])
            if tagged is None:
                raise TableNotFound(f"there is no tag {namespace[0]!r}")
            _require_kept(tagged, name, f"the tag {namespace[0]!r}")
            return self._tables.load(name, tagged).named(NamedMoment(name=namespace[0]))
        if travel is None:
            return self._load_now(name)
        moment = self._moment(travel)
        chosen = self._at(moment)
        if moment.name:
            _require_kept(chosen, name, f"VERSION AS OF {_shortened(moment.name)}")
        return self._tables.load(name, chosen).named(moment)

    def _load_now(self, name: str) -> LoadedTable:
        """Load a table at the epoch of the query, or its newest definition for a statement that reads no rows of it.

        Spark does not say what it loads a table for. The stack of its thread tells, and is read only if it matters,
        since that takes long.
        """
        try:
            loaded = self._tables.load(name, self._groups.epochs(name))
        except NoConsistentEpoch:
            if not self._reads_no_rows():
                raise
            return self._tables.defined(name)
        if loaded.outdated and self._reads_no_rows():
            return self._tables.defined(name)
        return loaded

    def _reads_no_rows(self) -> bool:
        return not self._tables.fixed and self.jvm.is_called_by(*READS_NO_ROWS)

    def _moment(self, travel: str | int) -> NamedMoment:
        if isinstance(travel, int):
            return self._planned.moment_of(travel // 1_000)
        epoch = whole_number(travel)
        return NamedMoment(name=travel) if epoch is None else NamedMoment(epoch=epoch)

    def _at(self, moment: NamedMoment) -> QueryEpochs | int:
        """Return the epochs of a moment. Raises InvalidInput, which names the tags, for a name that is none."""
        try:
            return self._tables.at(moment)
        except InvalidInput as error:
            if not moment.name:
                raise
            tags = [tag.name for tag in list_tags(self._tables.handle)]
            raise InvalidInput(
                f"VERSION AS OF {_shortened(moment.name)} is no epoch, and no tag of the store, which has "
                f"{', '.join(tags) or 'none'}; as the token of a snapshot: {error}"
            ) from error

    def _new_table(self, definition: TableDef) -> CatalogTable:
        """Return a table that was just created or altered."""
        return self._table([definition.name], LoadedTable(definition))

    def _table(self, path: Sequence[str], loaded: LoadedTable, past: str | None = None) -> CatalogTable:
        label = ".".join([self._name, *path])
        return CatalogTable(self.jvm, self._tables.handle, label, loaded, self._shapes, self._scanning, past)

    def _past(self, namespace: Sequence[str], name: str, *, named: bool) -> str | None:
        """Return the reason for which a table does not change, and what to write to; None for one that does. named: the
        query names a version or a time.
        """
        if self._tables.fixed:
            policy = getattr(self._tables.policy, "name", "")
            return (
                f"the catalog {self._name!r} shows {name!r} at an epoch of the past, which does not change "
                f"(consistency={policy!r}): write and stream through a catalog without it, el.catalog(spark, store, "
                "name=…)"
            )
        if not named and not namespace:
            return None
        return f"{name!r} is named at an epoch of the past, which does not change: write to {self._name}.{name}"

    def _refuse_fixed(self, name: str) -> None:
        """Raise NotWritable if the catalog itself is of the past."""
        past = self._past([], name, named=False)
        if past is not None:
            raise NotWritable(past)

    def _scanning(self) -> PlannedQuery:
        """Return the query for which Spark builds a scan; it loads no further tables on this thread."""
        self._groups.end()
        return self._planned.current()

    def _names(self, namespace: Sequence[str]) -> list[str]:
        if not namespace:
            return self._tables.listed()
        tag = next((tag for tag in list_tags(self._tables.handle) if [tag.name] == list(namespace)), None)
        if tag is None:
            raise self._no_such_namespace(namespace)
        return [name for name in self._tables.listed() if name in tag.epochs]

    # ---- namespaces --------------------------------------------------------------------------------------------------

    @answer
    def listNamespaces(self, parent: Any = None) -> Any:
        above = [] if parent is None else list(parent)
        if not self._namespace_known(above):
            raise self._no_such_namespace(above)
        names = [] if above else [tag.name for tag in list_tags(self._tables.handle)]
        kind = self.jvm.java.lang.String
        array = self.jvm.gateway.new_array(kind, len(names), 1)
        for place, name in enumerate(names):
            array[place] = self.jvm.strings([name])
        return array

    @answer
    def namespaceExists(self, namespace: Any) -> bool:
        return self._namespace_known(list(namespace))

    @answer
    def loadNamespaceMetadata(self, namespace: Any) -> Any:
        path = list(namespace)
        if not self._namespace_known(path):
            raise self._no_such_namespace(path)
        comment = "the tables of the store" if not path else "a tag: its tables at the epochs that it keeps"
        return self.jvm.map({"comment": comment})

    def _namespace_known(self, namespace: Sequence[str]) -> bool:
        return not namespace or any([tag.name] == list(namespace) for tag in list_tags(self._tables.handle))

    @answer
    def createNamespace(self, namespace: Any, metadata: Any) -> NoReturn:
        raise NotWritable("a namespace of the catalog is a tag: make one with store.tag(name)")

    @answer
    def alterNamespace(self, namespace: Any, *changes: Any) -> NoReturn:
        raise NotWritable("a namespace of the catalog is a tag, which has no properties")

    @answer
    def dropNamespace(self, namespace: Any, cascade: bool) -> NoReturn:
        raise NotWritable("a namespace of the catalog is a tag: drop it with store.drop_tag(name)")

    # ---- refused ------------------------------------------------------------------------------------

    @answer
    def createTableLike(self, identifier: Any, *description: Any) -> NoReturn:
        raise no_like()

    @answer
    def renameTable(self, old: Any, new: Any) -> NoReturn:
        raise NotWritable(f"a table of a store keeps its name: {old.name()!r} cannot be renamed")

    def _refuse_write(self, table: str, privileges: set[str], past: str | None) -> None:
        """Raise NotWritable for a statement that a table does not support, and StoreReadOnly before any task that would
        write. privileges: of Java's TableContext.
        """
        handle = self._tables.handle
        if privileges and handle.read_only:
            refuse_write(handle.files.place)
        if privileges and past is not None:
            raise NotWritable(past)
        if "UPDATE" in privileges:
            handle.catalog.read(lambda view: refuse_unwritable(view, find_table(view, table)))
            raise no_merge(f"{self._name}.{table}", table)

    # ---- errors that Spark knows -------------------------------------------------------------------------------------

    def _no_such_table(self, identifier: Any) -> Refusal:
        errors = self.jvm.spark.catalyst.analysis
        return Refusal("NoSuchTable", errors.NoSuchTableException(identifier))

    def _no_such_namespace(self, namespace: Sequence[str]) -> Refusal:
        errors = self.jvm.spark.catalyst.analysis
        return Refusal("NoSuchNamespace", errors.NoSuchNamespaceException(self.jvm.strings(namespace)))


def _path(namespace: Any) -> list[str]:
    """Return the names in Java's array; most are empty, which takes one call to see, and a list of it three."""
    return list(namespace) if len(namespace) else []


def _require_kept(chosen: QueryEpochs | int, table: str, source: str) -> None:
    """Raise TableNotReadable for a table of the store that a tag or a token does not have."""
    if isinstance(chosen, QueryEpochs) and table in chosen.ids and table not in chosen.epochs:
        raise TableNotReadable(
            f"{source} keeps {', '.join(chosen.epochs)}, and no epoch of {table!r}: read its newest rows "
            "without it, or name another one"
        )


def _shortened(version: str) -> str:
    return repr(version if len(version) <= 40 else f"{version[:37]}…")


def _privileges(context: Any) -> set[str]:
    """Return the privileges that a TableContext names. The end of a Java iterator would be an exception: 80 calls."""
    if isinstance(context, str | int):
        return set()
    privileges = context if isinstance(context, JavaSet) else context.writePrivileges()
    return set() if privileges.isEmpty() else {str(privilege) for privilege in privileges.toArray()}


def _time_travel(context: Any) -> str | int | None:
    """Return the version (text) or the time (Unix microseconds) of a TableContext; None without either."""
    if isinstance(context, str | int):
        return context
    if isinstance(context, JavaSet):
        return None
    travel = context.timeTravel()
    if not travel.isPresent():
        return None
    spec = travel.get()
    return spec.version() if "AsOfVersion" in spec.getClass().getName() else spec.micros()
