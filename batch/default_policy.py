"""Policy of a read that names none: one decision for all ways of reading, and a policy in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass

from epochlog.errors import InvalidInput

from .policy import Aligned, Exact, Global, Policy
from .policy_registry import resolve_policy, takers_of

LONGEST_TEXT = 200


def default_policy(tables: Sequence[str] | None, store_default: str | None) -> Policy:
    """Return the policy of a read that names none. tables: those that it names; None: all, or it is not known which.
    store_default: the name of the store's own default; None: it has none. Pure.
    """
    if store_default is not None:
        return resolve_policy(store_default)
    if tables is None:
        return Global()
    return Aligned(bounded=len(set(tables)) > 1)


def named_policy(
    consistency: str | type | Policy | None, default: Callable[[], Policy], /, **options: object
) -> Policy | None:
    """Return the policy that the arguments of a read name; None if they name none. An option of `global` names it.

    default: returns the policy of the read if none is named. Raises InvalidInput, which names it, for other options.
    """
    if consistency is not None:
        return resolve_policy(consistency, **options)
    takers = {option: takers_of(option) for option in options}
    foreign = [option for option, names in takers.items() if Global.name not in names]
    if not foreign:
        return resolve_policy(Global.name, **options) if options else None
    advice = [
        f"{option} belongs to {' or '.join(f'consistency={name!r}' for name in takers[option])}"
        if takers[option]
        else f"no built-in policy has {option}"
        for option in foreign
    ]
    raise InvalidInput(
        f"this read names no policy, and its default, {policy_text(default())}, takes no {', '.join(foreign)}: name "
        f"the policy; {'; '.join(advice)}"
    )


def policy_text(policy: Policy) -> str:
    """Return the policy in words: its name, with the options that are not its defaults."""
    name = str(getattr(policy, "name", type(policy).__name__))
    shown = fields(policy) if is_dataclass(policy) and not isinstance(policy, Exact) else ()
    options = [f"{field.name}={value!r}" for field in shown if (value := getattr(policy, field.name)) != field.default]
    return (f"{name}({', '.join(options)})" if options else name)[:LONGEST_TEXT]
