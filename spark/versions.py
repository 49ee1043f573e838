"""Parts of PySpark 4.0 to 4.3 that some of its versions lack or call otherwise, each found by what is there.

All other modules import these names from here and do not ask for a version. What a version lacks is refused with the
version that has it.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError
from pyspark.sql import types as kinds
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema

from epochlog.errors import InvalidInput

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

    STREAM_LIMITS = True
except ImportError:
    STREAM_LIMITS = False
    if not TYPE_CHECKING:

        class ReadLimit:
            """Limit of a micro-batch, which Spark before 4.2 does not ask for."""

        class ReadAllAvailable(ReadLimit):
            """Limit of a micro-batch that takes all."""

        @dataclass(frozen=True)
        class ReadMaxRows(ReadLimit):
            """Limit of a micro-batch by its rows."""

            max_rows: int

        class SupportsTriggerAvailableNow:
            """Base class of readers that fix their end under trigger(availableNow=True)."""


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    ROWS_WITHOUT_COLUMNS = True  # the workers of this Spark keep the number of rows of a batch without columns
except ImportError:
    ROWS_WITHOUT_COLUMNS = False
    if not TYPE_CHECKING:

        class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
            """Writer of a stream that takes Arrow batches: Spark 4.0 asks only if it is a DataSourceArrowWriter."""


class _Absent:
    """Stand-in for a class that this Spark lacks; nothing is an instance of it."""


TimeType: Any = getattr(kinds, "TimeType", _Absent)
GeometryType: Any = getattr(kinds, "GeometryType", _Absent)
GeographyType: Any = getattr(kinds, "GeographyType", _Absent)
HAS_TIME = TimeType is not _Absent

__all__ = [
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]

_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
_FILE_MANAGER = "FileSystemBasedCheckpointFileManager"


def needs(feature: str, version: str, instead: str = "or leave it out") -> InvalidInput:
    """Return the error of a feature that this Spark lacks. version: the first that has it, such as "4.2"; instead: what
    to do on this one.
    """
    return InvalidInput(f"{needed(feature, version)}: install pyspark>={version}, {instead}")


def needed(feature: str, version: str) -> str:
    """Return the words that this Spark lacks a feature. version: the first that has it."""
    return f"{feature} needs Spark {version}, and this is Spark {pyspark.__version__}"


def to_arrow(schema: kinds.StructType) -> pa.Schema:
    """Return the Arrow schema of Spark's columns, with times in UTC."""
    return to_arrow_schema(schema, **_UTC)


def from_arrow(schema: pa.Schema) -> kinds.StructType:
    """Return Spark's columns of an Arrow schema. A timestamp without a zone stays without one."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def from_arrow_kind(kind: pa.DataType) -> kinds.DataType:
    """Return Spark's type of an Arrow type. A timestamp without a zone stays without one."""
    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def offsets_metadata(offsets: Any) -> Any:
    """Return the metadata of a micro-batch's entry in the log of offsets, an Option."""
    try:
        return offsets.metadataOpt()
    except Py4JError:
        return offsets.metadata()


def java_member(parent: Any, path: str) -> Any:
    """Return the class or the static method at a path below a Java package or class; None if this Spark lacks it."""
    try:
        member = reduce(getattr, path.split("."), parent)
    except Py4JError:
        return None
    return None if isinstance(member, JavaPackage) else member  # Py4J makes a package of a name without a class


def checkpoint_file_manager(jvm: Any) -> str:
    """Return the Java class of the checkpoint file manager that asks the file system alone. jvm: PySpark's."""
    path = f"checkpointing.{_FILE_MANAGER}"
    if java_member(jvm.org.apache.spark.sql.execution.streaming, path) is None:
        path = _FILE_MANAGER
    return f"org.apache.spark.sql.execution.streaming.{path}"
