"""Interface of an engine that steps views: DuckDB in this process, or Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from epochlog.store.types.schema import TableSchema

from .compiled_plan import CompiledQuery
from .reads import R, Reads
from .state_step import StateSQL

Row = Mapping[str, Any]


class StepEngine(Protocol[R]):
    """Engine of one refresh of a view, for `views/step.py`. R: rows of a query, which need not be in this process."""

    @property
    def reads(self) -> Reads[R]: ...

    @property
    def state_sql(self) -> StateSQL | None:
        """Return the engine of the queries of a state; None if the view can have none here."""
        ...

    @property
    def most_rows(self) -> int | None:
        """Most rows that a step computes of its changes alone, in this process; None without a bound."""
        ...

    def run(self, query: CompiledQuery, known: Mapping[str, pa.Table] | None = None) -> R:
        """Return the rows of a query of the plan. known: tables that are no upstreams. Raises InvalidInput."""
        ...

    @property
    def late_overflows(self) -> tuple[type[Exception], ...]:
        """Errors with which rows that `run` has returned fail when they are written, for a value that does not fit."""
        ...

    def collect(self, rows: R, *, most: int | None = None, output: TableSchema | None = None) -> pa.Table:
        """Return the rows in this process, at most this number. Raises InvalidInput if they cannot be computed.

        output: of conformed rows, whose types they then have.
        """
        ...

    def conform(self, output: TableSchema, rows: R) -> R:
        """Return the rows with exactly the columns and types of an output."""
        ...

    def key_outside(self, output: TableSchema, rows: R, scope: Sequence[str], touched: pa.Table) -> Row | None:
        """Return the key of a new row that a row of the output has whose group is not touched; None without one."""
        ...

    def merged(self, output: str, rows: R, merges: Mapping[str, str]) -> R:
        """Return the rows of groups, merged with the output's rows of these groups. merges: sum, min or max, by column
        of a value that depends on the rows of a group. Raises InvalidInput for a value that does not fit its type.
        """
        ...

    def replace(self, output: str, rows: pa.Table, groups: pa.Table) -> None:
        """Replace the output's rows of few groups, all rows for groups of no columns, in this process."""
        ...
