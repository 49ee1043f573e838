"""Parser of the descriptors of flights: a path names a table, a command is a JSON object.

    {"read": "orders", "epoch": 12?, "consistency": "aligned"?, "options": {…}?, "columns": […]?}
    {"changes": "orders", "after": 11, "until": 12?, "mode": "epochs" | "net"?, "pre_images": false?, "columns": […]?}
    {"write": "orders", "txn": ["app", 42]?, "operation": "upsert" | "delete"?, "rows": 1000?}

Pure. The parser checks sizes before it parses, and refuses unknown keys.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from epochlog.errors import InvalidInput

MAX_COMMAND = 1 << 16
"""Largest number of bytes of a command."""


@dataclass(frozen=True, slots=True)
class Read:
    """Command to read a table's rows: at the epoch, or at that of a policy."""

    table: str
    epoch: int | None = None
    consistency: str | None = None
    """Policy of the read; None names none."""
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
    """Command to write rows into a table."""

    table: str
    txn: tuple[str, int] | None = None
    operation: str = "upsert"
    rows: int | None = None
    """Announced number of rows; a stream with any other number is refused, so an interrupted one is too."""


_KEYS = {
    "read": {"epoch", "consistency", "options", "columns"},
    "changes": {"after", "until", "mode", "pre_images", "columns"},
    "write": {"txn", "operation", "rows"},
}


def parse_reading(path: list[bytes], command: bytes) -> Read | ChangesCommand:
    """Parse a descriptor's path and command into the rows or changes to read. Raises InvalidInput."""
    if path:
        return Read(_table_of_path(path))
    command_json = _decode_object(command)
    if "read" in command_json:
        return _parse_read(_require_known_keys(command_json, "read"))
    if "changes" in command_json:
        return _parse_changes(_require_known_keys(command_json, "changes"))
    raise InvalidInput(f"a command to read has the key 'read' or 'changes', not {_abbreviate(sorted(command_json))}")


def parse_writing(path: list[bytes], command: bytes) -> Write:
    """Parse a descriptor's path and command into the table to write and its options. Raises InvalidInput."""
    if path:
        return Write(_table_of_path(path))
    command_json = _decode_object(command)
    if "write" not in command_json:
        raise InvalidInput(f"a command to put has the key 'write', not {_abbreviate(sorted(command_json))}")
    _require_known_keys(command_json, "write")
    txn, operation, rows = command_json.get("txn"), command_json.get("operation", "upsert"), command_json.get("rows")
    if txn is not None and not (
        isinstance(txn, list) and len(txn) == 2 and isinstance(txn[0], str) and _is_non_negative_int(txn[1])
    ):
        raise InvalidInput(f"'txn' is a pair of an application and a number, not {_abbreviate(txn)}")
    if operation not in ("upsert", "delete"):
        raise InvalidInput(f"'operation' is 'upsert' or 'delete', not {_abbreviate(operation)}")
    if rows is not None and not _is_non_negative_int(rows):
        raise InvalidInput(f"'rows' is the number of rows that will come, not {_abbreviate(rows)}")
    return Write(_table_name(command_json, "write"), None if txn is None else (txn[0], txn[1]), operation, rows)


def _parse_read(command_json: dict[str, Any]) -> Read:
    options = command_json.get("options", {})
    if not isinstance(options, dict):
        raise InvalidInput(f"'options' is an object, not {_abbreviate(options)}")
    epoch, consistency = _parse_epoch(command_json, "epoch"), command_json.get("consistency")
    if epoch is not None and (consistency is not None or options):
        raise InvalidInput("'epoch' already fixes the epoch; leave out 'consistency' and 'options'")
    if consistency is not None and not isinstance(consistency, str):
        raise InvalidInput(f"'consistency' is the name of a policy, not {_abbreviate(consistency)}")
    return Read(_table_name(command_json, "read"), epoch, consistency, options, _parse_columns(command_json))


def _parse_changes(command_json: dict[str, Any]) -> ChangesCommand:
    after, until, mode = (
        _parse_epoch(command_json, "after"),
        _parse_epoch(command_json, "until"),
        command_json.get("mode", "epochs"),
    )
    pre_images = command_json.get("pre_images", False)
    if after is None:
        raise InvalidInput(
            "'after' is missing: give the epoch after which the changes begin, 0 for the beginning of the log"
        )
    if mode not in ("epochs", "net"):
        raise InvalidInput(f"'mode' is 'epochs' or 'net', not {_abbreviate(mode)}")
    if not isinstance(pre_images, bool):
        raise InvalidInput(f"'pre_images' is true or false, not {_abbreviate(pre_images)}")
    return ChangesCommand(
        _table_name(command_json, "changes"), after, until, mode, pre_images, _parse_columns(command_json)
    )


def _decode_object(command: bytes) -> dict[str, Any]:
    if len(command) > MAX_COMMAND:
        raise InvalidInput(f"a command has at most {MAX_COMMAND} bytes, not {len(command)}")
    try:
        command_json = json.loads(command, object_pairs_hook=_refuse_duplicate_keys, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f'a command is a JSON object such as {{"read": "orders"}}: {_abbreviate(str(error))}'
        ) from None
    if not isinstance(command_json, dict):
        raise InvalidInput(f'a command is a JSON object such as {{"read": "orders"}}, not {_abbreviate(command_json)}')
    return command_json


def _refuse_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key occurs twice")
    return members


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def _require_known_keys(command_json: dict[str, Any], kind: str) -> dict[str, Any]:
    unknown = sorted(command_json.keys() - _KEYS[kind] - {kind})
    if unknown:
        raise InvalidInput(
            f"a command with {kind!r} has no key {_abbreviate(unknown[0])}; "
            f"it may have: {', '.join(sorted(_KEYS[kind]))}"
        )
    return command_json


def _table_of_path(path: list[bytes]) -> str:
    if len(path) != 1:
        raise InvalidInput(f"a path is the name of one table; this one has {len(path)} parts")
    try:
        return path[0].decode("ascii")
    except UnicodeDecodeError:
        raise InvalidInput("a path is the name of a table, which is ASCII") from None


def _table_name(command_json: Mapping[str, Any], key: str) -> str:
    value = command_json[key]
    if not isinstance(value, str):
        raise InvalidInput(f"{key!r} is the name of a table, not {_abbreviate(value)}")
    return value


def _parse_epoch(command_json: Mapping[str, Any], key: str) -> int | None:
    value = command_json.get(key)
    if value is not None and not _is_non_negative_int(value):
        raise InvalidInput(f"{key!r} is an epoch, a whole number of at least 0, not {_abbreviate(value)}")
    return value


def _parse_columns(command_json: Mapping[str, Any]) -> tuple[str, ...] | None:
    value = command_json.get("columns")
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidInput(f"'columns' is a list of column names, not {_abbreviate(value)}")
    return tuple(value)


def _is_non_negative_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _abbreviate(value: object) -> str:
    """Return the repr of a client's value, cut to 80 characters."""
    return repr(value)[:80]
