"""Fixtures of the page's tests: a real store, and its page at a free port."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from epochlog.page.port import PagePort
from page_store import PageStore, make_page_store


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[PageStore]:
    lake = make_page_store(tmp_path / "lake")
    yield lake
    lake.store.close()


@pytest.fixture
def page(lake: PageStore) -> Iterator[PagePort]:
    port = PagePort(lake.store._handle, "127.0.0.1:0")
    yield port
    port.close()
