"""Fixtures of the page's tests: a real store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from page_store import PageStore, make_page_store


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[PageStore]:
    lake = make_page_store(tmp_path / "lake")
    yield lake
    lake.store.close()
