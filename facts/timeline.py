"""Timeline of tables: their epochs, divided into stretches within which no state differs (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from epochlog.store.epochs.table_epochs import TableEpochs
from epochlog.store.epochs.view import EpochView
from epochlog.store.types.epoch_set import Intervals, Ints, ints

Landed = Literal["rows", "empty", "label"]
"""Kind of event of a table at an epoch: a commit with rows, an empty commit, or rows of a label below its commit."""
State = Literal["none", "valid", "behind", "gone"]
"""State of one table at an epoch: no commit yet; valid; not valid (behind its upstreams); below the safe epoch."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Stretch of the epochs from `first` through `last`. `landed` describes `first`; `states` and `readable` hold for
    each epoch of the stretch.
    """

    first: int
    last: int
    landed: Mapping[str, Landed]
    states: Mapping[str, State]
    readable: bool
    """True if all requested tables can be read together."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """Timeline of tables. earlier, later: True if there are more on that side."""

    tables: tuple[str, ...]
    """Requested ones."""
    ancestors: tuple[str, ...]
    """All other tables that they descend from."""
    stretches: tuple[Stretch, ...]
    """Intervals of equal state, in order of epoch, without gaps."""
    earlier: bool = False
    later: bool = False


def timeline(view: EpochView, names: Sequence[str], limit: int | None = None, around: int | None = None) -> Timeline:
    """Return the timeline of at most `limit` stretches (None: all): the newest ones, or those around the epoch
    `around`.
    """
    tables = [view.table(name) for name in dict.fromkeys(names)]
    ancestors = [table for table in reversed(view.closure(names)) if table not in tables]
    members = [*tables, *ancestors]
    low, high = _window(members, view.last_epoch, limit, around)
    together = view.common_valid([table.table_id for table in tables], low, high)
    alone = {table.name: view.common_valid([table.table_id], low, high) for table in members}
    safe_epochs = {table.name: table.safe_epoch for table in tables}
    cuts = _cuts(members, [together, *alone.values()], safe_epochs.values(), low, high)
    if not len(cuts):
        return Timeline(_names(tables), _names(ancestors), ())
    lasts = np.append(cuts[1:] - 1, high)
    begin, stop = _select_range(cuts, limit, around)
    readable = _within(together, cuts) & (cuts >= max(safe_epochs.values()))
    states = {table.name: _states(table, cuts, alone[table.name], safe_epochs.get(table.name, 0)) for table in members}
    stretches = tuple(
        Stretch(
            int(cuts[at]),
            int(lasts[at]),
            dict(_landed_at(members, int(cuts[at]))),
            {name: by_cut[at] for name, by_cut in states.items()},
            bool(readable[at]),
        )
        for at in range(begin, stop)
    )
    return Timeline(
        _names(tables), _names(ancestors), stretches, begin > 0 or low > 0, bool(lasts[stop - 1] < view.last_epoch)
    )


def _names(tables: Sequence[TableEpochs]) -> tuple[str, ...]:
    return tuple(table.name for table in tables)


def _events(tables: Sequence[TableEpochs], low: int, high: int) -> Iterator[Ints]:
    """Yield the epochs of events in [low, high]: one ascending array for each table and kind."""
    for events in _event_arrays(tables):
        yield events[events.searchsorted(low) : events.searchsorted(high, "right")]


def _event_arrays(tables: Sequence[TableEpochs]) -> Iterator[Ints]:
    return (events for table in tables for events in (table.commits, table.changes))


def _merge_distinct(parts: Iterable[Ints]) -> Ints:
    """Merge the arrays into one ascending array of distinct values."""
    merged = np.sort(np.concatenate([ints(()), *parts]))
    return merged[np.append(True, merged[1:] != merged[:-1])[: len(merged)]]


def _window(members: Sequence[TableEpochs], last: int, limit: int | None, around: int | None) -> tuple[int, int]:
    """Return a range of epochs that contains the `limit` stretches to show. Each event begins a stretch, so the nearest
    events of each table suffice.
    """
    if limit is None:
        return 0, last
    middle = last if around is None else min(around, last)
    below, above = [], []
    for events in _event_arrays(members):
        at = int(events.searchsorted(middle, "right"))
        below.append(events[max(at - limit - 1, 0) : at])
        above.append(events[at : at + limit + 1])
    past, coming = _merge_distinct(below), _merge_distinct(above)
    low = int(past[-limit]) if len(past) > limit else 0
    return low, int(coming[limit]) - 1 if len(coming) > limit else last


def _cuts(
    members: Sequence[TableEpochs], valid: Sequence[Intervals], safe_epochs: Iterable[int], low: int, high: int
) -> Ints:
    """Return the first epochs of the stretches: events, and changes of a state; none before the first event."""
    edges = [edge for starts, ends in valid for edge in (starts, ends + 1)]
    cuts = _merge_distinct([*_events(members, low, high), *edges, ints(list(safe_epochs))])
    first = min((int(events[0]) for events in _event_arrays(members) if len(events)), default=high + 1)
    return cuts[(cuts >= max(low, first)) & (cuts <= high)]


def _select_range(cuts: Ints, limit: int | None, around: int | None) -> tuple[int, int]:
    """Choose the stretches to return: indices [begin, stop) of `cuts`."""
    if limit is None or len(cuts) <= limit:
        return 0, len(cuts)
    if around is None:
        return len(cuts) - limit, len(cuts)
    at = max(int(cuts.searchsorted(around, "right")) - 1, 0)
    begin = min(max(at - limit // 2, 0), len(cuts) - limit)
    return begin, begin + limit


def _within(intervals: Intervals, epochs: Ints) -> np.ndarray:
    """Return a mask of the epochs that lie in the intervals."""
    starts, ends = intervals
    at = starts.searchsorted(epochs, "right") - 1
    return (at >= 0) & (epochs <= np.append(ends, -1)[at])


def _states(table: TableEpochs, cuts: Ints, valid: Intervals, lowest: int) -> list[State]:
    begun_mask = (table.commits.searchsorted(cuts, "right") > 0) | (table.known_from > 0)
    is_valid = _within(valid, cuts)
    return [
        "gone" if cut < lowest else "none" if not has_begun else "valid" if valid_at_cut else "behind"
        for cut, has_begun, valid_at_cut in zip(cuts.tolist(), begun_mask.tolist(), is_valid.tolist(), strict=True)
    ]


def _landed_at(members: Sequence[TableEpochs], epoch: int) -> Iterator[tuple[str, Landed]]:
    for table in members:
        commit, change = (_contains(events, epoch) for events in (table.commits, table.changes))
        if commit or change:
            yield table.name, "empty" if not change else "rows" if commit else "label"


def _contains(events: Ints, epoch: int) -> bool:
    at = int(events.searchsorted(epoch))
    return at < len(events) and int(events[at]) == epoch
