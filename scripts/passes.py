"""Runs the passes of one make target one after the other, whatever becomes of each, and ends with one summary.

    python scripts/passes.py check|test|long|redis|campaign [--workers N]

The last line is `N passed, N failed`, of all passes together; a pass that is no test run counts as one. The exit code
is 1 when anything failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
PYTEST = (sys.executable, "-m", "pytest", "-q")
QUICK = "not spark and not slow and not medium and not long and not campaign"
# a JVM that lives for seconds gains nothing by compiling well and by collecting garbage beside
BRIEF_JVM = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
# what is run again with the catalog in Redis, and with the files on S3 beside it
AGAIN = tuple(f"tests/{name}" for name in ("store", "model", "scenarios", "law"))
AGAIN_LONG = (*AGAIN, "tests/checkpoint", "tests/batch")


@dataclass(frozen=True)
class Pass:
    """A command, and the environment variables that it has besides those of this process.

    beside: it runs while the passes after it do, for what uses one processor; its words come when it has ended.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    beside: bool = False

    @property
    def counts_tests(self) -> bool:
        return "pytest" in self.command


@dataclass(frozen=True)
class Outcome:
    """How a pass ended. failed: the ids of its tests that did, or what else is wrong with it."""

    name: str
    passed: int
    failed: tuple[str, ...]
    seconds: float


def users_code() -> list[str]:
    """The library, as pyproject.toml lists its packages, and what else users read."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]
    folders = {name.split(".")[1] for name in packages if "." in name} | {"examples", "scripts"}
    return sorted(folders | {path.name for path in ROOT.glob("*.py")})


def check(spread: Sequence[str]) -> list[Pass]:
    brief = {"HYPOTHESIS_PROFILE": "quick", "EPOCHLOG_LAW_SEEDS": "4", "EPOCHLOG_MODEL_SEEDS": "8"}
    return [
        Pass(
            "format (make format puts it right)",
            (str(BIN / "ruff"), "format", "--check", "--output-format", "concise", "."),
        ),
        Pass("lint", (str(BIN / "ruff"), "check", "--quiet", ".")),
        Pass("types of the library", (str(BIN / "basedpyright"), *users_code()), beside=True),
        Pass("quick tests", (*PYTEST, "-m", QUICK, *spread, "--dist", "worksteal"), brief),
    ]


def test(spread: Sequence[str]) -> list[Pass]:
    """Those with Spark one by one, beside all others; then the quick ones of stores again, on S3 and Redis."""
    return [
        Pass("Spark", (*PYTEST, "-m", "spark and not long and not campaign"), BRIEF_JVM, beside=True),
        Pass("tests", (*PYTEST, "-m", "not spark and not long and not campaign", *spread, "--dist", "worksteal")),
        again("s3", AGAIN, QUICK, spread),
    ]


def long(spread: Sequence[str]) -> list[Pass]:
    """What `test` leaves out, but for the campaign."""
    return [
        Pass("types, of tests and bench too", (str(BIN / "basedpyright"),), beside=True),
        Pass("Spark, long", (*PYTEST, "-m", "spark and long and not campaign"), beside=True),
        Pass("long tests", (*PYTEST, "-m", "not spark and long and not campaign", *spread, "--dist", "worksteal")),
        *(again(store, AGAIN_LONG, "not spark and not campaign", spread) for store in ("redis", "s3")),
    ]


def again(store: str, places: Sequence[str], which: str, spread: Sequence[str]) -> Pass:
    """Tests of stores with the catalog in Redis, and the files on S3 perhaps. Few examples: each step is a request."""
    return Pass(
        f"again with EPOCHLOG_TEST_STORE={store}",
        (*PYTEST, *places, "-m", which, *spread, "--dist", "worksteal"),
        {"EPOCHLOG_TEST_STORE": store, "HYPOTHESIS_PROFILE": "far", "EPOCHLOG_LAW_SEEDS": "3"},
    )


def redis(spread: Sequence[str]) -> list[Pass]:
    """What uses Redis, with each redis-server that the machine can have."""
    listed = subprocess.run(["scripts/redis_servers.sh"], stdout=subprocess.PIPE, text=True, check=True)
    return [
        Pass(
            f"Redis: {server}",
            (*PYTEST, "-m", "redis and not campaign", *spread, "--dist", "worksteal"),
            {"EPOCHLOG_TEST_REDIS_SERVER": server},
        )
        for server in listed.stdout.split()
    ]


def campaign(spread: Sequence[str]) -> list[Pass]:
    deep = {"HYPOTHESIS_PROFILE": "deep", "EPOCHLOG_LAW_SEEDS": "60"}
    long = {"EPOCHLOG_LAW_SLOW_SEEDS": "1000", "EPOCHLOG_RACE_SECONDS": "120", "HYPOTHESIS_PROFILE": "thorough"}
    places = ("tests/law", "tests/model", "tests/conformance/test_racing.py", "tests/crash/test_upkeep.py")
    return [
        Pass("campaign", (*PYTEST, "-m", "campaign", *spread, "--dist", "worksteal")),
        Pass(
            "random tests, deep", (*PYTEST, "-m", "not spark and not slow and not long and not campaign", *spread), deep
        ),
        Pass("simulation", (*PYTEST, "tests/simulation", *spread, "--dist", "worksteal")),
        Pass("the law and the models, long", (*PYTEST, *places, "-m", "not spark"), long),
    ]


def run(one: Pass, report: Path) -> Outcome:
    """Run it to its end; what it says goes where this process' words go. report: a file name of its own."""
    title = f"== {one.name} =="
    if not one.beside:
        print(title, flush=True)
    wanted = (f"--junitxml={report}", "-o", "junit_family=xunit1") if one.counts_tests else ()
    before = time.perf_counter()
    try:
        done = subprocess.run(
            [*one.command, *wanted],
            env={**os.environ, **one.environment},
            stdout=subprocess.PIPE if one.beside else None,
            stderr=subprocess.STDOUT if one.beside else None,
            text=True,
            check=False,
        )
    except OSError as error:
        return Outcome(one.name, 0, (f"{one.name}: {error}",), time.perf_counter() - before)
    seconds, code = time.perf_counter() - before, done.returncode
    if one.beside:
        print(f"{title}\n{done.stdout}", end="", flush=True)
    passed, failed = tests_of(report) if one.counts_tests else (int(code == 0), ())
    if code != 0 and not failed:  # a linter, or a run that broke off
        failed = (f"{one.name}: exit code {code}",)
    return Outcome(one.name, passed, failed, seconds)


def tests_of(report: Path) -> tuple[int, tuple[str, ...]]:
    """How many tests passed, and the ids of those that failed, by what pytest wrote; none of either if it did not."""
    if not report.exists():
        return 0, ()
    passed, failed = 0, dict[str, None]()
    for case in ET.parse(report).iter("testcase"):  # noqa: S314  (pytest wrote it)
        kinds = {part.tag for part in case}
        if kinds & {"failure", "error"}:
            failed[_id(case)] = None
        elif "skipped" not in kinds:
            passed += 1
    return passed, tuple(failed)


def _id(case: ET.Element) -> str:
    """As pytest takes it on the command line. Of a file that could not be collected, the file's name."""
    file, owner, name = case.get("file"), case.get("classname"), case.get("name", "")
    if not file or not owner:
        return file or name
    classes = owner.removeprefix(file.removesuffix(".py").replace("/", ".")).split(".")
    return "::".join([file, *filter(None, classes), name])


def summary(outcomes: Sequence[Outcome]) -> str:
    wide = max((len(one.name) for one in outcomes), default=0)
    lines = ["", f"{'pass':{wide}}  passed  failed  seconds"]
    lines += [f"{one.name:{wide}}  {one.passed:6}  {len(one.failed):6}  {one.seconds:7.1f}" for one in outcomes]
    lines += [f"FAILED {test}  ({one.name})" for one in outcomes for test in one.failed]
    lines.append(f"{sum(one.passed for one in outcomes)} passed, {sum(len(one.failed) for one in outcomes)} failed")
    return "\n".join(lines)


def run_all(passes: Sequence[Pass]) -> int:
    """Run each, say how they ended, and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="epochlog-passes-") as folder, ThreadPoolExecutor() as aside:
        running: list[Future[Outcome] | Outcome] = []
        for number, one in enumerate(passes):
            report = Path(folder) / f"{number}.xml"
            running.append(aside.submit(run, one, report) if one.beside else run(one, report))
        outcomes = [one.result() if isinstance(one, Future) else one for one in running]
    print(summary(outcomes), flush=True)
    return int(not outcomes or any(one.failed for one in outcomes))


TARGETS = {"check": check, "test": test, "long": long, "redis": redis, "campaign": campaign}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--workers", default="2", help="test processes side by side")
    chosen = parser.parse_args()
    return run_all(TARGETS[chosen.target](("-n", chosen.workers)))


if __name__ == "__main__":
    sys.exit(main())
