"""Planned queries: epochs that are chosen when Spark builds the scans of a query, once for all of its scans.

Spark loads most tables of a query again just before it optimises the query, but the changes of a table only when it
analyses the frame that names them, which may be long before. So the end of those changes is chosen with the scans.
The scans of one query share Spark's tracker of its planning, on whatever threads and in whatever order it builds them.
"""

from __future__ import annotations

from itertools import count
from threading import Lock
from weakref import WeakValueDictionary

from py4j.protocol import Py4JJavaError

from epochlog.errors import InvalidInput

from .jvm import Jvm
from .query_epochs import CatalogTables, LoadedTable, QueryEpochs


class PlannedQuery:
    """Query epochs of the scans of one query: those of the tables that Spark has loaded, else chosen when needed."""

    def __init__(self, tables: CatalogTables) -> None:
        self._tables = tables
        self._lock = Lock()
        self._newest: QueryEpochs | None = None
        self._one_moment = True

    def add(self, table: LoadedTable) -> None:
        """Take in the query epochs with which a table of the query was loaded."""
        chosen = table.chosen
        if chosen is None or table.fixed:
            return
        with self._lock:
            if self._newest is None:
                self._newest = chosen
            elif chosen is not self._newest and chosen != self._newest:
                self._one_moment = False

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
    """Queries whose scans are in use, by Spark's tracker of their planning."""

    def __init__(self, jvm: Jvm, tables: CatalogTables) -> None:
        self._jvm = jvm
        self._tables = tables
        self._numbers = jvm.weak_map()
        self._next = count()
        self._queries: WeakValueDictionary[int, PlannedQuery] = WeakValueDictionary()

    def current(self) -> PlannedQuery:
        """Return the query for which this thread builds a scan. The scan must keep it."""
        query = PlannedQuery(self._tables)
        try:
            tracker = self._jvm.planning_tracker().get()
        except Py4JJavaError:  # a stream asks for its source outside of any planning
            return query
        number = self._numbers.get(tracker)
        if number is None:
            number = next(self._next)
            self._numbers.put(tracker, number)
        return self._queries.setdefault(number, query)
