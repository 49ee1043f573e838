"""Command check: compares views with their queries, and the outputs of a job with a given query."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from epochlog.batch.differences import CheckReport, OutputCheck
from epochlog.cli.grammar.commands import limit_of
from epochlog.cli.render.json_values import plain_rows
from epochlog.cli.session import CommandSession
from epochlog.errors import DependencyMissing, EpochlogError, InvalidInput, JobNotFound, StoreClosed
from epochlog.facts.store import Facts
from epochlog.facts.text import epoch_text, one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

KINDS = (("missing", "missing: only in the query"), ("extra", "extra: only in the table"), ("different", "different"))


def check(session: CommandSession) -> int:
    """Compare a view with its query, all views with theirs, or a job with a given query; return 1 if one differs."""
    options = session.options
    if options.job is None:
        return _check_all_views(session)
    if options.sql is None and options.file is None:
        report = _check_view(session, options.job, session.spark())
    else:
        query = options.sql if options.file is None else _read_query_file(options.file)
        queries: Any = query if options.output is None else {options.output: query}
        report = session.store.job(options.job).check(queries, tolerance=options.tolerance, sample=_sample(session))
    if session.out.as_json:
        session.out.document(_report_facts(report))
    else:
        _show_report(session, report)
    return 0 if report.ok else 1


def _check_all_views(session: CommandSession) -> int:
    """Compare each view with its query, show the reports, and return 1 unless all were compared and none differs."""
    names = [info.name for info in session.store.jobs() if info.sql is not None]
    if not names:
        raise InvalidInput("the store has no views: name a job, and give its query with --sql or --file")
    spark, facts = session.spark(), list[Facts]()
    for name in names:
        try:
            report = _check_view(session, name, spark)
        except (DependencyMissing, StoreClosed):
            raise
        except JobNotFound:  # dropped meanwhile
            continue
        except EpochlogError as error:
            facts.append({"job": name, "ok": None, "error": {"type": type(error).__name__, "text": str(error)}})
            if not session.out.as_json:
                session.out.text([one_line(f"{name}: not compared: {error}")])
            continue
        facts.append(_report_facts(report))
        if not session.out.as_json:
            _show_report(session, report)
    ok = all(view["ok"] for view in facts)
    if session.out.as_json:
        session.out.document({"ok": ok, "views": facts})
    else:
        equal, unknown = (sum(view["ok"] is value for view in facts) for value in (True, None))
        session.out.text([f"{equal} equal, {len(facts) - equal - unknown} different, {unknown} not compared"])
    return 0 if ok else 1


def _check_view(session: CommandSession, name: str, spark: Any) -> CheckReport:
    job = session.store.job(name)
    if job.info.sql is None:
        raise InvalidInput(f"job {name!r} is no view, so the store does not know its query: give --sql or --file")
    return session.store.view(name).check(spark, tolerance=session.options.tolerance, sample=_sample(session))


def _sample(session: CommandSession) -> int:
    return limit_of(session.options) or sys.maxsize


def _read_query_file(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"--file {path} is no text in UTF-8: {error}") from error


def _report_facts(report: CheckReport) -> Facts:
    outputs = [
        {
            "output": output.output,
            "ok": output.ok,
            "rows": output.rows,
            "expected_rows": output.expected_rows,
            **{kind: getattr(output, kind) for kind, _ in KINDS},
            **{f"{kind}_rows": _row_facts(getattr(output, f"{kind}_rows")) for kind, _ in KINDS},
        }
        for output in report.outputs.values()
    ]
    return {"job": report.job, "epoch": report.epoch, "ok": report.ok, "outputs": outputs}


def _show_report(session: CommandSession, report: CheckReport) -> None:
    from epochlog.cli.render import pages

    for output in report.outputs.values():
        at = f"{output.output} at epoch {epoch_text(report.epoch)}"
        if output.ok:
            session.out.show(f"{at}: {output.rows:,} rows, equal to the query")
            continue
        parts: list[RenderableType] = [f"{at}: {output.rows:,} rows, {output.expected_rows:,} in the query"]
        for kind, label in KINDS:
            if getattr(output, kind):
                rows = getattr(output, f"{kind}_rows")
                table = pages.rows_page(rows.column_names, _numeric(rows.schema), _row_facts(rows))
                parts += [_heading(output, kind, label, rows.num_rows), table]
        session.out.show(*parts)


def _heading(output: OutputCheck, kind: str, label: str, shown_rows: int) -> str:
    count = getattr(output, kind)
    hint = f"; the first {shown_rows:,}, --limit N or --all for more" if shown_rows < count else ""
    return f"{count:,} {label}{hint}"


def _numeric(schema: pa.Schema) -> list[bool]:
    kinds = schema.types
    return [pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) for kind in kinds]


def _row_facts(rows: pa.Table) -> list[Facts]:
    return [row for batch in rows.to_batches() for row in plain_rows(batch)]
