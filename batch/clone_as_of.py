"""Clone of a table as of an epoch, a time or a tag: resolves it to the epoch at which the files are shared."""

from __future__ import annotations

from datetime import datetime

from epochlog.errors import InvalidInput
from epochlog.store.commit.clone import clone_table
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.session.handle import Handle

from .policy import AsOf
from .snapshot import take_snapshot
from .tags import find_tag


def clone_as_of(handle: Handle, source: str, name: str, as_of: int | str | datetime | None) -> TableDef:
    """Create a clone of a table at its newest commit (None), an epoch, a time, or the name of a tag."""
    if isinstance(as_of, datetime):
        with take_snapshot(handle, AsOf(timestamp=as_of), [source]) as snapshot:
            return clone_table(handle, source, name, snapshot.epochs[source])
    if isinstance(as_of, str):
        tag = find_tag(handle, as_of)
        if source not in tag.epochs:
            raise InvalidInput(f"the tag {as_of!r} has no table {source!r}; it has {', '.join(tag.epochs)}")
        return clone_table(handle, source, name, tag.epochs[source])
    return clone_table(handle, source, name, as_of)
