"""Grammar of the command line: commands, options and their help texts; it opens no store."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from epochlog.batch.policy_options import OptionKind, PolicyOption
from epochlog.batch.policy_registry import declared_options, describe_built_in
from epochlog.store.env.redact import redact_url

from .changing import CHANGE_COMMANDS
from .common import add_command, engine_option
from .serving import SERVING_COMMANDS
from .values import beginning, epoch, moment, names, option, positive, seconds
from .views import VIEW_COMMANDS

PEOPLE_ROWS = 40
"""Default limit of the rows that are shown of each table without --json."""

_EXAMPLES = """\
examples:
  epochlog ls lake                                list the tables
  epochlog status lake                            show positions, lags and errors of tables and jobs
  epochlog read lake orders --filter "cents > 500" --columns id,cents
  epochlog read lake orders revenue --json        read two tables at one epoch, one JSON object per row
  epochlog tail lake orders --json                print new changes as they come, one JSON object per line
  epochlog changes lake orders --after 243958458736640 --mode net --pre-images
  epochlog epochs lake orders revenue             show the epochs at which both tables are valid
  epochlog tag lake orders revenue --name nightly --lasting 12h
  epochlog read lake --token nightly              read that snapshot again, from any process, for 12 hours

exit codes: 0 done, 1 an error (one line on standard error), 2 wrong usage

--json: read, changes, tail and history print one object per line, all other commands one document.
  epochs                   integers; 0 means none yet
  timestamps, dates, times ISO 8601, in UTC where the column has a zone
  durations                integers in the column's unit
  decimals                 strings
  binary                   base64
  NaN, infinities          "NaN", "Infinity", "-Infinity"; null is null
  maps                     lists of {"key": ..., "value": ...}
  names beginning with _   are added by epochlog; no column of a table begins with _
"""


class _Grammar(argparse.ArgumentParser):
    """Argument parser whose error messages quote the arguments without the passwords of URLs."""

    def error(self, message: str) -> NoReturn:
        super().error(redact_url(message))


def parser() -> argparse.ArgumentParser:
    """Build the parser of all commands except `demo`, which parses its arguments itself."""
    top = _Grammar(
        prog="epochlog",
        description="Inspect and maintain an epochlog store.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("-V", "--version", action="store_true", help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for add in (
        *_READ_COMMANDS,
        _compact,
        _vacuum,
        _verify,
        _doctor,
        _check,
        *CHANGE_COMMANDS,
        *VIEW_COMMANDS,
        *SERVING_COMMANDS,
    ):
        add(commands)
    commands.add_parser("demo", help="run the flights demo (epochlog demo --help)", add_help=False)
    return top


def _ls(commands: argparse._SubParsersAction) -> None:
    command = add_command(commands, "ls", "list the tables")
    _no_rows_option(command)


def _describe(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands, "describe", "show one table: columns, epochs, runs, log, holds and the limits of its retention"
    )
    command.add_argument("table", metavar="TABLE")
    _no_rows_option(command)


def _history(commands: argparse._SubParsersAction) -> None:
    command = add_command(commands, "history", "list a table's commits, or its compactions, newest first")
    command.add_argument("table", metavar="TABLE")
    command.add_argument(
        "--compactions", action="store_true", help="list the compactions with their reasons, and the packing of the log"
    )
    _limit_options(command, "commits or compactions")


def _read(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "read",
        "show the rows of tables, all from one snapshot",
        "Rows come in key order. A consistency policy chooses the epochs; the command holds them while it reads. Each "
        "JSON object has the row's columns, and _table and _epoch.",
    )
    command.add_argument("tables", metavar="TABLE", nargs="*", help="default: all tables that the policy covers")
    _row_options(command, "column = 1 AND other IN ('a', 'b'), as in SQL's WHERE")
    _policy_options(command)
    command.add_argument(
        "--epochs", action="store_true", help="show the chosen epochs, their lag and the token, no rows"
    )
    command.set_defaults(usage_error=_read_usage_error)


def _read_usage_error(options: argparse.Namespace) -> str | None:
    return "read: --epochs shows no rows, so --out has no effect: drop one" if options.epochs and options.out else None


def _changes(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "changes",
        "show the changes of a table after one epoch and up to another",
        "Each change has the row's columns, and _change_type, _commit_version (its epoch) and _commit_timestamp.",
    )
    command.add_argument("table", metavar="TABLE")
    command.add_argument(
        "--after",
        type=moment,
        metavar="EPOCH",
        help="changes after this epoch, or after the epoch of a snapshot, given by token or name (default: the "
        "beginning of the log; with --pre-images, the oldest readable state)",
    )
    command.add_argument(
        "--until", type=moment, metavar="EPOCH", help="changes up to this epoch (default: the newest commit)"
    )
    command.add_argument(
        "--mode",
        choices=("epochs", "net"),
        default="epochs",
        help="all changes of each epoch, or one net change per key",
    )
    command.add_argument("--pre-images", action="store_true", help="show the replaced and deleted rows too")
    _row_options(command, "as in SQL's WHERE; key columns only")


def _tail(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "tail",
        "follow the changes of a table until Ctrl-C",
        "Each change has the row's columns, and _change_type (upsert or delete; insert for the first rows of --from "
        "snapshot), _commit_version (its epoch) and _commit_timestamp. Exit code 130 after Ctrl-C; 0 at the end of the "
        "table's data, or with --limit and --until-idle.",
    )
    command.add_argument("table", metavar="TABLE")
    command.add_argument(
        "--from",
        dest="begin",
        type=beginning,
        metavar="WHERE",
        help="start position: latest (default: only new changes), earliest (the whole log), snapshot (the rows, then "
        "changes; default of a new consumer), or the changes after an epoch or a snapshot, given by token or name",
    )
    command.add_argument(
        "--consumer", metavar="NAME", help="continue at this consumer's position, and acknowledge the shown changes"
    )
    command.add_argument("--columns", type=names, metavar="A,B", help="only these columns, in this order")
    command.add_argument("--limit", type=positive, metavar="N", help="end after N changes")
    command.add_argument("--until-idle", action="store_true", help="end when all present changes are shown")


def _epochs(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "epochs",
        "draw the timeline of tables: their commits, the epochs at which all can be read together, the reasons at "
        "other epochs, and the current choice of each policy",
        "A stretch is a range of epochs with unchanged states of all tables. JSON: tables (the named ones and their "
        "ancestors), stretches (first, last; by table landed: rows, empty or label, and states: none, valid, behind or "
        "gone; readable; why_not), epoch (of --at, or null) and choices (policy, options, epochs, lag_ms, error).",
    )
    command.add_argument("tables", metavar="TABLE", nargs="*", help="default: all tables that take part in global")
    command.add_argument(
        "--at", type=epoch, metavar="EPOCH", help="explain this epoch, and show the stretches around it"
    )
    _limit_options(command, "stretches")


def _tag(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "tag",
        "keep the epochs of a new snapshot under a name; show the epochs of a token; list tags; drop one",
        "--name takes a snapshot under a policy (options as in read) and tags it. Its rows stay readable, by name or "
        "token, from any process. Without options the command lists the tags. JSON: name, since, until, left_ms (both "
        "null: for good), epochs (by table), token, and lag_ms of the new one; for --show token, readable and tables "
        "(table, epoch, at, lag_ms, kept_until, kept_by, why_not).",
    )
    command.add_argument("tables", metavar="TABLE", nargs="*", help="default: all tables that the policy covers")
    action = command.add_mutually_exclusive_group()
    action.add_argument(
        "--name", help="take a snapshot and tag it; repeat the name of a tag with its epochs to move its end"
    )
    action.add_argument("--show", type=moment, metavar="TOKEN", help="show the tables and epochs of this token or tag")
    action.add_argument("--drop", metavar="NAME", help="drop this tag")
    command.add_argument(
        "--lasting",
        type=seconds,
        metavar="TIME",
        help="keep the tag for this time: 90s, 30m, 12h, 7d (default: for good)",
    )
    command.add_argument(
        "--partial", action="store_true", help="without TABLE: accept that the policy leaves some tables out"
    )
    _policy_options(command)
    command.set_defaults(usage_error=_tag_usage_error)


def _tag_usage_error(options: argparse.Namespace) -> str | None:
    take_options = ("lasting", "consistency", *declared_options())
    takes_snapshot = (
        options.tables
        or options.option
        or options.partial
        or any(getattr(options, name) is not None for name in take_options)
    )
    if options.name is None and takes_snapshot:
        return "tag: tables, a time and a policy need --name NAME, for example --name 2026-q3"
    return None


def _consumers(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "consumers",
        "list the named consumers with their lag and their holds on logs; reset or drop one",
        "JSON: for each consumer the fields of ConsumerInfo, and until, acked (ISO 8601 or null).",
    )
    action = command.add_mutually_exclusive_group()
    action.add_argument(
        "--reset",
        nargs=2,
        metavar=("NAME", "TO"),
        help="move the consumer to snapshot (the tables' rows first), earliest, latest, or an epoch, and fence the "
        "process that has it open. A Spark query needs a new checkpoint too",
    )
    action.add_argument("--drop", metavar="NAME", help="delete the consumer and release its hold on the log")


def _status(commands: argparse._SubParsersAction) -> None:
    command = add_command(commands, "status", "show the committed epoch, lag and errors of each table and job")
    _no_rows_option(command)
    command.add_argument("--watch", type=seconds, metavar="S", help="repeat every S seconds, until Ctrl-C")


def _jobs(commands: argparse._SubParsersAction) -> None:
    add_command(
        commands,
        "jobs",
        "draw the graph of tables and jobs, with the position of each job and the reason why it waits",
        "JSON: for each job the fields of JobInfo; committed_at, failed_since (ISO 8601 or null); barrier: prev, curr, "
        "kind, age_ms, or null without a recorded barrier; snapshot: the rows that a chunked backfill has taken in, "
        "and of_at_most, the upper bound of all, or null without one; waits_for: text, and kind: nothing, boundary (at "
        "epoch), runner (for a barrier at epoch, due since_ms), failed, rebuild, over (its data has ended) or upstream "
        "(upstream, its job writer, the epoch through which it is complete, the epoch of the next commit, and cause, "
        "the job at the head of the chain), and jobs, all of those that it reads and that commit before it. component: "
        "number of its component; no job waits for one of another component. outside: the reason why global leaves its "
        "tables out, or null. loads: the groups of workers that write root tables. Later versions may add kinds and "
        "fields.",
    )


def _compact(commands: argparse._SubParsersAction) -> None:
    command = add_command(commands, "compact", "merge logs into sorted runs, so that reads merge fewer files")
    command.add_argument(
        "table", metavar="TABLE", nargs="?", help="compact this table, due or not (default: all tables that are due)"
    )
    command.add_argument("--full", action="store_true", help="compact all tables, due or not")


def _vacuum(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "vacuum",
        "delete unreachable files; list the kept ones with reasons",
        "Safe at any time: vacuum keeps files that are being written, or held by a snapshot, a job or another lease.",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="only list the files that would be deleted; write nothing"
    )
    command.add_argument(
        "--grace",
        type=seconds,
        metavar="S",
        help="time for which unreachable files stay, for reads without a hold (default: 900)",
    )


def _verify(commands: argparse._SubParsersAction) -> None:
    add_command(commands, "verify", "check every record, file and checksum; exit 1 when something is damaged")


def _doctor(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "doctor",
        "compare the clock with the store and with other machines; exit 1 when something is to be done",
        "JSON: ok, at, last_epoch, leads_ms (the time by which the newest epoch leads the clock), clocks: those of the "
        "machines that committed last (host, boot, noted_at, ahead_ms: by how much it leads slower ones at most), and "
        "symptoms (what, advice).",
    )
    command.add_argument(
        "--trust-clock",
        action="store_true",
        help="take this machine's clock as right, after it was set ahead on purpose",
    )


def _check(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "check",
        "compare views with their queries, or a job with a given query; exit 1 when they differ",
        "All tables are read at the epoch of the newest commit of the view or job. Without a name it compares all "
        "views, and exits with 0 only if each of them was compared and equals its query. JSON: job, epoch, ok and "
        "outputs: for each output, ok, rows, expected_rows, the counts missing, extra and different, and these rows "
        "(missing_rows, …). JSON of all views: ok, and views: for each that was compared, such an object; for another "
        "one job, ok (null) and error (type, text).",
    )
    command.add_argument("job", metavar="NAME", nargs="?", help="a view, or with --sql or --file any job")
    query = command.add_mutually_exclusive_group()
    query.add_argument(
        "--sql",
        metavar="SELECT",
        help="the query of a job with a Python refresh, or another one for a view: a SELECT for DuckDB, which sees the "
        "upstreams under their names",
    )
    query.add_argument("--file", metavar="FILE", help="a file with such a query, in UTF-8")
    engine_option(command, "the engine that runs the queries of views")
    command.add_argument("--output", metavar="TABLE", help="the output to compare, if the job has several")
    command.add_argument(
        "--tolerance",
        type=float,
        default=0.0,
        metavar="X",
        help="permitted relative difference of floats (default: 0)",
    )
    _limit_options(command, "rows of each difference")
    command.set_defaults(usage_error=_check_usage_error)


def _check_usage_error(options: argparse.Namespace) -> str | None:
    if options.sql is None and options.file is None:
        return "check: --output needs --sql or --file" if options.output is not None else None
    if options.engine == "spark":
        return "check: --engine is for views; DuckDB runs the query of --sql and --file"
    return "check: --sql and --file need the name of a job" if options.job is None else None


_READ_COMMANDS = (_ls, _describe, _history, _read, _changes, _tail, _epochs, _tag, _status, _jobs, _consumers)

# ---- shared parts --------------------------------------------------------------------------------------------------


def _no_rows_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--no-rows", dest="rows", action="store_false", help="do not count rows, which reads keys")


def _row_options(command: argparse.ArgumentParser, filter_help: str) -> None:
    command.add_argument("--columns", type=names, metavar="A,B", help="only these columns, in this order")
    command.add_argument("--filter", metavar="WHERE", help=filter_help)
    command.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="write all rows of one table to this new .parquet, .arrow or .csv file",
    )
    _limit_options(command, "rows")


def _policy_options(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("consistency policy")
    group.add_argument(
        "--consistency",
        metavar="POLICY",
        help=f"{describe_built_in()}, or the name of a custom policy",
    )
    for name, by_policy in declared_options().items():
        _policy_option(group, name, by_policy)
    group.add_argument(
        "--option",
        type=option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of a custom policy, as a number or as text; may be repeated",
    )


def _policy_option(group: argparse._ArgumentGroup, name: str, by_policy: Mapping[str, PolicyOption]) -> None:
    """Add an option with the help of each policy that declares it."""
    policies_of: dict[str, list[str]] = {}
    for policy, declared in by_policy.items():
        policies_of.setdefault(declared.help, []).append(policy)
    help_text = "; ".join(f"{text} ({', '.join(policies)})" for text, policies in policies_of.items())
    kind, flag = next(iter(by_policy.values())).kind, f"--{name.replace('_', '-')}"
    match kind:
        case OptionKind.FLAG:
            group.add_argument(flag, action="store_true", default=None, help=help_text)
        case OptionKind.EPOCH:
            group.add_argument(flag, type=epoch, help=help_text)
        case OptionKind.SECONDS:
            group.add_argument(flag, type=seconds, metavar="S", help=help_text)
        case OptionKind.TIMESTAMP:
            group.add_argument(flag, metavar="ISO", help=help_text)
        case OptionKind.SNAPSHOT:
            group.add_argument(flag, type=moment, help=help_text)


def _limit_options(command: argparse.ArgumentParser, noun: str) -> None:
    count = command.add_mutually_exclusive_group()
    count.add_argument(
        "--limit", type=positive, metavar="N", help=f"at most N {noun} (default: {PEOPLE_ROWS}; with --json all)"
    )
    count.add_argument("--all", action="store_true", help=f"all {noun}")


def limit_of(options: argparse.Namespace) -> int | None:
    """Return the largest number of rows to show; None for all."""
    if options.all or ((options.json or getattr(options, "out", None)) and options.limit is None):
        return None
    return PEOPLE_ROWS if options.limit is None else options.limit
