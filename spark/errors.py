"""Typed errors of Spark tasks: the driver gets an epochlog error of a worker process as text only."""

from __future__ import annotations

import re

from epochlog import errors
from epochlog.errors import EpochlogError

_RAISED = re.compile(
    r"(?:^|terminated with exception: )(?:[\w.]*\bepochlog\.errors\.)(\w+): (.*?)(?=\n\s*\n|\s+SQLSTATE\b|\Z)",
    re.MULTILINE | re.DOTALL,
)
"""Errors as a Python traceback ends with them, and as Spark names the one that ended a stream."""


def find_epochlog_error(error: BaseException) -> EpochlogError | None:
    """Return the error itself if it is an epochlog error, else the epochlog error named in its text; None without
    one.
    """
    if isinstance(error, EpochlogError):
        return error
    messages = _RAISED.findall(str(error))
    for name, message in reversed(messages):
        error_class = getattr(errors, name, None)
        if isinstance(error_class, type) and issubclass(error_class, EpochlogError):
            typed_error = error_class.__new__(error_class)
            Exception.__init__(typed_error, message.strip())
            return typed_error
    return None
