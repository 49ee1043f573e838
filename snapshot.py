"""`Snapshot`: tables at chosen epochs, pinned while it is open, in every format they can be read in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochlog.batch.snapshot import PinnedSnapshot

from .errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Snapshot(PinnedSnapshot):
    """Tables at chosen epochs; their rows stay constant for the snapshot's life, across commits and compactions.

    `snapshot[name]` reads one table. Use it in a `with` block, or close it: until then it holds history back.
    `left_out` has, for a snapshot of all tables, the reason for each table that is missing; reading one raises
    TableNotReadable.
    """

    def spark(
        self, table: str, spark: SparkSession, *, columns: Sequence[str] | None = None, filter: str | None = None
    ) -> DataFrame:
        """Return the table of this snapshot as a Spark DataFrame; keep the snapshot open while Spark reads.

        Spark reads a table without commits since its compaction from its Parquet files, and prunes columns and rows
        itself. For other tables name the columns, since Spark prunes none of a Python source, and give a `filter`: a
        WHERE clause over single columns. A table within the session's `spark.sql.autoBroadcastJoinThreshold` carries a
        broadcast hint. Raises SparkLost for a session that was stopped, Corrupt for a damaged file.
        """
        self._check(table)
        if not (filter is None or isinstance(filter, str)):
            raise InvalidInput(f"for Spark, filter must be the text of a WHERE clause such as 'id < 5', not {filter!r}")
        from epochlog.spark.snapshot_frame import load_frame

        return load_frame(self._handle, self._plans[table], self.token, spark, columns, filter)
