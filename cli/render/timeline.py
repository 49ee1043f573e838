"""Drawing of a timeline for a terminal (pure): a lane for each table, for the epochs at which all tables can be read
together, and for each policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from epochlog.facts.timeline import Landed, State, Stretch, Timeline

NARROWEST, LONGEST_NAME = 3, 28


LANDED: Mapping[Landed, str] = {"rows": "●", "empty": "○", "label": "•"}
STATES: Mapping[State, str] = {"valid": "─", "behind": "╌", "gone": "░", "none": " "}
READABLE, READS, BACK = "█", "▲", "◀"
"""Marks: all tables can be read together; a policy reads here; a policy reads before the first drawn stretch."""
LEGEND = (
    (LANDED["rows"], "rows landed"),
    (LANDED["empty"], "a commit without rows"),
    (2 * STATES["valid"], "reflects its upstreams"),
    (2 * STATES["behind"], "is behind"),
    (2 * STATES["gone"], "below the safe epoch"),
    (READABLE, "all can be read together"),
    (READS, "a policy reads here"),
)


@dataclass(frozen=True, slots=True)
class TimelineLane:
    """Lane of the drawing: a name, then a cell for each stretch."""

    kind: Literal["numbers", "table", "ancestor", "readable", "policy", "gap"]
    name: str
    drawn: str

    def text(self, width: int) -> str:
        """Return the lane as text, with the name in a column of `width` characters."""
        return f"{self.name:<{width}}  {self.drawn}".rstrip()


def picture(timeline: Timeline, choices: Mapping[str, Sequence[int]], width: int) -> tuple[int, list[TimelineLane]]:
    """Draw the timeline; return the width of the names, and the lanes. A long timeline continues in further blocks
    below, each at most `width` columns wide.

    choices: the epochs of each policy; policies that read at equal epochs share a lane.
    """
    short_names = {name: _shorten(name) for name in (*timeline.tables, *timeline.ancestors)}
    policies = dict(_group_policies(choices))
    names = max(map(len, [*short_names.values(), *policies, "all together"]), default=0)
    cell = max(NARROWEST, len(str(len(timeline.stretches))) + 1)
    at_once = max(1, (width - names - 2) // cell)
    lanes: list[TimelineLane] = []
    for begin in range(0, len(timeline.stretches), at_once):
        if begin:
            lanes.append(TimelineLane("gap", "", ""))
        stretches = timeline.stretches[begin : begin + at_once]
        lanes += _block_lanes(timeline, short_names, policies, begin, stretches, cell)
    return names, lanes


def _block_lanes(
    timeline: Timeline,
    short_names: Mapping[str, str],
    policies: Mapping[str, Sequence[int]],
    begin: int,
    stretches: Sequence[Stretch],
    cell: int,
) -> Iterator[TimelineLane]:
    yield TimelineLane("numbers", "", "".join(f"{begin + place:<{cell}}" for place in range(1, len(stretches) + 1)))
    for name in timeline.tables:
        yield TimelineLane(
            "table", short_names[name], "".join(_stretch_cell(name, stretch, cell) for stretch in stretches)
        )
    for name in timeline.ancestors:
        yield TimelineLane(
            "ancestor", short_names[name], "".join(_stretch_cell(name, stretch, cell) for stretch in stretches)
        )
    marks = ((READABLE if stretch.readable else " ") * cell for stretch in stretches)
    yield TimelineLane("readable", "all together", "".join(marks))
    oldest = timeline.stretches[0].first
    for name, epochs in policies.items():
        drawn = "".join(_policy_mark(stretch, epochs, oldest).ljust(cell) for stretch in stretches)
        if drawn.strip():
            yield TimelineLane("policy", name, drawn)


def _stretch_cell(name: str, stretch: Stretch, cell: int) -> str:
    fill = STATES[stretch.states[name]] * cell
    landed = stretch.landed.get(name)
    return LANDED[landed] + fill[1:] if landed else fill


def _policy_mark(stretch: Stretch, epochs: Sequence[int], oldest: int) -> str:
    if any(stretch.first <= epoch <= stretch.last for epoch in epochs):
        return READS
    return BACK if stretch.first == oldest and any(epoch < oldest for epoch in epochs) else ""


def _group_policies(choices: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, Sequence[int]]]:
    by_epochs: dict[tuple[int, ...], list[str]] = {}
    for policy, epochs in ((policy, epochs) for policy, epochs in choices.items() if epochs):
        by_epochs.setdefault(tuple(sorted(set(epochs))), []).append(policy)
    for epochs, policies in by_epochs.items():
        for at in range(0, len(policies), 3):
            yield ", ".join(policies[at : at + 3]), epochs


def _shorten(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 2] + ".."
