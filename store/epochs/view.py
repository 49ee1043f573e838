"""Epochs of all tables at one instant of the catalog: complete, valid, lag. Pure functions of one immutable view.

- complete(T, E): no commit can land in T at or below E any more.
- valid(T, E): T at E equals its defining query over its upstreams at E. Complete is not enough: a job that merged
  boundaries is complete between them, but reflects no change between them.

T is valid only if all its ancestors are valid. So the epochs valid for a set of tables are those at which each table of
its *closure* (the set with all ancestors) passes its local test: it has a commit c <= E, and no upstream changed in
(c, E]. All searches use this test, by binary search or on whole arrays; none iterates over boundaries.

The upstreams of a view that was replaced are those of the query that it had at the epoch (`at`). All views of one
replacement change at one epoch, so the tables have no cycle at any epoch, although they may have one over all epochs.

The data of a finished table has ended with its last commit. No commit lands in it any more, and later changes of its
upstreams (a drained job may end before them) are not its input: from then on it is complete and valid by itself.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from epochlog.errors import TableNotFound
from epochlog.store.metadata.lag_bound import GLOBAL_MAX_LAG_MS
from epochlog.store.types.epoch import to_unix_ms
from epochlog.store.types.epoch_set import (
    FAR,
    Intervals,
    coalesce,
    first_after,
    intersect,
    newest_at,
    next_after,
    or_from,
    single,
)

from .explain import hindrances
from .global_membership import Membership, membership
from .lag import oldest_unreflected, unreflected_of_newest
from .table_epochs import TableEpochs, TableRef

SWEEPS = 4
"""Number of sweeps by binary search before `largest_valid_at_most` searches whole arrays."""


@dataclass(frozen=True, eq=False)
class EpochView:
    """Epochs of tables from one atomic read of the catalog. Arguments name a table by id or by name; an unknown table
    raises TableNotFound.
    """

    last_epoch: int
    clock_ms: int
    tables: Mapping[int, TableEpochs]
    store_id: str = ""
    global_max_lag_ms: int = GLOBAL_MAX_LAG_MS

    def __post_init__(self) -> None:
        if not isinstance(self.tables, _TablesAt):
            object.__setattr__(self, "tables", MappingProxyType(dict(self.tables)))

    @cached_property
    def ids(self) -> Mapping[str, int]:
        """Return the table ids by name."""
        return {table.name: table.table_id for table in self.tables.values()}

    def table(self, ref: TableRef) -> TableEpochs:
        """Return the epochs of a table; raise TableNotFound if the view does not have it."""
        table = self.tables.get(ref if isinstance(ref, int) else self.ids.get(ref, -1))
        if table is None:
            raise TableNotFound(
                f"there is no table {ref!r} here; the tables are: {', '.join(sorted(self.ids)) or 'none'}"
            )
        return table

    @cached_property
    def membership(self) -> Membership:
        """Return the members of `global` and their common epoch. The view must have all tables."""
        return membership(self)

    # ---- earlier queries of views --------------------------------------------------------------------------------

    def at(self, epoch: int) -> EpochView:
        """Return the view in which each table has the upstreams of its query at `epoch`, and no earlier queries."""
        if not self._query_ends:
            return self
        place = bisect_right(self._query_ends, epoch)
        until = self._query_ends[place] if place < len(self._query_ends) else int(FAR)
        if until not in self._by_query_end:
            self._by_query_end[until] = self._with_upstreams(until - 1)
        return self._by_query_end[until]

    @property
    def present(self) -> EpochView:
        """Return the view in which each table has the upstreams of which its newest commit is."""
        return self._present if self._query_ends else self

    @cached_property
    def _present(self) -> EpochView:
        return self._with_upstreams(None)

    def _with_upstreams(self, epoch: int | None) -> EpochView:
        """Return the view with the upstreams at `epoch`, None: at each table's position."""
        view = replace(self, tables=_TablesAt(self.tables, epoch))
        view.__dict__["ids"] = self.ids
        return view

    @cached_property
    def _query_ends(self) -> list[int]:
        """Return the epochs at which views were replaced, ascending."""
        return sorted({until for table in self.tables.values() for until, _ in table.former})

    @cached_property
    def _by_query_end(self) -> dict[int, EpochView]:
        return {}

    def _spans(self, refs: Iterable[TableRef], lo: int, hi: int) -> list[tuple[int, int]]:
        """Divide [lo, hi] into the parts between replacements of these tables and their ancestors, ascending."""
        ends, stack, visited = set[int](), [self.table(ref) for ref in refs], set[int]()
        while stack:
            table = stack.pop()
            if table.table_id not in visited:
                visited.add(table.table_id)
                ends.update(until for until, _ in table.former if lo < until <= hi)
                stack += [self.tables[up] for up in table.lineage if up in self.tables]
        starts = [lo, *sorted(ends)]
        return list(zip(starts, [*(start - 1 for start in starts[1:]), hi], strict=True))

    # ---- ancestry ------------------------------------------------------------------------------------------------

    def closure(self, refs: Iterable[TableRef]) -> tuple[TableEpochs, ...]:
        """Return these tables and their ancestors, each once, upstreams before their readers."""
        order: dict[int, TableEpochs] = {}
        stack = [(self.table(ref), False) for ref in refs][::-1]
        visited: set[int] = set()
        while stack:
            table, ready = stack.pop()
            if ready:
                order[table.table_id] = table
            elif table.table_id not in visited:
                visited.add(table.table_id)
                stack.append((table, True))
                stack.extend((self.table(up), False) for up in table.upstreams if up not in visited)
        return tuple(order.values())

    def needed(self, refs: Iterable[TableRef]) -> tuple[tuple[TableEpochs, int], ...]:
        """Return the closure, each table with the last of its epochs that can have an effect on these tables.

        That is FAR, but for an ancestor that reaches them through finished tables only: these take in nothing after
        their last commit. Example: `daily` reads `raw`, and finished at 40: commits of `raw` after 40 change nothing.
        """
        refs = list(refs)
        closure = self.closure(refs)
        until = {self.table(ref).table_id: int(FAR) for ref in refs}
        for table in reversed(closure):
            through = until[table.table_id]
            if table.ended:
                through = min(through, table.position)
            for up in table.upstreams:
                until[up] = max(until.get(up, 0), through)
        return tuple((table, until[table.table_id]) for table in closure)

    # ---- complete ------------------------------------------------------------------------------------------------

    @cached_property
    def _complete_through(self) -> dict[int, int]:
        """Return `complete_through` of every table, upstreams first."""
        out: dict[int, int] = {}
        for table in self.present.closure(self.tables):
            position = table.position
            if not table.derived or table.ended:
                out[table.table_id] = self.last_epoch
            elif not position:
                out[table.table_id] = 0
            else:
                ups = [min(out[up], self._first_missing(table, self.tables[up]) - 1) for up in table.upstreams]
                out[table.table_id] = max(position, min(ups, default=self.last_epoch))
        return out

    def _first_missing(self, table: TableEpochs, up: TableEpochs) -> int:
        """Return the first epoch after the table's newest commit at which it may lack data of one upstream."""
        due = table.due_past(table.position)
        if due is None:
            return up.first_change(table.position)
        return due if up.known_from > table.position else min(due, up.first_change(table.position))

    def complete_through(self, ref: TableRef) -> int:
        """Return the largest epoch through which the table is complete; 0 for a derived table without a commit."""
        return self._complete_through[self.table(ref).table_id]

    def complete(self, ref: TableRef, epoch: int) -> bool:
        """Return True if no commit can land in the table at or below `epoch` any more."""
        return epoch <= self.complete_through(ref)

    # ---- valid ---------------------------------------------------------------------------------------------------

    def valid(self, ref: TableRef, epoch: int) -> bool:
        """Return True if the table is valid at `epoch`. Retention may have removed its rows there."""
        if not self.table(ref).root_begin <= epoch <= self.last_epoch:
            return False
        view = self.at(epoch)
        return all(epoch >= until or view._local_end(table, epoch) >= epoch for table, until in view.needed([ref]))

    def valid_intervals(self, ref: TableRef) -> Intervals:
        """Return all valid epochs, also below the safe epoch: (starts, ends), int64, inclusive, sorted, disjoint."""
        return self.common_valid([ref], self.table(ref).root_begin, self.last_epoch)

    def common_valid(self, refs: Iterable[TableRef], lo: int, hi: int) -> Intervals:
        """Return the epochs of [lo, hi] that are valid for all these tables, in the form of `valid_intervals`."""
        refs, lo, hi = list(refs), max(lo, 0), min(hi, self.last_epoch)
        if self._query_ends and lo <= hi:
            spans = [self.at(end).common_valid(refs, start, end) for start, end in self._spans(refs, lo, hi)]
            return coalesce((np.concatenate([s for s, _ in spans]), np.concatenate([e for _, e in spans])))
        out = single(lo, hi)
        for table, until in self.needed(refs):
            if table.tested and len(out[0]) and out[0][0] < until:
                intervals = self._local_intervals(table, int(out[0][0]), int(out[1][-1]))
                out = intersect(out, intervals if until == FAR else or_from(intervals, until))
        return coalesce(out)

    def largest_valid_at_most(
        self,
        refs: Iterable[TableRef],
        epoch: int | None = None,
        *,
        read: Iterable[TableRef] | None = None,
        lowest: int = 0,
    ) -> int | None:
        """Return the largest epoch <= `epoch` (None: any) that is valid for all these tables; None if there is none.

        It is at or above `lowest` and the safe epochs of the tables `read` (default: `refs`). The rows of their
        ancestors are not needed, so the safe epochs of these do not count.
        """
        refs = list(refs)
        lowest = max(lowest, self.safe_epoch_of(refs if read is None else read))
        if self._query_ends:
            return self._largest_of_spans(refs, epoch, lowest)
        needed = [(table, until) for table, until in self.needed(refs) if table.tested]
        candidate = start = self.last_epoch if epoch is None else min(epoch, self.last_epoch)
        for _ in range(SWEEPS):
            previous = candidate
            for table, until in needed:
                candidate = self._local_end(table, candidate) if candidate < until else candidate
                if candidate < lowest:
                    return None
            if candidate == previous:
                return candidate if candidate >= lowest else None
        return self._largest_in_windows(refs, lowest, candidate, max(start - candidate, 1))

    def _largest_of_spans(self, refs: list[TableRef], epoch: int | None, lowest: int) -> int | None:
        """Return `largest_valid_at_most`, searching between the replacements of views from the newest span on."""
        high = self.last_epoch if epoch is None else min(epoch, self.last_epoch)
        for start, end in reversed(self._spans(refs, lowest, high) if lowest <= high else ()):
            valid = self.at(end).largest_valid_at_most(refs, end, read=(), lowest=start)
            if valid is not None:
                return valid
        return None

    def safe_epoch_of(self, refs: Iterable[TableRef]) -> int:
        """Return the lowest epoch at which all these tables can be read, and the root tables among them exist."""
        return max((max(self.table(ref).safe_epoch, self.table(ref).root_begin) for ref in refs), default=0)

    def _largest_in_windows(self, refs: list[TableRef], lowest: int, high: int, width: int) -> int | None:
        """Return the largest valid epoch in [lowest, high], searching growing windows of whole arrays; None if there is
        none. For tables whose valid epochs interleave badly.
        """
        while high >= lowest:
            lo = max(lowest, high - width)
            ends = self.common_valid(refs, lo, high)[1]
            if len(ends):
                return int(ends[-1])
            high, width = lo - 1, width * 16
        return None

    def _local_end(self, table: TableEpochs, epoch: int) -> int:
        """Return the largest epoch <= `epoch` through which the table's newest commit at `epoch` passes the local test;
        -1: none.
        """
        if not table.derived:
            return epoch if epoch >= table.adopted else -1
        if not table.upstreams:
            return epoch if newest_at(table.commits, epoch) else -1
        commit = newest_at(table.commits, epoch)
        if table.ended and commit == table.position:
            return epoch
        ups = [self.tables[up] for up in table.upstreams]
        due = table.due_past(commit)
        if not commit or commit < table.traced_from or (due is None and any(up.known_from > commit for up in ups)):
            return -1
        ends = [first_after(up.changes, commit) - 1 for up in ups]
        return min(epoch, epoch if due is None else due - 1, first_after(table.superseded, commit) - 1, *ends)

    def _local_intervals(self, table: TableEpochs, lo: int, hi: int) -> Intervals:
        """Return the epochs around [lo, hi] at which a derived table passes its local test."""
        if not table.derived:
            return single(table.adopted, self.last_epoch)
        begin = max(int(table.commits.searchsorted(lo, "right")) - 1, 0)
        stop = int(table.commits.searchsorted(hi, "right"))
        starts = table.commits[begin:stop]
        if not len(starts):
            return single(1, 0)
        known_from = [table.traced_from, *(self.tables[up].known_from for up in table.upstreams)]
        begin = int(starts.searchsorted(max(known_from)))
        last = table.ended and int(starts[-1]) == table.position
        due = table.due_past(int(starts[-1]))
        starts = starts[min(begin, len(starts) - 1) if last or due is not None else begin :]
        if not len(starts):
            return single(1, 0)
        ends = np.minimum(np.append(starts[1:] - 1, self.last_epoch), next_after(table.superseded, starts) - 1)
        for up in table.upstreams:
            ends = np.minimum(ends, next_after(self.tables[up].changes, starts) - 1)
        if last:
            ends[-1] = self.last_epoch
        elif due is not None:
            ends[-1] = min(int(ends[-1]), due - 1)
        return starts, ends

    # ---- lag and reasons -----------------------------------------------------------------------------------------

    @property
    def unreflected(self) -> Mapping[int, int]:
        """Return for the newest state of each table the oldest change that it does not reflect; FAR for none."""
        return self._unreflected

    @cached_property
    def _unreflected(self) -> Mapping[int, int]:
        return unreflected_of_newest(self)

    @property
    def root_changes(self) -> dict[tuple[int, int], int]:
        """Return the memory of `lag`: the oldest root change of changes, by table and epoch."""
        return self._root_changes

    @cached_property
    def _root_changes(self) -> dict[tuple[int, int], int]:
        return {}

    def lag_ms(self, ref: TableRef, epoch: int | None = None) -> int:
        """Return the lag of a read of the table at `epoch` (None: its newest state) in milliseconds; 0: no lag.

        The lag is the age, by the view's clock, of the oldest change of the table or its ancestors that the rows do not
        reflect. A change of an upstream counts from the root change that caused it.
        """
        oldest = oldest_unreflected(self, self.table(ref), epoch)
        return 0 if oldest is None else max(0, self.clock_ms - to_unix_ms(oldest))

    def why_not(self, refs: Iterable[TableRef], epoch: int) -> list[str]:
        """Explain why these tables cannot be read together at `epoch`: one sentence per table; [] if they can."""
        return hindrances(self, list(refs), epoch)


class _TablesAt(Mapping[int, TableEpochs]):
    """Tables with the upstreams of their queries at an epoch (None: at each table's position), made when asked for."""

    def __init__(self, tables: Mapping[int, TableEpochs], epoch: int | None) -> None:
        self._tables = tables
        self._epoch = epoch
        self._known: dict[int, TableEpochs] = {}

    def __getitem__(self, table_id: int) -> TableEpochs:
        table_then = self._known.get(table_id)
        if table_then is None:
            table = self._tables[table_id]
            upstreams = table.upstreams_at(table.position if self._epoch is None else self._epoch)
            table_then = self._known[table_id] = (
                replace(table, upstreams=upstreams, former=()) if table.former else table
            )
        return table_then

    def __iter__(self) -> Iterator[int]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)
