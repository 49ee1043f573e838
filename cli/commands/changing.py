"""Commands that change, end or drop tables and jobs: alter, rebuild, finish, stop, clone, drop and adopt."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any

from epochlog.checkpoint.job.drain import wait_for_end
from epochlog.checkpoint.job.job_ddl import refuse_in_use as refuse_job_in_use
from epochlog.checkpoint.job.job_intervals import boundaries_text
from epochlog.checkpoint.job.runner import JobRunner
from epochlog.checkpoint.manager.job_graph import JobGraph, vertex_of
from epochlog.cli.confirmation import confirm
from epochlog.cli.grammar.values import AUTO
from epochlog.cli.session import CommandSession
from epochlog.errors import EpochlogError, TableFinished
from epochlog.facts.chosen_epochs import epoch_of
from epochlog.facts.losses import describe_tables, loss_lines, outputs_of
from epochlog.facts.store import settings_facts
from epochlog.facts.text import epoch_text, listed, settings_text, unchanged_text
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.commit.root_commit import refuse_unwritable
from epochlog.store.commit.table_ddl import alter_table, refuse_in_use
from epochlog.store.env.clock import FOR_EVER
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import all_jobs, all_tables, find_job, find_table, get_version
from epochlog.store.metadata.table_options import LEAST_HISTORY, LONGEST_HISTORY, TableOptions
from epochlog.store.metadata.table_settings import Settings, show_option
from epochlog.store.session.handle import Handle

_SPANS = ("history_retention", "log_retention", "tombstone_retention")
_OPTIONS = (*_SPANS, "compact_segments", "max_segments", "compaction_check", "ttl", "ttl_column")


def alter(session: CommandSession) -> None:
    """Change a job's interval and max_lag, a table's options and changelog, or the store's settings."""
    {"job": _alter_job, "table": _alter_table, "store": _alter_store}[session.options.kind](session)


def _alter_store(session: CommandSession) -> None:
    options, store = session.options, session.store
    store.alter(global_max_lag=options.global_max_lag, default_consistency=options.default_consistency)
    facts = settings_facts(session.handle)
    if session.out.as_json:
        session.out.document(facts)
    else:
        session.out.show(settings_text(facts))


def _alter_job(session: CommandSession) -> None:
    options = session.options
    job = session.store.job(options.name)
    job.alter(interval=_timedelta(options.interval), max_lag=_timedelta(options.max_lag))
    info = job.info
    if session.out.as_json:
        session.out.document(asdict(info))
    else:
        interval = boundaries_text(info.interval, session.handle.interval_ms)
        max_lag = boundaries_text(info.max_lag, info.interval_ms)
        session.out.show(
            f"job {info.name}: commits every {interval} of the store; may merge its boundaries at a lag above {max_lag}"
        )


def _alter_table(session: CommandSession) -> None:
    """Change the named options of a table. A shorter retention needs a confirmation."""
    options, name, handle = session.options, session.options.name, session.handle
    table = handle.catalog.read(lambda view: find_table(view, name))
    new_values = {option: value for option in _OPTIONS if (value := getattr(options, option)) is not None}
    spans = [option for option in (*_SPANS, "ttl") if option in new_values]
    new_values.update({option: _span(new_values[option]) for option in spans})
    if new_values.get("ttl") == timedelta(0):
        new_values.update(ttl=None, ttl_column=None)
    drop_unchanged = None if options.drop_unchanged is None else options.drop_unchanged == "yes"
    options_after = replace(table.options, **new_values)  # raises for invalid options before the confirmation
    Settings(options_after).check(name, derived=table.derived)
    Settings(options_after).check_columns(table.schema)
    shortened = _shortened(table.options, new_values)
    if shortened:
        losses = [
            f"{option} is {_span_text(option, current_span, new_values[option])} and would be "
            f"{show_option(new_values[option], current_span)}"
            for option, current_span in shortened.items()
        ]
        confirm(session, f"Shorten the retention of table {name}?", losses)

    def new_settings(current: TableDef) -> Settings:
        if not options.yes and (shortened_now := _shortened(current.options, new_values)) != shortened:
            changes = " and ".join(
                f"{option} is {_span_text(option, getattr(current.options, option), shortened.get(option))}"
                for option in {**shortened, **shortened_now}
            )
            raise EpochlogError(
                f"table {name}: {changes} now, changed by another process; nothing was done. Run the command again"
            )
        return Settings(
            replace(current.options, **new_values) if new_values else None, options.changelog, drop_unchanged
        )

    altered = alter_table(handle, table, new_settings)
    drops_unchanged = altered.drop_unchanged if altered.derived else None
    if session.out.as_json:
        spans = {option: getattr(altered.options, option) for option in (*_SPANS, "ttl")}
        spans_s = {option: None if span is None else span.total_seconds() for option, span in spans.items()}
        facts = {
            "name": name,
            "changelog": altered.changelog,
            "drop_unchanged": drops_unchanged,
            "options": {**asdict(altered.options), **spans_s},
        }
        session.out.document(facts)
    else:
        session.out.show(
            f"table {name}: changelog {altered.changelog}, "
            + ", ".join(
                f"{option} {show_option(value)}"
                for option in asdict(altered.options)
                if ((value := getattr(altered.options, option)) is not None or option == "history_retention")
                and (option != "tombstone_retention" or altered.schema.sequence_by is not None)
                and (option, value) != ("compaction_check", "sample")
            )
            + unchanged_text(drops_unchanged)
        )


def _shortened(options: TableOptions, new_values: Mapping[str, Any]) -> dict[str, timedelta]:
    """Return by name the current retentions, and the ttl, that are longer than the new values. A history that chooses
    its own length may have its longest now, and its least after the change.
    """
    current = {name: getattr(options, name) for name in _SPANS} | {"ttl": options.ttl or FOR_EVER}
    longest = {name: LONGEST_HISTORY if span is None else span for name, span in current.items()}
    least = {name: LEAST_HISTORY if span is None else span for name, span in new_values.items() if name in current}
    if new_values.get("ttl", FOR_EVER) is None:
        del least["ttl"]
    return {
        name: current[name]
        for name, span in least.items()
        if span < longest[name] and new_values[name] != current[name]
    }


def _span_text(option: str, span: timedelta | None, other: object = None) -> str:
    endless = span == FOR_EVER or (option == "ttl" and span is None)
    return "without an end" if endless else show_option(span, other)


def _span(value: float | str) -> timedelta | None:
    return None if value == AUTO else timedelta(seconds=float(value))


def rebuild(session: CommandSession) -> None:
    """Request a rebuild of a job's outputs."""
    name = session.options.job
    job = session.store.job(name)
    described = describe_tables(session.handle, lambda view: outputs_of(view, name))
    losses = [
        *loss_lines(described),
        "the job's next step rebuilds its tables; the old rows stay readable until then",
    ]
    confirm(session, f"Rebuild job {name} and discard its uncommitted barrier?", losses)
    job.rebuild()
    if session.out.as_json:
        session.out.document(asdict(job.info))
    else:
        outputs = listed([table["name"] for table in described])
        session.out.show(f"job {name}: its next step rebuilds {outputs}")


def finish(session: CommandSession) -> None:
    """End the data of a root table."""
    name, handle = session.options.table, session.handle
    table = session.store.table(name)
    if table.info.state != "finished":
        handle.catalog.read(lambda view: refuse_unwritable(view, find_table(view, name)))
        losses = [
            "no commit can write the table again",
            *(f"{reader} ends too" for reader in _ending_with(handle, name)),
        ]
        confirm(session, f"End the data of table {name}?", losses)
        with suppress(TableFinished):  # by another process meanwhile
            table.finish()
    epoch = table.info.max_committed_epoch
    if session.out.as_json:
        session.out.document({"name": name, "finished": epoch})
    else:
        session.out.show(f"table {name} has ended, at epoch {epoch_text(epoch)}")


def _ending_with(handle: Handle, name: str) -> list[str]:
    """Return the jobs that end with the table, also through other jobs."""

    def read_jobs(view: ReadTxn) -> list[str]:
        ended = [each.id for each in all_tables(view) if get_version(view, each.id, each.name).end_epoch is not None]
        graph = JobGraph(map(vertex_of, all_jobs(view)), ended=ended)
        return [f"job {job.name}" for job in graph.ending_with(find_table(view, name).id)]

    return handle.catalog.read(read_jobs)


def stop(session: CommandSession) -> None:
    """Record the end of a job's data for its runner, in whichever process, and wait for that end if asked to."""
    options, name = session.options, session.options.job
    job = session.store.job(name)
    if job.info.state not in ("finished", "parked") and not job.info.draining:
        outputs = listed(job.info.outputs)
        confirm(session, f"End the data of job {name}?", [f"later changes of its upstreams do not reach {outputs}"])
    job.stop(drain=True)
    if options.wait is not None:
        record = session.handle.catalog.read(lambda view: find_job(view, name))
        wait_for_end(JobRunner(session.handle, record.id, name), options.wait)
    info = job.info
    if session.out.as_json:
        session.out.document(asdict(info))
    elif info.state == "finished":
        session.out.show(f"job {name} has finished, at epoch {epoch_text(info.committed_epoch)}")
    else:
        runner = info.runner
        who = "its next runner ends it; there is none now"
        if runner is not None:
            who = f"its {runner.kind} in process {runner.pid} of {runner.host} ends it"
        session.out.show(f"job {name}: the end of its data is recorded; {who}")


def drop(session: CommandSession) -> None:
    """Drop a table, or a job with its outputs."""
    kind, name, store = session.options.kind, session.options.name, session.store
    keep = session.options.keep_outputs

    def droppable(view: ReadTxn) -> list[TableDef]:
        if kind == "table":
            table = find_table(view, name)
            refuse_in_use(view, table)
            return [table]
        if not keep:
            refuse_job_in_use(view, find_job(view, name))
        return outputs_of(view, name)

    described = describe_tables(session.handle, droppable)
    losses = ["its tables stay as root tables"] if keep else [*loss_lines(described)]
    confirm(session, f"Drop {kind} {name} permanently?", losses)
    if kind == "table":
        store.drop_table(name)
    else:
        store.drop_job(name, keep_outputs=keep)
    if session.out.as_json:
        session.out.document({"kind": kind, "name": name, "tables": [] if keep else described})
    else:
        session.out.show(f"dropped {kind} {name}", "\n".join(losses))


def clone(session: CommandSession) -> None:
    """Create a table that shares the files of another one."""
    source, name = session.options.source, session.options.name
    session.store.clone(source, name, as_of=epoch_of(session.handle, session.options.as_of, source))
    created = session.handle.catalog.read(lambda view: find_table(view, name)).created
    if session.out.as_json:
        session.out.document({"name": name, "source": source, "created": created})
    else:
        session.out.show(f"table {name} is a clone of {source}, from epoch {created} on")


def adopt(session: CommandSession) -> None:
    """Turn the output of a finished job into a root table."""
    name = session.options.table
    session.store.adopt(name)
    at = session.handle.catalog.read(lambda view: find_table(view, name)).adopted
    if session.out.as_json:
        session.out.document({"name": name, "adopted": at})
    else:
        session.out.show(f"table {name} is a root table" + f" from {epoch_text(at)} on" * bool(at))


def _timedelta(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
