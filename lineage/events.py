"""OpenLineage events of a run: plain values go in, a RunEvent comes out. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

import pyarrow as pa
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    nominal_time_run,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
    sql_job,
)
from openlineage.client.uuid import generate_static_uuid

from epochlog.store.types.epoch import to_unix_ms
from epochlog.version import __version__

T = TypeVar("T")
PRODUCER = "https://pypi.org/project/epochlog"


@dataclass(frozen=True, slots=True)
class WrittenOutput:
    """Rows, bytes and files that a commit wrote to one output."""

    rows: int
    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Facts of a run that all its events have. schemas: of inputs and outputs, by table. prev, curr: the barrier."""

    run_id: str
    namespace: str
    """OpenLineage namespace of the job and of its tables."""
    job: str
    prev: int
    curr: int
    inputs: Mapping[str, pa.Schema]
    outputs: Mapping[str, pa.Schema]
    sql: str | None = None
    """Query of a view, in Spark's dialect; None of another job."""


@dataclass(frozen=True, slots=True)
class RunEnd:
    """End of a run."""

    state: RunState
    written: Mapping[str, WrittenOutput] = field(default_factory=dict)
    """By output, for a commit."""
    error: str | None = None
    """Error of a failed run; None of any other."""


def run_id(store_id: str, job_id: int, curr: int, holder: str, attempt: int) -> str:
    """Return the id of a run: the n-th attempt of a barrier by one holder of the job's runner lease.

    Another process that finds the holder dead computes the id too.
    """
    data = f"{store_id}/{job_id}/{curr}/{holder}/{attempt}".encode()
    return str(generate_static_uuid(_time(to_unix_ms(curr)), data))


def namespace_of(place: str) -> str:
    """Return the namespace of a store's jobs and tables, by the place of the store."""
    return f"epochlog+{place if '://' in place else f'file://{quote(place)}'}"


def event(facts: RunFacts, end: RunEnd | None, now_ms: int) -> RunEvent:
    """Return the event of a run at a time: its START without an end."""
    state = RunState.START if end is None else end.state
    return RunEvent(
        eventType=state,
        eventTime=_iso(now_ms),
        run=Run(facts.run_id, _run_facets(facts, end)),
        job=Job(facts.namespace, facts.job, _job_facets(facts)),
        inputs=[
            InputDataset(facts.namespace, name, facets={"schema": _schema(schema), "version": _version(facts.curr)})
            for name, schema in facts.inputs.items()
        ],
        outputs=[_output(facts, name, schema, end) for name, schema in facts.outputs.items()],
        producer=PRODUCER,
    )


def _output(facts: RunFacts, name: str, schema: pa.Schema, end: RunEnd | None) -> OutputDataset:
    written = None if end is None else end.written.get(name)
    if written is None:
        return OutputDataset(facts.namespace, name, facets={"schema": _schema(schema)})
    statistics = _facet(
        output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet,
        rowCount=written.rows,
        size=written.bytes,
        fileCount=written.files,
    )
    return OutputDataset(
        facts.namespace,
        name,
        facets={"schema": _schema(schema), "version": _version(facts.curr)},
        outputFacets={"outputStatistics": statistics},
    )


def _run_facets(facts: RunFacts, end: RunEnd | None) -> dict[str, Any]:
    facets: dict[str, Any] = {
        "processing_engine": _facet(
            processing_engine_run.ProcessingEngineRunFacet,
            version=__version__,
            name="epochlog",
            openlineageAdapterVersion=__version__,
        )
    }
    if facts.prev:
        begin, until = _iso(to_unix_ms(facts.prev)), _iso(to_unix_ms(facts.curr))
        facets["nominalTime"] = _facet(nominal_time_run.NominalTimeRunFacet, begin, until)
    if end is not None and end.error is not None:
        facets["errorMessage"] = _facet(error_message_run.ErrorMessageRunFacet, end.error, "PYTHON")
    return facets


def _job_facets(facts: RunFacts) -> dict[str, Any]:
    kind = "JOB" if facts.sql is None else "VIEW"
    facets: dict[str, Any] = {"jobType": _facet(job_type_job.JobTypeJobFacet, "BATCH", "EPOCHLOG", kind)}
    if facts.sql is not None:
        facets["sql"] = _facet(sql_job.SQLJobFacet, facts.sql, "spark")
    return facets


def _version(epoch: int) -> dataset_version_dataset.DatasetVersionDatasetFacet:
    return _facet(dataset_version_dataset.DatasetVersionDatasetFacet, str(epoch))


def _schema(schema: pa.Schema) -> schema_dataset.SchemaDatasetFacet:
    return _facet(schema_dataset.SchemaDatasetFacet, _fields(schema))


def _fields(fields: Sequence[pa.Field] | pa.Schema) -> list[schema_dataset.SchemaDatasetFacetFields]:
    return [
        schema_dataset.SchemaDatasetFacetFields(
            child.name,
            str(child.type),
            ordinal_position=at,
            fields=_fields(list(child.type)) if pa.types.is_struct(child.type) else [],
        )
        for at, child in enumerate(fields, start=1)
    ]


def _facet(kind: Callable[..., T], *values: object, **fields: object) -> T:
    """Return a facet of this producer."""
    return kind(*values, producer=PRODUCER, **fields)


def _iso(ms: int) -> str:
    return _time(ms).isoformat(timespec="milliseconds")


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)
