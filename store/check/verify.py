"""Check of a whole store: every catalog record, every file with its checksum, order and statistics, and unreachable
files.

Memory is bounded by one table's log entries and one block of rows; what the catalog says and what files hold is checked
in records.py and data_files.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from epochlog.errors import CatalogUnavailable, Corrupt, EpochlogError, ReadFailed, StoreClosed, TableDropped
from epochlog.store.catalog.protocol import View
from epochlog.store.env.os_refusals import undecodable
from epochlog.store.env.paths import ship_folder
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_table
from epochlog.store.types.key_codec import KeyCodec

from .data_files import check_ends, check_part, check_segment
from .exchanges import check_exchange_files, check_exchanges
from .records import Contents, TableFiles, check_records, check_table

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

Progress = Callable[[int, int], None]
"""Is told how many files are done, of how many that are known so far."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding: `where` names the file or record, `what` says what is wrong with it."""

    where: str
    what: str


class _Unread(Problem):
    """A file that the system refused to give."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Result of `verify`. `unreachable`: files that no table reaches; they are no damage, vacuum removes them.

    `unread`: files that the system refused to give, so nothing is known of them; the report is not `ok` then.
    """

    tables: int
    files: int
    bytes: int
    problems: tuple[Problem, ...] = ()
    unreachable: tuple[str, ...] = field(default=())
    unread: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems and not self.unread


def verify_store(handle: Handle, progress: Progress | None = None) -> VerifyReport:
    """Check everything; never raise for damage. Raises CatalogUnavailable or ReadFailed if nothing could be checked."""
    listed = {info.path for info in handle.files.list(handle.store_id)}  # before asking what is reached
    listed = {path for path in listed if not path.startswith(f"{ship_folder(handle.store_id)}/")}
    try:
        handle.catalog.check()
        contents = handle.catalog.read(check_records)
    except (StoreClosed, CatalogUnavailable, ReadFailed):
        raise
    except EpochlogError as error:
        return VerifyReport(0, 0, 0, (Problem("catalog", str(error)),))
    problems = [Problem(where, what) for where, what in contents.problems]
    reached: dict[str, int] = {}
    for table in contents.tables:
        problems += _check_table(handle, table, contents, reached, progress)
    problems += [Problem(where, what) for where, what in handle.catalog.read(check_exchanges)]
    files, found, refused = check_exchange_files(handle)
    reached.update(files)
    problems += [Problem(where, what) for where, what in found]
    problems += [_Unread(where, what) for where, what in refused]
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
    """Check one table; damage to a file that became unreachable meanwhile is not reported."""
    folder = handle.table_folder(table.id)
    try:
        files = handle.catalog.read(lambda view: _look(view, table, folder))
    except EpochlogError as error:
        if not isinstance(error, StoreClosed | TableDropped):
            yield Problem(f"table {table.name}", str(error))
            return
        raise
    if files is None:
        return
    yield from (Problem(where, what) for where, what in files.problems)
    lost = contents.gone & files.sizes.keys()
    yield from (Problem(path, "was let go of, and is still reached") for path in sorted(lost))
    done = len(reached)
    reached.update(files.sizes)
    found = []
    for number, problem in enumerate(_each_file(handle, table, files), start=1):
        found += [problem] if problem is not None else []
        if progress is not None:
            progress(min(done + number, len(reached)), len(reached))
    if found:
        now = handle.catalog.read(lambda view: _look(view, table, folder))
        yield from (problem for problem in found if now is not None and problem.where in now.sizes)


def _look(view: View, table: TableDef, folder: str) -> TableFiles | None:
    """Return the table's files; None when it has been dropped since."""
    try:
        get_table(view, table.id, table.name)
    except TableDropped:
        return None
    return check_table(view, table, folder)


def _each_file(handle: Handle, table: TableDef, files: TableFiles) -> Iterator[Problem | None]:
    """Yield the problems of each file, or None where it has none."""
    schema = table.schema
    codec = KeyCodec(schema.schema, schema.primary_key)
    for segment in files.segments:
        yield from _told(segment.path, check_segment(handle.files, schema, codec, segment)) or [None]
    for run in files.runs:
        whole = True
        for part in (*run.parts, *run.history):
            found = _told(part.path, check_part(handle.files, schema, codec, run, part))
            whole = whole and not found
            yield from found or [None]
        if whole:
            for past in run.history:
                yield from _told(past.path, check_ends(handle.files, schema, codec, run, past))


def _told(path: str, found: Iterator[str]) -> list[Problem]:
    """Return the problems that a check finds in a file; an unreadable file gives one that is no damage."""
    try:
        return [Problem(path, what) for what in found]
    except ReadFailed as error:
        return [_Unread(path, str(error))]
    except (pa.ArrowException, OSError, MemoryError) as error:
        told = undecodable(path, error)
        return [Problem(path, told.what) if isinstance(told, Corrupt) else _Unread(path, str(told))]
