"""Command tag: tags a new snapshot, shows the epochs of a tag or token, lists or drops tags."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain

from epochlog.batch.policy import Exact, choose_epochs
from epochlog.batch.tags import list_tags
from epochlog.batch.token import decode_token
from epochlog.cli.session import CommandSession
from epochlog.errors import EpochlogError, InvalidInput
from epochlog.facts.chosen_epochs import policy_of, token_of
from epochlog.facts.holds import tag_facts
from epochlog.facts.store import Facts
from epochlog.facts.text import epoch_iso, iso
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import read_epoch_view
from epochlog.store.metadata.lookups import get_table
from epochlog.store.retention.holds import Hold, holds_of
from epochlog.store.types.epoch import to_unix_ms


def tag(session: CommandSession) -> None:
    """Tag a new snapshot, show the epochs of a token, or drop a tag and list the others."""
    options = session.options
    if options.name is not None:
        _tag_new(session)
    elif options.show is not None:
        _show_token(session, token_of(session.handle, options.show))
    else:
        if options.drop is not None:
            session.store.drop_tag(options.drop)
        _list_tags(session)


def _tag_new(session: CommandSession) -> None:
    options = session.options
    lasting = None if options.lasting is None else timedelta(seconds=options.lasting)
    with session.store.snapshot(options.tables or None, **policy_of(session.handle, options)) as snapshot:
        new_tag = snapshot.tag(options.name, lasting, partial=options.partial)
        facts = {**tag_facts(new_tag, session.handle.catalog.now_ms()), "lag_ms": snapshot.lag_ms}
    if session.out.as_json:
        session.out.document(facts)
    else:
        from epochlog.cli.render.epoch_pages import new_tag_page

        session.out.show(*new_tag_page(facts))


def _list_tags(session: CommandSession) -> None:
    now_ms = session.handle.catalog.now_ms()
    facts = [tag_facts(tag, now_ms) for tag in list_tags(session.handle)]
    if session.out.as_json:
        session.out.document({"root": session.handle.files.place, "tags": facts})
    else:
        from epochlog.cli.render.pages import tags_table

        session.out.show(*(tags_table(facts) if facts else [f"{session.handle.files.place} has no tag"]))


def _show_token(session: CommandSession, token: str) -> None:
    """Show the tables and epochs of a token, tagged or not, with the time until which each stays readable."""
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
    the hold or retention that keeps them; "for good" for a tag without an end.
    """
    epoch = policy.epochs[name]
    facts = {"table": name, "epoch": epoch, "at": epoch_iso(epoch), "kept_until": None, "kept_by": None}
    try:
        choose_epochs(policy, epochs, [name])
    except EpochlogError as error:
        return {**facts, "lag_ms": None, "why_not": str(error)}
    ends_ms, by = max(_retention_ends(session, view, epochs.ids[name], name, epoch, now_ms))
    if ends_ms > now_ms:
        facts |= {"kept_until": "for good" if ends_ms == math.inf else iso(int(ends_ms)), "kept_by": by}
    return {**facts, "lag_ms": epochs.lag_ms(name, epoch), "why_not": None}


def _retention_ends(
    session: CommandSession, view: ReadTxn, table_id: int, name: str, epoch: int, now_ms: int
) -> Iterator[tuple[float, str]]:
    """Return (end in Unix ms, name) of each hold and retention that keeps the table's rows of that epoch until a fixed
    time, and of each tag of the epoch; the end of a tag for good is infinite.
    """
    table = get_table(view, table_id, name)
    retention_ms = table.options.least_history // timedelta(milliseconds=1)
    holds = holds_of(view, table_id, now_ms, session.handle.leases.live)
    return chain(
        [(to_unix_ms(epoch) + retention_ms, "retention")],
        (
            (math.inf if hold.expires_ms is None else hold.expires_ms, hold.holder)
            for hold in holds
            if _keeps_rows(hold, epoch)
        ),
    )


def _keeps_rows(hold: Hold, epoch: int) -> bool:
    """Return True if a tag, or a hold with an end, keeps the rows of the epoch."""
    if hold.is_tag:
        return hold.read_epoch == epoch
    return hold.expires_ms is not None and hold.read_epoch is not None and hold.read_epoch <= epoch
