"""Errors of stores that are opened read-only, or where only reads are permitted."""

from __future__ import annotations

from typing import NoReturn

from epochlog.errors import StoreReadOnly


def refuse_write(place: str) -> NoReturn:
    """Raise StoreReadOnly for a write of a store that was opened read-only."""
    raise StoreReadOnly(
        f"the store at {place} was opened read-only, and this call writes; nothing was written. Open the store without "
        "read_only=True"
    )


def cannot_write(place: str, reason: str) -> StoreReadOnly:
    """Return the error for a place that was opened for writing and permits only reads."""
    return StoreReadOnly(
        f"the store at {place} cannot be written here: {reason}; nothing was written. To read it, open it with "
        "epochlog.open(root, read_only=True)"
    )
