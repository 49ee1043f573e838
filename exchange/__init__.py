"""Moving logs: what a table's change log is to those who follow it, and stages of a query to those who wait for them.

Its public names are loaded when they are first used, as those of the package itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names as in _HOMES, for readers and type checkers
    from .gate import StageGate, stage_counter

_HOMES: dict[str, tuple[str, ...]] = {"gate": ("StageGate", "stage_counter")}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = ["StageGate", "stage_counter"]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
