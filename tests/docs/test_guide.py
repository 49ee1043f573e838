"""The guide keeps its word: its pages are followed as they are printed, and show what came out."""

from __future__ import annotations

from pathlib import Path

import pytest

import pages

pytestmark = pytest.mark.local_only

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
ALL = sorted(GUIDE.glob("*.md"))
PLAIN = [page for page in ALL if not pages.needs_spark(page)]
ON_SPARK = [page for page in ALL if pages.needs_spark(page)]


@pytest.mark.parametrize("page", PLAIN, ids=lambda page: page.stem)
def test_a_page_is_as_it_says(page: Path, tmp_path: Path) -> None:
    wrong = pages.follow(page, tmp_path)
    assert not wrong, wrong


@pytest.mark.spark
@pytest.mark.parametrize("page", ON_SPARK, ids=lambda page: page.stem)
def test_a_page_on_spark_is_as_it_says(page: Path, tmp_path: Path) -> None:
    wrong = pages.follow(page, tmp_path)
    assert not wrong, wrong
