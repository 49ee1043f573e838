"""Events that a test has logged."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from epochlog.store.env.log_events import EVENTS
from epochlog.store.env.log_line import logfmt

BY_NAME = {event.name: event for event in EVENTS}


def logged(caplog: pytest.LogCaptureFixture, *names: str) -> list[dict[str, Any]]:
    """Return the fields of the logged events with one of these names; of all events without names."""
    events = [record.__dict__["epochlog"] for record in caplog.records if "epochlog" in record.__dict__]
    return [event for event in events if not names or event["event"] in names]


class Recording(logging.Handler):
    """Handler that keeps all records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def recorded_events() -> Iterator[list[logging.LogRecord]]:
    """Record the events of all levels in the block. The level and the handlers of the root logger stay as they are."""
    logger, handler = logging.getLogger("epochlog"), Recording()
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield handler.records
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def missing_events(records: Iterable[logging.LogRecord], names: Iterable[str]) -> set[str]:
    """Return those of the events that were not logged, after a check of the form of each record."""
    seen = set()
    for record in records:
        fields = dict(record.__dict__["epochlog"])
        event = BY_NAME[fields.pop("event")]
        assert (record.name, record.levelno) == (event.logger, event.level), record
        assert tuple(fields) == event.fields, record
        line = record.getMessage()
        assert line == logfmt(event.name, fields) and line.isprintable(), line
        assert "/epochlog/" in record.pathname and not record.pathname.endswith(("log_line.py", "session/handle.py"))
        seen.add(event.name)
    return set(names) - seen
