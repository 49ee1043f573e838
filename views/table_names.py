"""Names of the tables that the queries of a plan read (pure).

A name is a prefix, which says what rows of a table of the store it has, perhaps a number, and that table's name. Names
of different numbers have equal rows; each is looked up by itself.
"""

from __future__ import annotations

import re

CHANGED = "epochlog_changed_"
"""Prefix of the table of old and new images of a table's changed rows."""
EITHER = "epochlog_either_"
"""Prefix of the table of rows that a table has at the barrier's end, and of the old images of its changed rows."""
EMPTY = "epochlog_empty_"
"""Prefix of a table without rows, of a table's columns."""
NOW = "epochlog_now_"
"""Prefix of the table of rows that a table has at the barrier's end."""
OLD = "epochlog_old_"
"""Prefix of the table of rows that a table had at the barrier's beginning."""
SIGNED = "epochlog_signed_"
"""Prefix of the table of old and new images of a table's changed rows, with the column IS_NEW."""
IS_NEW = "epochlog_is_new"

_NAME = re.compile(r"(epochlog_(?:changed|either|empty|now|old|signed))\d*(_)([a-z].*)")


def numbered(prefix: str, number: int, table: str) -> str:
    """Return the name of a table that a query reads several times, each time by other values."""
    return f"{prefix.removesuffix('_')}{number}_{table}"


def prefix_of(name: str) -> str:
    """Return the prefix of a table in a query of a plan."""
    return "".join(_parts(name)[:2])


def table_of(name: str) -> str:
    """Return the store's table of a table in a query of a plan."""
    return _parts(name)[2]


def _parts(name: str) -> tuple[str, ...]:
    match = _NAME.fullmatch(name)
    assert match is not None, name
    return match.groups()
