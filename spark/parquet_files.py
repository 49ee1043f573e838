"""DataFrames over the Parquet files of a compacted table, which Spark reads itself: columns and filters are its own.

Each file is checked by its checksum before Spark gets its name, and Spark checks those of the pages as it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochlog.store.env.files import Files
from epochlog.store.env.local_folder import LocalFiles
from epochlog.store.env.parallel import parallel_map
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst.data_file import FileMissing, verified
from epochlog.store.sst.file_columns import column_map, file_schema
from epochlog.store.sst.sorted_run import RunFile
from epochlog.store.types.schema import TableSchema

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

    The plan's rows must be one run's live rows, without deletes, in a local folder, with the plan's names and types.
    """
    if plan.segments or len(plan.runs) != 1 or not isinstance(files, LocalFiles):
        return None
    (run,) = plan.runs
    if run.past_epoch(plan.epoch) is not None or sum(part.bytes for part in run.parts) > CHECKED_BYTES:
        return None
    if any(part.deletes or not _has_columns_of(plan.table, part) for part in run.parts):
        return None
    return run.parts or None


def _has_columns_of(table: TableSchema, part: RunFile) -> bool:
    """Return True if Spark finds the columns of the table in the file by their names, and no others by these.

    A column that was added later is not in the file, and null; one with a default is not null, as Spark would read it.
    A file has dropped columns too, until it is rewritten.
    Spark takes names that differ by case for one. Hidden columns begin with `_`, as no column of a table does.
    """
    names = [name.lower() for name in file_schema(table, part).schema.names]
    mapped = column_map(table, part)
    for name, source in ({} if mapped is None else mapped.sources).items():
        if source is None and table.default(name) is not None:
            return False
        if source is None:
            names.append(name.lower())
        elif source.name != name or not source.type.equals(table.schema.field(name).type):
            return False
    return len(set(names)) == len(names)


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


def parquet_frame(session: SparkSession, files: Files, plan: ScanPlan, schema: StructType) -> DataFrame | None:
    """Return the plan's rows as a frame that Spark reads from its Parquet files; None if it cannot read them alone.

    schema: Spark's, of the columns to read. The files must stay in place while the frame is in use. Raises Corrupt for
    a damaged file.
    """
    from pyspark.sql import DataFrame

    relation = parquet_relation(session, files, plan, schema)
    if relation is None:
        return None
    classic: Any = session
    return DataFrame(classic._jsparkSession.baseRelationToDataFrame(relation), session)


def parquet_relation(session: SparkSession, files: Files, plan: ScanPlan, schema: StructType) -> Any:
    """Return Java's relation of the plan's files, as for `parquet_frame`; None if Spark cannot read them alone.

    It is nullable as the schema says; Spark itself declares every column of a file nullable.
    """
    parts = parquet_files(files, plan)
    if parts is None or not all(is_plain(plan.table.schema.field(name).type) for name in schema.names):
        return None
    try:
        parallel_map(lambda part: verified(files, part.path, part.bytes, part.crc32), parts, plan.rows_at_most)
    except FileMissing:  # the other reader knows why
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
