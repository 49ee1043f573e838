"""Losses: the tables that a command drops or makes anew, described before it asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.epochs.view_reader import read_commits, read_epoch_view
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import all_jobs, find_job, get_table
from epochlog.store.retention.holds import holds_of
from epochlog.store.session.handle import Handle

from .store import Facts, RowCounter, TableLook, look_at, table_facts
from .text import bytes_text, count_text, epoch_text, listed, safe


def outputs_of(view: ReadTxn, name: str) -> list[TableDef]:
    """Return the output tables of a job."""
    return [get_table(view, table, f"output of {name}") for table in find_job(view, name).outputs]


def describe_tables(handle: Handle, select: Callable[[ReadTxn], list[TableDef]]) -> list[Facts]:
    """Describe the selected tables: size, newest commit, number of commits, and holders other than jobs."""
    live = handle.leases.live

    def body(view: ReadTxn) -> list[tuple[TableLook, Facts]]:
        # Jobs are left out of held_by: a table that a job reads cannot be dropped.
        job_holders = {f"job:{job.name}" for job in all_jobs(view)}
        now_ms = handle.catalog.now_ms()
        epochs = read_epoch_view(view, handle.memory, now_ms, handle.store_id)
        return [
            (
                look_at(view, table, epochs),
                {
                    "commits": len(read_commits(view, table)),
                    "held_by": sorted({hold.holder for hold in holds_of(view, table.id, now_ms, live)} - job_holders),
                },
            )
            for table in select(view)
        ]

    counter = RowCounter(handle, enabled=True)
    keys = ("name", "rows", "bytes", "max_committed_epoch", "max_committed_at")
    described = []
    for look, extra_facts in handle.catalog.read(body):
        facts = table_facts(look, counter.of(look.plan))
        described.append({**{name: facts[name] for name in keys}, **extra_facts})
    return described


def loss_lines(tables: Sequence[Facts]) -> Iterator[str]:
    """Yield a line about each of the described tables."""
    for table in tables:
        holders = f", held by {safe(listed(table['held_by']))}" if table["held_by"] else ""
        commits = f"{table['commits']:,} commit{'s' * (table['commits'] != 1)}"
        rows = f"{count_text(table['rows'])} row{'s' * (table['rows'] != 1)}"
        yield (
            f"table {table['name']}: {rows}, {bytes_text(table['bytes'])}, {commits}, the newest "
            f"at {epoch_text(table['max_committed_epoch'])}{holders}"
        )
