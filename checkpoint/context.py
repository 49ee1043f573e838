"""What every refresh writes through, with Spark and without: one writer for each output, all kept or all dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ..store.files import Files
from ..store.segment import Segment
from ..store.writer import WriteTarget, remove_segments
from .barrier import Barrier
from .barrier_run import BarrierRun


class OutputWriter(Protocol):
    """Writes rows of one output."""

    def finish(self) -> list[Segment]: ...
    def discard(self) -> None: ...


W = TypeVar("W", bound=OutputWriter)


class RefreshContext(Generic[W]):
    """The side of a context that its runner ends: `_over` after the refresh, then `_finish` or `_discard`."""

    def __init__(self, files: Files, run: BarrierRun, make_writer: Callable[[WriteTarget], W]) -> None:
        self._files = files
        self._run = run
        self._make_writer = make_writer
        self._writers: dict[str, W] = {}
        self._finished: dict[str, list[Segment]] = {}
        self._over = False

    @property
    def barrier(self) -> Barrier:
        """The barrier: .prev .curr .kind."""
        return self._run.barrier

    def _writer(self, output: str) -> W:
        if self._over:
            raise self._run.late_write()
        if output not in self._writers:
            self._writers[output] = self._make_writer(self._run.output(output).target)
        return self._writers[output]

    def _finish(self) -> dict[str, list[Segment]]:
        for name, writer in self._writers.items():
            self._finished[name] = writer.finish()
        return self._finished

    def _discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()
        remove_segments(self._files, (segment for segments in self._finished.values() for segment in segments))
