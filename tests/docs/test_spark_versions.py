"""The table of docs/SPARK.md has each feature, each version that `make spark-versions` runs, and no failed one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from spark_versions import BEGIN, END, PAGE, VERSIONS, features_of, table, with_table

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
