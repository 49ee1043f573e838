"""Exchange of data between processes: a served store's rows, changes and subscriptions, and the staged exchange of
queries.

Public names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from epochlog.lazy import lazily

if TYPE_CHECKING:  # repeats the names in _HOMES for readers and type checkers
    from .stage_gate import StageGate, stage_counter
    from .staged.client import ExchangeClient
    from .staged.state import ChannelProgress

_HOMES: dict[str, tuple[str, ...]] = {
    "stage_gate": ("StageGate", "stage_counter"),
    "staged.client": ("ExchangeClient",),
    "staged.state": ("ChannelProgress",),
}

__all__ = ["StageGate", "stage_counter", "ExchangeClient", "ChannelProgress"]

__getattr__, __dir__ = lazily(globals(), _HOMES)
