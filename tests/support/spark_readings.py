"""Texts of views, and the answers that Spark gave for them. `tests/spark/test_readings.py` asks Spark again."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from epochlog.store.types.schema import TableSchema
from spark_reading_answers import EXPRESSIONS, QUERIES

_T = pa.schema([
    pa.field("id", pa.int64(), nullable=False), ("g", pa.int32()), ("v", pa.int32()), ("s", pa.string()),
    ("day", pa.date32()), ("f", pa.float64()),
])  # fmt: skip
_ROWS = [
    (1, 1, 10, "O'Brien", dt.date(2024, 1, 31), 1.5),
    (2, 1, 20, 'a"b', dt.date(1969, 12, 31), -0.5),
    (3, 2, -7, "a\\b", None, 0.0),
    (4, None, None, None, None, None),
]


def _integers(columns: str, *rows: tuple[int | None, ...]) -> pa.Table:
    names = columns.split()
    schema = pa.schema([pa.field(name, pa.int64(), name != names[0]) for name in names])
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows], schema=schema)


TABLES = {
    "t": pa.Table.from_pylist([dict(zip(_T.names, row, strict=True)) for row in _ROWS], schema=_T),
    "e": _T.empty_table(),
    "a": _integers("id x k y", (1, 10, 100, 1000), (2, 20, 200, 2000), (3, 30, None, 3000)),
    "b": _integers("i2 k id z", (1, 100, 1, 7), (2, 200, 5, 8), (3, 300, 6, 9)),
    "c": _integers("i3 z k v", (1, 7, 100, 70), (2, 8, 999, 80), (3, 99, 300, 90)),
    "d": _integers("i4 v w k", (1, 70, 1, 100), (2, 5, 2, 300)),
}
SCHEMAS = {name: TableSchema(name, rows.schema, (rows.column_names[0],)) for name, rows in TABLES.items()}

TEXTS = [
    *(
        quote + "".join(body) + quote
        for quote in "'\""
        for n in range(4)
        for body in itertools.product("'\"\\a", repeat=n)
    ),
    *(f"{quote}\\{chr(code)}{quote}" for quote in "'\"" for code in (9, 10, *range(32, 127))),
    *(
        f"'{body}'"
        for body in (
            *(
                r"\\%",
                r"\\_",
                r"\%a",
                r"a\_b",
                r"\u0041",
                r"\u00e4",
                r"\u004",
                r"\ud83d\ude00",
                r"\ud83d",
                r"\U0001F600",
            ),
            *(r"\101", r"\0101", r"\1011", r"\400", r"\10", r"\x41", "ä", "😀", "a\nb", r"\\\\", r"\\n", r"a\\"),
            *("O''Brien", "a''''b", "a''b''c", 'a""""b', "yyyy-MM-dd''T''HH", "--a", "/*a*/", "a`b"),
        )
    ),
    *("'a' 'b'", "'a'\n'b'", "'a'\"b\"", "'a' \"b\" 'c'", "'a''' 'b'", "'a'/**/'b'", "'a'--'\n'b'", "X'0'", "'a`b"),
]
"""Literals: all short ones of quotes and backslashes, and each character behind a backslash."""
COMMENTS = [
    *("".join(word) for n in range(5) for word in itertools.product("/*-\\\n", repeat=n)),
    *("/*/* */", "/* /* */ */", "/*/*/ */", "/*/ */", "/***/", "/* /*+ */", "/* /*+ */ */", "/*+ a */", "/* -- */"),
    *("--a\\\n b", "--a\\\r\n b", "--a\r b", "--a\\\\\n b", "--a\\ \n b", "-- /*\n", "/* ' */", "-- '\n", "/* \\\n*/"),
    *("--\\\n--\\\n", "{# a #}", "/* {# */", "#a\n", "//a\n"),
]
"""Comments, and words that are nearly comments: all of up to four of the characters that begin, end or continue one."""

_SOURCES = {"k": "(SELECT v, k FROM c)", "z": "(SELECT v, z FROM c)", "z, k": "(SELECT v, k, z FROM c)"}
_KINDS = ("", "LEFT ", "RIGHT ", "FULL ")
STARS = [
    f"SELECT {star} FROM (SELECT x, k FROM a) a {first}JOIN (SELECT z, k FROM b) b USING (k) "
    f"{second}JOIN {source} c USING ({names})"
    for first, second in itertools.product(_KINDS, _KINDS)
    for names, source in _SOURCES.items()
    for star in ("*", "a.*", "b.*", "c.*")
]
"""Chains of two joins with USING, of each kind and over each choice of columns."""

_LEXEMES = json.loads((Path(__file__).parent / "spark_lexemes.json").read_text("utf-8"))
TEXT_ANSWERS: dict[str, str] = _LEXEMES["texts"]
"""Values of the literals; those that Spark refuses have none."""
COMMENT_ANSWERS: dict[str, str] = _LEXEMES["comments"]
"""Expressions that Spark reads in 1, a word, and + 1 on the next line; those that it refuses have none."""

STAR_ANSWERS: dict[str, str] = _LEXEMES["stars"]
"""Names of the columns that a star gives, in order."""


def with_comment(word: str) -> str:
    return f"1 {word}\n+ 1\n"


def as_query(expression: str) -> str:
    return f"SELECT id, {expression} AS x FROM t"


def kind(type_: pa.DataType) -> str:
    """Return the name of a type in Spark."""
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    names = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "bool": "boolean"}
    return names.get(str(type_), str(type_).partition("[")[0].removesuffix("32"))


def columns_of(rows: pa.Table) -> str:
    return ", ".join(f"{field.name} {kind(field.type)}" for field in rows.schema)


def in_order(rows: pa.Table) -> list[list[Any]]:
    """Return rows in an order that does not depend on the engine."""
    columns = [column.to_pylist() for column in rows.columns]
    return sorted(map(list, zip(*columns, strict=True)), key=repr)


__all__ = ["EXPRESSIONS", "QUERIES"]
