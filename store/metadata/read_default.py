"""The store's own policy of reads that name none: a record of its own, which earlier releases overlook."""

from __future__ import annotations

from epochlog.errors import InvalidInput, UnsupportedFormat
from epochlog.store.catalog.keys import READS
from epochlog.store.catalog.protocol import ReadTxn, Txn

POLICIES = ("global", "aligned", "latest")
"""Policies that a store may have as its default: those that need no options."""
AUTO = "auto"
"""Word for a store without a default of its own."""


def read_default(view: ReadTxn) -> str | None:
    """Return the name of the store's default policy; None: the tables of a read decide.

    Raises UnsupportedFormat for a policy of a later release.
    """
    record = view.get(READS)
    if record is None:
        return None
    if record.get("consistency") not in POLICIES:
        raise UnsupportedFormat(
            f"the store's default policy is {record.get('consistency')!r}, which this release does not know: upgrade "
            "epochlog, or name the policy of each read"
        )
    return record["consistency"]


def shown_default(view: ReadTxn) -> str:
    """Return the name of the store's default policy, also of a later release's; AUTO for none."""
    record = view.get(READS)
    return AUTO if record is None else str(record.get("consistency"))


def check_default(policy: str) -> None:
    """Raise InvalidInput for a policy that cannot be the store's default."""
    if policy != AUTO and policy not in POLICIES:
        raise InvalidInput(
            f"default_consistency must be one of {', '.join(POLICIES)}, or {AUTO!r}, under which the tables of a read "
            f"decide, not {policy!r}"
        )


def put_default(tx: Txn, policy: str) -> None:
    """Set the store's default policy; AUTO removes it."""
    if policy == AUTO:
        tx.delete(READS)
    else:
        tx.put(READS, {"consistency": policy})
