"""Public names of a package that are loaded when they are first used (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    package: dict[str, Any], homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package. package: its globals. homes: its modules, each with the public
    names that it defines.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        module = import_module(f".{home}", package["__name__"])
        package.update((public, getattr(module, public)) for public in homes[home])
        return package[name]

    return load, lambda: sorted({*package, *home_of})
