"""What a command works with: the open store, its options, and where its result goes."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

from ..api import Store
from ..store.handle import Handle
from .output import Output


@dataclass(frozen=True, slots=True)
class Session:
    """One run of one command."""

    handle: Handle
    store: Store
    options: Namespace
    out: Output
