"""Columns that a job reads of its upstreams: by field id, with the names and types of the time when it was made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa

from epochlog.errors import InvalidInput, SchemaChanged
from epochlog.store.types.schema import TableSchema

from .definitions import JobRecord, TableDef

Declared = Mapping[str, Sequence[str]]
"""Columns to read of some upstreams, by the name of the table."""


def job_columns(job: JobRecord, table: TableDef) -> TableSchema:
    """Return the columns of an upstream as the job reads them at every epoch."""
    version = dict(job.bound).get(table.id, 0)
    schema, names = table.schema.at(version), dict(job.columns).get(table.id)
    return schema if names is None else _chosen_before(schema, schema.lineage, tuple(names))


def read_by(job: JobRecord, table: TableDef) -> TableDef:
    """Return an upstream with the columns that the job reads."""
    return replace(table, schema=job_columns(job, table))


@lru_cache(maxsize=4096)
def _chosen_before(schema: TableSchema, lineage: tuple[TableSchema, ...], names: tuple[str, ...]) -> TableSchema:
    """Return the columns that a step has chosen before: a schema of many columns takes long to check. Schemas of other
    lineages are equal.
    """
    del lineage
    return chosen_columns(schema, names)


def chosen_columns(schema: TableSchema, names: Sequence[str]) -> TableSchema:
    """Return the columns of the key and those of `names`, in the table's order; without the sequence, which only writes
    compare, if it is not among them.
    """
    wanted = {*names, *schema.primary_key}
    kept = [(field, id_) for field, id_ in zip(schema.schema, schema.ids, strict=True) if field.name in wanted]
    fields, ids = pa.schema([field for field, _ in kept]), tuple(id_ for _, id_ in kept)
    sequence_by = schema.sequence_by if schema.sequence_by in fields.names else None
    return replace(schema, schema=fields, ids=ids, sequence_by=sequence_by).with_lineage(schema.lineage)


def bound_versions(tables: Iterable[TableDef]) -> tuple[tuple[int, int], ...]:
    """Return the versions of the columns that a job made now reads, by the id of the table; without first versions."""
    return tuple((table.id, table.schema.version) for table in tables if table.schema.version)


def checked_columns(
    job: str, tables: Sequence[TableDef], declared: Declared | None
) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return the declared columns by the id of the table. Raises InvalidInput."""
    by_name = {table.name: table for table in tables}
    if declared is not None and not isinstance(declared, Mapping):
        raise InvalidInput(f"job {job!r}: columns is a dict {{upstream: columns}}, not {declared!r}")
    chosen: dict[int, tuple[str, ...]] = {}
    for name, columns in (declared or {}).items():
        if name not in by_name:
            raise InvalidInput(f"job {job!r}: columns names {name!r}, which is no upstream; it reads {sorted(by_name)}")
        if isinstance(columns, str) or not isinstance(columns, Sequence):
            raise InvalidInput(f"job {job!r}: the columns of {name!r} are a list of names, not {columns!r}")
        known = set(by_name[name].schema.schema.names)
        unknown = [column for column in columns if not isinstance(column, str) or column not in known]
        if unknown:
            raise InvalidInput(f"job {job!r}: table {name!r} has no column {unknown[0]!r}")
        chosen[by_name[name].id] = tuple(columns)
    return tuple(chosen.items())


def require_versions(tables: Iterable[TableDef], planned: Mapping[str, int]) -> None:
    """Raise SchemaChanged if a table was altered since a query over it was planned. planned: versions by table."""
    for table in tables:
        if table.schema.version != planned.get(table.name, table.schema.version):
            raise SchemaChanged(
                f"table {table.name!r} was altered at epoch {table.schema.version}, while a query over it was planned; "
                "repeat the call"
            )
