"""Grammar of the command line: commands, options and their help; it knows nothing of a store."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from epochlog.batch.policy_options import OptionKind, PolicyOption
from epochlog.batch.policy_registry import declared_options
from epochlog.store.env.redact import redact_url

from .changing import CHANGE_COMMANDS
from .common import add_command
from .values import beginning, epoch, moment, names, option, positive, seconds

PEOPLE_ROWS = 40
"""Rows that people are shown of each table when they name no limit."""

_EXAMPLES = """\
examples:
  epochlog ls lake                                what there is
  epochlog status lake                            how far each table and job is, and what went wrong
  epochlog read lake orders --filter "cents > 500" --columns id,cents
  epochlog read lake orders revenue --json        both as of one moment, a JSON object a row
  epochlog tail lake orders --json                what changes from now on, an object a line
  epochlog changes lake orders --after 243958458736640 --mode net --pre-images
  epochlog epochs lake orders revenue             when they agree, and what keeps them from it
  epochlog snapshot lake orders revenue --hold 12h --name nightly
  epochlog read lake --token nightly              the same rows again, from anywhere, for 12 hours

exit codes: 0 done, 1 an error (one line on standard error), 2 wrong usage

--json: read, changes, tail and history give one object a line, everything else one document.
  epochs                   integers; 0 means none yet
  timestamps, dates, times ISO 8601, in UTC where the column has a zone
  durations                integers in the column's unit
  decimals                 strings
  binary                   base64
  NaN, infinities          "NaN", "Infinity", "-Infinity"; null is null
  maps                     lists of {"key": ..., "value": ...}
  names beginning with _   are ours; no column of a table begins so
"""


class _Grammar(argparse.ArgumentParser):
    """Parser that quotes the typed words in its complaints, but no password in a URL; commands' parsers are of this
    class too.
    """

    def error(self, message: str) -> NoReturn:
        super().error(redact_url(message))


def parser() -> argparse.ArgumentParser:
    """Build the parser of everything but `demo`, whose own parser takes the arguments after it."""
    top = _Grammar(
        prog="epochlog",
        description="Look into an epochlog store and look after it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("-V", "--version", action="store_true", help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    for add in (*_READ_COMMANDS, _compact, _vacuum, _verify, _check, *CHANGE_COMMANDS, _serve):
        add(commands)
    commands.add_parser("demo", help="run the flights demo (epochlog demo --help)", add_help=False)
    return top


def _ls(commands: argparse._SubParsersAction) -> None:
    command = add_command(commands, "ls", "list the tables")
    _no_rows_option(command)


def _describe(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands, "describe", "show one table: columns, epochs, runs, log, and who holds its past back"
    )
    command.add_argument("table", metavar="TABLE")
    _no_rows_option(command)


def _history(commands: argparse._SubParsersAction) -> None:
    command = add_command(commands, "history", "list a table's commits, or its compactions, newest first")
    command.add_argument("table", metavar="TABLE")
    command.add_argument("--compactions", action="store_true", help="what was folded and why, instead of the commits")
    _limit_options(command, "commits or compactions")


def _read(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "read",
        "show the rows of tables, all as of one moment",
        "Rows come in key order. The tables named are read at epochs that a consistency policy chooses, and held "
        "there while they are read. Each JSON object has the row's columns, and _table and _epoch.",
    )
    command.add_argument("tables", metavar="TABLE", nargs="*", help="default: all that the policy covers")
    _row_options(command, "column = 1 AND other IN ('a', 'b'), as in SQL's WHERE")
    _policy_options(command)
    command.add_argument("--epochs", action="store_true", help="no rows: the epochs chosen, their lag, and the token")
    command.set_defaults(usage_error=_read_usage_error)


def _read_usage_error(options: argparse.Namespace) -> str | None:
    return "read: --epochs shows no rows that --out could write" if options.epochs and options.out else None


def _changes(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "changes",
        "show what changed in a table after one epoch and up to another",
        "Each change has the row's columns, and _change_type, _commit_version (its epoch) and _commit_timestamp.",
    )
    command.add_argument("table", metavar="TABLE")
    command.add_argument(
        "--after",
        type=moment,
        metavar="EPOCH",
        help="changes past this epoch, or past what the snapshot of this token or name reads (default: the log's "
        "beginning; with --pre-images, the oldest state kept)",
    )
    command.add_argument(
        "--until", type=moment, metavar="EPOCH", help="and not past this one (default: the newest commit)"
    )
    command.add_argument(
        "--mode", choices=("epochs", "net"), default="epochs", help="each epoch's changes, or one for each key"
    )
    command.add_argument("--pre-images", action="store_true", help="with the rows as they were before")
    _row_options(command, "as in SQL's WHERE; key columns only")


def _tail(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "tail",
        "follow a table: what changes, as it comes, until Ctrl-C",
        "Each change has the row's columns, and _change_type (upsert or delete; insert for the rows that --from "
        "snapshot begins with), _commit_version (its epoch) and _commit_timestamp. Exit code 130 after Ctrl-C, 0 when "
        "the table's data has ended, or with --limit and --until-idle.",
    )
    command.add_argument("table", metavar="TABLE")
    command.add_argument(
        "--from",
        dest="begin",
        type=beginning,
        metavar="WHERE",
        help="latest (default: only what is new), earliest (all that the log has), snapshot (the rows, then what "
        "changes; default of a new consumer), or an epoch, or a snapshot's token or name: what comes past it",
    )
    command.add_argument(
        "--consumer", metavar="NAME", help="go on where this consumer is, and acknowledge what was shown"
    )
    command.add_argument("--columns", type=names, metavar="A,B", help="only these columns, in this order")
    command.add_argument("--limit", type=positive, metavar="N", help="end after N changes")
    command.add_argument("--until-idle", action="store_true", help="end when nothing more is there")


def _epochs(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "epochs",
        "draw the timeline of a set of tables: what landed when, at which epochs they can be read together, why not at "
        "others, and what each policy would choose now",
        "Epochs between which nothing differs are one stretch. JSON: tables (those asked for and their ancestors), "
        "stretches (first, last; by table landed: rows, empty or label, and states: none, valid, behind or gone; "
        "readable; why_not), epoch (of --at, or null) and choices (policy, options, epochs, lag_ms, error).",
    )
    command.add_argument("tables", metavar="TABLE", nargs="*", help="default: all that the policy global counts")
    command.add_argument(
        "--at", type=epoch, metavar="EPOCH", help="explain this epoch, and show the stretches round it"
    )
    _limit_options(command, "stretches")


def _snapshot(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "snapshot",
        "take a snapshot and hold it for a time; tell what a token reads; list the snapshots that are held; end one",
        "With --hold it is taken, under a policy as in read, and what its token reads stays readable for that time, "
        "from any process. Without anything, those held are listed. JSON: name, since, until, left_ms, epochs (by "
        "table), token, and lag_ms of the one that was taken; of --show token, readable and tables (table, epoch, at, "
        "lag_ms, kept_until, kept_by, why_not).",
    )
    command.add_argument("tables", metavar="TABLE", nargs="*", help="default: all that the policy covers")
    action = command.add_mutually_exclusive_group()
    action.add_argument(
        "--hold", type=seconds, metavar="TIME", help="take one and hold it for so long: 90s, 30m, 12h, 7d"
    )
    action.add_argument(
        "--show", type=moment, metavar="TOKEN", help="what this token reads, or the snapshot held as this"
    )
    action.add_argument("--drop", metavar="NAME", help="hold this one no longer")
    command.add_argument("--name", help="hold it under this name (default: one is made); again, for a later end")
    command.add_argument(
        "--partial", action="store_true", help="of all tables, also without those that the policy leaves out"
    )
    _policy_options(command)
    command.set_defaults(usage_error=_snapshot_usage_error)


def _snapshot_usage_error(options: argparse.Namespace) -> str | None:
    take_options = ("name", "consistency", *declared_options())
    takes_snapshot = (
        options.tables
        or options.option
        or options.partial
        or any(getattr(options, name) is not None for name in take_options)
    )
    if options.hold is None and takes_snapshot:
        return "snapshot: tables, a name and a policy are for taking one: say how long it is to be held, --hold 12h"
    return None


def _consumers(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "consumers",
        "list the named consumers, how far behind each is, and whether it holds its log; reset or drop one",
        "JSON: of each consumer the names of ConsumerInfo, and until, acked (ISO 8601 or null).",
    )
    action = command.add_mutually_exclusive_group()
    action.add_argument(
        "--reset",
        nargs=2,
        metavar=("NAME", "TO"),
        help="move it to snapshot (it begins anew with the tables' rows), earliest, latest, or an epoch; whoever has "
        "it open is fenced. A Spark query goes by its own checkpoint: give it a new one too",
    )
    action.add_argument("--drop", metavar="NAME", help="forget it; it holds nothing any more")


def _status(commands: argparse._SubParsersAction) -> None:
    command = add_command(commands, "status", "show how far each table and job is, and what went wrong")
    _no_rows_option(command)
    command.add_argument("--watch", type=seconds, metavar="S", help="look again every S seconds, until Ctrl-C")


def _jobs(commands: argparse._SubParsersAction) -> None:
    add_command(
        commands,
        "jobs",
        "draw the graph of tables and jobs: how far each job is, and what it waits for",
        "JSON: of each job the names of JobInfo; committed_at, failed_since (ISO 8601 or null); barrier: prev, curr, "
        "kind, age_ms, or null when none is decided; snapshot: the rows that its pieces have taken in, of_at_most so "
        "many, or null when none is under way; waits_for: text, and kind, "
        "which is nothing, boundary (at epoch), runner (for a barrier at epoch, due since_ms), failed, rebuild, over "
        "(its data has ended) or upstream, of which it tells upstream, its job (writer), the epoch it is complete "
        "through, the epoch it is to reach, and the job at the head of the line (cause). outside: why global leaves "
        "its tables out, or null. loads: the groups of workers that write root tables. Other kinds and names may be "
        "added.",
    )


def _compact(commands: argparse._SubParsersAction) -> None:
    command = add_command(commands, "compact", "fold logs into sorted runs, so that reads have less to merge")
    command.add_argument("table", metavar="TABLE", nargs="?", help="this one, due or not (default: all that are due)")
    command.add_argument("--full", action="store_true", help="all, due or not")


def _vacuum(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "vacuum",
        "delete files that nothing reaches any more, and tell what stays and why",
        "Safe at any time: what is being written, or held by a snapshot, a job or another lease, stays.",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="only tell what would be deleted now; nothing is written"
    )
    command.add_argument(
        "--grace",
        type=seconds,
        metavar="S",
        help="how long files stay after they have become unreachable, for reads that hold nothing (default: 900)",
    )


def _verify(commands: argparse._SubParsersAction) -> None:
    add_command(commands, "verify", "check every record, file and checksum; exit 1 when something is damaged")


def _check(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "check",
        "compare what a job has made with a query over what it reads; exit 1 when they differ",
        "All is read at the epoch of the job's newest commit. The query is a SELECT for DuckDB, which sees the job's "
        "upstreams under their names. JSON: job, epoch, ok and outputs: of each output, ok, rows, expected_rows, how "
        "many are missing, extra and different, and these rows (missing_rows, …).",
    )
    command.add_argument("job", metavar="JOB")
    query = command.add_mutually_exclusive_group(required=True)
    query.add_argument("--sql", metavar="SELECT", help="the query")
    query.add_argument("--file", metavar="FILE", help="a file that has it")
    command.add_argument("--output", metavar="TABLE", help="which output it is the query of, where the job has several")
    command.add_argument(
        "--tolerance",
        type=float,
        default=0.0,
        metavar="X",
        help="how far floats may lie apart, relatively (default: 0)",
    )
    _limit_options(command, "rows of each difference")


def _serve(commands: argparse._SubParsersAction) -> None:
    command = add_command(
        commands,
        "serve",
        "serve the store to workers, until SIGINT or SIGTERM",
        "Coordinates the loads and jobs that workers (epochlog.Worker) run in parts.",
    )
    command.add_argument(
        "--bind",
        metavar="HOST:PORT",
        default="127.0.0.1:5005",
        help="default: 127.0.0.1:5005; port 0 takes a free one. An address that others reach needs TLS and a token",
    )
    access = command.add_mutually_exclusive_group()
    access.add_argument(
        "--token-file", metavar="FILE", help="a file that only you can read, with the token that clients must send"
    )
    access.add_argument("--no-token", action="store_true", help="let every user of this machine read and write")
    command.add_argument(
        "--read-token-file", metavar="FILE", help="a file with another token, whose clients may only read"
    )
    command.add_argument("--tls-cert", metavar="FILE", help="the server's certificate chain, PEM")
    command.add_argument("--tls-key", metavar="FILE", help="its key, PEM")
    command.add_argument(
        "--metrics", metavar="HOST:PORT", help="serve Prometheus text over HTTP there, on this machine"
    )
    command.add_argument(
        "--coordinator",
        metavar="URL",
        help="redis://…: keep the end marks and stage counters of staged queries there too",
    )
    checkpoints = command.add_argument_group("checkpoints of loads and jobs")
    checkpoints.add_argument(
        "--interval", type=seconds, metavar="S", help="of a load: from one to the next (default: 1)"
    )
    checkpoints.add_argument(
        "--timeout", type=seconds, metavar="S", help="how long one may take before it is tried again (default: 60)"
    )
    checkpoints.add_argument(
        "--tolerable-failures",
        type=positive,
        metavar="N",
        help="so many in a row may fail; one more ends that load or job here (default: any number)",
    )
    command.set_defaults(usage_error=_serve_usage_error)


def _serve_usage_error(options: argparse.Namespace) -> str | None:
    if options.token_file is None and not options.no_token:
        return (
            "serve: say who may call: --token-file FILE for those who have the token in it, or --no-token for every "
            "user of this machine, who can then read and write. For a token, type: "
            "umask 077; python3 -c 'import secrets; print(secrets.token_urlsafe(32))' > token"
        )
    if options.no_token and options.read_token_file is not None:
        return "serve: --read-token-file needs --token-file beside it: without, anybody may write"
    return None


_READ_COMMANDS = (_ls, _describe, _history, _read, _changes, _tail, _epochs, _snapshot, _status, _jobs, _consumers)

# ---- shared parts --------------------------------------------------------------------------------------------------


def _no_rows_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--no-rows", dest="rows", action="store_false", help="do not count rows: that reads keys")


def _row_options(command: argparse.ArgumentParser, filter_help: str) -> None:
    command.add_argument("--columns", type=names, metavar="A,B", help="only these columns, in this order")
    command.add_argument("--filter", metavar="WHERE", help=filter_help)
    command.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="write the rows to this new .parquet, .arrow or .csv file instead: all, of one table",
    )
    _limit_options(command, "rows")


def _policy_options(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("when")
    group.add_argument(
        "--consistency",
        metavar="POLICY",
        help="aligned (default: one epoch at which the tables named agree), global (at which all tables of the store "
        "agree; default where none is named), latest (each at its newest commit), as_of, at_least, bounded, exact, or "
        "the name of a policy of your own",
    )
    for name, by_policy in declared_options().items():
        _policy_option(group, name, by_policy)
    group.add_argument(
        "--option",
        type=option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of a policy of your own, as a number where it is one, else as text; any number of them",
    )


def _policy_option(group: argparse._ArgumentGroup, name: str, by_policy: Mapping[str, PolicyOption]) -> None:
    """Add an option with the help of each policy that declares it."""
    takers: dict[str, list[str]] = {}
    for policy, declared in by_policy.items():
        takers.setdefault(declared.help, []).append(policy)
    help_text = "; ".join(f"{text} ({', '.join(policies)})" for text, policies in takers.items())
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
    """Return the most rows to show; None for all."""
    if options.all or ((options.json or getattr(options, "out", None)) and options.limit is None):
        return None
    return PEOPLE_ROWS if options.limit is None else options.limit
