"""SQL types of the columns of random tables: the Arrow type, the literals and the random values of each."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa

INT, BIGINT, BOOLEAN, DOUBLE = "INT", "BIGINT", "BOOLEAN", "DOUBLE"
ARROW: dict[str, pa.DataType] = {
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    INT: pa.int32(),
    BIGINT: pa.int64(),
    "FLOAT": pa.float32(),
    DOUBLE: pa.float64(),
    "DECIMAL(9,2)": pa.decimal128(9, 2),
    "DECIMAL(20,4)": pa.decimal128(20, 4),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
    BOOLEAN: pa.bool_(),
}
FAMILIES = {
    "integer": ("TINYINT", "SMALLINT", INT, BIGINT, BIGINT),
    "float": ("FLOAT", DOUBLE, DOUBLE),
    "decimal": ("DECIMAL(9,2)", "DECIMAL(20,4)"),
    **{name: (name,) for name in ("STRING", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", BOOLEAN)},
}
"""Types whose values an engine compares; a repeated one is chosen more often."""
_FAMILY = {name: family for family, names in FAMILIES.items() for name in names}
FIRST_DAY = dt.datetime(2026, 1, 2, 12)


def family(sql_type: str) -> str:
    return _FAMILY[sql_type]


def sql_type(kind: pa.DataType) -> str:
    """Return the type that a column of a view has in SQL; that of the nearest decimal for a decimal."""
    if pa.types.is_decimal(kind):
        return "DECIMAL(9,2)" if kind.scale <= 2 else "DECIMAL(20,4)"
    return next(name for name, arrow in ARROW.items() if arrow == kind)


def literal(sql_type: str, number: int) -> str:
    """Return the text of the value of a number, -1 included. Values of a type are ordered as their numbers, but for
    BOOLEAN, which has two.
    """
    day = (FIRST_DAY + dt.timedelta(days=number)).isoformat(sep=" ")
    if sql_type in (INT, BIGINT):
        return str(number)
    texts = {
        "STRING": f"'{'m' if number < 0 else 's'}{abs(number)}'",
        "BINARY": f"X'{number + 1:02x}'",
        "DATE": f"DATE '{day[:10]}'",
        "TIMESTAMP": f"TIMESTAMP '{day}'",
        "TIMESTAMP_NTZ": f"TIMESTAMP_NTZ '{day}'",
        BOOLEAN: "TRUE" if number % 2 else "FALSE",
        DOUBLE: f"{number}D" if number >= 0 else f"(-{-number}D)",
    }
    return texts.get(sql_type) or f"CAST({number} AS {sql_type})"


def value(sql_type: str, number: int) -> Any:
    """Return the value of `literal`."""
    day = FIRST_DAY + dt.timedelta(days=number)
    values: dict[str, Any] = {
        "STRING": f"{'m' if number < 0 else 's'}{abs(number)}",
        "BINARY": bytes([number + 1]),
        "DATE": day.date(),
        "TIMESTAMP": day.replace(tzinfo=dt.UTC),
        "TIMESTAMP_NTZ": day,
        BOOLEAN: bool(number % 2),
    }
    return values.get(sql_type, Decimal(number) if family(sql_type) == "decimal" else number)


CORNERS: dict[str, tuple[Any, ...]] = {
    "float": (0.0, -0.0, 0.25, math.nan, math.inf, -math.inf),
    "decimal": (Decimal("0.25"), Decimal("-1234567.50")),
    "integer": (-60, 60),  # whose sums any type has
    "STRING": ("", "\U0001f600", "s"),
    "BINARY": (b"", b"\x00", b"\xff\x00"),
    "DATE": (dt.date(1969, 12, 31), dt.date(9999, 12, 31)),
    "TIMESTAMP": (dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC),),
    "TIMESTAMP_NTZ": (dt.datetime(1969, 12, 31, 23, 59, 59, 999_999),),
    BOOLEAN: (),
}
"""Further values of each family of types."""


def random_value(chance: random.Random, sql_type: str, numbers: int = 4) -> Any:
    """Return a value of few, so that rows meet."""
    corners = CORNERS[family(sql_type)]
    if corners and chance.random() < 0.15:
        return chance.choice(corners)
    return value(sql_type, chance.randrange(numbers))


@dataclass
class TypedTexts:
    """Texts of expressions with their SQL types, from which larger ones are made.

    types: those of the query that is made, by text; INT for others.
    """

    chance: random.Random
    types: dict[str, str] = field(default_factory=dict)

    def type_of(self, text: str) -> str:
        return self.types.get(text, INT)

    def typed(self, text: str, sql_type: str) -> str:
        """Return the text, whose type is known from now on."""
        self.types[text] = sql_type
        return text

    def literal(self, text: str, number: int) -> str:
        """Return a literal of the type of an expression."""
        return literal(self.type_of(text), number)

    def alike(self, text: str, others: Sequence[str]) -> list[str]:
        """Return the expressions that can be compared with this one."""
        return [other for other in others if family(self.type_of(other)) == family(self.type_of(text))]

    def compared(self, text: str, comparison: str, others: Sequence[str]) -> str:
        """Return a comparison with one of the others; of their nulls if none has a type that is compared."""
        alike = self.alike(text, others)
        other = (alike or others)[0] if len(others) == 1 else self.chance.choice(alike or others)
        return f"{text} {comparison} {other}" if alike else f"({text} IS NULL) {comparison} ({other} IS NULL)"

    def filled(self, text: str, number: int = -1) -> str:
        """Return the expression with a value in place of NULL, another one than its values."""
        if self.type_of(text) == BOOLEAN:
            return self.typed(f"COALESCE(CAST({text} AS INT), {number})", INT)
        return self.typed(f"COALESCE({text}, {self.literal(text, number)})", self.type_of(text))

    def groupable(self, text: str) -> str:
        """Return the expression without the two zeros of a DOUBLE, by which DuckDB groups no rows."""
        if family(self.type_of(text)) != "float":
            return text
        return self.typed(f"{text if self.type_of(text) == DOUBLE else f'CAST({text} AS DOUBLE)'} + 0D", DOUBLE)

    def sum_of(self, left: str, right: str) -> str:
        if {family(self.type_of(side)) for side in (left, right)} != {"integer"}:
            return left
        return self.typed(f"{left} + {right}", self.type_of(left))

    def aggregate(self, form: str, column: str) -> str:
        """Return an aggregate of a column; its largest value in place of a sum that its type has not."""
        kind = self.type_of(column)
        if "SUM" in form and family(kind) not in ("integer", "float", "decimal"):
            form = "MAX({0})"
        text = form.format(column)
        if "COUNT" in form:
            return self.typed(text, BIGINT)
        if "SUM" in form and family(kind) == "decimal":
            return self.typed(f"CAST({text} AS {kind})", kind)
        return self.typed(text, {"integer": BIGINT, "float": DOUBLE}[family(kind)] if "SUM" in form else kind)

    def added(self, form: str, first: str, second: str) -> str:
        """Return a sum or count of exact numbers."""
        if form == "SUM({0})" or {family(self.type_of(column)) for column in (first, second)} == {"integer"}:
            if family(self.type_of(first)) == "integer":
                return self.typed(form.format(first, second), BIGINT)
            if family(self.type_of(first)) == "decimal":
                return self.aggregate("SUM({0})", first)
        return self.typed(f"COUNT({first})", BIGINT)
