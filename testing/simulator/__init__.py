"""Simulation of the checkpoint manager: seeded graphs of jobs, seeded faults, and invariants after every step.

`check` runs one seed; `World` is one run; `python -m epochlog.testing.simulator COUNT` runs many (docs/testing.md).
"""

from __future__ import annotations

from .runs import SeedFailed, check
from .shapes import KINDS, Violation
from .world import World

__all__ = ["KINDS", "SeedFailed", "Violation", "World", "check"]
