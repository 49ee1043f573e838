"""Options of `format("epochlog")`: names, and parsers that raise errors with advice."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from epochlog.batch.policy_options import OptionKind, PolicyOption
from epochlog.batch.policy_registry import declared_options, options_of
from epochlog.errors import InvalidInput
from epochlog.store.env.clock import parse_seconds
from epochlog.store.session.handle import Handle, open_handle

from .session_time import in_session_zone


def _spark_name(name: str) -> str:
    """Return the option's name in Spark: `maxLag` for `max_lag`."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


LOCATION = ("path", "catalog", "volatile", "readOnly", "table")
EPOCH = ("versionAsOf", "timestampAsOf", "consistency", "snapshot")
"""Options that choose the epoch. A load takes one of them."""
POLICY = ("tables", *(_spark_name(name) for name in declared_options() if name != "token"))
"""Options of the policy that `consistency` names. A token is the option `snapshot`."""
STATE = (*EPOCH, *POLICY, "filter")
FEED = ("readChangeFeed", "startingVersion", "endingVersion", "preImages", "changeMode")
OF_BATCHES = ("endingVersion", "changeMode")
"""Options of a change feed that a stream does not take."""
STREAM = ("maxEpochsPerTrigger", "maxRowsPerTrigger", "maxBytesPerTrigger", "consumerId", "failOnDataLoss")
CHANGES = (
    *("partial", "ignoreNullUpdates", "applyAsDeletes", "columnList", "exceptColumnList"),
    *("keys", "sequenceBy", "storedAsScdType"),
)
"""Options of a write that say how change events apply, by the names of Spark's AUTO CDC; and `partial`."""
WRITE = ("txnAppId", "txnVersion", "newCheckpoint", "mergeSchema", *CHANGES)
OF_SPARK = ("checkpointLocation", "queryName", "asyncProgressTrackingEnabled")
"""Options that Spark passes on to the sink of a stream, though they are its own."""
SET_BY_EPOCHLOG = ("sessionParallelism", "sessionTimeZone", "schemaVersion", "microBatch")
TASKS = ("minPartitions", *SET_BY_EPOCHLOG)
READ = ("columns", *STATE, *FEED, *STREAM)
_CANONICAL_NAMES = {name.lower(): name for name in (*LOCATION, *READ, *WRITE, *TASKS)}
STREAM_ADVICE = (
    "set startingVersion to the first epoch to read. To begin with the rows at one epoch, load them in a batch, and "
    "start at that epoch + 1"
)
_START_ADVICE = "take a snapshot as of that time, and set startingVersion to its epoch + 1"
_CHANGE_ADVICE = "a stream returns every change with its _change_type; filter by that column"
_OVERWRITE_ADVICE = (
    "an overwrite replaces all rows of the table; append upserts rows, and deletes those whose _change_type is delete"
)
_SCHEMA_ADVICE = (
    "a write never drops or changes columns: set mergeSchema to add new ones, and change others with table.alter(…)"
)
# Options of other table formats, with advice. Each of them would change the rows, so none is ignored.
_FOREIGN_OPTIONS = {
    "startingtimestamp": _START_ADVICE,
    "endingtimestamp": "take a snapshot as of that time, and set endingVersion to its epoch",
    "maxfilespertrigger": "set maxEpochsPerTrigger, maxRowsPerTrigger or maxBytesPerTrigger",
    "ignoredeletes": _CHANGE_ADVICE,
    "ignorechanges": _CHANGE_ADVICE,
    "skipchangecommits": _CHANGE_ADVICE,
    "replacewhere": _OVERWRITE_ADVICE,
    "partitionoverwritemode": _OVERWRITE_ADVICE,
    "applyastruncates": "write the rows that are to stay in mode overwrite, or delete rows by applyAsDeletes",
    "overwriteschema": _SCHEMA_ADVICE,
}

Options = Mapping[str, str]
"""Options from Spark, with case-insensitive names."""


@dataclass(frozen=True, slots=True)
class OptionSet:
    """Set of the options that one kind of read or write takes."""

    taker: str
    options: tuple[str, ...]
    silent: tuple[str, ...] = (*OF_SPARK, *SET_BY_EPOCHLOG)
    """Options that it lets pass and does not list."""


LOAD_OPTIONS = OptionSet(
    "a load of format('epochlog')", (*LOCATION, "columns", *STATE, "minPartitions", *FEED), (*TASKS, *STREAM)
)
FEED_OPTIONS = OptionSet(
    "a change feed or stream of format('epochlog')",
    (*LOCATION, "columns", "filter", "minPartitions", *FEED, *STREAM),
    (*TASKS, *STATE),  # refused with advice of their own
)
SAVE_OPTIONS = OptionSet("a write of format('epochlog')", (*LOCATION, *WRITE))


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """Location of a table: its store and its name."""

    path: str
    catalog: str | None
    table: str
    volatile: bool = False
    read_only: bool = False

    def open(self) -> Handle:
        """Open the store, which must exist. Close it after use."""
        return open_handle(self.path, self.catalog, create=False, volatile=self.volatile, read_only=self.read_only)


NO_CATALOG = (
    "Tables of Spark's own catalog (saveAsTable, toTable, writeTo, CREATE TABLE … USING epochlog) do not keep these "
    "options; DROP TABLE removes such a table. Write with df.write.format('epochlog').option('path', …)"
    ".option('table', …).mode('append').save(), and read with CREATE TEMPORARY VIEW … USING epochlog OPTIONS (path "
    "'…', table '…'). Or use the store as a catalog, "
    "el.catalog(spark, store): CREATE TABLE lake.t (…) TBLPROPERTIES (primary_key = 'id'), INSERT INTO lake.t …"
)

UPDATE_MODE = (
    "Spark passes no rows of a stream in update mode to format('epochlog'). For a stream without an aggregate leave "
    "the mode out: append upserts. Else write to a table of a catalog, el.catalog(spark, store), "
    "stream.writeStream.outputMode('update').toTable('lake.a'), or through "
    "stream.writeStream.outputMode('update').foreachBatch(el.sink({'a': None}, app_id='…', path=…))"
)

CATALOG_ADVICE = (
    "The catalog's policy, VERSION AS OF or TIMESTAMP AS OF choose the epoch, and Spark itself prunes columns; for "
    "other options use format('epochlog') with the path of the store and the table"
)


def location_options(handle: Handle) -> dict[str, str]:
    """Return the options with which Spark's processes open this store."""
    catalog = {"catalog": handle.catalog_url} if handle.catalog_url is not None else {}
    flags = {"volatile": handle.volatile, "readOnly": handle.read_only}
    return {"path": handle.root, **catalog, **{name: "true" for name, is_set in flags.items() if is_set}}


def parse_store_location(options: Options, known: OptionSet) -> StoreLocation:
    """Parse the store and table of an option map. Raises InvalidInput if `path` or `table` is missing, or for an
    unknown option.
    """
    refuse_unknown_options(options, known)
    for name in ("path", "table"):
        if not text_option(options, name):
            raise InvalidInput(f'format("epochlog") needs .option("{name}", …). {NO_CATALOG}')
    return StoreLocation(
        options["path"],
        text_option(options, "catalog"),
        options["table"],
        bool_option(options, "volatile", False),
        bool_option(options, "readOnly", False),
    )


@dataclass(frozen=True, slots=True)
class Tasks:
    """Number of tasks of a read."""

    parallelism: int
    """Tasks that the session runs at once."""
    at_least: int = 1
    """User's minimum."""

    @classmethod
    def from_options(cls, options: Options) -> Tasks:
        """Parse the numbers; without the session's parallelism (SQL sets none), use the number of cores."""
        parallelism = int_option(options, "sessionParallelism", 1) or os.cpu_count() or 1
        return cls(parallelism, int_option(options, "minPartitions", 1) or 1)


def refuse_unknown_options(options: Options, known: OptionSet) -> None:
    """Raise InvalidInput for any other option: `versionAsOff` would silently read the newest version, and
    `startingTimestamp` the whole log.
    """
    taken = {name.lower(): name for name in (*known.options, *known.silent)}
    for name in options:
        if name.lower() in taken:
            continue
        if name.lower() in _FOREIGN_OPTIONS:
            raise InvalidInput(f"epochlog has no option {name!r}: {_FOREIGN_OPTIONS[name.lower()]}")
        similar = difflib.get_close_matches(name.lower(), taken, n=1, cutoff=0.85)
        if similar:
            raise InvalidInput(f"epochlog has no option {name!r}; did you mean {taken[similar[0]]!r}?")
        canonical = _CANONICAL_NAMES.get(name.lower(), name)
        raise InvalidInput(f"{known.taker} takes no option {canonical}; it takes {', '.join(known.options)}")


def refuse_catalog_options(names: Iterable[str], table: str, accepted: tuple[str, ...]) -> None:
    """Raise InvalidInput for an option that a table of a catalog would ignore. accepted: the options that it takes."""
    taken = {name.lower(): name for name in (*accepted, *OF_SPARK)}
    for name in names:
        if name.lower() in taken:
            continue
        canonical = _CANONICAL_NAMES.get(name.lower(), name)
        similar = difflib.get_close_matches(name.lower(), taken, n=1, cutoff=0.85)
        advice = _FOREIGN_OPTIONS.get(name.lower()) or (
            f"Did you mean {taken[similar[0]]}?" if similar else CATALOG_ADVICE
        )
        raise InvalidInput(
            f"{table}, a table of a catalog, takes no option {canonical}; it takes {', '.join(accepted)}. {advice}"
        )


def policy_arguments(options: Options, policy: str) -> dict[str, object]:
    """Parse the options of a policy into its keyword arguments. Raises InvalidInput for one that it does not take."""
    declared = {
        _spark_name(option.name): option
        for option in options_of(policy).values()
        if not option.each_table and option.kind is not OptionKind.SNAPSHOT
    }
    arguments: dict[str, object] = {}
    for name in present_options(options, POLICY[1:]):
        if name not in declared:
            takes = f"it takes {', '.join(declared)}" if declared else "it takes no options in Spark"
            raise InvalidInput(f"the policy {policy!r} takes no option {name}; {takes}")
        arguments[declared[name].argument] = _parse_policy_option(options, name, declared[name])
    return arguments


def _parse_policy_option(options: Options, name: str, option: PolicyOption) -> object:
    match option.kind:
        case OptionKind.EPOCH:
            return int_option(options, name)
        case OptionKind.FLAG:
            return bool_option(options, name, False)
        case OptionKind.SECONDS:
            try:
                return parse_seconds(options[name])
            except InvalidInput as error:
                raise InvalidInput(f"option {name}: {error}") from None
        case OptionKind.TIMESTAMP:
            return in_session_zone(name, options[name], text_option(options, "sessionTimeZone"))
        case OptionKind.SNAPSHOT:
            return options[name]


def text_option(options: Options, name: str) -> str | None:
    """Return the option's text; None if it is absent or empty."""
    return options.get(name) or None


def int_option(options: Options, name: str, minimum: int = 0) -> int | None:
    """Parse a whole number >= `minimum`; None if the option is absent. Raises InvalidInput."""
    value_text = text_option(options, name)
    if value_text is None:
        return None
    try:
        value = int(value_text)
    except ValueError:
        value = minimum - 1
    if value < minimum:
        raise InvalidInput(f"option {name} must be a whole number >= {minimum}, not {value_text!r}")
    return value


def bool_option(options: Options, name: str, default: bool) -> bool:
    value_text = text_option(options, name)
    if value_text is None:
        return default
    if value_text.lower() not in ("true", "false"):
        raise InvalidInput(f"option {name} must be true or false, not {value_text!r}")
    return value_text.lower() == "true"


def names_option(options: Options, name: str) -> tuple[str, ...] | None:
    """Return the names of an option; None if it is absent. Raises InvalidInput."""
    value_text = text_option(options, name)
    return None if value_text is None else parse_names(f"option {name}", value_text)


def parse_names(label: str, value_text: str) -> tuple[str, ...]:
    """Parse names separated by commas, or a JSON list for names that contain commas. Raises InvalidInput.

    label: of the value in the message.
    """
    if not value_text.lstrip().startswith("["):
        return tuple(part.strip() for part in value_text.split(","))
    try:
        values = json.loads(value_text)
    except ValueError:
        values = None
    if not isinstance(values, list) or not all(isinstance(part, str) for part in values):
        raise InvalidInput(f"{label} must be names separated by commas or a JSON list, not {value_text!r}")
    return tuple(values)


def show_names(names: Sequence[str]) -> str:
    """Return a text that `parse_names` parses into these names."""
    text = ", ".join(names)
    is_list = text.lstrip().startswith("[") or parse_names("names", text) != tuple(names)
    return json.dumps(names, ensure_ascii=False) if is_list else text


def present_options(options: Options, candidates: tuple[str, ...]) -> list[str]:
    """Return the candidates that are set."""
    return [name for name in candidates if text_option(options, name) is not None]
