"""Chapters of a table's remembered commits: one record in place of those of many commits.

MOST_COMMITS neighbouring commits make a chapter, and up to MERGED chapters a larger one. The newest commit stays by
itself. Retention forgets a chapter as a whole, so a chapter covers little of the time for which commits are remembered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from epochlog.store.catalog.keys import table_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.env.clock import monotonic_s
from epochlog.store.metadata.chapter import Chapter
from epochlog.store.metadata.commit_log import (
    HistoryRecord,
    are_current,
    delete_commits,
    history_records,
    newest_chapter,
    put_commit,
)
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.session.handle import Handle
from epochlog.store.session.packed_through import PackedThrough
from epochlog.store.types.epoch import to_unix_ms

from . import packing


@dataclass(frozen=True, slots=True)
class ChapterTask:
    """Records of remembered commits that a chapter replaces: of single commits, or chapters."""

    records: tuple[HistoryRecord, ...]
    newer_chapters: int | None = None
    """Number of the chapters of single commits that follow, if the chapter replaces chapters."""

    def chapter(self) -> Chapter:
        """Build the chapter."""
        chapters = [record.chapter for record in self.records if record.chapter is not None]
        if chapters:
            return Chapter.joined(chapters)
        return Chapter.of([commit for record in self.records for commit in record.commits])


def write_chapters(handle: Handle, table: TableDef, limit_s: float = math.inf) -> int:
    """Put a table's remembered commits into chapters; return the number of chapters that it made. Raises TableDropped
    and Corrupt. limit_s: the time after which no further chapter begins.
    """
    began_s, count = monotonic_s(), 0
    while not count or monotonic_s() - began_s < limit_s:
        task = handle.catalog.read(lambda view: _next_task(view, table, handle.packed_history))
        if task is None:
            break
        chapter = task.chapter()
        if not handle.catalog.transact(lambda tx, of=task.records, by=chapter: _land(tx, table, of, by)):
            handle.packed_history.pop(table.id, None)
            break
        progress = handle.packed_history.get(table.id, PackedThrough())
        handle.packed_history[table.id] = progress.with_pack(chapter.epoch, task.newer_chapters)
        count += 1
    return count


def _next_task(view: ReadTxn, table: TableDef, packed: dict[int, PackedThrough]) -> ChapterTask | None:
    """Choose the records of the next chapter; None if there are none. packed: by table, how far it is; it moves."""
    table, version = get_table(view, table.id, table.name), get_version(view, table.id, table.name)
    progress = packed.get(table.id) or PackedThrough(newest_chapter(view, table.id))
    span_ms = max(table.options.least_history, table.options.log_retention).total_seconds() * 1000 / packing.SPAN
    if progress.unmerged is None or progress.unmerged >= packing.MERGED:
        chapters = _newest_chapters(history_records(view, table.id, until=progress.epoch, reverse=True))
        merged = _merged_chapters(chapters, span_ms) if len(chapters) == packing.MERGED else None
        if merged is not None:
            return merged
        progress = replace(progress, unmerged=min(len(chapters), packing.MERGED - 1))
    run: list[HistoryRecord] = []
    for record in history_records(view, table.id, progress.epoch, version.max_committed_epoch - 1):
        if record.chapter is not None or (run and _span_ms(run[0], record) > span_ms):
            if len(run) >= packing.LEAST_COMMITS:
                break
            progress = replace(progress, epoch=run[-1].epoch if record.chapter is None else record.epoch)
            run = []
        if record.chapter is None:
            run.append(record)
        if len(run) == packing.MOST_COMMITS:
            break
    else:
        run = []  # more commits may come
    packed[table.id] = progress
    return ChapterTask(tuple(run)) if run else None


def _newest_chapters(records: Iterable[HistoryRecord]) -> list[HistoryRecord]:
    """Return at most MERGED chapters of commits that are the newest of these records, oldest first."""
    chapters: list[HistoryRecord] = []
    for record in records:
        if record.chapter is None or len(record.chapter) > packing.MOST_COMMITS or len(chapters) == packing.MERGED:
            break
        chapters.append(record)
    return chapters[::-1]


def _merged_chapters(chapters: Sequence[HistoryRecord], span_ms: float) -> ChapterTask | None:
    """Choose the oldest of these chapters that one chapter may cover, and make it larger than one of single commits."""
    first = 0
    for end in range(1, len(chapters) + 1):
        if end == len(chapters) or _span_ms(chapters[first], chapters[end]) > span_ms:
            merged = chapters[first:end]
            if sum(len(record.chapter or ()) for record in merged) > packing.MOST_COMMITS:
                return ChapterTask(tuple(merged), len(chapters) - end)
            first = end
    return None


def _span_ms(first: HistoryRecord, last: HistoryRecord) -> int:
    """Return the milliseconds from the first commit of the first record to the last one of the last record."""
    begin = first.epoch if first.chapter is None else int(first.chapter.epochs[0])
    return to_unix_ms(last.epoch) - to_unix_ms(begin)


def _land(tx: Txn, table: TableDef, records: Sequence[HistoryRecord], chapter: Chapter) -> bool:
    """Replace the records by the chapter, if they are as they were read. Part of a transaction that changes nothing
    that a reader sees, so it does not move the counters.
    """
    table = get_table(tx, table.id, table.name)
    if not are_current(tx, records):
        return False
    for record in records:
        delete_commits(tx, table.id, record.epoch)
    put_commit(tx, table.id, chapter)
    if not table.packed:
        tx.put(table_key(table.id), replace(table, packed=True).to_record())
    return True
