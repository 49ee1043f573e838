"""Spark data source "epochlog.exchange"."""

# ruff: noqa: N802  # Spark calls these methods by its own names

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from epochlog.errors import InvalidInput


class ExchangeSource(DataSource):
    """Data source of `format("epochlog.exchange")`: one query of a staged exchange."""

    @classmethod
    def name(cls) -> str:
        return "epochlog.exchange"

    def schema(self) -> StructType:
        raise InvalidInput(
            'a read of format("epochlog.exchange") needs .schema("…"): the columns of all stages, and if you need them '
            "_stage BIGINT, _channel STRING, _sequence BIGINT. The columns of a batch are unknown until it is pushed"
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        from .exchange_source import ExchangeReader, resolve_layout

        return ExchangeReader(resolve_layout(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .exchange_sink import make_sink

        return make_sink(self.options, schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .exchange_source import resolve_layout
        from .exchange_stream import ExchangeStreamReader

        return ExchangeStreamReader(resolve_layout(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        raise InvalidInput(
            "a stream never ends, so its stage would never pass; write the stream to a table, and push frames of a "
            "batch with df.write"
        )
