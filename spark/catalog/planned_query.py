"""Planned queries: epochs that are chosen when Spark builds the scans of a query, once for all of its scans.

Spark loads most tables of a query again just before it optimises the query (Spark 4.0 does not, so there the scans load
them again). It loads the changes of a table, and a
table at a moment that the query names, only when it analyses the frame that names them, one after the other and perhaps
long before. So the scans choose the end of those changes, and agree on the epochs of a moment. The scans of one query
share Spark's tracker of its planning, on whatever threads and in whatever order it builds them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import count
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from py4j.protocol import Py4JJavaError

from epochlog.errors import InvalidInput

from .jvm import Jvm, Proxy
from .query_epochs import CatalogTables, LoadedTable, NamedMoment, QueryEpochs

S = TypeVar("S", bound=Proxy)

PARSING = "parsing"
"""Phase that Spark's tracker has for a statement, and not for a frame that is made of others."""
MOST_WITHOUT_SCANS = 100
"""Most statements with a time that are kept before their first scan."""


class PlannedQuery:
    """Query epochs of the scans of one query: those of the tables that Spark has loaded, else chosen when needed."""

    def __init__(self, jvm: Jvm, tables: CatalogTables) -> None:
        self._jvm = jvm
        self._tables = tables
        self._lock = Lock()
        self._newest: QueryEpochs | None = None
        self._one_moment = True
        self._moments: dict[NamedMoment, QueryEpochs] = {}
        self._now_ms: int | None = None
        self._filters: list[Any] = []
        self._scans: WeakValueDictionary[str, Proxy] = WeakValueDictionary()
        self._read: dict[int, int] = {}

    def read_at(self, table_id: int) -> int | None:
        """Return the oldest epoch at which the query reads a table, of those that it does not name; None if it does not
        read it so.
        """
        with self._lock:
            return self._read.get(table_id)

    def take(self, table: LoadedTable) -> LoadedTable:
        """Return the table at the epoch at which the query reads it: one choice for each moment that the query names.

        Raises TableNotFound, TableNotReadable.
        """
        taken = self._take(table)
        if taken.chosen is not None and taken.moment is None:
            with self._lock:
                table_id, epoch = taken.definition.id, taken.rows_at
                self._read[table_id] = min(epoch, self._read.get(table_id, epoch))
        return taken

    def _take(self, table: LoadedTable) -> LoadedTable:
        chosen = table.chosen
        if chosen is None:
            return table
        with self._lock:
            if table.moment is not None:
                first = self._moments.setdefault(table.moment, chosen)
                return replace(table, epoch=first.epoch_of(table.definition), chosen=first)
            if not self._jvm.loads_again:
                if self._newest is None:
                    self._newest = self._tables.newest()
                return self._tables.load_again(table, self._newest)
            if self._newest is None:
                self._newest = chosen
            elif chosen is not self._newest and chosen != self._newest:
                self._one_moment = False
            return table

    def first_of(self, scan: S) -> S:
        """Return the first scan of the query that is equal to this one."""
        with self._lock:
            first: Any = self._scans.setdefault(scan.identity(), scan)
            return first

    def number_of(self, filters: Any) -> int:
        """Return the number of an array of Java's filters in this query; equal arrays have one number."""
        with self._lock:
            for number, known in enumerate(self._filters):
                if self._jvm.equal_arrays(known, filters):
                    return number
            self._filters.append(filters)
            return len(self._filters) - 1

    def one_now(self, unix_ms: int) -> int:
        """Return the first time with which this was called, for times since the query began: they are one moment."""
        with self._lock:
            if self._now_ms is None:
                self._now_ms = unix_ms
            return self._now_ms

    def newest(self) -> QueryEpochs:
        """Return the query epochs of the query's tables; chosen now if it has none. Call it when all scans are built.

        Raises InvalidInput if Spark has loaded the tables at several moments.
        """
        with self._lock:
            if not self._one_moment:
                raise InvalidInput(
                    "Spark has loaded the tables of this query at several moments, so CHANGES without an end has none "
                    "to end at: write CHANGES FROM VERSION … TO VERSION …"
                )
            if self._newest is None:
                self._newest = self._tables.newest()
            return self._newest


class PlannedQueries:
    """Queries that Spark plans, and those whose scans are in use, by Spark's tracker of their planning."""

    def __init__(self, jvm: Jvm, tables: CatalogTables) -> None:
        self._jvm = jvm
        self._tables = tables
        self._numbers = jvm.weak_map()
        self._next = count()
        self._queries: WeakValueDictionary[int, PlannedQuery] = WeakValueDictionary()
        self._last: deque[PlannedQuery] = deque(maxlen=MOST_WITHOUT_SCANS)

    def current(self) -> PlannedQuery:
        """Return the query for which this thread builds a scan. The scan must keep it."""
        tracker = self._tracker()
        return PlannedQuery(self._jvm, self._tables) if tracker is None else self._of(tracker)

    def moment_of(self, unix_ms: int) -> NamedMoment:
        """Return the moment of a time that the query on this thread names.

        Spark evaluates each current_timestamp() of a statement by itself, so all times since the statement began are
        one moment.
        """
        tracker = self._tracker()
        parsing = None if tracker is None else tracker.phases().get(PARSING)
        if parsing is None or parsing.isEmpty() or unix_ms < parsing.get().startTimeMs():
            return NamedMoment(unix_ms=unix_ms)
        query = self._of(tracker)
        self._last.append(query)
        return NamedMoment(unix_ms=query.one_now(unix_ms))

    def _of(self, tracker: Any) -> PlannedQuery:
        number = self._numbers.get(tracker)
        if number is None:
            number = next(self._next)
            self._numbers.put(tracker, number)
        return self._queries.setdefault(number, PlannedQuery(self._jvm, self._tables))

    def _tracker(self) -> Any:
        """Return Spark's tracker; None for a stream, which asks for its source outside of any planning."""
        try:
            return self._jvm.planning_tracker().get()
        except Py4JJavaError:
            return None
