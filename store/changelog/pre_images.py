"""Pre-images of a table with changelog="full", stored at commit: the earlier row of every key that the commit touches.

They are looked up at the newest commit, outside of any transaction. The transaction requires that this commit is still
the newest. Otherwise the pre-images of keys touched since are looked up again, and written into newer files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from epochlog.store.env.files import Files
from epochlog.store.env.parallel import parallel_map
from epochlog.store.env.paths import SEGMENT_ENDING, file_name
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.scan.key_ranges import cost, key_splits
from epochlog.store.scan.point_lookup import PointReader
from epochlog.store.scan.scan_plan import ScanPlan
from epochlog.store.sst.merge import Rows, lookup, newest_wins
from epochlog.store.sst.segment import Segment, SegmentReader, write_segment
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.arrays import from_numpy
from epochlog.store.types.key_codec import KeyCodec
from epochlog.store.types.key_range import ALL_KEYS, KeyRange
from epochlog.store.types.schema import TableSchema

from .change_rows import by_key, concat_nullable, end_to_end, replaced

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

SPLIT_ROWS = 1 << 19
"""Touched rows whose pre-images are looked up, and held in memory, together."""
Images = tuple[tuple[Segment, ...], ...]


def write_images(
    handle: Handle, table: TableDef, before: ScanPlan, epochs: Sequence[Sequence[Segment]], intent: str
) -> Images:
    """Write, for each log epoch of a commit, oldest first, files with the pre-images of its changes; durable on return.

    epochs: the segments of each log epoch. intent: the write intent of the files. A failure leaves no files behind.
    """
    segments = [segment for epoch in epochs for segment in epoch]
    written: list[list[Segment]] = [[] for _ in epochs]
    splits = key_splits(handle.files, table.schema, segments, cost(segments) // SPLIT_ROWS, ALL_KEYS)
    try:
        for key_range in splits:
            for place, rows, known in _old_rows(handle.files, table.schema, before, epochs, key_range):
                path = f"{handle.table_folder(table.id)}/{file_name(intent, SEGMENT_ENDING)}"
                codec = KeyCodec(table.schema.schema, table.schema.primary_key)
                file = write_segment(handle.files, path, table.id, table.schema, codec, rows, replaced=known)
                written[place].append(file)
    except BaseException:
        remove_segments(handle.files, (file for files in written for file in files))
        raise
    return tuple(tuple(files) for files in written)


def patched_images(
    handle: Handle,
    table: TableDef,
    now: ScanPlan,
    since: Sequence[Segment],
    epochs: Sequence[Sequence[Segment]],
    images: Images,
    intent: str,
) -> Images:
    """Update pre-images that were written against an earlier commit to the state `now`: add files with the rows of keys
    that both the log epochs and the commits since then touch. since: the segments of these commits.

    The cost depends on the number of keys in `since`, not on the size of the epochs. A failure leaves no new files.
    """
    written: list[list[Segment]] = [[] for _ in epochs]
    codec = KeyCodec(table.schema.schema, table.schema.primary_key)
    try:
        for key_range in key_splits(handle.files, table.schema, since, cost(since) // SPLIT_ROWS, ALL_KEYS):
            for place, rows in _patched_rows(handle.files, table.schema, now, since, epochs, key_range):
                path = f"{handle.table_folder(table.id)}/{file_name(intent, SEGMENT_ENDING)}"
                file = write_segment(handle.files, path, table.id, table.schema, codec, rows)
                written[place].append(file)
    except BaseException:
        remove_segments(handle.files, (file for files in written for file in files))
        raise
    return tuple((*earlier, *added) for earlier, added in zip(images, written, strict=True))


def _patched_rows(
    files: Files,
    table: TableSchema,
    now: ScanPlan,
    since: Sequence[Segment],
    epochs: Sequence[Sequence[Segment]],
    key_range: KeyRange,
) -> Iterator[tuple[int, Rows]]:
    """Yield, for each epoch (by index) that is the first to touch keys of `since`, the rows of these keys in `now`;
    tombstones for keys without a row.
    """
    touched = read_epoch(files, table, since, table.primary_key, key_range)
    codec = KeyCodec(table.schema, table.primary_key)
    reader = PointReader(files, table, codec, ())
    for place, epoch in enumerate(epochs):
        if touched is None or not len(touched):
            return
        in_epoch = from_numpy(reader.known([[segment] for segment in epoch], touched.keys))
        if in_epoch.true_count:
            yield place, _rows_or_tombstones(files, now, touched.keys.filter(in_epoch), touched.data.filter(in_epoch))
        in_later_epochs = pc.invert(in_epoch)
        touched = Rows(touched.keys.filter(in_later_epochs), touched.data.filter(in_later_epochs))


def _rows_or_tombstones(files: Files, now: ScanPlan, keys: pa.Array, key_columns: pa.Table) -> Rows:
    """Return the rows of these keys in `now`, and tombstones for keys without a row."""
    state = now.rows_of(files, keys, now.table.schema.names)
    positions = lookup(state.keys, keys)
    missing = positions < 0
    places, data = from_numpy(positions, missing), state.data.combine_chunks()
    columns = {
        name: key_columns.column(name) if name in now.table.primary_key else data.column(name).take(places)
        for name in now.table.schema.names
    }
    return Rows(keys, pa.table(columns), missing if missing.any() else None)


def _old_rows(
    files: Files, table: TableSchema, before: ScanPlan, epochs: Sequence[Sequence[Segment]], key_range: KeyRange
) -> list[tuple[int, Rows, np.ndarray]]:
    """Return, for each epoch (by index) that replaces rows of the key range, the replaced rows, and bool[changes]: True
    for the changes that replace one.
    """
    # one epoch alone needs no values: no later epoch replaces its rows
    names = table.schema.names if len(epochs) > 1 else list(table.primary_key)
    epoch_rows = [read_epoch(files, table, epoch, names, key_range) for epoch in epochs]
    touched = [(place, rows) for place, rows in enumerate(epoch_rows) if rows is not None]
    if not touched:
        return []
    touches = end_to_end(touched)
    order = by_key(touches)
    keys = touches.keys.take(from_numpy(order.oldest))
    state = before.rows_of(files, keys, table.schema.names)
    if len(epochs) == 1:
        return [(0, state, _known(state.keys, keys))] if len(state) else []
    places, pool = replaced(touches, order, state), concat_nullable([state.data, touches.data]).combine_chunks()
    old: list[tuple[int, Rows, np.ndarray]] = []
    for place, rows in touched:
        positions = places[touches.labels == place]
        known = positions >= 0
        if known.any():
            data = pool.take(from_numpy(positions[known]))
            old.append((place, Rows(rows.keys.filter(from_numpy(known)), data), known))
    return old


def _known(existing: pa.Array, keys: pa.Array) -> np.ndarray:
    """Return bool[keys]: True for those among `existing`, which are some of them."""
    return np.ones(len(keys), np.bool_) if len(existing) == len(keys) else lookup(existing, keys) >= 0


def read_epoch(
    files: Files, table: TableSchema, segments: Sequence[Segment], columns: Sequence[str], key_range: KeyRange
) -> Rows | None:
    """Read the newest change of each key of the range in one log epoch; None if there is none."""
    codec = KeyCodec(table.schema, table.primary_key)
    segment_rows = parallel_map(
        lambda segment: SegmentReader(files, segment, table, codec).read(columns, key_range),
        segments,
        sum(segment.rows for segment in segments),
    )
    segment_rows = [rows for rows in segment_rows if len(rows)]
    return newest_wins(segment_rows) if segment_rows else None
