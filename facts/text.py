"""Formatting of epochs, bytes, lags and counts for people, and escaping for terminals (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from epochlog.store.metadata.read_default import AUTO
from epochlog.store.types.epoch import show_span, to_unix_ms
from epochlog.store.types.epoch import show_time as iso

NONE = "-"


def epoch_iso(epoch: int) -> str | None:
    """Return the time of an epoch in ISO 8601; None for 0 (no epoch yet)."""
    return iso(to_unix_ms(epoch)) if epoch else None


def epoch_text(epoch: int | None) -> str:
    """Format an epoch as `585139200001 (2025-01-02T15:40:56.250Z)`, with one place to break the line; `-` for none."""
    return f"{epoch} ({epoch_iso(epoch)})" if epoch else NONE


def bytes_text(count: int) -> str:
    """Format bytes as `512 B` or `4.5 MB`, in powers of 1000."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if size < 999.95:
            break
        size, unit = size / 1000, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def lag_text(ms: int) -> str:
    """Format a lag in milliseconds as a time span; `none` for 0."""
    return show_span(ms) if ms else "none"


def count_text(count: int | None) -> str:
    """Format a count with thousands separators; `?` for None (unknown or not counted)."""
    return "?" if count is None else f"{count:,}"


def unchanged_text(dropped: bool | None) -> str:
    """Return a clause about an output's unchanged rows, to append to other text; empty for a root table (None)."""
    return {None: "", True: "; unchanged rows are left out", False: "; unchanged rows are kept"}[dropped]


def settings_text(facts: Mapping[str, Any]) -> str:
    """Describe the settings of a store, from its facts."""
    own = facts["default_consistency"]
    taken = "the policy for their tables (auto)" if own == AUTO else own
    return f"reads that name no policy take {taken}; global_max_lag {show_span(facts['global_max_lag_ms'])}"


def listed(parts: Sequence[str], limit: int = 5) -> str:
    """Join the parts with commas; `a, b and 998 more` for more than `limit` parts."""
    hidden = len(parts) - limit
    return ", ".join(parts[:limit]) + (f" and {hidden:,} more" if hidden > 0 else "")


def safe(text: str) -> str:
    """Escape every unprintable character, so that data cannot control the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """Put the text on one line, and escape it."""
    return safe(" ".join(text.split()))
