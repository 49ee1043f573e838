"""Graph of tables and jobs as lines: each job below a table that it reads, each output below its job (pure).

A job with several upstreams stands below the upstream with the longest path from a root table; below the others, a line
refers to that place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from epochlog.facts.store import Facts

TEE, ELBOW, BAR, GAP = "├─ ", "└─ ", "│  ", "   "


@dataclass(frozen=True, slots=True)
class GraphLine:
    """Line of the graph; `indent` draws the branches. A job is drawn below its `home`; below its other upstreams, a
    line of kind `elsewhere` refers to it.
    """

    indent: str
    kind: Literal["root", "job", "output", "elsewhere"]
    name: str
    home: str | None = None

    @property
    def text(self) -> str:
        if self.kind == "elsewhere":
            return f"{self.indent}job {self.name}, below {self.home}"
        return f"{self.indent}job {self.name}" if self.kind == "job" else f"{self.indent}{self.name}"


def graph(jobs: Sequence[Facts]) -> Iterator[GraphLine]:
    """Yield the lines of the jobs (name, upstreams, outputs) and of their tables. Unread root tables are left out."""
    by_name = {job["name"]: job for job in jobs}
    home = _homes(jobs)
    readers: dict[str, list[str]] = {}
    for name in sorted(by_name):
        for upstream in by_name[name]["upstreams"]:
            readers.setdefault(upstream, []).append(name)
    outputs = {table for job in jobs for table in job["outputs"]}
    stack = [("", GraphLine("", "root", table)) for table in sorted(set(readers) - outputs, reverse=True)]
    while stack:
        below, line = stack.pop()
        yield line
        if line.kind == "job":
            children = [GraphLine("", "output", table) for table in by_name[line.name]["outputs"]]
        elif line.kind == "elsewhere":
            children = []
        else:
            reader_jobs = readers.get(line.name, [])
            at_home = {name: home[name] == line.name for name in reader_jobs}
            children = [
                GraphLine("", "job" if is_home else "elsewhere", name, home[name]) for name, is_home in at_home.items()
            ]
        for place, child in enumerate(reversed(children)):
            branch, bar = (TEE, BAR) if place else (ELBOW, GAP)
            stack.append((below + bar, replace(child, indent=below + branch)))


def _homes(jobs: Sequence[Facts]) -> Mapping[str, str]:
    """Return by job name the upstream below which the job is drawn."""
    writer = {table: job for job in jobs for table in job["outputs"]}
    depth: dict[str, int] = {}  # by table: jobs on the longest path from a root table
    stack = [table for job in jobs for table in job["outputs"]]
    while stack:
        table = stack[-1]
        ups = writer[table]["upstreams"] if table in writer else ()
        unknown = [up for up in ups if up not in depth]
        if unknown:
            stack += unknown
            continue
        depth[stack.pop()] = 1 + max((depth[up] for up in ups), default=-1)
    return {job["name"]: max(job["upstreams"], key=lambda up: (depth[up], up)) for job in jobs}
