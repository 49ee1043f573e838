"""Sentences for people: which table keeps an epoch from being readable, why, and by how much; pure."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from .epoch import show_epoch, show_span, to_unix_ms
from .intervals import FAR, first_after, newest_at

if TYPE_CHECKING:
    from .lineage import EpochView, TableEpochs, TableRef


def distance(low: int, high: int) -> str:
    """How far apart two epochs are, as time: `2 ms`, `3.2 s`."""
    ms = to_unix_ms(high) - to_unix_ms(low)
    return show_span(ms) if ms else "less than 1 ms"


def hindrances(view: EpochView, refs: Sequence[TableRef], epoch: int) -> list[str]:
    """A sentence for each table that by itself keeps these tables from being read at `epoch`; [] when none does."""
    return [sentence for _, sentence in blamed(view, refs, epoch)]


def blamed(view: EpochView, refs: Sequence[TableRef], epoch: int) -> list[tuple[str | None, str]]:
    """The same, with the name of the table to blame; None: it is nobody's fault, the epoch is not sealed yet."""
    last = view.last_epoch
    if epoch > last:
        short = f"the newest is {show_epoch(last)}, {distance(last, epoch)} short"
        return [(None, f"epoch {show_epoch(epoch)} is not sealed yet; {short}")]
    found = [(table, _hindrance(view, table, epoch)) for table, until in view.needed(refs) if epoch < until]
    found += [(table, let_go(table, epoch)) for table in dict.fromkeys(view.table(ref) for ref in refs)]
    return [(table.name, sentence) for table, sentence in found if sentence]


def let_go(table: TableEpochs, epoch: int) -> str:
    """A sentence when the rows of that epoch are gone, or the table was not there yet, else an empty string."""
    safe = table.safe_epoch
    if epoch < table.root_begin:
        return (
            f"{table.name} was made at {show_epoch(table.created)}; {show_epoch(epoch)} is "
            f"{distance(epoch, table.created)} before that"
        )
    if epoch >= safe:
        return ""
    return (
        f"the history of {table.name} below epoch {show_epoch(safe)} has been let go; {show_epoch(epoch)} is "
        f"{distance(epoch, safe)} below"
    )


def _hindrance(view: EpochView, table: TableEpochs, epoch: int) -> str:
    """What is wrong with `table` at `epoch`, its upstreams apart; an empty string when nothing is."""
    if not table.derived:
        if epoch >= table.adopted:
            return ""
        before = distance(epoch, table.adopted)
        return f"{table.name} is a root table from {table.adopted} on; {epoch} is {before} before, when a job made it"
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
    if change > epoch:
        return ""
    later = first_after(table.commits, epoch)
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
