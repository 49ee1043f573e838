"""Small steps of views in the driver: DuckDB computes them within a budget, where Spark takes a second for its jobs."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa

from epochlog.checkpoint.job.row_groups import pruning
from epochlog.errors import DependencyMissing, InvalidInput, LimitExceeded
from epochlog.store.changelog.plan_ranges import bytes_to_read
from epochlog.store.env.log_events import STEP_LEFT_DRIVER
from epochlog.store.types.read_options import ReadOptions
from epochlog.views import duckdb_engine
from epochlog.views.compiled_plan import CompiledQuery
from epochlog.views.reads import Images, Reads
from epochlog.views.stored import plan_of
from epochlog.views.table_names import EMPTY
from epochlog.views.table_reads import TableRead

from .refresh_context import SparkRefreshContext

BUDGET_ROWS, BUDGET_BYTES = 200_000, 64 << 20
"""Most changed and looked-up rows, and most bytes in memory of blocks, that a step in the driver may read."""
STEPS_ON_SPARK = 20
"""Steps of a view that begin on Spark after one that the driver left."""
MOST_LEFT = 4096
"""Views of which the process remembers that; with one more it forgets all."""
_left: dict[tuple[object, ...], int] = {}
"""Steps that begin on Spark, by store, job and incarnation."""


class OverBudget(Exception):
    """Error of a step in the driver that would read more than its budget."""


class StateMissing(Exception):
    """Error of a step in the driver of a view without its state, which it may not read all rows for."""


class BudgetReads(Reads[pa.Table]):
    """Reads of one step, each counted before it is made. Raises OverBudget."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._rows, self._bytes = BUDGET_ROWS, BUDGET_BYTES

    def changes(self, read: TableRead, images: Images) -> pa.Table:
        plan = self._ctx.plan.upstream(read.table).changes
        self._spend(plan.rows, bytes_to_read(plan, ReadOptions(self.columns(read))))
        return super().changes(read, images)

    def at(self, read: TableRead, values: pa.Table | None, instant: str) -> pa.Table:
        if instant != EMPTY:
            plan, columns = self.scan(read), self.columns(read)
            if values is not None and set(values.column_names) == set(plan.table.primary_key):
                self._spend(values.num_rows, 0)
            else:
                self._spend(0, bytes_to_read(plan, ReadOptions(columns, None if values is None else pruning(values))))
        return super().at(read, values, instant)

    def fits(self, query: CompiledQuery) -> bool:
        """Return True if this step may read all rows of the query's tables. Raises StateMissing."""
        scans = ((self.scan(read), self.columns(read)) for read in query.reads.values())
        if sum(bytes_to_read(scan, ReadOptions(columns)) for scan, columns in scans) > self._bytes:
            raise StateMissing("its state must be made of all rows of its tables")
        self._rows = self._bytes = sys.maxsize  # a large table is read in parts, each counted as all of it
        return True

    def _spend(self, rows: int, size: float) -> None:
        self._rows -= rows
        self._bytes -= size
        if self._rows < 0 or self._bytes < 0:
            raise OverBudget(f"it would read more than {BUDGET_ROWS:,} rows or {BUDGET_BYTES >> 20} MiB")


def step_in_driver(ctx: SparkRefreshContext) -> bool:
    """Refresh a view in the driver if the step is small, so that its commit says so; return False if Spark must do it,
    with nothing written.
    """
    plan = ctx.plan
    name = ctx.files.place, plan.job.id, plan.job.incarnation
    if not BUDGET_ROWS or ctx.barrier.kind == "initial" or _is_left(name):
        return False
    try:
        with ctx.in_driver() as local:
            duckdb_engine.refresh(local, *plan_of(local, "duckdb"), BudgetReads)
    except (OverBudget, StateMissing, InvalidInput, LimitExceeded, DependencyMissing) as error:
        if isinstance(error, StateMissing):
            ctx.makes_state = True  # the next step is one in the driver again
        else:
            _leave(name)
        STEP_LEFT_DRIVER.log(view=plan.job.name, error=error)
        return False
    ctx._adopt(local)
    return True


def _is_left(name: tuple[object, ...]) -> bool:
    """Count a step of a view; return True if it begins on Spark."""
    steps = _left.get(name, 0)
    if steps > 0:
        _left[name] = steps - 1
    return steps > 0


def _leave(name: tuple[object, ...]) -> None:
    """Let the next steps of a view begin on Spark."""
    if len(_left) >= MOST_LEFT:
        _left.clear()
    _left[name] = STEPS_ON_SPARK
