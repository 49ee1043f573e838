"""Every store that a test opens: noted, and after the test opened again and verified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochlog.errors import EpochlogError
from epochlog.store import handle as handles
from epochlog.store.handle import Handle
from epochlog.store.verify import verify_store

real_open = handles.open_handle


@dataclass(frozen=True)
class Noted:
    """How a store was opened last."""

    root: str
    catalog: str | None
    durability: str
    clock: Callable[[], int] | None


class Watch:
    """Stands between all of the library and `open_handle`, and remembers what was opened since the last `forget`."""

    def __init__(self) -> None:
        self._noted: dict[str, Noted] = {}

    def open(self, root: Any, catalog: Any = None, **options: Any) -> Handle:
        handle = real_open(root, catalog, **options)
        self._noted[handle.root] = Noted(str(root), catalog, handle.durability, options.get("clock"))
        return handle

    def forget(self) -> None:
        self._noted.clear()

    def damage(self) -> dict[str, str]:
        """What is wrong with each store that is still there, by its root; nothing where all is well."""
        found = {root: wrong_with(noted) for root, noted in self._noted.items()}
        return {root: wrong for root, wrong in found.items() if wrong}


def wrong_with(noted: Noted) -> str:
    """What verify says of a store, a line for each problem; nothing when it is whole, or gone."""
    if "://" not in noted.root and not Path(noted.root).exists():
        return ""
    try:
        handle = real_open(
            noted.root, noted.catalog, create=False, durability=noted.durability, clock=_frozen(noted.clock)
        )
    except EpochlogError as error:
        return f"it cannot be opened: {error!r}"
    try:
        return "\n".join(f"{problem.where}: {problem.what}" for problem in verify_store(handle).problems)
    finally:
        handle.close()


def _frozen(clock: Callable[[], int] | None) -> Callable[[], int] | None:
    """The test's clock, as it stands at its end; one that does not answer any more is not asked again."""
    if clock is None:
        return None
    now = clock()
    return lambda: now


watch = Watch()
# Modules take the function by name when they are imported, and this one is imported before them.
handles.open_handle = watch.open
