"""Command that compares a job's output with a query: check."""

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

KINDS = (("missing", "missing: the query gives"), ("extra", "too many: only the table has"), ("different", "different"))


def check(session: CommandSession) -> int:
    """Compare an output with a query over the job's upstreams; return 1 when they differ."""
    options = session.options
    query = options.sql if options.file is None else _text(options.file)
    job, limit = session.store.job(options.job), limit_of(options)
    wanted = query if options.output is None else {options.output: query}
    report = job.check(wanted, tolerance=options.tolerance, sample=limit or sys.maxsize)
    if session.out.as_json:
        session.out.document(_facts(report))
    else:
        _show(session, report)
    return 0 if report.ok else 1


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"--file {path}: it is no text in UTF-8: {error}") from error


def _facts(report: CheckReport) -> Facts:
    outputs = [
        {
            "output": one.output,
            "ok": one.ok,
            "rows": one.rows,
            "expected_rows": one.expected_rows,
            **{kind: getattr(one, kind) for kind, _ in KINDS},
            **{f"{kind}_rows": _plain(getattr(one, f"{kind}_rows")) for kind, _ in KINDS},
        }
        for one in report.outputs.values()
    ]
    return {"job": report.job, "epoch": report.epoch, "ok": report.ok, "outputs": outputs}


def _show(session: CommandSession, report: CheckReport) -> None:
    from epochlog.cli.render import pages

    for one in report.outputs.values():
        at = f"{one.output} at epoch {epoch_text(report.epoch)}"
        if one.ok:
            session.out.show(f"{at}: {one.rows:,} rows, as the query gives")
            continue
        parts: list[RenderableType] = [f"{at}: {one.rows:,} rows, the query gives {one.expected_rows:,}"]
        for kind, told in KINDS:
            if getattr(one, kind):
                rows = getattr(one, f"{kind}_rows")
                table = pages.rows(rows.column_names, _numeric(rows.schema), _plain(rows))
                parts += [_heading(one, kind, told, rows.num_rows), table]
        session.out.show(*parts)


def _heading(one: OutputCheck, kind: str, told: str, shown: int) -> str:
    count = getattr(one, kind)
    more = f"; the first {shown:,}, --limit N or --all for more" if shown < count else ""
    return f"{count:,} {told}{more}"


def _numeric(schema: pa.Schema) -> list[bool]:
    kinds = schema.types
    return [pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) for kind in kinds]


def _plain(rows: pa.Table) -> list[Facts]:
    return [row for batch in rows.to_batches() for row in plain_rows(batch)]
