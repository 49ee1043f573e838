"""Events as log records: one line of `event key=value …` each, with the values as attributes for formatters of JSON.

Records go to loggers named epochlog.<subject>, without a handler: the application configures logging.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Mapping
from typing import Any

Value = str | int | float | bool | list[str]
_QUOTED = '"\\'
_BARE = re.compile(r'[^\s"=\\]+')


class LogEvent:
    """Event of the log: its name, its logger below `epochlog`, its level, its fields in order, and its meaning.

    traceback: its `error` is unexpected, so the error's traceback follows the line, indented.
    """

    __slots__ = ("_logger", "about", "fields", "level", "name", "traceback")

    def __init__(self, name: str, logger: str, level: int, fields: str, about: str, *, traceback: bool = False) -> None:
        self.name = name
        self.level = level
        self.fields = tuple(fields.split())
        self.about = about
        self.traceback = traceback
        self._logger = logging.getLogger(f"epochlog.{logger}")
        if traceback:
            self._logger.addFilter(_indent_traceback)

    @property
    def logger(self) -> str:
        return self._logger.name

    @property
    def enabled(self) -> bool:
        """Return True if a logger takes records of the event. A call site asks before it computes costly values."""
        return self._logger.isEnabledFor(self.level)

    def log(self, **values: object) -> None:
        """Write the record of one event. values: one for each field."""
        if self.enabled:
            self.write(values, stacklevel=3)

    def write(self, values: Mapping[str, object], *, stacklevel: int) -> None:
        """Write the record. stacklevel: number of frames from here to the place that the record names."""
        fields = {field: plain(values[field]) for field in self.fields}
        error = values["error"] if self.traceback else None
        self._logger.log(
            self.level,
            logfmt(self.name, fields),
            exc_info=error if isinstance(error, BaseException) else None,
            extra={"epochlog": {"event": self.name, **fields}},
            stacklevel=stacklevel,
        )


def plain(value: object) -> Value:
    """Return a value that JSON has; an error as its type and message."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return str(value)


def logfmt(event: str, fields: Mapping[str, Any]) -> str:
    """Return the line of an event. It has no line break and no control character, whatever the values are."""
    return " ".join([event, *(f"{name}={_shown(value)}" for name, value in fields.items())])


def _shown(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = ",".join(value) if isinstance(value, list) else str(value)
    return text if text.isprintable() and _BARE.fullmatch(text) else f'"{_escaped(text, _QUOTED)}"'


def _escaped(text: str, special: str = "") -> str:
    """Escape the unprintable and the special characters as JSON does."""
    return "".join(char if char.isprintable() and char not in special else json.dumps(char)[1:-1] for char in text)


def _indent_traceback(record: logging.LogRecord) -> bool:
    """Indent a record's traceback and escape its unprintable characters, so that none of its lines is like a record."""
    if record.exc_info and record.exc_info[1] is not None:
        lines = "".join(traceback.format_exception(record.exc_info[1])).split("\n")
        record.exc_text = "\n".join(f"    {_escaped(line)}" for line in lines if line)
    return True
