"""Query groups: the loads of one query, which share their query epochs.

Spark loads the tables of a query one by one, and does not say for which query. A load belongs to the group of the load
before it on the same thread, unless

- the thread has built a scan since then: that query is planned;
- the group has loaded this table already: within one query Spark keeps each table that it has loaded. Its changes, or
  the table as the target of a write, may be loaded beside it;
- the analyzer's cache of relations, or the id of the execution, is another one.

PySpark pins threads, so each of Spark's threads calls on a Python thread of its own. Spark loads the tables of a query
twice, in analysis and again just before optimisation, and reads the rows of the second loads.

Example: `SELECT … FROM lake.orders JOIN lake.revenue …` loads `orders` and `revenue` as one group, so both are read at
epochs that were chosen together. A second query on the thread loads `orders` again and begins a group.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .jvm import Jvm
from .query_epochs import QueryEpochs

EXECUTION_ID = "spark.sql.execution.id"
MAX_GROUPS = 1_000
"""Most groups that are kept. A group stays open if its query failed in analysis, or built no scan."""


@dataclass(slots=True)
class _Group:
    """Loads of one query on one thread."""

    relations: Any
    """Java map whose one key, compared by identity, is the analyzer's cache of relations."""
    execution: str | None
    chosen: QueryEpochs
    loaded: set[str] = field(default_factory=set[str])


class QueryGroups:
    """Query epochs of the queries that load tables now, by Java thread."""

    def __init__(self, jvm: Jvm, choose: Callable[[], QueryEpochs]) -> None:
        self._jvm = jvm
        self._choose = choose
        self._groups: OrderedDict[int, _Group] = OrderedDict()

    def epochs(self, table: str) -> QueryEpochs:
        """Return the query epochs of the query for which this thread loads a table."""
        return self._group(table).chosen

    def current(self) -> QueryEpochs:
        """Return the query epochs of the query that this thread plans, for a load that is no table: `CHANGES`, or the
        target of a write. The query may load the table of that name too: both have these epochs.
        """
        return self._group(None).chosen

    def _group(self, table: str | None) -> _Group:
        thread = threading.get_ident()
        relations = self._jvm.analysis_context().relationCache()
        execution = self._jvm.context.getLocalProperty(EXECUTION_ID)
        group = self._groups.get(thread)
        if (
            group is None
            or table in group.loaded
            or group.execution != execution
            or not group.relations.containsKey(relations)
        ):
            identities = self._jvm.identity_map()
            identities.put(relations, "")
            group = self._groups[thread] = _Group(identities, execution, self._choose())
            self._groups.move_to_end(thread)
            while len(self._groups) > MAX_GROUPS:
                self._groups.popitem(last=False)
        if table is not None:
            group.loaded.add(table)
        return group

    def end(self) -> None:
        """End the group of this thread: its query has begun to build scans."""
        self._groups.pop(threading.get_ident(), None)
