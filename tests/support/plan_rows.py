"""Rows of the query of a view's plan, as a step on DuckDB computes them."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from epochlog.views import duckdb_engine
from epochlog.views.derivation import ViewPlan
from epochlog.views.duckdb_functions import duckdb_text


def rows_of(connection: duckdb.DuckDBPyConnection, plan: ViewPlan) -> pa.Table:
    """Return the rows of a plan's query over the tables of a connection. Raises InvalidInput."""
    return duckdb_engine._answer(connection, duckdb_text(plan.query(), plan.form.occurrences, plan.schemas))
