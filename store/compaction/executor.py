"""Compaction of a table: pick a task, merge its subcompactions, put the new run in the place of its inputs.

The strategy (strategy.py), the subcompactions (subcompactions.py), the merge (rewriter.py, subcompaction_rewriter.py)
and the read-back of new files (read_back.py) know no catalog; claims and records of work under way are in claim.py and
work.py. Commits go on meanwhile: they only add entries above the task's epoch. The run takes effect in one transaction,
if its inputs are still there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from epochlog.errors import EpochlogError, ReadBackFailed, TableDropped
from epochlog.store.catalog.keys import compact_key, head_key, runs_key
from epochlog.store.catalog.protocol import Txn
from epochlog.store.env.clock import monotonic_s
from epochlog.store.env.failpoints import hit
from epochlog.store.env.log_events import COMPACTION
from epochlog.store.env.metrics import (
    COMPACTION_CHECK_FAILURES,
    COMPACTION_CHECKED_ROWS,
    COMPACTION_SECONDS,
    COMPACTION_WRITTEN_BYTES,
    COMPACTIONS,
)
from epochlog.store.metadata.commit_log import delete_entry
from epochlog.store.metadata.counters import move_counters
from epochlog.store.metadata.definitions import Counters, TableDef
from epochlog.store.metadata.lookups import get_runs, get_table, get_version
from epochlog.store.metadata.reachable_files import files_of
from epochlog.store.metadata.unreachable_files import mark_unreachable
from epochlog.store.metadata.version import apply_runs, runs_to_record
from epochlog.store.retention.retention import raise_safe_epoch
from epochlog.store.sst.data_file import FileMissing
from epochlog.store.sst.sorted_run import RunFile, SortedRun

from .claim import CLAIM_MS, claim_work, may_take, record_subcompaction, release_claim
from .read_back import sampled_rows
from .strategy import CompactionStrategy, CompactionTask
from .subcompaction_rewriter import RewriteSubcompactions, SubcompactionRewriter, delete_parts, rewrite_in_threads
from .task_record import CompactionOutcome, Parts, Work, delete_work, read_inputs
from .trace import put_trace, trace_of
from .universal import UniversalStrategy

if TYPE_CHECKING:
    from epochlog.store.session.handle import Handle

STRATEGY: CompactionStrategy = UniversalStrategy()
Progress = Callable[[int, int], None]


def compact_table(
    handle: Handle,
    table: TableDef,
    *,
    full: bool = False,
    l0_only: bool = False,
    past_only: bool = False,
    budget: int | None = None,
    by: str = "command",
    progress: Progress = lambda done, total: None,
    rewrite: RewriteSubcompactions = rewrite_in_threads,
) -> CompactionOutcome:
    """Compact one table if it is due (`full`: if there is anything to merge); at most `budget` subcompactions of it
    now.

    l0_only: merge only L0, which is quick. past_only: only drop replaced rows that no tag keeps. by: the caller's name
    in the trace. progress: called with the numbers of finished and of all subcompactions. rewrite: rewrites
    subcompactions, in this process or elsewhere; all else happens here.
    """
    raise_safe_epoch(handle, table)
    strategy = None if past_only else STRATEGY
    work = claim_work(handle, table, strategy, full=full, l0_only=l0_only, by=by)
    if not isinstance(work, Work):
        return work
    began_s = monotonic_s()
    try:
        outcome = _run_task(handle, table, work, budget, progress, rewrite)
    except ReadBackFailed:
        handle.recorder.add(COMPACTION_CHECK_FAILURES, table.name)
        raise
    handle.recorder.add(COMPACTIONS, table.name, outcome.value)
    took_s = monotonic_s() - began_s
    handle.recorder.observe(COMPACTION_SECONDS, seconds=took_s)
    handle.log(COMPACTION, table=table.name, outcome=outcome.value, by=by, took_ms=round(took_s * 1000))
    if outcome is CompactionOutcome.DONE and work.taken_over and budget is None:  # an older task than the requested one
        later = compact_table(handle, table, full=full, l0_only=l0_only, by=by, progress=progress, rewrite=rewrite)
        outcome = outcome if later is CompactionOutcome.NOTHING else later
    return outcome


def _run_task(
    handle: Handle, table: TableDef, work: Work, budget: int | None, progress: Progress, rewrite: RewriteSubcompactions
) -> CompactionOutcome:
    claimed = len(work.subcompactions) > 1
    with _claim_renewed(handle, table, work) if claimed else nullcontext():
        try:
            outcome = _run_subcompactions(handle, table, work, budget, progress, rewrite, claimed=claimed)
        except TableDropped:
            outcome = CompactionOutcome.LOST
        except FileMissing as error:
            if error.path in handle.catalog.read(lambda view: files_of(view, table.id)):
                raise
            outcome = _abandon(handle, table, work, claimed=claimed)  # vacuum has deleted an input meanwhile
    if outcome is CompactionOutcome.LOST:
        handle.leases.renew()  # a revoked write intent is replaced for the next try
    if claimed and outcome is not CompactionOutcome.DONE:
        release_claim(handle, table, work)
    return outcome


@contextmanager
def _claim_renewed(handle: Handle, table: TableDef, work: Work) -> Iterator[None]:
    """Renew the claim of the task meanwhile; release it at an error."""
    handle.leases.keep(work.owner, [compact_key(table.id)], CLAIM_MS, at_end="mark")
    try:
        yield
    except (Exception, KeyboardInterrupt):
        with suppress(EpochlogError):  # the claim expires
            release_claim(handle, table, work)
        raise
    finally:
        handle.leases.forget(work.owner)


def _run_subcompactions(
    handle: Handle,
    table: TableDef,
    work: Work,
    budget: int | None,
    progress: Progress,
    rewrite: RewriteSubcompactions,
    *,
    claimed: bool,
) -> CompactionOutcome:
    inputs, current = handle.catalog.read(
        lambda view: (read_inputs(view, table, work.task), get_table(view, table.id, table.name))
    )
    if inputs is None:
        return _abandon(handle, table, work, claimed=claimed)
    started, todo = monotonic_s(), _todo(work, budget if claimed else None)
    runs, entries = inputs
    rewriter = SubcompactionRewriter(handle.files, current, work, runs, tuple(entries))
    with closing(_new_parts(handle, work, todo, rewriter, rewrite)) as new_parts:
        for number, parts in new_parts:
            work = replace(work, done={**work.done, number: parts})
            hit("compact:range-written")
            if work.subcompactions[number].reused is None:
                _count_written(handle, current, parts)
            if claimed and not record_subcompaction(handle, table, work, number):
                return _abandon(handle, table, work, claimed=False, only=parts)
            hit("compact:range-recorded")
            progress(len(work.done), len(work.subcompactions))
    if len(work.done) < len(work.subcompactions):
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


def _count_written(handle: Handle, table: TableDef, parts: Parts) -> None:
    """Count the bytes of new parts, and the rows of them that were read back."""
    new_parts, check = (*parts[0], *parts[1]), table.options.compaction_check
    columns = [len(table.schema.schema) + len(part.dropped) for part in new_parts]
    checked = sum(sampled_rows(part, check, count) for part, count in zip(new_parts, columns, strict=True))
    handle.recorder.add(COMPACTION_WRITTEN_BYTES, table.name, by=sum(part.bytes for part in new_parts))
    handle.recorder.add(COMPACTION_CHECKED_ROWS, table.name, by=checked)


def _todo(work: Work, budget: int | None) -> list[int]:
    """Return the subcompactions that are not done yet, as many as the budget allows; those that reuse a part cost
    nothing.
    """
    todo, spent = [], 0
    for number, subcompaction in enumerate(work.subcompactions):
        if number not in work.done:
            spent += subcompaction.reused is None
            if budget is not None and spent > budget:
                break
            todo.append(number)
    return todo


def _new_parts(
    handle: Handle, work: Work, todo: Sequence[int], rewriter: SubcompactionRewriter, rewrite: RewriteSubcompactions
) -> Generator[tuple[int, Parts], None, None]:
    """Yield the number and the new parts of each of these subcompactions: first of those that reuse a part."""
    reusable = {part.path: part for run in rewriter.runs for part in run.parts}
    to_rewrite: list[int] = []
    for number in todo:
        reused = work.subcompactions[number].reused
        if reused is None:
            to_rewrite.append(number)
        else:
            yield number, ((reusable[reused],), ())
    if to_rewrite:
        with closing(rewrite(handle, rewriter, to_rewrite)) as rewritten:
            yield from rewritten


def _finish(handle: Handle, tx: Txn, table: TableDef, work: Work, took_ms: int) -> bool:
    """Put the new run in the place of its inputs; return False, and change nothing, if they are not there any more."""
    task, present = work.task, read_inputs(tx, table, work.task)
    record = tx.get(compact_key(table.id)) if len(work.subcompactions) > 1 else None
    if present is None or (len(work.subcompactions) > 1 and (record is None or record["owner"] != work.owner)):
        return False
    if len(work.subcompactions) == 1 and not may_take(tx, work, [0]):
        return False
    inputs, entries = present
    if not _has_history(inputs, task):
        return False
    version, runs, now_ms = get_version(tx, table.id, table.name), get_runs(tx, table.id), handle.catalog.now_ms()
    output = _output(work, task.kept(inputs))
    if task.past_only:
        output = replace(output, parts=inputs[0].parts)
    at = runs.index(inputs[0]) if inputs else len(runs)
    after = (*runs[:at], output, *runs[at + len(inputs) :])
    tx.put(head_key(table.id), apply_runs(version, after, entries).to_record())
    tx.put(runs_key(table.id), runs_to_record(after))
    kept = {part.path for part in (*output.parts, *output.history)}
    old = [part for run in inputs for part in (*run.parts, *run.history)]
    mark_unreachable(tx, table.id, [(part.path, part.bytes) for part in old if part.path not in kept], now_ms)
    for entry in entries:  # already truncated from the log, and no read needs them now
        if entry.epoch < version.log_start:
            delete_entry(tx, table.id, entry.epoch)
            mark_unreachable(tx, table.id, [(file.path, file.bytes) for file in entry.files], now_ms)
    if len(work.subcompactions) > 1:
        delete_work(tx, table.id)
    number = move_counters(tx, Counters.read(tx))
    put_trace(tx, table.id, number, trace_of(work, old, output, entries, now_ms, took_ms))
    return True


def _has_history(runs: Sequence[SortedRun], task: CompactionTask) -> bool:
    """Return True if the runs still have all history parts that the task has merged; another task, whose output is
    among the others, may have copied rows out of them.
    """
    return {part.path for run in runs for part in run.history}.issuperset(task.rewritten)


def _output(work: Work, kept: Sequence[RunFile]) -> SortedRun:
    ordered = [work.done[number] for number in sorted(work.done)]
    live = tuple(part for parts, _ in ordered for part in parts)
    history = tuple(part for _, parts in ordered for part in parts)
    return SortedRun(work.task.lo, work.task.hi, live, (*kept, *history))


def _abandon(
    handle: Handle,
    table: TableDef,
    work: Work,
    *,
    claimed: bool,
    only: Parts | None = None,
) -> CompactionOutcome:
    """Delete the files of a compaction that cannot finish; vacuum retries failures."""

    def body(tx: Txn) -> bool:
        record = tx.get(compact_key(table.id))
        if record is None or record["owner"] != work.owner:
            return False
        delete_work(tx, table.id)
        return True

    mine = not claimed or handle.catalog.transact(body)
    if mine or only is not None:
        reused = {subcompaction.reused for subcompaction in work.subcompactions}
        for live, history in work.done.values() if only is None else (only,):
            delete_parts(handle.files, (tuple(part for part in live if part.path not in reused), history))
    return CompactionOutcome.LOST
