"""Log filter that keeps each record on one line: no name or message of a peer can write lines of its own there, or
steer the terminal that shows it.
"""

from __future__ import annotations

import logging
import traceback


class OneLine(logging.Filter):
    """Filter that escapes unprintable characters of each record; tracebacks keep their lines, each of them indented."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = _escaped(record.getMessage()), ()
        if record.exc_info and record.exc_info[1] is not None:
            lines = "".join(traceback.format_exception(record.exc_info[1])).split("\n")
            record.exc_text = "\n".join(f"    {_escaped(line)}" for line in lines if line)
        return True


def _escaped(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


logging.getLogger("epochlog").addFilter(OneLine())
