"""Commands that change or remove tables and jobs: alter, rebuild, drop and adopt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

from epochlog.checkpoint.job.job_ddl import refuse_in_use as refuse_job_in_use
from epochlog.checkpoint.job.pace import boundaries_text
from epochlog.cli.asking import ask
from epochlog.cli.facts.store import Facts, RowCounter, TableLook, look_at, table_facts
from epochlog.cli.session import CommandSession
from epochlog.cli.text import bytes_text, count_text, epoch_text, listed, safe, unchanged_text
from epochlog.errors import EpochlogError
from epochlog.store.catalog.protocol import View
from epochlog.store.commit.table_ddl import alter_table, refuse_in_use
from epochlog.store.epochs.view_reader import read_commits, read_epoch_view
from epochlog.store.metadata.definitions import TableDef, TableOptions
from epochlog.store.metadata.lookups import all_jobs, find_job, find_table, get_table
from epochlog.store.metadata.table_settings import Settings, show_option
from epochlog.store.retention.holds import holds_of

_SPANS = ("history_retention", "log_retention")
_OPTIONS = (*_SPANS, "compact_segments", "max_segments")


def alter(session: CommandSession) -> None:
    """Change a job's interval and permitted lag, or a table's options and changelog."""
    if session.options.kind == "job":
        _alter_job(session)
    else:
        _alter_table(session)


def _alter_job(session: CommandSession) -> None:
    options = session.options
    job = session.store.job(options.name)
    job.alter(interval=_span(options.interval), max_lag=_span(options.max_lag))
    info = job.info
    if session.out.as_json:
        session.out.document(asdict(info))
    else:
        session.out.show(
            f"job {info.name}: every {boundaries_text(info.interval, session.handle.interval_ms)} of the store; may "
            f"merge when more than {boundaries_text(info.max_lag, info.interval_ms)} of its own behind"
        )


def _alter_table(session: CommandSession) -> None:
    """Write only the named options, onto the table's current ones; less is kept only after the user has agreed."""
    asked, name, handle = session.options, session.options.name, session.handle
    table = handle.catalog.read(lambda view: find_table(view, name))
    named = {what: getattr(asked, what) for what in _OPTIONS if getattr(asked, what) is not None}
    named.update({what: timedelta(seconds=named[what]) for what in _SPANS if what in named})
    dropping = None if asked.drop_unchanged is None else asked.drop_unchanged == "yes"
    replace(table.options, **named)  # what cannot be is told before anybody is asked
    shorter = _shorter(table.options, named)
    if shorter:
        lost = [
            f"{what} was {show_option(kept, named[what])}, and would be {show_option(named[what], kept)}"
            for what, kept in shorter.items()
        ]
        ask(session, f"Let go of what table {name} keeps for longer than that?", lost)

    def chosen(now: TableDef) -> Settings:
        if not asked.yes and (found := _shorter(now.options, named)) != shorter:
            told = " and ".join(
                f"{what} is {show_option(getattr(now.options, what), shorter.get(what))}"
                for what in {**shorter, **found}
            )
            raise EpochlogError(
                f"table {name}: {told} by now, which somebody else has changed; nothing was done. Run it again"
            )
        return Settings(replace(now.options, **named) if named else None, asked.changelog, dropping)

    after = alter_table(handle, table, chosen)
    dropped = after.drop_unchanged if after.derived else None
    if session.out.as_json:
        options = {**asdict(after.options), **{what: getattr(after.options, what).total_seconds() for what in _SPANS}}
        facts = {"name": name, "changelog": after.changelog, "drop_unchanged": dropped, "options": options}
        session.out.document(facts)
    else:
        session.out.show(
            f"table {name}: changelog {after.changelog}, "
            + ", ".join(f"{what} {show_option(getattr(after.options, what))}" for what in asdict(after.options))
            + unchanged_text(dropped)
        )


def _shorter(now: TableOptions, named: Mapping[str, Any]) -> dict[str, timedelta]:
    """Return the present retentions that the named options would shorten, by name."""
    kept = {what: getattr(now, what) for what in _SPANS}
    return {what: span for what, span in kept.items() if what in named and named[what] < span}


def rebuild(session: CommandSession) -> None:
    """Ask for a job's outputs to be made anew."""
    name = session.options.job
    job = session.store.job(name)
    tables = _look(session, lambda view: _outputs(view, name))
    lost = [*_told(tables), "each is made anew from the upstreams' rows, and stays readable as it is until then"]
    ask(session, f"Rebuild job {name}, dropping what it has under way?", lost)
    job.rebuild()
    if session.out.as_json:
        session.out.document(asdict(job.info))
    else:
        outputs = listed([one["name"] for one in tables])
        session.out.show(f"job {name}: its next step makes {outputs} anew")


def drop(session: CommandSession) -> None:
    """Drop a table, or a job with its outputs."""
    kind, name, store = session.options.kind, session.options.name, session.store
    keep = session.options.keep_outputs

    def droppable(view: View) -> list[TableDef]:
        if kind == "table":
            table = find_table(view, name)
            refuse_in_use(view, table)
            return [table]
        if not keep:
            refuse_job_in_use(view, find_job(view, name))
        return _outputs(view, name)

    tables = _look(session, droppable)
    told = ["its tables stay, as root tables"] if keep else [*_told(tables)]
    ask(session, f"Drop {kind} {name}, for good?", told)
    if kind == "table":
        store.drop_table(name)
    else:
        store.drop_job(name, keep_outputs=keep)
    if session.out.as_json:
        session.out.document({"kind": kind, "name": name, "tables": [] if keep else tables})
    else:
        session.out.show(f"dropped {kind} {name}", "\n".join(told))


def adopt(session: CommandSession) -> None:
    """Make a finished job's output a root table."""
    name = session.options.table
    session.store.adopt(name)
    at = session.handle.catalog.read(lambda view: find_table(view, name)).adopted
    if session.out.as_json:
        session.out.document({"name": name, "adopted": at})
    else:
        session.out.show(f"table {name} is a root table" + f" from {epoch_text(at)} on" * bool(at))


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _outputs(view: View, name: str) -> list[TableDef]:
    return [get_table(view, table, f"output of {name}") for table in find_job(view, name).outputs]


def _look(session: CommandSession, chosen: Callable[[View], list[TableDef]]) -> list[Facts]:
    """Describe the chosen tables: their contents, their number of commits, and their holders."""
    handle, live = session.handle, session.handle.leases.live

    def body(view: View) -> list[tuple[TableLook, Facts]]:
        own = {f"job:{job.name}" for job in all_jobs(view)}  # a job that reads or writes a table is told otherwise
        now_ms = handle.catalog.now_ms()
        epochs = read_epoch_view(view, handle.memory, now_ms, handle.store_id)
        return [
            (
                look_at(view, table, epochs),
                {
                    "commits": len(read_commits(view, table)),
                    "held_by": sorted({hold.holder for hold in holds_of(view, table.id, now_ms, live)} - own),
                },
            )
            for table in chosen(view)
        ]

    counter, kept = (
        RowCounter(handle, wanted=True),
        ("name", "rows", "bytes", "max_committed_epoch", "max_committed_at"),
    )
    out = []
    for one, more in handle.catalog.read(body):
        facts = table_facts(one, counter.of(one.plan))
        out.append({**{name: facts[name] for name in kept}, **more})
    return out


def _told(tables: Sequence[Facts]) -> Iterator[str]:
    for one in tables:
        holders = f"; held by {safe(listed(one['held_by']))}" if one["held_by"] else ""
        commits = f"{one['commits']:,} commit{'s' * (one['commits'] != 1)}"
        rows = f"{count_text(one['rows'])} row{'s' * (one['rows'] != 1)}"
        yield (
            f"table {one['name']}: {rows}, {bytes_text(one['bytes'])}, {commits}, the newest "
            f"at {epoch_text(one['max_committed_epoch'])}{holders}"
        )
