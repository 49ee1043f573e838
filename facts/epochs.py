"""Facts about epochs of tables: their timeline, reasons why an epoch cannot be read, and the choice of each policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from epochlog.batch.policy import choose_epochs
from epochlog.batch.policy_registry import BUILT_IN, policy_names, resolve_policy
from epochlog.errors import EpochlogError
from epochlog.store.epochs.explain import blamed
from epochlog.store.epochs.view import EpochView
from epochlog.store.types.epoch_set import newest_at

from .store import Facts
from .text import epoch_iso
from .timeline import Stretch, Timeline


def timeline_facts(view: EpochView, names: Sequence[str], shown: Timeline) -> Facts:
    """Describe the tables of a timeline and its stretches."""
    return {
        "tables": [_table_facts(view, name, requested=name in names) for name in (*shown.tables, *shown.ancestors)],
        "stretches": [_stretch_facts(view, names, stretch) for stretch in shown.stretches],
        "earlier": shown.earlier,
        "later": shown.later,
    }


def _table_facts(view: EpochView, name: str, *, requested: bool) -> Facts:
    table = view.table(name)
    return {
        "name": name,
        "asked": requested,
        "state": table.state,
        "upstreams": [view.tables[up].name for up in table.upstreams],
        "max_committed_epoch": table.position,
        "max_committed_at": epoch_iso(table.position),
        "safe_epoch": table.safe_epoch,
        "complete_through": view.complete_through(name),
        "lag_ms": view.lag_ms(name),
    }


def _stretch_facts(view: EpochView, names: Sequence[str], stretch: Stretch) -> Facts:
    return {
        "first": stretch.first,
        "last": stretch.last,
        "from": epoch_iso(stretch.first),
        "through": epoch_iso(stretch.last),
        "landed": dict(stretch.landed),
        "states": dict(stretch.states),
        "readable": stretch.readable,
        "why_not": [] if stretch.readable else _why_not(view, names, stretch.first),
    }


def _why_not(view: EpochView, names: Sequence[str], epoch: int) -> list[Facts]:
    return [{"table": table, "reason": sentence} for table, sentence in blamed(view, names, epoch)]


def explained(view: EpochView, names: Sequence[str], epoch: int) -> Facts:
    """Describe one epoch: the commit that a read of each table would return, the reasons why it cannot be read, and the
    nearest epochs at which all tables can be read (None for none).
    """
    above = view.common_valid(names, max(epoch + 1, view.safe_epoch_of(names)), view.last_epoch)[0]
    tables = [
        {
            "table": name,
            "commit": (commit := newest_at(view.table(name).commits, epoch)),
            "commit_at": epoch_iso(commit),
            "why_not": _why_not(view, [name], epoch),
        }
        for name in names
    ]
    return {
        "epoch": epoch,
        "at": epoch_iso(epoch),
        "readable": not any(table["why_not"] for table in tables),
        "tables": tables,
        "readable_at_or_below": view.largest_valid_at_most(names, epoch),
        "readable_above": int(above[0]) if len(above) else None,
    }


def choices(view: EpochView, names: Sequence[str], at: int | None) -> Iterator[Facts]:
    """Yield the current choice of each policy. Policies that take an epoch get `at`, or the newest commit of the
    tables; bounded gets the smallest lag, in whole seconds, that it accepts.
    """
    epoch = max(view.table(name).position for name in names) if at is None else at
    for name in policy_names():
        asked_at = getattr(BUILT_IN.get(name), "asked_at", None)
        options = asked_at(view, names, epoch) if asked_at is not None else {}
        chosen: Mapping[str, int] = {}
        error: Facts | None = None
        try:
            chosen = choose_epochs(resolve_policy(name, **options), view, names)
        except EpochlogError as refused:
            error = {"type": type(refused).__name__, "text": str(refused)}
        yield {
            "policy": name,
            "options": options,
            "epochs": dict(chosen),
            "lag_ms": {table: view.lag_ms(table, epoch) for table, epoch in chosen.items()},
            "error": error,
        }
