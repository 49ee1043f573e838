"""A WHERE clause as an Arrow expression: the text of the `filter` option, parsed against a table's columns (pure).

    predicate := column (= | == | <> | != | < | <= | > | >=) operand | column [NOT] IN (literal, ...)
               | column [NOT] BETWEEN literal AND literal | column [NOT] LIKE 'pattern' | column IS [NOT] NULL | column

joined by NOT, AND, OR and parentheses; nulls follow SQL's three-valued logic. Columns are written plain, "quoted" or
`quoted`; literals are numbers, 'text', TRUE, FALSE, and DATE or TIMESTAMP before a text. A literal takes its column's
type; a timestamp without an offset is UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidInput

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<text>'(?:[^']|'')*')"""
    r"""|(?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`)|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign><=|>=|<>|!=|==|[=<>(),])|(?P<end>\Z))"""
)
_SIGNS = {"=": "equal", "==": "equal", "<>": "not_equal", "!=": "not_equal"}
_SIGNS |= {"<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_FLIPPED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}


def parse_predicate(text: str, schema: pa.Schema) -> pc.Expression:
    """What `text` means for a table of this schema; InvalidInput, with the place, when it means nothing."""
    parser = _Parser(text, schema)
    found = parser.any_of()
    parser.expect("end")
    return found


def compare(sign: str, field: pa.Field, value: object) -> pc.Expression:
    """`column <sign> value` with the value in the column's type; sign: equal, not_equal, less, less_equal, greater,
    greater_equal.
    """
    return getattr(pc, sign)(pc.field(field.name), literal(field, value))


def literal(field: pa.Field, value: object) -> pa.Scalar:
    """A Python value as a scalar of the column's type, or of its own where a fraction meets whole numbers."""
    kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    try:
        if isinstance(value, str) and pa.types.is_timestamp(kind):
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime) and pa.types.is_timestamp(kind):
            return pa.scalar(_instant(value, kind.tz is not None), kind)
        if isinstance(value, Decimal | float) and pa.types.is_temporal(kind):
            raise TypeError("a number is no time")
        if isinstance(value, Decimal | float) and pa.types.is_integer(kind) and value != int(value):
            return pa.scalar(float(value))
        if isinstance(value, str) and not pa.types.is_string(kind) and not pa.types.is_large_string(kind):
            return pa.scalar(value).cast(kind)
        if isinstance(value, Decimal) and not pa.types.is_decimal(kind):
            value = int(value) if value == int(value) and not pa.types.is_floating(kind) else float(value)
        return pa.scalar(value, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(
            f"column {field.name!r} of type {kind} cannot be compared with {value!r}: {error}"
        ) from error


def _instant(value: datetime, zoned: bool) -> datetime:
    if zoned:
        return value if value.tzinfo else value.replace(tzinfo=UTC)
    return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str, schema: pa.Schema) -> None:
        self.text, self.schema, self.at = text, schema, 0
        self.kind, self.value = "", ""
        self.step()

    def step(self) -> str:
        """Move to the next token; the value of the one left behind."""
        left = self.value
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            raise self.error("a column, a literal or an operator")
        self.at, self.kind, self.value = found.end(), found.lastgroup or "", (found.group(found.lastgroup or 0)).strip()
        return left

    def error(self, wanted: str) -> InvalidInput:
        return InvalidInput(f"filter {self.text!r}: expected {wanted} near position {self.at}")

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

    def expect(self, what: str) -> None:
        if what == "end" and self.kind != "end":
            raise self.error("AND, OR or the end")
        if what != "end" and not (self.sign(what) or self.word(what)):
            raise self.error(what)

    def any_of(self) -> pc.Expression:
        found = self.all_of()
        while self.word("OR"):
            found = found | self.all_of()
        return found

    def all_of(self) -> pc.Expression:
        found = self.negated()
        while self.word("AND"):
            found = found & self.negated()
        return found

    def negated(self) -> pc.Expression:
        if self.word("NOT"):
            return ~self.negated()
        if self.sign("("):
            found = self.any_of()
            self.expect(")")
            return found
        return self.predicate()

    def predicate(self) -> pc.Expression:
        if self.kind in ("number", "text") or (
            self.kind == "word" and self.value.upper() in ("TRUE", "FALSE", "DATE", "TIMESTAMP")
        ):
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
        found = self.ranged(field, negative)
        return ~found if negative else found

    def compared(self, field: pa.Field, name: str) -> pc.Expression:
        if self.kind == "quoted" or (self.kind == "word" and self.value in self.schema.names):
            return getattr(pc, name)(pc.field(field.name), pc.field(self.column().name))
        return compare(name, field, self.literal())

    def ranged(self, field: pa.Field, negative: bool) -> pc.Expression:
        """IN, BETWEEN and LIKE; or, without any of them, the column itself as a truth value."""
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
        quoted, name = self.kind == "quoted", self.step()
        name = name[1:-1].replace(name[0] * 2, name[0]) if quoted else name
        if name not in self.schema.names:
            raise InvalidInput(
                f"filter {self.text!r}: there is no column {name!r}; there are {', '.join(self.schema.names)}"
            )
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


def one_of(field: pa.Field, values: list[Any]) -> pc.Expression:
    """`column IN (values)`: null for a null, as SQL has it."""
    column, kinds = pc.field(field.name), [literal(field, value) for value in values]
    wanted = [scalar.as_py() for scalar in kinds if scalar.type.equals(field.type)]
    inside = pc.is_in(column, pa.array(wanted, field.type))
    return pc.if_else(column.is_valid(), inside, pa.scalar(None, pa.bool_()))
