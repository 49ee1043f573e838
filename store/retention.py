"""How much of a table's past is kept: as much as its options and holders say, of its states and of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .catalog import Txn, View
from .definitions import TableDef, get_version
from .epoch import from_unix_ms
from .holds import holds_of
from .records import head_key
from .version import TableVersion, apply_safe_epoch

if TYPE_CHECKING:
    from .handle import Handle


def raise_safe_epoch(handle: Handle, table: TableDef) -> None:
    """Let go of history older than the table's retention, but of nothing that is held; a transaction of its own."""
    now_ms = handle.catalog.now_ms()
    target = from_unix_ms(now_ms - round(table.options.history_retention.total_seconds() * 1000))

    def raised(view: View) -> TableVersion | None:
        version = get_version(view, table.id, table.name)
        held = [
            hold.read_epoch
            for hold in holds_of(view, table.id, now_ms, handle.leases.live)
            if hold.read_epoch is not None
        ]
        after = apply_safe_epoch(version, min([target, *held]))
        return after if after != version else None

    def body(tx: Txn) -> None:
        after = raised(tx)
        if after is not None:
            tx.put(head_key(table.id), after.to_record())

    if handle.catalog.read(raised) is not None:
        handle.catalog.transact(body)
