"""Log filter that keeps each record on one line: names and messages of peers cannot forge log lines or send control
characters to a terminal.
"""

from __future__ import annotations

import logging
import traceback


class OneLine(logging.Filter):
    """Filter that escapes the unprintable characters of each record. Tracebacks keep their lines, indented."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = _escaped(record.getMessage()), ()
        if record.exc_info and record.exc_info[1] is not None:
            lines = "".join(traceback.format_exception(record.exc_info[1])).split("\n")
            record.exc_text = "\n".join(f"    {_escaped(line)}" for line in lines if line)
        return True


def _escaped(text: str) -> str:
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


logging.getLogger("epochlog").addFilter(OneLine())
