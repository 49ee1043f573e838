"""Schema of OpenLineage events as the package `openlineage-python` ships it: its generated classes.

The package makes them of the JSON schemas, which its wheel does not have. An event must have the required fields, no
unknown ones, and values of the declared types that pass the validators of the classes.
"""

from __future__ import annotations

import types
import typing
from enum import Enum
from typing import Any

import attr
from openlineage.client import facet_v2
from openlineage.client.event_v2 import RunEvent
from openlineage.client.generated import base


def facet_classes() -> dict[str, type]:
    """Return the classes of all facets of the package by the URL of their schema."""
    modules = [getattr(facet_v2, name) for name in facet_v2.__all__]
    classes = [kind for module in modules if isinstance(module, types.ModuleType) for kind in vars(module).values()]
    facets = [kind for kind in classes if isinstance(kind, type) and issubclass(kind, base.BaseFacet)]
    return {kind._get_schema(): kind for kind in facets}


FACETS = facet_classes()


def check_event(event: dict[str, Any]) -> RunEvent:
    """Build the RunEvent of parsed JSON. Raises ValueError or TypeError, with the place, if it breaks the schema."""
    built = _built(RunEvent, event, "event")
    assert isinstance(built, RunEvent)
    return built


def _built(kind: Any, value: Any, place: str) -> Any:
    """Build a value of a type. Raises ValueError or TypeError for one that it does not permit."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return None if value is None else _built(inner, value, place)
    if origin is list:
        _require(isinstance(value, list), place, "a list", value)
        return [_built(arguments[0], item, f"{place}[{at}]") for at, item in enumerate(value)]
    if origin is dict:
        _require(isinstance(value, dict), place, "an object", value)
        return {name: _built(arguments[1], item, f"{place}.{name}") for name, item in value.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if isinstance(kind, type) and attr.has(kind):
        _require(isinstance(value, dict), place, "an object", value)
        return _object(_facet_class(kind, value, place), value, place)
    _require(isinstance(value, kind) and not (kind is int and isinstance(value, bool)), place, kind.__name__, value)
    return value


def _facet_class(kind: type, value: dict[str, Any], place: str) -> type:
    """Return the class of a facet, which its URL names and which must be of the kind of its place."""
    if not issubclass(kind, base.BaseFacet):
        return kind
    facet = FACETS.get(value.get("_schemaURL", ""))
    _require(facet is not None and issubclass(facet, kind), place, f"a facet of {kind.__name__}", value)
    assert facet is not None
    return facet


def _object(kind: type, value: dict[str, Any], place: str) -> Any:
    fields, hints = {field.name: field for field in attr.fields(kind)}, typing.get_type_hints(kind)
    _require(value.keys() <= fields.keys(), place, f"an object with {sorted(fields)}", value)
    missing = [name for name, field in fields.items() if field.default is attr.NOTHING and name not in value]
    _require(not missing, place, f"an object with {missing}", value)
    given = {name: _built(hints[name], item, f"{place}.{name}") for name, item in value.items()}
    made = kind(**{fields[name].alias: item for name, item in given.items() if fields[name].init})
    fixed = {name: item for name, item in given.items() if not fields[name].init}
    _require(all(getattr(made, name) == item for name, item in fixed.items()), place, "the URL of its schema", fixed)
    return made


def _require(condition: bool, place: str, wanted: str, value: object) -> None:
    if not condition:
        raise TypeError(f"{place} is {wanted}, not {value!r}")
