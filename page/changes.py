"""Differences of two documents of the page, which events send in place of whole documents (pure)."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]
KEYED = ("tables", "jobs")
"""Fields with a list of objects that have a name each: an event has those that differ, and the names that are gone."""


def difference(before: Document, after: Document) -> Document:
    """Return the event that turns one document into the other: `set`: fields with another value; `put`: for each keyed
    field the objects that are new, and of those that differ the name and the fields with another value; `drop`: the
    names that are gone. `{}` if both are equal.
    """
    event: Document = {}
    fields = {name: value for name, value in after.items() if name not in KEYED and before.get(name) != value}
    if fields:
        event["set"] = fields
    for name in KEYED:
        old, new = by_name(before.get(name, ())), by_name(after.get(name, ()))
        put = [_patch(old.get(key, {}), value) for key, value in new.items() if old.get(key) != value]
        drop = [key for key in old if key not in new]
        if put:
            event.setdefault("put", {})[name] = put
        if drop:
            event.setdefault("drop", {})[name] = drop
    return event


def apply(document: Document, event: Document) -> Document:
    """Return the document after an event, with the keyed objects in order of their names, as the page does it."""
    result = {**document, **event.get("set", {})}
    for name in KEYED:
        objects = by_name(result.get(name, ()))
        for key in event.get("drop", {}).get(name, ()):
            del objects[key]
        for patch in event.get("put", {}).get(name, ()):
            objects[patch["name"]] = {**objects.get(patch["name"], {}), **patch}
        result[name] = [objects[key] for key in sorted(objects)]
    return result


def _patch(old: Document, new: Document) -> Document:
    return {"name": new["name"], **{field: value for field, value in new.items() if old.get(field, old) != value}}


def by_name(objects: Any) -> dict[str, Any]:
    """Return the objects of a keyed field by their names."""
    return {value["name"]: value for value in objects}
