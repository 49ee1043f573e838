"""Read of one table that names no epoch: planned at the epoch that the default policy chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.scan.scan_plan import ScanPlan, plan_scan
from epochlog.store.session.handle import Handle

from .choice import ChoiceRead, choose
from .policy import Aligned, Latest, asks_of_named, choose_epochs


@dataclass(frozen=True, slots=True)
class DefaultRead:
    """Planned read of a table."""

    plan: ScanPlan
    version: int | None
    """Version of the catalog up to which the plan is the answer, as nothing has changed; None: the clock can change it
    too.
    """


def plan_default_read(
    handle: Handle, find: Callable[[ReadTxn], TableDef], before: DefaultRead | None = None
) -> DefaultRead:
    """Plan a read of the table that `find` returns. before: the plan of the read before, which is returned while
    nothing has changed. Raises the errors of the policy.
    """

    def answer(asked: ChoiceRead) -> DefaultRead:
        view = asked.view
        if before is not None and before.version == view.version:
            return before
        table = find(view)
        policy = asked.policy([table.name])
        if isinstance(policy, Latest) or (isinstance(policy, Aligned) and not table.derived):
            return DefaultRead(plan_scan(view, table, None), view.version)  # a root table is valid at its newest
        epochs, _ = asked.epochs(policy, [table.name])
        epoch = choose_epochs(policy, epochs, [table.name])[table.name]
        plan = plan_scan(view, table, None if epoch >= epochs.table(table.id).position else epoch)
        return DefaultRead(plan, view.version if asks_of_named(policy) else None)

    return choose(handle, None, answer)
