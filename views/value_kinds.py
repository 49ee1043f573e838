"""Kinds of the values of a query's expressions, found without an engine (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from sqlglot import exp

from epochlog.store.types.schema import TableSchema

from . import syntax
from .touched import output_names

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
_VALUES = (exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue)
_FLOATS = (exp.Avg, exp.Div, exp.SafeDivide, exp.PercentRank, exp.CumeDist)
_TEXTS = (exp.Substring, exp.Left, exp.Concat, exp.DPipe, exp.Trim)
_TESTS = (exp.StartsWith, exp.EndsWith, exp.Contains)


class ValueKinds:
    """Kinds of the values of a query's expressions: integer, float, decimal, text, date, timestamp, boolean,
    nested, null.
    """

    def __init__(self, query: exp.Query, tables: Mapping[str, str], schemas: Mapping[str, TableSchema]) -> None:
        self._schemas = {alias: schemas[name] for alias, name in tables.items()}
        self._derived = {
            node.alias: node.this
            for node in query.find_all(exp.Subquery)
            if node.alias and isinstance(node.this, exp.Query)
        }

    def of(self, node: exp.Expr) -> str | None:
        """Return the kind of an expression's values; None if it is not known."""
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
            return "date" if kind == "timestamp" else kind
        if isinstance(node, (*_OF_FIRST, *_VALUES)):
            return self.of(node.this)
        if isinstance(node, (*OF_ALL, exp.Case, exp.If)):
            return self._common([self.of(part) for part in self.values_of(node)])
        return "boolean" if isinstance(node, exp.Boolean | exp.Predicate | exp.Connector | exp.Not) else None

    def outputs(self, query: exp.Query) -> list[exp.Expr]:
        """Return the expressions of a query's outputs; of a set operation, those of its left side."""
        while isinstance(query, exp.SetOperation):
            query = syntax.unwrapped(query.this)
        return [output.this for output in query.expressions]

    def width(self, node: exp.Expr) -> str | None:
        """Return TINYINT, SMALLINT, FLOAT or TIMESTAMP_NTZ if an expression has this type; None for other types."""
        if isinstance(node, (exp.Paren, exp.Neg, exp.Abs, exp.Min, exp.Max, exp.Filter, exp.Window, *_VALUES)):
            return self.width(node.this)
        if isinstance(node, (*OF_ALL, exp.Case, exp.If, exp.Nullif)):
            parts = [node.this] if isinstance(node, exp.Nullif) else self.values_of(node)
            return next((width for part in parts if (width := self.width(part)) is not None), None)
        if isinstance(node, exp.Cast):
            name = node.to.sql(syntax.DIALECT)
            return name if name in _WIDTHS else None
        if isinstance(node, exp.Query):
            return self.width(self.outputs(syntax.unwrapped(node))[0])
        if not isinstance(node, exp.Column):
            return None
        if node.table in self._schemas:
            kind = self._schemas[node.table].schema.field(node.name).type
            return next((name for name, narrow in _WIDTHS.items() if kind == narrow), None)
        query = self._derived.get(node.table)
        if query is None:
            return None
        inner = syntax.unwrapped(query)
        return self.width(self.outputs(inner)[output_names(inner).index(node.name)])

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
        if isinstance(query, exp.SetOperation):
            sides = [syntax.unwrapped(query.this), syntax.unwrapped(query.expression)]
            return self._common([self._of_output(side, name) for side in sides])
        return self.of(next(output.this for output in query.expressions if output.alias == name))


def kind_of_literal(literal: exp.Literal) -> str:
    """Return the kind of a text or of a number without a suffix."""
    if literal.is_string:
        return "text"
    if "e" in literal.name.lower():
        return "float"
    return (
        "integer" if literal.is_int and int(literal.name) < 2**63 + isinstance(literal.parent, exp.Neg) else "decimal"
    )


def _kind_of_arrow(kind: pa.DataType) -> str | None:
    checks = (
        ("integer", pa.types.is_integer),
        ("float", pa.types.is_floating),
        ("decimal", pa.types.is_decimal),
        ("text", lambda t: pa.types.is_string(t) or pa.types.is_large_string(t)),
        ("date", pa.types.is_date),
        ("timestamp", pa.types.is_timestamp),
        ("boolean", pa.types.is_boolean),
        ("nested", pa.types.is_nested),
    )
    return next((name for name, check in checks if check(kind)), None)


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
    }
    return next((name for name, members in kinds.items() if kind.this in members), None)
