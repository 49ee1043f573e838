"""Options of `format("epochlog")`: their names, and the parsing of their texts into values, or into errors with
advice.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from epochlog.errors import InvalidInput
from epochlog.store.session.handle import Handle, open_handle

PLACE = ("path", "catalog", "volatile", "table")
STATE = ("versionAsOf", "timestampAsOf", "consistency", "snapshot", "filter")
FEED = ("readChangeFeed", "startingVersion", "endingVersion", "preImages", "changeMode")
STREAM = ("maxEpochsPerTrigger", "maxRowsPerTrigger", "maxBytesPerTrigger", "consumerId", "failOnDataLoss")
WRITE = ("txnAppId", "txnVersion")
TASKS = ("minPartitions", "sessionParallelism")
READ = ("columns", *STATE, *FEED, *STREAM)
_KNOWN = {name.lower(): name for name in (*PLACE, *READ, *WRITE, *TASKS)}
_SINCE = "an epoch has its time in it: take the snapshot as of that time and give startingVersion its epoch + 1"
_CHANGES = "a stream gives every change with its _change_type; filter by that"
_WHOLE = "an overwrite replaces the whole content; append upserts rows, and deletes those whose _change_type is delete"
_SCHEMA = "a table keeps its schema; make another table, and fill it by a job"
# What other table formats have, and what to do here: passed over in silence, each would mean other rows.
_ELSEWHERE = {
    "startingtimestamp": _SINCE,
    "endingtimestamp": "an epoch has its time in it: give endingVersion the epoch of the snapshot as of that time",
    "maxfilespertrigger": "give maxEpochsPerTrigger, maxRowsPerTrigger or maxBytesPerTrigger",
    "ignoredeletes": _CHANGES,
    "ignorechanges": _CHANGES,
    "skipchangecommits": _CHANGES,
    "replacewhere": _WHOLE,
    "partitionoverwritemode": _WHOLE,
    "mergeschema": _SCHEMA,
    "overwriteschema": _SCHEMA,
}

Options = Mapping[str, str]
"""As Spark gives them: names without regard to case."""


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Store and table that an option map names."""

    path: str
    catalog: str | None
    table: str
    volatile: bool = False

    def open(self) -> Handle:
        """Open the store, which must exist. Close it after use."""
        return open_handle(self.path, self.catalog, create=False, volatile=self.volatile)


NO_CATALOG = (
    "A table of Spark's own catalog (saveAsTable, toTable, writeTo, CREATE TABLE … USING epochlog) keeps none of these "
    "options: write with df.write.format('epochlog').option('path', …).option('table', …).mode('append').save(), and "
    "read with CREATE TEMPORARY VIEW … USING epochlog OPTIONS (path '…', table '…')"
)


def place_options(handle: Handle) -> dict[str, str]:
    """Return the options by which Spark's processes open this store."""
    catalog = {"catalog": handle.catalog_url} if handle.catalog_url is not None else {}
    return {"path": handle.root, **catalog, **({"volatile": "true"} if handle.volatile else {})}


def place_of(options: Options) -> StoreLocation:
    """Parse the store and table of an option map. Raises InvalidInput when `path` or `table` is missing, or when a name
    looks like a slip of a known one.
    """
    refuse_slips(options)
    for name in ("path", "table"):
        if not text(options, name):
            raise InvalidInput(f'format("epochlog") needs .option("{name}", …). {NO_CATALOG}')
    return StoreLocation(options["path"], text(options, "catalog"), options["table"], truth(options, "volatile", False))


@dataclass(frozen=True, slots=True)
class Tasks:
    """Number of tasks to cut a read into: the session runs `parallelism` at a time, a user wants `at_least`."""

    parallelism: int
    at_least: int = 1

    @classmethod
    def from_options(cls, options: Options) -> Tasks:
        """Parse the numbers; without a session's number (SQL gives none) assume one task for each core of this
        machine.
        """
        parallelism = whole(options, "sessionParallelism", 1) or os.cpu_count() or 1
        return cls(parallelism, whole(options, "minPartitions", 1) or 1)


def refuse_slips(options: Options) -> None:
    """Raise InvalidInput for an option that is near a known one, or belongs to another table format: `versionAsOff`
    would silently read the newest version, and `startingTimestamp` all there is. Other options, Spark's own among them,
    pass.
    """
    for given in options:
        if given.lower() in _KNOWN:
            continue
        if given.lower() in _ELSEWHERE:
            raise InvalidInput(f"there is no option {given!r} here: {_ELSEWHERE[given.lower()]}")
        near = difflib.get_close_matches(given.lower(), _KNOWN, n=1, cutoff=0.85)
        if near:
            raise InvalidInput(f"there is no option {given!r}; {_KNOWN[near[0]]!r} is near")


def text(options: Options, name: str) -> str | None:
    """Return the option's text, None when it is absent or empty."""
    return options.get(name) or None


def whole(options: Options, name: str, least: int = 0) -> int | None:
    """Parse a whole number >= least; None when the option is absent. Raises InvalidInput."""
    given = text(options, name)
    if given is None:
        return None
    try:
        value = int(given)
    except ValueError:
        value = least - 1
    if value < least:
        raise InvalidInput(f"option {name} must be a whole number >= {least}, not {given!r}")
    return value


def truth(options: Options, name: str, default: bool) -> bool:
    given = text(options, name)
    if given is None:
        return default
    if given.lower() not in ("true", "false"):
        raise InvalidInput(f"option {name} must be true or false, not {given!r}")
    return given.lower() == "true"


def names(options: Options, name: str) -> tuple[str, ...] | None:
    """Parse names parted by commas, or a JSON list for names that hold one; None when the option is absent. Raises
    InvalidInput.
    """
    given = text(options, name)
    if given is None:
        return None
    if not given.lstrip().startswith("["):
        return tuple(part.strip() for part in given.split(","))
    import json

    try:
        listed = json.loads(given)
    except ValueError:
        listed = None
    if not isinstance(listed, list) or not all(isinstance(part, str) for part in listed):
        raise InvalidInput(f"option {name} must be names parted by commas or a JSON list of them, not {given!r}")
    return tuple(listed)


def given(options: Options, candidates: tuple[str, ...]) -> list[str]:
    """Return those of the options that are set."""
    return [name for name in candidates if text(options, name) is not None]
