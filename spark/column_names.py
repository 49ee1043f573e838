"""Names of columns in expressions of Spark, which parses a text as `a.b` or ``a`b`` where a name is meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def quoted(name: str) -> str:
    """Return the name in backticks, as Spark's expressions and statements take any name of a column."""
    return "`" + name.replace("`", "``") + "`"


def column_named(name: str) -> Column:
    """Return the column of that name of the frame in which it is used."""
    from pyspark.sql import functions as F  # noqa: N812 (Spark's own convention)

    return F.col(quoted(name))


def columns_named(names: Iterable[str]) -> list[Column]:
    """Return the columns of these names of the frame in which they are used."""
    return [column_named(name) for name in names]


def column_of(frame: DataFrame, name: str) -> Column:
    """Return a frame's column, for a join with another frame that may have that name too."""
    return frame[quoted(name)]


def is_plain(names: Iterable[str]) -> bool:
    """Return True if Spark finds each column by its name as a text: no name needs quotes, or differs by case only."""
    all_names = list(names)
    return all(name.isidentifier() for name in all_names) and len({name.lower() for name in all_names}) == len(
        all_names
    )
