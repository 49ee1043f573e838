"""The bench of fills by chunks runs, and fills a view as a whole and by chunks."""

from __future__ import annotations

from pathlib import Path

import pytest
from view_fill import VIEWS, fill, load

pytestmark = pytest.mark.local_only


@pytest.mark.medium
@pytest.mark.parametrize("name", VIEWS)
def test_a_fill_is_measured(tmp_path: Path, name: str) -> None:
    load(tmp_path / "store", 20_000)  # more than customers, which the sums could be divided by too
    assert [fill(tmp_path / "store", name, rows)["chunks"] for rows in (5_000, 40_000)] == [4, 0]
