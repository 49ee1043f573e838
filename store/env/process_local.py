"""Base class of objects that belong to one process: pickling one raises InvalidInput; leaving it open warns."""

from __future__ import annotations

import warnings
from typing import ClassVar, NoReturn

from epochlog.errors import InvalidInput


class OneProcess:
    """Base class of objects that hold an open store: pickling one raises InvalidInput."""

    _instead: ClassVar[str] = "send store.root (and the catalog's URL), and open it there with epochlog.open"
    """What to send to another process, for people."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InvalidInput(
            f"{type(self).__name__} holds an open store of this process and cannot be pickled, nor used in a Spark "
            f"function: {self._instead}"
        )


def warn_unclosed(found: object) -> None:
    """Issue a ResourceWarning for an unclosed object. Nothing is closed, for others may still read by it."""
    warnings.warn(f"unclosed {found!r}: close it, or use it in a `with` block", ResourceWarning, 3, source=found)
