"""Resolution of the epochs in a command line: a policy with options, a number, a token, or a tag's name."""

from __future__ import annotations

from typing import Any

from epochlog.batch.policy_options import OptionKind
from epochlog.batch.policy_registry import BUILT_IN, declared_options, implied_policy, options_of
from epochlog.batch.tags import is_tag_name, list_tags
from epochlog.batch.token import decode_token
from epochlog.errors import InvalidInput, TableDropped, TagNotFound
from epochlog.store.env.whole_number import whole_number
from epochlog.store.metadata.lookups import find_table
from epochlog.store.session.handle import Handle


def policy_of(handle: Handle, options: Any) -> dict[str, Any]:
    """Return the keyword arguments of `store.snapshot`; options imply a missing --consistency. Raises InvalidInput."""
    declared = declared_options()
    set_options = {name: value for name in declared if (value := getattr(options, name)) is not None}
    policy = options.consistency or implied_policy(set_options)
    if options.option and (policy is None or policy in BUILT_IN):
        raise InvalidInput(
            f"--option is for custom policies, named by --consistency; {policy or 'a built-in one'} has options by "
            "name: epochlog read --help"
        )
    arguments: dict[str, Any] = {"consistency": policy}
    for name, value in set_options.items():
        option = options_of(policy or "").get(name) or next(iter(declared[name].values()))
        resolved = token_of(handle, value) if option.kind is OptionKind.SNAPSHOT else value
        if option.each_table and not options.tables:
            raise InvalidInput(
                f"--{name.replace('_', '-')} needs TABLE arguments; for all tables use --consistency as_of"
            )
        arguments[option.argument] = dict.fromkeys(options.tables, resolved) if option.each_table else resolved
    return {**arguments, **dict(options.option)}


def token_of(handle: Handle, text: str) -> str:
    """Return a token as it is, and for the name of a tag its token. Every token is longer than the longest
    name. Raises TagNotFound.
    """
    if not is_tag_name(text):
        return text
    tokens = {tag.name: tag.token for tag in list_tags(handle)}
    if text not in tokens:
        raise TagNotFound(
            f"{text!r} is neither a snapshot's token nor the name of a tag; tags: {', '.join(tokens) or 'none'}"
        )
    return tokens[text]


def epoch_of(handle: Handle, text: str | None, table: str) -> int | None:
    """Return the epoch of a number, or the epoch at which a snapshot reads the table; None for None. Raises
    InvalidInput, TagNotFound, TableDropped.
    """
    epoch = None if text is None else whole_number(text)
    if text is None or epoch is not None:
        return epoch
    token = decode_token(token_of(handle, text))
    if token.store_id != handle.store_id:
        raise InvalidInput("this snapshot token belongs to another store; use a token of this store")
    if table not in token.entries:
        raise InvalidInput(f"this snapshot does not read {table}; it reads {', '.join(token.entries)}")
    entry = token.entries[table]
    if handle.catalog.read(lambda view: find_table(view, table)).id != entry.table_id:
        raise TableDropped(f"{table} has been dropped since the token was made; name an epoch of the present table")
    return entry.epoch
