"""Lag of a table: the age of the oldest change that a read of it does not reflect (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from epochlog.store.types.epoch_set import FAR, first_after, newest_at

from .table_epochs import Epochs, TableEpochs


def oldest_unreflected(view: Epochs, table: TableEpochs, epoch: int | None) -> int | None:
    """Return the oldest change that a read of `table` at `epoch` (None: its newest state) does not reflect; None if it
    reflects all.

    The newest state of a root table reflects all changes, and so does that of a finished table. Changes that an
    upstream does not reflect yet count too.
    """
    candidates = [view.unreflected[table.table_id]]
    if epoch is not None:
        own_change = first_after(table.changes, epoch)
        candidates.append(_root_change(view, table, own_change) if own_change != FAR else FAR)
        candidates.append(first_in(view, table, newest_at(table.commits, epoch)))
    return min(candidates) if min(candidates) != FAR else None


def unreflected_of_newest(view: Epochs) -> Mapping[int, int]:
    """Return for the newest state of each table, by id, the oldest change that it does not reflect; FAR for none."""
    oldest_by_table: dict[int, int] = {}
    for table in view.present.closure(view.tables):
        above = () if table.ended else table.upstreams
        oldest = [oldest_by_table[up] for up in above]
        oldest_by_table[table.table_id] = min([first_in(view, table, table.position), *oldest, int(FAR)])
    return oldest_by_table


def first_in(view: Epochs, table: TableEpochs, commit: int) -> int:
    """Return the oldest change of the direct upstreams after `commit`, traced back to the root change that caused it,
    or the epoch from which on the table is due if that is older; FAR if there is neither.
    """
    if table.ended and commit == table.position:  # later changes are not its input
        return int(FAR)
    due = table.due_past(commit) if table.position else table.due
    oldest = int(FAR) if due is None else due
    for up in (view.tables[up] for up in table.upstreams_at(commit)):
        if up.known_from > commit:  # changes may be missing since then: count them as unreflected
            oldest = min(oldest, up.known_from if due is None else due)
        elif (change := first_after(up.changes, commit)) < table.query_end(commit):
            oldest = min(oldest, _root_change(view, up, change))
    return oldest


def _root_change(view: Epochs, table: TableEpochs, change: int) -> int:
    """Return the oldest root change that caused the change of `table` at the epoch `change`; for a root, `change`.

    A commit reflects the changes of its upstreams since the commit before, so the search goes up by these intervals.
    """
    known, stack, begun = view.root_changes, [(table, change)], set[tuple[int, int]]()
    while stack:
        effect, at = stack[-1]
        causes = list(_causes(view, effect, at))
        missing = [(up, cause) for up, cause in causes if (up.table_id, cause) not in known]
        if missing and (effect.table_id, at) not in begun:
            begun.add((effect.table_id, at))
            stack += missing
        else:
            stack.pop()
            known[effect.table_id, at] = min([at, *(known.get((up.table_id, cause), cause) for up, cause in causes)])
    return known[table.table_id, change]


def _causes(view: Epochs, table: TableEpochs, change: int) -> Iterator[tuple[TableEpochs, int]]:
    """Yield the first change of each upstream that the commit at the epoch `change` reflects."""
    previous_commit = newest_at(table.commits, change - 1)
    for up in (view.tables[up] for up in table.upstreams_at(change)):
        cause = first_after(up.changes, previous_commit)
        if cause <= change:
            yield up, cause
