"""Commands for views in SQL: apply and run."""

from __future__ import annotations

import select
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from epochlog.checkpoint.job.job_intervals import JobIntervals, make_intervals
from epochlog.cli.confirmation import confirm
from epochlog.cli.session import CommandSession
from epochlog.cli.signals import stop_signals
from epochlog.errors import (
    JobNotFound,
    OutputOwned,
    TableInUse,
)
from epochlog.facts.losses import describe_tables, loss_lines, outputs_of
from epochlog.facts.text import epoch_text, lag_text, one_line
from epochlog.pipeline import Pipeline
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.maintenance.scheduler import Maintenance
from epochlog.store.metadata.lookups import all_jobs, all_tables, find_job, get_table
from epochlog.store.session.handle import Handle
from epochlog.store.types.schema import TableSchema
from epochlog.store_jobs import schema_planner
from epochlog.views.definition import SchemaPlanner, change_views, create_view, naming, plan_view, require_same_columns
from epochlog.views.derivation import ViewPlan, tables_of
from epochlog.views.present_text import has_query
from epochlog.views.view_folder import Change, StoredView, ViewFile, plan_changes, read_folder

LOOK_S = 0.5
"""Time between two looks of `run` at the store's views."""


def apply(session: CommandSession) -> None:
    """Make the store's views those of a folder: plan, ask, then create, replace and drop."""
    files = read_folder(Path(session.options.folder))
    stored = session.handle.catalog.read(_stored_views)
    reads: dict[str, tuple[str, ...]] = {}
    for name, file in files.items():
        with naming(name):
            reads[name] = tables_of(file.sql)
    rewritten = session.handle.catalog.read(lambda view: _rewritten(view, files))
    altered = session.handle.catalog.read(lambda view: _altered(view, session, files))
    changes = plan_changes(files, stored, reads, rewritten, altered)
    kept = session.handle.catalog.read(lambda view: _drops_that_wait(view, changes, reads))
    spark = session.spark()
    plans = _plan(session.handle, files, changes, schema_planner(spark))
    lines = [f"{change.action:<9}  {change.name}{kept.get(change.name, '')}" for change in changes]
    facts: dict[str, Any] = {
        "applied": False,
        "epoch": None,
        "changes": [{**_facts(change, plans.get(change.name)), "waits": change.name in kept} for change in changes],
    }
    work = [change for change in changes if change.action != "unchanged" and change.name not in kept]
    if session.options.dry_run or not work:
        _show(session, facts, lines)
        return
    destructive = [change for change in work if change.action != "create"]
    if destructive:
        confirm(session, f"Change {len(work)} view{'s' * (len(work) > 1)} of the store?", _losses(session.handle, work))
    facts["epoch"], facts["applied"] = _make(session, work, altered, spark), True
    _show(session, facts, lines)


def _make(session: CommandSession, changes: list[Change], altered: Collection[str], spark: Any) -> int | None:
    """Make the changes; return the epoch at which the replaced views change, or None."""
    for change in changes:
        if change.action == "create" and change.file is not None:
            file = change.file
            create_view(
                session.handle,
                file.name,
                file.sql,
                file.primary_key,
                refresh=file.refresh,
                schema_of=schema_planner(spark),
                interval=file.interval,
                max_lag=file.max_lag,
                snapshot_rows=file.snapshot_rows,
                warns=False,  # `_show` prints the advice
            )
    replaced = [change.file for change in changes if change.action == "replace" and change.file is not None]
    epoch = None
    if replaced:
        queries = {file.name: file.sql for file in replaced}
        refreshes = {file.name: file.refresh for file in replaced}
        epoch = change_views(session.handle, queries, refreshes=refreshes, schema_of=schema_planner(spark), warns=False)
    for change in changes:
        if change.action == "drop":
            session.store.drop_view(change.name)
        elif change.name in altered and change.file is not None:
            file = change.file
            session.store.view(change.name).job.alter(
                interval=file.interval, max_lag=file.max_lag, snapshot_rows=file.snapshot_rows
            )
    return epoch


def _rewritten(view: ReadTxn, files: Mapping[str, ViewFile]) -> set[str]:
    """Return the views of which a file gives another query. Raises InvalidInput for a text that cannot be given now."""
    rewritten = set()
    for job in all_jobs(view):
        file = files.get(job.name)
        if file is not None and job.view is not None:
            with naming(job.name):
                if not has_query(view, job, file.sql):
                    rewritten.add(job.name)
    return rewritten


def _altered(view: ReadTxn, session: CommandSession, files: Mapping[str, ViewFile]) -> set[str]:
    """Return the views of which a file gives another interval, max_lag or snapshot_rows. Raises InvalidInput."""
    altered = set()
    for job in all_jobs(view):
        file = files.get(job.name)
        if file is not None and job.view is not None:
            current = JobIntervals(job.interval, job.max_lag, job.max_lag_ms)
            wanted = make_intervals(job.name, file.interval, file.max_lag, session.handle.interval_ms, current)
            if wanted != current or file.snapshot_rows not in (None, job.snapshot_rows):
                altered.add(job.name)
    return altered


def _stored_views(view: ReadTxn) -> dict[str, StoredView]:
    views = {}
    for job in all_jobs(view):
        if job.view is not None:
            output = get_table(view, job.outputs[0], f"output of {job.name}").schema
            upstreams = tuple(get_table(view, table, f"upstream of {job.name}").name for table in job.upstreams)
            views[job.name] = StoredView(job.name, output.primary_key, job.view.refresh, upstreams)
    return views


def _drops_that_wait(view: ReadTxn, changes: list[Change], reads: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Return the views without a file that cannot be dropped yet, each with the reason: the newest rows of a replaced
    view are of them, until that view has committed its new query.

    Raises OutputOwned for a new view with the name of a table, and TableInUse if a job goes on reading a view to be
    dropped, so that nothing is changed if one of the changes is refused. reads: the tables that each file reads.
    """
    created = {change.name for change in changes if change.action == "create"}
    dropped = [change.name for change in changes if change.action == "drop"]
    replaced = {change.name for change in changes if change.action == "replace"}
    taken = sorted(created.intersection(table.name for table in all_tables(view)))
    if taken:
        raise OutputOwned(f"view {taken[0]!r}: the store has a table of this name; give the file another name")
    jobs = list(all_jobs(view))
    waiting: dict[str, str] = {}
    for name in dropped:  # readers come first
        outputs = set(find_job(view, name).outputs)
        for job in jobs:
            reads_on = name in reads[job.name] if job.name in replaced else not outputs.isdisjoint(job.upstreams)
            if reads_on and job.name not in dropped:
                raise TableInUse(
                    f"view {name!r} has no file and cannot be dropped: job {job.name!r} reads it; keep the file of "
                    f"{name!r}, or drop {job.name!r} first"
                )
            has_rows_of_it = job.position > 0 and not outputs.isdisjoint(job.rows_from)
            if (has_rows_of_it and job.name not in dropped) or (reads_on and job.name in waiting):
                waiting[name] = (
                    f", once {job.name} has its new query's rows: run `epochlog run` or step it, then apply again"
                    if job.name not in waiting
                    else f", after {job.name}"
                )
    return waiting


def _losses(handle: Handle, changes: list[Change]) -> Iterator[str]:
    """Yield a line about each change, and about the rows of each view that is dropped."""
    yield from (f"{change.action} {change.name}" for change in changes)
    dropped = [change.name for change in changes if change.action == "drop"]
    yield from loss_lines(describe_tables(handle, lambda view: [t for name in dropped for t in outputs_of(view, name)]))


def _plan(
    handle: Handle, files: Mapping[str, ViewFile], changes: list[Change], schema_of: SchemaPlanner
) -> dict[str, ViewPlan]:
    """Derive the plan of every new or replaced view, so that nothing is changed if one of them is refused."""
    plans: dict[str, ViewPlan] = {}
    tables: dict[str, TableSchema] = {}
    for change in changes:
        if change.file is None or change.action not in ("create", "replace"):
            continue
        file = change.file
        with naming(file.name):
            plans[file.name], schema, _ = plan_view(
                handle, file.name, file.sql, file.primary_key, file.refresh, schema_of, new_tables=tables
            )
            tables[file.name] = TableSchema(file.name, schema, file.primary_key)
            if change.action == "replace":
                current = handle.catalog.read(lambda view, name=file.name: _table(view, name))
                require_same_columns(file.name, current, tables[file.name])
    return plans


def _table(view: ReadTxn, name: str) -> TableSchema:
    return get_table(view, find_job(view, name).outputs[0], f"output of {name}").schema


def _facts(change: Change, plan: ViewPlan | None) -> dict[str, Any]:
    sentences = [] if plan is None else plan.key_advice().sentences
    explained = {"plan": None if plan is None else plan.explain(), "advice": sentences}
    return {"name": change.name, "action": change.action, **explained}


def _show(session: CommandSession, facts: Mapping[str, Any], lines: list[str]) -> None:
    if session.out.as_json:
        session.out.document(facts)
        return
    plans = [f"{change['name']}: {change['plan']}" for change in facts["changes"] if change["plan"]]
    advice = [f"warning: view {change['name']}: {line}" for change in facts["changes"] for line in change["advice"]]
    epoch = [f"the replaced views change at epoch {epoch_text(facts['epoch'])}"] if facts["epoch"] else []
    end = [] if facts["applied"] else ["nothing was changed"]
    session.out.show("\n".join([*lines, *epoch, *end]), *plans, *(["\n".join(advice)] if advice else []))


# ---- run -----------------------------------------------------------------------------------------------------------


def run(session: CommandSession) -> None:
    """Keep all views up to date until SIGINT or SIGTERM, and print each change of a view's state.

    The views' tables are compacted; nothing else is maintained without `--maintain`.
    """
    maintenance = Maintenance(session.handle)
    if session.options.maintain:
        maintenance.start()
    pipeline = Pipeline(session.store, session.spark(), threads=session.options.threads)
    runner: threading.Thread | None = None
    shown: dict[str, tuple[Any, ...]] = {}
    with stop_signals() as stopped:
        try:
            while True:
                _add_views(session, pipeline)
                if runner is None or not runner.is_alive():
                    runner = threading.Thread(target=pipeline.run, name="epochlog run", daemon=True)
                    runner.start()
                _print_changes(session, pipeline, shown)
                if select.select([stopped], [], [], LOOK_S)[0]:
                    break
        finally:
            pipeline.stop()
            if runner is not None:
                runner.join()
            maintenance.close()
    _print_changes(session, pipeline, shown)


def _add_views(session: CommandSession, pipeline: Pipeline) -> None:
    """Add the views that the pipeline does not run."""
    known = {status.name for status in pipeline.status() if status.state != "dropped"}
    for name in session.handle.catalog.read(lambda view: sorted(_stored_views(view))):
        if name not in known:
            with suppress(JobNotFound):  # dropped meanwhile
                pipeline.add(session.store.view(name))


def _print_changes(session: CommandSession, pipeline: Pipeline, shown: dict[str, tuple[Any, ...]]) -> None:
    """Print the status of each view whose state or newest error is another one than that shown."""
    for status in pipeline.status():
        state = (status.state, status.last_error)
        if shown.get(status.name) == state:
            continue
        shown[status.name] = state
        if session.out.as_json:
            session.out.document(asdict(status), on_one_line=True)
        else:
            lag = "-" if status.lag_ms is None else lag_text(status.lag_ms)
            error = f", {one_line(status.last_error)}" if status.last_error else ""
            line = f"{status.name}: {status.state}, at {epoch_text(status.committed_epoch)}, lag {lag}{error}"
            session.out.text([line])
    session.out.flush()
