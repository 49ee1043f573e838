"""Output of a command: JSON or text on standard output, progress on standard error."""

from __future__ import annotations

import codecs
import io
import json
import re
import sys
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress

PATIENCE_S = 1.0
"""Time after which a command shows its progress."""
FLUSH_ROWS = 1000
_CONTROL_CHARACTERS = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that control a terminal or the order of its text, and that JSON does not escape."""
PAGE_COLUMNS = 120


class Waiting:
    """Progress display of a long command on a terminal: a spinner, or a bar if the total is known.

    quiet: show nothing, because a program reads the command's output.
    """

    def __init__(self, label: str, *, quiet: bool = False) -> None:
        self._label = label
        self._quiet = quiet
        self._lock = threading.Lock()
        self._done, self._total, self._of = 0, None, ""
        self._ended = False
        self._bar: Progress | None = None
        self._timer = threading.Timer(PATIENCE_S, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not self._quiet:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def step(self, done: int, total: int | None = None, *, of: str = "") -> None:
        """Record that `done` of `total` steps are done (None: unknown total). `of` names the current object."""
        with self._lock:
            self._done, self._total, self._of = done, total, of
            if self._bar:
                self._bar.update(self._bar.task_ids[0], completed=done, total=total, description=self._text)

    @property
    def _text(self) -> str:
        return f"{self._label}: {self._of}" if self._of else self._label

    def end(self) -> None:
        """Remove the spinner or bar from the screen; a second call does nothing."""
        self._timer.cancel()
        with self._lock:
            self._ended = True
            bar, self._bar = self._bar, None
        if bar:
            bar.stop()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with self._lock:
            if not self._ended:
                self._bar = bar = Progress(*columns, console=Console(stderr=True), transient=True)
                bar.add_task(self._text, completed=self._done, total=self._total)
                bar.start()


class CommandOutput:
    """Standard output of one command."""

    def __init__(self, waiting: Waiting, as_json: bool) -> None:
        self.waiting = waiting
        self.as_json = as_json

    @property
    def on_terminal(self) -> bool:
        return sys.stdout.isatty()

    @property
    def width(self) -> int:
        """Return the columns of the terminal, or PAGE_COLUMNS without one."""
        return people_console().width if self.on_terminal else PAGE_COLUMNS

    def document(self, value: Any, *, on_one_line: bool = False) -> None:
        """Write one JSON document."""
        self._write(self._dumped(value, None if on_one_line else 2) + "\n")

    def lines(self, values: Iterable[Any]) -> None:
        """Write JSON lines, as they come."""
        for count, value in enumerate(values, start=1):
            self._write(self._dumped(value, None) + "\n")
            if count % FLUSH_ROWS == 0:
                self.flush()

    def text(self, lines: Iterable[str]) -> None:
        """Write lines for people, as they come."""
        for line in lines:
            self._write(line + "\n")

    def show(self, *parts: RenderableType) -> None:
        """Write text and tables for people, with empty lines between them. Without a terminal nothing is wrapped."""
        self.waiting.end()
        console = people_console()
        for place, part in enumerate(parts):
            if place:
                console.print()
            console.print(part, highlight=False, markup=False, soft_wrap=isinstance(part, str))

    def flush(self) -> None:
        sys.stdout.flush()

    def _dumped(self, value: Any, indent: int | None) -> str:
        ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
        text = json.dumps(value, indent=indent, ensure_ascii=ascii_only, allow_nan=False)
        return _CONTROL_CHARACTERS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)

    def _write(self, text: str) -> None:
        if self.on_terminal:
            self.waiting.end()
        sys.stdout.write(text)


ASCII_FORMS = dict(zip("●○•─╌░█▲◀├└│→", "*o.-~:#^<|`|>", strict=True))
"""ASCII replacements of the characters that pages are drawn with, each one column wide."""


def escape_unencodable() -> None:
    """Make standard output replace or escape the characters that its encoding lacks, instead of raising."""
    codecs.register_error("epochlog", _escaped)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="epochlog")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    odd = error.object[error.start : error.end]
    return "".join(ASCII_FORMS.get(c, c.encode("ascii", "backslashreplace").decode()) for c in odd), error.end


def people_console() -> Console:
    """Return a console on standard output that raises BrokenPipeError, and wraps lines on a terminal alone."""
    from rich.console import Console

    class Page(Console):
        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704 (rich calls this while it handles the BrokenPipeError)

    return Page(width=None if sys.stdout.isatty() else 10_000)
