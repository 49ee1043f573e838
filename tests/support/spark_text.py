"""Texts in Spark's SQL as DuckDB takes them, token by token: no parser reads them as epochlog does.

Only the spelling of literals, names, types and a few operators changes. A test compares DuckDB's answers with Spark's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import duckdb

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<comment>--(?:\\\n|[^\n])*\n?)
    | (?P<raw>[rR](?:'[^']*' | "[^"]*"))
    | (?P<binary>[xX]'[^']*')
    | (?P<string>'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*")
    | (?P<name>`(?:[^`]|``)*`)
    | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:BD|[LSYDF])?(?!\w))
    | (?P<word>\w+)
    | (?P<operator><=>|<>|!=|==|<=|>=|\|\||::|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a"}
_SUFFIXES = {"L": "BIGINT", "S": "SMALLINT", "Y": "TINYINT", "D": "DOUBLE", "F": "FLOAT"}
_WORDS = {"TIMESTAMP": "TIMESTAMPTZ", "TIMESTAMP_LTZ": "TIMESTAMPTZ", "TIMESTAMP_NTZ": "TIMESTAMP", "DIV": "//"}
_OPERATORS = {"<=>": "IS NOT DISTINCT FROM", "==": "="}
_BEFORE_OPERAND = frozenset(("", "(", ",", "=", "<", ">", "<>", "<=", ">=", "+", "-", "*", "/", "%", "||"))
_KEYWORDS_BEFORE_OPERAND = frozenset((
    *("SELECT", "DISTINCT", "WHERE", "ON", "AND", "OR", "NOT", "CASE", "WHEN", "THEN", "ELSE", "BETWEEN", "HAVING"),
    *("IN", "LIKE", "BY", "INTERVAL", "VALUES"),
))  # fmt: skip
SETTINGS: Mapping[str, str] = {
    "TimeZone": "UTC",
    "default_null_order": "nulls_first_on_asc_last_on_desc",
    "threads": "1",
}
"""Settings of a DuckDB that answers texts of Spark."""


def connected() -> duckdb.DuckDBPyConnection:
    """Return a database of its own, for texts that `for_duckdb` has made."""
    connection = duckdb.connect(config={"enable_external_access": False})
    for name, value in SETTINGS.items():
        connection.execute(f"SET {name} = '{value}'")
    connection.execute("SET python_enable_replacements = false")
    return connection


def for_duckdb(sql: str) -> str:
    """Return a text of Spark with DuckDB's spelling of its tokens."""
    spelled: list[str] = []
    for kind, text in _folded(_tokens(sql)):
        last = spelled[-1] if spelled else ""
        word = text.upper()
        if kind == "string":
            if last.startswith("'"):  # two literals beside each other are one
                spelled[-1] = last[:-1] + _literal(text)[1:]
                continue
            spelled.append(_literal(text))
            if "\\" in spelled[-1] and last.upper() == "LIKE":
                spelled.append("ESCAPE '\\'")
        elif kind == "raw":
            spelled.append("'" + text[2:-1].replace("'", "''") + "'")
        elif kind == "binary":
            spelled.append(f"unhex({text[1:]})")
        elif kind == "name":
            spelled.append('"' + text[1:-1].replace("``", "`").replace('"', '""') + '"')
        elif kind == "number":
            spelled.append(_number(text))
        elif kind == "word" and word in ("SEMI", "ANTI") and last.upper() == "LEFT":
            spelled[-1] = word
        elif kind == "word":
            spelled.append(_WORDS.get(word, text))
        else:
            spelled.append(_OPERATORS.get(text, text))
    return " ".join(spelled)


def string_value(text: str) -> str:
    """Return the value of a literal between quotes."""
    quote, inside = text[0], text[1:-1]

    def plain(match: re.Match[str]) -> str:
        escape = match[0]
        if escape == quote * 2:
            return quote
        if escape[1] in "%_":  # a pattern keeps its escapes
            return escape
        if escape[1] == "u" and len(escape) > 2:
            return json.loads(f'"{escape}"')
        return _ESCAPES.get(escape[1], escape[1])

    return re.sub(rf"\\u[0-9a-fA-F]{{4}}|\\.|{quote}{quote}", plain, inside, flags=re.DOTALL)


def _literal(text: str) -> str:
    return "'" + string_value(text).replace("'", "''") + "'"


def _tokens(sql: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(sql):
        if sql.startswith("/*", position):
            position = _end_of_comment(sql, position)
            continue
        match = _TOKEN.match(sql, position)
        assert match is not None
        position = match.end()
        if match.lastgroup not in ("space", "comment"):
            yield match.lastgroup or "", match[0]


def _end_of_comment(sql: str, position: int) -> int:
    """Return the end of a comment that can have others inside."""
    depth = 0
    for edge in re.finditer(r"/\*|\*/", sql[position:]):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return position + edge.end()
    return len(sql)


def _folded(tokens: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the tokens with the sign of a negative number in its literal, as Spark reads it."""
    last, sign = "", False
    for kind, text in tokens:
        if sign:
            sign = False
            if kind == "number":
                last = text
                yield "number", f"-{text}"
                continue
            yield "operator", "-"
        elif text == "-" and (last in _BEFORE_OPERAND or last.upper() in _KEYWORDS_BEFORE_OPERAND):
            sign = True
            last = "-"
            continue
        last = text
        yield kind, text


def _number(text: str) -> str:
    match = re.fullmatch(r"(-?[\d.]+(?:[eE][+-]?\d+)?)(BD|[LSYDF])?", text)
    assert match is not None, text
    digits, suffix = match.groups()
    if suffix in _SUFFIXES:
        return f"CAST({digits} AS {_SUFFIXES[suffix]})"
    return f"({digits})" if digits.startswith("-") else digits
