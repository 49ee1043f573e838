"""Pages of Markdown that are followed as by a reader: they show what comes out, but for epochs, times and the like.

A page is one story. Its ```python blocks run in order in one process, its ```console blocks are commands (`$ …`) with
what they print below them, both in one empty folder. A ```text block shows what the python block before it prints; a
python block that prints has one. `follow` runs a page and tells where it is wrong. To write what came out into a page:

    PYTHONPATH=tests/support python -m pages docs/guide/operating.md
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
KINDS = ("python", "console", "text")

# What is another thing each time but stays the same within one story; a command below may repeat it.
NAMED = re.compile(r"\b\d{15}\b|\b[0-9a-f]{32}\b|(?<![\w-])[A-Za-z0-9_-]{40,}(?![\w-])")
# What is merely another thing each time.
VOLATILE = (
    (re.compile(r"\b(query|step|pipeline|coordinator) +\d+ +[\w.-]+ +(?=\d{4}-\d\d-\d\dT)"), r"\1 PROCESS "),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?"), "TIME"),
    (re.compile(r"\b\d+ (d|h|min) \d+ (h|min|s)\b|\b\d+(\.\d+)? m?s\b"), "SPAN"),
    (re.compile(r'(?<=_ms)("?[=:] ?)[\d.]+'), r"\1SPAN"),
    (re.compile(r"\b[\d,]+ epochs?\b"), "EPOCHS"),
    (re.compile(r"\b[\d.]+ ([kMGT]?B)\b"), "SIZE"),
    (re.compile(r"\b[0-9a-f]{8}\b"), "ID"),
    (re.compile(r"\b[\w.-]+:\d{4,5}\b|\b\d+ on [\w.-]+|\b\d+@[\w.-]+|\b[\w.-]+/\d{2,}\b"), "PROCESS"),
    (re.compile(r"[─-]{3,}"), "---"),
    (re.compile(r"[ \t]+"), " "),
)


@dataclass(frozen=True)
class Block:
    """One fence of a page. `line` is that of its opening, from 1; `lines` is what stands in it."""

    line: int
    kind: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Shown:
    """One thing to do and the lines [begin, end) of the page, from 1, where its output is shown.

    `command` is None for a python block. A python block that shows nothing has begin 0.
    """

    line: int
    command: str | None
    begin: int
    end: int


def blocks(text: str) -> Iterator[Block]:
    """All fences of a page. ValueError for one that is open, indented, or of a kind that nobody runs."""
    opened: tuple[int, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if opened is None and line.lstrip().startswith("```"):
            kind = line.removeprefix("```")
            if kind not in KINDS:
                raise ValueError(f"line {number}: a fence is one of {', '.join(KINDS)}, at the margin, not {line!r}")
            opened, inside = (number, kind), []
        elif opened is not None and line == "```":
            yield Block(*opened, tuple(inside))
            opened = None
        elif opened is not None:
            inside.append(line)
        elif line.startswith("    ") and not re.match(r" +([-*]|\d+\.) ", line):
            raise ValueError(f"line {number}: code stands in a fence, so that it is run: {line!r}")
    if opened is not None:
        raise ValueError(f"line {opened[0]}: this fence has no end")


def things_to_do(text: str) -> list[Shown]:
    """The page's story, in order."""
    entries: list[Shown] = []
    for block in blocks(text):
        first = block.line + 1
        if block.kind == "python":
            entries.append(Shown(block.line, None, 0, 0))
        elif block.kind == "console":
            entries += _commands(block, first)
        elif not entries or entries[-1].command is not None or entries[-1].begin:
            raise ValueError(f"line {block.line}: a text block shows what the python block before it prints")
        else:
            entries[-1] = Shown(entries[-1].line, None, first, first + len(block.lines))
    return entries


def _commands(block: Block, first: int) -> Iterator[Shown]:
    at, end = 0, len(block.lines)
    while at < end:
        line, begin = block.lines[at], at
        if not line.startswith("$ "):
            raise ValueError(f"line {first + at}: a console block begins with a command: $ …")
        command = [line.removeprefix("$ ")]
        while command[-1].endswith("\\"):
            at += 1
            command.append(block.lines[at])
        at += 1
        shows = at
        while at < end and not block.lines[at].startswith("$ "):
            at += 1
        yield Shown(first + begin, "\n".join(command), first + shows, first + at)


def script(text: str, replace: Mapping[str, str]) -> str:
    """The page as a Python program with the same line numbers, so that a traceback tells the line of the page."""
    lines = [""] * (len(text.splitlines()) + 1)
    lines[0] = "import page_process as __story__"
    doing = {entry.line: place for place, entry in enumerate(things_to_do(text))}
    for block in blocks(text):
        if block.kind == "python":
            lines[block.line - 1] = f"__story__.begin({doing[block.line]})"
            code = "\n".join(block.lines)
            for old, new in replace.items():
                code = code.replace(old, new)
            lines[block.line : block.line + len(block.lines)] = code.splitlines()
            lines[block.line + len(block.lines)] = "__story__.end()"
        elif block.kind == "console":
            for offset in range(len(block.lines)):
                if (place := doing.get(block.line + 1 + offset)) is not None:
                    lines[block.line + offset] = f"__story__.command({place})"
    lines[-1] = "__story__.over()"
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """Return the comparable text: volatile parts are replaced."""
    text = "\n".join(line.rstrip() for line in NAMED.sub("NAMED", text).splitlines())
    for pattern, word in VOLATILE:
        text = pattern.sub(word, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


class Names:
    """Map from each epoch, token or id on a page to its value in this run; it must stay constant."""

    def __init__(self) -> None:
        self.real: dict[str, str] = {}

    def learn(self, shown: str, came: str) -> str:
        """Takes in an output that was shown and the one that came; says what does not fit, nothing if all does."""
        if plain(shown) != plain(came):
            return "it shows another thing"
        for shown_name, actual in zip(NAMED.findall(shown), NAMED.findall(came), strict=True):
            if self.real.setdefault(shown_name, actual) != actual:
                return f"{shown_name} stands for two things, {self.real[shown_name]} and {actual}"
        return ""

    def translated(self, command: str) -> str:
        return NAMED.sub(lambda name_match: self.real.get(name_match[0], name_match[0]), command)


PIPELINES = "spark-pipelines"
"""The command of Spark's that pages call. It lies beside the interpreter."""


def needs_spark(path: Path) -> bool:
    text = path.read_text("utf-8")
    return "el.spark(" in text or PIPELINES in text


REDIS = "cache:6379/0"
"""The Redis server of the pages, as they call it."""


def needs_redis(path: Path) -> bool:
    return REDIS in path.read_text("utf-8")


@dataclass(frozen=True)
class Host:
    """Spark session whose JVM a page uses. folder: that in which the JVM began. invitation: environment of a guest."""

    folder: Path
    invitation: Mapping[str, str]


def follow(path: Path, folder: Path, *, host: Host | None = None, write: bool = False) -> str:
    """Runs a page in an empty folder. Returns what is wrong with it, as text; nothing when all is as it says.

    A page that speaks of a Redis server has one of its own. host: take its JVM, where the page would start one, and its
    folder, which is emptied first. write: put what came out into the page.
    """
    if not needs_redis(path):
        return _follow(path, folder, {}, host, write=write)
    from redis_server import RedisProcess  # not loaded by pages that need none

    server = RedisProcess(folder / "redis")
    try:
        return _follow(path, folder, {REDIS: server.url().removeprefix("redis://")}, host, write=write)
    finally:
        server.stop()


def _follow(path: Path, folder: Path, replace: Mapping[str, str], host: Host | None, *, write: bool) -> str:
    """replace: what the page says, and what to take for it here."""
    text = path.read_text("utf-8")
    tools, here = folder / "tools", host.folder if host else folder / "here"
    tools.mkdir()
    here.mkdir(exist_ok=True)
    for entry in here.iterdir():  # of the page before; the folder itself stays, for the JVM is in it
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    pipelines = Path(sys.executable).parent / PIPELINES
    commands = {
        "python": f'"{sys.executable}"',
        "epochlog": f'"{sys.executable}" -m epochlog',
        PIPELINES: f'"{pipelines}"',
    }
    for name, command in commands.items():
        (tools / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (tools / name).chmod(0o755)
    story = tools / f"{path.stem}.py"
    story.write_text(script(text, replace), "utf-8")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("EPOCHLOG_")},
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "PAGE": str(path),
        "PAGE_REPLACE": "\n".join(f"{old}\t{new}" for old, new in replace.items()),
        "PAGE_WRITE": "1" if write else "",
        **(host.invitation if host else {}),
    }
    done = subprocess.run(
        [sys.executable, story], cwd=here, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        return f"{path.name}: {done.stdout}\n{done.stderr}"
    return done.stdout.strip()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as scratch:
            print(follow(Path(name).resolve(), Path(scratch), write=True) or f"{name}: as it says")
