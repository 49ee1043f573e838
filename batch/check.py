"""Comparison of a job's outputs with a query over its upstreams, all read at the epoch of its newest commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from epochlog.errors import DependencyMissing, EpochExpired, InvalidInput
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.metadata.job_columns import job_columns
from epochlog.store.metadata.lookups import get_job, get_table
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.session.handle import Handle
from epochlog.store.types.coerce import as_table
from epochlog.store.types.schema import TableSchema

from .arrow_compat import compatible_schema, in_duckdb
from .dataset import Relation
from .differences import CheckReport, compare
from .policy import Exact
from .snapshot import PinnedSnapshot, take_snapshot

TRIES = 3
"""Attempts to read at the job's newest commit, which newer commits may overtake."""


class CheckContext:
    """Argument of a function given to `job.check`: it reads the job's upstreams at the job's newest commit."""

    def __init__(self, snapshot: PinnedSnapshot, epoch: int) -> None:
        self._snapshot = snapshot
        self.epoch = epoch

    def table(self, upstream: str) -> pa.Table:
        """Return all rows of an upstream at `epoch`. Raises InvalidInput for a table that is not an upstream."""
        return self._snapshot[upstream].to_arrow()

    def plan(self, upstream: str) -> ScanPlan:
        """Return the plan of an upstream's rows at `epoch`, for an engine that reads them itself."""
        return self._snapshot[upstream].plan


Query = str | Mapping[str, str] | Callable[[CheckContext], Any]


def check_job(
    handle: Handle, job_id: int, name: str, query: Query, *, tolerance: float = 0.0, sample: int = 20
) -> CheckReport:
    """Compare the outputs with their query and return the differences. See `Job.check`."""
    if not isinstance(tolerance, int | float) or isinstance(tolerance, bool) or not 0 <= tolerance < 1:
        raise InvalidInput(f"job {name!r}: tolerance must be a number from 0 to below 1, not {tolerance!r}")
    if not isinstance(sample, int) or isinstance(sample, bool) or sample < 1:
        raise InvalidInput(f"job {name!r}: sample must be a number of rows >= 1, not {sample!r}")
    epoch, upstreams, outputs = pin_newest_commit(handle, job_id, name)
    with upstreams, outputs:
        answers = _run_query(name, query, upstreams, epoch, list(outputs))
        checks = {}
        for output, answer in answers.items():
            schema = outputs[output].plan.table
            rows = as_table(output, answer, schema.schema)
            checks[output] = compare(schema, outputs[output].to_arrow(), rows, float(tolerance), sample)
    return CheckReport(name, epoch, checks)


def pin_newest_commit(handle: Handle, job_id: int, name: str) -> tuple[int, PinnedSnapshot, PinnedSnapshot]:
    """Return the job's position, and snapshots of its upstreams and of its outputs at that epoch."""

    def read_job(view: ReadTxn) -> tuple[int, dict[str, TableSchema], list[str]]:
        job = get_job(view, job_id, name)
        tables = [get_table(view, table, "?") for table in job.upstreams]
        outputs = [get_table(view, table, "?").name for table in job.outputs]
        return job.position, {table.name: job_columns(job, table) for table in tables}, outputs

    for tries_left in reversed(range(TRIES)):
        epoch, columns, outputs = handle.catalog.read(read_job)
        upstreams = list(columns)
        if not epoch:
            raise InvalidInput(f"job {name!r} has not committed yet; step or start it before checking it")
        try:
            upstream_snapshot = take_snapshot(handle, Exact(dict.fromkeys([*upstreams, *outputs], epoch)), upstreams)
            upstream_snapshot.read_as(columns)
            try:
                return epoch, upstream_snapshot, take_snapshot(handle, Exact(dict.fromkeys(outputs, epoch)), outputs)
            except BaseException:
                upstream_snapshot.close()
                raise
        except EpochExpired:
            if not tries_left or handle.catalog.read(read_job)[0] == epoch:
                raise
    raise AssertionError


def _run_query(name: str, query: Query, upstreams: PinnedSnapshot, epoch: int, outputs: list[str]) -> Mapping[str, Any]:
    """Run the query and return its answers by output."""
    if isinstance(query, Mapping):
        answers: Any = {
            output: _run_sql(upstreams, output, text) for output, text in _require_outputs(name, query, outputs).items()
        }
    elif isinstance(query, str):
        answers = _run_sql(upstreams, _only_output(name, outputs), query)
    elif callable(query):
        answers = query(CheckContext(upstreams, epoch))
    else:
        raise InvalidInput(f"job {name!r}: a check takes a SELECT, a dict of SELECTs by output, or a function")
    return (
        _require_outputs(name, answers, outputs)
        if isinstance(answers, Mapping)
        else {_only_output(name, outputs): answers}
    )


def _require_outputs(name: str, by_output: Mapping[str, Any], outputs: list[str]) -> Mapping[str, Any]:
    unknown = [output for output in by_output if output not in outputs]
    if unknown or not by_output:
        raise InvalidInput(f"job {name!r} has no output {unknown[0] if unknown else ''!r}; it has {outputs}")
    return by_output


def _only_output(name: str, outputs: list[str]) -> str:
    if len(outputs) > 1:
        raise InvalidInput(f"job {name!r} has several outputs, {outputs}; pass a dict {{output: query}}")
    return outputs[0]


def _run_sql(upstreams: PinnedSnapshot, output: str, query: Any) -> pa.Table:
    """Return the answer of DuckDB, which sees only the upstreams."""
    if not isinstance(query, str):
        raise InvalidInput(f"the query of {output!r} must be the text of a SELECT, not {query!r}")
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise DependencyMissing(
            "a check by SQL needs DuckDB, which is not installed: pip install duckdb, or pass a function"
        ) from error
    with duckdb.connect(config={"enable_external_access": False}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name in upstreams:
            table = upstreams[name]
            connection.register(name, Relation(table, schema=compatible_schema(table.schema, in_duckdb)))
        try:
            answer = connection.sql(query)
            if answer is not None:
                return answer.to_arrow_table()
        except duckdb.Error as error:
            raise InvalidInput(f"the query of {output!r} failed: {error}") from error
    raise InvalidInput(f"the query of {output!r} is not a SELECT: {query!r}")
