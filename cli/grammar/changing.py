"""Grammar of the commands that change tables and jobs: alter, rebuild, clone, drop and adopt."""

from __future__ import annotations

import argparse

from epochlog.store.metadata.read_default import AUTO, POLICIES

from .common import add_command
from .values import moment, positive, seconds, seconds_or_auto


def _rebuild(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "rebuild",
        "rebuild the output tables of a job from the rows of its upstreams",
        "The job's runner does it in its next step; the old rows stay readable until then.",
    )
    command.add_argument("job", metavar="JOB")
    _yes_flag(command)


def _drop(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "drop",
        "drop a table, or a job with its output tables",
        "Refused while a job reads the table. JSON: kind, name, and tables: for each dropped table name, rows, bytes, "
        "commits, max_committed_epoch, max_committed_at and held_by.",
    )
    command.add_argument("kind", metavar="table|job", choices=("table", "job"))
    command.add_argument("name", metavar="NAME")
    command.add_argument("--keep-outputs", action="store_true", help="of a job: keep its output tables, as root tables")
    _yes_flag(command)
    command.set_defaults(usage_error=_drop_usage_error)


def _drop_usage_error(options: argparse.Namespace) -> str | None:
    return "drop: --keep-outputs is for jobs" if options.keep_outputs and options.kind == "table" else None


def _clone(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "clone",
        "create a root table with the rows of another table, which shares its files",
        "No row is copied. JSON: name, source, and created: the epoch at which the clone begins.",
    )
    command.add_argument("source", metavar="TABLE")
    command.add_argument("name", metavar="NEW")
    command.add_argument(
        "--as-of", type=moment, metavar="EPOCH", help="an epoch, a token or a tag (default: the newest commit)"
    )


def _adopt(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "adopt",
        "turn the output of a finished job into a root table, which any process may write",
        "JSON: name, and adopted: the first epoch at which it is a root table.",
    )
    command.add_argument("table", metavar="TABLE")


def _finish(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "finish",
        "end the data of a root table: no commit can write it again",
        "Each job whose upstreams have all ended takes in the rest, and ends its tables too. A table that has ended is "
        "left as it is. JSON: name, and finished: the epoch of its last commit.",
    )
    command.add_argument("table", metavar="TABLE")
    _yes_flag(command)


def _stop(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "stop",
        "end the data of a job while its upstreams go on",
        "The store records the end. The job's runner, in any process, takes in all changes up to it with its last "
        "commit, and ends; without a live runner the next one does. A finished job and a recorded end are left as they "
        "are. JSON: the fields of JobInfo.",
    )
    command.add_argument("job", metavar="JOB")
    command.add_argument("--drain", action="store_true", help="required: a command can only end the data of a job")
    command.add_argument("--wait", type=seconds, metavar="S", help="wait until the job has finished, S seconds at most")
    _yes_flag(command)
    command.set_defaults(usage_error=_stop_usage_error)


def _stop_usage_error(options: argparse.Namespace) -> str | None:
    return (
        None
        if options.drain
        else ("stop: a query is stopped in the process that runs it; add --drain to end the data of the job")
    )


def _alter(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "alter",
        "change a table's retention, ttl and changelog, a job's commit interval and permitted lag, or the store's own "
        "settings",
        "Readers and writers continue. A shorter retention or ttl needs a confirmation, because the next compaction "
        "removes older states or rows. JSON: for a job the fields of JobInfo; for a table name, changelog and options "
        "(in seconds); for the store default_consistency and global_max_lag_ms, which status shows too.",
    )
    command.add_argument("kind", metavar="table|job|store", choices=("table", "job", "store"))
    command.add_argument("name", metavar="NAME", nargs="?", help="of the table or job")
    store = command.add_argument_group("of the store")
    store.add_argument(
        "--default-consistency",
        choices=(AUTO, *POLICIES),
        help="the policy of reads that name none, in any way; auto: their tables decide",
    )
    store.add_argument(
        "--global-max-lag", type=seconds, metavar="TIME", help="a view with a larger lag takes no part in global"
    )
    job = command.add_argument_group("of a job")
    job.add_argument(
        "--interval", type=seconds, metavar="TIME", help="time between commits: a whole number of boundaries"
    )
    job.add_argument("--max-lag", type=seconds, metavar="TIME", help="a job with a larger lag may merge boundaries")
    table = command.add_argument_group("of a table")
    table.add_argument(
        "--history-retention",
        type=seconds_or_auto,
        metavar="TIME",
        help="how long its states stay readable; auto: 1 h, and up to 2 d while that takes little space",
    )
    table.add_argument("--log-retention", type=seconds, metavar="TIME", help="how long its changes stay readable")
    table.add_argument(
        "--tombstone-retention",
        type=seconds,
        metavar="TIME",
        help="of a table with a sequence: how long deletes win over older changes",
    )
    table.add_argument("--compact-segments", type=positive, metavar="N", help="compact when N L0 segments wait")
    table.add_argument(
        "--max-segments", type=positive, metavar="N", help="from N L0 segments on, a commit compacts before it returns"
    )
    table.add_argument(
        "--compaction-check",
        choices=("sample", "all", "off"),
        help="the rows of its new files that a compaction reads back",
    )
    table.add_argument("--ttl", type=seconds, metavar="TIME", help="delete rows of this age; 0: never")
    table.add_argument("--ttl-column", metavar="COLUMN", help="the column with the time of a row, for --ttl")
    table.add_argument("--changelog", choices=("upsert", "full"), help="full: store the replaced rows too")
    table.add_argument("--drop-unchanged", choices=("yes", "no"), help="of an output: do not log unchanged rows")
    _yes_flag(command)
    command.set_defaults(usage_error=_alter_usage_error)


ALTER_OPTIONS = {
    "store": ("default_consistency", "global_max_lag"),
    "job": ("interval", "max_lag"),
    "table": (
        *("history_retention", "log_retention", "tombstone_retention", "compact_segments", "max_segments"),
        *("compaction_check", "ttl", "ttl_column"),
        *("changelog", "drop_unchanged"),
    ),
}


def _alter_usage_error(options: argparse.Namespace) -> str | None:
    set_options = {
        kind: [name for name in names if getattr(options, name) is not None] for kind, names in ALTER_OPTIONS.items()
    }
    foreign = [name for kind, names in set_options.items() if kind != options.kind for name in names]
    if foreign:
        return f"alter: --{foreign[0].replace('_', '-')} is not an option of a {options.kind}"
    if (options.name is None) != (options.kind == "store"):
        return "alter: a store takes no NAME" if options.name else f"alter: name the {options.kind}"
    if not set_options[options.kind]:
        flags = ", ".join("--" + option.replace("_", "-") for option in ALTER_OPTIONS[options.kind])
        return f"alter: name an option to change: {flags}"
    return None


def _yes_flag(command: argparse.ArgumentParser) -> None:
    command.add_argument("--yes", action="store_true", help="do not ask for confirmation; required without a terminal")


CHANGE_COMMANDS = (_alter, _rebuild, _finish, _stop, _clone, _drop, _adopt)
