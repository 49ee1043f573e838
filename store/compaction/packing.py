"""Packing of a table's log: one file in place of the files of many small commits.

A pack has the changes of neighbouring commits of one version of the columns. Commits are packed once they are compacted
into the runs, so that only reads of the log open their files. MOST_COMMITS commits make a pack, and up to MERGED packs
a larger one, so each row is written at most twice more. A commit of more than SMALL_COMMIT bytes stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from epochlog.errors import Corrupt, TableDropped
from epochlog.store.catalog.keys import head_key, table_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.changelog.change_reader import ChangeReader
from epochlog.store.changelog.log_plan import stores_images
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.failpoints import hit
from epochlog.store.env.log_events import LOG_NOT_PACKED, LOG_PACKED
from epochlog.store.env.metrics import PACKED_COMMITS, PACKS
from epochlog.store.env.paths import SEGMENT_ENDING, file_name
from epochlog.store.metadata.commit_columns import MOST_PACKED
from epochlog.store.metadata.commit_log import LogRecord, are_current, delete_entry, log_records, newest_pack, put_entry
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.lookups import get_table, get_version
from epochlog.store.metadata.packed_epochs import PackedEpochs
from epochlog.store.metadata.unreachable_files import mark_unreachable
from epochlog.store.metadata.version import LabelGroup, LogEntry, TableVersion, apply_packing
from epochlog.store.session.handle import Handle
from epochlog.store.session.packed_through import PackedThrough
from epochlog.store.session.write_intents import find_revoked_intent
from epochlog.store.sst.file_columns import file_schema
from epochlog.store.sst.merge import Rows
from epochlog.store.sst.segment import Segment, write_segment
from epochlog.store.sst.segment_writer import remove_segments
from epochlog.store.types.epoch import to_unix_ms
from epochlog.store.types.key_codec import KeyCodec, sort_indices
from epochlog.store.types.read_options import ReadOptions
from epochlog.store.types.schema import TableSchema

LEAST_COMMITS, MOST_COMMITS = 16, 64
"""Commits of a pack of commits."""
MERGED = 32
"""Packs of commits that one pack replaces, if they fit into it; else fewer."""
SMALL_COMMIT = 256 << 10
"""Bytes of the files of a commit from which on it is not packed."""
MOST_BYTES, MOST_ROWS = 4 << 20, 1 << 18
"""Limits of the files that a pack replaces."""
SPAN = 16
"""Share of the log's retention that a pack covers at most, so that little stays past the truncation mark."""


Outcome = Literal["packed", "overtaken", "damaged", "revoked"]
"""Outcome of writing a pack. overtaken: its records have changed meanwhile. damaged: a file of them is. revoked: the
process was suspended for longer than its lease, so a vacuum may delete what it writes until it has a new one.
"""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Properties that all commits with rows of a pack have in common."""

    schema_version: int
    stores_images: bool


@dataclass(frozen=True, slots=True)
class PackTask:
    """Records of the log that a pack replaces."""

    table: TableDef
    """As it was when the records were read."""
    records: tuple[LogRecord, ...]
    kind: _Kind | None
    """None: no commit has rows."""
    newer_packs: int | None = None
    """Number of the packs of single commits that follow, if the pack replaces packs."""

    @property
    def entries(self) -> list[LogEntry]:
        return [record.entry for record in self.records]


def pack_log(handle: Handle, table: TableDef, limit_s: float = math.inf) -> int:
    """Pack a table's log; return the number of packs that it made. Commits with a damaged file stay single. Raises
    TableDropped, WriteFailed, and Corrupt for a damaged record. limit_s: the time after which no further pack begins.
    """
    began_s, count, more = monotonic_s(), 0, True
    while more and (not count or monotonic_s() - began_s < limit_s):
        task = handle.catalog.read(lambda view: _next_task(view, table, handle.packed_logs))
        outcome = None if task is None else _pack(handle, task)
        more = outcome is not None and outcome != "revoked"
        if task is not None and outcome == "packed":
            count += 1
            handle.recorder.add(PACKS, table.name)
            handle.recorder.add(PACKED_COMMITS, table.name, by=sum(entry.commits for entry in task.entries))
    if count:
        handle.log(LOG_PACKED, table=table.name, packs=count, took_ms=round((monotonic_s() - began_s) * 1000))
    return count


# ---- choice ----------------------------------------------------------------------------------------------------------


def _next_task(view: ReadTxn, table: TableDef, packed: dict[int, PackedThrough]) -> PackTask | None:
    """Choose the records of the next pack; None if there are none. packed: by table, how far it is; it moves."""
    table, version = get_table(view, table.id, table.name), get_version(view, table.id, table.name)
    progress = packed.get(table.id) or PackedThrough(newest_pack(view, table.id))
    if progress.unmerged is None or progress.unmerged >= MERGED:
        packs = _newest_packs(view, table, version, progress.epoch)
        merged = _merged_packs(table, packs) if len(packs) == MERGED else None
        if merged is not None:
            return merged
        progress = packed[table.id] = replace(progress, unmerged=min(len(packs), MERGED - 1))
    start = max(progress.epoch, version.log_start - 1)
    end = min(version.compacted_epoch, version.max_committed_epoch - 1)
    records = log_records(view, table.id, start, end)
    for run in _runs(table, records, MOST_COMMITS):
        if run.task is not None and run.commits >= (LEAST_COMMITS if run.is_whole else MOST_COMMITS):
            return run.task
        if run.is_whole:
            progress = packed[table.id] = replace(progress, epoch=run.end)
    return None


def _newest_packs(view: ReadTxn, table: TableDef, version: TableVersion, through: int) -> list[LogRecord]:
    """Return the newest neighbouring packs of single commits, at most MERGED, oldest first."""
    packs: list[LogRecord] = []
    for record in log_records(view, table.id, version.log_start - 1, through, reverse=True):
        if record.entry.packed is None or record.entry.commits > MOST_COMMITS or len(packs) == MERGED:
            break
        packs.append(record)
    return packs[::-1]


def _merged_packs(table: TableDef, packs: Sequence[LogRecord]) -> PackTask | None:
    """Choose the oldest of these packs that fit into one pack, and make it larger than one of single commits."""
    newer = len(packs)
    for run in _runs(table, packs, MOST_PACKED):
        assert run.task is not None
        newer -= len(run.task.records)
        if run.commits > MOST_COMMITS:
            return replace(run.task, newer_packs=newer)
    return None


class _Run(NamedTuple):
    """Neighbouring records, oldest first."""

    task: PackTask | None
    """Their pack; None for a record that is not packed."""
    commits: int
    end: int
    """Epoch of the last commit."""
    is_whole: bool
    """Nothing more fits into the pack."""


def _runs(table: TableDef, records: Iterable[LogRecord], most: int) -> Iterator[_Run]:
    """Yield the runs of neighbouring records that a pack can replace, and the records that are not packed."""
    run: list[LogRecord] = []
    kind: _Kind | None = None
    size = rows = commits = 0
    packs = most > MOST_COMMITS
    span_ms = table.options.log_retention.total_seconds() * 1000 / SPAN
    for record in records:
        entry = record.entry
        own = _kind(table, entry)
        entry_bytes, entry_rows = sum(file.bytes for file in entry.files), sum(file.rows for file in entry.files)
        fits = _is_small(entry) if not packs else entry.packed is not None
        begins = not fits or (run and (
            (own is not None and kind is not None and own != kind)
            or commits + entry.commits > most
            or size + entry_bytes > MOST_BYTES
            or rows + entry_rows > MOST_ROWS
            or to_unix_ms(entry.epoch) - to_unix_ms(run[0].entry.first) > span_ms
        ))  # fmt: skip
        if begins and run:
            yield _Run(PackTask(table, tuple(run), kind), commits, run[-1].entry.epoch, is_whole=True)
            run, kind, size, rows, commits = [], None, 0, 0, 0
        if fits:
            run.append(record)
            kind, size, rows, commits = kind or own, size + entry_bytes, rows + entry_rows, commits + entry.commits
        else:
            yield _Run(None, entry.commits, entry.epoch, is_whole=True)
    if run:
        yield _Run(PackTask(table, tuple(run), kind), commits, run[-1].entry.epoch, commits >= most)


def _is_small(entry: LogEntry) -> bool:
    """Return True for a commit that is packed."""
    return (
        entry.packed is None
        and not entry.end
        and all(group.label == entry.epoch for group in entry.groups)
        and sum(file.bytes for file in entry.files) <= SMALL_COMMIT
    )


def _kind(table: TableDef, entry: LogEntry) -> _Kind | None:
    """Return what the files of an entry have in common; None for one without files."""
    for group in entry.groups:
        for segment in group.segments:
            return _Kind(segment.schema_version, stores_images(table, group))
    return None


# ---- writing ---------------------------------------------------------------------------------------------------------


def _pack(handle: Handle, task: PackTask) -> Outcome:
    """Write the files of a pack, and put it in place of its records."""
    table, written = task.table, list[Segment]()
    try:
        pack = _write(handle, table, task, written)
    except BaseException as error:
        remove_segments(handle.files, written)
        if not isinstance(error, Corrupt):
            raise
        return _after_damage(handle, task, error)
    hit("pack:written")
    try:
        outcome: Outcome = handle.catalog.transact(lambda tx: _land(handle, tx, task, pack))
    except BaseException as error:
        handle.packed_logs.pop(table.id, None)
        if isinstance(error, TableDropped):  # no other error tells that it has not landed; vacuum deletes what is left
            remove_segments(handle.files, written)
        raise
    if outcome != "packed":
        remove_segments(handle.files, written)
        handle.packed_logs.pop(table.id, None)
        return outcome
    hit("pack:landed")
    progress = handle.packed_logs.get(table.id, PackedThrough())
    handle.packed_logs[table.id] = progress.with_pack(pack.epoch, task.newer_packs)
    return outcome


def _after_damage(handle: Handle, task: PackTask, error: Corrupt) -> Outcome:
    """Leave the records of a damaged file as they are, so that the rest of the table is maintained."""
    if not handle.catalog.read(
        lambda view: are_current(view, task.records)
    ):  # another packer has replaced the file, and a vacuum deleted it
        handle.packed_logs.pop(task.table.id, None)
        return "overtaken"
    first, last = task.records[0].entry.first, task.records[-1].entry.epoch
    handle.log(LOG_NOT_PACKED, table=task.table.name, first=first, last=last, error=error)
    progress = handle.packed_logs.get(task.table.id, PackedThrough())
    handle.packed_logs[task.table.id] = progress.past(last, task.newer_packs)
    return "damaged"


def _write(handle: Handle, table: TableDef, task: PackTask, written: list[Segment]) -> LogEntry:
    epochs = np.concatenate([entry.epochs for entry in task.entries])
    changes, images = np.zeros(len(epochs), np.int64), np.zeros(len(epochs), np.int64)
    deletes = changes.copy()
    files: list[tuple[Segment, ...]] = [(), ()]
    if task.kind is not None:
        groups = [group for entry in task.entries for group in entry.groups if group.segments]
        schema = file_schema(table.schema, groups[0].segments[0])
        stored = task.kind.stores_images
        reader = ChangeReader(handle.files, schema, groups, ReadOptions(None), images=stored, stored=stored)
        touches, old = reader.read_all()
        place = epochs.searchsorted(touches.labels)
        changes = np.bincount(place, minlength=len(epochs))
        deletes = np.bincount(place[touches.deleted], minlength=len(epochs))
        rows = Rows(touches.keys, touches.data, touches.deleted if touches.deleted.any() else None)
        files[0] = (_write_file(handle, table, schema, rows, None, written),)
        if old is not None and len(old):
            replaced = old.places >= 0
            images = np.bincount(place[replaced], minlength=len(epochs))
            keys = touches.keys.filter(pa.array(replaced))
            files[1] = (_write_file(handle, table, schema, Rows(keys, old.rows(schema)), replaced, written),)
    committed = np.concatenate([_committed(entry) for entry in task.entries], axis=1)
    packed = PackedEpochs(epochs, changes, deletes, images, *committed)
    stores = task.kind.stores_images if task.kind is not None else table.stores_images_after(int(epochs[-1]) - 1)
    segments, image_files = (tuple(replace(file, file_rows=file.rows) for file in some) for some in files)
    last = int(epochs[-1])
    return LogEntry(last, (LabelGroup(last, segments, image_files, stores, packed),))


def _write_file(
    handle: Handle,
    table: TableDef,
    schema: TableSchema,
    rows: Rows,
    replaced: np.ndarray | None,
    written: list[Segment],
) -> Segment:
    path = f"{handle.table_folder(table.id)}/{file_name(handle.intents.store_intent(), SEGMENT_ENDING)}"
    codec = KeyCodec(schema.schema, schema.primary_key)
    segment = write_segment(handle.files, path, table.id, schema, codec, rows, replaced=replaced, one_batch=True)
    written.append(segment)
    order = sort_indices(rows.keys)
    least, greatest = rows.keys[int(order[0])].as_py(), rows.keys[int(order[-1])].as_py()
    return replace(segment, key_min=least, key_max=greatest, blocks=(least,))


def _committed(entry: LogEntry) -> np.ndarray:
    """Return int64[4, commits]: the segments, rows, deletes and bytes of the changes as committed."""
    packed = entry.packed
    if packed is not None:
        return np.stack([packed.segments, packed.committed_rows, packed.committed_deletes, packed.bytes])
    files = entry.segments
    counts = len(files), sum(f.rows for f in files), sum(f.deletes for f in files), sum(f.bytes for f in files)
    return np.array(counts, np.int64)[:, None]


def _land(handle: Handle, tx: Txn, task: PackTask, pack: LogEntry) -> Outcome:
    """Replace the records by the pack, if they are as they were read. Part of a transaction."""
    table = get_table(tx, task.table.id, task.table.name)
    if not are_current(tx, task.records):
        return "overtaken"
    if find_revoked_intent(tx, [file.path for file in pack.files]) is not None:
        return "revoked"
    for record in task.records:
        delete_entry(tx, table.id, record.entry.epoch)
    put_entry(tx, table.id, pack)
    if not table.packed:
        tx.put(table_key(table.id), replace(table, packed=True).to_record())
    version = apply_packing(get_version(tx, table.id, table.name), task.entries, pack)
    tx.put(head_key(table.id), version.to_record())
    old = [(file.path, file.bytes) for entry in task.entries for file in entry.files]
    mark_unreachable(tx, table.id, old, handle.catalog.now_ms())
    move_counters(tx, Counters.read(tx))
    return "packed"
