"""Demo: a year of flights streams into views on Spark; ten snapshots are compared with DuckDB."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run `epochlog demo` with these arguments (default: the command line's). Return 0 if all views were equal."""
    from .run import main as run

    return run(argv)
