"""Checking a whole store: every catalog record, every file, its checksum, order and statistics, and what nothing
reaches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from ..errors import Corrupt, EpochlogError, StoreClosed
from .catalog import View
from .datafile import verified
from .definitions import Counters, TableDef, all_jobs, all_tables, get_runs, get_version
from .keys import KeyCodec, is_sorted_unique
from .records import after_prefix, key_epoch, log_key
from .run import EPOCH, UNTIL, Part, Run, read_part
from .segment import Segment, SegmentReader
from .version import LogEntry, Runs, TableVersion, broken_invariants, broken_runs

if TYPE_CHECKING:
    from .handle import Handle


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding: `where` names the file or record, `what` says what is wrong with it."""

    where: str
    what: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found. `unreachable`: files that no table reaches; they are no damage, vacuum removes them."""

    tables: int
    files: int
    bytes: int
    problems: tuple[Problem, ...] = ()
    unreachable: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class _TableFiles:
    table: TableDef
    runs: Runs
    segments: tuple[Segment, ...]


def verify_store(handle: Handle) -> VerifyReport:
    """Check everything; never raises for damage."""
    problems: list[Problem] = []
    listed = {info.path for info in handle.files.list(handle.store_id)}  # before asking what is reached
    try:
        handle.catalog.check()
        tables = handle.catalog.read(lambda view: list(_load(view, problems)))
    except StoreClosed:
        raise
    except EpochlogError as error:
        return VerifyReport(0, 0, 0, (*problems, Problem("catalog", str(error))))
    reached: dict[str, int] = {}
    for found in tables:
        problems += _check_table(handle, found, reached)
    return VerifyReport(
        tables=len(tables),
        files=len(reached),
        bytes=sum(reached.values()),
        problems=tuple(problems),
        unreachable=tuple(sorted(listed - set(reached))),
    )


def _load(view: View, problems: list[Problem]) -> Iterator[_TableFiles]:
    """Every table with its files; what is wrong in the catalog itself goes into `problems`."""
    for key, _ in view.scan(b"", b"\xff"):  # decoding a record checks it; asking for it checks the way there
        if view.get(key) is None:
            problems.append(Problem(f"catalog record {key!r}", "is there and cannot be found"))
    last_epoch = Counters.read(view).last_epoch
    ids = set()
    for table in all_tables(view):
        ids.add(table.id)
        version = get_version(view, table.id, table.name)
        where = f"table {table.name}"
        runs = get_runs(view, table.id)
        broken = (*broken_invariants(version), *broken_runs(version, runs))
        problems += [Problem(where, f"breaks the invariant {name}") for name in broken]
        if version.max_committed_epoch > last_epoch:
            problems.append(
                Problem(where, f"is committed at {version.max_committed_epoch}, above last_epoch {last_epoch}")
            )
        prefix = b"log/%08x/" % table.id
        entries = [LogEntry.from_record(r) for _, r in view.scan(log_key(table.id, 0), after_prefix(prefix))]
        if entries and entries[-1].epoch > version.max_committed_epoch:
            problems.append(Problem(where, f"has a log entry at {entries[-1].epoch}, above its newest commit"))
        problems += _check_log(view, table, version, {entry.epoch for entry in entries})
        yield _TableFiles(table, runs, tuple(segment for entry in entries for segment in entry.segments))
    for job in all_jobs(view):
        missing = [table for table in (*job.upstreams, *job.outputs) if table not in ids]
        if missing:
            problems.append(Problem(f"job {job.name}", f"refers to tables that are not there: {missing}"))


def _check_log(view: View, table: TableDef, version: TableVersion, logged: set[int]) -> Iterator[Problem]:
    """Every remembered commit that the log still reaches back to has its entry, and every entry is remembered."""
    prefix = b"hist/%08x/" % table.id
    commits = {key_epoch(key) for key, _ in view.scan(prefix, after_prefix(prefix))}
    lost = sorted(epoch for epoch in commits - logged if epoch >= max(version.log_start, 1))
    for epochs, what in ((lost, "has no log entry for"), (sorted(logged - commits), "remembers nothing of")):
        if epochs:
            yield Problem(f"table {table.name}", f"{what} {len(epochs)} commits, the first at {epochs[0]}")
    if version.max_committed_epoch and version.max_committed_epoch not in commits:
        yield Problem(f"table {table.name}", f"remembers nothing of its newest commit {version.max_committed_epoch}")


def _check_table(handle: Handle, found: _TableFiles, reached: dict[str, int]) -> Iterator[Problem]:
    schema = found.table.schema
    codec = KeyCodec(schema.schema, schema.primary_key)
    for segment in found.segments:
        reached[segment.path] = segment.bytes
        yield from _check_segment(handle, found.table, codec, segment)
    for run in found.runs:
        for part in (*run.parts, *run.history):
            reached[part.path] = part.bytes
            yield from _check_part(handle, found.table, codec, run, part)


def _check_segment(handle: Handle, table: TableDef, codec: KeyCodec, segment: Segment) -> Iterator[Problem]:
    try:
        verified(handle.files, segment.path, segment.bytes, segment.crc32, again=True)
        rows = SegmentReader(handle.files, segment, table.schema, codec).read()
    except Corrupt as error:
        yield Problem(segment.path, error.what)
        return
    deletes = 0 if rows.deleted is None else int(rows.deleted.sum())
    if (len(rows), deletes) != (segment.rows, segment.deletes):
        yield Problem(
            segment.path, f"has {len(rows)} rows and {deletes} deletes, not {segment.rows} and {segment.deletes}"
        )
    if not is_sorted_unique(rows.keys):
        yield Problem(segment.path, "its keys are not in order, each once")
    yield from _check_bounds(segment.path, rows.keys, segment.key_min, segment.key_max)
    if rows.data.num_rows and codec.encode(rows.data) != rows.keys:
        yield Problem(segment.path, "its hidden keys are not those of its key columns")


def _check_part(handle: Handle, table: TableDef, codec: KeyCodec, run: Run, part: Part) -> Iterator[Problem]:
    hidden = [EPOCH, UNTIL] if part.history else [EPOCH]
    try:
        verified(handle.files, part.path, part.bytes, part.crc32, again=True)
        rows = read_part(handle.files, part, table.schema, codec, [*table.schema.schema.names, *hidden])
    except Corrupt as error:
        yield Problem(part.path, error.what)
        return
    if len(rows) != part.rows:
        yield Problem(part.path, f"has {len(rows)} rows, not {part.rows}")
    if not part.history and not is_sorted_unique(rows.keys):
        yield Problem(part.path, "its keys are not in order, each once")
    yield from _check_bounds(part.path, rows.keys, part.key_min, part.key_max)
    begun, ended = rows.data.column(EPOCH), rows.data.column(UNTIL) if part.history else None
    if len(rows) and not run.lo < pc.min(begun).as_py() <= pc.max(begun).as_py() <= run.hi:
        yield Problem(part.path, f"holds rows from outside its run's epochs ({run.lo}, {run.hi}]")
    if ended is not None and len(rows) and not pc.all(pc.less(begun, ended)).as_py():
        yield Problem(part.path, "holds rows that end before they begin")


def _check_bounds(path: str, keys: Sequence, low: object, high: object) -> Iterator[Problem]:
    if len(keys) and (keys[0].as_py(), keys[len(keys) - 1].as_py()) != (low, high):
        yield Problem(path, "its least and greatest keys are not those that the catalog has")
