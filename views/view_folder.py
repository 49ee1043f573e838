"""Folders of views: one file `name.sql` for each view, with its primary key and options in a leading comment.

    -- primary_key: day
    -- refresh: auto
    -- interval: 5 s
    -- max_lag: 1 min
    -- snapshot_rows: 500000
    SELECT day, SUM(cents) AS cents FROM orders GROUP BY day

These lines may stand, without the dashes of a comment, between two lines `---`. interval and max_lag are those of
`create_view`, in boundaries or as times, and so is snapshot_rows; a view without them keeps what it has.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal

from epochlog.errors import InvalidInput, JobCycle, ReadFailed
from epochlog.store.env.clock import FOR_EVER
from epochlog.store.env.whole_number import whole_number
from epochlog.store.types.schema import check_name

Action = Literal["create", "replace", "alter", "drop", "unchanged"]
_OPTIONS = ("primary_key", "refresh", "interval", "max_lag", "snapshot_rows")
_OPTION = re.compile(r"([A-Za-z_]+)\s*:\s*(.*)")
_ITEM = re.compile(r"-\s+(.+)")
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|millisecond|s|second|min|minute|h|hour|d|day)s?")
_UNITS_MS = {"ms": 1, "mi": 60_000, "s": 1000, "h": 3_600_000, "d": 86_400_000}
_FENCE = "---"


@dataclass(frozen=True, slots=True)
class ViewFile:
    """View as a file defines it."""

    name: str
    sql: str
    primary_key: tuple[str, ...]
    refresh: str
    interval: int | timedelta | None = None
    max_lag: int | timedelta | None = None
    snapshot_rows: int | None = None


@dataclass(frozen=True, slots=True)
class StoredView:
    """View as the store has it."""

    name: str
    primary_key: tuple[str, ...]
    refresh: str
    upstreams: tuple[str, ...]
    """Tables that it reads."""


@dataclass(frozen=True, slots=True)
class Change:
    """Change of one view that makes the store's views those of a folder."""

    action: Action
    name: str
    file: ViewFile | None = None
    """File of the view; None for a view that is dropped."""


def read_folder(folder: Path) -> dict[str, ViewFile]:
    """Read the views of a folder, by name. Raises InvalidInput with the file and line, ReadFailed."""
    try:
        if not folder.is_dir():
            raise InvalidInput(f"{folder} is no folder: name the folder with the views' .sql files")
        files = {path.stem: _text_of(path) for path in sorted(folder.glob("*.sql"))}
    except (OSError, UnicodeDecodeError) as error:
        raise ReadFailed(f"the views of {folder} cannot be read: {error}") from error
    if not files:
        raise InvalidInput(f"{folder} has no .sql file; each view is a file NAME.sql")
    return {name: parse_file(name, text, str(folder / f"{name}.sql")) for name, text in files.items()}


def _text_of(path: Path) -> str:
    """Read a regular file: another end of a pipe may never write. Raises ReadFailed, OSError, UnicodeDecodeError."""
    if not path.is_file():
        raise ReadFailed(f"{path} is no regular file: write the view's query into a file of this name")
    return path.read_text("utf-8-sig")


def parse_file(name: str, text: str, place: str) -> ViewFile:
    """Parse the leading options and the query of a view's file. place: its name in errors. Raises InvalidInput."""
    check_name("view", name)
    header, body = _split_header(text.splitlines(), place)
    options: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, option, value in header:
        if option in options:
            raise InvalidInput(f"{place}, line {number}: {option!r} is given twice")
        options[option], lines[option] = value, number
    columns = options.get("primary_key", "").strip().removeprefix("[").removesuffix("]").split(",")
    key = tuple(column.strip().strip("'\"`") for column in columns if column.strip())
    if not key:
        raise InvalidInput(f"{place} names no primary key: begin it with a line `-- primary_key: column, …`")
    sql = "\n".join(body).strip().removesuffix(";").strip()
    if not sql:
        raise InvalidInput(f"{place} has no query after its options")
    times = {
        option: _time(options[option], f"{place}, line {lines[option]}: {option}") if option in options else None
        for option in ("interval", "max_lag")
    }
    rows = None
    if "snapshot_rows" in options and (rows := whole_number(options["snapshot_rows"].strip())) is None:
        place = f"{place}, line {lines['snapshot_rows']}"
        raise InvalidInput(f"{place}: snapshot_rows is a number of rows, not {options['snapshot_rows']!r}")
    return ViewFile(name, sql, key, options.get("refresh", "auto"), **times, snapshot_rows=rows)


def _time(text: str, what: str) -> int | timedelta:
    """Parse a number of boundaries, or a time with its unit."""
    match = _TIME.fullmatch(text.strip().lower())
    if match is not None:
        unit = next(milliseconds for name, milliseconds in _UNITS_MS.items() if match[2].startswith(name))
        return timedelta(milliseconds=min(float(match[1]) * unit, FOR_EVER / timedelta(milliseconds=1)))
    number = whole_number(text.strip())
    if number is None:
        raise InvalidInput(f"{what} is a number of boundaries or a time such as `5 s` or `1 min`, not {text!r}")
    return number


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
        text = text.removeprefix("--").strip()
        item = _ITEM.fullmatch(text)
        if item is not None and header and header[-1][1] == "primary_key" and not header[-1][2].startswith("["):
            first, option, columns = header[-1]
            header[-1] = (first, option, f"{columns}, {item[1]}".removeprefix(", "))
            continue
        match = _OPTION.fullmatch(text)
        option = "" if match is None else match[1].lower()
        if option not in _OPTIONS and text and (fenced or _is_misspelt(option)):
            raise InvalidInput(f"{place}, line {number}: {text!r} is no option; a view has {', '.join(_OPTIONS)}")
        if match is not None and option in _OPTIONS:
            header.append((number, option, match[2]))
    if fenced:
        raise InvalidInput(f"{place}: the options begin with a line {_FENCE!r} and need another at their end")
    return header, ()


def _is_misspelt(word: str) -> bool:
    """Return True if a word before a colon, in a comment, is meant as an option."""
    return "_" in word or word.endswith(("key", "lag")) or bool(get_close_matches(word, _OPTIONS))


def plan_changes(
    files: Mapping[str, ViewFile],
    stored: Mapping[str, StoredView],
    reads: Mapping[str, Collection[str]],
    rewritten: Collection[str] = (),
    altered: Collection[str] = (),
) -> list[Change]:
    """Return the changes that make the stored views those of the files, in an order in which they can be made.

    reads: the tables that the query of each file reads. rewritten: the views of which a file gives another query.
    altered: those of which it gives another interval, max_lag or snapshot_rows. A view is dropped before those that it
    reads, and created after them. Raises JobCycle, and InvalidInput for a changed primary key and for a file that reads
    a view without a file.
    """
    oldest_first = _ordered({name: view.upstreams for name, view in stored.items()})
    changes = [Change("drop", name) for name in reversed(oldest_first) if name not in files]
    dropped = {change.name for change in changes}
    for name, tables in reads.items():
        if name in tables:
            raise InvalidInput(
                f"{name}.sql is a view {name!r} that reads a table {name!r}: a view and the tables that it reads have "
                "names of their own; give the file another name"
            )
        without_file = sorted(dropped.intersection(tables))
        if without_file:
            raise InvalidInput(
                f"view {name!r} reads the view {without_file[0]!r}, which has no file and would be dropped: add "
                f"{without_file[0]}.sql to the folder, or change the query"
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
        is_replaced = name in rewritten or current.refresh != file.refresh
        action: Action = "replace" if is_replaced else "alter" if name in altered else "unchanged"
        changes.append(Change(action, name, file))
    return changes


def _ordered(reads: Mapping[str, Collection[str]]) -> list[str]:
    """Return the views, each after those that it reads."""
    graph = {name: sorted(table for table in tables if table in reads) for name, tables in sorted(reads.items())}
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise JobCycle(f"the views read each other in a circle: {' reads '.join(reversed(error.args[1]))}") from error
