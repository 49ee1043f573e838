"""Command that runs any number of seeds of the law:

PYTHONPATH=tests:tests/support python -m law.campaign COUNT [FIRST_SEED]
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from law_world import run


def main(count: int, first: int) -> int:
    """Runs the seeds, prints those that fail with their reasons; returns how many failed."""
    seen: Counter[str] = Counter()
    failed = 0
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            try:
                seen += run(seed, Path(folder) / "store").seen
            except Exception:
                failed += 1
                print(f"seed {seed}:\n{traceback.format_exc()}", flush=True)
    print(f"{count} seeds from {first} on: {failed} failed; {dict(seen)}")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0), 1))
