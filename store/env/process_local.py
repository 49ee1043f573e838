"""Objects that belong to one process: pickling one raises InvalidInput, and forgetting to close one warns."""

from __future__ import annotations

import warnings
from typing import ClassVar, NoReturn

from epochlog.errors import InvalidInput


class OneProcess:
    """Base class of objects that hold an open store: pickling one raises InvalidInput."""

    _instead: ClassVar[str] = "send store.root (and the catalog's URL), and open it there with epochlog.open"
    """Advice for the error message: the values to send to another process in place of the object."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InvalidInput(
            f"{type(self).__name__} holds an open store of this process and cannot be pickled, nor used in a Spark "
            f"function: {self._instead}"
        )


def warn_unclosed(handle: object) -> None:
    """Issue a ResourceWarning for an unclosed object. The object stays open: other objects may still read by it."""
    warnings.warn(f"unclosed {handle!r}: close it, or use it in a `with` block", ResourceWarning, 3, source=handle)
