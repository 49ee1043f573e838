"""Grammar of the commands that change or remove tables and jobs: alter, rebuild, drop and adopt."""

from __future__ import annotations

import argparse

from .common import add_command
from .values import positive, seconds


def _rebuild(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "rebuild",
        "have a job make its output tables anew from its upstreams' rows",
        "Whoever runs the job does it with its next step; the old rows stay readable until then.",
    )
    command.add_argument("job", metavar="JOB")
    _yes_flag(command)


def _drop(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "drop",
        "drop a table, or a job with its output tables",
        "Refused while a job reads it. JSON: kind, name, and tables: of each that went name, rows, bytes, commits, "
        "max_committed_epoch, max_committed_at and held_by.",
    )
    command.add_argument("kind", metavar="table|job", choices=("table", "job"))
    command.add_argument("name", metavar="NAME")
    command.add_argument("--keep-outputs", action="store_true", help="of a job: leave its tables, as root tables")
    _yes_flag(command)
    command.set_defaults(usage_error=_drop_usage_error)


def _drop_usage_error(options: argparse.Namespace) -> str | None:
    return "drop: --keep-outputs is for jobs" if options.keep_outputs and options.kind == "table" else None


def _adopt(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "adopt",
        "make the output of a finished job a root table, which anybody may write",
        "JSON: name, and adopted, the epoch from which on it is one.",
    )
    command.add_argument("table", metavar="TABLE")


def _alter(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "alter",
        "change a table's retention and changelog, or how often a job commits and how late it may be",
        "Readers and writers go on. Keeping less than before is asked about: what is older goes with the next "
        "compaction. JSON: of a job the names of JobInfo; of a table its name, changelog and options (in seconds).",
    )
    command.add_argument("kind", metavar="table|job", choices=("table", "job"))
    command.add_argument("name", metavar="NAME")
    job = command.add_argument_group("of a job")
    job.add_argument(
        "--interval", type=seconds, metavar="TIME", help="from one commit to the next: a whole number of boundaries"
    )
    job.add_argument("--max-lag", type=seconds, metavar="TIME", help="a job further behind may merge boundaries")
    table = command.add_argument_group("of a table")
    table.add_argument("--history-retention", type=seconds, metavar="TIME", help="how far back it can be read")
    table.add_argument("--log-retention", type=seconds, metavar="TIME", help="how far back its changes can be read")
    table.add_argument("--compact-segments", type=positive, metavar="N", help="compact once so many wait")
    table.add_argument("--max-segments", type=positive, metavar="N", help="commits compact themselves from so many on")
    table.add_argument("--changelog", choices=("upsert", "full"), help="full: store what each commit replaces")
    table.add_argument("--drop-unchanged", choices=("yes", "no"), help="of an output: leave out what changes nothing")
    _yes_flag(command)
    command.set_defaults(usage_error=_alter_usage_error)


ALTER_OPTIONS = {
    "job": ("interval", "max_lag"),
    "table": ("history_retention", "log_retention", "compact_segments", "max_segments", "changelog", "drop_unchanged"),
}


def _alter_usage_error(options: argparse.Namespace) -> str | None:
    set_options = {
        kind: [name for name in names if getattr(options, name) is not None] for kind, names in ALTER_OPTIONS.items()
    }
    foreign = set_options["table" if options.kind == "job" else "job"]
    if foreign:
        return f"alter: --{foreign[0].replace('_', '-')} is not an option of a {options.kind}"
    if not set_options[options.kind]:
        flags = ", ".join("--" + option.replace("_", "-") for option in ALTER_OPTIONS[options.kind])
        return f"alter: say what to change: {flags}"
    return None


def _yes_flag(command: argparse.ArgumentParser) -> None:
    command.add_argument("--yes", action="store_true", help="do not ask; needed where there is no terminal to ask on")


CHANGE_COMMANDS = (_alter, _rebuild, _drop, _adopt)
