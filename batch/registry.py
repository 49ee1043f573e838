"""Policies by name: the built-in ones, and those that other packages register as entry points."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from ..errors import EpochlogError, InvalidInput
from .policy import Aligned, AsOf, AtLeast, Bounded, Exact, Global, Latest, Policy

GROUP = "epochlog.consistency"
BUILT_IN = {cls.name: cls for cls in (Global, Aligned, Latest, AsOf, AtLeast, Bounded, Exact)}


def resolve_policy(consistency: str | type | Policy = "global", /, **options: object) -> Policy:
    """The policy of that name or class made with these options, or the given policy itself.

    Names: `global`, `aligned`, `latest`, `as_of`, `at_least`, `bounded`, `exact`, and any registered in the entry point
    group `epochlog.consistency` (a class, a function that makes a policy, or a policy). InvalidInput for unknown names
    and options.
    """
    made = _named(consistency) if isinstance(consistency, str) else consistency
    if callable(made) and (isinstance(made, type) or not hasattr(made, "choose")):
        try:
            made = made(**options)
        except EpochlogError:
            raise
        except Exception as error:
            told = _misfit(made, options) or f"cannot be made: {type(error).__name__}: {error}"
            raise InvalidInput(f"the policy {_shown(consistency)} {told}") from error
    elif options:
        raise InvalidInput(f"{consistency!r} is a policy already and takes no options; got {', '.join(options)}")
    if not isinstance(made, Policy):
        raise InvalidInput(f"{_shown(consistency)} is no policy: it has no choose(view, tables)")
    return made


def policy_names() -> list[str]:
    """The names of all policies there are: the built-in ones, then those that are registered."""
    return [*BUILT_IN, *sorted(entry_points(group=GROUP).names - BUILT_IN.keys())]


def _named(name: str) -> object:
    if name in BUILT_IN:
        return BUILT_IN[name]
    registered = entry_points(group=GROUP)
    for entry in registered:
        if entry.name == name:
            try:
                return entry.load()
            except Exception as error:  # whatever another package does when it is imported
                raise InvalidInput(
                    f"the consistency policy {name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}"
                ) from error
    raise InvalidInput(f"there is no consistency policy {name!r}; there are: {', '.join(sorted(policy_names()))}")


def _misfit(made: Callable[..., object], options: Mapping[str, object]) -> str:
    """Which options it does not take, and which it lacks; empty when that is not it."""
    try:
        takes = inspect.signature(made).parameters
    except (TypeError, ValueError):
        return ""
    open_ended = any(one.kind is one.VAR_KEYWORD for one in takes.values())
    unknown = [] if open_ended else [name for name in options if name not in takes]
    named = [one for one in takes.values() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    missing = [one.name for one in named if one.default is one.empty and one.name not in options]
    told = [f"takes no {', '.join(unknown)} (it takes: {', '.join(takes) or 'nothing'})"] if unknown else []
    return " and ".join(told + ([f"needs {', '.join(missing)}"] if missing else []))


def _shown(consistency: object) -> str:
    return repr(consistency) if isinstance(consistency, str) else getattr(consistency, "__name__", repr(consistency))
