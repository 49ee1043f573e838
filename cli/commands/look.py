"""Commands that show the state of a store without its rows: ls, describe, history, status, jobs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count, islice

from epochlog.batch.tags import list_tags
from epochlog.cli.grammar.commands import limit_of
from epochlog.cli.render.json_values import plain_rows
from epochlog.cli.render.output import people_console
from epochlog.cli.session import CommandSession
from epochlog.facts.holds import trace_facts
from epochlog.facts.store import (
    Facts,
    RowCounter,
    TableLook,
    describe_table,
    jobs_facts,
    loads_facts,
    look,
    settings_facts,
    status_facts,
    table_facts,
)
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.compaction.trace import read_traces
from epochlog.store.metadata.lookups import find_table


def ls(session: CommandSession) -> None:
    """List all tables."""
    state, counter = look(session.handle), RowCounter(session.handle, session.options.rows)
    facts = _table_list(session, state.tables, counter)
    if session.out.as_json:
        session.out.document({"root": session.handle.files.place, "last_epoch": state.last_epoch, "tables": facts})
    else:
        from epochlog.cli.render import pages

        session.out.show(pages.tables_page(facts) if facts else f"{session.handle.files.place} has no table yet")
    _raise_count_error(counter)


def describe(session: CommandSession) -> None:
    """Describe one table."""
    counter = RowCounter(session.handle, session.options.rows)
    facts = describe_table(session.handle, session.options.table, counter)
    if session.out.as_json:
        session.out.document(facts)
    else:
        from epochlog.cli.render import pages

        session.out.show(*pages.description_page(facts))
    _raise_count_error(counter)


def history(session: CommandSession) -> None:
    """List a table's commits, or its compactions."""
    limit = limit_of(session.options)
    if session.options.compactions:
        _show_compactions(session, limit)
        return
    commits = session.store.table(session.options.table).history(limit)
    rows = (row for batch in commits.to_batches() for row in plain_rows(batch))
    if session.out.as_json:
        session.out.lines(rows)
    else:
        from epochlog.cli.render import pages

        session.out.show(pages.commits_page(rows))
        if commits.num_rows == limit:
            session.out.show(f"the newest {limit:,}; --limit N or --all for more")


def _show_compactions(session: CommandSession, limit: int | None) -> None:
    def body(view: ReadTxn) -> list[Facts]:
        table = find_table(view, session.options.table)
        return [trace_facts(trace) for trace in islice(read_traces(view, table.id), limit)]

    compactions = session.handle.catalog.read(body)
    if session.out.as_json:
        session.out.lines(compactions)
    else:
        from epochlog.cli.render import pages

        session.out.show(
            pages.traces_page(compactions) if compactions else f"{session.options.table} has not been compacted yet"
        )


def status(session: CommandSession) -> None:
    """Show tables and jobs, once or repeatedly with --watch."""
    if session.options.watch is None:
        counter = RowCounter(session.handle, session.options.rows)
        _show_status(session, counter)
        _raise_count_error(counter)
    else:
        _watch(session)


def jobs(session: CommandSession) -> None:
    """Show all jobs and all loads."""
    state = look(session.handle)
    job_list, loads = jobs_facts(state), loads_facts(state)
    if session.out.as_json:
        session.out.document({"root": session.handle.files.place, "jobs": job_list, "loads": loads})
    else:
        from epochlog.cli.render import pages

        nothing = [] if loads else [f"{session.handle.files.place} has no job yet"]
        session.out.show(*(pages.jobs_page(job_list) if job_list else nothing), *pages.loads_table(loads))


def _table_list(session: CommandSession, tables: Sequence[TableLook], counter: RowCounter) -> list[Facts]:
    facts = []
    for table in tables:
        facts.append(table_facts(table, counter.of(table.plan)))
        session.out.waiting.step(len(facts), len(tables))
    return facts


def _status_facts(session: CommandSession, counter: RowCounter) -> Facts:
    state = look(session.handle)
    tables = _table_list(session, state.tables, counter)
    facts = status_facts(session.handle.files.place, state, tables, list_tags(session.handle))
    return {**facts, **settings_facts(session.handle)}


def _show_status(session: CommandSession, counter: RowCounter, *, on_one_line: bool = False) -> None:
    facts = _status_facts(session, counter)
    if session.out.as_json:
        session.out.document(facts, on_one_line=on_one_line)
    else:
        from epochlog.cli.render import pages

        session.out.show(*pages.status_page(facts))
    session.out.flush()


def _watch(session: CommandSession) -> None:
    """Refresh one page on a terminal; elsewhere print a page after each pause, or a JSON document per line."""
    pause = threading.Event()
    session.out.waiting.end()
    counters = (RowCounter(session.handle, session.options.rows) for _ in count())
    if session.out.as_json or not session.out.on_terminal:
        for counter in counters:
            _show_status(session, counter, on_one_line=True)
            pause.wait(session.options.watch)
        return
    from rich.console import Group
    from rich.live import Live

    from epochlog.cli.render import pages

    with Live(console=people_console(), auto_refresh=False, vertical_overflow="visible") as live:
        for counter in counters:
            live.update(Group(*pages.status_page(_status_facts(session, counter))), refresh=True)
            pause.wait(session.options.watch)


def _raise_count_error(counter: RowCounter) -> None:
    """Raise the error of a row count, if there was one. Call after printing the page."""
    if counter.trouble:
        raise counter.trouble
