"""Parser of a WHERE clause into an Arrow expression: the text of the `filter` option, for a table's columns (pure).

    predicate := column (= | == | <> | != | < | <= | > | >=) operand | column [NOT] IN (literal, ...)
               | column [NOT] BETWEEN literal AND literal | column [NOT] LIKE 'pattern' | column IS [NOT] NULL | column

joined by NOT, AND, OR and parentheses; nulls follow SQL's three-valued logic. Columns are written plain, "quoted" or
`quoted`; literals are numbers, 'text', TRUE, FALSE, and DATE or TIMESTAMP before a text. Numbers, dates and timestamps
are compared exactly, even with a literal that the column cannot hold; a float column rounds the literal to a float. A
timestamp without an offset is UTC.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from operator import and_, or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from epochlog.errors import InvalidInput

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<text>'(?:[^']|'')*')"""
    r"""|(?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`)|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign><=|>=|<>|!=|==|[=<>(),])|(?P<end>\Z))"""
)
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IN_WORD = re.compile(r"[A-Za-z0-9_]")
_KEYWORDS = ("AND", "OR", "NOT", "IS", "NULL", "IN", "BETWEEN", "LIKE", "TRUE", "FALSE", "DATE", "TIMESTAMP")
_SIGNS = {"=": "equal", "==": "equal", "<>": "not_equal", "!=": "not_equal"}
_SIGNS |= {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_FLIPPED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}


def parse_predicate(text: str, schema: pa.Schema) -> pc.Expression:
    """Parse `text` into a filter on a table of this schema. Raises InvalidInput; for a syntax error with
    its position.
    """
    _, expression = _parsed(text, schema)
    try:
        pa.Table.from_arrays([pa.nulls(1, kind) for kind in schema.types], schema=schema).filter(expression)
    except (pa.ArrowException, TypeError) as error:
        raise InvalidInput(f"filter {_quote(text)} does not fit the columns it names: {error}") from error
    return expression


def columns_of_predicate(text: str, schema: pa.Schema) -> list[str]:
    """Return the columns that a predicate names, in its order, each as often as it does. Raises InvalidInput."""
    parser, _ = _parsed(text, schema)
    return [name for _, _, name in parser.columns]


def rename_in_predicate(text: str, schema: pa.Schema, names: Mapping[str, str]) -> str:
    """Return a predicate on columns of `schema` with other names for those in `names`, otherwise as it was written."""
    parser, _ = _parsed(text, schema)
    for start, end, name in reversed(parser.columns):
        if names.get(name, name) != name:
            before, after = text[:start], text[end:]
            text = before + _written(names[name], beside=before[-1:] + after[:1]) + after
    return text


def _parsed(text: str, schema: pa.Schema) -> tuple[_Parser, pc.Expression]:
    parser = _Parser(text, schema)
    expression = parser.any_of()
    parser.expect("end")
    return parser, expression


def _written(name: str, beside: str) -> str:
    """Return a column's name as a predicate has it: quoted if it is no plain word, a keyword, or next to a word.

    beside: the characters before and after it. `a OR"b"` is a predicate, `a ORb` is none.
    """
    if _PLAIN.fullmatch(name) and name.upper() not in _KEYWORDS and not any(map(_IN_WORD.match, beside)):
        return name
    return '"' + name.replace('"', '""') + '"'


def compare(sign: str, field: pa.Field, value: object) -> pc.Expression:
    """Return the expression `column <sign> value`.

    sign: equal, not_equal, less, less_equal, greater, greater_equal. A value that the column cannot hold, such as 0.5
    for an integer column, lies between two values that it can hold, or beyond all of them.
    """
    column, kind = pc.field(field.name), _value_type(field)
    position = _position(field, value)
    if position is None:
        return getattr(pc, sign)(column, literal(field, value))
    low, high = _bounds(kind)
    below = math.floor(position)
    if below == position and low <= below <= high:
        return getattr(pc, sign)(column, _scalar_at(kind, below))
    if sign in ("equal", "not_equal"):
        return _constant(column, sign == "not_equal")
    greater = sign.startswith("greater")
    if below < low:
        return _constant(column, greater)
    if below >= high:
        return _constant(column, not greater)
    return pc.greater(column, _scalar_at(kind, below)) if greater else pc.less_equal(column, _scalar_at(kind, below))


def one_of(field: pa.Field, values: list[Any]) -> pc.Expression:
    """Return the expression `column IN (values)`: equal to any of them, and null for a null, as in SQL."""
    column, kind = pc.field(field.name), _value_type(field)
    low, high = _bounds(kind)
    scalars: list[pa.Scalar] = []
    for value in values:
        position = _position(field, value)
        if position is None:
            scalars.append(literal(field, value))
        elif position == math.floor(position) and low <= position <= high:
            scalars.append(_scalar_at(kind, int(position)))
    if pa.types.is_floating(kind):  # is_in compares bits: both zeros are one number, and no number equals NaN
        numbers = [float(scalar.as_py()) for scalar in scalars]
        numbers = [number for number in numbers if number == number]
        scalars = [pa.scalar(number, kind) for number in (*numbers, *([0.0, -0.0] if 0 in numbers else []))]
    plain = column.cast(kind) if kind != field.type else column
    return pc.if_else(column.is_valid(), pc.is_in(plain, pa.array(scalars, kind)), pa.scalar(None, pa.bool_()))


def literal(field: pa.Field, value: object) -> pa.Scalar:
    """Convert a Python value to a scalar of the column's type."""
    kind = _value_type(field)
    try:
        if isinstance(value, Decimal) and pa.types.is_temporal(kind):
            raise TypeError("a number is not a time")
        if isinstance(value, str) and not pa.types.is_string(kind) and not pa.types.is_large_string(kind):
            return pa.scalar(value).cast(kind)
        if isinstance(value, Decimal):
            value = float(value) if pa.types.is_floating(kind) else int(value)
        return pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(
            f"column {field.name!r} of type {kind} cannot be compared with {value!r}: {error}"
        ) from error


# ---- values that lie between those of a column -----------------------------------------------------------------------

MOST_DIGITS = 400
"""Most digits of a number's integer part or fraction; no column holds a longer one."""
_NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_FRACTION = re.compile(r"(?<=:\d\d)\.(\d+)")


def _value_type(field: pa.Field) -> pa.DataType:
    return field.type.value_type if pa.types.is_dictionary(field.type) else field.type


def _position(field: pa.Field, value: object) -> Fraction | None:
    """Return a literal's position on the scale of a column whose values are multiples of a step, in steps.

    None for other columns, and for literals that `literal` refuses.
    """
    kind = _value_type(field)
    if isinstance(value, Decimal) and not pa.types.is_temporal(kind):
        if abs(value.adjusted()) > MOST_DIGITS:
            raise InvalidInput(f"column {field.name!r}: {value} has more than {MOST_DIGITS} digits")
        if pa.types.is_integer(kind):
            return Fraction(value)
        return Fraction(value) * Fraction(10) ** kind.scale if pa.types.is_decimal(kind) else None
    if not isinstance(value, str) or not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        return None
    try:
        nanos = _unix_ns(value)
    except ValueError:
        return None
    return Fraction(nanos, _NANOS[kind.unit] if pa.types.is_timestamp(kind) else 86_400 * 10**9)


def _unix_ns(text: str) -> int:
    """Return the nanoseconds from 1970 to an ISO 8601 time; without an offset it is UTC. Raises ValueError."""
    fraction = _FRACTION.search(text)
    if fraction and len(fraction[1]) > 9:
        raise ValueError("a second has at most nine decimals")
    moment = datetime.fromisoformat(_FRACTION.sub("", text, count=1))
    seconds = (
        (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    ) // timedelta(seconds=1)
    return seconds * 10**9 + (int(fraction[1].ljust(9, "0")) if fraction else 0)


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    """Return the first and the last step of a column."""
    if pa.types.is_decimal(kind):
        largest = 10**kind.precision - 1
        return -largest, largest
    bits = 64 if pa.types.is_timestamp(kind) or not pa.types.is_primitive(kind) else kind.bit_width
    if pa.types.is_date64(kind):
        bits = 32
    return (0, 2**bits - 1) if pa.types.is_unsigned_integer(kind) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _scalar_at(kind: pa.DataType, step: int) -> pa.Scalar:
    if pa.types.is_decimal(kind):
        digits = tuple(int(digit) for digit in str(abs(step)))
        return pa.scalar(Decimal((step < 0, digits, -kind.scale)), kind)
    if pa.types.is_date(kind):
        return pa.scalar(step, pa.int32()).cast(pa.date32()).cast(kind)
    return pa.scalar(step, kind)


def _constant(column: pc.Expression, answer: bool) -> pc.Expression:
    """Return an expression that is `answer` for every value of the column, and null for a null."""
    return pc.if_else(column.is_valid(), pa.scalar(answer), pa.scalar(None, pa.bool_()))


MOST_TERMS = 2_000
"""Most comparisons of one filter; a list after IN counts as one, whatever its length."""
MOST_NESTED = 100
"""Deepest nesting of parentheses and NOTs."""
_SHOWN = 200


def _quote(text: str) -> str:
    """Return the text in quotes, shortened if it is long."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}… ({len(text)} characters)"


def _join_pairwise(terms: list[pc.Expression], join: Callable[[Any, Any], pc.Expression]) -> pc.Expression:
    """Join the terms pairwise: Arrow evaluates an expression by recursion, so its depth must stay small."""
    while len(terms) > 1:
        pairs = [join(first, second) for first, second in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(pairs) * 2 :]
    return terms[0]


class _Parser:
    """Recursive-descent parser over the tokens of one text."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self.text, self.schema, self.at, self.start = text, schema, 0, 0
        self.columns: list[tuple[int, int, str]] = []  # start, end and name of each column that was read
        self.terms = self.nested = 0
        self.kind, self.value = "", ""
        self.step()

    def step(self) -> str:
        """Move to the next token; return the value of the previous one."""
        previous = self.value
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            raise self.error("a column, a literal or an operator")
        self.at, self.kind, self.value = match.end(), match.lastgroup or "", (match.group(match.lastgroup or 0)).strip()
        self.start = match.start(match.lastgroup or 0)
        return previous

    def at_literal(self) -> bool:
        """Return True if the next token begins a literal, whatever columns there are."""
        if self.kind == "word" and self.value.upper() in ("DATE", "TIMESTAMP"):
            following = _TOKEN.match(self.text, self.at)
            return following is not None and following.lastgroup == "text"
        return self.kind in ("number", "text") or (self.kind == "word" and self.value.upper() in ("TRUE", "FALSE"))

    def error(self, expected: str) -> InvalidInput:
        return InvalidInput(f"filter {_quote(self.text)}: expected {expected} near position {self.at}")

    def word(self, *words: str) -> bool:
        """Take the next token if it is one of these keywords."""
        if self.kind == "word" and self.value.upper() in words:
            self.step()
            return True
        return False

    def sign(self, sign: str) -> bool:
        if self.kind == "sign" and self.value == sign:
            self.step()
            return True
        return False

    def expect(self, expected: str) -> None:
        if expected == "end" and self.kind != "end":
            raise self.error("AND, OR or the end")
        if expected != "end" and not (self.sign(expected) or self.word(expected)):
            raise self.error(expected)

    def any_of(self) -> pc.Expression:
        terms = [self.all_of()]
        while self.word("OR"):
            terms.append(self.all_of())
        return _join_pairwise(terms, or_)

    def all_of(self) -> pc.Expression:
        terms = [self.negated()]
        while self.word("AND"):
            terms.append(self.negated())
        return _join_pairwise(terms, and_)

    def negated(self) -> pc.Expression:
        self.nested += 1
        if self.nested > MOST_NESTED:
            raise InvalidInput(f"the filter nests more than {MOST_NESTED} parentheses or NOTs; simplify it")
        if self.word("NOT"):
            expression = ~self.negated()
        elif self.sign("("):
            expression = self.any_of()
            self.expect(")")
        else:
            expression = self.predicate()
        self.nested -= 1
        return expression

    def predicate(self) -> pc.Expression:
        self.terms += 1
        if self.terms > MOST_TERMS:
            raise InvalidInput(f"the filter has more than {MOST_TERMS} comparisons; use IN, or a join, for long lists")
        if self.at_literal():
            value = self.literal()
            name = _SIGNS.get(self.value) if self.kind == "sign" else None
            if name is None:
                raise self.error("a comparison")
            self.step()
            return compare(_FLIPPED.get(name, name), self.column(), value)
        field = self.column()
        if self.kind == "sign" and self.value in _SIGNS:
            return self.compared(field, _SIGNS[self.step()])
        if self.word("IS"):
            negative = self.word("NOT")
            self.expect("NULL")
            return pc.field(field.name).is_valid() if negative else pc.field(field.name).is_null()
        negative = self.word("NOT")
        expression = self.ranged(field, negative)
        return ~expression if negative else expression

    def compared(self, field: pa.Field, name: str) -> pc.Expression:
        if self.kind == "quoted" or (self.value in self.schema.names and not self.at_literal()):
            return getattr(pc, name)(pc.field(field.name), pc.field(self.column().name))
        return compare(name, field, self.literal())

    def ranged(self, field: pa.Field, negative: bool) -> pc.Expression:
        """Parse IN, BETWEEN or LIKE; without any of them, return the column itself as a truth value."""
        column = pc.field(field.name)
        if self.word("IN"):
            self.expect("(")
            values = [self.literal()]
            while self.sign(","):
                values.append(self.literal())
            self.expect(")")
            return one_of(field, values)
        if self.word("BETWEEN"):
            low = self.literal()
            self.expect("AND")
            return compare("greater_equal", field, low) & compare("less_equal", field, self.literal())
        if self.word("LIKE"):
            return pc.match_like(column, str(self.literal()))
        if negative or not pa.types.is_boolean(field.type):
            raise self.error(f"a comparison of column {field.name!r}")
        return column

    def column(self) -> pa.Field:
        if self.kind not in ("word", "quoted"):
            raise self.error("a column")
        start, end, quoted, name = self.start, self.at, self.kind == "quoted", self.step()
        name = name[1:-1].replace(name[0] * 2, name[0]) if quoted else name
        if name not in self.schema.names:
            raise InvalidInput(
                f"filter {_quote(self.text)}: there is no column {name!r}; there are {', '.join(self.schema.names)}"
            )
        self.columns.append((start, end, name))
        return self.schema.field(name)

    def literal(self) -> Any:
        if self.kind == "number":
            return Decimal(self.step())
        if self.kind == "text":
            return self.step()[1:-1].replace("''", "'")
        if self.word("TRUE"):
            return True
        if self.word("FALSE"):
            return False
        if self.word("DATE", "TIMESTAMP") and self.kind == "text":
            return self.literal()
        raise self.error("a literal")
