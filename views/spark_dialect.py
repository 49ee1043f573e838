"""Spark's SQL as Spark reads it, where sqlglot's dialect of it differs: quotes, comments, negative numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

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
    if isinstance(operand, exp.Cast) and operand.is_type("double", "float") and not number.name.strip("0."):
        return parser.expression(exp.Neg(this=operand))  # an integer or a DECIMAL has no negative zero
    if number.is_string:  # of a DECIMAL, as 1.5BD is read
        number.replace(exp.Literal.string(f"-{number.name}"))
    else:
        number.replace(exp.Neg(this=number.copy()))
    return operand


def _signed(parser: Spark.Parser) -> exp.Expr | None:
    """Parse the operand of a plus, which Spark casts to a number and sqlglot drops. Raises InvalidInput for others than
    numbers as they are written.
    """
    operand = parser._parse_unary()
    number = operand
    while isinstance(number, exp.Paren | exp.Neg | exp.Cast):
        number = number.this
    if operand is None:
        return None
    if isinstance(number, exp.Literal) and (not number.is_string or operand.is_type(*exp.DataType.NUMERIC_TYPES)):
        return operand
    raise InvalidInput(
        f"a view cannot have + before {operand.sql(Spark)}: write the value without it, cast to a number if it is none"
    )


def _in_parentheses(node: exp.Expr | None) -> exp.Expr | None:
    """Return an operand in parentheses if it is a comparison or ||, whose ranks other engines see otherwise."""
    return exp.Paren(this=node) if isinstance(node, (*_COMPARISONS, exp.DPipe)) else node


_COMPARISONS = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
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


_NO_FUNCTIONS = frozenset((
    *("BOOLAND_AGG", "BOOLOR_AGG", "COUNTIF", "DATE_TO_DATE_STR", "DAY_OF_WEEK", "DAY_OF_YEAR", "ENDS_WITH", "IIF"),
    *("LOGICAL_AND", "LOGICAL_OR", "SAFE_CAST", "SAFE_DIVIDE", "STARTS_WITH", "STDEV", "TIMESTAMP_LTZ"),
    *("TIMESTAMP_NTZ", "TIMESTAMP_TRUNC", "TIMESTAMPADD", "TIME_TO_TIME_STR", "TS_OR_DS_ADD", "TS_OR_DS_TO_DATE"),
    *("TS_OR_DS_TO_DATE_STR", "VARIANCE_POP", "VARIANCE_SAMP"),
))  # fmt: skip
"""Functions of other engines under whose names sqlglot reads functions that a view can have."""
_TYPES = frozenset((
    *("BOOLEAN", "BYTE", "TINYINT", "SHORT", "SMALLINT", "INT", "INTEGER", "LONG", "BIGINT", "REAL", "FLOAT"),
    *("DOUBLE", "DEC", "DECIMAL", "NUMERIC", "STRING", "CHAR", "CHARACTER", "VARCHAR", "BINARY", "DATE", "TIMESTAMP"),
    *("TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "TIME", "INTERVAL", "VARIANT", "ARRAY", "MAP", "STRUCT"),
))  # fmt: skip
"""Spark's names of types. sqlglot reads those of other engines too, as names of its own types."""
_SIZED = frozenset(("DEC", "DECIMAL", "NUMERIC", "CHAR", "CHARACTER", "VARCHAR"))
_OF_LITERALS = frozenset(("TIME", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "INTERVAL"))
_NO_TYPES = (TokenType.NULL, TokenType.UNION, TokenType.RANGE, TokenType.UNKNOWN)
"""Tokens that sqlglot counts as types, with another meaning in a query."""
_ENDS_OF_LIST = (TokenType.FROM, TokenType.WHERE, TokenType.GROUP_BY, TokenType.ORDER_BY, TokenType.R_PAREN)
_SIDES = (TokenType.LEFT, TokenType.RIGHT, TokenType.FULL)


def _advice_on_clause(before: Token, token: Token, after: Token | None, last: Token | None) -> str | None:
    """Return how to write a clause that sqlglot reads at a token, and Spark does not; None for what Spark reads."""
    kind, following = token.token_type, after.token_type if after else None
    if kind == TokenType.PIPE_GT:
        return "put the query before it into a subquery"
    if kind == TokenType.COMMA and following in (None, *_ENDS_OF_LIST):
        return "leave out the comma"
    is_limit = before.token_type == TokenType.NUMBER and last is not None and last.token_type == TokenType.LIMIT
    if kind == TokenType.COMMA and is_limit:
        return "write LIMIT number OFFSET number"
    if before.token_type == TokenType.OFFSET and after is not None and after.text.upper() in ("ROW", "ROWS", "LIMIT"):
        return "write LIMIT number OFFSET number"
    if kind == TokenType.OUTER and before.token_type not in _SIDES and following == TokenType.JOIN:
        return "write LEFT, RIGHT or FULL JOIN"
    if kind == TokenType.L_PAREN and before.token_type == TokenType.IN and following == TokenType.R_PAREN:
        return "name at least one value"
    return None


def _advice_on_type(before: Token, token: Token, after: Token | None) -> str | None:
    """Return how to write a type, or a literal of it, that sqlglot reads at a token, and Spark does not."""
    name = token.text.upper()
    if token.token_type == TokenType.IDENTIFIER or after is None or name not in _TYPES:
        return None
    if after.token_type == TokenType.STRING and name not in _OF_LITERALS:
        return "write CAST(text AS type)"
    if after.token_type == TokenType.L_PAREN and before.token_type == TokenType.ALIAS and name not in _SIZED:
        return "leave out the number of this type"
    if name == "TIMESTAMP" and after.text.upper() in ("WITH", "WITHOUT"):
        return "write TIMESTAMP, or TIMESTAMP_NTZ for one without a time zone"
    return None


def _require_own(tokens: Sequence[Token], sql: str) -> None:
    """Raise InvalidInput for what sqlglot takes from other engines and Spark does not read."""
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else token
        after = tokens[place + 1] if place + 1 < len(tokens) else None
        last = tokens[place - 2] if place > 1 else None
        advice = _advice_on_clause(before, token, after, last) or _advice_on_type(before, token, after)
        if advice is not None:
            raise InvalidInput(f"Spark does not read {token.text} {_place(sql, token.start)}: {advice}")


_COMPARISON_TOKENS = {**Spark.Parser.EQUALITY, **Spark.Parser.COMPARISON}
_TERMS = {**Spark.Parser.TERM, TokenType.DPIPE: exp.DPipe}


class SparkText(Spark):
    """Dialect of the text of views: Spark's, read and written as Spark reads it."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES = ["\\", "'", '"']  # noqa: RUF012 (sqlglot's own convention)
        KEYWORDS = {  # noqa: RUF012 (sqlglot's own convention)
            word: token
            for word, token in Spark.Tokenizer.KEYWORDS.items()
            if token not in Spark.Parser.TYPE_TOKENS or word in _TYPES or token in _NO_TYPES
        }

        def tokenize(self, sql: str) -> list[Token]:
            tokens = super().tokenize(without_comments(sql))
            _require_own(tokens, sql)
            return tokens

    class Parser(Spark.Parser):
        """Parser with Spark's ranks of operators: NOT, AND and OR join predicates, a predicate is one test of a value,
        and comparisons are the last of the operators of values, which all are left-associative.
        """

        UNARY_PARSERS = {  # noqa: RUF012 (sqlglot's own convention)
            **{token: parse for token, parse in Spark.Parser.UNARY_PARSERS.items() if token != TokenType.NOT},
            TokenType.DASH: _negated,
            TokenType.PLUS: _signed,
        }
        FUNCTIONS = {  # noqa: RUF012 (sqlglot's own convention)
            **{name: build for name, build in Spark.Parser.FUNCTIONS.items() if name not in _NO_FUNCTIONS},
            "DATE_TRUNC": _date_trunc,
            "TRUNC": _trunc,
            "FIRST_VALUE": _ignoring_nulls(exp.FirstValue),
            "LAST_VALUE": _ignoring_nulls(exp.LastValue),
        }
        FUNCTION_PARSERS = {  # noqa: RUF012 (sqlglot's own convention)
            name: parse for name, parse in Spark.Parser.FUNCTION_PARSERS.items() if name not in _NO_FUNCTIONS
        }
        RANGE_PARSERS = {  # noqa: RUF012 (sqlglot's own convention)
            **Spark.Parser.RANGE_PARSERS,
            TokenType.LIKE: lambda self, this: self._parse_escape(exp.Like(this=this, expression=self._value())),
            TokenType.RLIKE: lambda self, this: exp.RegexpLike(this=this, expression=self._value()),
        }

        def _parse_equality(self, parse_is: bool = True) -> exp.Expr | None:
            if self._match(TokenType.NOT):
                return self.expression(exp.Not(this=self._parse_equality()))
            value = self._parse_comparison()
            return value if value is None else self._parse_range(value)

        def _parse_comparison(self, this: exp.Expr | None = None) -> exp.Expr | None:
            this = this or self._parse_bitwise()
            while self._match_set(_COMPARISON_TOKENS):
                kind = _COMPARISON_TOKENS[self._prev.token_type]
                this = self.expression(kind(this=_in_parentheses(this), expression=self._parse_bitwise()))
            return this

        def _value(self) -> exp.Expr | None:
            """Parse an operand of a predicate."""
            return _in_parentheses(self._parse_comparison())

        def _parse_range(self, this: exp.Expr | None = None, parse_is: bool = False) -> exp.Expr | None:
            """Parse the predicate behind a value, of which there is one at most."""
            value = _in_parentheses(this or self._parse_comparison())
            negate = self._match(TokenType.NOT)
            if not self._match_set(self.RANGE_PARSERS):
                if negate:
                    self._retreat(self._index - 1)
                return this or value
            predicate = self.RANGE_PARSERS[self._prev.token_type](self, value)
            return self._negate_range(predicate) if negate else predicate

        def _parse_id_var(self, any_token: bool = True, tokens: Collection[TokenType] | None = None) -> exp.Expr | None:
            """Parse a name. A text between quotes is none."""
            return None if self._curr.token_type == TokenType.STRING else super()._parse_id_var(any_token, tokens)

        def _parse_string_as_identifier(self) -> exp.Identifier | None:
            return None

        def _parse_null(self) -> exp.Expr | None:
            """Parse NULL; UNKNOWN is a name, and IS UNKNOWN a test of conditions alone."""
            return None if self._curr.token_type == TokenType.UNKNOWN else super()._parse_null()

        def _parse_is_rhs(self, distinct: bool = False) -> exp.Expr | None:
            return self._value() if distinct else self._parse_null() or self._parse_boolean()

        def _parse_between(self, this: exp.Expr | None) -> exp.Between:
            symmetric = self._match_text_seq("SYMMETRIC")
            low = self._value()
            self._match(TokenType.AND)
            return self.expression(exp.Between(this=this, low=low, high=self._value(), symmetric=symmetric))

        def _parse_term(self, parse_mod: bool = True) -> exp.Expr | None:
            this = self._parse_factor(parse_mod=parse_mod)
            while self._match_set(_TERMS):
                kind = _TERMS[self._prev.token_type]
                left = this if kind is exp.DPipe else _in_parentheses(this)
                parts = {"this": left, "expression": self._parse_factor(parse_mod=parse_mod)}
                this = self.expression(kind(**parts, safe=True) if kind is exp.DPipe else kind(**parts))
            return this

        def _parse_cube_or_rollup(self, with_prefix: bool = False) -> exp.Cube | exp.Rollup | None:
            totals = super()._parse_cube_or_rollup(with_prefix)
            if with_prefix and totals and not self._ends_clause():
                self.raise_error("WITH ROLLUP and WITH CUBE end GROUP BY")
            return totals

        def _ends_clause(self) -> bool:
            token = self._curr.token_type if self._curr else None
            ends = (None, TokenType.SENTINEL, TokenType.R_PAREN, TokenType.SEMICOLON, *self.SET_OPERATIONS)
            return token in ends or token in self.QUERY_MODIFIER_TOKENS

    class Generator(Spark.Generator):
        EXPRESSIONS_WITHOUT_NESTED_CTES = set[type[exp.Expr]]()  # noqa: RUF012 (each WITH stays where it is)
