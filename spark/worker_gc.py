"""Settles Spark's Python worker processes: keeps their garbage collections from costing more than their work."""

from __future__ import annotations

import gc

FREEZE_AT_CALL = 2  # at the first, Spark and pyarrow may still be loading modules

_calls = 0


def settle() -> None:
    """Freeze all loaded objects, which the garbage collector then skips, once, at the second call in a process.

    Spark's workers collect garbage after every request: 15-40 ms each while every loaded module is in sight.
    """
    global _calls  # noqa: PLW0603  # a process settles once, whoever asks
    _calls += 1
    if _calls == FREEZE_AT_CALL:
        gc.collect()
        gc.freeze()
