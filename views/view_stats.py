"""Statistics of a view: its last steps in this process, and its state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from epochlog.checkpoint.job.step_work import CommittedStep, last_steps
from epochlog.store.metadata.definitions import JobRecord
from epochlog.store.metadata.state_tables import ViewState, read_state
from epochlog.store.session.handle import Handle


@dataclass(frozen=True, slots=True)
class StateSize:
    """Size of one table of a view's state."""

    table: str
    rows: int
    """At most so many rows: versions of a row that are not merged yet count too."""
    bytes: int


@dataclass(frozen=True, slots=True)
class ViewStats:
    """Statistics of a view. `print(stats)` shows them as tables."""

    steps: tuple[CommittedStep, ...]
    """Last steps of the view in this process, oldest first, at most 20."""
    state: tuple[StateSize, ...]
    """Tables of the state of the newest commit; none without a state."""

    def __str__(self) -> str:
        return "\n".join([*self._steps(), *self._blocks(), *self._state()])

    def _steps(self) -> Iterator[str]:
        if not self.steps:
            yield "steps: none in this process"
            return
        rows = [
            [
                str(step.epoch or "chunk"), step.engine, step.work.by or step.operation, f"{step.changes:,}",
                f"{step.rows:,}", f"{step.bytes:,}", f"{step.took_ms:,}",
            ]
            for step in self.steps
        ]  # fmt: skip
        yield "steps in this process:"
        yield from _aligned([["epoch", "engine", "by", "changes", "rows written", "bytes", "ms"], *rows])

    def _blocks(self) -> Iterator[str]:
        blocks = self.steps[-1].work.blocks if self.steps else ()
        if blocks:
            yield "last step, by block of the state:"
            rows = [
                [
                    block.table, f"{block.rows:,}", f"{block.groups:,}", f"{block.recomputed:,}",
                    f"{block.bytes:,}", f"{block.took_ms:.1f}",
                ]
                for block in blocks
            ]  # fmt: skip
            yield from _aligned([["table", "rows", "groups", "recomputed", "bytes", "ms"], *rows])

    def _state(self) -> Iterator[str]:
        if self.state:
            yield "state:"
            rows = [[size.table, f"{size.rows:,}", f"{size.bytes:,}"] for size in self.state]
            yield from _aligned([["table", "rows at most", "bytes"], *rows])


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows of texts as lines with columns, of which those after the first are to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        yield "  " + "  ".join(cells)


def stats_of(handle: Handle, job: JobRecord) -> ViewStats:
    """Return the statistics of a view."""
    state = handle.catalog.read(lambda view: read_state(view, job.outputs[0]))
    is_known = state is not None and state.epoch == job.position
    sizes = tuple(_sizes(state)) if state is not None and is_known else ()
    return ViewStats(last_steps(handle.files.place, job.id), sizes)


def _sizes(state: ViewState) -> Iterator[StateSize]:
    for table in state.tables:
        yield StateSize(table.schema.name, table.rows_at_most, table.bytes)
