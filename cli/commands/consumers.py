"""Commands of log readers: consumers (list, reset, drop) and tail (follow a table)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack

import pyarrow as pa

from epochlog.cli.grammar.values import BEGINNINGS
from epochlog.cli.render.json_values import cell, plain_rows
from epochlog.cli.session import CommandSession
from epochlog.exchange.subscription.messages import FeedPosition
from epochlog.exchange.subscription.table_feed import Slice, TableFeed
from epochlog.facts.chosen_epochs import epoch_of
from epochlog.facts.holds import consumer_facts
from epochlog.facts.text import epoch_iso, safe
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.change_rows import CHANGE_FIELDS, CHANGE_TYPE, COMMIT_VERSION
from epochlog.store.changelog.consumer import Consumer
from epochlog.store.changelog.consumers import open_consumer
from epochlog.store.env.whole_number import whole_number
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table, get_version

LOOK_EVERY_S = 0.1
_CHANGE_COLUMNS = {field.name for field in CHANGE_FIELDS}


def consumers(session: CommandSession) -> None:
    """Reset or drop one consumer if an option names it, then list all."""
    options, store = session.options, session.store
    if options.reset is not None:
        name, to = options.reset
        store.reset_consumer(name, _reset_target(to))
    if options.drop is not None:
        store.drop_consumer(options.drop)
    facts = [consumer_facts(info) for info in store.consumers()]
    if session.out.as_json:
        session.out.document({"root": session.handle.files.place, "consumers": facts})
    else:
        from epochlog.cli.render import pages

        session.out.show(pages.consumers_page(facts) if facts else f"{session.handle.files.place} has no consumer")


def _reset_target(text: str) -> str | int:
    number = whole_number(text)
    return text if number is None else number


# ---- tail --------------------------------------------------------------------------------------------------------


def tail(session: CommandSession) -> None:
    """Print a table's changes as they come, until Ctrl-C, the end of its data, or the limit."""
    options = session.options
    with ExitStack() as stack:
        table = session.handle.catalog.read(lambda view: find_table(view, options.table))
        consumer = None
        if options.consumer is not None:
            consumer = stack.enter_context(open_consumer(session.handle, options.consumer, [table.name]))
        start = _start_position(session, table, consumer)
        columns = None if options.columns is None else tuple(options.columns)
        advice = "Begin with --from snapshot or --from earliest"
        feed = TableFeed(session.handle, table, columns, start, advice)
        stack.callback(feed.close)
        if consumer is not None and consumer.position is None and start is not None:
            consumer.ack(start.after)  # takes the hold on the log
        progress = _TailProgress(session, consumer, feed.snapshot_rows)
        try:
            _follow(feed, progress)
        except KeyboardInterrupt:
            progress.acknowledge()
            raise
        progress.acknowledge()


class _TailProgress:
    """Progress of tail: the rows printed so far, and the epoch through which all changes are printed."""

    def __init__(self, session: CommandSession, consumer: Consumer | None, expected: int | None) -> None:
        """Create the progress. expected: upper bound of the rows before the first change; None: no rows."""
        self.session = session
        self._rows, self._expected = 0, expected
        if expected is None:
            session.out.waiting.end()
        self._consumer = consumer
        self._remaining = session.options.limit
        self._through: int | None = None

    @property
    def enough(self) -> bool:
        return self._remaining == 0

    def show(self, item: Slice) -> None:
        complete = item.data is None or (item.last and not item.snapshot)
        if item.data is not None:
            rows = item.data if self._remaining is None else item.data.slice(0, self._remaining)
            if self._remaining is not None:
                self._remaining -= rows.num_rows
            complete = complete and rows.num_rows == item.data.num_rows
            if self.session.out.as_json:
                self.session.out.lines(plain_rows(rows))
            else:
                self.session.out.text(_change_lines(rows))
            self.session.out.flush()
        if item.data is not None and item.snapshot:
            self._rows += item.data.num_rows
            self.session.out.waiting.step(self._rows, self._expected)
        else:
            self.session.out.waiting.end()
        if complete:
            self._through = item.epoch

    def acknowledge(self) -> None:
        """Acknowledge the epoch through which all changes are printed, if there is a consumer. Raises Fenced if another
        process has claimed it.
        """
        if self._consumer is None:
            return
        if self._through is None:
            self._consumer.check()
        else:
            self._consumer.ack(self._through)
            self._through = None


def _follow(feed: TableFeed, progress: _TailProgress) -> None:
    pause = threading.Event()
    while True:
        for item in feed.read_new():
            progress.show(item)
            if progress.enough:
                return
        progress.acknowledge()
        if feed.ended or progress.session.options.until_idle:
            return
        pause.wait(LOOK_EVERY_S)


def _start_position(session: CommandSession, table: TableDef, consumer: Consumer | None) -> FeedPosition | None:
    """Return the start position; None for the table's rows first."""
    if consumer is not None and consumer.position is not None:
        return FeedPosition(after=consumer.position)
    begin = session.options.begin or ("latest" if consumer is None else "snapshot")
    if begin not in BEGINNINGS:
        return FeedPosition(after=epoch_of(session.handle, begin, table.name) or 0)

    def marks(view: ReadTxn) -> dict[str, int]:
        version = get_version(view, table.id, table.name)
        return {"earliest": version.log_start, "latest": version.max_committed_epoch}

    return None if begin == "snapshot" else FeedPosition(after=session.handle.catalog.read(marks)[begin])


def _change_lines(rows: pa.RecordBatch) -> Iterator[str]:
    """Yield a line for each change: time, epoch, type and columns."""
    for row in plain_rows(rows):
        columns = " ".join(
            f"{name}={'null' if value is None else cell(value)}"
            for name, value in row.items()
            if name not in _CHANGE_COLUMNS
        )
        yield safe(f"{epoch_iso(row[COMMIT_VERSION])} {row[COMMIT_VERSION]} {row[CHANGE_TYPE]:<7} {columns}")
