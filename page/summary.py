"""Summary of a store in one sentence: the epoch at which it can be read, and the tables that hold it back (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from epochlog.facts.store import Facts, StoreLook
from epochlog.facts.text import epoch_iso, iso, one_line
from epochlog.facts.wait_texts import JobLook
from epochlog.store.epochs.explain import blamed
from epochlog.store.epochs.view import EpochView
from epochlog.store.types.epoch import show_span, to_unix_ms
from epochlog.store.types.epoch_set import FAR, first_after
from epochlog.store.verify.doctor import lead_ms

MOST_NAMED = 3
"""Tables that the sentence names; it counts the others."""
MOST_HELD = 50
"""Late tables that the facts describe; `held` is the number of all."""
MOST_STEPS = 32
"""Epochs past the common one that the search for a late table tries."""
_ERROR_TYPE = re.compile(r"[A-Za-z_][\w.]*(?=: |:?$)", re.ASCII)


@dataclass(frozen=True, slots=True)
class CommonEpoch:
    """Newest epoch at which tables can be read together, and the tables without which it would be newer."""

    epoch: int | None
    """Newest common epoch; None if there is none."""
    tables: tuple[str, ...]
    """Tables that share it."""
    missing: tuple[str, ...]
    """Other tables of the store."""
    blame: Mapping[str, str]
    """Tables that hold the epoch back or, if some are missing, because of which they are; with a sentence each."""

    @property
    def held_by(self) -> tuple[str, ...]:
        return tuple(self.blame)


def newest_common_epoch(view: EpochView) -> CommonEpoch:
    """Return the common epoch of all tables; if there is none, that of the tables apart from the late ones."""
    names = sorted(view.ids)
    if not names:
        return CommonEpoch(None, (), (), {})
    epoch = view.largest_valid_at_most(names)
    if epoch is not None:
        later = {} if epoch >= view.last_epoch else _holders(view, names, epoch)
        return CommonEpoch(epoch, tuple(names), (), later)
    late = _blame(view, names, view.last_epoch)
    excluded = descendants(view, late)
    others = [name for name in names if name not in excluded]
    epoch = view.largest_valid_at_most(others) if others else None
    return CommonEpoch(epoch, tuple(others), tuple(sorted(excluded)), late)


def descendants(view: EpochView, names: Iterable[str]) -> set[str]:
    """Return these tables and all that are derived from them."""
    held = {view.ids[name] for name in names}
    for table in view.present.closure(view.tables):
        if not held.isdisjoint(table.upstreams) and not table.ended:
            held.add(table.table_id)
    return {view.tables[table_id].name for table_id in held}


def summary_facts(look: StoreLook, common: CommonEpoch) -> Facts:
    """Describe the common epoch. text: one sentence or two; age_ms: the age of the epoch; lag_ms: that of the oldest
    change that a read at the epoch lacks; chain: the tables on the way of the changes that are not reflected; held_by:
    the late tables, each with its job, the reason and a typed error.
    """
    jobs = {job.info.name: job for job in look.jobs}
    owners = {output: job for job in look.jobs for output in job.info.outputs}
    named = list(common.blame.items())[:MOST_HELD]
    held = [held_facts(jobs, owners.get(table), table, reason, look.now_ms) for table, reason in named]
    age_ms = None if common.epoch is None else max(0, look.now_ms - to_unix_ms(common.epoch))
    return {
        "text": " ".join(sentences(look, common, held, age_ms)),
        "epoch": common.epoch,
        "as_of": epoch_iso(common.epoch or 0),
        "age_ms": age_ms,
        "lag_ms": _lag_ms(look.epochs, common),
        "tables": len(common.tables),
        "missing": list(common.missing),
        "held_by": held,
        "held": len(common.blame),
        "chain": chain(look, common),
    }


def sentences(look: StoreLook, common: CommonEpoch, held: Sequence[Facts], age_ms: int | None) -> Iterator[str]:
    """Yield the sentences of the summary."""
    if not look.tables:
        yield "The store has no table yet."
        return
    if not look.last_epoch:
        yield f"Nothing is committed yet: {_tables(len(look.tables))}."
    elif common.epoch is None or age_ms is None:
        yield f"No epoch of the {_tables(len(look.tables))} can be read."
    else:
        lead = lead_ms(common.epoch, look.now_ms)
        age = f"which leads the clock by {show_span(lead)}" if lead else f"{show_span(age_ms)} ago"
        when = f"{clock_time(common.epoch, look.now_ms)}, {age}"
        subject = f"{len(common.tables)} of {_tables(len(look.tables))}" if common.missing else "Everything"
        newest = ": it is the newest epoch" if common.epoch == look.last_epoch and not common.missing else ""
        yield f"{subject} can be read as of {when}{newest}."
    named = [f"`{facts['table']}`: {facts['reason']}" for facts in held[:MOST_NAMED]]
    if named:
        hidden = len(common.blame) - len(named)
        more = f"; and {_tables(hidden)} more" if hidden else ""
        yield f"{'Left out' if common.missing else 'Held back by'} {'; '.join(named)}{more}."
    yield from _also_in_trouble(look, {facts["cause"] for facts in held})


def _also_in_trouble(look: StoreLook, named: Collection[str | None]) -> Iterator[str]:
    """Yield a sentence for the failing jobs, and one for the parked jobs, apart from those that are named already."""
    for kind, word in (("failed", "failing"), ("rebuild", "parked")):
        names = [job.info.name for job in look.jobs if job.wait.kind == kind and job.info.name not in named]
        if names:
            more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
            yield f"Also {word}: {', '.join(f'`{name}`' for name in names[:MOST_NAMED])}{more}."


def held_facts(jobs: Mapping[str, JobLook], owner: JobLook | None, table: str, blame: str, now_ms: int) -> Facts:
    """Describe a late table. owner: the job that writes it. blame: the sentence about its epochs; cause: the job at the
    head of the chain of jobs that wait; kind: that of its `waits_for`, or `epochs` for a table without a job.
    """
    cause = owner if owner is None else jobs.get(owner.wait.cause or owner.info.name, owner)
    facts: Facts = {"table": table, "blame": blame, "error": None}
    if owner is None or cause is None:
        return {**facts, "job": None, "cause": None, "kind": "epochs", "reason": one_line(blame)}
    reason = _reason(cause, now_ms) or one_line(blame)
    if cause is not owner:
        reason = f"it waits for job {cause.info.name}: {reason}"
    return {
        **facts,
        "job": owner.info.name,
        "cause": cause.info.name,
        "kind": cause.wait.kind,
        "reason": reason,
        "error": error_of(cause),
    }


def error_of(job: JobLook) -> Facts | None:
    """Describe the error of the newest attempt by its type and text; None without one."""
    return None if job.record.last_error is None else typed_error(job.record.last_error)


def typed_error(text: str) -> Facts:
    """Divide a recorded error, `Type: message`, into its type and its text. The type is `Error` if it has none."""
    match = _ERROR_TYPE.match(text)
    return {"type": match.group() if match else "Error", "text": text}


def clock_time(epoch: int, now_ms: int) -> str:
    """Format the time of an epoch as `12:03:07` in UTC, with the date if that is another one than now's."""
    when, now = iso(to_unix_ms(epoch)), iso(now_ms)
    return when[11:19] if when[:10] == now[:10] else f"{when[:10]} {when[11:19]}"


def chain(look: StoreLook, common: CommonEpoch) -> list[str]:
    """Return the way of the changes that the common epoch lacks: from the upstreams that have them, over the tables
    that hold it back, to the tables derived from these.
    """
    view, late = look.epochs, common.held_by
    if not late:
        return []
    waits = {job.info.name: job.wait for job in look.jobs}
    owner = {output: job.info.name for job in look.jobs for output in job.info.outputs}
    names, stack = set[str](), list(late)
    while stack:
        name = stack.pop()
        if name in names:
            continue
        names.add(name)
        table = view.table(name)
        stack += (view.tables[up].name for up in table.upstreams if view.tables[up].first_change(table.position) < FAR)
        wait = waits.get(owner.get(name, ""))
        if wait is not None and wait.upstream is not None:
            stack.append(wait.upstream)
    return sorted(names | descendants(view, late))


def _reason(job: JobLook, now_ms: int) -> str:
    """Return the reason why a job has not committed, without the names of tables; "" if only the epochs explain it."""
    wait, record = job.wait, job.record
    match wait.kind:
        case "failed":
            since = "" if record.failed_ms is None else f" for {show_span(max(0, now_ms - record.failed_ms))}"
            error = error_of(job)
            return f"its refresh has failed{since} ({error['type'] if error else 'Error'})"
        case "runner" if job.info.runner is not None and record.barrier is not None:
            return f"its refresh is running, due {_past(wait.since_ms, now_ms)}"
        case "runner":
            due = f"due {_past(wait.since_ms, now_ms)}"
            return f"its refresh was {due}" if job.info.runner is not None else f"no live process runs it, {due}"
        case "boundary":
            left_ms = max(0, to_unix_ms(wait.epoch or 0) + 1 - now_ms)
            return f"its next boundary is in {show_span(left_ms)}"
        case "rebuild":
            return "it is parked until job.rebuild()"
        case _:
            return ""


def _past(since_ms: int | None, now_ms: int) -> str:
    return f"{show_span(max(0, now_ms - (since_ms or now_ms)))} ago"


def _blame(view: EpochView, names: Sequence[str], epoch: int) -> dict[str, str]:
    """Return the tables that by themselves prevent a read at the epoch, each with the sentence; those of one table are
    joined.
    """
    blame: dict[str, str] = {}
    for table, sentence in blamed(view, names, min(epoch, view.last_epoch)):
        if table is not None:
            blame[table] = f"{blame[table]}; {sentence}" if table in blame else sentence
    return blame


def _holders(view: EpochView, names: Sequence[str], epoch: int) -> dict[str, str]:
    """Return the tables that keep the common epoch from being newer, with a sentence each.

    Later epochs are tried in order, up to one at which a table without a commit there prevents a read: such tables hold
    the common epoch back. A table that has a later commit does not; it merged the boundaries before that commit, so the
    search goes on there. Example: at 41 only `a` prevents a read, but it has committed at 50; at 50 `b`, which has
    not committed since 40 and lacks a change of 45, does: `b` holds the common epoch back.
    """
    at = epoch + 1
    for _ in range(MOST_STEPS):
        blame = _blame(view, names, at)
        late = {table: sentence for table, sentence in blame.items() if view.table(table).position < at}
        if late or not blame:
            return late
        at = max(first_after(view.table(table).commits, at) for table in blame)
    return _blame(view, names, epoch + 1)


def _lag_ms(view: EpochView, common: CommonEpoch) -> int | None:
    if common.epoch is None:
        return None
    sharing = set(common.tables)
    return max((view.lag_ms(table, common.epoch) for table in common.held_by if table in sharing), default=0)


def _tables(count: int) -> str:
    return f"{count:,} table{'s' * (count != 1)}"
