"""Whole numbers in texts of users and peers: Python raises an error of its own for one of several thousand digits."""

from __future__ import annotations

MOST_DIGITS = 19
"""Digits of the largest number of 64 bits."""


def whole_number(text: str) -> int | None:
    """Return the number that a text of ASCII digits has; None for any other text, and for more than MOST_DIGITS."""
    return int(text) if text.isascii() and text.isdigit() and len(text.lstrip("0")) <= MOST_DIGITS else None
