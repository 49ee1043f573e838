"""Answers of Spark to texts of views over small tables, kept in `tests/views/confirmed`, to compare others with.

A text without a kept answer, or one of another version of Spark, fails. This command asks Spark for what is missing:

    PYTHONPATH=tests/support:examples .venv/bin/python -m spark_judge
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from corner_tables import fingerprint, tables_of_set
from spark_text import connected, for_duckdb
from view_types import ARROW

FOLDER = Path(__file__).parents[1] / "views" / "confirmed"
COMMAND = "PYTHONPATH=tests/support:examples .venv/bin/python -m spark_judge"
_ARROW = {str(kind): kind for kind in ARROW.values()}


class NotConfirmed(AssertionError):
    """No answer of the installed Spark is kept for a text."""


@dataclass(frozen=True)
class SparkAnswer:
    """Columns with their types in order, and the rows in the order of their texts."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(name, _arrow(kind)) for name, kind in self.columns])

    def difference(self, other: SparkAnswer) -> str:
        """Describe how another answer differs from this one; "" if it does not."""
        if self.columns != other.columns:
            return f"columns {list(other.columns)}, not {list(self.columns)}"
        if self.rows == other.rows:
            return ""
        many, few = set(other.rows) - set(self.rows), set(self.rows) - set(other.rows)
        return f"too many {sorted(many)[:4]}, missing {sorted(few)[:4]}, {len(other.rows)} rows of {len(self.rows)}"


@dataclass(frozen=True)
class SparkRefusal:
    """Class of the error by which Spark refuses a text."""

    name: str


Reply = SparkAnswer | SparkRefusal


def answer_of(rows: pa.Table, sql: str) -> SparkAnswer:
    """Return the answer that a table is. Of equal zeros MIN and MAX give either."""
    either = "MIN(" in sql or "MAX(" in sql
    kinds = [_plain_type(field.type) for field in rows.schema]
    columns = [
        [_value(value, kind, either) for value in column.to_pylist()]
        for column, kind in zip(rows.columns, kinds, strict=True)
    ]
    lines = sorted(json.dumps(row, ensure_ascii=False) for row in zip(*columns, strict=True))
    return SparkAnswer(tuple(zip(rows.column_names, map(str, kinds), strict=True)), tuple(lines))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(kind.value_type)  # its items have other names in each engine
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def _value(value: Any, kind: pa.DataType, either: bool) -> Any:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return repr(value + 0.0 if either else value)
    if isinstance(value, bytes):
        return value.hex()
    return value if pa.types.is_string(kind) else str(value)


def _arrow(kind: str) -> pa.DataType:
    decimal = re.fullmatch(r"decimal128\((\d+), (\d+)\)", kind)
    return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else _ARROW[kind]


@dataclass(frozen=True)
class Kept:
    """Kept answers by text over a set of tables."""

    name: str
    tables: Mapping[str, pa.Table]
    replies: Mapping[str, Reply]

    def reply(self, sql: str) -> Reply:
        """Return Spark's reply to a text. Raises NotConfirmed."""
        if sql not in self.replies:
            raise NotConfirmed(f"Spark has not answered this text over the tables {self.name!r}; run {COMMAND}\n{sql}")
        return self.replies[sql]


@cache
def kept(name: str, *, of_any_spark: bool = False) -> Kept:
    """Return the kept answers over a set of tables. Raises NotConfirmed for those of other tables, or of another Spark.

    of_any_spark: the answers may be of another Spark.
    """
    tables, file = tables_of_set(name), file_of(name)
    lines = file.read_text("utf-8").splitlines() if file.exists() else ["{}"]
    wanted = heading(tables)
    if json.loads(lines[0]) | ({"spark": wanted["spark"]} if of_any_spark else {}) != wanted:
        raise NotConfirmed(f"{file.name} has answers of other tables, or of another Spark; run {COMMAND}")
    return Kept(name, tables, {entry["sql"]: _reply(entry) for entry in map(json.loads, lines[1:])})


def heading(tables: Mapping[str, pa.Table]) -> dict[str, str]:
    """Return the first line of a file: the version of Spark, and a digest of the tables."""
    return {"spark": version("pyspark"), "tables": fingerprint(tables)}


def are_of_this_spark(name: str) -> bool:
    """Return True if the kept answers over a set of tables are of the installed version of Spark. `make test` has that
    version, and fails with answers of another one; `make spark-versions` has older ones, which are asked themselves.
    """
    first = file_of(name).read_text("utf-8").partition("\n")[0]
    return json.loads(first)["spark"] == version("pyspark")


def file_of(name: str) -> Path:
    return FOLDER / f"{name.replace(' ', '_')}.jsonl"


def keep(name: str, tables: Mapping[str, pa.Table], replies: Mapping[str, Reply]) -> None:
    """Write the answers over a set of tables, one on each line, in the order of the texts."""
    lines = [json.dumps(heading(tables))]
    lines += [json.dumps({"sql": sql, **_entry(replies[sql])}, ensure_ascii=False) for sql in sorted(replies)]
    FOLDER.mkdir(exist_ok=True)
    file_of(name).write_text("\n".join(lines) + "\n", "utf-8")


def _entry(reply: Reply) -> dict[str, Any]:
    if isinstance(reply, SparkRefusal):
        return {"refused": reply.name}
    return {"columns": reply.columns, "rows": reply.rows}


def _reply(entry: Mapping[str, Any]) -> Reply:
    if "refused" in entry:
        return SparkRefusal(entry["refused"])
    return SparkAnswer(tuple((name, kind) for name, kind in entry["columns"]), tuple(entry["rows"]))


def compare(wanted: SparkAnswer, rows: pa.Table, sql: str, *, with_types: bool) -> str:
    """Describe how rows differ from an answer; "" if they do not.

    with_types: the types are those of the answer too; else they are cast to these.
    """
    if not with_types:
        if tuple(rows.column_names) != tuple(name for name, _ in wanted.columns):
            return f"columns {rows.column_names}, not {wanted.columns}"
        try:
            rows = rows.cast(wanted.schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            return str(error)
    return wanted.difference(answer_of(rows, sql))


class RawJudge:
    """DuckDB, which runs texts of Spark over tables; it knows nothing of epochlog."""

    def __init__(self) -> None:
        self._connection = connected()

    def restart(self) -> None:
        """Begin with a database anew: an internal error of DuckDB has ended it."""
        self._connection = connected()

    def rows(self, sql: str, tables: Mapping[str, pa.Table]) -> pa.Table:
        """Return the rows of a text. Raises duckdb.Error."""
        with self._connection.cursor() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for name in tables.keys() & set(re.findall(r"\w+", sql)):
                connection.register(name, tables[name])
            return connection.sql(for_duckdb(sql)).to_arrow_table()

    def difference(self, reply: Reply, sql: str, tables: Mapping[str, pa.Table]) -> str:
        """Describe how DuckDB's answer to a text differs from Spark's; "" if it does not, and DuckDB may judge it."""
        if isinstance(reply, SparkRefusal):
            return f"Spark refuses it: {reply.name}"
        try:
            return compare(reply, self.rows(sql, tables), sql, with_types=False)
        except duckdb.Error as error:
            return str(error)


def confirmed(texts: Iterable[str], name: str = "integers") -> set[str]:
    """Return those of the texts that DuckDB answers as Spark. Raises NotConfirmed."""
    judge, answers = RawJudge(), kept(name)
    return {sql for sql in texts if not judge.difference(answers.reply(sql), sql, answers.tables)}
