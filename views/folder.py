"""Folders of views: one file `name.sql` for each view, with its primary key and options in a leading comment.

    -- primary_key: day
    -- refresh: auto
    SELECT day, SUM(cents) AS cents FROM orders GROUP BY day

The same lines may stand, without the dashes of a comment, between two lines `---`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal

from epochlog.errors import InvalidInput, JobCycle, ReadFailed
from epochlog.store.types.schema import check_name

Action = Literal["create", "replace", "drop", "unchanged"]
_OPTIONS = ("primary_key", "refresh")
_OPTION = re.compile(r"([A-Za-z_]+)\s*:\s*(.*)")
_FENCE = "---"


@dataclass(frozen=True, slots=True)
class ViewFile:
    """View as a file defines it."""

    name: str
    sql: str
    primary_key: tuple[str, ...]
    refresh: str


@dataclass(frozen=True, slots=True)
class StoredView:
    """View as the store has it. upstreams: the tables that it reads."""

    name: str
    sql: str
    primary_key: tuple[str, ...]
    refresh: str
    upstreams: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one view that makes the store's views those of a folder. file: None for a view that is dropped."""

    action: Action
    name: str
    file: ViewFile | None = None


def read_folder(folder: Path) -> dict[str, ViewFile]:
    """Read the views of a folder, by name. Raises InvalidInput with the file and line, ReadFailed."""
    try:
        if not folder.is_dir():
            raise InvalidInput(f"{folder} is no folder: name the folder with the views' .sql files")
        files = {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.sql"))}
    except (OSError, UnicodeDecodeError) as error:
        raise ReadFailed(f"the views of {folder} cannot be read: {error}") from error
    if not files:
        raise InvalidInput(f"{folder} has no .sql file; each view is a file NAME.sql")
    return {name: parse_file(name, text, str(folder / f"{name}.sql")) for name, text in files.items()}


def parse_file(name: str, text: str, place: str) -> ViewFile:
    """Parse the leading options and the query of a view's file. place: its name in errors. Raises InvalidInput."""
    check_name("view", name)
    header, body = _split_header(text.splitlines(), place)
    options: dict[str, str] = {}
    for number, option, value in header:
        if option in options:
            raise InvalidInput(f"{place}, line {number}: {option!r} is given twice")
        options[option] = value
    key = tuple(column.strip() for column in options.get("primary_key", "").strip("[]").split(",") if column.strip())
    if not key:
        raise InvalidInput(f"{place} names no primary key: begin it with a line `-- primary_key: column, …`")
    sql = "\n".join(body).strip().removesuffix(";").strip()
    if not sql:
        raise InvalidInput(f"{place} has no query after its options")
    return ViewFile(name, sql, key, options.get("refresh", "auto"))


def _split_header(lines: Sequence[str], place: str) -> tuple[list[tuple[int, str, str]], Sequence[str]]:
    """Return the options at the head of a file, each with its line's number, and the lines after them."""
    header: list[tuple[int, str, str]] = []
    fenced = next((line.strip() for line in lines if line.strip()), "") == _FENCE
    fences = 0
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if fenced and text == _FENCE:
            fences += 1
            if fences == 2:
                return header, lines[number:]
            continue
        if not fenced and text and not text.startswith("--"):
            return header, lines[number - 1 :]
        match = _OPTION.fullmatch(text.removeprefix("--").strip())
        known = match is not None and match[1].lower() in _OPTIONS
        if fenced and text and not known:
            raise InvalidInput(f"{place}, line {number}: {text!r} is no option; a view has {', '.join(_OPTIONS)}")
        if match is not None and known:
            header.append((number, match[1].lower(), match[2]))
    if fenced:
        raise InvalidInput(f"{place}: the options begin with a line {_FENCE!r} and need another at their end")
    return header, ()


def plan_changes(
    files: Mapping[str, ViewFile], stored: Mapping[str, StoredView], reads: Mapping[str, Collection[str]]
) -> list[Change]:
    """Return the changes that make the stored views those of the files, in an order in which they can be made.

    reads: the tables that the query of each file reads. A view is dropped before those that it reads, and created after
    them. Raises JobCycle, and InvalidInput for a changed primary key and for a file that reads a view without a file.
    """
    oldest_first = _ordered({name: view.upstreams for name, view in stored.items()})
    changes = [Change("drop", name) for name in reversed(oldest_first) if name not in files]
    dropped = {change.name for change in changes}
    for name, tables in reads.items():
        gone = sorted(dropped.intersection(tables))
        if gone:
            raise InvalidInput(
                f"view {name!r} reads the view {gone[0]!r}, which has no file and would be dropped: add {gone[0]}.sql "
                "to the folder, or change the query"
            )
    for name in _ordered(reads):
        file, current = files[name], stored.get(name)
        if current is None:
            changes.append(Change("create", name, file))
            continue
        if current.primary_key != file.primary_key:
            raise InvalidInput(
                f"view {name!r} has the primary key {', '.join(current.primary_key)}, and its file "
                f"{', '.join(file.primary_key)}: a view keeps its key. Drop the view, then apply the folder again"
            )
        same = (current.sql, current.refresh) == (file.sql, file.refresh)
        changes.append(Change("unchanged" if same else "replace", name, file))
    return changes


def _ordered(reads: Mapping[str, Collection[str]]) -> list[str]:
    """Return the views, each after those that it reads."""
    graph = {name: sorted(table for table in tables if table in reads) for name, tables in sorted(reads.items())}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise JobCycle(f"the views read each other in a circle: {' reads '.join(reversed(error.args[1]))}") from error
