"""`Snapshot`: tables at chosen epochs, pinned while it is open, with every way to read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from epochlog.batch.snapshot import PinnedSnapshot

from .errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Snapshot(PinnedSnapshot):
    """Tables as of chosen epochs; the same bytes for its whole life, whatever is committed or compacted meanwhile.

    `snapshot[name]` reads one table. Use it in a `with` block, or close it: it holds history back until then.
    `left_out` says of a snapshot of all tables which it has not, and why; reading one raises TableNotReadable.
    """

    def spark(
        self, table: str, spark: SparkSession, *, columns: Sequence[str] | None = None, filter: str | None = None
    ) -> DataFrame:
        """Return the table of this snapshot as a Spark DataFrame; keep the snapshot open while Spark reads.

        `filter` is a WHERE clause over single columns. Name the columns: Spark prunes none of a Python source. What
        takes no more memory than the session's `spark.sql.autoBroadcastJoinThreshold` carries a broadcast hint.
        """
        self._check(table)
        if not (filter is None or isinstance(filter, str)):
            raise InvalidInput(f"for Spark a filter is the text of a WHERE clause, such as 'id < 5', not {filter!r}")
        from epochlog.spark.snapshot_frame import frame_of

        return frame_of(self._handle, self._plans[table], self.token, spark, columns, filter)
