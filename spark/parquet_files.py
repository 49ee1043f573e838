"""DataFrames over the Parquet files of a compacted table, which Spark reads itself: columns and filters are its own.

Each file is checked by its checksum before Spark gets its name, and Spark checks those of the pages as it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochlog.store.env.files import Files
from epochlog.store.env.local_folder import LocalFiles
from epochlog.store.env.parallel import parallel_map
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst.data_file import FileGone, verified
from epochlog.store.sst.file_columns import column_map, file_schema
from epochlog.store.sst.sorted_run import RunFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

CHECKED_BYTES = 4 << 30
"""Size of a table's files up to which this process checks them; tasks check those of larger tables."""

_T = pa.types
OPTIONS = {
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",  # files have proleptic dates, as Spark itself writes
    "recursiveFileLookup": "true",  # a folder named `day=1` above the store gives no column
    "__globPaths__": "false",  # a file's path is no pattern
}


def parquet_files(files: Files, plan: ScanPlan) -> tuple[RunFile, ...] | None:
    """Return the files whose rows are those of the plan, for a reader of plain Parquet; None if there are none such.

    The plan's rows must be one run's live rows, without deletes and of the plan's schema, in a local folder.
    """
    if plan.segments or len(plan.runs) != 1 or not isinstance(files, LocalFiles):
        return None
    (run,) = plan.runs
    if run.past_epoch(plan.epoch) is not None or sum(part.bytes for part in run.parts) > CHECKED_BYTES:
        return None
    if any(part.deletes or column_map(plan.table, part) is not None for part in run.parts):
        return None
    if any(_differ_by_case(file_schema(plan.table, part).schema.names) for part in run.parts):
        return None
    return run.parts or None


def _differ_by_case(names: Sequence[str]) -> bool:
    """Return True if Spark takes two columns of a file for one. A file has dropped columns too, until it is rewritten.

    Hidden columns of a file begin with `_`, as no column of a table does.
    """
    return len({name.lower() for name in names}) < len(names)


def is_plain(kind: pa.DataType) -> bool:
    """Return True if Spark reads values of the type from Parquet as it gets them from a Python source."""
    return (
        _T.is_boolean(kind)
        or _T.is_signed_integer(kind)
        or kind in (pa.float32(), pa.float64(), pa.date32(), pa.string(), pa.large_string())
        or kind in (pa.binary(), pa.large_binary())
        or (_T.is_decimal128(kind))
        or (_T.is_timestamp(kind) and kind.unit == "us")
    )


def parquet_frame(
    session: SparkSession, files: Files, plan: ScanPlan, schema: StructType, columns: Sequence[str]
) -> DataFrame | None:
    """Return the plan's rows as a frame that Spark reads from its Parquet files; None if it cannot read them alone.

    schema: Spark's, of these columns. The files must stay in place while the frame is in use. Raises Corrupt for a
    damaged file.
    """
    from pyspark.sql import DataFrame

    relation = parquet_relation(session, files, plan, schema, columns)
    if relation is None:
        return None
    classic: Any = session
    return DataFrame(classic._jsparkSession.baseRelationToDataFrame(relation), session)


def parquet_relation(
    session: SparkSession, files: Files, plan: ScanPlan, schema: StructType, columns: Sequence[str]
) -> Any:
    """Return Java's relation of the plan's files, as for `parquet_frame`; None if Spark cannot read them alone.

    It is nullable as the schema says; Spark itself declares every column of a file nullable.
    """
    parts = parquet_files(files, plan)
    if parts is None or not all(is_plain(plan.table.schema.field(name).type) for name in columns):
        return None
    try:
        parallel_map(lambda part: verified(files, part.path, part.bytes, part.crc32), parts, plan.rows_at_most)
    except FileGone:  # the other reader knows why
        return None
    paths = [f"file:{files.place}/{part.path}" for part in parts]
    java: Any = session.read.schema(schema).options(**OPTIONS).parquet(*paths)._jdf
    classic: Any = session
    inner, relation = classic._jsparkSession, java.logicalPlan().relation()
    return relation.copy(
        relation.location(),
        relation.partitionSchema(),
        inner.parseDataType(schema.json()),
        relation.bucketSpec(),
        relation.fileFormat(),
        relation.options(),
        inner,
    )
