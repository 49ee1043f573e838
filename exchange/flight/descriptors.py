"""Descriptors of flights: parsing of a plain Flight client's commands. A path names a table, a command is a JSON
object.

    {"read": "orders", "epoch": 12?, "consistency": "latest"?, "options": {…}?, "columns": […]?}
    {"changes": "orders", "after": 11, "until": 12?, "mode": "epochs" | "net"?, "pre_images": false?, "columns": […]?}
    {"write": "orders", "txn": ["app", 42]?, "operation": "upsert" | "delete"?, "rows": 1000?}

Pure. Sizes are checked before parsing, and what is not known is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from epochlog.errors import InvalidInput

MAX_COMMAND = 1 << 16
"""Bytes of a descriptor."""


@dataclass(frozen=True, slots=True)
class Read:
    """Command to read a table's rows: at the epoch, or at the one that a consistency policy chooses."""

    table: str
    epoch: int | None = None
    consistency: str = "latest"
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ChangesCommand:
    """Command to read a table's log over (after, until]."""

    table: str
    after: int
    until: int | None = None
    mode: str = "epochs"
    pre_images: bool = False
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Write:
    """Command to write rows into a table. rows: the number of rows that will come; any other number is refused, so that
    half of them is.
    """

    table: str
    txn: tuple[str, int] | None = None
    operation: str = "upsert"
    rows: int | None = None


_KEYS = {
    "read": {"epoch", "consistency", "options", "columns"},
    "changes": {"after", "until", "mode", "pre_images", "columns"},
    "write": {"txn", "operation", "rows"},
}


def parse_reading(path: list[bytes], command: bytes) -> Read | ChangesCommand:
    """Parse a descriptor's path and command into the rows or changes to read. Raises InvalidInput."""
    if path:
        return Read(_table_of(path))
    found = _object(command)
    if "read" in found:
        return _read(_known(found, "read"))
    if "changes" in found:
        return _changes(_known(found, "changes"))
    raise InvalidInput(f"a command to read has the key 'read' or 'changes', not {_shown(sorted(found))}")


def parse_writing(path: list[bytes], command: bytes) -> Write:
    """Parse a descriptor's path and command into the table to write and its options. Raises InvalidInput."""
    if path:
        return Write(_table_of(path))
    found = _object(command)
    if "write" not in found:
        raise InvalidInput(f"a command to put has the key 'write', not {_shown(sorted(found))}")
    _known(found, "write")
    txn, operation, rows = found.get("txn"), found.get("operation", "upsert"), found.get("rows")
    if txn is not None and not (
        isinstance(txn, list) and len(txn) == 2 and isinstance(txn[0], str) and _is_whole(txn[1])
    ):
        raise InvalidInput(f"'txn' is a pair of an application and a number, not {_shown(txn)}")
    if operation not in ("upsert", "delete"):
        raise InvalidInput(f"'operation' is 'upsert' or 'delete', not {_shown(operation)}")
    if rows is not None and not _is_whole(rows):
        raise InvalidInput(f"'rows' is the number of rows that will come, not {_shown(rows)}")
    return Write(_text(found, "write"), None if txn is None else (txn[0], txn[1]), operation, rows)


def _read(found: dict[str, Any]) -> Read:
    options = found.get("options", {})
    if not isinstance(options, dict):
        raise InvalidInput(f"'options' is an object, not {_shown(options)}")
    epoch, consistency = _epoch(found, "epoch"), found.get("consistency")
    if epoch is not None and (consistency is not None or options):
        raise InvalidInput("'epoch' says already where to read; leave out 'consistency' and 'options'")
    if consistency is not None and not isinstance(consistency, str):
        raise InvalidInput(f"'consistency' is the name of a policy, not {_shown(consistency)}")
    return Read(_text(found, "read"), epoch, consistency or "latest", options, _columns(found))


def _changes(found: dict[str, Any]) -> ChangesCommand:
    after, until, mode = _epoch(found, "after"), _epoch(found, "until"), found.get("mode", "epochs")
    pre_images = found.get("pre_images", False)
    if after is None:
        raise InvalidInput("'after' is missing: the epoch after which the changes begin; 0 is the log's beginning")
    if mode not in ("epochs", "net"):
        raise InvalidInput(f"'mode' is 'epochs' or 'net', not {_shown(mode)}")
    if not isinstance(pre_images, bool):
        raise InvalidInput(f"'pre_images' is true or false, not {_shown(pre_images)}")
    return ChangesCommand(_text(found, "changes"), after, until, mode, pre_images, _columns(found))


def _object(command: bytes) -> dict[str, Any]:
    if len(command) > MAX_COMMAND:
        raise InvalidInput(f"a command has at most {MAX_COMMAND} bytes, not {len(command)}")
    try:
        found = json.loads(command, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f'a command is a JSON object such as {{"read": "orders"}}: {_shown(str(error))}') from None
    if not isinstance(found, dict):
        raise InvalidInput(f'a command is a JSON object such as {{"read": "orders"}}, not {_shown(found)}')
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _known(found: dict[str, Any], what: str) -> dict[str, Any]:
    unknown = sorted(found.keys() - _KEYS[what] - {what})
    if unknown:
        raise InvalidInput(
            f"a command with {what!r} has no key {_shown(unknown[0])}; it may have: {', '.join(sorted(_KEYS[what]))}"
        )
    return found


def _table_of(path: list[bytes]) -> str:
    if len(path) != 1:
        raise InvalidInput(f"a path is the name of one table; this one has {len(path)} parts")
    try:
        return path[0].decode("ascii")
    except UnicodeDecodeError:
        raise InvalidInput("a path is the name of a table, which is ASCII") from None


def _text(found: Mapping[str, Any], key: str) -> str:
    value = found[key]
    if not isinstance(value, str):
        raise InvalidInput(f"{key!r} is the name of a table, not {_shown(value)}")
    return value


def _epoch(found: Mapping[str, Any], key: str) -> int | None:
    value = found.get(key)
    if value is not None and not _is_whole(value):
        raise InvalidInput(f"{key!r} is an epoch, a whole number of at least 0, not {_shown(value)}")
    return value


def _columns(found: Mapping[str, Any]) -> tuple[str, ...] | None:
    value = found.get("columns")
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidInput(f"'columns' is a list of column names, not {_shown(value)}")
    return tuple(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _shown(value: object) -> str:
    """Return a stranger's value as text of at most 80 characters."""
    return repr(value)[:80]
