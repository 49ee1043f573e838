"""The demo: a year of flights streams into views on Spark, and ten snapshots are held against DuckDB."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run `epochlog demo` with these arguments (default: the command line's). 0: all views were equal every time."""
    from .run import main as run

    return run(argv)
