"""Mutations of messages: values of dicts and lists with one place replaced, as a hostile peer could send them."""

from __future__ import annotations

from typing import Any


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all places in the value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return [path, *(inner_path for name, inner in inside for inner_path in places(inner, (*path, name)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], new)
    return copy
