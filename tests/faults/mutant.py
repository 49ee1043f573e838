"""Mutant: a way to break the library, and the check that must fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Mutant:
    """Deliberate bug, and the check that must fail with it (AssertionError or Corrupt) in an empty folder."""

    name: str
    apply: Callable[[pytest.MonkeyPatch], None]
    caught_by: Callable[[Path], object]
