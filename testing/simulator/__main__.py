"""Command that runs any number of seeds: `python -m epochlog.testing.simulator COUNT [FIRST_SEED]`."""

from __future__ import annotations

import sys

from .runs import Found, check


def main(count: int, first: int) -> int:
    """Run the seeds, print the reports of those that fail, and return the number of failures."""
    failed = 0
    for seed in range(first, first + count):
        try:
            check(seed)
        except Found as failure:
            failed += 1
            print(failure, flush=True)
    print(f"{count} seeds from {first} on: {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0), 1))
