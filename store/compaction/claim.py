"""Claims of compactions: the process that works on a table's task, and the takeover from one that died.

A task of several subcompactions has a record that names its owner, and one for each finished subcompaction. A process
that finds the owner dead, or the claim expired, goes on with the subcompactions that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from epochlog.store.catalog.keys import compact_key, subcompaction_key
from epochlog.store.catalog.protocol import ReadTxn, Txn
from epochlog.store.env.process_id import has_died, identity
from epochlog.store.metadata.definitions import TableDef
from epochlog.store.metadata.lookups import get_runs, get_table, get_version, require_runs
from epochlog.store.session.write_intents import find_revoked_intent
from epochlog.store.types.key_codec import KeyCodec

from .strategy import CompactionStrategy, past_task
from .subcompactions import cut_task
from .task_record import CompactionOutcome, Work, parts_to_record, read_entries, read_work

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

CLAIM_MS = 120_000
"""How long a claim lasts after each subcompaction, in ms, when its owner may have died on another machine."""


def claim_work(
    handle: Handle, table: TableDef, strategy: CompactionStrategy | None, *, full: bool, l0_only: bool, by: str
) -> Work | CompactionOutcome:
    """Claim a task: one that a dead process left behind, else the strategy's pick, else one that drops replaced rows
    which no tag keeps; NOTHING or BUSY without one.
    """

    def body(view: ReadTxn) -> Work | CompactionOutcome:
        now_ms, owner = handle.catalog.now_ms(), handle.new_holder("compaction")
        present = read_work(view, table.id)
        if present is not None:
            if not is_alive(handle, present, handle.clock_guard.slowest_ms(view)):
                ends = now_ms + CLAIM_MS
                return replace(present, owner=owner, process=identity(), expires_ms=ends, taken_over=True)
            if not l0_only or present.task.l0_after is not None:
                return CompactionOutcome.BUSY
        version, runs = get_version(view, table.id, table.name), get_runs(view, table.id)
        require_runs(table.name, version, runs)
        options = get_table(view, table.id, table.name).options  # of now: they may have been altered
        task = None
        if strategy is not None:
            task = strategy.pick(version, runs, compact_segments=options.compact_segments, full=full, l0_only=l0_only)
        if task is None and not l0_only:
            task = past_task(version, runs)
        inputs = task.inputs(runs) if task is not None else None
        if task is None or inputs is None:
            return CompactionOutcome.NOTHING
        codec = KeyCodec(table.schema.schema, table.schema.primary_key)
        ranges = cut_task(codec, task, inputs, read_entries(view, table.id, task))
        return Work(task, tuple(ranges), owner, identity(), by, now_ms, now_ms + CLAIM_MS, {})

    def claim(tx: Txn) -> Work | CompactionOutcome:
        get_table(tx, table.id, table.name)
        work = body(tx)
        if isinstance(work, Work) and len(work.subcompactions) > 1:
            present = read_work(tx, table.id)
            if present is not None and present.task != work.task:
                return CompactionOutcome.BUSY  # a table has the record of one task
            tx.put(compact_key(table.id), work.to_record())
        return work

    work = handle.catalog.read(body)
    return handle.catalog.transact(claim) if isinstance(work, Work) and len(work.subcompactions) > 1 else work


def is_alive(handle: Handle, work: Work, now_ms: int) -> bool:
    """Return True if the task's owner may still run: its lease is live here, or unexpired and its process not known to
    be dead.
    """
    if work.owner in handle.leases.live:
        return True
    if work.expires_ms <= now_ms or has_died(work.process):
        return False
    return not handle.clock_guard.outlived(work.owner, work.expires_ms, CLAIM_MS)


def record_subcompaction(handle: Handle, table: TableDef, work: Work, number: int) -> bool:
    """Record that a subcompaction is done; return False if another process has taken the task over, or the table is
    gone.
    """
    parts = parts_to_record(work.done[number])

    def body(tx: Txn) -> bool:
        record = tx.get(compact_key(table.id))
        if record is None or record["owner"] != work.owner or not may_take(tx, work, [number]):
            return False
        tx.put(subcompaction_key(table.id, number), parts)
        tx.put(compact_key(table.id), {**record, "expires_ms": handle.catalog.now_ms() + CLAIM_MS})
        return True

    return handle.catalog.transact(body)


def may_take(view: ReadTxn, work: Work, numbers: Sequence[int]) -> bool:
    """Return True if vacuum has revoked no write intent of the parts newly written for these subcompactions; it deletes
    such parts.
    """
    fresh = [work.done[number] for number in numbers if work.subcompactions[number].reused is None]
    paths = [part.path for live, history in fresh for part in (*live, *history)]
    return find_revoked_intent(view, paths) is None


def release_claim(handle: Handle, table: TableDef, work: Work) -> None:
    """End the claim at once, so that any process may take the task over. Without an owner, no renewal extends it."""

    def body(tx: Txn) -> None:
        record = tx.get(compact_key(table.id))
        if record is not None and record["owner"] == work.owner:
            tx.put(compact_key(table.id), {**record, "owner": "", "expires_ms": 0})

    handle.catalog.transact(body)
