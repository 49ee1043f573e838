"""Comparison of a job's outputs with a query over its upstreams, all read at the epoch of its newest commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from epochlog.errors import DependencyMissing, EpochExpired, InvalidInput
from epochlog.store.catalog.protocol import View
from epochlog.store.metadata.lookups import get_job, get_table
from epochlog.store.session.handle import Handle
from epochlog.store.types.coerce import as_table

from .arrow_compat import in_duckdb, shown
from .dataset import Relation
from .differences import CheckReport, compare
from .policy import Exact
from .snapshot import PinnedSnapshot, take_snapshot

TRIES = 3
"""Commits of the job that may overtake the choice of its epoch."""


class CheckContext:
    """Argument of a function given to `job.check`: it reads the job's upstreams at the job's newest commit."""

    def __init__(self, moment: PinnedSnapshot, epoch: int) -> None:
        self._moment = moment
        self.epoch = epoch

    def table(self, upstream: str) -> pa.Table:
        """Return all rows of an upstream at `epoch`. Raises InvalidInput for a table that is no upstream."""
        return self._moment[upstream].to_arrow()


Query = str | Mapping[str, str] | Callable[[CheckContext], Any]


def check_job(
    handle: Handle, job_id: int, name: str, query: Query, *, tolerance: float = 0.0, sample: int = 20
) -> CheckReport:
    """Compare the outputs with their query and return the differences. See `Job.check`."""
    if not isinstance(tolerance, int | float) or isinstance(tolerance, bool) or not 0 <= tolerance < 1:
        raise InvalidInput(f"job {name!r}: tolerance is a number from 0 to 1, not {tolerance!r}")
    if not isinstance(sample, int) or isinstance(sample, bool) or sample < 1:
        raise InvalidInput(f"job {name!r}: sample is a number of rows >= 1, not {sample!r}")
    epoch, above, own = _pinned(handle, job_id, name)
    with above, own:
        answers = _answers(name, query, above, epoch, list(own))
        found = {}
        for output, answer in answers.items():
            schema = own[output].plan.table
            rows = as_table(output, answer, schema.schema)
            found[output] = compare(schema, own[output].to_arrow(), rows, float(tolerance), sample)
    return CheckReport(name, epoch, found)


def _pinned(handle: Handle, job_id: int, name: str) -> tuple[int, PinnedSnapshot, PinnedSnapshot]:
    """Return the job's position, and snapshots of its upstreams and of its outputs there."""

    def standing(view: View) -> tuple[int, list[str], list[str]]:
        job = get_job(view, job_id, name)
        above, own = ([get_table(view, table, "?").name for table in tables] for tables in (job.upstreams, job.outputs))
        return job.position, above, own

    for left in reversed(range(TRIES)):
        epoch, above, own = handle.catalog.read(standing)
        if not epoch:
            raise InvalidInput(f"job {name!r} has not committed yet, so there is nothing to check; step or start it")
        try:
            moment = take_snapshot(handle, Exact(dict.fromkeys([*above, *own], epoch)), above)
            try:
                return epoch, moment, take_snapshot(handle, Exact(dict.fromkeys(own, epoch)), own)
            except BaseException:
                moment.close()
                raise
        except EpochExpired:
            if not left or handle.catalog.read(standing)[0] == epoch:
                raise
    raise AssertionError


def _answers(name: str, query: Query, above: PinnedSnapshot, epoch: int, outputs: list[str]) -> Mapping[str, Any]:
    """Run the query and return its answers by output."""
    if isinstance(query, Mapping):
        answers: Any = {output: _asked(above, output, text) for output, text in _known(name, query, outputs).items()}
    elif isinstance(query, str):
        answers = _asked(above, _only(name, outputs), query)
    elif callable(query):
        answers = query(CheckContext(above, epoch))
    else:
        raise InvalidInput(f"job {name!r}: a check takes a SELECT, a dict of them by output, or a function")
    return _known(name, answers, outputs) if isinstance(answers, Mapping) else {_only(name, outputs): answers}


def _known(name: str, by_output: Mapping[str, Any], outputs: list[str]) -> Mapping[str, Any]:
    unknown = [output for output in by_output if output not in outputs]
    if unknown or not by_output:
        raise InvalidInput(f"job {name!r} has no output {unknown[0] if unknown else ''!r}; it has {outputs}")
    return by_output


def _only(name: str, outputs: list[str]) -> str:
    if len(outputs) > 1:
        raise InvalidInput(f"job {name!r} has the outputs {outputs}: say which query is whose, as {{output: query}}")
    return outputs[0]


def _asked(above: PinnedSnapshot, output: str, text: Any) -> pa.Table:
    """Return the answer of DuckDB, which sees only the upstreams."""
    if not isinstance(text, str):
        raise InvalidInput(f"the query of {output!r} is the text of a SELECT, not {text!r}")
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise DependencyMissing(
            "a check by SQL is answered by DuckDB, which is not installed: pip install duckdb. Or give a function"
        ) from error
    with duckdb.connect(config={"enable_external_access": False}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name in above:
            table = above[name]
            connection.register(name, Relation(table, schema=shown(table.schema, in_duckdb)))
        try:
            answer = connection.sql(text)
            if answer is not None:
                return answer.to_arrow_table()
        except duckdb.Error as error:
            raise InvalidInput(f"the query of {output!r} cannot be answered: {error}") from error
    raise InvalidInput(f"the query of {output!r} is no SELECT: {text!r}")
