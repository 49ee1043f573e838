"""Moving logs: what a table's change log is to those who follow it, and stages of a query to those who wait for them.

Its public names are loaded when they are first used, as those of the package itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as in _HOMES, for readers and type checkers
    from .gate import StageGate, stage_counter

_HOMES = {
    "StageGate": "gate",
    "stage_counter": "gate",
}

__all__ = ["StageGate", "stage_counter"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value
