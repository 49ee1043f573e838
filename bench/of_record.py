"""Ratios of record: those of an earlier run at the same scale, with which a later run is compared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from report import Figure

FOLDER = Path(__file__).parent / "of_record"
MOVED = 1.25
"""A ratio has moved if it, or its inverse, is more than this many times the one of record."""


@dataclass(frozen=True, slots=True)
class RatioRecord:
    """Ratios of one run. ratios: by the figure, its rows and who is compared. machine: what they were measured on."""

    machine: str
    revision: str
    ratios: Mapping[str, float]

    @classmethod
    def of(cls, figures: Iterable[Figure], environment: Iterable[str]) -> RatioRecord:
        """Return the ratios of figures. environment: lines of the machine and of the revision, among others."""
        lines = dict(line.split(": ", 1) for line in environment)
        return cls(lines["Machine"], lines.get("Revision", "unknown"), ratios_of(figures))

    @classmethod
    def load(cls, path: Path) -> RatioRecord | None:
        """Return the record in a file; None if there is none."""
        return cls(**json.loads(path.read_text("utf-8"))) if path.exists() else None

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"machine": self.machine, "revision": self.revision, "ratios": dict(self.ratios)}
        path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


def path_of(scale: float) -> Path:
    """Return the file of the record of runs at this share of the full size."""
    return FOLDER / f"{scale:g}.json"


def ratios_of(figures: Iterable[Figure]) -> dict[str, float]:
    """Return each judged ratio to a peer that took part, rounded to three digits."""
    return {
        f"{figure.id} {figure.what}{f', {figure.shape}' if figure.shape else ''}: {target.ours} / {target.peer}": float(
            f"{figure.judged(target):.3g}"
        )
        for figure in figures
        for target in figure.targets
        if target.peer is not None and target.peer not in figure.absent
    }


def compared(record: RatioRecord, now: RatioRecord) -> list[str]:
    """Say which ratios have moved since the record, the furthest first, and which rows only one of the runs has."""
    both = [name for name in now.ratios if name in record.ratios]
    factors = {name: now.ratios[name] / record.ratios[name] for name in both}
    moved = sorted(
        (name for name in both if _distance(factors[name]) > MOVED), key=lambda name: -_distance(factors[name])
    )
    lines = [
        f"{'slower' if factors[name] > 1 else 'faster'}: {name} is {now.ratios[name]:.3g}, "
        f"{record.ratios[name]:.3g} of record ({factors[name]:.2f} times)"
        for name in moved
    ]
    head = f"compared with revision {record.revision}: {len(moved)} of {len(both)} ratios moved by more than a quarter"
    if now.machine != record.machine:
        head += f", on another machine ({record.machine})"
    lines += [f"not of record: {name}" for name in now.ratios if name not in record.ratios]
    lacking = [name for name in record.ratios if name not in now.ratios]
    return [head, *lines, *([f"not measured now: {len(lacking)} ratios of record"] if lacking else [])]


def _distance(factor: float) -> float:
    return max(factor, 1 / factor)
