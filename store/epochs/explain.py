"""Explanations of unreadable epochs, in sentences: the table to blame, the reason, and the distance (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from epochlog.store.types.epoch import show_epoch
from epochlog.store.types.epoch_set import FAR, first_after, newest_at

from .epoch_errors import distance, explain_expired
from .table_epochs import Epochs, TableEpochs, TableRef


def hindrances(view: Epochs, refs: Sequence[TableRef], epoch: int) -> list[str]:
    """List a sentence for each table that by itself prevents a read of these tables at `epoch`; [] if none does."""
    return [sentence for _, sentence in blamed(view, refs, epoch)]


def blamed(view: Epochs, refs: Sequence[TableRef], epoch: int) -> list[tuple[str | None, str]]:
    """List `hindrances` as pairs (table to blame, sentence). The table is None if the epoch is not sealed yet."""
    last, view = view.last_epoch, view.at(epoch)
    if epoch > last:
        short = f"the newest is {show_epoch(last)}, {distance(last, epoch)} short"
        return [(None, f"epoch {show_epoch(epoch)} is not sealed yet; {short}")]
    sentences = [(table, _hindrance(view, table, epoch)) for table, until in view.needed(refs) if epoch < until]
    sentences += [(table, explain_expired(table, epoch)) for table in dict.fromkeys(view.table(ref) for ref in refs)]
    return [(table.name, sentence) for table, sentence in sentences if sentence]


def _hindrance(view: Epochs, table: TableEpochs, epoch: int) -> str:
    """Return the reason why `table` itself, its upstreams apart, is not valid at `epoch`; "" if there is none."""
    if not table.derived:
        if epoch >= table.adopted:
            return ""
        before = distance(epoch, table.adopted)
        return f"{table.name} is a root table from {table.adopted} on; {epoch} is {before} before, when a job wrote it"
    name = table.name if table.state == "created" else f"{table.name} ({table.state})"
    if not table.position:
        return f"{name} has no commit yet"
    commit = newest_at(table.commits, epoch)
    if not commit:
        first = int(table.commits[0])
        return (
            f"{name} begins with its first commit at {show_epoch(first)}; epoch {show_epoch(epoch)} is "
            f"{distance(epoch, first)} before it"
        )
    if commit < table.traced_from:
        return (
            f"{name} was replaced at {show_epoch(table.traced_from)}, and a table that its query read before was "
            f"dropped, so its valid epochs before are not known; {show_epoch(epoch)} is "
            f"{distance(epoch, table.traced_from)} before that"
        )
    if table.ended and commit == table.position:
        return ""
    ups = [view.tables[up] for up in table.upstreams]
    up = max(ups, key=lambda up: up.known_from, default=table)
    due = table.due_past(commit)
    if up is not table and up.known_from > commit and due is None:
        forgotten = f"the changes of {up.name} are remembered only past {show_epoch(up.known_from)}"
        return f"{name} was committed at {show_epoch(commit)}, but {forgotten}, {distance(commit, up.known_from)} later"
    changes = [(first_after(up.changes, commit), up) for up in ups]
    if due is not None and due <= epoch and due < min(changes, key=itemgetter(0))[0]:
        behind = f"{distance(commit, epoch)} behind"
        return (
            f"{name} is committed through {show_epoch(commit)}, {behind}, and from {show_epoch(due)} on that is not "
            "known to be all"
        )
    change, up = min(changes, key=itemgetter(0), default=(FAR, table))
    later = first_after(table.commits, epoch)
    if (replaced := first_after(table.superseded, commit)) <= epoch and replaced < change:
        return (
            f"the query of {name} was replaced at {show_epoch(replaced)}, but not committed there; the next commit is "
            f"at {show_epoch(later)}, {distance(epoch, later)} past {show_epoch(epoch)}"
        )
    if change > epoch:
        return ""
    if later <= table.position:
        gap = f"the change of {up.name} at {show_epoch(change)} is only in the later one"
        return (
            f"{name} went from its commit at {show_epoch(commit)} to {show_epoch(later)}, "
            f"{distance(epoch, later)} past {show_epoch(epoch)}, and {gap}"
        )
    behind = f"{distance(commit, epoch)} behind"
    return (
        f"{name} is committed through {show_epoch(commit)}, {behind}, and does not reflect the change of {up.name} at "
        f"{show_epoch(change)}"
    )
