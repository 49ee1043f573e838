"""Commits of root tables: upserts, deletes and the checkpoints of loads, each in one catalog transaction.

A commit gets its epoch inside the transaction, so it lands above every epoch issued or sealed before. Rules:
docs/SEMANTICS.md, 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from epochlog.errors import EpochRegressed, InvalidInput, NotWritable
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.env.failpoints import hit
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.metadata.version import require_open
from epochlog.store.session.write_intents import end_intents
from epochlog.store.sst.segment_writer import SegmentWriter
from epochlog.store.types.epoch import as_epoch, from_unix_ms, show_epoch

from .boundaries import check_skew
from .change import TableChange, sealed_labels
from .failures import DEFINITE_FAILURES
from .idempotency import CommitTxn, TxnPair, check_pair, has_outcome, pair_of, record_outcome, resolve_outcome
from .loads import LoadCommit, advance_load
from .preparation import prepare_root
from .prepared import Prepared
from .stream_batches import StreamBatch
from .transaction import Written, append_entry, commit_changes

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle


@dataclass(frozen=True, slots=True)
class RootCommit:
    """Commit to root tables at one epoch. Under a `txn` that has landed it returns the first outcome.

    Raises InvalidInput for an epoch below 1 or a malformed txn, and the errors of `resolve_outcome`.
    """

    epoch: int | None = None
    """The commit's epoch; None: the next one."""
    txn: CommitTxn | None = None
    ending: Collection[str] = ()
    """Writer intents that end with this commit, also if it landed before."""
    load: LoadCommit | None = None
    """The load of which this commit is a checkpoint: its fence is checked, and the states of its parts are written."""

    failures: ClassVar[tuple[type[BaseException], ...]] = DEFINITE_FAILURES

    def __post_init__(self) -> None:
        check_pair(self.txn)
        if self.epoch is not None:
            object.__setattr__(self, "epoch", as_epoch("epoch", self.epoch))
            if self.epoch < 1:
                raise InvalidInput("epoch must be at least 1; leave it out to get the next one")

    def prepare(
        self, handle: Handle, changes: Sequence[TableChange], tried: Sequence[Prepared] | None
    ) -> Sequence[Prepared]:
        return prepare_root(handle, changes, tried, self.epoch)

    def before_transaction(self) -> None:
        hit("commit:segments-written")

    def after_transaction(self) -> None:
        hit("commit:after-transaction")

    def record(self, handle: Handle, tx: Txn, changes: Sequence[Prepared]) -> tuple[int, list[Written] | None]:
        asked = [prepared.change for prepared in changes]
        tables = sorted(change.table_id for change in asked)
        pair = pair_of(tx, self.txn)
        earlier = resolve_outcome(tx, pair, tables)
        if earlier is not None:
            end_intents(tx, self.ending)
            return earlier, None
        if self.load is not None:
            advance_load(tx, self.load)
        targets = [refuse_unwritable(tx, change.table) for change in asked]
        counters = Counters.read(tx)
        now_ms = handle.clock_guard.issuing_ms(tx, counters.last_epoch)
        epoch, labels = _choose_epochs(asked, self.epoch, counters.last_epoch, now_ms)
        written = [
            (table, append_entry(tx, table, prepared, epoch, labels, now_ms, txn=pair, end=prepared.change.end))
            for table, prepared in zip(targets, changes, strict=True)
        ]
        move_counters(tx, counters, epoch)
        if pair is not None:
            batch = self.txn if isinstance(self.txn, StreamBatch) else None
            record_outcome(tx, pair, tables, epoch, now_ms, batch=batch)
        end_intents(tx, self.ending)
        return epoch, written


def commit_rows(
    handle: Handle,
    table: TableDef,
    operation: str,
    fill: Callable[[SegmentWriter], None],
    txn: TxnPair | None,
    epoch: int | None,
) -> tuple[int, TableDef]:
    """Commit the rows that `fill` writes to one root table; return the commit's epoch, and the table as it is now.

    Under a `txn` that has landed nothing is written. Raises the errors of `fill`, and those of a commit.
    """
    target = RootCommit(epoch, txn)

    def begin(view: ReadTxn) -> tuple[int | None, TableDef]:
        landed = resolve_outcome(view, txn, [table.id])
        return landed, table if landed is not None else refuse_unwritable(view, table)

    landed, table = handle.catalog.read(begin)
    if landed is not None:
        return landed, table
    with SegmentWriter(handle.write_target(table, handle.intents.store_intent())) as writer:
        fill(writer)
        segments = tuple(writer.finish())
    return commit_changes(handle, [TableChange(table, segments, operation)], target, delete_refused=True).epoch, table


def open_writer(
    handle: Handle, table: TableDef, txn: TxnPair | None = None, *, sealed: bool = False
) -> tuple[SegmentWriter, TableDef]:
    """Open a writer of one root table's segments; return it with the table as it is now. Raise at once if no commit of
    the table can succeed. sealed: for segments that are committed later, perhaps by another process.

    Under a `txn` that already has an outcome nothing is raised: the commit returns that outcome.
    """

    def check_writable(view: ReadTxn) -> TableDef:
        return table if txn is not None and has_outcome(view, txn) else refuse_unwritable(view, table)

    current = handle.catalog.read(check_writable)
    return SegmentWriter(handle.write_target(current, handle.intents.store_intent(sealed=sealed))), current


def refuse_unwritable(view: ReadTxn, table: TableDef) -> TableDef:
    """Return the table as it is now: it may have been altered. Raise TableDropped, NotWritable or TableFinished if the
    catalog shows that no commit of the table can succeed.
    """
    current = get_table(view, table.id, table.name)
    if current.derived:
        raise NotWritable(f"table {current.name!r} is the output of a job; only that job writes it")
    require_open(current.name, get_version(view, current.id, current.name))
    return current


def _choose_epochs(
    changes: Sequence[TableChange], epoch: int | None, last_epoch: int, now_ms: int
) -> tuple[int, Mapping[int, int]]:
    """Return the commit's epoch, and the final epoch of each label assigned at sealing."""
    sealed = sealed_labels(changes)
    if epoch is None:  # labels are reassigned in order; the last one is the commit's epoch
        first = max(from_unix_ms(now_ms), last_epoch + 1)
        chosen_epoch = first + max(len(sealed) - 1, 0)
        labels = {label: first + index for index, label in enumerate(sealed)}
    else:
        chosen_epoch, labels = epoch, {label: label for label in sealed}
        low = min([epoch, *sealed])
        if low <= last_epoch:
            subject = f"epoch {show_epoch(epoch)}" if low == epoch else f"label {show_epoch(low)}"
            raise EpochRegressed(
                f"{subject} must exceed {show_epoch(last_epoch)}, the newest epoch issued or sealed; leave epoch out "
                "to get the next one"
            )
        if sealed and sealed[-1] > epoch:
            raise EpochRegressed(
                f"label {show_epoch(sealed[-1])} exceeds the commit's epoch {show_epoch(epoch)}; seal at or below it, "
                "or commit at a higher epoch"
            )
        check_skew(chosen_epoch, now_ms, last_epoch)
    return chosen_epoch, labels
