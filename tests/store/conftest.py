"""Store on a virtual clock for tests of tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "s")
    yield made
    made.store.close()
