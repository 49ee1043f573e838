"""Read of one table that names no epoch: planned at the epoch that the default policy chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.commit.lag_marks import mark_late
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.read_default import read_default
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan
from epochlog.store.session.handle import Handle

from .default_policy import default_policy
from .policy import Aligned, Latest, asks_of_named, choose_epochs


@dataclass(frozen=True, slots=True)
class DefaultRead:
    """Planned read of a table. version: of the catalog, while which has it the plan is the answer; None: the clock
    decides too.
    """

    plan: ScanPlan
    version: int | None


def plan_default_read(
    handle: Handle, find: Callable[[ReadTxn], TableDef], before: DefaultRead | None = None
) -> DefaultRead:
    """Plan a read of the table that `find` returns. before: the plan of the read before, which is returned while
    nothing has changed. Raises the errors of the policy.
    """

    def body(view: ReadTxn) -> tuple[DefaultRead, EpochView | None]:
        if before is not None and before.version == view.version:
            return before, None
        table = find(view)
        policy = default_policy([table.name], read_default(view))
        if isinstance(policy, Latest) or (isinstance(policy, Aligned) and not table.derived):
            return DefaultRead(plan_scan(view, table, None), view.version), None  # a root table is valid at its newest
        above = [table.id] if asks_of_named(policy) else None
        epochs = read_epoch_view(view, handle.memory, handle.catalog.now_ms(), handle.store_id, above=above)
        epoch = choose_epochs(policy, epochs, [table.name])[table.name]
        plan = plan_scan(view, table, None if epoch >= epochs.table(table.id).position else epoch)
        return DefaultRead(plan, None if above is None else view.version), epochs

    read, epochs = handle.catalog.read(body)
    if read.version is None and epochs is not None:  # `global` has chosen
        mark_late(handle, epochs)
    return read
