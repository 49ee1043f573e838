"""Which epochs are meant: by a policy and its options, a number, a snapshot's token, or the name of a held snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..batch.held import held_snapshots
from ..batch.registry import BUILT_IN
from ..batch.token import decode_token
from ..errors import InvalidInput, SnapshotNotFound, TableDropped
from ..store.definitions import find_table
from ..store.handle import Handle
from ..store.schema import is_name


def policy_of(handle: Handle, options: Any) -> dict[str, Any]:
    """The keyword arguments of `store.snapshot`; a policy that is not named follows from the options given."""
    given = {
        "epoch": options.epoch,
        "timestamp": options.timestamp,
        "max_lag": options.max_lag,
        "timeout": options.timeout,
        "include_creating": options.include_creating or None,
        "epochs_or_token": None if options.token is None else token_of(handle, options.token),
    }
    given = {name: value for name, value in given.items() if value is not None}
    policy = options.consistency or _implied(given, options.tables)
    if options.option and policy in BUILT_IN:
        raise InvalidInput(f"--option is for policies of your own; {policy} has options by name: epochlog read --help")
    given |= dict(options.option)
    if policy == "exact" and "epoch" in given:
        if not options.tables:
            raise InvalidInput("an exact epoch is of tables: name them, or take --consistency as_of for all")
        given["epochs_or_token"] = dict.fromkeys(options.tables, given.pop("epoch"))
    return {"consistency": policy, **given}


def _implied(given: dict[str, Any], tables: Sequence[str]) -> str:
    for option, policy in (
        ("epochs_or_token", "exact"),
        ("max_lag", "bounded"),
        ("timestamp", "as_of"),
        ("include_creating", "global"),
    ):
        if option in given:
            return policy
    if "epoch" in given:
        return "at_least" if "timeout" in given else "exact"
    return "aligned" if tables else "global"


def token_of(handle: Handle, text: str) -> str:
    """The token itself, or that of the held snapshot of this name. No token is as short as the longest name."""
    if not is_name(text):
        return text
    held = {one.name: one.token for one in held_snapshots(handle)}
    if text not in held:
        raise SnapshotNotFound(
            f"{text!r} is neither a snapshot's token nor the name of one that is held; those held: "
            f"{', '.join(held) or 'none'}"
        )
    return held[text]


def epoch_of(handle: Handle, text: str | None, table: str) -> int | None:
    """An epoch: the number itself, or that at which a snapshot reads the table; None for None."""
    if text is None or text.isdigit():
        return None if text is None else int(text)
    token = decode_token(token_of(handle, text))
    if token.store_id != handle.store_id:
        raise InvalidInput("this snapshot token is of another store; take one of this store")
    if table not in token.entries:
        raise InvalidInput(f"this snapshot does not read {table}; it reads {', '.join(token.entries)}")
    entry = token.entries[table]
    if handle.catalog.read(lambda view: find_table(view, table)).id != entry.table_id:
        raise TableDropped(f"{table} has been dropped since the token was made; name an epoch of the present one")
    return entry.epoch
