"""Policies by name: the built-in ones, and those that other packages register as entry points."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import entry_points

from epochlog.errors import EpochlogError, InvalidInput

from .policy import Aligned, AsOf, AtLeast, Bounded, Exact, Global, Latest, Policy
from .policy_options import PolicyOption

GROUP = "epochlog.consistency"
BUILT_IN: dict[str, type] = {
    "global": Global,
    "aligned": Aligned,
    "latest": Latest,
    "as_of": AsOf,
    "at_least": AtLeast,
    "bounded": Bounded,
    "exact": Exact,
}
"""A further policy is a module and its line here (docs/howto/add-a-policy.md)."""


def resolve_policy(consistency: str | type | Policy = "global", /, **options: object) -> Policy:
    """Return the policy of that name or class made with these options, or the given policy itself.

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
    """Return the names of all policies: the built-in ones, then the registered ones."""
    return [*BUILT_IN, *sorted(entry_points(group=GROUP).names - BUILT_IN.keys())]


def options_of(name: str) -> dict[str, PolicyOption]:
    """List the options that a built-in policy declares, by name; none of a policy of somebody's own."""
    return {option.name: option for option in getattr(BUILT_IN.get(name), "options", ())}


def declared_options() -> dict[str, dict[str, PolicyOption]]:
    """List all options that are declared, each with the policies that do."""
    found: dict[str, dict[str, PolicyOption]] = {}
    for policy in BUILT_IN:
        for name, option in options_of(policy).items():
            found.setdefault(name, {})[policy] = option
    return found


def implied_policy(given: Collection[str]) -> str | None:
    """Find the policy that is meant by options alone: one that takes them all, if there is one."""
    meant = [
        name
        for name in reversed(BUILT_IN)
        if any(option.implies for option in options_of(name).values() if option.name in given)
    ]
    return next((name for name in meant if options_of(name).keys() >= set(given)), meant[0] if meant else None)


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
    """Return a sentence part on the options that the policy does not take and those that it lacks; "" if none are
    wrong.
    """
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
