"""Command check: compares the outputs of a job with a query."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from epochlog.batch.differences import CheckReport, OutputCheck
from epochlog.cli.facts.store import Facts
from epochlog.cli.grammar.commands import limit_of
from epochlog.cli.render.json_values import plain_rows
from epochlog.cli.session import CommandSession
from epochlog.cli.text import epoch_text
from epochlog.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import RenderableType

KINDS = (("missing", "missing: only in the query"), ("extra", "extra: only in the table"), ("different", "different"))


def check(session: CommandSession) -> int:
    """Compare an output with a query over the job's upstreams; return 1 when they differ."""
    options = session.options
    query = options.sql if options.file is None else _read_query_file(options.file)
    job, limit = session.store.job(options.job), limit_of(options)
    queries = query if options.output is None else {options.output: query}
    report = job.check(queries, tolerance=options.tolerance, sample=limit or sys.maxsize)
    if session.out.as_json:
        session.out.document(_report_facts(report))
    else:
        _show_report(session, report)
    return 0 if report.ok else 1


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
