"""Spark's door: the data source "epochlog", and sessions that have it. The work is done in the packages below."""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, MutableMapping
from functools import wraps
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from .errors import EpochlogError, InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .batch.spark_read import Load

FORMAT = "epochlog"

SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.scheduler.mode": "FAIR",  # the jobs of a pipeline share the cores, each in a pool of its own
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""For local sessions and local file systems: together they bring a micro-batch from 250-350 ms down to 50."""


def spark(app_name: str = "epochlog", **conf: Any) -> SparkSession:
    """A local Spark session whose workers run this interpreter, with the data source registered and settings that suit
    it.

    conf: Spark settings, with dots written as they are (`**{"spark.sql.shuffle.partitions": 4}`) or as double
    underscores (`spark__sql__shuffle__partitions=4`); `master` is local[*]. They win over this library's own settings.
    """
    from pyspark.sql import SparkSession

    # the interpreter of Spark's workers is read from the environment, by whoever makes the session's context
    os.environ["PYSPARK_PYTHON"] = sys.executable
    given = {name.replace("__", "."): value for name, value in conf.items()}
    settings = {**SETTINGS, "spark.sql.shuffle.partitions": str(os.cpu_count() or 2), **given}
    builder = SparkSession.builder.appName(app_name).master(str(settings.pop("master", "local[*]")))
    for name, value in settings.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
    session = builder.getOrCreate()
    register(session)
    return session


def register(session: SparkSession) -> None:
    """Make `format("epochlog")` known to a session. A second call does no harm."""
    context = session.sparkContext
    if str(context.master).startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable  # Spark's default is the first python3 on the path, whatever that may lack
    session.dataSource.register(EpochlogSource)
    _tell_more()


def _tell_more() -> None:
    """Make `read` and `readStream` of "epochlog" tell the source what Spark does not: how many tasks the session runs
    at a time, and that a stream is one.

    A Python source is planned in a process of its own, which knows no session. And Spark asks for the schema without a
    word on whether a batch or a stream is loaded, and a stream has the change columns where a batch has not.
    `readChangeFeed` says it, so a user's own option works just as well.
    """
    from pyspark.sql.readwriter import DataFrameReader
    from pyspark.sql.streaming.readwriter import DataStreamReader

    kinds: list[tuple[Any, dict[str, str]]] = [(DataFrameReader, {}), (DataStreamReader, {"readChangeFeed": "true"})]
    for kind, options in kinds:
        if not getattr(kind.format, "knows_epochlog", False):
            kind.format = _telling(kind.format, options)


def _telling(plain: Callable[[Any, str], Any], options: Mapping[str, str]) -> Callable[[Any, str], Any]:
    @wraps(plain)
    def told(self: Any, source: str) -> Any:
        reader = plain(self, source)
        if source.lower() != FORMAT:
            return reader
        tasks = self._spark.sparkContext.defaultParallelism  # asked for now: executors come and go
        return reader.options(sessionParallelism=tasks, **options)

    told.knows_epochlog = True  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
    return told


class EpochlogSource(DataSource):
    """`format("epochlog")`. What a load means is found out once and travels with this object: its epoch is fixed at
    load().
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._load: Load | None = None
        self._own_schema = False

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles the source at the end of load(). With a schema of the user's own, nothing has asked for ours by
        then.
        """
        if self._load is None:
            with contextlib.suppress(EpochlogError):  # a sink is pickled too; a reader will raise what is wrong
                self._resolved()
        return dict(self.__dict__)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        self._own_schema = True
        return self._resolved().spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        from .batch.spark_read import make_reader

        return make_reader(self._resolved(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .batch.spark_write import BatchSink, resolve_save

        return BatchSink(resolve_save(self.options, schema, overwrite))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .exchange.stream import LogStreamReader, StreamRead

        load = self._resolved()
        if not load.feed and self._own_schema:
            raise InvalidInput(
                "this stream was not told apart from a batch, so its schema lacks the change columns; call "
                "epochlog.register(spark) in "
                "this process, or set .option('readChangeFeed', 'true')"
            )
        read = StreamRead.from_options(self.options, load.place, load.table_id)
        feed = load.as_feed()
        return LogStreamReader(read, feed.wanted(schema), feed.predicate())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from .batch.spark_write import StreamSink, resolve_save

        return StreamSink(resolve_save(self.options, schema, overwrite))

    def _resolved(self) -> Load:
        if self._load is None:
            from .batch.spark_read import resolve_load

            self._load = resolve_load(self.options)
        return self._load
