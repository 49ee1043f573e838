"""The table of docs/SPARK.md has each feature, each version that `make spark-versions` runs, and no failed one; a test
that needs a feature is not run where it is missing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from passes import Outcome
from spark_versions import BEGIN, END, PAGE, VERSIONS, features_of, merged, table, with_table

import spark_needs
from spark_needs import missing

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"""feature\(\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")


def rows_of(page: str) -> list[list[str]]:
    lines = page.partition(BEGIN)[2].partition(END)[0].strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_page_has_each_feature_on_each_version() -> None:
    header, _, *rows = rows_of(PAGE.read_text("utf-8"))
    named = NAMED.findall((ROOT / "tests" / "spark" / "test_features.py").read_text("utf-8"))
    assert [row[0] for row in rows] == [name[1:-1].replace('\\"', '"') for name in named]
    assert tuple(header[1:]) == VERSIONS
    cells = {cell for row in rows for cell in row[1:]}
    assert cells <= {"yes", *(f"from {version} on" for version in VERSIONS)}, cells
    assert all(row[-1] == "yes" for row in rows)


def test_the_versions_are_those_of_the_locks() -> None:
    locked = re.findall(r"^pyspark==(\d+\.\d+)\.", (ROOT / "requirements-spark.lock").read_text("utf-8"), re.MULTILINE)
    newest = re.search(r"^pyspark==(\d+\.\d+)\.", (ROOT / "requirements.lock").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert (*locked, newest[1]) == VERSIONS


@pytest.mark.planted
def test_a_failed_feature_does_not_count_as_there(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    case = '<testcase name="{}"><properties><property name="feature" value="{}"/><property name="works" value="yes"/>'
    cases = case.format("a", "sums") + "</properties></testcase>"
    cases += case.format("b", "joins") + "</properties><failure/></testcase>"
    report.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>", "utf-8")
    assert features_of(report) == {"sums": "yes", "joins": "failed"}
    page = with_table(f"a\n{BEGIN}\nold\n{END}\nb\n", table({"4.0": features_of(report)}))
    assert rows_of(page)[2:] == [["sums", "yes"], ["joins", "failed"]]
    assert page.startswith("a\n") and page.endswith("b\n")


def test_a_version_fails_with_any_of_its_files() -> None:
    files = [Outcome("a", 3, (), 1.5, 2.0), Outcome("b", 0, ("b: exit code 139",), 0.5, 1.0), Outcome("c", 4, (), 1, 1)]
    assert merged("Spark 4.0", files) == Outcome("Spark 4.0", 7, ("b: exit code 139",), 3.0, 4.0)


# ---- the marker `needs` ----------------------------------------------------------------------------------------------


def test_the_newest_spark_lacks_no_feature_of_a_test() -> None:
    assert missing(spark_needs.FEATURES) == []


def test_a_feature_that_is_none_is_an_error() -> None:
    for names in (["chnages"], ["changes", "4.2"], []):
        with pytest.raises(pytest.UsageError, match=r"x::y: needs: no feature .*; there are limits, changes, time"):
            missing(names, "x::y")


SUITE = """
import pytest

@pytest.mark.needs({!r})
def test_new() -> None: ...

@pytest.mark.parametrize("case", [1, pytest.param(2, marks=pytest.mark.needs("new"))])
def test_some(case: int) -> None: ...
"""
CONFTEST = """
import spark_needs

spark_needs.FEATURES = {{"old": lambda: True, "new": lambda: {}}}

def pytest_configure(config):
    config.addinivalue_line("markers", "needs(*features): as in tests/conftest.py")
    config.pluginmanager.register(spark_needs)
"""


def outcome_of(folder: Path, feature: str, *options: str, there: bool = False) -> str:
    """Return the output of a run of SUITE whose first test needs a feature. there: this Spark has the feature `new`."""
    (folder / "conftest.py").write_text(CONFTEST.format(there), "utf-8")
    (folder / "test_suite.py").write_text(SUITE.format(feature), "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, *options, str(folder)]
    environment = {
        name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"
    }  # of the run around it
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    return done.stdout + done.stderr


@pytest.mark.medium
def test_a_test_of_a_missing_feature_is_not_run_and_not_skipped(tmp_path: Path) -> None:
    assert "1 passed, 2 deselected" in outcome_of(tmp_path, "new")
    assert "2 passed, 1 deselected" in outcome_of(tmp_path, "old")
    assert "3 passed in" in outcome_of(tmp_path, "new", there=True)
    assert "needs: no feature 'odl'; there are old, new" in outcome_of(tmp_path, "odl")
