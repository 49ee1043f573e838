"""Lag of a table: the oldest change that a read of it does not reflect (pure)."""

from __future__ import annotations

from epochlog.store.types.epoch_set import FAR, first_after, newest_at

from .table_epochs import Epochs, TableEpochs


def oldest_unreflected(view: Epochs, table: TableEpochs, epoch: int | None) -> int | None:
    """Return the oldest change that `table` read at `epoch` (None: its newest state) does not reflect; None: it has
    all.

    A root table's newest state reflects everything, and so does that of a table whose data has ended. What an upstream
    itself has not reflected yet counts too.
    """
    needed = view.needed([table.table_id]) if table.upstreams else ((table, FAR),)
    above = [ancestor for ancestor, until in needed if until == FAR]
    found = [int(FAR), *(first_in(view, ancestor, ancestor.position) for ancestor in above)]
    if epoch is not None:
        own = first_after(table.changes, epoch)
        found.append(_origin(view, table, own) if own != FAR else FAR)
        found.append(first_in(view, table, newest_at(table.commits, epoch)))
    return min(found) if min(found) != FAR else None


def first_in(view: Epochs, table: TableEpochs, commit: int) -> int:
    """Return the oldest change of the direct upstreams past `commit`, traced back to the root change that caused it, or
    the epoch from which on the table is due if that is older; FAR when there is neither.
    """
    if table.ended and commit == table.position:  # its data has ended: what came later is not its input
        return int(FAR)
    due = table.due_past(commit) if table.position else table.due
    oldest = int(FAR) if due is None else due
    for up in (view.tables[up] for up in table.upstreams):
        if up.known_from > commit:  # something may be missing since then: say so rather than 0
            oldest = min(oldest, up.known_from if due is None else due)
        elif (change := first_after(up.changes, commit)) != FAR:
            oldest = min(oldest, _origin(view, up, change))
    return oldest


def _origin(view: Epochs, table: TableEpochs, change: int) -> int:
    """Return the oldest root change that went into the change of `table` at that epoch; `change` itself for a root.

    A commit reflects what its upstreams changed since the commit before, hence the walk up through such intervals.
    """
    oldest, stack, seen = change, [(table, change)], {(table.table_id, change)}
    while stack:
        table, change = stack.pop()
        oldest = min(oldest, change)
        before = newest_at(table.commits, change - 1)
        for up in (view.tables[up] for up in table.upstreams):
            cause = first_after(up.changes, before)
            if cause <= change and (up.table_id, cause) not in seen:
                seen.add((up.table_id, cause))
                stack.append((up, cause))
    return oldest
