"""Expectation of an error, without a test runner."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raises(kind: type[BaseException], words: str = "") -> Iterator[None]:
    """Pass if the block raises the error and its text matches `words` (a regular expression); fail otherwise."""
    try:
        yield
    except kind as error:
        if not re.search(words, str(error)):
            raise AssertionError(f"{error!r} does not say {words!r}") from error
    else:
        raise AssertionError(f"the block did not raise {kind.__name__}")
