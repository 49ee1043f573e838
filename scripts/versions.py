"""Runner of short tests with the lowest and with the newest packages that pyproject.toml allows, on each Python of the
machine, and writer of the table of docs/guide/deploying.md.

    python scripts/versions.py [--write] [--workers N] [TRIAL ...]

Each trial has an environment in .venv-versions; .venv stays as it is. `lowest` has each package at its lower bound, all
other trials have the newest that pip finds when the script runs. `lowest` and `newest` run on the oldest Python of the
machine that epochlog supports, pythonX.Y on each further one that is on PATH or in ~/.pyenv/versions. The tests' own
tools have the versions of requirements.lock. Spark is that of .venv; the Spark tests of `lowest` have the oldest
(scripts/setup_spark.sh). .venv-versions/results.json has the results of each trial's last run, and a later run of other
trials shows them too. --write puts them into the page if all trials passed. The exit code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from passes import BRIEF_JVM, QUICK, Outcome, Pass, run
from spark_environments import FEATURES, ROOT, VERSIONS
from spark_versions import with_table

FOLDER = ROOT / ".venv-versions"
RECORD = FOLDER / "results.json"
"""Results of the last run of each trial."""
PAGE = ROOT / "docs" / "guide" / "deploying.md"
MARKS = "<!-- versions that were tried -->", "<!-- end of versions -->"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = ("sql", "openlineage")
"""Extras of pyproject.toml whose packages are tried beside the dependencies."""
NOT_FOUND = "not found on this machine"
ALL_BUT_LONG = "not spark and not slow and not long and not campaign"
SUITES = {
    "tests/batch": ALL_BUT_LONG,
    "tests/store": QUICK,
    "tests/views": QUICK,
    "tests/conformance": QUICK,
    "tests/cli": QUICK,
}
"""Suites without Spark, with their markers."""
IMPORTS = "imports of all modules and public names"
IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.iter_modules(package.__path__, f"{name}.") if "." in name else ():
        importlib.import_module(module.name)
    for public in getattr(package, "__all__", ()):
        getattr(package, public)
"""
VERSIONS_OF = """
import json, platform, sys
from importlib.metadata import version
print(json.dumps({"Python": platform.python_version(), **{name: version(name) for name in sys.argv[1:]}}))
"""


@dataclass(frozen=True)
class Trial:
    """Environment of a trial."""

    name: str
    python: str | None
    """Path of its interpreter; None: not found on this machine."""
    requirements: tuple[str, ...]
    """Requirements that pip installs."""
    oldest_spark: bool = False
    """True if its Spark tests run on the oldest Spark, False: on that of .venv."""


@dataclass(frozen=True)
class TrialResult:
    """Result of a trial."""

    trial: str
    problem: str = ""
    """Reason why nothing ran; "" if the tests ran."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Version by package, Python's first; empty if nothing ran."""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict[str, Outcome])
    """Outcome by suite."""

    @property
    def failed(self) -> bool:
        return self.problem not in ("", NOT_FOUND) or any(outcome.failed for outcome in self.outcomes.values())


# ---- trials ----------------------------------------------------------------------------------------------------------


def read_project() -> dict[str, Any]:
    """Return pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def lower_bounds(project: Mapping[str, Any]) -> dict[str, str]:
    """Return the lower bounds of the packages to try, by name. project: the table of pyproject.toml."""
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    return {
        requirement.name: next(part.version for part in requirement.specifier if part.operator == ">=")
        for requirement in sorted(map(Requirement, lines), key=lambda requirement: requirement.name)
    }


def tools(project: Mapping[str, Any], lock: str) -> tuple[str, ...]:
    """Return the requirements of the tests that are no packages to try, at the versions of the lock."""
    locked = dict(re.findall(r"^([A-Za-z0-9-]+)==([^ ]+)", lock, re.MULTILINE))
    tried, pinned = lower_bounds(project), list[str]()
    for requirement in map(Requirement, [*project["optional-dependencies"]["test"], "py4j"]):
        if requirement.name not in tried:
            requirement.specifier = SpecifierSet(f"=={locked[requirement.name]}")
            pinned.append(str(requirement))
    return tuple(pinned)


def trials_of(project: Mapping[str, Any], lock: str, pythons: Mapping[str, str]) -> list[Trial]:
    """Return the trials of a machine. pythons: by version the paths of the interpreters that it has."""
    bounds, pinned = lower_bounds(project), tools(project, lock)
    del bounds["pyspark"]
    lowest = tuple(f"{name}=={bound}" for name, bound in bounds.items())
    newest = tuple(f"{name}>={bound}" for name, bound in bounds.items())
    oldest = min(pythons, key=PYTHONS.index)
    return [
        Trial("lowest", pythons[oldest], (*lowest, *pinned), oldest_spark=True),
        Trial("newest", pythons[oldest], (*newest, *pinned)),
        *(
            Trial(f"python{version}", pythons.get(version), (*newest, *pinned))
            for version in PYTHONS
            if version != oldest
        ),
    ]


def interpreters(places: Iterable[str]) -> dict[str, str]:
    """Return by version the first interpreter of the places that runs; a name on PATH may be a shim that does not."""
    by_version = dict[str, str]()
    ask = "import os, sys; print('%d.%d' % sys.version_info[:2], os.path.realpath(sys._base_executable))"
    for place in places:
        done = subprocess.run([place, "-c", ask], capture_output=True, text=True, check=False)
        version, _, path = done.stdout.strip().partition(" ")
        if done.returncode == 0 and version in PYTHONS:
            by_version.setdefault(version, path)
    return by_version


def places_of_pythons() -> list[str]:
    """Return paths that may be interpreters: this one, those on PATH, and those of pyenv."""
    names = [f"python{version}" for version in PYTHONS]
    on_path = [path for name in names if (path := shutil.which(name))]
    pyenv = Path.home() / ".pyenv" / "versions"
    return [sys.executable, *on_path, *(str(path) for name in names for path in sorted(pyenv.glob(f"*/bin/{name}")))]


# ---- a trial ---------------------------------------------------------------------------------------------------------


def make_environment(trial: Trial) -> str:
    """Make the environment of a trial, or install what is newer by now; return its interpreter. Raises
    CalledProcessError, with pip's message as its stderr.
    """
    assert trial.python is not None
    python = FOLDER / trial.name / "bin" / "python"
    if not python.exists():
        subprocess.run([trial.python, "-m", "venv", "--without-pip", "--clear", python.parents[1]], check=True)
    packages = Path(answer(str(python), "import sysconfig; print(sysconfig.get_path('purelib'))"))
    (packages / "epochlog.pth").write_text(f"{ROOT / 'src'}\n", "utf-8")
    for spark in Path(sysconfig.get_path("purelib")).glob("pyspark*"):  # half a gigabyte, which suits each Python
        (packages / spark.name).unlink(missing_ok=True)
        (packages / spark.name).symlink_to(spark)
    pip = (sys.executable, "-m", "pip", "--python", str(python), "install", "-qq", "--disable-pip-version-check")
    options = ("--no-input", "--upgrade", "--upgrade-strategy", "eager", "--only-binary", ":all:")
    subprocess.run([*pip, *options, *trial.requirements], check=True, stderr=subprocess.PIPE, text=True)
    return str(python)


def answer(python: str, program: str, *arguments: str, **environment: str) -> str:
    """Return the standard output of a program of Python."""
    done = subprocess.run(
        [python, "-c", program, *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def oldest_spark() -> dict[str, str]:
    """Make the environment of the oldest Spark; return the variables with which a process takes Spark from it."""
    version = VERSIONS[0]
    subprocess.run([ROOT / "scripts" / "setup_spark.sh", version], check=True)
    (packages,) = (ROOT / ".venv-spark" / version / "lib").glob("python*/site-packages")
    return {"PYTHONPATH": str(packages)}


def passes_of(trial: Trial, python: str, workers: str, spark: Mapping[str, str]) -> dict[str, Pass]:
    """Return the passes of a trial by suite. python: its interpreter; spark: variables of its Spark tests."""
    environment = {"PYTHONPYCACHEPREFIX": str(FOLDER / trial.name / "pycache")}  # Spark's modules are those of .venv
    if not shutil.which("redis-server") and (server := Path(sys.executable).with_name("redis-server")).exists():
        environment["EPOCHLOG_TEST_REDIS_SERVER"] = str(server)
    modules = [name for name in read_project()["tool"]["setuptools"]["packages"] if name != "epochlog.demo"]
    passes = {IMPORTS: Pass(f"{trial.name}: {IMPORTS}", (python, "-c", IMPORT_ALL, *modules), environment)}
    pytest = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    for suite, markers in SUITES.items():
        command = (*pytest, suite, "-m", markers, "-n", workers, "--dist", "worksteal")
        passes[suite] = Pass(f"{trial.name}: {suite}", command, environment)
    spark_environment = {**environment, **BRIEF_JVM, **spark}
    return {**passes, FEATURES: Pass(f"{trial.name}: {FEATURES}", (*pytest, FEATURES), spark_environment)}


def result_of(trial: Trial, names: Sequence[str], workers: str) -> TrialResult:
    """Make the environment of a trial and run all suites in it. names: the packages to try."""
    if trial.python is None:
        return TrialResult(trial.name, NOT_FOUND)
    print(f"== {trial.name}: installing ==", flush=True)
    try:
        python = make_environment(trial)
    except subprocess.CalledProcessError as error:
        print(error.stderr, flush=True)
        return TrialResult(trial.name, "not installed")
    spark = oldest_spark() if trial.oldest_spark else {}
    versions = json.loads(answer(python, VERSIONS_OF, *names, **spark))
    with tempfile.TemporaryDirectory(prefix="epochlog-versions-") as folder:
        outcomes = {
            suite: run(pass_, Path(folder) / f"{number}.xml")
            for number, (suite, pass_) in enumerate(passes_of(trial, python, workers, spark).items())
        }
    return TrialResult(trial.name, "", versions, outcomes)


# ---- the table -------------------------------------------------------------------------------------------------------


def table(results: Sequence[TrialResult], names: Iterable[str], *, outcomes: bool = True) -> str:
    """Return the table of results. names: its rows, Python and the packages; outcomes: with a row for each suite."""
    lines = [f"| | {' | '.join(result.trial for result in results)} |", f"|---|{'---|' * len(results)}"]
    for name in names:
        cells = [result.versions.get(name, result.problem if name == "Python" else "") for result in results]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for suite in (IMPORTS, *SUITES, FEATURES) if outcomes else ():
        cells = [counts(result.outcomes[suite]) if suite in result.outcomes else "" for result in results]
        lines.append(f"| {suite} | {' | '.join(cells)} |")
    return "\n".join(lines)


def counts(outcome: Outcome) -> str:
    """Return the numbers of passed and failed tests as a cell."""
    return f"{outcome.passed} passed" + (f", {len(outcome.failed)} failed" if outcome.failed else "")


def page_text(results: Sequence[TrialResult], names: Iterable[str]) -> str:
    """Return the table of the page: of the trials that ran, with a line about the others."""
    text = table([result for result in results if result.versions], names, outcomes=False)
    missing = [result.trial.replace("python", "Python ") for result in results if not result.versions]
    return f"{text}\n\nNot on the machine of this run: {', '.join(missing)}." if missing else text


def as_json(results: Iterable[TrialResult]) -> dict[str, Any]:
    """Return by trial the versions of its packages, and by suite the number of passed and the names of failed tests."""
    return {
        result.trial: {
            "problem": result.problem,
            "versions": dict(result.versions),
            "suites": {
                suite: {"passed": outcome.passed, "failed": list(outcome.failed)}
                for suite, outcome in result.outcomes.items()
            },
        }
        for result in results
    }


def from_json(record: Mapping[str, Any]) -> dict[str, TrialResult]:
    """Return the results of `as_json` by trial, without times."""
    return {
        trial: TrialResult(
            trial,
            result["problem"],
            result["versions"],
            {
                suite: Outcome(suite, counted["passed"], tuple(counted["failed"]), 0.0, 0.0)
                for suite, counted in result["suites"].items()
            },
        )
        for trial, result in record.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    project = read_project()["project"]
    names = list(lower_bounds(project))
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    trials = {trial.name: trial for trial in trials_of(project, lock, interpreters(places_of_pythons()))}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trials", nargs="*", choices=[*trials, []], help="all, without any")
    parser.add_argument("--write", action="store_true", help="write the table of the last results into the page")
    parser.add_argument("--workers", default="2", help="test processes side by side")
    chosen = parser.parse_args(arguments)
    results = from_json(json.loads(RECORD.read_text("utf-8"))) if RECORD.exists() else {}
    for name in chosen.trials or trials:
        results[name] = result_of(trials[name], names, chosen.workers)
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps(as_json(results.values()), indent=1), "utf-8")
    shown = [results[name] for name in trials if name in results]
    print(table(shown, ["Python", *names]))
    failed = any(result.failed for result in shown) or (chosen.write and len(shown) < len(trials))
    if chosen.write and not failed:
        PAGE.write_text(with_table(PAGE.read_text("utf-8"), page_text(shown, ["Python", *names]), MARKS), "utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
