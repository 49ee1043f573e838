"""Base of the contexts of all refreshes: one writer for each output; all of them are kept, or all are dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from epochlog.errors import InvalidInput, SchemaMismatch
from epochlog.store.env.files import Files
from epochlog.store.env.process_local import OneProcess
from epochlog.store.sst.segment import Segment
from epochlog.store.sst.segment_writer import WriteTarget, remove_segments

from .barrier import Barrier
from .refresh_plan import RefreshPlan


class OutputWriter(Protocol):
    """Writes rows of one output."""

    def finish(self) -> list[Segment]: ...
    def discard(self) -> None: ...


W = TypeVar("W", bound=OutputWriter)


class RefreshContext(OneProcess, Generic[W]):
    """The side of a context that its runner ends: `_over` after the refresh, then `_finish` or `_discard`."""

    _instead = "read what the function needs before, and give it as rows, or join with the frames that ctx gives"

    def __init__(self, files: Files, run: RefreshPlan, make_writer: Callable[[WriteTarget], W]) -> None:
        self._files = files
        self._run = run
        self._make_writer = make_writer
        self._writers: dict[str, W] = {}
        self._written: set[str] = set()  # outputs of which a write has succeeded
        self._finished: dict[str, list[Segment]] = {}
        self._over = False

    @property
    def barrier(self) -> Barrier:
        """The barrier: `.prev` and `.curr` are epochs, the changes are those of (prev, curr]; `.kind` is "initial" when
        the outputs are made from nothing (prev is 0), else "checkpoint".
        """
        return self._run.barrier

    def _writer(self, output: str) -> W:
        if self._over:
            raise self._run.late_write()
        if output not in self._writers:
            self._writers[output] = self._make_writer(self._run.output(output).target)
        return self._writers[output]

    @contextmanager
    def _writing(self, output: str) -> Iterator[W]:
        """Give the writer of an output, and note that it has been written when the block ends well."""
        with self._naming_job():
            yield self._writer(output)
        self._written.add(output)

    @contextmanager
    def _naming_job(self) -> Iterator[None]:
        """Name the job in a SchemaMismatch, which names the output alone."""
        try:
            yield
        except SchemaMismatch as error:
            raise SchemaMismatch(f"job {self._run.job.name!r}: {error}") from error

    def _require_unwritten(self, output: str) -> None:
        """Raise InvalidInput when this refresh has written the output: `recompute` would leave those rows there."""
        if self._over:
            raise self._run.late_write()
        if output in self._written:
            raise InvalidInput(
                f"this refresh has written {output!r} already, and recompute replaces only what the output had before: "
                "call recompute once for an output, with all its groups, and before any upsert or delete of it"
            )

    def _only_upstream(self, output: str, by: Sequence[str]) -> str:
        """Return the upstream whose changes tell which groups of the output are touched, where nobody else does."""
        upstreams = self._run.upstreams
        if len(upstreams) > 1:
            raise InvalidInput(
                f"job {self._run.job.name!r} reads {sorted(upstreams)}, and a change of each may touch a group: call "
                f"recompute({output!r}, …, touched=groups) with the values of {list(by)} that ctx.touched tells of each"
            )
        ((name, upstream),) = upstreams.items()
        missing = [column for column in by if column not in upstream.table.schema.schema.names]
        if missing:
            raise InvalidInput(
                f"recompute({output!r}): its upstream {name!r} has no column {missing[0]!r}; make the touched groups "
                f"of those that ctx.touched({name!r}, …) tells, and give them with touched="
            )
        return name

    def _finish(self) -> dict[str, list[Segment]]:
        for name, writer in self._writers.items():
            self._finished[name] = writer.finish()
        return self._finished

    def _end(self) -> None:
        """End the context: the refresh is committed, or never will be."""

    def _discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()
        remove_segments(self._files, (segment for segments in self._finished.values() for segment in segments))
