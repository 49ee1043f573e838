"""Runner of all passes of one make target, with one summary at the end; a failed pass does not stop the others.

    python scripts/passes.py lint|check|test|long|redis|spark-oldest|campaign [--workers N] [--cpu FOLDER]

The summary has the wall time of each pass and the CPU time of its process tree, with JVMs and servers. With --cpu the
folder gets the CPU time of each test; `scripts/cpu_time.py --table FOLDER` prints it. The last line is
`N passed, N failed`, summed over all passes; a pass without tests counts as one. The exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
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

from spark_environments import FEATURES, VERSIONS, interpreter

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
PYTEST = (sys.executable, "-m", "pytest", "-q")
CPU_TIME = (sys.executable, str(ROOT / "scripts" / "cpu_time.py"))
BEHIND = ("nice", "-n", "5")
"""Command that gives a pass less of the processors than one beside it: the serial pass of Spark takes longest."""
SPARK = "spark and not long and not campaign"
QUICK = "not spark and not slow and not medium and not long and not campaign"
# For a JVM that lives for minutes, the optimising compiler and a concurrent collector cost more than they save. Without
# that compiler a JVM keeps 48 MiB of compiled code; Spark fills them in two minutes, and is interpreted from then on.
BRIEF_JVM = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"}
# Tests that run again with the catalog in Redis, and once more with the files on S3 too.
AGAIN = tuple(f"tests/{name}" for name in ("store", "model", "scenarios", "law"))
AGAIN_LONG = (*AGAIN, "tests/checkpoint", "tests/batch")


@dataclass(frozen=True)
class Pass:
    """Command of a pass, with additional environment variables.

    beside: run it in parallel with the passes after it, which leave it the processor that it uses, and print its output
    at its end.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    beside: bool = False

    @property
    def counts_tests(self) -> bool:
        return "pytest" in self.command


@dataclass(frozen=True)
class Selection:
    """Tests of a pass: those below its places (folders or files; without any, all tests) that its markers choose."""

    places: tuple[str, ...]
    markers: str


@dataclass(frozen=True)
class Outcome:
    """Outcome of a pass. failed: the ids of its failed tests, or its other errors."""

    name: str
    passed: int
    failed: tuple[str, ...]
    seconds: float
    cpu_seconds: float


CORE_COST = Pass("CPU time of core operations", (sys.executable, "bench/core_cost.py"))


def users_code() -> list[str]:
    """Return the folders and modules of the library, as listed in pyproject.toml, and those of examples and scripts."""
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["packages"]
    folders = {name.split(".")[1] for name in packages if "." in name} | {"examples", "scripts"}
    return sorted(folders | {path.name for path in ROOT.glob("*.py")})


def lint(spread: Sequence[str]) -> list[Pass]:
    """Return the passes of `make check` without its tests, all of which `make test` has."""
    return [*static_checks(), CORE_COST]


def check(spread: Sequence[str]) -> list[Pass]:
    brief = {"HYPOTHESIS_PROFILE": "quick", "EPOCHLOG_LAW_SEEDS": "3", "EPOCHLOG_MODEL_SEEDS": "5"}
    tests = Pass("quick tests", (*PYTEST, "-m", QUICK, *spread, "--dist", "worksteal"), brief)
    return [*static_checks(beside=True), tests, CORE_COST]


def static_checks(*, beside: bool = False) -> list[Pass]:
    """Return the passes of format, lint and types. beside: check the types in parallel with the passes after them."""
    return [
        Pass(
            "format (make format puts it right)",
            (str(BIN / "ruff"), "format", "--check", "--output-format", "concise", "."),
        ),
        Pass("lint", (str(BIN / "ruff"), "check", "--quiet", ".")),
        Pass("types of the library", (str(BIN / "basedpyright"), *users_code()), beside=beside),
    ]


def test(spread: Sequence[str]) -> list[Pass]:
    """Return the passes of `make test`: Spark tests one by one beside all others, then the store tests of
    tests/support/far.tsv on S3 and Redis.
    """
    return [
        Pass("Spark", (*PYTEST, "-m", SPARK), BRIEF_JVM, beside=True),
        Pass("tests", (*PYTEST, "-m", "not spark and not long and not campaign", *spread, "--dist", "worksteal")),
        with_store_on("s3", AGAIN, "far", spread),
    ]


def long(spread: Sequence[str]) -> list[Pass]:
    """Return the passes of `make long`: the tests that `test` leaves out, without the campaign."""
    return [
        Pass("types, of tests and bench too", (str(BIN / "basedpyright"),), beside=True),
        Pass("Spark, long", (*PYTEST, "-m", "spark and long and not campaign"), beside=True),
        Pass("long tests", (*PYTEST, "-m", "not spark and long and not campaign", *spread, "--dist", "worksteal")),
        *(with_store_on(store, AGAIN_LONG, "not spark and not campaign", spread) for store in ("redis", "s3")),
    ]


def with_store_on(store: str, places: Sequence[str], marker: str, spread: Sequence[str]) -> Pass:
    """Return a pass of store tests with few examples, on Redis, and on S3 too if `store` is s3."""
    return Pass(
        f"again with EPOCHLOG_TEST_STORE={store}",
        (*PYTEST, *places, "-m", marker, *spread, "--dist", "worksteal"),
        {"EPOCHLOG_TEST_STORE": store, "HYPOTHESIS_PROFILE": "far", "EPOCHLOG_LAW_SEEDS": "3"},
    )


def redis(spread: Sequence[str]) -> list[Pass]:
    """Return the passes of `make redis`: the Redis tests of `make test`, with each further redis-server of the machine.

    `make test` takes the first one. If there is no other, nothing is left to run, and one pass says so.
    """
    listed = subprocess.run(["scripts/redis_servers.sh"], stdout=subprocess.PIPE, text=True, check=True)
    servers = listed.stdout.split()[1:]
    if not servers:
        text = "this machine has no redis-server but that of make test"
        return [Pass("Redis: no further server", (sys.executable, "-c", f"print({text!r})"))]
    return [
        Pass(
            f"Redis: {server}",
            (*PYTEST, "-m", "redis and not long and not campaign", *spread, "--dist", "worksteal"),
            {"EPOCHLOG_TEST_REDIS_SERVER": server, **BRIEF_JVM},
        )
        for server in servers
    ]


def spark_oldest(spread: Sequence[str]) -> list[Pass]:
    """Return the pass of the oldest Spark, in the environment of scripts/setup_spark.sh."""
    oldest = VERSIONS[0]
    return [Pass(f"Spark {oldest}", (interpreter(oldest), *PYTEST[1:], FEATURES, "-m", "spark"), BRIEF_JVM)]


def campaign(spread: Sequence[str]) -> list[Pass]:
    deep = {"HYPOTHESIS_PROFILE": "deep", "EPOCHLOG_LAW_SEEDS": "60"}
    long = {"EPOCHLOG_LAW_SLOW_SEEDS": "1000", "EPOCHLOG_RACE_SECONDS": "120", "HYPOTHESIS_PROFILE": "thorough"}
    places = ("tests/law", "tests/model", "tests/crash/test_racing.py", "tests/crash/test_upkeep.py")
    return [
        Pass("campaign", (*PYTEST, "-m", "campaign", *spread, "--dist", "worksteal")),
        Pass(
            "random tests, deep", (*PYTEST, "-m", "not spark and not slow and not long and not campaign", *spread), deep
        ),
        Pass("simulation", (*PYTEST, "tests/simulation", *spread, "--dist", "worksteal")),
        Pass("the law and the models, long", (*PYTEST, *places, "-m", "not spark"), long),
    ]


def selections(target: str) -> list[Selection]:
    """Return the selections of a target's passes, without those that repeat tests with their stores elsewhere."""
    return [
        selection_of(pass_.command)
        for pass_ in TARGETS[target](())
        if pass_.counts_tests and "EPOCHLOG_TEST_STORE" not in pass_.environment
    ]


def selection_of(command: Sequence[str]) -> Selection:
    """Read the selection of a pytest command. Raises ValueError for an option that may leave out tests otherwise."""
    places, markers, arguments = list[str](), "", iter(command[len(PYTEST) :])
    for argument in arguments:
        if argument == "-m":
            markers = next(arguments)
        elif argument in ("-n", "--dist"):
            next(arguments)
        elif argument.startswith("-"):
            raise ValueError(f"{argument}: selection_of does not know whether this option leaves out tests")
        else:
            places.append(argument)
    return Selection(tuple(places), markers)


def run(pass_: Pass, report: Path) -> Outcome:
    """Run a pass to its end; its output goes to standard output. report: path of its JUnit report."""
    title = f"== {pass_.name} =="
    if not pass_.beside:
        print(title, flush=True)
    report_options = (f"--junitxml={report}", "-o", "junit_family=xunit1") if pass_.counts_tests else ()
    cpu = report.with_suffix(".cpu")
    before = time.perf_counter()
    done = subprocess.run(
        [*(() if pass_.beside else BEHIND), *CPU_TIME, str(cpu), *pass_.command, *report_options],
        env={**os.environ, **pass_.environment},
        stdout=subprocess.PIPE if pass_.beside else None,
        stderr=subprocess.STDOUT if pass_.beside else None,
        text=True,
        check=False,
    )
    seconds, code = time.perf_counter() - before, done.returncode
    if pass_.beside:
        print(f"{title}\n{done.stdout}", end="", flush=True)
    passed, failed = tests_of(report) if pass_.counts_tests else (int(code == 0), ())
    if code != 0 and not failed:  # a linter, or a run that broke off
        failed = (f"{pass_.name}: exit code {code}",)
    cpu_seconds = sum(json.loads(cpu.read_text("utf-8")).values()) if cpu.exists() else 0.0
    return Outcome(pass_.name, passed, failed, seconds, cpu_seconds)


def tests_of(report: Path) -> tuple[int, tuple[str, ...]]:
    """Return the number of passed tests and the ids of failed ones from a JUnit report; nothing without a report."""
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
    """Return the id of a test as pytest accepts it, or the file's name if the file could not be collected."""
    file, owner, name = case.get("file"), case.get("classname"), case.get("name", "")
    if not file or not owner:
        return file or name
    classes = owner.removeprefix(file.removesuffix(".py").replace("/", ".")).split(".")
    return "::".join([file, *filter(None, classes), name])


def summary(outcomes: Sequence[Outcome]) -> str:
    wide = max((len(outcome.name) for outcome in outcomes), default=0)
    lines = ["", f"{'pass':{wide}}  passed  failed  seconds  CPU seconds"]
    lines += [
        f"{run.name:{wide}}  {run.passed:6}  {len(run.failed):6}  {run.seconds:7.1f}  {run.cpu_seconds:11.1f}"
        for run in outcomes
    ]
    lines.append(f"CPU time of all passes: {sum(outcome.cpu_seconds for outcome in outcomes):.0f} s")
    lines += [f"FAILED {test}  ({outcome.name})" for outcome in outcomes for test in outcome.failed]
    passed, failed = sum(outcome.passed for outcome in outcomes), sum(len(outcome.failed) for outcome in outcomes)
    lines.append(f"{passed} passed, {failed} failed")
    return "\n".join(lines)


def run_all(passes: Sequence[Pass]) -> int:
    """Run all passes, print the summary, and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="epochlog-passes-") as folder, ThreadPoolExecutor() as aside:
        running: list[Future[Outcome] | Outcome] = []
        for number, pass_ in enumerate(passes):
            report = Path(folder) / f"{number}.xml"
            running.append(aside.submit(run, pass_, report) if pass_.beside else run(pass_, report))
        outcomes = [started.result() if isinstance(started, Future) else started for started in running]
    print(summary(outcomes), flush=True)
    return int(not outcomes or any(outcome.failed for outcome in outcomes))


TARGETS = {
    "lint": lint,
    "check": check,
    "test": test,
    "long": long,
    "redis": redis,
    "spark-oldest": spark_oldest,
    "campaign": campaign,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--workers", default="2", help="test processes side by side")
    parser.add_argument("--cpu", type=Path, help="folder for the CPU time of each test")
    chosen = parser.parse_args()
    if chosen.cpu:
        chosen.cpu.mkdir(parents=True, exist_ok=True)
        os.environ["EPOCHLOG_CPU_TABLE"] = str(chosen.cpu.resolve())
        os.environ["PYTEST_ADDOPTS"] = f"{os.environ.get('PYTEST_ADDOPTS', '')} -p cpu_table"
    return run_all(TARGETS[chosen.target](("-n", chosen.workers)))


if __name__ == "__main__":
    sys.exit(main())
