"""The guide keeps its word: its pages are followed as they are printed, and show what came out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pages
import spark_guest
from epochlog.spark import options

pytestmark = pytest.mark.local_only

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
ALL = sorted((*GUIDE.glob("*.md"), GUIDE.parent / "testing.md"))
LONGER = {"operating", "serving", "from-delta-change-feeds"}
"""Pages that start servers and processes, or load another library."""
LONGEST = {"streaming", "testing", "declarative-pipelines"}
"""Pages that start many queries of Spark or servers of Spark Connect, or cut the power at each step."""


def marks_of(page: Path) -> list[pytest.MarkDecorator]:
    slow = [pytest.mark.slow] * (page.stem in LONGER) + [pytest.mark.long] * (page.stem in LONGEST)
    needs = [pytest.mark.needs("pipelines")] * (pages.PIPELINES in page.read_text("utf-8"))
    return slow + needs + [pytest.mark.redis] * pages.needs_redis(page)


PLAIN = [pytest.param(page, marks=marks_of(page), id=page.stem) for page in ALL if not pages.needs_spark(page)]
ON_SPARK = [pytest.param(page, marks=marks_of(page), id=page.stem) for page in ALL if pages.needs_spark(page)]


@pytest.mark.parametrize("page", PLAIN)
@pytest.mark.medium
def test_a_page_is_as_it_says(page: Path, tmp_path: Path) -> None:
    wrong = pages.follow(page, tmp_path)
    assert not wrong, wrong


@pytest.mark.spark
@pytest.mark.parametrize("page", ON_SPARK)
def test_a_page_on_spark_is_as_it_says(page: Path, tmp_path: Path, spark: SparkSession, spark_folder: Path) -> None:
    """Its process is a guest of the JVM of the tests, but where it starts Spark by a command of Spark's own."""
    if pages.PIPELINES in page.read_text("utf-8"):
        wrong = pages.follow(page, tmp_path)
    else:
        wrong = pages.follow(page, tmp_path, host=pages.Host(spark_folder, spark_guest.invite(spark)))
        spark_guest.come_back(spark)
    assert not wrong, wrong


def test_the_options_side_by_side_are_those_that_there_are() -> None:
    """Options that the page lists as equal to Delta's, or as refused, are so in the code."""
    rows = [line for line in (GUIDE / "from-delta-change-feeds.md").read_text("utf-8").splitlines() if line[:2] == "| "]
    known = {name.lower() for name in (*options.LOCATION, *options.READ, *options.WRITE)}
    theirs, ours = set(), set()
    for row in rows:
        delta, here = row.split("|")[1:3]
        theirs |= set(re.findall(r"\b[a-z]+[A-Z]\w+\b", re.sub(r"`delta\.\w+`", "", delta)))
        ours |= set(re.findall(r"`([a-z]+[A-Z]\w+)(?:=\w+)?`", here))
        assert delta.strip() and here.strip()
    assert {name.lower() for name in ours} <= known
    theirs -= {"foreachBatch", "readStream"}  # calls, not options
    assert len(theirs) > 10 and {name.lower() for name in theirs} <= known | set(options._FOREIGN_OPTIONS)
