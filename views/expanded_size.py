"""Size of a view's query with each CTE in the place of each of its reads, found before anything is expanded (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from epochlog.errors import LimitExceeded
from epochlog.store.types.schema import TableSchema

from . import syntax

MOST_NODES = 20_000
"""Nodes of the expanded tree of a new query: expressions, clauses, and the columns that a * stands for; names are none.
"""


@dataclass(frozen=True, slots=True)
class _Size:
    """Nodes of the expanded tree of a query, and the number of its columns."""

    nodes: int
    columns: int


def require_expandable(query: exp.Query, tables: Mapping[str, TableSchema]) -> None:
    """Raise LimitExceeded for a query whose expanded tree has more than MOST_NODES nodes.

    The work is that of one walk over the query as it is written: a CTE is measured once, however often it is read.
    """
    measure = _Measure({name.lower(): len(table.schema) for name, table in tables.items()})
    nodes = measure.of(query, {}).nodes
    if nodes > MOST_NODES:
        raise LimitExceeded(
            f"the query has {nodes:,} parts when each CTE stands where it is read, more than {MOST_NODES:,}; "
            f"{measure.largest_in(query)}; make it a view of its own, which this one reads as a table"
        )


class _Measure:
    """Measurement of one query. widths: the number of columns of each table."""

    def __init__(self, widths: Mapping[str, int]) -> None:
        self._widths = widths
        self._parts: list[tuple[bool, str, int]] = []  # of each CTE and subquery: is a CTE, its name, its nodes

    def of(self, query: exp.Expr, ctes: Mapping[str, _Size]) -> _Size:
        clause, ctes = query.args.get("with_"), dict(ctes)
        for cte in clause.expressions if clause is not None else ():
            ctes[cte.alias.lower()] = self.of(cte.this, ctes)
            self._parts.append((True, cte.alias, ctes[cte.alias.lower()].nodes))
        own = [node for node in syntax.walk(query) if not isinstance(node, exp.Identifier)]
        read, inner, sources = list[_Size](), list[_Size](), dict[str, int]()
        for node in own:
            if isinstance(node, exp.Query) and node is not query and not isinstance(node.parent, exp.CTE):
                inner.append(self.of(node, ctes))
                self._parts.append((False, node.alias_or_name, inner[-1].nodes))
                sources[node.alias_or_name.lower()] = inner[-1].columns
            elif isinstance(node, exp.Table):
                size = ctes.get(node.name.lower()) or _Size(0, self._widths.get(node.name.lower(), 0))
                read.append(size)
                sources[node.alias_or_name.lower()] = size.columns
        outputs = query.expressions if isinstance(query, exp.Select) else []
        columns = sum(_width(output, sources) for output in outputs) if outputs else inner[0].columns if inner else 0
        return _Size(len(own) + columns + sum(size.nodes for size in (*read, *inner)), columns)

    def largest_in(self, query: exp.Query) -> str:
        """Describe the CTE whose reads stand for most nodes; without one, the largest subquery."""
        reads = Counter(table.name.lower() for table in query.find_all(exp.Table))
        ctes = [(reads[name.lower()], nodes, name) for is_cte, name, nodes in self._parts if is_cte]
        if ctes:
            times, nodes, name = max(ctes, key=lambda cte: (cte[0] > 1, cte[0] * cte[1]))
            return f"the CTE {name!r} is written {times} time{'s' * (times != 1)} and has {nodes:,} parts each time"
        nodes, name = max(((nodes, name) for _, name, nodes in self._parts), default=(0, ""))
        return f"its largest subquery {f'{name!r} ' if name else ''}has {nodes:,}"


def _width(output: exp.Expr, sources: Mapping[str, int]) -> int:
    """Return the number of columns of one output of SELECT."""
    if isinstance(output, exp.Star):
        return sum(sources.values())
    if isinstance(output, exp.Column) and isinstance(output.this, exp.Star):
        return sources.get(output.table.lower(), 0)
    return 1
