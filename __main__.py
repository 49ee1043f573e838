"""The `epochlog` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

WITHOUT_PANDAS = {
    *(
        "ls",
        "describe",
        "history",
        "status",
        "jobs",
        "read",
        "changes",
        "tail",
        "epochs",
        "tag",
        "consumers",
        "compact",
    ),
    *("vacuum", "verify", "doctor", "alter", "rebuild", "finish", "stop", "clone", "drop", "adopt"),
}
"""Commands that have nothing to do with pandas."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command with these arguments (default: the command line's). 0: done; 1: an error; 2: wrong usage."""
    if argv is None:
        argv = sys.argv[1:]
        if not WITHOUT_PANDAS.isdisjoint(argv[:1]):
            leave_pandas_out()
    from .cli.main import run

    return run(argv)


def leave_pandas_out() -> None:
    """Let the pyarrow of this process begin without pandas, which takes half of a short command's CPU time to load.

    pyarrow loads it for the first array, to know its objects, and does not try again for another one if that fails.
    """
    absent = _NoPandas()
    sys.meta_path.insert(0, absent)
    try:
        import pyarrow as pa

        pa.array([0])
    finally:
        sys.meta_path.remove(absent)


class _NoPandas:
    """Finder of modules that finds no pandas."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("not needed by this command", name=name)


if __name__ == "__main__":
    sys.exit(main())
