"""Rewriting the subcompactions of a task: a single one, and several of them by the threads of this process.

`RewriteSubcompactions` is the interface of the executor to those who rewrite its subcompactions. They know no catalog.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from epochlog.errors import WriteFailed
from epochlog.store.env.files import Files
from epochlog.store.env.paths import RUN_ENDING
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.version import LogEntry, Runs
from epochlog.store.sst.file_columns import compaction_schema

from .rewriter import Rewriter
from .task_record import Parts, Work

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

AT_ONCE = 2
"""Subcompactions in memory at a time."""


@dataclass(frozen=True, slots=True)
class SubcompactionRewriter:
    """Rewriter of the subcompactions of one task, from its inputs. Picklable: Spark's workers rewrite with it."""

    files: Files
    table: TableDef
    work: Work
    runs: Runs
    entries: tuple[LogEntry, ...]

    def rewrite(self, number: int, new_path: Callable[[], str]) -> Parts:
        """Write the files of a subcompaction, at these paths, and return its parts. Raises FileMissing, Corrupt,
        WriteFailed, ReadBackFailed.
        """
        task, subcompaction = self.work.task, self.work.subcompactions[number]
        schema = compaction_schema(self.table.schema, min((task.safe_epoch, *task.kept_epochs)))
        check = self.table.options.compaction_check
        rewriter = Rewriter(self.files, schema, new_path, task.safe_epoch, task.kept_epochs, check)
        if task.past_only:
            return (), tuple(rewriter.copy_past(self.runs[0], subcompaction.key_range, frozenset(task.rewritten)))
        live, history = rewriter.rewrite(
            self.runs, self.entries, subcompaction.key_range, bottom=task.bottom, rewritten=frozenset(task.rewritten)
        )
        return tuple(live), tuple(history)


RewriteSubcompactions = Callable[
    ["Handle", SubcompactionRewriter, Sequence[int]], Generator[tuple[int, Parts], None, None]
]
"""Function that rewrites these subcompactions and yields each with its parts, in any order. When the caller closes the
generator, the function deletes the files of the other subcompactions, or ends their write intent and leaves them to
vacuum.
"""


def rewrite_in_threads(
    handle: Handle, rewriter: SubcompactionRewriter, numbers: Sequence[int]
) -> Generator[tuple[int, Parts], None, None]:
    """Rewrite the subcompactions in this process, in order, AT_ONCE of them at a time.

    The next subcompaction is merged while the caller handles one, for writing keeps one core busy. Files of
    subcompactions that the caller never takes are deleted.
    """

    def rewrite(number: int) -> Parts:
        return rewriter.rewrite(number, lambda: handle.new_path(rewriter.table.id, RUN_ENDING))

    if len(numbers) == 1:
        yield numbers[0], rewrite(numbers[0])
        return
    waiting: deque[tuple[int, Future[Parts]]] = deque()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for number in numbers:
                waiting.append((number, pool.submit(rewrite, number)))
                if len(waiting) == AT_ONCE:
                    done, future = waiting.popleft()
                    yield done, future.result()
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result()
        finally:
            for _, future in waiting:
                if not future.cancel() and future.exception() is None:
                    delete_parts(handle.files, future.result())


def delete_parts(files: Files, parts: Parts) -> None:
    """Delete the files of parts that no version has taken; vacuum retries failures."""
    for part in (*parts[0], *parts[1]):
        with suppress(WriteFailed):
            files.delete(part.path)
