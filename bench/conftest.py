"""Options of the benchmarks, and the report that is written when all have run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the modules beside this file import one another by name

from pairs import ReplayClock
from report import Book, command_line, write_between

DOCUMENT = Path(__file__).parents[1] / "docs" / "PERFORMANCE.md"
BOOK = pytest.StashKey[Book]()
WHOLE = {"P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "P11", "P12", "P13", "P14", "P15", "P16"}
"""The figures of a full run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("epochlog benchmarks")
    group.addoption(
        "--scale",
        type=float,
        default=float(os.environ.get("EPOCHLOG_BENCH_SCALE", "1")),
        help="share of the full size (default: EPOCHLOG_BENCH_SCALE, else 1)",
    )
    group.addoption("--quick", action="store_const", const=0.1, dest="scale", help="a tenth of the full size")
    group.addoption(
        "--report",
        type=Path,
        default=None,
        help="write the figures into this file (default: docs/PERFORMANCE.md when everything ran at full size)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[BOOK] = Book(_scale(config))


@pytest.fixture(scope="session")
def book(pytestconfig: pytest.Config) -> Book:
    """Where benchmarks put their figures."""
    return pytestconfig.stash[BOOK]


@pytest.fixture(scope="session")
def scale(pytestconfig: pytest.Config) -> float:
    return _scale(pytestconfig)


def _scale(config: pytest.Config) -> float:
    return float(config.getoption("scale") or 1)


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> ReplayClock:
    """The timer of this test's benchmark (so it has to be asked for before `benchmark`)."""
    clock = ReplayClock()
    request.node.add_marker(pytest.mark.benchmark(timer=clock))
    return clock


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Show the verdicts; write them down unless something failed or only a part was run."""
    book = config.stash[BOOK]
    if not book.figures:
        return
    terminalreporter.section("figures")
    for line in book.verdicts():
        terminalreporter.write_line(line)
    path: Path | None = config.getoption("report")
    if path is None and book.scale == 1 and {figure.id for figure in book.figures} >= WHOLE:
        path = DOCUMENT
    if path is None or exitstatus != 0:
        terminalreporter.write_line("no report is written: it takes a full run without failures, or --report=FILE")
        return
    write_between(path, book.render(command_line(book.scale)))
    terminalreporter.write_line(f"written to {path}")
