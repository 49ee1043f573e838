"""Spark data source "epochlog", and its registration in a session."""

# ruff: noqa: N802, N803  # Spark calls these methods by its own names

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import wraps
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from epochlog.errors import EpochlogError, InvalidInput

from .create_guard import guard_creation
from .exchange_format import ExchangeSource
from .live_session import is_connect, require_live
from .micro_batch import MicroBatch, find_micro_batch
from .options import NO_CATALOG, UPDATE_MODE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .batch_source import Load

ReaderDefaults = Callable[[Any], Mapping[str, str]]
"""Function from a reader to the options that `format("epochlog")` sets on it."""

FORMAT = "epochlog"


def register(session: SparkSession) -> None:
    """Register `format("epochlog")` and `format("epochlog.exchange")` in a session, classic or of Spark Connect. A
    second call has no effect.

    The workers of a Connect server must run an interpreter that has epochlog. Raises SparkLost for a session that was
    stopped.
    """
    if is_connect(session):
        for source in (EpochlogSource, ExchangeSource):
            _register_on_server(session, source)
        _patch_readers_and_writers(connect=True)
        return
    require_live(session, "register")
    context = session.sparkContext
    if str(context.master).startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable  # Spark's default, the first python3 on PATH, may lack packages.
    inner: Any = session
    known = inner._jsparkSession.sessionState().dataSourceManager()
    with _active(session):
        for source in (EpochlogSource, ExchangeSource):
            if not known.dataSourceExists(source.name()):  # else Spark has found its module pyspark_*
                session.dataSource.register(source)
    _patch_readers_and_writers(connect=False)


def _register_on_server(session: SparkSession, source: type[DataSource]) -> None:
    try:
        session.dataSource.register(source)
    except AnalysisException as error:  # Spark 4.0, whose server has found the source by its module
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


@contextlib.contextmanager
def _active(session: SparkSession) -> Iterator[None]:
    """Enter a context in which the session is this thread's active one. Spark checks in the active session if a
    source's name is taken, and lets only that session register it again.
    """
    inner: Any = session
    sessions = inner._get_j_spark_session_class(inner._jvm)
    before = sessions.getActiveSession()
    sessions.setActiveSession(inner._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def _patch_readers_and_writers(*, connect: bool) -> None:
    """Patch the `format` of the classic or the Connect readers and writers. Readers get options for "epochlog": the
    session's parallelism (a Connect client does not know it) and time zone, and `readChangeFeed` for a stream. Writers
    refuse to save a table in Spark's own catalog, which keeps no options, and `spark.sql` refuses to create one.

    Spark plans a Python source in a separate process without a session, and asks for its schema in one way for batches
    and streams. A stream has change columns, a batch has none, so the source needs `readChangeFeed`. Users can set it
    too.
    """
    if connect:
        from pyspark.sql.connect.catalog import Catalog
        from pyspark.sql.connect.readwriter import DataFrameReader, DataFrameWriter
        from pyspark.sql.connect.session import SparkSession
        from pyspark.sql.connect.streaming.readwriter import DataStreamReader, DataStreamWriter
    else:
        from pyspark.sql.catalog import Catalog
        from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
        from pyspark.sql.session import SparkSession
        from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    guard_creation(SparkSession, Catalog)

    def parallelism(reader: Any) -> Mapping[str, str]:  # Read at each call, since executors come and go.
        return {} if connect else {"sessionParallelism": str(_parallelism(reader._spark))}

    def of_batch(reader: Any) -> Mapping[str, str]:
        conf = reader._client.conf if connect else reader._spark.conf
        return {**parallelism(reader), "sessionTimeZone": conf.get("spark.sql.session.timeZone")}

    def of_stream(reader: Any) -> Mapping[str, str]:
        return {**parallelism(reader), "readChangeFeed": "true"}

    kinds: list[tuple[Any, ReaderDefaults]] = [(DataFrameReader, of_batch), (DataStreamReader, of_stream)]
    for kind, options in kinds:
        if not getattr(kind.format, "knows_epochlog", False):
            kind.format = _add_reader_options(kind.format, options)
    writers: list[tuple[Any, str]] = [(DataFrameWriter, "saveAsTable"), (DataStreamWriter, "toTable")]
    for kind, saving in writers:
        if not getattr(kind.format, "knows_epochlog", False):
            kind.format = _note_format(kind.format, is_batch=kind is DataFrameWriter and not connect)
            setattr(kind, saving, _refuse_save(getattr(kind, saving), saving))
    if not getattr(DataStreamWriter.start, "knows_epochlog", False):
        DataStreamWriter.option = _note_option(DataStreamWriter.option)
        DataStreamWriter.options = _note_options(DataStreamWriter.options)
        DataStreamWriter.outputMode = _note_mode(DataStreamWriter.outputMode)
        DataStreamWriter.start = _fix_columns(DataStreamWriter.start)


def _parallelism(session: SparkSession) -> int:
    try:
        return session.sparkContext.defaultParallelism
    except Exception:
        require_live(session, f'format("{FORMAT}")')
        raise


def _find_micro_batch(session: SparkSession) -> MicroBatch | None:
    try:
        return find_micro_batch(session)
    except Exception:
        require_live(session, f'format("{FORMAT}")')
        raise


def _add_reader_options(original: Callable[[Any, str], Any], options: ReaderDefaults) -> Callable[[Any, str], Any]:
    @wraps(original)
    def patched(self: Any, source: str) -> Any:
        reader = original(self, source)
        return reader.options(**options(reader)) if source.lower() == FORMAT else reader

    patched.knows_epochlog = True  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]: a mark
    return patched


def _note_format(original: Callable[[Any, str], Any], *, is_batch: bool) -> Callable[[Any, str], Any]:
    """Wrap a writer's `format` so that the writer records if it writes to "epochlog", and, of a batch, within which
    micro-batch: the process that plans and commits the write cannot ask.
    """

    @wraps(original)
    def patched(self: Any, source: str) -> Any:
        self._writes_epochlog = source.lower() == FORMAT
        writer = original(self, source)
        within = _find_micro_batch(self._spark) if self._writes_epochlog and is_batch else None
        return writer if within is None else writer.option("microBatch", within.as_text())

    patched.knows_epochlog = True  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]: a mark
    return patched


def _note_option(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a stream writer's `option` so that the writer remembers it."""

    @wraps(original)
    def patched(self: Any, key: str, value: Any) -> Any:
        self._epochlog_options = {**getattr(self, "_epochlog_options", {}), key: value}
        return original(self, key, value)

    return patched


def _note_options(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def patched(self: Any, **options: Any) -> Any:
        self._epochlog_options = {**getattr(self, "_epochlog_options", {}), **options}
        return original(self, **options)

    return patched


def _note_mode(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def patched(self: Any, outputMode: str) -> Any:
        self._epochlog_mode = outputMode
        return original(self, outputMode)

    return patched


def _fix_columns(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a stream writer's `start` so that a stream into "epochlog" keeps the columns of its start: Spark resolves
    its sink again for each micro-batch, from the options alone. It raises InvalidInput for update mode, which no source
    in Python can take.
    """

    @wraps(original)
    def patched(
        self: Any, path: Any = None, format: Any = None, outputMode: Any = None, *args: Any, **options: Any
    ) -> Any:
        writes = getattr(self, "_writes_epochlog", False) if format is None else str(format).lower() == FORMAT
        if writes:
            if str(outputMode or getattr(self, "_epochlog_mode", "")).lower() == "update":
                raise InvalidInput(UPDATE_MODE)
            from pyspark.sql.datasource import CaseInsensitiveDict

            from .sink import present_version

            own = {**getattr(self, "_epochlog_options", {}), **({} if path is None else {"path": path}), **options}
            texts = {name: str(value) for name, value in own.items() if name.lower() != "checkpointlocation"}
            with contextlib.suppress(EpochlogError):  # the sink reports it; a Connect client may not reach the store
                self.option("schemaVersion", str(present_version(CaseInsensitiveDict(texts))))
        return original(self, path, format, outputMode, *args, **options)

    patched.knows_epochlog = True  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]: a mark
    return patched


def _refuse_save(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap `saveAsTable` or `toTable` so that it raises InvalidInput for "epochlog"."""

    @wraps(original)
    def patched(self: Any, *args: Any, **keywords: Any) -> Any:
        source = args[1] if len(args) > 1 else keywords.get("format")
        if (source or "").lower() == FORMAT or (source is None and getattr(self, "_writes_epochlog", False)):
            table = args[0] if args else keywords.get("name", keywords.get("tableName"))
            advice = NO_CATALOG
            if "." in str(table):
                advice = (
                    f"If that is a table of a catalog that el.catalog has installed, leave the format out. {advice}"
                )
            raise InvalidInput(f"{name}({table!r}) does not support format('epochlog'). {advice}")
        return original(self, *args, **keywords)

    return patched


class EpochlogSource(DataSource):
    """Data source of `format("epochlog")`. It resolves a load once and is pickled with it: load() fixes the epoch."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._load: Load | None = None
        self._schema_requested = False

    def __getstate__(self) -> dict[str, Any]:
        """Resolve the load before pickling. Spark pickles the source at the end of load(), and has not called `schema`
        by then if the user gave a schema.
        """
        if self._load is None:
            with contextlib.suppress(EpochlogError):  # A sink is pickled too. A reader raises the error later.
                self._resolve_load()
        return dict(self.__dict__)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        self._schema_requested = True
        load = self._resolve_load()
        if load.feed:
            from .stream_source import batch_limits

            batch_limits(self.options)  # Spark 4.0 hides an error of `streamReader` behind one of its own
        return load.spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        from .batch_source import make_reader

        return make_reader(self._resolve_load(), schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .sink import BatchSink, resolve_save

        return BatchSink(resolve_save(self.options, schema, overwrite))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .stream_source import LogStreamReader, StreamRead

        load = self._resolve_load()
        if not load.feed and self._schema_requested:
            raise InvalidInput(
                "the schema of this stream lacks the change columns, because Spark asked for the schema of a batch; "
                "call epochlog.register(spark) in this process, or set .option('readChangeFeed', 'true')"
            )
        read = StreamRead.from_options(self.options, load.location, load.table_id, load.table)
        feed = load.as_feed()
        return LogStreamReader(read, feed.read_schema(schema), feed.predicate())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from .sink import StreamSink, resolve_save

        return StreamSink(resolve_save(self.options, schema, overwrite, streaming=True))

    def _resolve_load(self) -> Load:
        if self._load is None:
            from .batch_source import resolve_load

            self._load = resolve_load(self.options)
        return self._load
