"""Numbers as people read them: epochs with their time, bytes, lags, ages; and text that a terminal can take (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from ..store.epoch import show_span, to_unix_ms
from ..store.epoch import show_time as iso

NONE = "-"


def epoch_iso(epoch: int) -> str | None:
    """The time an epoch lies in; None for 0, which is no moment but "none yet"."""
    return iso(to_unix_ms(epoch)) if epoch else None


def epoch_text(epoch: int | None) -> str:
    """`585139200001 (2025-01-02T15:40:56.250Z)`, which a narrow page breaks in one place at most; `-` for none."""
    return f"{epoch} ({epoch_iso(epoch)})" if epoch else NONE


def bytes_text(count: int) -> str:
    """`512 B`, `4.5 MB`: thousands, as disks are sold."""
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if size < 999.95:
            break
        size, unit = size / 1000, larger
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def lag_text(ms: int) -> str:
    """How far behind; `none` when everything is reflected."""
    return show_span(ms) if ms else "none"


def count_text(count: int | None) -> str:
    """With thousands separated; `?` when it could not be found out, or was not asked for."""
    return "?" if count is None else f"{count:,}"


def listed(parts: Sequence[str], most: int = 5) -> str:
    """With commas; `a, b and 998 more` where they are too many to name."""
    more = len(parts) - most
    return ", ".join(parts[:most]) + (f" and {more:,} more" if more > 0 else "")


def safe(text: str) -> str:
    """The text with everything escaped that is not printable: data must not steer the terminal it is shown on."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """The text on one line, safe."""
    return safe(" ".join(text.split()))
