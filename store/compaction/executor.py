"""Compacting a table: pick a task, work it off piece by piece, put its run in place.

Picking (strategy.py, task_pieces.py) and folding (rewriter.py) know no catalog; here is what may go wrong between
them. A task of several pieces is a record that names its owner, and so is each piece that is done: after a crash, or
when its budget is spent, whoever comes next goes on where it stopped. Commits go on meanwhile, they only add entries
above the task's epoch; the run takes effect in one transaction if its inputs are still there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from epochlog.errors import TableDropped, WriteFailed
from epochlog.store.catalog.keys import after_prefix, compact_key, head_key, log_key, piece_key, runs_key, trace_key
from epochlog.store.catalog.protocol import Txn, View
from epochlog.store.catalog.records import Record
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.failpoints import hit
from epochlog.store.env.paths import RUN_ENDING
from epochlog.store.env.process_id import has_died, identity
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.lookups import get_entries, get_runs, get_table, get_version
from epochlog.store.metadata.reachable_files import files_of
from epochlog.store.metadata.unreachable_files import mark_unreachable
from epochlog.store.metadata.version import LogEntry, Runs, apply_runs, runs_to_record
from epochlog.store.retention.retention import raise_safe_epoch
from epochlog.store.session.write_intents import revoked
from epochlog.store.sst.data_file import FileGone
from epochlog.store.sst.sorted_run import RunFile, SortedRun
from epochlog.store.types.key_codec import KeyCodec

from .rewriter import Rewriter
from .strategy import CompactionStrategy, CompactionTask
from .task_pieces import Piece, pieces
from .universal import UniversalStrategy

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

STRATEGY: CompactionStrategy = UniversalStrategy()
KEPT_TRACES = 256
CLAIM_MS = 120_000
"""How long a task is its owner's after each piece: the owner may have died on another machine."""
AT_ONCE = 2
"""Pieces in memory at a time."""

Progress = Callable[[int, int], None]
Parts = tuple[tuple[RunFile, ...], tuple[RunFile, ...]]
"""Live and history parts of a piece."""


class CompactionOutcome(StrEnum):
    """Result of a compaction call. NOTHING: no task was due. PROGRESS: some pieces are done, more are left. DONE: the
    new run is in place. BUSY: another process works on the task. LOST: the inputs have gone; nothing is left behind.
    """

    NOTHING = "nothing"
    PROGRESS = "progress"
    DONE = "done"
    BUSY = "busy"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Trace:
    """One finished compaction of a table, and why it was picked. Rows and bytes are those of all inputs and outputs;
    `reused` bytes were neither read nor written.
    """

    at_ms: int
    by: str
    reason: str
    after: int
    until: int
    runs: int
    segments: int
    rows_in: int
    rows_out: int
    bytes_in: int
    bytes_out: int
    bytes_reused: int
    pieces: int
    took_ms: int

    def to_record(self) -> Record:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Work:
    """A task under way: its pieces, those done so far with their (live, history) parts, and who works on it."""

    task: CompactionTask
    pieces: tuple[Piece, ...]
    owner: str
    process: str
    by: str
    since_ms: int
    expires_ms: int
    done: dict[int, Parts]
    taken_over: bool = False

    def to_record(self) -> Record:
        """Return the record of the task without its finished pieces: each of these has a record of its own."""
        plain = {name: getattr(self, name) for name in ("owner", "process", "by", "since_ms", "expires_ms")}
        ranges = [[piece.low, piece.high, piece.reused] for piece in self.pieces]
        return {**plain, "task": self.task.to_record(), "pieces": ranges}

    @property
    def parts(self) -> tuple[RunFile, ...]:
        return tuple(part for live, history in self.done.values() for part in (*live, *history))


def read_work(view: View, table_id: int) -> Work | None:
    """Return the table's compaction that is under way, or was when its process died."""
    record = view.get(compact_key(table_id))
    if record is None:
        return None
    prefix = compact_key(table_id) + b"/"
    done = {
        int(key[-8:], 16): (
            tuple(map(RunFile.from_record, found["live"])),
            tuple(map(RunFile.from_record, found["history"])),
        )
        for key, found in view.scan(prefix, after_prefix(prefix))
    }
    found = {
        **record,
        "task": CompactionTask.from_record(record["task"]),
        "pieces": tuple(Piece(*piece) for piece in record["pieces"]),
    }
    return Work(**found, done=done)


def read_traces(view: View, table_id: int) -> list[Trace]:
    """Return a table's finished compactions, newest first; the last KEPT_TRACES."""
    prefix = b"trace/%08x/" % table_id
    return [Trace(**record) for _, record in view.scan(prefix, after_prefix(prefix), reverse=True)]


def compact_table(
    handle: Handle,
    table: TableDef,
    *,
    full: bool = False,
    l0_only: bool = False,
    budget: int | None = None,
    by: str = "command",
    progress: Progress = lambda done, total: None,
) -> CompactionOutcome:
    """Compact one table if it is due (`full`: if there is anything to merge); at most `budget` pieces of it now.

    l0_only: only L0, which is quick. by: who asks, for the trace. progress: is told of the pieces done, of how many.
    """
    raise_safe_epoch(handle, table)
    work = _begin(handle, table, full=full, l0_only=l0_only, by=by)
    if not isinstance(work, Work):
        return work
    outcome = _compact(handle, table, work, budget, progress)
    if outcome is CompactionOutcome.DONE and work.taken_over and budget is None:  # that was not what was asked for
        later = compact_table(handle, table, full=full, l0_only=l0_only, by=by, progress=progress)
        outcome = outcome if later is CompactionOutcome.NOTHING else later
    return outcome


def _compact(handle: Handle, table: TableDef, work: Work, budget: int | None, progress: Progress) -> CompactionOutcome:
    claimed = len(work.pieces) > 1
    key = compact_key(table.id)
    if claimed:
        handle.leases.keep(work.owner, [key], CLAIM_MS)
    try:
        outcome = _work_off(handle, table, work, budget, progress, claimed=claimed)
    except TableDropped:
        return CompactionOutcome.LOST
    except FileGone as error:
        if error.path in handle.catalog.read(lambda view: files_of(view, table.id)):
            raise
        outcome = _abandon(handle, table, work, claimed=claimed)  # an input was let go of meanwhile, and vacuumed
    finally:
        if claimed:
            handle.leases.forget(work.owner)
    if outcome is CompactionOutcome.LOST:
        handle.leases.renew()  # if our intent was revoked, the next try has another one
    return outcome


# ---- whose task ----------------------------------------------------------------------------------------------------


def _begin(handle: Handle, table: TableDef, *, full: bool, l0_only: bool, by: str) -> Work | CompactionOutcome:
    """Return the task to work on: one that a dead process left behind, else a new one; NOTHING or BUSY without one."""

    def body(view: View) -> Work | CompactionOutcome:
        now_ms, owner = handle.catalog.now_ms(), handle.new_holder("compaction")
        found = read_work(view, table.id)
        if found is not None:
            if not is_alive(handle, found, now_ms):
                ends = now_ms + CLAIM_MS
                return replace(found, owner=owner, process=identity(), expires_ms=ends, taken_over=True)
            if not l0_only or found.task.l0_after is not None:
                return CompactionOutcome.BUSY
        version, runs = get_version(view, table.id, table.name), get_runs(view, table.id)
        enough = get_table(
            view, table.id, table.name
        ).options.compact_segments  # as it is now: it may have been altered
        task = STRATEGY.pick(version, runs, compact_segments=enough, full=full, l0_only=l0_only)
        inputs = task.inputs(runs) if task is not None else None
        if task is None or inputs is None:
            return CompactionOutcome.NOTHING
        codec = KeyCodec(table.schema.schema, table.schema.primary_key)
        ranges = pieces(codec, task, inputs, _entries(view, table.id, task))
        return Work(task, tuple(ranges), owner, identity(), by, now_ms, now_ms + CLAIM_MS, {})

    def claim(tx: Txn) -> Work | CompactionOutcome:
        get_table(tx, table.id, table.name)
        work = body(tx)
        if isinstance(work, Work) and len(work.pieces) > 1:
            present = read_work(tx, table.id)
            if present is not None and present.task != work.task:
                return CompactionOutcome.BUSY  # two tasks of many pieces have no room in one record
            tx.put(compact_key(table.id), work.to_record())
        return work

    work = handle.catalog.read(body)
    return handle.catalog.transact(claim) if isinstance(work, Work) and len(work.pieces) > 1 else work


def _entries(view: View, table_id: int, task: CompactionTask) -> list[LogEntry]:
    return [] if task.l0_after is None else get_entries(view, table_id, task.l0_after, task.hi)


def is_alive(handle: Handle, work: Work, now_ms: int) -> bool:
    """Return True if the task's owner may still run: its lease is live here, or unexpired and its process not known to
    be dead.
    """
    if work.owner in handle.leases.live:
        return True
    return work.expires_ms > now_ms and not has_died(work.process)


# ---- the work ------------------------------------------------------------------------------------------------------


def _work_off(
    handle: Handle, table: TableDef, work: Work, budget: int | None, progress: Progress, *, claimed: bool
) -> CompactionOutcome:
    inputs = handle.catalog.read(lambda view: _inputs(view, table, work.task))
    if inputs is None:
        return _abandon(handle, table, work, claimed=claimed)
    started, todo = monotonic_s(), _todo(work, budget if claimed else None)
    with closing(_folded(handle, table, work, todo, *inputs)) as folded:
        for number, parts in folded:
            work = replace(work, done={**work.done, number: parts})
            hit("compact:range-written")
            if claimed and not _record(handle, table, work, number):
                return _abandon(handle, table, work, claimed=False, only=parts)
            hit("compact:range-recorded")
            progress(len(work.done), len(work.pieces))
    if len(work.done) < len(work.pieces):
        _let_go_of_claim(handle, table, work)
        return CompactionOutcome.PROGRESS
    hit("compact:before-finish")
    took_ms = round((monotonic_s() - started) * 1000)
    in_place = False
    with suppress(TableDropped):
        in_place = handle.catalog.transact(lambda tx: _finish(handle, tx, table, work, took_ms))
    if not in_place:
        return _abandon(handle, table, work, claimed=claimed)
    hit("compact:after-finish")
    return CompactionOutcome.DONE


def _todo(work: Work, budget: int | None) -> list[int]:
    """Return the pieces that are not done yet, as many as the budget allows; pieces that reuse a part cost nothing."""
    found, spent = [], 0
    for number, piece in enumerate(work.pieces):
        if number not in work.done:
            spent += piece.reused is None
            if budget is not None and spent > budget:
                break
            found.append(number)
    return found


def _folded(
    handle: Handle, table: TableDef, work: Work, todo: Sequence[int], runs: Runs, entries: Sequence[LogEntry]
) -> Generator[tuple[int, Parts], None, None]:
    """Yield each of these pieces with its parts, in order. The next piece is merged while one is given out: writing
    keeps one core busy. Files that were written and not taken are removed.
    """
    folder = Rewriter(handle.files, table.schema, lambda: handle.new_path(table.id, RUN_ENDING))
    reusable = {part.path: part for run in runs for part in run.parts}
    rewritten = frozenset(work.task.rewritten)

    def fold(number: int) -> Parts:
        piece = work.pieces[number]
        if piece.reused is not None:
            return (reusable[piece.reused],), ()
        task, keys = work.task, (piece.low, piece.high)
        live, history = folder.fold(
            runs, entries, keys, bottom=task.bottom, safe_epoch=task.safe_epoch, rewritten=rewritten
        )
        return tuple(live), tuple(history)

    if len(todo) == 1:
        yield todo[0], fold(todo[0])
        return
    waiting: deque[tuple[int, Future[Parts]]] = deque()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for number in todo:
                waiting.append((number, pool.submit(fold, number)))
                if len(waiting) == AT_ONCE:
                    done, future = waiting.popleft()
                    yield done, future.result()
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result()
        finally:
            for _, future in waiting:
                if not future.cancel() and future.exception() is None:
                    _remove(handle, work, future.result())


def _inputs(view: View, table: TableDef, task: CompactionTask) -> tuple[Runs, list[LogEntry]] | None:
    get_table(view, table.id, table.name)
    version = get_version(view, table.id, table.name)
    runs = task.inputs(get_runs(view, table.id))
    if runs is None or (task.l0_after is not None and version.compacted_epoch != task.l0_after):
        return None
    return runs, _entries(view, table.id, task)


def _record(handle: Handle, table: TableDef, work: Work, number: int) -> bool:
    """Record that a piece is done; return False if another process has taken the task over, or the table is gone."""
    live, history = ([part.to_record() for part in parts] for parts in work.done[number])

    def body(tx: Txn) -> bool:
        record = tx.get(compact_key(table.id))
        if record is None or record["owner"] != work.owner or not _may_take(tx, work, [number]):
            return False
        tx.put(piece_key(table.id, number), {"live": live, "history": history})
        tx.put(compact_key(table.id), {**record, "expires_ms": handle.catalog.now_ms() + CLAIM_MS})
        return True

    return handle.catalog.transact(body)


def _may_take(view: View, work: Work, numbers: Sequence[int]) -> bool:
    """Return True if vacuum has revoked no write intent of the parts newly written for these pieces; it deletes such
    parts.
    """
    fresh = [number for number in numbers if work.pieces[number].reused is None]
    return revoked(view, [part.path for number in fresh for parts in work.done[number] for part in parts]) is None


def _let_go_of_claim(handle: Handle, table: TableDef, work: Work) -> None:
    def body(tx: Txn) -> None:
        record = tx.get(compact_key(table.id))
        if record is not None and record["owner"] == work.owner:
            tx.put(compact_key(table.id), {**record, "expires_ms": 0})

    handle.leases.forget(work.owner)
    handle.catalog.transact(body)


def _finish(handle: Handle, tx: Txn, table: TableDef, work: Work, took_ms: int) -> bool:
    """Put the run in the place of its inputs; return False, and change nothing, if they have gone."""
    task, found = work.task, _inputs(tx, table, work.task)
    record = tx.get(compact_key(table.id)) if len(work.pieces) > 1 else None
    if found is None or (len(work.pieces) > 1 and (record is None or record["owner"] != work.owner)):
        return False
    if len(work.pieces) == 1 and not _may_take(tx, work, [0]):
        return False
    inputs, entries = found
    version, runs, now_ms = get_version(tx, table.id, table.name), get_runs(tx, table.id), handle.catalog.now_ms()
    output = _output(work, task.kept(inputs))
    at = runs.index(inputs[0]) if inputs else len(runs)
    after = (*runs[:at], output, *runs[at + len(inputs) :])
    tx.put(head_key(table.id), apply_runs(version, after, entries).to_record())
    tx.put(runs_key(table.id), runs_to_record(after))
    kept = {part.path for part in (*output.parts, *output.history)}
    old = [part for run in inputs for part in (*run.parts, *run.history)]
    mark_unreachable(tx, table.id, [(part.path, part.bytes) for part in old if part.path not in kept], now_ms)
    for entry in entries:  # the log let go of these before; now reads have, too
        if entry.epoch < version.log_start:
            tx.delete(log_key(table.id, entry.epoch))
            mark_unreachable(tx, table.id, [(file.path, file.bytes) for file in entry.files], now_ms)
    if len(work.pieces) > 1:
        _forget(tx, table.id)
    number = move_counters(tx, Counters.read(tx))
    _put_trace(tx, table.id, number, _trace(work, old, output, entries, now_ms, took_ms))
    return True


def _output(work: Work, kept: Sequence[RunFile]) -> SortedRun:
    ordered = [work.done[number] for number in sorted(work.done)]
    live = tuple(part for parts, _ in ordered for part in parts)
    history = tuple(part for _, parts in ordered for part in parts)
    return SortedRun(work.task.lo, work.task.hi, live, (*kept, *history))


def _trace(
    work: Work, old: Sequence[RunFile], output: SortedRun, entries: Sequence[LogEntry], now_ms: int, took_ms: int
) -> Trace:
    segments = [segment for entry in entries for segment in entry.segments]
    written = {part.path for part in work.parts} - {piece.reused for piece in work.pieces}
    fresh = [part for part in (*output.parts, *output.history) if part.path in written]
    stays = [part for part in (*output.parts, *output.history) if part.path not in written]
    read = [*(part for part in old if part not in stays), *segments]
    return Trace(
        at_ms=now_ms,
        by=work.by,
        reason=work.task.reason,
        after=work.task.lo,
        until=work.task.hi,
        runs=work.task.runs,
        segments=len(segments),
        rows_in=sum(file.rows for file in read),
        rows_out=sum(part.rows for part in fresh),
        bytes_in=sum(file.bytes for file in read),
        bytes_out=sum(part.bytes for part in fresh),
        bytes_reused=sum(part.bytes for part in stays),
        pieces=len(work.pieces),
        took_ms=took_ms,
    )


def _put_trace(tx: Txn, table_id: int, number: int, trace: Trace) -> None:
    tx.put(trace_key(table_id, number), trace.to_record())
    prefix = b"trace/%08x/" % table_id
    for key in [key for key, _ in tx.scan(prefix, after_prefix(prefix), reverse=True)][KEPT_TRACES:]:
        tx.delete(key)


# ---- the ends that bring nothing -----------------------------------------------------------------------------------


def _abandon(
    handle: Handle,
    table: TableDef,
    work: Work,
    *,
    claimed: bool,
    only: Parts | None = None,
) -> CompactionOutcome:
    """Remove files written for a compaction that cannot finish; vacuum deletes those that resist."""

    def body(tx: Txn) -> bool:
        record = tx.get(compact_key(table.id))
        if record is None or record["owner"] != work.owner:
            return False
        _forget(tx, table.id)
        return True

    mine = not claimed or handle.catalog.transact(body)
    if mine or only is not None:
        for parts in work.done.values() if only is None else (only,):
            _remove(handle, work, parts)
    return CompactionOutcome.LOST


def _remove(handle: Handle, work: Work, parts: Parts) -> None:
    """Remove parts that no version has taken; vacuum deletes those that resist."""
    reused = {piece.reused for piece in work.pieces}
    for part in (*parts[0], *parts[1]):
        if part.path not in reused:
            with suppress(WriteFailed):
                handle.files.delete(part.path)


def _forget(tx: Txn, table_id: int) -> None:
    """Delete, within a transaction, the records of a compaction under way."""
    prefix = compact_key(table_id) + b"/"
    for key in [key for key, _ in tx.scan(prefix, after_prefix(prefix))]:
        tx.delete(key)
    tx.delete(compact_key(table_id))
