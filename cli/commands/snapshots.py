"""Command snapshot: takes and holds a snapshot, shows the epochs of a token, lists or releases held snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import chain

from epochlog.batch.named_snapshots import HeldSnapshot, held_snapshots
from epochlog.batch.policy import Exact, choose_epochs
from epochlog.batch.token import decode_token
from epochlog.cli.facts.chosen_epochs import policy_of, token_of
from epochlog.cli.facts.store import Facts
from epochlog.cli.session import CommandSession
from epochlog.cli.text import epoch_iso, iso
from epochlog.errors import EpochlogError, InvalidInput
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.lookups import get_table
from epochlog.store.retention.holds import holds_of
from epochlog.store.types.epoch import to_unix_ms


def snapshot(session: CommandSession) -> None:
    """Take a snapshot, show one, or release one and list the held snapshots."""
    options = session.options
    if options.hold is not None:
        _hold_new(session)
    elif options.show is not None:
        _show_token(session, token_of(session.handle, options.show))
    else:
        if options.drop is not None:
            session.store.release_snapshot(options.drop)
        _list_held(session)


def _hold_new(session: CommandSession) -> None:
    options = session.options
    with session.store.snapshot(options.tables or None, **policy_of(session.handle, options)) as taken_snapshot:
        held = taken_snapshot.hold(timedelta(seconds=options.hold), options.name, partial=options.partial)
        facts = {**held_facts(held, session.handle.catalog.now_ms()), "lag_ms": taken_snapshot.lag_ms}
    if session.out.as_json:
        session.out.document(facts)
    else:
        from epochlog.cli.render.epoch_pages import new_hold_page

        session.out.show(*new_hold_page(facts))


def _list_held(session: CommandSession) -> None:
    facts = held_list(session)
    if session.out.as_json:
        session.out.document({"root": session.handle.files.place, "snapshots": facts})
    else:
        from epochlog.cli.render.pages import held_snapshots

        session.out.show(*(held_snapshots(facts) if facts else [f"{session.handle.files.place} has no held snapshot"]))


def held_list(session: CommandSession) -> list[Facts]:
    """Describe all held snapshots."""
    now_ms = session.handle.catalog.now_ms()
    return [held_facts(held, now_ms) for held in held_snapshots(session.handle)]


def held_facts(snapshot: HeldSnapshot, now_ms: int) -> Facts:
    return {
        "name": snapshot.name,
        "since": iso(snapshot.since_ms),
        "until": iso(snapshot.until_ms),
        "left_ms": max(0, snapshot.until_ms - now_ms),
        "epochs": dict(snapshot.epochs),
        "token": snapshot.token,
    }


def _show_token(session: CommandSession, token: str) -> None:
    """Show the tables and epochs of a token, held or not, with the time until which each stays readable."""
    handle, decoded = session.handle, decode_token(token)
    if decoded.store_id != handle.store_id:
        raise InvalidInput("this snapshot token belongs to another store; open that store to show it")
    policy = Exact(token)

    def body(view: ReadTxn) -> list[Facts]:
        now_ms = handle.catalog.now_ms()
        epochs = read_epoch_view(view, handle.memory, now_ms, handle.store_id)
        return [_table_facts(session, view, epochs, policy, name, now_ms) for name in decoded.entries]

    tables = handle.catalog.read(body)
    facts = {"token": token, "readable": not any(table["why_not"] for table in tables), "tables": tables}
    if session.out.as_json:
        session.out.document(facts)
    else:
        from epochlog.cli.render.epoch_pages import token_page

        session.out.show(*token_page(facts))


def _table_facts(
    session: CommandSession, view: ReadTxn, epochs: EpochView, policy: Exact, name: str, now_ms: int
) -> Facts:
    """Describe one table of a token. kept_until: the time until which the rows of that epoch stay readable; kept_by:
    the hold or retention that keeps them.
    """
    epoch = policy.epochs[name]
    facts = {"table": name, "epoch": epoch, "at": epoch_iso(epoch), "kept_until": None, "kept_by": None}
    try:
        choose_epochs(policy, epochs, [name])
    except EpochlogError as error:
        return {**facts, "lag_ms": None, "why_not": str(error)}
    ends_ms, by = max(_retention_ends(session, view, epochs.ids[name], name, epoch, now_ms))
    if ends_ms > now_ms:
        facts |= {"kept_until": iso(ends_ms), "kept_by": by}
    return {**facts, "lag_ms": epochs.lag_ms(name, epoch), "why_not": None}


def _retention_ends(
    session: CommandSession, view: ReadTxn, table_id: int, name: str, epoch: int, now_ms: int
) -> Iterator[tuple[int, str]]:
    """Return (end in Unix ms, name) of each hold and retention that keeps the table's rows of that epoch until a fixed
    time.
    """
    table = get_table(view, table_id, name)
    retention_ms = table.options.history_retention // timedelta(milliseconds=1)
    holds = holds_of(view, table_id, now_ms, session.handle.leases.live)
    return chain(
        [(to_unix_ms(epoch) + retention_ms, "retention")],
        (
            (hold.expires_ms, hold.holder)
            for hold in holds
            if hold.expires_ms is not None and hold.read_epoch is not None and hold.read_epoch <= epoch
        ),
    )
