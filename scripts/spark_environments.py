"""Versions of Spark that epochlog supports, each with the Python of its environment (scripts/setup_spark.sh)."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
FEATURES = "tests/spark/test_features.py"
"""File of tests with a short case for each way from Spark into a store and back."""


def interpreter(version: str) -> str:
    """Return the Python of a version's environment. The newest is that of .venv."""
    return sys.executable if version == VERSIONS[-1] else str(ROOT / ".venv-spark" / version / "bin" / "python")
