"""Feed of a table from any position: its rows at one epoch, then its log, then new commits, in bounded slices.

The log is the only source of changes, old and new, so no change is lost between replay and live changes. Slices are
deterministic: a feed that resumes in the middle of an epoch, or of the rows, skips the rows that were sent before.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from epochlog.errors import EpochExpired, EpochlogError, SnapshotExpired, TableDropped
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.changelog import log_reader
from epochlog.store.changelog.epoch_batches import epoch_batches, past_rows
from epochlog.store.changelog.log_plan import Columns, LogPlan, plan_backfill, schema_changed
from epochlog.store.changelog.log_reader import LogHold, Meter, plan_unread, read_batches, read_slices
from epochlog.store.metadata.commit_log import nth_logged
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import find_table, get_table, get_version
from epochlog.store.session.handle import Handle
from epochlog.store.types.schema import TableSchema

from .messages import FeedPosition

ROUND_ENTRIES = 1_024
"""Largest number of commits in one round."""
TOGETHER_BYTES = 1 << 20
"""Size limit of a slice of several epochs; a single row may be larger."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of one epoch, in key order, or of several whole epochs, or a notice that the feed is complete through an
    epoch.
    """

    epoch: int
    """Epoch of the last row."""
    data: pa.RecordBatch | None = None
    """None: the notice."""
    last: bool = True
    """True if no more rows of the epoch follow."""
    snapshot: bool = False
    """True for the table's rows at the epoch, False for changes."""


@dataclass(frozen=True, slots=True)
class _FeedRound:
    """Plan of one round, from one state of the catalog."""

    plan: LogPlan
    position: FeedPosition
    until: int
    ended: bool
    """True if the table's data ends with this round."""


class TableFeed:
    """Feed of one table for one reader. A lease holds the unread rows and log until `close`. A store that is opened
    read-only holds nothing: the feed plans the rest anew when vacuum has deleted a file of it (4.18).
    """

    def __init__(
        self,
        handle: Handle,
        table: TableDef,
        columns: tuple[str, ...] | None,
        position: FeedPosition | None,
        advice: str,
        meter: Meter | None = None,
        version: int | None = None,
        *,
        together: bool = False,
    ) -> None:
        """Plan the first round and hold its epochs. position: None begins with the rows of the newest commit. advice:
        the last sentence of LogTruncated. meter: as in `read_slices`. version: the version of the table's schema whose
        columns the reader has; None: it takes those of the position. together: give small epochs together in one slice.

        Raises InvalidInput for columns, LogTruncated, SnapshotExpired.
        """
        self._meter = meter
        self._handle = handle
        self._id, self._name = table.id, table.name
        self._columns = columns
        self._together = together
        self._advice = advice
        self._hold = LogHold(handle, "subscription", [(table.id, table.name)], advice)
        self._fixed: TableSchema | None = None if version is None else table.schema.at(version)
        self._position, self.ended = position, False
        begins_with_rows = position is None or position.snapshot is not None
        self._first_round = self._hold.take(self._plan_first, rows=begins_with_rows)
        assert self._first_round is not None
        self._position, self._fixed = self._first_round.position, self._first_round.plan.table
        self.version = self._fixed.version
        self.schema = self._first_round.plan.schema(columns)

    def close(self) -> None:
        """Release the feed's hold; a second call does nothing."""
        self._hold.release()

    def read_new(self) -> Generator[Slice]:
        """Yield all slices past the position, through the newest commit. If the generator is closed early, the next one
        resumes at the position reached.

        Raises TableDropped, LogTruncated, SnapshotExpired.
        """
        while not self.ended:
            planned, self._first_round = self._first_round, None
            feed_round = planned or self._handle.catalog.read(self._plan_round)
            self._fixed = feed_round.plan.table
            position = feed_round.position
            if position.snapshot is None and feed_round.until <= position.after and not feed_round.ended:
                if planned is not None:  # at the opening: commits since then may have notified the caller already
                    continue
                return
            try:
                yield from self._read_round(feed_round)
            except SnapshotExpired as stale:  # nothing could hold the files: others have the rows past the position
                try:
                    self._first_round = self._handle.catalog.read(self._plan_round)
                except EpochlogError as refused:
                    raise stale from refused
                continue
            self.ended = feed_round.ended
            self._hold.move(self.position.after)

    @property
    def snapshot_rows(self) -> int | None:
        """Return an upper bound of the table's rows; None if the feed does not begin with them, or has read them."""
        first_round = self._first_round
        if first_round is None or first_round.position.snapshot is None:
            return None
        before = first_round.plan.before
        return None if before is None else before.rows_at_most

    @property
    def position(self) -> FeedPosition:
        """Return the position up to which the feed was yielded."""
        assert self._position is not None
        return self._position

    # ---- reading -------------------------------------------------------------------------------------------------

    def _read_round(self, feed_round: _FeedRound) -> Iterator[Slice]:
        start, snapshot = feed_round.position, feed_round.position.snapshot is not None
        sent_epoch = start.after
        plan = feed_round.plan
        for epoch, data, last in self._slices(plan, start.rows):
            self._position = replace(self.position, rows=self.position.rows + data.num_rows)
            if last and not snapshot:
                sent_epoch = epoch
                self._position = FeedPosition(after=epoch)
            yield Slice(epoch, data, last, snapshot)
        until = feed_round.until if plan.altered is None else max(start.after, plan.altered - 1)
        self._position = FeedPosition(after=until)
        if snapshot or sent_epoch < until:
            yield Slice(until, snapshot=snapshot)
        if plan.altered is not None:
            raise schema_changed(self._name, plan.altered)

    def _slices(self, plan: LogPlan, skip: int) -> Iterator[tuple[int, pa.RecordBatch, bool]]:
        """Yield the slices past the first `skip` rows as (epoch, rows, last); last marks the final slice of its
        epoch.
        """
        if self._together and not plan.backfill:
            batches = read_batches(self._handle, plan, self._columns, meter=self._meter)
            return epoch_batches(past_rows(batches, skip), log_reader.SLICE_ROWS, TOGETHER_BYTES)
        slices = read_slices(self._handle, plan, self._columns, meter=self._meter)
        return _with_ends(slices, skip)

    # ---- planning and holds --------------------------------------------------------------------------------------

    def _plan_round(self, view: ReadTxn) -> _FeedRound:
        table = get_table(view, self._id, self._name)
        version = get_version(view, table.id, table.name)
        position = self._position
        if position is None:
            position = FeedPosition(snapshot=version.max_committed_epoch)
        if position.snapshot is not None:
            try:
                plan = plan_backfill(view, table, position.snapshot, self._fixed)
            except EpochExpired as error:
                raise SnapshotExpired(
                    f"the rows of {table.name!r} at epoch {position.snapshot} expired while the subscription was "
                    "reading them; subscribe anew"
                ) from error
            return _FeedRound(plan, position, position.snapshot, ended=False)
        until = _round_end(view, table, position.after, max(version.max_committed_epoch, position.after))
        ended = version.end_epoch is not None and until >= version.end_epoch
        plan = plan_unread(view, table, position.after, until, self._advice, Columns(self._fixed, cut=True))
        return _FeedRound(plan, position, until, ended)

    def _plan_first(self, tx: Txn) -> tuple[_FeedRound, int]:
        """Plan the first round; return it with the epoch after which the log is held. Raises InvalidInput for unknown
        columns.
        """
        feed_round = self._plan_round(tx)
        feed_round.plan.schema(self._columns)
        position = feed_round.position
        return feed_round, position.after if position.snapshot is None else position.snapshot


def find_subscribed_table(view: ReadTxn, name: str, table_id: int | None) -> TableDef:
    """Find the table of that name. Raises TableDropped if its id is not `table_id`; None accepts any id."""
    if table_id is None:
        return find_table(view, name)
    table = get_table(view, table_id, name)
    if table.name != name:
        raise TableDropped(f"table {name!r} was dropped or renamed after this subscription began; subscribe anew")
    return table


def _round_end(view: ReadTxn, table: TableDef, after: int, newest: int) -> int:
    """Return the epoch of the ROUND_ENTRIES-th commit past `after`; `newest` if there are fewer commits."""
    return nth_logged(view, table.id, after, newest, ROUND_ENTRIES)


def _with_ends(slices: Iterator[tuple[int, pa.RecordBatch]], skip: int) -> Iterator[tuple[int, pa.RecordBatch, bool]]:
    """Yield the slices past the first `skip` rows as (epoch, rows, last); last marks the final slice of its epoch."""
    pending: tuple[int, pa.RecordBatch] | None = None
    for epoch, rows in slices:
        data = rows.slice(min(skip, rows.num_rows))
        skip = max(0, skip - rows.num_rows)
        if pending is not None and data.num_rows:
            yield *pending, pending[0] != epoch
        pending = (epoch, data) if data.num_rows else pending
    if pending is not None:
        yield *pending, True
