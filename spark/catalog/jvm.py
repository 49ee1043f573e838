"""The JVM of a session, as objects behind Java's interfaces need it: constructors, arrays, and errors that Spark shows.

Spark calls these objects (*proxies*) on the thread of the query. Their calls into the JVM run on that Java thread too,
as long as PySpark pins threads, which is its default.
"""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from epochlog.errors import EpochlogError, InvalidInput, StoreClosed
from epochlog.spark.live_session import is_connect, require_live
from epochlog.spark.versions import java_member

P = ParamSpec("P")
R = TypeVar("R")

CONNECTOR = "org.apache.spark.sql.connector."
_DATA_SOURCE = (
    'read a table there with spark.read.format("epochlog").option("path", …).option("table", …), and several tables at '
    'one epoch with .option("snapshot", token) of one store.snapshot(…)'
)


@dataclass(frozen=True, slots=True)
class ScanAnswers:
    """Java objects with which every scan of the Python source answers Spark."""

    columnar_mode: Any
    custom_metrics: Any
    driver_metrics: Any


class Jvm:
    """JVM of one classic session. Raises InvalidInput for a session of Spark Connect, or without pinned threads, and
    SparkLost for one that was stopped.

    catalog: the name of the catalog that the proxies are of. all_sessions: True for one of all sessions.
    """

    def __init__(self, session: SparkSession, catalog: str, *, all_sessions: bool = False) -> None:
        require_classic(session)
        require_live(session, "catalog")
        inner: Any = session
        context: Any = session.sparkContext
        self.session = session
        """Session in which the catalog was installed."""
        self.catalog = catalog
        self.install_call = install_call(catalog, all_sessions=all_sessions)
        """Call that installs the catalog again, as a user types it."""
        self.gateway: Any = context._gateway
        self.context: Any = context._jsc.sc()
        if type(self.gateway).__name__ != "ClientServer":
            raise InvalidInput(
                "a catalog needs PySpark's pinned threads, which PYSPARK_PIN_THREAD=false turns off: set it to true "
                f"before the session is created; or {_DATA_SOURCE}"
            )
        ensure_callback_server_started(self.gateway)
        self.gateway.python_parameters.propagate_java_exceptions = True
        _hide_refusals()
        self.root: Any = context._jvm
        self.spark: Any = self.root.org.apache.spark.sql
        self.java: Any = self.root.java
        self.catalogs: Any = inner._jsparkSession.sessionState().catalogManager()
        self._sessions: Any = inner._get_j_spark_session_class(inner._jvm)

        # Py4J asks the JVM at each mention of a name which kind of thing it is, so what each query needs is kept.
        python = self.spark.execution.datasources.v2.python
        self.analysis_context: Any = self.spark.catalyst.analysis.AnalysisContext.get
        self.planning_tracker: Any = self.spark.catalyst.QueryPlanningTracker.get
        self.identity_map: Any = self.java.util.IdentityHashMap
        self.optional_long: Any = self.java.util.OptionalLong.of
        self.no_transforms: Any = self.gateway.new_array(self.spark.connector.expressions.Transform, 0)
        self.no_classes: Any = self.gateway.new_array(self.java.lang.Class, 0)
        self.no_objects: Any = self.gateway.new_array(self.java.lang.Object, 0)
        self.no_entries: Any = self.java.util.Collections.emptyMap()
        self.no_options: Any = self.spark.util.CaseInsensitiveStringMap(self.no_entries)
        self.equal_arrays: Any = self.java.util.Objects.deepEquals
        self._hash_map: Any = self.java.util.HashMap
        self._python_source: Any = python.PythonDataSourceV2
        self.receive_read: Any = java_member(python.PythonDataSourceReadInfo, "receive")
        """Decoder of a planned read; None for Spark 4.0, whose source plans its reads itself."""
        refreshing = java_member(self.spark.execution.datasources.v2, "V2TableRefreshUtil")
        self.loads_again = refreshing is not None
        """False for Spark 4.0, which reads the tables of a query as it loaded them for each of its frames."""
        self.data_stream: Any = self.java.io.DataInputStream
        self.byte_stream: Any = self.java.io.ByteArrayInputStream

    @property
    def query_session(self) -> SparkSession:
        """Return the session whose query this Java thread plans or runs; without one, that of the installation."""
        installer: Any = self.session
        active = self._sessions.getActiveSession()
        if active.isEmpty() or active.get().equals(installer._jsparkSession):
            return self.session
        return SparkSession(self.session.sparkContext, active.get())

    @cached_property
    def scan_answers(self) -> ScanAnswers:
        """Return the answers of Spark's own scan of the Python source, which do not depend on the table."""
        scan = self.python_table(self.spark.types.StructType()).newScanBuilder(self.no_options).build()
        return ScanAnswers(scan.columnarSupportMode(), scan.supportedCustomMetrics(), scan.reportDriverMetrics())

    def python_source(self) -> Any:
        """Return Spark's provider of the Python source "epochlog"."""
        source = self._python_source()
        source.setShortName("epochlog")
        return source

    def python_table(self, schema: Any) -> Any:
        """Return Spark's table over the Python source "epochlog" with this schema."""
        return self.python_source().getTable(schema, self.no_transforms, self.no_entries)

    def readable(self, required: Any, present: Any) -> Any:
        """Return the columns to read where Spark needs those of `required`. Spark 4.0 loses the rows of batches without
        columns, so it reads the first of `present`.
        """
        if self.receive_read is None and not required.length() and present.length():
            return self.spark.types.StructType(present.fields()[:1])
        return required

    @cached_property
    def columnar_by_partition(self) -> Any:
        """Return the mode of a scan whose batch says for each partition if it has columns, as Spark's for Parquet."""
        return self.root.org.apache.spark.sql.connector.read.Scan.ColumnarSupportMode.PARTITION_DEFINED

    @cached_property
    def no_filters(self) -> Any:
        return self.gateway.new_array(self.spark.sources.Filter, 0)

    def parquet_batch(self, relation: Any, options: Mapping[str, str], filters: Any) -> Any:
        """Return Spark's batch over the rows of a relation of Parquet files, without some that fail Java's filters."""
        inner: Any = self.query_session
        builder = self.spark.execution.datasources.v2.parquet.ParquetScanBuilder(
            inner._jsparkSession,
            relation.location(),
            relation.dataSchema(),
            relation.dataSchema(),
            self.spark.util.CaseInsensitiveStringMap(self.map(options)),
        )
        getattr(builder, "pushedDataFilters_$eq")(builder.pushDataFilters(filters))
        return builder.build().toBatch()

    def strings(self, values: Iterable[str]) -> Any:
        """Return a Java array of strings."""
        return self.array(self.java.lang.String, list(values))

    def array(self, kind: Any, values: list[Any]) -> Any:
        array = self.gateway.new_array(kind, len(values))
        for place, value in enumerate(values):
            array[place] = value
        return array

    def map(self, values: Mapping[str, str]) -> Any:
        """Return a Java map of strings."""
        java_map = self._hash_map()
        for name, value in values.items():
            java_map.put(name, value)
        return java_map

    def weak_map(self) -> Any:
        """Return a Java map that compares Spark's objects by identity and does not keep them."""
        return self.java.util.Collections.synchronizedMap(self.java.util.WeakHashMap())

    def is_called_by(self, *names: str) -> bool:
        """Return True if the stack of this Java thread names a class or method that contains one of the names."""
        trace = self.root.org.apache.commons.lang3.exception.ExceptionUtils.getStackTrace(self.java.lang.Throwable())
        return any(name in trace for name in names)

    def identifier(self, namespace: Iterable[str], name: str) -> Any:
        return self.spark.connector.catalog.Identifier.of(self.strings(namespace), name)


def install_call(catalog: str, *, all_sessions: bool) -> str:
    """Return the call that installs a catalog, as a user types it."""
    return f"el.catalog(spark, store, name={catalog!r}{', all_sessions=True' * all_sessions})"


def require_classic(session: object) -> None:
    """Raise InvalidInput for an object that is no classic Spark session."""
    if is_connect(session):
        raise InvalidInput(
            "a session of Spark Connect cannot install a catalog: the driver that hosts its server can, with "
            f"el.catalog(spark, store, all_sessions=True); or {_DATA_SOURCE}"
        )
    if not isinstance(session, SparkSession):
        raise InvalidInput(f"a catalog is installed in a Spark session, not in {session!r}")


class Refusal(Py4JJavaError):
    """Java exception that a proxy throws into Spark, and no message for this process' log."""


def refuse(jvm: Jvm, error: EpochlogError, *, unsupported: bool = False) -> Refusal:
    """Return the exception with which Spark fails the query; its message has the error's class and text.

    unsupported: make an UnsupportedOperationException, where Spark wraps others into one that Python does not know.
    """
    text = error.args[0] if error.args else ""
    name, kinds = type(error).__name__, jvm.java.lang
    kind = kinds.UnsupportedOperationException if unsupported else kinds.IllegalArgumentException
    return Refusal(name, kind(f"epochlog.errors.{name}: {text}"))


def thrown_by_java(error: PySparkException) -> Exception:
    """Return the exception that fails the query with the Java exception behind an error of a job that a proxy ran."""
    origin = getattr(error, "_origin", None)
    return error if origin is None else Refusal(type(error).__name__, origin)


def answer(method: Callable[P, R], *, unsupported: bool = False) -> Callable[P, R]:
    """Decorate a method of a proxy that has `jvm`: its epochlog errors reach Spark as Java exceptions, see `refuse`."""

    @wraps(method)
    def answering(*args: P.args, **keywords: P.kwargs) -> R:
        try:
            return method(*args, **keywords)
        except EpochlogError as error:
            proxy: Any = args[0]
            raise refuse(proxy.jvm, _with_advice(error, proxy.jvm), unsupported=unsupported) from error

    return answering


def _with_advice(error: EpochlogError, jvm: Jvm) -> EpochlogError:
    """Return the error, of a closed store with the call that installs the catalog again."""
    if not isinstance(error, StoreClosed):
        return error
    return StoreClosed(
        f"the store of the catalog {jvm.catalog!r} was closed: install the catalog again with an open store, "
        f"{jvm.install_call}"
    )


class Proxy:
    """Base class of Python objects behind a Java interface, with the three methods that Java asks of all objects."""

    def __init__(self, jvm: Jvm) -> None:
        self.jvm = jvm

    def identity(self) -> str:
        """Return a text that equal objects share, and no others."""
        return f"{type(self).__name__} {id(self)}"

    def hashCode(self) -> int:
        return hash(self.identity()) & 0x7FFFFFFF

    def equals(self, other: Any) -> bool:
        """Return True if Java's object is a proxy of this object, or of an equal one."""
        return isinstance(other, JavaObject) and self.identity() == str(other)

    def toString(self) -> str:
        return self.identity()


def option_names(options: Any) -> list[str]:
    """Return the names in Java's map of options."""
    return [] if options.isEmpty() else [str(name) for name in options.keySet().toArray()]


class _HideRefusals(logging.Filter):
    """Filter of Py4J's log: a refusal is the answer to a query, and no failure of the callback."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], Refusal))


def _hide_refusals() -> None:
    for name in ("py4j.clientserver", "py4j.java_gateway"):
        logger = logging.getLogger(name)
        if not any(isinstance(known, _HideRefusals) for known in logger.filters):
            logger.addFilter(_HideRefusals())
