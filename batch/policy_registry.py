"""Registry of policies by name: the built-in ones, and entry points of other packages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from epochlog.errors import EpochlogError, InvalidInput

from .policy import Aligned, AsOf, AtLeast, Bounded, Exact, Global, Latest, Policy
from .policy_options import PolicyOption

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

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
"""To add a policy, write a module and add a line here (docs/howto/add-a-policy.md)."""


def resolve_policy(consistency: str | type | Policy, /, **options: object) -> Policy:
    """Return the policy of that name or class made with these options, or the given policy itself.

    Names: `global`, `aligned`, `latest`, `as_of`, `at_least`, `bounded`, `exact`, and any registered in the entry point
    group `epochlog.consistency` (a class, a function that makes a policy, or a policy). Raises InvalidInput for unknown
    names and options.
    """
    policy = _named(consistency) if isinstance(consistency, str) else consistency
    if callable(policy) and (isinstance(policy, type) or not hasattr(policy, "choose")):
        try:
            policy = policy(**options)
        except EpochlogError:
            raise
        except Exception as error:
            problem = _misfit(policy, options) or f"cannot be made: {type(error).__name__}: {error}"
            raise InvalidInput(f"the policy {_shown(consistency)} {problem}") from error
    elif options:
        raise InvalidInput(f"{consistency!r} is a policy already and takes no options; got {', '.join(options)}")
    if not isinstance(policy, Policy):
        raise InvalidInput(f"{_shown(consistency)} is not a policy: it has no choose(view, tables)")
    return policy


def _registered() -> EntryPoints:
    from importlib.metadata import entry_points  # it imports the package email

    return entry_points(group=GROUP)


def policy_names() -> list[str]:
    """Return the names of all policies: the built-in ones, then the registered ones."""
    return [*BUILT_IN, *sorted(_registered().names - BUILT_IN.keys())]


def describe_built_in() -> str:
    """Return the names of the built-in policies, each with its `summary` if it has one."""
    summaries = {name: getattr(policy, "summary", None) for name, policy in BUILT_IN.items()}
    return ", ".join(f"{name} ({text})" if text else name for name, text in summaries.items())


def options_of(name: str) -> dict[str, PolicyOption]:
    """Return the options that a built-in policy declares, by name; none for a registered policy."""
    return {option.name: option for option in getattr(BUILT_IN.get(name), "options", ())}


def takers_of(argument: str) -> list[str]:
    """Return the built-in policies that take this keyword argument."""
    return [name for name, policy in BUILT_IN.items() if argument in inspect.signature(policy).parameters]


def declared_options() -> dict[str, dict[str, PolicyOption]]:
    """Return all declared options, each with the policies that declare it."""
    options: dict[str, dict[str, PolicyOption]] = {}
    for policy in BUILT_IN:
        for name, option in options_of(policy).items():
            options.setdefault(name, {})[policy] = option
    return options


def implied_policy(option_names: Collection[str]) -> str | None:
    """Return the policy that the options alone select: the one that takes them all, if there is one."""
    implied = [
        name
        for name in reversed(BUILT_IN)
        if any(option.implies for option in options_of(name).values() if option.name in option_names)
    ]
    return next(
        (name for name in implied if options_of(name).keys() >= set(option_names)), implied[0] if implied else None
    )


def _named(name: str) -> object:
    if name in BUILT_IN:
        return BUILT_IN[name]
    registered = _registered()
    for entry in registered:
        if entry.name == name:
            try:
                return entry.load()
            except Exception as error:  # importing another package can raise any error
                raise InvalidInput(
                    f"the consistency policy {name!r} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}"
                ) from error
    raise InvalidInput(f"unknown consistency policy {name!r}; known are: {', '.join(sorted(policy_names()))}")


def _misfit(factory: Callable[..., object], options: Mapping[str, object]) -> str:
    """Return the unknown and the missing options of the policy as part of a sentence; "" if there are none."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        return ""
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [] if open_ended else [name for name in options if name not in parameters]
    named = [
        parameter
        for parameter in parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    missing = [
        parameter.name for parameter in named if parameter.default is parameter.empty and parameter.name not in options
    ]
    problems = [f"takes no {', '.join(unknown)} (it takes: {', '.join(parameters) or 'nothing'})"] if unknown else []
    return " and ".join(problems + ([f"needs {', '.join(missing)}"] if missing else []))


def _shown(consistency: object) -> str:
    return repr(consistency) if isinstance(consistency, str) else getattr(consistency, "__name__", repr(consistency))
