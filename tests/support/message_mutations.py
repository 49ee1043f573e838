"""Values made of dicts and lists with one of their places taken by something else, as a stranger would send them."""

from __future__ import annotations

from typing import Any


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something can be put in the place of something else."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return [path, *(found for name, inner in inside for found in places(inner, (*path, name)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy
