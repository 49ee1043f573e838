"""Seeds of random tests: the first few run in `make test`, the others in `make long`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import pytest


def seeds(chosen: Iterable[Any], brief: int = 1) -> list[Any]:
    """Return seeds as parameters of a test; all but the first `brief` of them carry the marker `long`."""
    remaining = iter(chosen)
    first = list(islice(remaining, brief))
    return [*first, *(pytest.param(seed, marks=pytest.mark.long) for seed in remaining)]
