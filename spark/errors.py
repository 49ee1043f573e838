"""Typed errors out of Spark's: an epochlog error in a worker process comes back to the driver as text alone."""

from __future__ import annotations

import re

from epochlog import errors
from epochlog.errors import EpochlogError

_RAISED = re.compile(r"^(?:[\w.]*\bepochlog\.errors\.)(\w+): (.*?)(?=\n\s*\n|\n SQLSTATE|\Z)", re.MULTILINE | re.DOTALL)


def typed(error: BaseException) -> EpochlogError | None:
    """Return the epochlog error that this error is or names in its text, None when it is about something else."""
    if isinstance(error, EpochlogError):
        return error
    told = _RAISED.findall(str(error))
    for name, message in reversed(told):
        found = getattr(errors, name, None)
        if isinstance(found, type) and issubclass(found, EpochlogError):
            made = found.__new__(found)
            Exception.__init__(made, message.strip())
            return made
    return None
