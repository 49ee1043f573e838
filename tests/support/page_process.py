"""Process that follows a page (see pages.py): it runs the commands, compares outputs and reports differences."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pages
import spark_guest

if spark_guest.PORT in os.environ:
    spark_guest.enter()

PATH = Path(os.environ["PAGE"])
TEXT = PATH.read_text("utf-8")
LINES = TEXT.splitlines()
TODO = pages.things_to_do(TEXT)
REPLACE = [tuple(pair.split("\t")) for pair in os.environ["PAGE_REPLACE"].splitlines()]
END = "\x01"
TELLS_CODE = '; echo "exit code $?"'

names = pages.Names()
came: dict[int, str] = {}
commands: dict[int, str] = {}
wrong: list[str] = []
_stdout = sys.stdout
_shell: subprocess.Popen[str] | None = None


def begin(place: int) -> None:
    """A python block begins: what it prints is caught."""
    came[place] = ""
    sys.stdout = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)


def end() -> None:
    """A python block has ended well."""
    place = max(came)
    caught, sys.stdout = sys.stdout, _stdout
    assert isinstance(caught.buffer, io.BytesIO)
    _compare(place, caught.buffer.getvalue().decode())


def command(place: int) -> None:
    """One command: of epochlog in this process, where it is only that (a new one takes half a second), else by bash."""
    line = TODO[place].command
    assert line is not None
    for old, new in REPLACE:
        line = line.replace(old, new)
    line = commands[place] = names.translated(line)
    bare = line.removesuffix(TELLS_CODE)
    simple = bare.startswith("epochlog ") and not re.search(r"[|&;<>$`\n*]", bare)
    code, text = _epochlog(bare) if simple else _bash(line)
    if simple and bare != line:
        code, text = 0, f"{text}exit code {code}\n"
    if code:
        wrong.append(f"{PATH.name}:{TODO[place].line}: exit code {code} of {line!r}:\n{text}")
    _compare(place, text)


def over() -> None:
    """The page has ended: tell, write, and end what it has left running."""
    if _shell is not None:
        os.killpg(_shell.pid, signal.SIGKILL)  # a session of its own: bash and what was put in the background there
    if wrong and os.environ["PAGE_WRITE"]:
        PATH.write_text(_written(), "utf-8")
    print("\n".join(wrong))


def _epochlog(line: str) -> tuple[int, str]:
    from epochlog.__main__ import main

    streams = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = caught = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    try:
        code = main(shlex.split(line)[1:])
    finally:
        sys.stdout, sys.stderr = streams
    assert isinstance(caught.buffer, io.BytesIO)
    return code, caught.buffer.getvalue().decode()


def _bash(line: str) -> tuple[int, str]:
    global _shell
    if _shell is None:
        _shell = subprocess.Popen(
            ["bash", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
    assert _shell.stdin is not None and _shell.stdout is not None
    _shell.stdin.write(f"{line}\nprintf '\\001%s\\n' $?\n")
    _shell.stdin.flush()
    output = ""
    for part in _shell.stdout:
        output += part
        if END in part:
            text, _, code = output.rpartition(END)
            return int(code), text
    raise EOFError(f"bash ended at {line!r}: {output}")


def _compare(place: int, text: str) -> None:
    for old, new in REPLACE:
        text = text.replace(new, old)
    here = str(Path.cwd())
    came[place] = text = text.replace(here + "/", "").replace(here, ".")
    entry = TODO[place]
    shown = "\n".join(LINES[entry.begin - 1 : entry.end - 1]) if entry.begin else ""
    complaint = names.learn(shown, text)
    if complaint:
        subject = entry.command or "the python block"
        wrong.append(f"{PATH.name}:{entry.line}: {subject}: {complaint}\n--- shown\n{shown}\n--- came\n{text}")


def _written() -> str:
    """The page with what came out, everywhere: then its epochs fit together."""
    lines = list(LINES)
    for place in sorted(came, reverse=True):
        entry = TODO[place]
        output = [line.rstrip() for line in came[place].strip("\n").splitlines()]
        if entry.begin:
            lines[entry.begin - 1 : entry.end - 1] = output
        elif output:
            closing = lines.index("```", entry.line)
            lines[closing + 1 : closing + 1] = ["", "```text", *output, "```"]
        if entry.command is not None:
            line = commands[place]
            for old, new in REPLACE:
                line = line.replace(new, old)
            command_lines = entry.command.splitlines()
            lines[entry.line - 1 : entry.line - 1 + len(command_lines)] = ("$ " + line).splitlines()
    return "\n".join(lines) + "\n"
