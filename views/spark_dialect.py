"""Spark's SQL as Spark reads it, where sqlglot's dialect of it differs: quotes, comments, negative numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.tokens import Token, TokenType

from epochlog.errors import InvalidInput

_LEXEME = re.compile(
    r"""
    [rR]'[^']*' | [rR]"[^"]*"                                            # raw texts have no escapes
    | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*`
    | \w+                                                                # the r at the end of a name begins no raw text
    | --(?:\\\n|[^\r\n])*                                                # a backslash continues it on the next line
    | /\* | \{\#
    """,
    re.VERBOSE | re.DOTALL,
)
_EDGE_OF_COMMENT = re.compile(r"/\*(?!\+)|\*/")


def without_comments(sql: str) -> str:
    """Return the text with spaces in place of comments, so that all else stays in its line and column.

    Raises InvalidInput for a comment without an end, for a hint, and for a comment of a template.
    """
    kept: list[str] = []
    position = 0
    while lexeme := _LEXEME.search(sql, position):
        start, end = lexeme.span()
        if lexeme[0] == "{#":
            raise InvalidInput(
                f"the query has a template ({{# … #}}) {_place(sql, start)}: write comments as -- or /* */"
            )
        if lexeme[0] == "/*":
            end = _end_of_comment(sql, start)
        is_comment = lexeme[0].startswith(("--", "/*"))
        kept += [sql[position:start], re.sub(r"[^\r\n]", " ", sql[start:end]) if is_comment else sql[start:end]]
        position = end
    return "".join([*kept, sql[position:]])


def _end_of_comment(sql: str, start: int) -> int:
    """Return the end of the comment that begins at `start`; comments nest."""
    if sql.startswith("/*+", start):
        raise InvalidInput(
            f"a view cannot have HINT, a comment that begins with /*+, {_place(sql, start)}: leave it out"
        )
    depth = 0
    for edge in _EDGE_OF_COMMENT.finditer(sql, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    raise InvalidInput(f"the comment {_place(sql, start)} has no end: close each /* with */")


def _place(sql: str, position: int) -> str:
    line = sql.count("\n", 0, position) + 1
    return f"at line {line}, column {position - sql.rfind(chr(10), 0, position)}"


def _negated(parser: Spark.Parser) -> exp.Expr:
    """Parse the operand of a minus, which is a part of a number behind it: -1::STRING is '-1', and -128Y a TINYINT."""
    is_number = parser._curr.token_type in (TokenType.NUMBER, TokenType.DOT)
    operand = parser._parse_unary()
    number = operand
    while is_number and isinstance(number, exp.Cast):
        number = number.this
    if operand is None or number is operand or not isinstance(number, exp.Literal):
        return parser.expression(exp.Neg(this=operand))
    if number.is_string:  # of a DECIMAL, as 1.5BD is read
        number.replace(exp.Literal.string(f"-{number.name}"))
    else:
        number.replace(exp.Neg(this=number.copy()))
    return operand


_UNITS = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "YEAR"),
    **dict.fromkeys(("MONTH", "MM", "MON"), "MONTH"),
    **{unit: unit for unit in ("QUARTER", "WEEK")},
}
"""Units of TRUNC, as they are written, and their names. Spark gives NULL for others, where other engines know more."""
_UNITS_OF_TIME = {**_UNITS, "DD": "DAY", **{unit: unit for unit in ("DAY", "HOUR", "MINUTE", "SECOND")}}
_UNITS_OF_TIME |= {unit: unit for unit in ("MILLISECOND", "MICROSECOND")}


def _unit_of(function: str, args: Sequence[exp.Expr], position: int, units: Mapping[str, str]) -> str:
    """Return the unit of a truncation. Raises InvalidInput if it is no literal, or none of Spark's units."""
    unit = args[position] if len(args) == 2 else None
    if not isinstance(unit, exp.Literal) or unit.name.upper() not in units:
        text = f"{function}({', '.join(arg.sql(Spark) for arg in args)})"
        raise InvalidInput(f"a view cannot have {text}: its unit is a text, one of {', '.join(units)}")
    return units[unit.name.upper()]


def _date_trunc(args: Sequence[exp.Expr]) -> exp.TimestampTrunc:
    unit = _unit_of("DATE_TRUNC", args, 0, _UNITS_OF_TIME)
    return exp.TimestampTrunc(this=args[1], unit=exp.var(unit))


def _trunc(args: Sequence[exp.Expr]) -> exp.DateTrunc:
    unit = _unit_of("TRUNC", args, 1, _UNITS)
    return exp.DateTrunc(this=args[0], unit=exp.Literal.string(unit))


def _ignoring_nulls(kind: type[exp.FirstValue | exp.LastValue]) -> Callable[[Sequence[exp.Expr]], exp.Expr]:
    """Return a builder of a function with a second argument: TRUE ignores NULLs."""

    def build(args: Sequence[exp.Expr]) -> exp.Expr:
        if len(args) > 2 or not all(isinstance(arg, exp.Boolean) for arg in args[1:]):
            raise InvalidInput(f"a view cannot have {kind.sql_name()} of these arguments: write IGNORE NULLS behind it")
        function = kind.from_arg_list(args[:1])
        return exp.IgnoreNulls(this=function) if args[1:] and args[1].this else function

    return build


class SparkText(Spark):
    """Dialect of the text of views: Spark's, read and written as Spark reads it."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES = ["\\", "'", '"']  # noqa: RUF012 (sqlglot's own convention)

        def tokenize(self, sql: str) -> list[Token]:
            return super().tokenize(without_comments(sql))

    class Parser(Spark.Parser):
        UNARY_PARSERS = {**Spark.Parser.UNARY_PARSERS, TokenType.DASH: _negated}  # noqa: RUF012
        FUNCTIONS = {  # noqa: RUF012
            **Spark.Parser.FUNCTIONS,
            "DATE_TRUNC": _date_trunc,
            "TRUNC": _trunc,
            "FIRST_VALUE": _ignoring_nulls(exp.FirstValue),
            "LAST_VALUE": _ignoring_nulls(exp.LastValue),
        }

    class Generator(Spark.Generator):
        EXPRESSIONS_WITHOUT_NESTED_CTES = set[type[exp.Expr]]()  # noqa: RUF012 (each WITH stays where it is)
