"""Garbage collection of Spark's Python worker processes, which would otherwise cost more than their work."""

from __future__ import annotations

import gc

FREEZE_AT_CALL = 2  # At the first call, Spark and pyarrow may still be loading modules.

_calls = 0


def freeze_loaded_objects() -> None:
    """Freeze all loaded objects at the second call in a process, so that the garbage collector skips them.

    Spark's workers collect garbage after every request, which takes 15-40 ms if the collector visits all modules.
    """
    global _calls  # noqa: PLW0603  # a process freezes once
    _calls += 1
    if _calls == FREEZE_AT_CALL:
        gc.collect()
        gc.freeze()
