"""Folding one key range of several sorted inputs into one: the newest version of each key, and those that it replaced
for as long as an epoch can see them.

Sources are put on top of each other, oldest first. Only the rows that the upper one touches are searched for in the
lower; what L0 holds is the only thing that is ever sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .datafile import KeyRange
from .files import Files
from .keys import KeyCodec, sort_indices
from .merge import Rows, joined, lookup, merge, newest_wins
from .run import EPOCH, UNTIL, Part, Run, read_part, write_part
from .schema import TableSchema
from .segment import Segment, SegmentReader
from .version import LogEntry

PART_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """What some epochs left behind of a key range: `live` rows (the newest of each key, with `_epoch`, tombstones
    too), and replaced ones (`history`, with `_epoch` and `_until`) in no order: those that are written again. `begun`
    has the keys and `_epoch` of all replaced ones.
    """

    live: Rows
    history: tuple[Rows, ...] = ()
    begun: tuple[Rows, ...] = ()


@dataclass(frozen=True, slots=True)
class Folder:
    """Reads inputs of one table and writes parts."""

    files: Files
    table: TableSchema
    new_path: Callable[[], str]

    @property
    def codec(self) -> KeyCodec:
        return KeyCodec(self.table.schema, self.table.primary_key)

    def fold(
        self,
        runs: Sequence[Run],
        entries: Sequence[LogEntry],
        key_range: KeyRange,
        *,
        bottom: bool,
        safe_epoch: int,
        rewritten: Container[str] = (),
    ) -> tuple[list[Part], list[Part]]:
        """The live and the new history parts of a key range. bottom: nothing lies below, so no tombstone is kept.
        rewritten: the history parts of the runs to be written anew.
        """
        sources = [self._of_run(run, key_range, rewritten, upper=place > 0) for place, run in enumerate(runs)]
        fresh = self._of_log(entries, key_range)
        source = stacked([*sources, fresh] if fresh is not None else sources, self._nothing())
        live = merge(source.live, self._nothing().live, keep_tombstones=False) if bottom else source.live
        past = still_seen(source.history, safe_epoch, bottom=bottom)
        return self._write(live, history=False), self._write(past, history=True) if past is not None else []

    def _nothing(self) -> Source:
        schema = pa.schema([*self.table.schema, pa.field(EPOCH, pa.int64())])
        return Source(Rows(pa.array([], self.codec.key_type), schema.empty_table(), None))

    def _of_run(self, run: Run, key_range: KeyRange, rewritten: Container[str], *, upper: bool) -> Source:
        """A run's rows; of the oldest one nobody asks when its replaced rows began."""
        names = self.table.schema.names

        def read(parts: Sequence[Part], columns: Sequence[str]) -> list[Rows]:
            found = [
                read_part(self.files, part, self.table, self.codec, columns, key_range=key_range)
                for part in parts
                if _meets(part, key_range)
            ]
            return [rows for rows in found if len(rows)]

        live = read(run.parts, [*names, EPOCH])
        past = read([part for part in run.history if part.path in rewritten], [*names, EPOCH, UNTIL])
        begun = read(run.history, [EPOCH]) if upper else []
        return Source(joined(live) if live else self._nothing().live, tuple(past), tuple(begun))

    def _of_log(self, entries: Sequence[LogEntry], key_range: KeyRange) -> Source | None:
        """All versions in L0, sorted by key and then epoch, split into the newest and the others."""
        found: list[Rows] = []
        for entry in entries:
            rows = [
                SegmentReader(self.files, segment, self.table, self.codec).read(None, key_range)
                for segment in entry.segments
                if _meets(segment, key_range)
            ]
            rows = [part for part in rows if len(part)]
            if rows:
                merged = newest_wins(rows) if len(rows) > 1 else rows[0]
                epochs = pa.array(np.full(len(merged), entry.epoch, np.int64))
                found.append(replace(merged, data=merged.data.append_column(EPOCH, epochs)))
        if not found:
            return None
        if len(found) == 1:
            return Source(found[0])
        changes = joined(found)
        return split_versions(taken(changes, sort_indices(changes.keys)))  # stable, and entries come oldest first

    def _write(self, rows: Rows, *, history: bool) -> list[Part]:
        """Parts with disjoint key ranges; versions of one key stay in one part."""
        parts: list[Part] = []
        starts = np.insert(_differs(rows.keys), 0, True) if len(rows) else np.empty(0, np.bool_)
        at = 0
        while at < len(rows):
            end = min(at + PART_ROWS, len(rows))
            while end < len(rows) and not starts[end]:
                end += 1
            deleted = None if rows.deleted is None or not rows.deleted[at:end].any() else rows.deleted[at:end]
            piece = Rows(rows.keys.slice(at, end - at), rows.data.slice(at, end - at), deleted)
            parts.append(write_part(self.files, self.new_path(), self.table, self.codec, piece, history=history))
            at = end
        return parts


def stacked(sources: Sequence[Source], nothing: Source) -> Source:
    """Sources on top of each other, oldest first."""
    result = sources[0] if sources else nothing
    for upper in sources[1:]:
        result = _put(result, upper)
    return result


def _put(lower: Source, upper: Source) -> Source:
    """`upper` on `lower`: what it touches there ends at the first epoch at which it touches it."""
    if not len(lower.live) and not lower.history:
        return upper
    at = lookup(lower.live.keys, upper.live.keys)
    hit = at >= 0
    history = (*lower.history, *upper.history)
    if hit.any():
        ended = taken(lower.live, at[hit])
        history = (*history, _until(ended, _first_epochs(upper)[hit]))
    return Source(merge(lower.live, upper.live, keep_tombstones=True), history)  # lies below from now on


def _first_epochs(source: Source) -> np.ndarray:
    """For each key of `live` the first epoch at which the source has it; int64."""
    first = source.live.data.column(EPOCH).to_numpy().copy()
    for rows in source.begun:
        at = lookup(source.live.keys, rows.keys)
        np.minimum.at(first, at[at >= 0], rows.data.column(EPOCH).to_numpy()[at >= 0])
    return first


def split_versions(changes: Rows) -> Source:
    """Versions sorted by key and then epoch, as the newest of each key and the others, each with its end."""
    differs = _differs(changes.keys)
    newest = taken(changes, np.flatnonzero(np.append(differs, True)))
    older = np.flatnonzero(~differs)
    if not len(older):
        return Source(newest)
    ends = changes.data.column(EPOCH).to_numpy()[older + 1]
    past = _until(taken(changes, older), ends)
    return Source(newest, (past,), (past,))


def still_seen(history: Sequence[Rows], safe_epoch: int, *, bottom: bool) -> Rows | None:
    """Replaced rows that some epoch at or above safe_epoch can see, by key and epoch; None if there are none."""
    kept = []
    for rows in history:
        seen = rows.data.column(UNTIL).to_numpy() > safe_epoch
        if bottom and rows.deleted is not None:
            seen &= ~rows.deleted
        if seen.any():
            kept.append(rows if seen.all() else taken(rows, np.flatnonzero(seen)))
    if not kept:
        return None
    rows = joined(kept)
    by_epoch = np.argsort(rows.data.column(EPOCH).to_numpy(), kind="stable")
    return taken(rows, by_epoch[sort_indices(rows.keys.take(pa.array(by_epoch)))])


def taken(rows: Rows, positions: np.ndarray) -> Rows:
    """The rows at these positions, in their order."""
    take = pa.array(positions)
    deleted = rows.deleted[positions] if rows.deleted is not None else None
    return Rows(rows.keys.take(take), rows.data.combine_chunks().take(take), deleted)


def _until(rows: Rows, ends: np.ndarray) -> Rows:
    return replace(rows, data=rows.data.append_column(UNTIL, pa.array(ends)))


def _differs(keys: pa.Array) -> np.ndarray:
    """bool[len - 1]: where a key is another than the one before it."""
    if len(keys) < 2:
        return np.empty(0, np.bool_)
    return pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy(zero_copy_only=False)


def _meets(file: Part | Segment, key_range: KeyRange) -> bool:
    low, high = key_range
    return (low is None or file.key_max >= low) and (high is None or file.key_min < high)
