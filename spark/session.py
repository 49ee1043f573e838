"""Spark data source "epochlog", and sessions that have it. The other modules of this package do the work."""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
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

from epochlog.errors import EpochlogError, InvalidInput, JavaMissing

from .options import NO_CATALOG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .batch_source import Load

FORMAT = "epochlog"
OLDEST_JAVA = 17

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
    """Return a local Spark session whose workers run this interpreter, with the data source registered and settings
    that suit it.

    conf: Spark settings, with dots written as they are (`**{"spark.sql.shuffle.partitions": 4}`) or as double
    underscores (`spark__sql__shuffle__partitions=4`); `master` is local[*]. They win over this library's own settings.
    Raises JavaMissing, which names the Java that was found, where Spark cannot run on it.
    """
    from pyspark.sql import SparkSession

    # the interpreter of Spark's workers is read from the environment, by whoever makes the session's context
    os.environ["PYSPARK_PYTHON"] = sys.executable
    given = {name.replace("__", "."): value for name, value in conf.items()}
    settings = {**SETTINGS, "spark.sql.shuffle.partitions": str(os.cpu_count() or 2), **given}
    builder = SparkSession.builder.appName(app_name).master(str(settings.pop("master", "local[*]")))
    for name, value in settings.items():
        builder = builder.config(name, str(value).lower() if isinstance(value, bool) else str(value))
    try:
        session = builder.getOrCreate()
    except Exception as error:
        wrong = java_trouble(os.environ)
        if wrong is not None:
            raise JavaMissing(wrong) from error
        raise
    register(session)
    return session


def java_trouble(environ: Mapping[str, str]) -> str | None:
    """Return the reason why Spark cannot run on the Java that this environment names, with advice; None when it can."""
    home = environ.get("JAVA_HOME")
    folders = [os.path.join(home, "bin")] if home else environ.get("PATH", "").split(os.pathsep)
    places = [os.path.join(folder, "java") for folder in folders]
    path = places[0] if home else next((place for place in places if os.access(place, os.X_OK)), None)
    todo = (
        f"Spark needs Java {OLDEST_JAVA} or newer. On Debian or Ubuntu: sudo apt-get install openjdk-17-jre-headless; "
        "elsewhere https://adoptium.net. JAVA_HOME may name the folder of one that is there"
    )
    if path is None:
        return f"no Java was found: JAVA_HOME is not set, and there is no java on PATH. {todo}"
    where = f"JAVA_HOME is {home!r}" if home else "it is the first on PATH"
    try:
        done = subprocess.run(
            [path, "-version"], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"the Java at {path} does not run ({where}): {error}. {todo}"
    said = f"{done.stderr}{done.stdout}".strip()
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None:
        return f"{path} does not say which version of Java it is ({where}), but {said[:200]!r}. {todo}"
    if int(found[1]) < OLDEST_JAVA:
        return f"the Java at {path} is version {found[1]}, which is too old ({where}). {todo}"
    return None


def register(session: SparkSession) -> None:
    """Make `format("epochlog")` known to a session. A second call does no harm."""
    context = session.sparkContext
    if str(context.master).startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable  # Spark's default is the first python3 on the path, whatever that may lack
    with _active(session):
        session.dataSource.register(EpochlogSource)
    _tell_more()


@contextlib.contextmanager
def _active(session: SparkSession) -> Iterator[None]:
    """Make a session this thread's active one inside of the block: Spark looks there for a taken name, no matter with
    which session a source is registered, and only lets the session itself register again.
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


def _tell_more() -> None:
    """Wrap `read` and `readStream` of "epochlog" so that the source learns two facts that Spark does not tell it: the
    number of tasks that the session runs at a time, and that a stream is one. Wrap writers so that they refuse to put a
    table into Spark's own catalog, which keeps no options.

    A Python source is planned in a process of its own, which knows no session. And Spark asks for the schema without
    telling a batch from a stream, and a stream has the change columns where a batch has not. `readChangeFeed` says it,
    so a user's own option works just as well.
    """
    from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    kinds: list[tuple[Any, dict[str, str]]] = [(DataFrameReader, {}), (DataStreamReader, {"readChangeFeed": "true"})]
    for kind, options in kinds:
        if not getattr(kind.format, "knows_epochlog", False):
            kind.format = _telling(kind.format, options)
    writers: list[tuple[Any, str]] = [(DataFrameWriter, "saveAsTable"), (DataStreamWriter, "toTable")]
    for kind, saving in writers:
        if not getattr(kind.format, "knows_epochlog", False):
            kind.format = _noting(kind.format)
            setattr(kind, saving, _refusing(getattr(kind, saving), saving))


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


def _noting(plain: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Wrap a writer's `format` so that the writer notes if it writes to this source."""

    @wraps(plain)
    def noted(self: Any, source: str) -> Any:
        self._writes_epochlog = source.lower() == FORMAT
        return plain(self, source)

    noted.knows_epochlog = True  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
    return noted


def _refusing(plain: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Wrap `saveAsTable` or `toTable` so that it raises InvalidInput for this source."""

    @wraps(plain)
    def refused(self: Any, *args: Any, **named: Any) -> Any:
        source = args[1] if len(args) > 1 else named.get("format")
        if (source or "").lower() == FORMAT or (source is None and getattr(self, "_writes_epochlog", False)):
            table = args[0] if args else named.get("name", named.get("tableName"))
            raise InvalidInput(f"{name}({table!r}) is not for format('epochlog'). {NO_CATALOG}")
        return plain(self, *args, **named)

    return refused


class EpochlogSource(DataSource):
    """Data source of `format("epochlog")`. A load is resolved once and travels with this object: its epoch is fixed at
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
        from .batch_source import make_reader

        return make_reader(self._resolved(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .sink import BatchSink, resolve_save

        return BatchSink(resolve_save(self.options, schema, overwrite))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .stream_source import LogStreamReader, StreamRead

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
        from .sink import StreamSink, resolve_save

        return StreamSink(resolve_save(self.options, schema, overwrite))

    def _resolved(self) -> Load:
        if self._load is None:
            from .batch_source import resolve_load

            self._load = resolve_load(self.options)
        return self._load
