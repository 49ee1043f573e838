"""Command that runs any number of seeds: `python -m epochlog.testing.simulator COUNT [FIRST_SEED]`."""

from __future__ import annotations

import argparse
import sys

from .runs import SeedFailed, check


def main(count: int, first: int) -> int:
    """Run the seeds, print the reports of those that fail, and return the number of failures."""
    failed = 0
    for seed in range(first, first + count):
        try:
            check(seed)
        except SeedFailed as failure:
            failed += 1
            print(failure, flush=True)
    print(f"{count} seeds from {first} on: {failed} failed")
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run the simulation of the checkpoint manager for some seeds.")
    parser.add_argument("count", type=int, help="number of seeds")
    parser.add_argument("first", type=int, nargs="?", default=0, help="first seed (default: 0)")
    options = parser.parse_args()
    sys.exit(min(main(options.count, options.first), 1))
