"""Policy of a read that names none: one decision for all doors, and a policy in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass

from .policy import Aligned, Exact, Global, Policy
from .policy_registry import resolve_policy

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


def named_policy(consistency: str | type | Policy | None, /, **options: object) -> Policy | None:
    """Return the policy that the arguments of a read name; None if they name none. Options alone are those of `global`.

    Raises InvalidInput.
    """
    if consistency is None and not options:
        return None
    return resolve_policy("global" if consistency is None else consistency, **options)


def policy_text(policy: Policy) -> str:
    """Return the policy in words: its name, with the options that are not its defaults."""
    name = str(getattr(policy, "name", type(policy).__name__))
    shown = fields(policy) if is_dataclass(policy) and not isinstance(policy, Exact) else ()
    options = [f"{field.name}={value!r}" for field in shown if (value := getattr(policy, field.name)) != field.default]
    return (f"{name}({', '.join(options)})" if options else name)[:LONGEST_TEXT]
