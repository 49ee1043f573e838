"""Check of a whole store: every catalog record, every file with its checksum, order and statistics, and unreachable
files.

Memory is bounded by one table's log entries and one block of rows. records.py checks the catalog, data_files.py the
files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from epochlog.errors import CatalogUnavailable, Corrupt, EpochlogError, ReadFailed, StoreClosed, TableDropped
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.commit.type_trial import unreturned
from epochlog.store.env.os_refusals import undecodable
from epochlog.store.env.paths import ship_folder
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_table
from epochlog.store.scan.kept_lookup import kept_schema
from epochlog.store.types.key_codec import KeyCodec

from .data_files import check_ends, check_part, check_segment
from .exchanges import check_exchange_files, check_exchanges
from .records import Contents, TableFiles, check_records, check_table

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

Progress = Callable[[int, int], None]
"""Called with the number of checked files and the number of files known so far."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Finding: `where` names the file or record, `what` is the problem."""

    where: str
    what: str


class _Unread(Problem):
    """File that the system refused to read."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of `verify`."""

    tables: int
    files: int
    bytes: int
    problems: tuple[Problem, ...] = ()
    unreachable: tuple[str, ...] = field(default=())
    """Files that no table reaches; they are not damage, vacuum deletes them."""
    unread: tuple[Problem, ...] = ()
    """Files that the system refused to read, so their state is unknown; the report is then not `ok`."""

    @property
    def ok(self) -> bool:
        return not self.problems and not self.unread


_OF_STATE = "it is of the view's state, which a step that cannot read it makes anew"


def verify_store(handle: Handle, progress: Progress | None = None) -> VerifyReport:
    """Check the whole store; return damage as problems. Raises CatalogUnavailable or ReadFailed if nothing could be
    checked.
    """
    # Files are listed before the catalog is read, so that a new file does not look unreachable.
    listed = {info.path for info in handle.files.list(handle.store_id)}
    listed = {path for path in listed if not path.startswith(f"{ship_folder(handle.store_id)}/")}
    try:
        handle.catalog.verify_storage()
        contents = handle.catalog.read(check_records)
    except (StoreClosed, CatalogUnavailable, ReadFailed):
        raise
    except EpochlogError as error:
        return VerifyReport(0, 0, 0, (Problem("catalog", str(error)),))
    problems = [Problem(location, problem) for location, problem in contents.problems]
    reached: dict[str, int] = {}
    for table in contents.tables:
        problems += _check_table(handle, table, contents, reached, progress)
    problems += [Problem(location, problem) for location, problem in handle.catalog.read(check_exchanges)]
    files, damaged, refused = check_exchange_files(handle)
    reached.update(files)
    problems += [Problem(location, problem) for location, problem in damaged]
    problems += [_Unread(location, problem) for location, problem in refused]
    return VerifyReport(
        tables=len(contents.tables),
        files=len(reached),
        bytes=sum(reached.values()),
        problems=tuple(problem for problem in problems if not isinstance(problem, _Unread)),
        unreachable=tuple(sorted(listed - set(reached) - contents.under_way)),
        unread=tuple(problem for problem in problems if isinstance(problem, _Unread)),
    )


def _check_table(
    handle: Handle, table: TableDef, contents: Contents, reached: dict[str, int], progress: Progress | None
) -> Iterator[Problem]:
    """Check one table. Damage to a file that became unreachable meanwhile is not reported."""
    folder = handle.table_folder(table.id)
    try:
        files = handle.catalog.read(lambda view: _read_files(view, table, folder))
    except EpochlogError as error:
        if not isinstance(error, StoreClosed | TableDropped):
            yield Problem(f"table {table.name}", str(error))
            return
        raise
    if files is None:
        return
    yield from (Problem(location, problem) for location, problem in files.problems)
    for column, reason in unreturned(table.schema.schema):
        yield Problem(f"table {table.name}", f"column {column!r}: {reason}")
    lost = contents.unreachable & files.sizes.keys()
    yield from (Problem(path, "is noted as unreachable, but the catalog reaches it") for path in sorted(lost))
    checked = len(reached)
    reached.update(files.sizes)
    problems = []
    for number, problem in enumerate(_each_file(handle, table, files), start=1):
        problems += [problem] if problem is not None else []
        if progress is not None:
            progress(min(checked + number, len(reached)), len(reached))
    if problems:
        current = handle.catalog.read(lambda view: _read_files(view, table, folder))
        yield from (problem for problem in problems if current is not None and problem.where in current.sizes)


def _read_files(view: ReadTxn, table: TableDef, folder: str) -> TableFiles | None:
    """Check a table's records and return its files; None if it has been dropped."""
    try:
        get_table(view, table.id, table.name)
    except TableDropped:
        return None
    return check_table(view, table, folder)


def _each_file(handle: Handle, table: TableDef, files: TableFiles) -> Iterator[Problem | None]:
    """Yield the problems of each file, or None for a file without problems."""
    schema = table.schema
    codec = KeyCodec(schema.schema, schema.primary_key)
    for segment in files.segments:
        problems = _problems(segment.path, check_segment(handle.files, schema, segment, files.packs.get(segment.path)))
        content = files.contents.get(segment.path)
        suffix = "" if content is None else f"; it has {content}"
        yield from [replace(problem, what=problem.what + suffix) for problem in problems] or [None]
    if files.kept:
        deletes = kept_schema(schema)
        for file in files.kept:
            yield from _problems(file.path, check_segment(handle.files, deletes, file)) or [None]
    for kept in files.state:
        for segment in kept.segments:
            if not handle.files.exists(segment.path):
                continue  # a step that needs it makes the state anew
            problems = _problems(segment.path, check_segment(handle.files, kept.schema, segment))
            yield from [replace(problem, what=f"{problem.what}; {_OF_STATE}") for problem in problems] or [None]
    for run in files.runs:
        intact = True
        for part in (*run.parts, *run.history):
            problems = _problems(part.path, check_part(handle.files, schema, run, part))
            intact = intact and not problems
            yield from problems or [None]
        if intact:
            for past in run.history:
                yield from _problems(past.path, check_ends(handle.files, schema, codec, run, past))


def _problems(path: str, findings: Iterator[str]) -> list[Problem]:
    """Return the problems that a check finds in a file. An unreadable file gives one that is not damage."""
    try:
        return [Problem(path, finding) for finding in findings]
    except ReadFailed as error:
        return [_Unread(path, str(error))]
    except (pa.ArrowException, OSError, MemoryError) as error:
        translated = undecodable(path, error)
        return [Problem(path, translated.what) if isinstance(translated, Corrupt) else _Unread(path, str(translated))]
