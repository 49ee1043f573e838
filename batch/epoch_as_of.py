"""Epoch of one table that a user names by a time or a tag, for a clone or a restore of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from epochlog.errors import InvalidInput
from epochlog.store.session.handle import Handle

from .policy import AsOf
from .snapshot import take_snapshot
from .tags import find_tag


@contextmanager
def epoch_as_of(handle: Handle, table: str, as_of: int | str | datetime) -> Iterator[int]:
    """Yield the epoch of a table at an epoch, a time, or a tag of the table by its name. That of a time stays readable
    meanwhile.
    """
    if isinstance(as_of, datetime):
        with take_snapshot(handle, AsOf(timestamp=as_of), [table]) as snapshot:
            yield snapshot.epochs[table]
    elif isinstance(as_of, str):
        tag = find_tag(handle, as_of)
        if table not in tag.epochs:
            raise InvalidInput(f"the tag {as_of!r} has no table {table!r}; it has {', '.join(tag.epochs)}")
        yield tag.epochs[table]
    else:
        yield as_of
