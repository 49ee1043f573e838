"""Commands that print rows: read and changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.cli.grammar.commands import limit_of
from epochlog.cli.render.json_values import plain_rows
from epochlog.cli.render.out_file import OutFile
from epochlog.cli.session import CommandSession
from epochlog.errors import InvalidInput
from epochlog.facts.chosen_epochs import epoch_of, policy_of
from epochlog.facts.store import Facts
from epochlog.facts.text import bytes_text, epoch_text
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.metadata.lookups import find_table, get_version
from epochlog.store.types.predicate import parse_predicate

if TYPE_CHECKING:
    from epochlog.snapshot import Snapshot

PAGE_ROWS = 500
"""Rows of one printed grid; further rows come as further grids, so that the first appear at once."""


def read(session: CommandSession) -> None:
    """Print the rows of tables at the epochs that a policy chooses."""
    options = session.options
    with session.store.snapshot(options.tables or None, **policy_of(session.handle, options)) as snapshot:
        if options.epochs:
            _show_epochs(session, snapshot)
            return
        if options.out is not None and len(snapshot) != 1:
            raise InvalidInput(f"--out writes one table to a file: name one of {', '.join(snapshot)}")
        # All readers are opened first, so that an invalid option prints nothing.
        readers = [(name, _open_reader(snapshot, name, session)) for name in snapshot]
        for place, (name, reader) in enumerate(readers):
            epoch = snapshot.epochs[name]
            if options.out is not None:
                rows_at_most = snapshot[name].plan.rows_at_most if options.filter is None else None
                _write_file(session, reader, {"table": name, "epoch": epoch}, rows_at_most)
            elif session.out.as_json:
                rows = islice(_row_facts(reader), limit_of(options))
                session.out.lines({"_table": name, "_epoch": epoch, **row} for row in rows)
            else:
                session.out.show(*[""] * bool(place))
                _show_rows(session, reader, f"{name} at epoch {epoch_text(epoch)}")


def changes(session: CommandSession) -> None:
    """Print the changes of a table in a range of epochs."""
    options, table = session.options, session.store.table(session.options.table)
    after, until = (epoch_of(session.handle, text, table.name) for text in (options.after, options.until))
    reader = table.changes(
        _default_start(session, table.name, pre_images=options.pre_images) if after is None else after,
        until,
        mode=options.mode,
        pre_images=options.pre_images,
        columns=options.columns,
        filter=_parse_filter(options.filter, table.schema),
    )
    if options.out is not None:
        _write_file(session, reader, {"table": table.name}, None)
    elif session.out.as_json:
        session.out.lines(islice(_row_facts(reader), limit_of(options)))
    else:
        _show_rows(session, reader, None)


def _default_start(session: CommandSession, name: str, *, pre_images: bool) -> int:
    """Return the default of --after: the log's beginning, or the oldest epoch after which pre-images are known."""

    def body(view: ReadTxn) -> int:
        table = find_table(view, name)
        version = get_version(view, table.id, name)
        if not pre_images or table.stores_images_after(version.log_start):
            return version.log_start
        images_after = version.safe_epoch if table.full_since is None else min(version.safe_epoch, table.full_since)
        return max(version.log_start, images_after)

    return session.handle.catalog.read(body)


def _open_reader(snapshot: Snapshot, name: str, session: CommandSession) -> pa.RecordBatchReader:
    table = snapshot[name]
    return table.scan(columns=session.options.columns, filter=_parse_filter(session.options.filter, table.schema))


def _parse_filter(text: str | None, schema: pa.Schema) -> pc.Expression | None:
    return None if text is None else parse_predicate(text, schema)


def _row_facts(reader: Iterable[pa.RecordBatch]) -> Iterator[Facts]:
    for batch in reader:
        yield from plain_rows(batch)


def _write_file(session: CommandSession, reader: pa.RecordBatchReader, facts: Facts, rows_at_most: int | None) -> None:
    """Write the rows to the file of --out. rows_at_most: upper bound of the rows; None if unknown."""
    file, limit = OutFile(session.options.out), limit_of(session.options)
    total = rows_at_most if limit is None else min(limit, rows_at_most or limit)
    file.check(reader.schema)
    rows, size = file.write(
        reader.schema, _limit_batches(reader, limit), lambda done: session.out.waiting.step(done, total)
    )
    facts = {**facts, "file": str(file.path), "rows": rows, "bytes": size}
    if session.out.as_json:
        session.out.document(facts)
    else:
        at = f" at epoch {epoch_text(facts['epoch'])}" if "epoch" in facts else ""
        noun = "rows" if "epoch" in facts else "changes"
        session.out.show(f"{rows:,} {noun} of {facts['table']}{at} are in {file.path}, {bytes_text(size)}")


def _limit_batches(reader: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the first `limit` rows."""
    remaining = limit
    for batch in reader:
        yield batch if remaining is None else batch.slice(0, remaining)
        if remaining is not None and (remaining := remaining - batch.num_rows) <= 0:
            return


def _show_epochs(session: CommandSession, snapshot: Snapshot) -> None:
    facts = {
        "tables": [
            {"table": name, "epoch": epoch, "lag_ms": snapshot.lag_ms[name]} for name, epoch in snapshot.epochs.items()
        ],
        "token": snapshot.token,
    }
    if session.out.as_json:
        session.out.document(facts)
    else:
        from epochlog.cli.render import pages

        session.out.show(*pages.epochs_page(facts))


def _show_rows(session: CommandSession, reader: pa.RecordBatchReader, title: str | None) -> None:
    """Print grids of rows, and a hint about --limit if the limit cut them."""
    from epochlog.cli.render import pages

    limit, row_count = limit_of(session.options), 0
    names, kinds = reader.schema.names, reader.schema.types
    numeric = [pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind) for kind in kinds]
    rows = _row_facts(reader)
    limited = islice(rows, limit)
    heading = [title] if title else []
    while page := list(islice(limited, PAGE_ROWS)):
        session.out.show(*heading, pages.rows_page(names, numeric, page))
        row_count, heading = row_count + len(page), []
    if not row_count:
        session.out.show(*heading, "no rows")
    elif row_count == limit and next(rows, None) is not None:
        session.out.show(f"the first {limit:,}; --limit N or --all for more")
