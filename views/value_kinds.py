"""Kinds of the values of a query's expressions, found without an engine (pure)."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TypeVar

import pyarrow as pa
from sqlglot import exp

from epochlog.store.types.schema import TableSchema

from . import syntax
from .opening import output_names

NARROW = (
    *(exp.RowNumber, exp.Rank, exp.DenseRank, exp.Ntile, exp.Length),
    *(exp.Year, exp.Quarter, exp.Month, exp.Day, exp.DayOfYear, exp.Hour, exp.Minute, exp.Second, exp.DateDiff),
)
"""Functions of type INT in Spark and BIGINT in DuckDB."""
_INTEGERS = (exp.Count, exp.CountIf, exp.IntDiv, *NARROW)
_OF_FIRST = (exp.Paren, exp.Neg, exp.Abs, exp.Sum, exp.Min, exp.Max, exp.Filter, exp.Nullif, exp.Window, exp.Distinct)
OF_ALL = (exp.Add, exp.Sub, exp.Mul, exp.Mod, exp.Coalesce, exp.Greatest, exp.Least)
"""Expressions whose values have the common kind of all their parts."""
_WIDTHS = {"TINYINT": pa.int8(), "SMALLINT": pa.int16(), "FLOAT": pa.float32(), "TIMESTAMP_NTZ": pa.timestamp("us")}
"""Types whose values DuckDB and Spark widen differently beside values of other types."""
_NAMES = {kind: name for name, kind in _WIDTHS.items()}
_VALUES = (exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue)
_OF_PARTS = (*_OF_FIRST, *OF_ALL, *_VALUES, exp.Case, exp.If, exp.TsOrDsToDate)
_FLOATS = (exp.Avg, exp.Div, exp.SafeDivide, exp.PercentRank, exp.CumeDist)
_TEXTS = (exp.Substring, exp.Left, exp.Concat, exp.DPipe, exp.Trim)
_TESTS = (exp.StartsWith, exp.EndsWith, exp.Contains, exp.LogicalAnd, exp.LogicalOr)
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10}
"""Digits of an integer as a DECIMAL; those of others are 20."""
_NESTED = ("struct", "list", "map")
"""First words of the kinds of nested values, which are their whole types."""
_MOMENT = re.compile(
    r"(\d{4})-(\d\d?)-(\d\d?)"
    r"([ T]([01]?\d|2[0-3]):[0-5]?\d:[0-5]?\d(\.\d{1,6})?(Z|[+-](0\d|1[0-7]):[0-5]\d|[+-]18:00)?)?"
)
NOT_A_MOMENT = "write the date or time as 2024-01-31 or 2024-01-31 10:00:00"


T = TypeVar("T")


class ValueKinds:
    """Kinds of the values of a query's expressions: integer, float, decimal, text, binary, date, timestamp, boolean,
    null, and the whole type of a nested value.
    """

    def __init__(self, query: exp.Expr, tables: Mapping[str, str], schemas: Mapping[str, TableSchema]) -> None:
        self._schemas = {alias: schemas[name] for alias, name in tables.items()}
        self._derived = {
            node.alias: node.this
            for node in query.find_all(exp.Subquery)
            if node.alias and isinstance(node.this, exp.Query)
        }
        # What is known of an expression, with the expression: no other one has its id meanwhile.
        self._kinds: dict[int, tuple[exp.Expr, str | None]] = {}
        self._leaves: dict[int, tuple[exp.Expr, tuple[pa.DataType, ...]]] = {}
        self._most_digits: dict[int, tuple[exp.Expr, tuple[int, int]]] = {}
        self._named: dict[int, tuple[exp.Expr, dict[str, int]]] = {}

    def of(self, node: exp.Expr) -> str | None:
        """Return the kind of an expression's values; None if it is not known."""
        return _remembered(self._kinds, self._kind, node)

    def _kind(self, node: exp.Expr) -> str | None:
        if isinstance(node, exp.Column):
            return self._of_column(node)
        if isinstance(node, exp.Null):
            return "null"
        if isinstance(node, exp.Literal):
            return kind_of_literal(node)
        if isinstance(node, exp.Cast):
            return kind_of_type(node.to)
        if isinstance(node, exp.Query):
            inner = syntax.unwrapped(node)
            return self._of_output(inner, output_names(inner)[0])
        fixed = (
            *(("integer", _INTEGERS), ("float", _FLOATS), ("text", _TEXTS), ("boolean", _TESTS)),
            *(("timestamp", exp.TimestampTrunc), ("date", (exp.TsOrDsAdd, exp.DateTrunc))),
        )
        for kind, types in fixed:
            if isinstance(node, types):
                return kind
        if isinstance(node, exp.Distinct):
            return self._common([self.of(part) for part in node.expressions])
        if isinstance(node, exp.TsOrDsToDate):
            kind = self.of(node.this)
            return "date" if kind == "timestamp" or is_moment(node.this) else kind
        if isinstance(node, (*_OF_FIRST, *_VALUES)):
            return self.of(node.this)
        if isinstance(node, (*OF_ALL, exp.Case, exp.If)):
            return self._common([self.of(part) for part in self.values_of(node)])
        return "boolean" if isinstance(node, exp.Boolean | exp.Predicate | exp.Connector | exp.Not) else None

    def outputs(self, query: exp.Query) -> list[exp.Expr]:
        """Return the expressions of a query's outputs; of a set operation, those of its left side."""
        while isinstance(query, exp.SetOperation):
            query = syntax.unwrapped(query.this)
        return [output.unalias() for output in query.expressions]

    def width(self, node: exp.Expr) -> str | None:
        """Return TINYINT, SMALLINT, FLOAT or TIMESTAMP_NTZ if an expression has this type; None for other types."""
        return next((_NAMES[kind] for kind in self._types(node) if kind in _NAMES), None)

    def _types(self, node: exp.Expr) -> tuple[pa.DataType, ...]:
        """Return the types, each once, of the columns, casts and numbers whose values the expression's value can be."""
        return _remembered(self._leaves, lambda part: tuple(dict.fromkeys(self._find_types(part))), node)

    def digits(self, node: exp.Expr) -> tuple[int, int]:
        """Return the most digits before and behind the point of an integer's or a DECIMAL's values."""
        return _remembered(self._most_digits, self._find_digits, node)

    def _find_digits(self, node: exp.Expr) -> tuple[int, int]:
        if isinstance(node, (*OF_ALL, exp.Case, exp.If)):
            parts = [self.digits(part) for part in self.values_of(node) if self.of(part) != "null"]
            return max((whole for whole, _ in parts), default=0), max((behind for _, behind in parts), default=0)
        kind = next(iter(self._types(node)), None)
        if kind is None or not pa.types.is_decimal(kind):
            return _DIGITS.get(kind, 20), 0
        return kind.precision - kind.scale, kind.scale

    def _find_types(self, node: exp.Expr) -> Iterator[pa.DataType]:
        if isinstance(node, (exp.Paren, exp.Neg, exp.Abs, exp.Min, exp.Max, exp.Filter, exp.Window, *_VALUES)):
            yield from self._types(node.this)
        elif isinstance(node, (*OF_ALL, exp.Case, exp.If, exp.Nullif)):
            for part in [node.this] if isinstance(node, exp.Nullif) else self.values_of(node):
                yield from self._types(part)
        elif isinstance(node, exp.Cast):
            yield from _types_of_cast(node.to)
        elif isinstance(node, exp.Literal) and kind_of_literal(node) in ("integer", "decimal"):
            yield type_of_decimal(node)
        elif isinstance(node, exp.Query):
            yield from self._types(self.outputs(syntax.unwrapped(node))[0])
        elif isinstance(node, exp.Column) and node.table in self._schemas:
            yield self._schemas[node.table].schema.field(node.name).type
        elif isinstance(node, exp.Column) and node.table in self._derived:
            inner = syntax.unwrapped(self._derived[node.table])
            place = self._place(inner, node.name)
            while isinstance(inner, exp.SetOperation):
                inner = syntax.unwrapped(inner.this)
            yield from self._types(inner.expressions[place].unalias()) if place is not None else ()

    @staticmethod
    def values_of(node: exp.Expr) -> list[exp.Expr]:
        """Return the parts of an expression whose values can be its value."""
        if not isinstance(node, exp.Case | exp.If):
            return [part for part in node.iter_expressions() if not isinstance(part, exp.Interval)]
        default = node.args.get("default") or node.args.get("false")
        return [*(case.args["true"] for case in node.args.get("ifs") or [node]), *([default] if default else [])]

    @staticmethod
    def _common(kinds: Sequence[str | None]) -> str | None:
        known = {kind for kind in kinds if kind != "null"}
        if len(known) <= 1:
            return next(iter(known), "null")
        if known <= {"integer", "float", "decimal"}:
            return "float" if "float" in known else "decimal"
        return None

    def _of_column(self, column: exp.Column) -> str | None:
        if column.table in self._schemas:
            return _kind_of_arrow(self._schemas[column.table].schema.field(column.name).type)
        query = self._derived.get(column.table)
        return None if query is None else self._of_output(syntax.unwrapped(query), column.name)

    def _of_output(self, query: exp.Query, name: str) -> str | None:
        place = self._place(query, name)
        return None if place is None else self._of_place(query, place)

    def _of_place(self, query: exp.Query, place: int) -> str | None:
        if isinstance(query, exp.SetOperation):
            sides = [syntax.unwrapped(query.this), syntax.unwrapped(query.expression)]
            return self._common([self._of_place(side, place) for side in sides])
        return self.of(query.expressions[place].unalias())

    def _place(self, query: exp.Query, name: str) -> int | None:
        """Return the place of the first output of this name; None for a query that names its outputs nowhere."""
        while isinstance(query, exp.SetOperation):
            query = syntax.unwrapped(query.this)
        if id(query) not in self._named:
            places = {output.alias_or_name: place for place, output in reversed(list(enumerate(query.expressions)))}
            self._named[id(query)] = query, places
        return self._named[id(query)][1].get(name)


def _remembered(known: dict[int, tuple[exp.Expr, T]], find: Callable[[exp.Expr], T], node: exp.Expr) -> T:
    """Return what is found of an expression, once for each. Parts come before the wholes, so that a long sum of them
    needs no deeper calls than a short one.
    """
    if id(node) not in known:
        for part in reversed(list(syntax.walk(node))) if isinstance(node, _OF_PARTS) else (node,):
            if id(part) not in known and (part is node or isinstance(part, _OF_PARTS)):
                known[id(part)] = part, find(part)
    return known[id(node)][1]


def kind_of_literal(literal: exp.Literal) -> str:
    """Return the kind of a text or of a number without a suffix."""
    if literal.is_string:
        return "text"
    if "e" in literal.name.lower():
        return "float"
    return (
        "integer" if literal.is_int and int(literal.name) < 2**63 + isinstance(literal.parent, exp.Neg) else "decimal"
    )


def is_moment(value: exp.Expr) -> bool:
    """Return True for a literal date or time as both engines read it; DuckDB knows 'infinity' and '24:00:00' too."""
    if not isinstance(value, exp.Literal) or not value.is_string:
        return False
    match = _MOMENT.fullmatch(value.name)
    if match is None:
        return False
    year, month, day = map(int, match.group(1, 2, 3))
    return year > 0 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]


def _kind_of_arrow(kind: pa.DataType) -> str | None:
    checks = (
        ("integer", pa.types.is_integer),
        ("float", pa.types.is_floating),
        ("decimal", pa.types.is_decimal),
        ("text", lambda t: pa.types.is_string(t) or pa.types.is_large_string(t)),
        ("date", pa.types.is_date),
        ("timestamp", pa.types.is_timestamp),
        ("boolean", pa.types.is_boolean),
        ("binary", lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t)),
        (str(kind), pa.types.is_nested),
    )
    return next((name for name, check in checks if check(kind)), None)


def is_nested(kind: str | None) -> bool:
    """Return True for the kind of a struct, a list or a map."""
    return kind is not None and kind.startswith(_NESTED)


def type_of_decimal(number: exp.Literal) -> pa.Decimal128Type:
    """Return the DECIMAL that Spark makes of a number: zeros before it do not count."""
    _, digits, exponent = Decimal(number.name).as_tuple()
    scale = -int(exponent)
    return pa.decimal128(max(len(digits), scale), scale)


def _types_of_cast(kind: exp.DataType) -> list[pa.DataType]:
    """Return the type of a cast if it is a narrow one or a DECIMAL."""
    name = kind.sql(syntax.DIALECT)
    if name in _WIDTHS:
        return [_WIDTHS[name]]
    if kind.this != exp.DType.DECIMAL:
        return []
    precision, scale = [int(part.name) for part in [*kind.expressions, exp.Literal.number(0)][:2]]
    return [pa.decimal128(precision, scale)]


def kind_of_type(kind: exp.DataType) -> str | None:
    """Return the kind of the values of a type in SQL; None if it has no kind."""
    types = exp.DataType.Type
    kinds = {
        "integer": (types.TINYINT, types.SMALLINT, types.INT, types.BIGINT),
        "float": (types.FLOAT, types.DOUBLE),
        "decimal": (types.DECIMAL,),
        "text": (types.TEXT, types.VARCHAR),
        "date": (types.DATE,),
        "timestamp": (types.TIMESTAMP, types.TIMESTAMPTZ, types.TIMESTAMPNTZ),
        "boolean": (types.BOOLEAN,),
        "binary": (types.BINARY,),
    }
    return next((name for name, members in kinds.items() if kind.this in members), None)
