"""Verdict on a commit to a table with a sequence: which of its rows replace the table's, and which deletes are kept.

Each key has one state: a row, a kept delete, or nothing. A change takes effect if its sequence is greater than the
state's; at a tie it takes effect if the state is a row. Log epochs are judged in order, each by its winning change of a
key. Rules: docs/SEMANTICS.md, 1.10 to 1.14.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from epochlog.store.changelog.change_rows import Pool
from epochlog.store.env.files import Files
from epochlog.store.env.parallel import parallel_map
from epochlog.store.metadata.kept_deletes import KeptFiles
from epochlog.store.scan.kept_lookup import FoundDeletes, find_kept, write_kept
from epochlog.store.scan.key_ranges import cost, key_splits
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst.merge import Rows, lookup
from epochlog.store.sst.segment import Segment, SegmentReader
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.sst.sequence import comparable, encoded_sequence
from epochlog.store.types.epoch import MAX_EPOCH
from epochlog.store.types.key_codec import KeyCodec, last_of_each, sort_indices
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from epochlog.store.types.schema import TableSchema

SPLIT_ROWS = 1 << 19
"""Written rows that are judged, and held in memory, at a time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision on the segments of a commit, as of one state of the table."""

    masks: dict[str, np.ndarray] = field(default_factory=dict, compare=False)
    """For each segment, by path, a bool for each row: True if the row takes effect."""
    deletes: tuple[Segment, ...] = ()
    """Files of the deletes to keep, oldest first."""
    ignored: int = 0
    """Epoch of the newest delete that has expired and whose key the commit touches; 0 without one. It is still in the
    files, but the verdict overlooks it, so it holds only for commits whose `expired_epoch` is at or above it.

    Example: with the epoch 20 expired, a change of k took effect although k has a delete at 10, and a change of m was
    refused by a delete at 30. Then `ignored` is 10 and `used` is 30: the verdict holds while the expired epoch is in
    [10, 30).
    """
    used: int = MAX_EPOCH
    """Epoch of the oldest kept delete that refused a change; MAX_EPOCH without one. The verdict holds only for commits
    whose `expired_epoch` is below it, which know that delete.
    """
    kept: KeptFiles = ()
    """Files of the kept deletes with which the commit was judged."""

    def applies_at(self, expired: int) -> bool:
        """Return True if the verdict is right for a commit that no longer knows deletes up to the epoch `expired`."""
        return self.ignored <= expired < self.used


@dataclass(frozen=True, slots=True)
class Judge:
    """Judge of the changes of a commit to one table."""

    files: Files
    table_id: int
    before: ScanPlan
    """Table's rows before the commit."""
    kept: KeptFiles
    """Kept deletes of the table; those up to the epoch `expired` are no longer known."""
    expired: int
    new_path: Callable[[], str]
    """Returns the path of a new file."""
    blind: bool = False
    """True for an overwrite: its changes are compared with each other only, not with the table's rows and deletes."""

    @property
    def table(self) -> TableSchema:
        return self.before.table

    def judge(
        self, epochs: Sequence[Sequence[Segment]], earlier: Verdict | None = None, touched: pa.Array | None = None
    ) -> Verdict:
        """Judge the segments of each log epoch, oldest first; write the files of deletes to keep.

        earlier, touched: a verdict on these segments as of an earlier state, and the encoded keys (sorted) whose state
        may have changed since; only these are judged again. A failure leaves no new files behind.
        """
        segments = [segment for epoch in epochs for segment in epoch]
        verdict = Verdict({segment.path: np.zeros(segment.rows, np.bool_) for segment in segments}, kept=self.kept)
        if earlier is not None:
            masks = {path: mask.copy() for path, mask in earlier.masks.items()}
            verdict = replace(earlier, masks=masks, kept=self.kept)
        splits = key_splits(self.files, self.table, segments, cost(segments) // SPLIT_ROWS, ALL_KEYS)
        starts = dict.fromkeys(verdict.masks, 0)
        written: list[Segment] = []
        try:
            for key_range in splits:
                split = self._read(epochs, key_range, touched)
                if split is not None:
                    ignored, used = split.judge(verdict.masks, starts)
                    verdict = replace(verdict, ignored=max(verdict.ignored, ignored), used=min(verdict.used, used))
                    written += self._keep(split, everything=earlier is not None)
                    split.advance(starts)
        except BaseException:
            remove_segments(self.files, written)
            raise
        return replace(verdict, deletes=(*verdict.deletes, *written))

    def _read(
        self, epochs: Sequence[Sequence[Segment]], key_range: KeyRange, touched: pa.Array | None
    ) -> _Split | None:
        codec, names = KeyCodec(self.table.schema, self.table.primary_key), self.table.delete_columns
        segments = [segment for epoch in epochs for segment in epoch]
        rows = parallel_map(
            lambda segment: SegmentReader(self.files, segment, self.table, codec).read(names, key_range),
            segments,
            sum(segment.rows for segment in segments),
        )
        if not any(map(len, rows)):
            return None
        keys = distinct_keys([part.keys for part in rows], codec)
        if touched is not None:
            keys = keys.filter(pa.array(lookup(touched, keys) >= 0))
        state = Rows(keys.slice(0, 0), self.table.schema.empty_table())
        old_deletes = FoundDeletes(np.empty(0, np.int64), pa.array([], self._sequence_type), np.empty(0, np.int64))
        if not self.blind and len(keys):
            state = self.before.rows_of(self.files, keys, names)
            if self.kept:
                old_deletes = self._kept_of(keys, state.keys)
        numbers = np.repeat(np.arange(len(epochs)), [len(epoch) for epoch in epochs])
        parts = tuple(
            SegmentPart(int(number), segment, part)
            for number, segment, part in zip(numbers, segments, rows, strict=True)
        )
        return _Split(self, key_range, keys, parts, state, old_deletes)

    @property
    def _sequence_type(self) -> pa.DataType:
        return self.table.schema.field(self.table.sequence_by).type

    def _kept_of(self, keys: pa.Array, present: pa.Array) -> FoundDeletes:
        """Look up the kept deletes of the keys that are not present."""
        (places,) = (lookup(present, keys) < 0).nonzero()
        old_deletes = find_kept(self.files, self.table, self.kept, keys.take(pa.array(places)))
        return replace(old_deletes, at=places[old_deletes.at])

    def _keep(self, split: _Split, *, everything: bool) -> list[Segment]:
        deletes, epochs = split.deletes(everything=everything)
        if not len(deletes):
            return []
        return [write_kept(self.files, self.new_path(), self.table_id, self.table, deletes, epochs)]


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """Rows of one segment in a key range."""

    number: int
    """Position of the segment's log epoch among those of the commit."""
    segment: Segment
    rows: Rows


class _Split:
    """Changes of one key range, and the state of their keys, which `judge` moves from log epoch to log epoch.

    The number of a change is its row number in all parts together, in order of arrival: after a part of 3 rows, the
    first row of the next part is change 3.
    """

    def __init__(
        self,
        judge: Judge,
        key_range: KeyRange,
        keys: pa.Array,
        parts: Sequence[SegmentPart],
        state: Rows,
        old_deletes: FoundDeletes,
    ) -> None:
        self._judge = judge
        self._range = key_range
        self._keys = keys
        self._parts = parts
        table = judge.table
        self._data = pa.concat_tables([part.rows.data for part in parts], promote_options="permissive")
        self._old_deletes = old_deletes
        self._begins = np.cumsum([0, *(len(part.rows) for part in parts)])
        self._key_at = np.concatenate([lookup(keys, part.rows.keys) for part in parts])  # -1: not judged now
        self._deleted = np.concatenate([_marks(part.rows) for part in parts])
        codec = KeyCodec(table.schema, (table.sequence_by,)) if table.sequence_by else None
        assert codec is not None
        deleted_codes = codec.encode(pa.table({table.sequence_by: old_deletes.sequence}))
        old, kept, self._sequence = comparable(
            [encoded_sequence(table, state.data), deleted_codes, encoded_sequence(table, self._data)]
        )
        # the state of each key: a row, a kept delete, or nothing
        self._present = np.zeros(len(keys), np.bool_)
        self._known = np.zeros(len(keys), np.bool_)
        self._newest = np.zeros(len(keys), self._sequence.dtype)
        self._kept_at = np.full(len(keys), -1)  # position in `_old_deletes` of the delete that is the state
        self._source = np.full(len(keys), -1)  # number of the change that is the state
        rows_at = lookup(keys, state.keys)
        self._present[rows_at] = self._known[rows_at] = True
        self._newest[rows_at] = old
        in_force = old_deletes.epochs > judge.expired
        self._kept_at[old_deletes.at[in_force]] = np.flatnonzero(in_force)
        self._known[old_deletes.at[in_force]] = True
        self._newest[old_deletes.at[in_force]] = kept[in_force]
        self._ignored = int(old_deletes.epochs[~in_force].max(initial=0))

    def judge(self, masks: dict[str, np.ndarray], starts: dict[str, int]) -> tuple[int, int]:
        """Set the masks of all changes that are judged; return the bounds `ignored` and `used` of a Verdict."""
        effective = np.zeros(len(self._key_at), np.bool_)
        used = MAX_EPOCH
        numbers = np.repeat([part.number for part in self._parts], np.diff(self._begins))
        for number in sorted({part.number for part in self._parts}):
            (candidates,) = ((numbers == number) & (self._key_at >= 0)).nonzero()
            winning = candidates
            if sum(part.number == number for part in self._parts) > 1:  # else each key occurs once, in key order
                order = np.lexsort((self._deleted[candidates], self._sequence[candidates], self._key_at[candidates]))
                at = self._key_at[candidates[order]]
                winning = candidates[order[np.append(at[1:] != at[:-1], True)]] if len(at) else candidates
            used = min(used, self._take(winning, effective))
        for place, part in enumerate(self._parts):
            span = slice(self._begins[place], self._begins[place + 1])
            mask = masks[part.segment.path][starts[part.segment.path] :][: len(part.rows)]
            judged = self._key_at[span] >= 0
            mask[judged] = effective[span][judged]
        return self._ignored, used

    def advance(self, starts: dict[str, int]) -> None:
        """Move the number of each segment's first row to that of the next split."""
        for part in self._parts:
            starts[part.segment.path] += len(part.rows)

    def _take(self, winning: np.ndarray, effective: np.ndarray) -> int:
        """Judge the winning changes of one log epoch; return the oldest kept delete that refused one of them."""
        at, sequence, deleted = self._key_at[winning], self._sequence[winning], self._deleted[winning]
        ties = self._known[at] & (sequence == self._newest[at])
        accepted = ~self._known[at] | (sequence > self._newest[at]) | (ties & self._present[at])
        (repeated,) = (ties & self._present[at] & ~deleted).nonzero()
        if len(repeated):
            accepted[repeated] = self._differing(at[repeated], winning[repeated])
        refusing = self._kept_at[at[~accepted & ~self._present[at]]]
        effective[winning] = accepted & (self._present[at] | ~deleted | self._judge.blind)
        changed, places = winning[accepted], at[accepted]
        self._present[places] = ~deleted[accepted]
        self._known[places] = True
        self._newest[places] = sequence[accepted]
        self._kept_at[places] = -1
        self._source[places] = changed
        return int(self._old_deletes.epochs[refusing[refusing >= 0]].min(initial=MAX_EPOCH))

    def _differing(self, at: np.ndarray, changes: np.ndarray) -> np.ndarray:
        """Return bool[changes]: True where a change differs from the present row of its key, whose sequence is equal,
        in any column.
        """
        judge, names = self._judge, self._judge.table.schema.names
        sources = self._source[at]
        stored = sources < 0  # the row is the table's, not one of an earlier log epoch of the commit
        keys = self._keys.take(pa.array(at[stored]))  # in key order, as the winning changes are
        state = judge.before.rows_of(judge.files, keys, names)
        needed, place = np.unique(np.concatenate([changes, sources[~stored]]), return_inverse=True)
        pool = Pool([state.data.select(names), *self._full_rows(needed)])
        old, new = np.empty(len(at), np.int64), place[: len(at)] + len(state)
        old[stored] = lookup(state.keys, keys)
        old[~stored] = place[len(at) :] + len(state)
        return pool.differing(old, new, judge.table.primary_key)

    def _full_rows(self, changes: np.ndarray) -> list[pa.Table]:
        """Return all columns of these changes, whose numbers are ascending."""
        judge, names = self._judge, self._judge.table.schema.names
        codec = KeyCodec(judge.table.schema, judge.table.primary_key)
        places = np.searchsorted(self._begins, changes, "right") - 1
        rows: list[pa.Table] = []
        for place in np.unique(places):
            data = (
                SegmentReader(judge.files, self._parts[place].segment, judge.table, codec).read(names, self._range).data
            )
            rows.append(data.take(pa.array(changes[places == place] - self._begins[place])))
        return rows

    def deletes(self, *, everything: bool) -> tuple[Rows, np.ndarray]:
        """Return the keys whose state is a delete of this commit, as rows of a file of kept deletes, and 0 for the
        epoch of each. everything: also those whose state is an earlier delete, with its epoch.
        """
        table = self._judge.table
        mine = self._known & ~self._present & (self._source >= 0)
        theirs = (self._kept_at >= 0) if everything else np.zeros(len(mine), np.bool_)
        (chosen,) = (mine | theirs).nonzero()
        any_change = np.zeros(len(self._keys), np.int64)
        (judged,) = (self._key_at >= 0).nonzero()
        any_change[self._key_at[judged]] = judged
        change = np.where(self._source >= 0, self._source, any_change)[chosen]
        data = self._data.combine_chunks().take(pa.array(change))
        sequence = pa.concat_arrays([*self._data.column(table.sequence_by).chunks, self._old_deletes.sequence])
        kept_at = self._kept_at[chosen]
        from_old = kept_at >= 0
        position = np.where(from_old, kept_at + self._data.num_rows, change)
        index = data.column_names.index(table.sequence_by)
        data = data.set_column(index, data.schema.field(index), sequence.take(pa.array(position)))
        epochs = np.zeros(len(chosen), np.int64)
        epochs[from_old] = self._old_deletes.epochs[kept_at[from_old]]
        return Rows(self._keys.take(pa.array(chosen)), data), epochs


def _marks(rows: Rows) -> np.ndarray:
    return np.zeros(len(rows), np.bool_) if rows.deleted is None else rows.deleted


def distinct_keys(parts: Sequence[pa.Array], codec: KeyCodec) -> pa.Array:
    """Return the distinct keys of the parts, sorted. The keys of each part are sorted and distinct."""
    if len(parts) == 1:
        return parts[0]
    joined = pa.concat_arrays([pa.array([], codec.key_type), *parts])
    ordered = joined.take(pa.array(sort_indices(joined)))
    return ordered.filter(pa.array(last_of_each(ordered)))
