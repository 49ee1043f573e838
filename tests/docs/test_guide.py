"""The guide keeps its word: its pages are followed as they are printed, and show what came out."""

from __future__ import annotations

from pathlib import Path

import pytest

import pages
from redis_server import RedisServer

pytestmark = pytest.mark.local_only

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
ALL = sorted(GUIDE.glob("*.md"))
SERVED = {"operating"}
"""Pages that want a Redis server, and processes of their own."""
PLAIN = [
    pytest.param(page, marks=[pytest.mark.slow] if page.stem in SERVED else [], id=page.stem)
    for page in ALL
    if not pages.needs_spark(page)
]
ON_SPARK = [page for page in ALL if pages.needs_spark(page)]


REDIS = "cache:6379/0"
"""The server of the pages, as they call it."""


def follow(page: Path, folder: Path) -> str:
    if page.stem not in SERVED:
        return pages.follow(page, folder)
    server = RedisServer(folder / "redis")
    try:
        return pages.follow(page, folder, {REDIS: server.url().removeprefix("redis://")})
    finally:
        server.stop()


@pytest.mark.parametrize("page", PLAIN)
def test_a_page_is_as_it_says(page: Path, tmp_path: Path) -> None:
    wrong = follow(page, tmp_path)
    assert not wrong, wrong


@pytest.mark.spark
@pytest.mark.parametrize("page", ON_SPARK, ids=lambda page: page.stem)
def test_a_page_on_spark_is_as_it_says(page: Path, tmp_path: Path) -> None:
    wrong = follow(page, tmp_path)
    assert not wrong, wrong
