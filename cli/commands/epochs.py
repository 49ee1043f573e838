"""Command epochs: the timeline of tables, the reasons why an epoch cannot be read, and the choice of each policy."""

from __future__ import annotations

from epochlog.batch.policy import Global
from epochlog.cli.grammar.commands import limit_of
from epochlog.cli.session import CommandSession
from epochlog.facts.epochs import choices, explained, timeline_facts
from epochlog.facts.text import iso
from epochlog.facts.timeline import Timeline, timeline
from epochlog.store.catalog.protocol import ReadTxn
from epochlog.store.epochs.view import EpochView
from epochlog.store.epochs.view_reader import read_epoch_view


def epochs(session: CommandSession) -> None:
    """Show the timeline of the named tables, or of all that take part in `global`."""
    options, handle = session.options, session.handle

    def body(view: ReadTxn) -> EpochView:
        return read_epoch_view(view, handle.memory, handle.catalog.now_ms(), handle.store_id)

    view = handle.catalog.read(body)
    left_out = {} if options.tables else Global().left_out(view)
    names = list(dict.fromkeys(options.tables)) or [name for name in sorted(view.ids) if name not in left_out]
    shown_timeline = timeline(view, names, limit_of(options), options.at) if names else Timeline((), (), ())
    facts = {
        "root": handle.files.place,
        "at": iso(view.clock_ms),
        "last_epoch": view.last_epoch,
        "left_out": left_out,
        **timeline_facts(view, names, shown_timeline),
        "epoch": None if options.at is None or not names else explained(view, names, options.at),
        "choices": list(choices(view, names, options.at)) if names else [],
    }
    if session.out.as_json:
        session.out.document(facts)
    else:
        from epochlog.cli.render.epoch_pages import epochs_page

        session.out.show(*epochs_page(facts, shown_timeline, session.out.width))
