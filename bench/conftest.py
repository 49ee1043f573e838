"""Options of the benchmarks, and the report that is written when all have run."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import summary
import throughput
import view_growth
from bench_spark import Sessions
from of_record import RatioRecord, compared, path_of
from pairs import ReplayClock
from report import Book, command_line, environment

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "PERFORMANCE.md"
BOOK = pytest.StashKey[Book]()


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
    group.addoption(
        "--results",
        type=Path,
        default=ROOT / ".benchmarks" / "figures.json",
        help="write all samples into this file as they come (default: .benchmarks/figures.json)",
    )
    group.addoption(
        "--keep",
        action="store_true",
        help="keep the ratios of this run as those of record for its scale, with which later runs are compared",
    )
    group.addoption(
        "--go-on",
        type=Path,
        default=None,
        metavar="RESULTS",
        help="begin with the figures of a run that ended early; name the bench files that are still to run",
    )


def pytest_configure(config: pytest.Config) -> None:
    if _scale(config) < 1:  # a short run would spend most of its time on compiling what Spark does for a long one
        os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    book = config.stash[BOOK] = Book(_scale(config), config.getoption("results"))
    if (left := config.getoption("go_on")) is not None:
        book.go_on(left)
    config.pluginmanager.register(Course(book, config), "epochlog-bench-course")


class Course:
    """Says which bench file begins, when and how long the one before took; keeps what stopped a file."""

    def __init__(self, book: Book, config: pytest.Config) -> None:
        self._book, self._config = book, config
        self._files: list[str] = []
        self._current, self._since_s = "", 0.0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._files = list(dict.fromkeys(item.location[0] for item in session.items))

    def pytest_runtest_logstart(self, location: tuple[str, int | None, str]) -> None:
        if location[0] != self._current:
            self._end()
            self._current, self._since_s = location[0], perf_counter()
            place = self._files.index(self._current) + 1
            self._say(f"{Path(self._current).stem} ({place} of {len(self._files)})")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            why = report.longreprtext.splitlines() or [report.outcome]
            marked = [line[1:].strip() for line in why if line.startswith("E ")]
            self._book.fail(Path(report.location[0]).stem, (marked or why[-1:])[0])

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No dots: a bench is one line, and the parts of it replay what has been measured."""
        return (report.outcome, "", "") if report.passed and report.when == "call" else None

    def pytest_sessionfinish(self) -> None:
        self._end()

    def _end(self) -> None:
        if self._current:
            self._say(f"{Path(self._current).stem} took {perf_counter() - self._since_s:.0f} s")
            self._current = ""

    def _say(self, what: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            minutes, seconds = divmod(int(perf_counter() - self._book.started_s), 60)
            reporter.ensure_newline()
            reporter.write_line(f"[{minutes:3d}:{seconds:02d}] {what}", flush=True)


def pytest_collection_finish() -> None:
    """Freeze the libraries' objects, so that garbage collections between samples do not traverse them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def book(pytestconfig: pytest.Config) -> Book:
    """Book in which benchmarks record their figures."""
    return pytestconfig.stash[BOOK]


@pytest.fixture(scope="session")
def scale(pytestconfig: pytest.Config) -> float:
    return _scale(pytestconfig)


def _scale(config: pytest.Config) -> float:
    return float(config.getoption("scale") or 1)


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory, scale: float) -> Iterator[Sessions]:
    """The Spark sessions that are up."""
    shared_sessions = Sessions(tmp_path_factory.mktemp("sessions"), shared=scale < 1)
    yield shared_sessions
    shared_sessions.stop()


@pytest.fixture(scope="module", autouse=True)
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Delete the output of each bench file at its end: all files together write tens of gigabytes."""
    yield
    for folder in tmp_path_factory.getbasetemp().iterdir():
        if not folder.name.startswith("sessions"):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> ReplayClock:
    """The timer of this test's benchmark (so it has to be asked for before `benchmark`)."""
    clock = ReplayClock()
    request.node.add_marker(pytest.mark.benchmark(timer=clock))
    return clock


def pytest_benchmark_generate_machine_info() -> dict[str, str]:
    """Name the machine in records of `make microbench` as the report of `make bench` does, without its host name."""
    lines = dict(line.split(": ", 1) for line in environment())
    return {name: lines[name] for name in ("Machine", "Versions")}


def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    """Leave the single samples out of a record, and of the commit all but its id."""
    output_json["commit_info"] = {"id": output_json["commit_info"]["id"]}
    for benchmark in output_json["benchmarks"]:
        del benchmark["stats"]["data"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """Show the verdicts; write them down unless something failed or only a part was run."""
    book, path = config.stash[BOOK], config.getoption("report")
    if not book.figures:
        return
    terminalreporter.section("figures")
    for line in [*book.verdicts(), "", *book.complaints(), *_since_the_record(book, config)]:
        terminalreporter.write_line(line)
    terminalreporter.write_line(f"all samples: {book.results}")
    if path is None and book.scale == 1 and not book.missing():
        path = DOCUMENT
    if path is None or exitstatus != 0:
        terminalreporter.write_line("no report is written: it takes a whole run without failures, or --report=FILE")
        return
    book.write(path, command_line(book.scale))
    if path == DOCUMENT:
        summary.write(path, book.figures)
        throughput.write(path, book.figures)
        view_growth.write(path, book.figures)
    terminalreporter.write_line(f"written to {path}")


def _since_the_record(book: Book, config: pytest.Config) -> list[str]:
    """Compare the run with the one of record, or with `--keep` make it that."""
    now, path = RatioRecord.of(book.figures, environment()), path_of(book.scale)
    if config.getoption("keep"):
        now.save(path)
        return [f"{len(now.ratios)} ratios are of record in {path}"]
    record = RatioRecord.load(path)
    return [f"no run at {book.scale:g} of the full size is of record"] if record is None else compared(record, now)
