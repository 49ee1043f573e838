"""Documents of the page: the state of the store, one table in full, the agreement of tables, and lanes of commits.

Each is read from one state of the catalog and has values that JSON takes. The document of the state has all fields of
`epochlog status --json`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from epochlog.batch.tags import Tag, tags_within
from epochlog.errors import EpochlogError, InvalidInput
from epochlog.facts.epochs import timeline_facts
from epochlog.facts.holds import consumer_facts, hold_facts, trace_facts, writers
from epochlog.facts.store import (
    Facts,
    RowCounter,
    StoreLook,
    TableLook,
    describe_table,
    look_within,
    status_facts,
    table_facts,
)
from epochlog.facts.text import epoch_iso, iso
from epochlog.facts.timeline import timeline
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.changelog.consumer_info import ConsumerInfo, consumers_within
from epochlog.store.compaction.trace import read_traces
from epochlog.store.epochs.explain import blamed
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import read_commits, read_epoch_view
from epochlog.store.metadata.lookups import find_job, find_table
from epochlog.store.metadata.version import Commit
from epochlog.store.retention.holds import TAG, Hold, all_holds
from epochlog.store.session.handle import Handle
from epochlog.store.types.epoch import to_unix_ms

from .summary import CommonEpoch, newest_common_epoch, summary_facts, typed_error

MOST_COMMITS = 20
MOST_STRETCHES = 160
MOST_LANES = 16
"""Tables of one request for lanes or for an agreement."""
MOST_LISTED = 200
"""Consumers, holds, writers and errors in the document; it has the number of all."""
ServerFacts = Callable[[], Facts]
"""Returns the workers and jobs of a coordinator in this process."""


@dataclass(frozen=True, slots=True)
class PageLook:
    """State of the store that the page shows, from one state of the catalog."""

    store: StoreLook
    common: CommonEpoch
    tags: list[Tag]
    consumers: list[ConsumerInfo]
    holds: list[Hold]
    """Recorded and alive."""
    writers: list[Facts]


def look_at_store(handle: Handle) -> PageLook:
    """Read everything that the page shows at first, once."""

    def body(view: ReadTxn) -> PageLook:
        look = look_within(view, handle, counts_rows=False)
        alive = handle.leases.live
        holds = [
            hold
            for _, hold in all_holds(view)
            if not hold.is_tag and (hold.expires_ms is None or hold.expires_ms > look.now_ms or hold.holder in alive)
        ]
        return PageLook(
            look,
            newest_common_epoch(look.epochs),
            tags_within(view, handle),
            consumers_within(view, handle),
            holds,
            writers(view, look.now_ms),
        )

    return handle.catalog.read(body)


def status_document(place: str, look: PageLook, server: Facts | None = None) -> Facts:
    """Return the document of the state. server: the coordinator of this process (None: there is none)."""
    store = look.store
    facts = status_facts(place, store, [table_facts(table, None) for table in store.tables], look.tags)
    levels, owners = _levels(store.epochs), {table.table.name: table for table in store.tables}
    for table in facts["tables"]:
        table.pop("rows")
        table |= _graph_facts(store.epochs, table["name"], levels)
        table |= _debt_facts(owners[table["name"]])
    summary = summary_facts(store, look.common)
    membership = store.epochs.membership
    holders = list(_holders(look, store.now_ms))
    errors = list(_errors(facts))
    return {
        **facts,
        "at_ms": store.now_ms,
        "interval_ms": store.interval_ms,
        "summary": summary,
        "global": {
            "epoch": membership.epoch if membership.members else None,
            "as_of": epoch_iso(membership.epoch) if membership.members else None,
            "members": len(membership.members),
            "left_out": dict(membership.left_out),
        },
        "consumers": [consumer_facts(info) for info in look.consumers[:MOST_LISTED]],
        "held": holders[:MOST_LISTED],
        "writers": look.writers[:MOST_LISTED],
        "runners": [{"job": job["name"], **job["runner"]} for job in facts["jobs"] if job["runner"] is not None],
        "errors": errors[:MOST_LISTED],
        "counts": {
            "tables": len(facts["tables"]),
            "jobs": len(facts["jobs"]),
            "consumers": len(look.consumers),
            "held": len(holders),
            "errors": len(errors),
        },
        "server": server,
    }


def table_document(handle: Handle, name: str) -> Facts:
    """Return the document of one table: what `epochlog describe` shows without its number of rows, its newest commits
    and compactions, and the plan of a view. Raises TableNotFound.
    """

    def body(view: ReadTxn) -> tuple[list[Commit], list[Facts]]:
        table = find_table(view, name)
        traces = [trace_facts(trace) for trace in islice(read_traces(view, table.id), MOST_COMMITS)]
        return read_commits(view, table, MOST_COMMITS), traces

    facts = describe_table(handle, name, RowCounter(handle, enabled=False))
    commits, traces = handle.catalog.read(body)
    return {
        **facts,
        "commits": [_commit_facts(commit) for commit in commits],
        "compactions": traces,
        "explain": _explained(handle, facts["job"]) if facts["sql"] is not None else None,
    }


def agreement_document(handle: Handle, names: Sequence[str]) -> Facts:
    """Return the newest epoch at which the tables agree, and the reasons why a newer one is not valid for all of them.

    newest: the epoch of each table's newest commit; against: the epoch that the reasons are about, the newest one of
    the store, or None if the tables agree on it. Raises TableNotFound, InvalidInput.
    """
    names = _checked_names(names)
    view = _read_epochs(handle)
    epoch = view.largest_valid_at_most(names)
    against = None if epoch == view.last_epoch else view.last_epoch
    reasons = [] if against is None else blamed(view, names, against)
    return {
        "tables": list(names),
        "epoch": epoch,
        "at": epoch_iso(epoch or 0),
        "age_ms": None if epoch is None else max(0, view.clock_ms - to_unix_ms(epoch)),
        "newest": {name: view.table(name).position for name in names},
        "lag_ms": {name: view.lag_ms(name, epoch) for name in names},
        "against": against,
        "why_not": [{"table": table, "reason": sentence} for table, sentence in reasons],
    }


def lanes_document(handle: Handle, names: Sequence[str]) -> Facts:
    """Return the newest stretches of the tables' timeline, as `epochlog epochs --json` has them, and the epochs of
    snapshots and tags. Raises TableNotFound, InvalidInput.
    """
    names = _checked_names(names)

    def body(view: ReadTxn) -> tuple[EpochView, list[Hold], int]:
        now_ms = handle.catalog.now_ms()
        epochs = read_epoch_view(view, handle.memory, now_ms, handle.store_id)
        wanted, alive = {epochs.ids[name] for name in names if name in epochs.ids}, handle.leases.live
        holds = [
            hold
            for _, hold in all_holds(view)
            if hold.table_id in wanted
            and hold.read_epoch is not None
            and (hold.expires_ms is None or hold.expires_ms > now_ms or hold.holder in alive)
        ]
        return epochs, holds, now_ms

    epochs, holds, now_ms = handle.catalog.read(body)
    shown = timeline(epochs, names, MOST_STRETCHES)
    marks = [
        {
            "table": epochs.tables[hold.table_id].name,
            "epoch": hold.read_epoch,
            "at": epoch_iso(hold.read_epoch or 0),
            "at_ms": to_unix_ms(hold.read_epoch or 0),
            "holder": hold.holder,
            "tag": hold.is_tag,
        }
        for hold in holds
    ]
    facts = timeline_facts(epochs, names, shown)
    for stretch in facts["stretches"]:
        stretch["first_ms"], stretch["last_ms"] = to_unix_ms(stretch["first"]), to_unix_ms(stretch["last"])
    return {"at": iso(now_ms), "at_ms": now_ms, "asked": list(names), **facts, "marks": marks[:MOST_LISTED]}


def _read_epochs(handle: Handle) -> EpochView:
    return handle.catalog.read(
        lambda view: read_epoch_view(view, handle.memory, handle.catalog.now_ms(), handle.store_id)
    )


def _checked_names(names: Iterable[str]) -> list[str]:
    distinct = list(dict.fromkeys(names))
    if not 1 <= len(distinct) <= MOST_LANES:
        raise InvalidInput(f"name 1 to {MOST_LANES} tables, not {len(distinct)}")
    return distinct


def _levels(view: EpochView) -> dict[str, int]:
    """Return the level of each table: 0 for root tables, else one more than the highest of its upstreams."""
    levels: dict[int, int] = {}
    for table in view.present.closure(view.tables):
        levels[table.table_id] = 1 + max((levels[up] for up in table.upstreams if up in levels), default=-1)
    return {view.tables[table_id].name: level for table_id, level in levels.items()}


def _graph_facts(view: EpochView, name: str, levels: dict[str, int]) -> Facts:
    table = view.table(name)
    return {
        "upstreams": [view.tables[up].name for up in table.upstreams],
        "level": levels[name],
        "complete_through": view.complete_through(name),
    }


def _debt_facts(look: TableLook) -> Facts:
    """Describe the log that waits for compaction. debt_segments: those above the number that begins a compaction."""
    segments = look.version.l0_segments
    return {
        "l0_segments": segments,
        "l0_bytes": look.version.l0_bytes,
        "debt_segments": max(0, segments - look.table.options.compact_segments),
    }


def _holders(look: PageLook, now_ms: int) -> Iterable[Facts]:
    """Yield each snapshot, read or replay that holds tables, oldest first, with its tables and epochs."""
    names = {table_id: table.name for table_id, table in look.store.epochs.tables.items()}
    by_holder: dict[str, list[Hold]] = {}
    for hold in look.holds:
        if hold.table_id in names and not hold.holder.startswith(TAG):
            by_holder.setdefault(hold.holder, []).append(hold)
    for holds in sorted(by_holder.values(), key=lambda holds: min(hold.since_ms for hold in holds)):
        facts = hold_facts(min(holds, key=lambda hold: hold.since_ms), now_ms)
        epochs = {names[hold.table_id]: hold.read_epoch or hold.log_epoch for hold in holds}
        yield {**facts, "tables": dict(sorted(epochs.items()))}


def _errors(facts: Facts) -> Iterable[Facts]:
    """Yield the failures of jobs, the reasons of parked jobs, and the failures of maintenance, with types."""
    for job in facts["jobs"]:
        if job["last_error"] is not None:
            error = typed_error(job["last_error"])
            yield {"kind": "refresh", "of": job["name"], "since": job["failed_since"], **error}
        if job["lost"] is not None:
            yield {"kind": "parked", "of": job["name"], "since": None, "type": "JobParked", "text": job["lost"]}
    for table in facts["tables"]:
        if table["trouble"] is not None:
            trouble = table["trouble"]
            yield {
                "kind": "maintenance",
                "of": table["name"],
                "since": trouble["at"],
                **typed_error(trouble["error"]),
            }


def _commit_facts(commit: Commit) -> Facts:
    return {
        "epoch": commit.epoch,
        "epoch_at": epoch_iso(commit.epoch),
        "at": iso(commit.at_ms),
        "operation": commit.kind,
        "engine": commit.engine,
        "job": commit.job,
        "rows_upserted": commit.rows_upserted,
        "rows_deleted": commit.rows_deleted,
        "segments": commit.segments,
        "bytes": commit.bytes,
    }


def _explained(handle: Handle, job: str | None) -> Facts:
    """Return the text of `view.explain()`, or the typed error of an environment that cannot derive it."""
    from epochlog.views.stored import explain

    try:
        record = handle.catalog.read(lambda view: find_job(view, str(job)))
        return {"text": explain(handle, record), "error": None}
    except EpochlogError as error:
        return {"text": None, "error": error_facts(error)}


def error_facts(error: EpochlogError) -> dict[str, Any]:
    """Describe an error of the library by its type and text."""
    return {"type": type(error).__name__, "text": str(error)}
