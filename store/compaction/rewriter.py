"""Compaction rewrite: merge one key range of sorted inputs into the newest version of each key, and the replaced
versions that an epoch can still see.

Sources are merged from the oldest up: each upper source looks up its keys in the merged lower ones. Only L0 is sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import ReadBackFailed, WriteFailed
from epochlog.store.env.files import Files
from epochlog.store.metadata.version import LogEntry
from epochlog.store.sst.merge import Rows, joined, lookup, merge_sources, newest_wins
from epochlog.store.sst.segment import SegmentReader
from epochlog.store.sst.sorted_run import EPOCH, UNTIL, RunFile, SortedRun, read_part, write_part
from epochlog.store.types.key_codec import KeyCodec, sort_indices
from epochlog.store.types.key_range import KeyRange
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.schema import TableSchema

from .read_back import read_back

PART_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """Rows of one key range after some epochs."""

    live: Rows
    """Newest version of each key, with `_epoch`, tombstones too."""
    history: tuple[Rows, ...] = ()
    """Replaced versions to rewrite, with `_epoch` and `_until`, unordered."""
    replaced_keys: tuple[Rows, ...] = ()
    """Keys and `_epoch` of all replaced versions."""


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Reader of the inputs of a compaction of one table, and writer of its parts."""

    files: Files
    table: TableSchema
    new_path: Callable[[], str]
    safe_epoch: int
    """See `CompactionTask.safe_epoch`."""
    kept: tuple[int, ...] = ()
    """See `CompactionTask.kept_epochs`."""
    check: str = "sample"
    """Rows of new parts to read back, as in TableOptions."""

    @property
    def codec(self) -> KeyCodec:
        return KeyCodec(self.table.schema, self.table.primary_key)

    def rewrite(
        self,
        runs: Sequence[SortedRun],
        entries: Sequence[LogEntry],
        key_range: KeyRange,
        *,
        bottom: bool,
        rewritten: Container[str] = (),
    ) -> tuple[list[RunFile], list[RunFile]]:
        """Write and return the live and the new history parts of a key range; at the `bottom` drop tombstones."""
        sources = [self._of_run(run, key_range, rewritten, upper=place > 0) for place, run in enumerate(runs)]
        fresh = self._of_log(entries, key_range)
        source = merge_levels([*sources, fresh] if fresh is not None else sources, self._nothing())
        live = merge_sources((source.live, self._nothing().live)) if bottom else source.live
        return self._write(live), self._write_past(source.history, bottom=bottom)

    def copy_past(self, run: SortedRun, key_range: KeyRange, rewritten: Container[str]) -> list[RunFile]:
        """Write and return history parts with the rows of a key range of a run's history parts that are visible."""
        parts = [part for part in run.history if part.path in rewritten]
        return self._write_past(self._read(parts, [*self.table.schema.names, EPOCH, UNTIL], key_range), bottom=False)

    def _write_past(self, history: Sequence[Rows], *, bottom: bool) -> list[RunFile]:
        """Write the replaced rows that an epoch can see. Those that only tags see lie in parts of their own, which
        outlive the others.
        """
        past = visible_history(history, self.safe_epoch, self.kept, bottom=bottom)
        if past is None:
            return []
        if not self.kept:
            return self._write(past, history=True)
        recent = past.data.column(UNTIL).to_numpy() > self.safe_epoch
        groups = [taken(past, np.flatnonzero(mask)) for mask in (recent, ~recent) if mask.any()]
        return [part for rows in groups for part in self._write(rows, history=True)]

    def _nothing(self) -> Source:
        schema = pa.schema([*self.table.schema, pa.field(EPOCH, pa.int64())])
        return Source(Rows(pa.array([], self.codec.key_type), schema.empty_table(), None))

    def _of_run(self, run: SortedRun, key_range: KeyRange, rewritten: Container[str], *, upper: bool) -> Source:
        """Read a run's rows. The epochs at which replaced rows began are read only if another run lies below."""
        names = self.table.schema.names
        if run.at is not None:
            return Source(self._cut(run, run.at, key_range))
        live = self._read(run.parts, [*names, EPOCH], key_range)
        past = self._read([part for part in run.history if part.path in rewritten], [*names, EPOCH, UNTIL], key_range)
        replaced_keys = self._read(run.history, [EPOCH], key_range) if upper else []
        return Source(joined(live) if live else self._nothing().live, tuple(past), tuple(replaced_keys))

    def _cut(self, run: SortedRun, epoch: int, key_range: KeyRange) -> Rows:
        """Read the rows of a run as of an epoch. No key is in two of its files."""
        rows = self._read(run.files_at(epoch), [*self.table.schema.names, EPOCH], key_range, at=epoch)
        return newest_wins(rows) if rows else self._nothing().live

    def _read(
        self, parts: Sequence[RunFile], columns: Sequence[str], key_range: KeyRange, *, at: int | None = None
    ) -> list[Rows]:
        options = ReadOptions(columns, None, key_range)
        tables = [
            read_part(self.files, part, self.table, self.codec, options, at=at)
            for part in parts
            if key_range.overlaps(part.key_min, part.key_max)
        ]
        return [rows for rows in tables if len(rows)]

    def _of_log(self, entries: Sequence[LogEntry], key_range: KeyRange) -> Source | None:
        """Return all versions in L0, sorted by key and then epoch, split into the newest and the others."""
        by_entry: list[Rows] = []
        for entry in entries:
            rows = [
                SegmentReader(self.files, segment, self.table, self.codec).read(None, key_range)
                for segment in entry.segments
                if key_range.overlaps(segment.key_min, segment.key_max)
            ]
            rows = [part for part in rows if len(part)]
            if rows:
                merged = newest_wins(rows) if len(rows) > 1 else rows[0]
                epochs = pa.array(np.full(len(merged), entry.epoch, np.int64))
                by_entry.append(replace(merged, data=merged.data.append_column(EPOCH, epochs)))
        if not by_entry:
            return None
        if len(by_entry) == 1:
            return Source(by_entry[0])
        changes = joined(by_entry)
        return split_versions(taken(changes, sort_indices(changes.keys)))  # stable, and entries come oldest first

    def _write(self, rows: Rows, *, history: bool = False) -> list[RunFile]:
        """Write parts with disjoint key ranges; versions of one key stay in one part."""
        parts: list[RunFile] = []
        starts = np.insert(_differs(rows.keys), 0, True) if len(rows) else np.empty(0, np.bool_)
        at = 0
        while at < len(rows):
            end = min(at + PART_ROWS, len(rows))
            while end < len(rows) and not starts[end]:
                end += 1
            deleted = None if rows.deleted is None or not rows.deleted[at:end].any() else rows.deleted[at:end]
            new_rows = Rows(rows.keys.slice(at, end - at), rows.data.slice(at, end - at), deleted)
            since, kept = self._visibility(new_rows) if history and self.kept else (0, ())
            path = self.new_path()
            part = write_part(
                self.files, path, self.table, self.codec, new_rows, history=history, since=since, kept=kept
            )
            try:
                read_back(self.files, part, self.table, self.codec, new_rows, self.check)
            except ReadBackFailed:
                with suppress(WriteFailed):
                    self.files.delete(path)
                raise
            parts.append(part)
            at = end
        return parts

    def _visibility(self, past: Rows) -> tuple[int, tuple[int, ...]]:
        """Return `since` and `kept` of a history part's descriptor."""
        begin, end = (past.data.column(name).to_numpy() for name in (EPOCH, UNTIL))
        if end.max() > self.safe_epoch:
            return int(begin.min()), ()
        return int(begin.min()), tuple(epoch for epoch in self.kept if ((begin <= epoch) & (epoch < end)).any())


def merge_levels(sources: Sequence[Source], nothing: Source) -> Source:
    """Merge sources that lie on top of each other, oldest first."""
    result = sources[0] if sources else nothing
    for upper in sources[1:]:
        result = _merge_over(result, upper)
    return result


def _merge_over(lower: Source, upper: Source) -> Source:
    """Merge `upper` over `lower`: a replaced row of `lower` ends at the first epoch at which `upper` has its key."""
    if not len(lower.live) and not lower.history:
        return upper
    at = lookup(lower.live.keys, upper.live.keys)
    touched = at >= 0
    history = (*lower.history, *upper.history)
    if touched.any():
        ended = taken(lower.live, at[touched])
        history = (*history, _until(ended, _first_epochs(upper)[touched]))
    return Source(merge_sources((lower.live, upper.live), keep_tombstones=True), history)  # lies below from now on


def _first_epochs(source: Source) -> np.ndarray:
    """Return, for each key of `live`, the first epoch at which the source has it; int64."""
    first = source.live.data.column(EPOCH).to_numpy().copy()
    for rows in source.replaced_keys:
        at = lookup(source.live.keys, rows.keys)
        np.minimum.at(first, at[at >= 0], rows.data.column(EPOCH).to_numpy()[at >= 0])
    return first


def split_versions(changes: Rows) -> Source:
    """Split versions, sorted by key and then epoch, into the newest of each key and the others, each with its end."""
    differs = _differs(changes.keys)
    newest = taken(changes, np.flatnonzero(np.append(differs, True)))
    older = np.flatnonzero(~differs)
    if not len(older):
        return Source(newest)
    ends = changes.data.column(EPOCH).to_numpy()[older + 1]
    past = _until(taken(changes, older), ends)
    return Source(newest, (past,), (past,))


def visible_history(history: Sequence[Rows], safe_epoch: int, kept: Sequence[int] = (), *, bottom: bool) -> Rows | None:
    """Return the replaced rows that an epoch at or above safe_epoch, or one of the epochs `kept` (rising), can see, by
    key and epoch; None without any.
    """
    visible, epochs = [], np.array(kept, np.int64)
    for rows in history:
        begin, end = (rows.data.column(name).to_numpy() for name in (EPOCH, UNTIL))
        seen = (end > safe_epoch) | (epochs.searchsorted(begin) < epochs.searchsorted(end))
        if bottom and rows.deleted is not None:
            seen &= ~rows.deleted
        if seen.any():
            visible.append(rows if seen.all() else taken(rows, np.flatnonzero(seen)))
    if not visible:
        return None
    rows = joined(visible)
    by_epoch = np.argsort(rows.data.column(EPOCH).to_numpy(), kind="stable")
    return taken(rows, by_epoch[sort_indices(rows.keys.take(pa.array(by_epoch)))])


def taken(rows: Rows, positions: np.ndarray) -> Rows:
    """Return the rows at these positions, in their order."""
    take = pa.array(positions)
    deleted = rows.deleted[positions] if rows.deleted is not None else None
    return Rows(rows.keys.take(take), rows.data.combine_chunks().take(take), deleted)


def _until(rows: Rows, ends: np.ndarray) -> Rows:
    return replace(rows, data=rows.data.append_column(UNTIL, pa.array(ends)))


def _differs(keys: pa.Array) -> np.ndarray:
    """Return bool[len - 1]: True where a key differs from the one before it."""
    if len(keys) < 2:
        return np.empty(0, np.bool_)
    return pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)
